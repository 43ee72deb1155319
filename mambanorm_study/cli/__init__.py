"""The command line. Each command is a function under `@arg.command(…)`.

main.py         reads the arguments, runs the command, turns every error into one line and an exit
code arguments.py    what each kind of option may be, and the options that several commands share
printing.py     what several commands print training.py     train, sweep, plan, bench;   study.py
study, verdicts, record, calibrate teaching.py     notebooks, explore, sheet, slides;   store.py
runs, tasks;   diagnose.py
"""
