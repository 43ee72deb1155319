"""What everything stands on.

errors, checks   messages that say what was given and what is allowed; checks of arguments
settings, text   what the environment decides, and packages that a machine may lack; words
atomic           whole files or none
extensions       norms and tasks of your own
fields           fields of a config that say once what they may be
published        the arms of published variants, a table
"""
