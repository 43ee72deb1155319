"""Helpers that every other part of the package may import.

atomic           files that are written completely or not at all
checks           checks of arguments
extensions       norms and tasks in a user's files
fields           dataclass fields that declare what values they allow
settings         paths, scales and sources from the environment; optional packages
text             numbers and counts in words
torch_defaults   torch's settings while a run is trained
"""
