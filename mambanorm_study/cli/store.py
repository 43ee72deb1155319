"""The commands `mambanorm runs`, which lists the stored runs, and `mambanorm tasks`, which lists
the tasks or prepares their data.
"""

import argparse

from mambanorm_study.basics.settings import KIT, SCALES, default_scale
from mambanorm_study.basics.text import plural
from mambanorm_study.cli import arguments as arg

MAX_ROWS = 40  # largest number of runs that `mambanorm runs` prints

# Columns of the run frame that `mambanorm runs` prints.
COLUMNS = [
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


@arg.command(
    *arg.selection_options(default_scale="all"),
    examples=("", "--tasks digits --scale quick", "--seeds 52-59"),
)
def runs(options: argparse.Namespace) -> int:
    """List the stored runs."""
    from mambanorm_study.runs import grid, store

    filters = {
        "scale": options.scale and [options.scale],
        "task": options.tasks,
        "seed": options.seeds and grid.check_seeds(options.seeds, "smoke"),
    }
    folder = store.runs_dir(options.runs_dir)
    frame = store.load_runs(folder)
    for column, values in filters.items():
        if values is not None:
            frame = frame[frame[column].isin(values)]
    print(f"{plural(len(frame), 'run')} in {folder}")
    if len(frame):
        print(
            frame[COLUMNS].to_string(index=False, max_rows=MAX_ROWS, float_format="{:.4g}".format)
        )
    print("In Python, mambanorm_study.load_runs() returns all runs and columns as a pandas frame.")
    return 0


@arg.command(
    arg.option(
        "--prepare",
        type=arg.names,
        metavar="A,B",
        help="download or generate the data of these tasks",
    ),
    arg.scale_option(),
    examples=("", "--prepare listops --scale quick"),
)
def tasks(options: argparse.Namespace) -> int:
    """List the tasks and the scales, or prepare the data of some tasks."""
    from mambanorm_study.runs.grid import check_task
    from mambanorm_study.tasks import TASKS, load_task

    if options.prepare:
        scale = options.scale or default_scale()
        for name in map(check_task, options.prepare):
            if TASKS[name].prepare is not None:
                TASKS[name].prepare()
            data = load_task(name, scale, seed=0)
            sizes = f"{len(data.train):,} train, {len(data.val):,} val, {len(data.test):,} test"
            print(f"{name} at scale {scale} is ready: {sizes}")
        return 0
    for task in TASKS.values():
        print(f"{task.name:<22}{task.title}{' (see --prepare)' if task.prepare else ''}")
        print(f"{'':<22}{task.source}")
    print(f"Scales: {', '.join(SCALES)}. Where the data come from: {KIT / 'data' / 'README.md'}")
    return 0
