"""What everything stands on.

errors, checks   messages that say what was given and what is allowed; checks of arguments
settings, text   what the environment decides; words
atomic, later    whole files or none; packages that a machine may lack, imported when first used
extensions       norms and tasks of your own
fields           fields of a config that say once what they may be
published        the arms of published variants, a table
"""
