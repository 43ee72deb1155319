"""The command line `mambanorm`. Each command is a function with the decorator `arguments.command`.

main.py         parse the arguments, run the command, turn errors into one line and an exit code
arguments.py    the decorator, types of options, and options that several commands share
printing.py     output that several commands share
training.py     the commands train, sweep, compare, ask, plan and bench
study.py        the commands study, verdicts, record and calibrate
recording.py    train and write the recorded results
teaching.py     the commands notebooks, explore, sheet and slides
store.py        the commands runs and tasks

mambanorm_clinic/commands.py adds the commands card and diagnose.
"""
