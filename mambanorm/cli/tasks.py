"""`mambanorm tasks`: lists the tasks, their settings at a scale, and brings their data."""

from __future__ import annotations

import argparse

from mambanorm.cli import arguments as arg
from mambanorm.cli.arguments import Parser

SUMMARY = "list the tasks and the scales"
EXAMPLES = [
    "",
    "--prepare listops --scale quick",
]


def add(command: Parser) -> None:
    command.add_argument("--scale", type=arg.scale, help="only this scale")
    help_text = "download, make or load the data of these tasks now"
    command.add_argument("--prepare", type=arg.names, metavar="A,B", help=help_text)


def run(options: argparse.Namespace) -> int:
    from mambanorm.basics.settings import KIT, SCALES
    from mambanorm.tasks import TASKS, prepare_task
    from mambanorm.training.grid import base_config

    if options.prepare:
        scale = arg.chosen_scale(options)
        for name in arg.check_tasks(options.prepare):
            data = prepare_task(name, scale)
            sizes = ", ".join(f"{len(getattr(data, split)):,} {split}" for split in ("train", "val", "test"))
            kind = "images" if TASKS[name].kind == "image" else "sequences"
            print(f"{name} at scale {scale} is ready: {sizes} {kind}, {data.n_classes} classes")
        return 0
    for task in TASKS.values():
        print(f"{task.name:<20}{task.title}{' (see --prepare)' if task.prepare else ''}")
        if options.scale:
            c = base_config(task.name, options.scale)
            size = f"{c.n_layers} layers, width {c.d_model}, {c.steps:,} steps of {c.batch_size}, lr {c.lr:g}"
            print(f"{'':<18}{size}; source: {task.source}")
    if not options.scale:
        print(f"Settings and sources: --scale {', '.join(SCALES)}. What you bring: {KIT / 'data' / 'README.md'}")
    return 0
