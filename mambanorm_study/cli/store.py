"""`mambanorm runs` and `tasks`: what is in the run store, and which data there are."""

from __future__ import annotations

import argparse
from pathlib import Path

from mambanorm_study.basics.settings import check_scale
from mambanorm_study.basics.text import plural
from mambanorm_study.cli import arguments as arg
from mambanorm_study.cli.arguments import Parser

SHOWN = 40  # runs that are printed
FILTERS = ("scale", "tasks", "seeds", "export")  # options that --check has no use for
IN_BRIEF = [
    "run_id",
    "task",
    "scale",
    "arm",
    "seed",
    "n_layers",
    "lr",
    "status",
    "test_accuracy",
    "wall_s",
    "backend",
]


def add_runs(command: Parser) -> None:
    arg.add_common(command, usual="all")
    export = "write every run and every column to a file instead: .csv, or .parquet, which keeps the types"
    command.add_argument("--export", type=arg.file, metavar="FILE", help=export)
    check = "read every file of every run and say which are not what was written"
    command.add_argument("--check", action="store_true", help=check)


@arg.command(add_runs, "", "--tasks digits --scale quick", "--export runs.csv", "--check")
def runs(options: argparse.Namespace) -> int:
    """List the stored runs."""
    from mambanorm_study.runs.grid import check_seeds
    from mambanorm_study.runs.store import existing_store, load_runs

    if options.check:
        return _check_store(options)
    where: dict[str, object] = {}
    if options.scale is not None:
        where["scale"] = options.scale
    if options.tasks is not None:
        where["task"] = arg.check_tasks(options.tasks)
    if options.seeds is not None:
        where["seed"] = check_seeds(options.seeds, "smoke")
    store = existing_store(options.runs_dir)
    frame = load_runs(store, **where)
    if options.export:
        from mambanorm_study.basics.atomic import write_bytes

        if (ending := Path(options.export).suffix) not in (".csv", ".parquet"):
            raise ValueError(f"--export writes .csv or .parquet, got {options.export}")
        table = (
            frame.to_csv(index=False).encode()
            if ending == ".csv"
            else frame.to_parquet(index=False)
        )
        write_bytes(Path(options.export), table)
        print(f"{plural(len(frame), 'run')} written to {options.export}")
        return 0
    print(f"{plural(len(frame), 'run')} in {store}")
    if len(frame):
        print(
            frame[IN_BRIEF]
            .head(SHOWN)
            .to_string(index=False, float_format=lambda number: f"{number:.4g}")
        )
    if len(frame) > SHOWN:
        print(
            f"… and {len(frame) - SHOWN} more: --export FILE writes all of them, with every column"
        )
    return 0


def _check_store(options: argparse.Namespace) -> int:
    """Reads every file of every run and says which are not what was written; 1 if there are any."""
    from mambanorm_study.runs.store import check_runs, runs_dir

    if ignored := [f"--{name}" for name in FILTERS if getattr(options, name) is not None]:
        raise ValueError(
            f"--check reads every run and prints what it finds: leave {', '.join(ignored)} out"
        )
    states = check_runs(options.runs_dir)
    wrong = {run_id: why for run_id, why in states.items() if why}
    for run_id, why in wrong.items():
        print(f"{run_id}  {why}")
    print(
        f"{plural(len(states), 'run')} in {runs_dir(options.runs_dir)}, {len(wrong)} of them not whole"
    )
    return int(len(wrong) > 0)


def add_tasks(command: Parser) -> None:
    command.add_argument("--scale", type=check_scale, help="show the settings at this scale")
    help_text = "download, make or load the data of these tasks now"
    command.add_argument("--prepare", type=arg.names, metavar="A,B", help=help_text)


@arg.command(add_tasks, "", "--prepare listops --scale quick")
def tasks(options: argparse.Namespace) -> int:
    """List the tasks and the scales."""
    from mambanorm_study.basics.settings import KIT, SCALES
    from mambanorm_study.runs.grid import base_config
    from mambanorm_study.tasks import TASKS, prepare_task

    if options.prepare:
        scale = arg.chosen_scale(options)
        for name in arg.check_tasks(options.prepare):
            data = prepare_task(name, scale)
            sizes = ", ".join(
                f"{len(getattr(data, split)):,} {split}" for split in ("train", "val", "test")
            )
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
        print(
            f"Settings and sources: --scale {', '.join(SCALES)}. What you bring: {KIT / 'data' / 'README.md'}"
        )
    return 0
