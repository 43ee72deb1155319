"""`mambanorm runs` and `tasks`: list the stored runs, and list or load the data."""

import argparse

from mambanorm_study.basics.settings import KIT, SCALES, check_scale, default_scale
from mambanorm_study.basics.text import plural
from mambanorm_study.cli import arguments as arg

SHOWN = 40  # runs that are printed

# The columns that are printed.
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
    *arg.which_runs(default_scale="all"),
    examples=("", "--tasks digits --scale quick", "--seeds 52-59"),
)
def runs(options: argparse.Namespace) -> int:
    """List the stored runs."""
    from mambanorm_study.runs.grid import check_seeds
    from mambanorm_study.runs.store import existing_store, load_runs

    filters = {"scale": options.scale, "task": options.tasks}
    if options.seeds is not None:
        filters["seed"] = check_seeds(options.seeds, "smoke")
    store = existing_store(options.runs_dir)
    frame = load_runs(store, **{column: value for column, value in filters.items() if value})
    print(f"{plural(len(frame), 'run')} in {store}")
    if len(frame):
        print(frame[COLUMNS].head(SHOWN).to_string(index=False, float_format="{:.4g}".format))
    if len(frame) > SHOWN:
        print(
            f"… and {len(frame) - SHOWN} more. In Python, mambanorm_study.load_runs() returns all "
            "runs and columns as a pandas frame"
        )
    return 0


@arg.command(
    arg.option("--scale", type=check_scale, help="show the settings at this scale"),
    arg.option(
        "--prepare",
        type=arg.names,
        metavar="A,B",
        help="download, make or load the data of these tasks now",
    ),
    examples=("", "--scale quick", "--prepare listops --scale quick"),
)
def tasks(options: argparse.Namespace) -> int:
    """List the tasks and the scales."""
    from mambanorm_study.runs.grid import base_config, check_task
    from mambanorm_study.tasks import TASKS, load_task

    if options.prepare:
        scale = options.scale or default_scale()
        for name in map(check_task, options.prepare):
            if TASKS[name].prepare is not None:
                TASKS[name].prepare()  # downloads what the task reads
            data = load_task(name, scale, seed=0)
            sizes = f"{len(data.train):,} train, {len(data.val):,} val, {len(data.test):,} test"
            kind = "images" if data.in_channels else "sequences"
            print(f"{name} at scale {scale} is ready: {sizes} {kind}, {data.n_classes} classes")
        return 0
    for task in TASKS.values():
        print(f"{task.name:<20}{task.title}{' (see --prepare)' if task.prepare else ''}")
        if options.scale:
            c = base_config(task.name, options.scale)
            size = f"{c.n_layers} layers, width {c.d_model}"
            training = f"{c.steps:,} steps of {c.batch_size}, lr {c.lr:g}"
            print(f"{'':<18}{size}, {training}; source: {task.source}")
    if not options.scale:
        print(f"Settings and sources: --scale {', '.join(SCALES)}.", end=" ")
        print(f"What you bring: {KIT / 'data' / 'README.md'}")
    return 0
