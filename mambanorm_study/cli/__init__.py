"""The command line. Each command is a function with the decorator `@arg.command(…)`.

main.py         parse the arguments, run the command, turn errors into one line and an exit code
arguments.py    the decorator, types of options, and options that several commands share
printing.py     output that several commands share
training.py     train, sweep, compare, plan, bench
study.py        study, verdicts, record, calibrate
recording.py    train and write the recorded results
teaching.py     notebooks, explore, sheet, slides
store.py        runs, tasks

mambanorm_clinic/commands.py adds the commands card and diagnose.
"""
