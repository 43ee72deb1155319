"""The command line, one file a command: `SUMMARY` and `EXAMPLES` for its help, `add` for its options, `run` does it.

main.py         reads the arguments, runs the command, turns every error into one line and an exit code
arguments.py    what each kind of option may be, and the options that several commands share
printing.py     what several commands print
"""
