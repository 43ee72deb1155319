"""`mambanorm plan`: what a run costs before it starts."""

from __future__ import annotations

import argparse

from mambanorm.cli import arguments as arg
from mambanorm.cli.arguments import Parser

SUMMARY = "say what a run costs: parameters, tokens, FLOPs, memory, and hours from a few steps timed now"
EXAMPLES = [
    "--task imdb --scale paper",
    '--task listops,cifar100 --arm "RMSN>SSM>GN" --scale paper --no-measure',
]


def add(command: Parser) -> None:
    command.add_argument(
        "--task", "--tasks", dest="tasks", type=arg.names, metavar="A,B", help="tasks (default: digits)"
    )
    arms = "arms, separated by commas (default: the original, RMSN>SSM>None, of images LN>SSM>LN)"
    command.add_argument("--arm", "--arms", dest="arms", type=arg.names, help=arms)
    command.add_argument("--scale", type=arg.scale, help=arg.scale_help())
    command.add_argument("--seeds", type=arg.seeds, metavar="N", help="seeds an arm (default: the scale's)")
    command.add_argument("--no-measure", dest="measure", action="store_false", help="count only, time nothing")
    arg.add_set(command)


def run(options: argparse.Namespace) -> int:
    from mambanorm.training.grid import base_config
    from mambanorm.training.seeds import check_seeds

    changes = arg.parse_changes(options.set)
    scale = arg.chosen_scale(options)
    seeds = len(check_seeds(options.seeds, scale))

    from mambanorm.basics.text import digits, plural
    from mambanorm.study.plan import plan_table, shape_of, table_text
    from mambanorm.training.machine import machine

    arms = [{"arm": arm} for arm in options.arms or []] or [{}]  # none asked: the preset's own
    tasks = options.tasks or ["digits"]
    configs = [base_config(task, scale, **arm, **changes) for task in tasks for arm in arms]
    for asked in configs:
        shape_of(asked)  # finds an unknown task before the others take any time
    table = plan_table(configs, measured=options.measure)
    print(table_text(table))
    runs = f"{plural(len(configs) * seeds, 'run')} ({plural(seeds, 'seed')} each) at scale {scale}"
    if not options.measure:
        print(f"{runs}, not timed")
        return 0
    print(f"{runs}: {digits(seeds * table['hours'].sum())} hours, one after another, on {machine()}")
    return 0
