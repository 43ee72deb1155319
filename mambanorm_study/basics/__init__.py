"""Helpers that every other part of the package may import.

atomic           files that are written completely or not at all
checks           checks of arguments
extensions       imports of a user's files that register norms and tasks
fields           dataclass fields that declare their allowed values
settings         paths; the scale and the source of runs, which environment variables may set
text             durations, counts and numbers as text
torch_defaults   resets torch's settings while a run is trained
"""
