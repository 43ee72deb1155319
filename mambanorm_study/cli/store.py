"""`mambanorm runs` and `tasks`: list the stored runs, and list or load the data."""

import argparse
from pathlib import Path

from mambanorm_study.basics.settings import KIT, SCALES, check_scale
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
    arg.option(
        "--export",
        type=arg.file,
        metavar="FILE",
        help=(
            "write every run and every column to a file instead: .csv, or .parquet, "
            "which keeps the types"
        ),
    ),
    arg.option(
        "--check",
        action="store_true",
        help="read every file of every run and print the damaged ones",
    ),
    examples=("", "--tasks digits --scale quick", "--export runs.csv", "--check"),
)
def runs(options: argparse.Namespace) -> int:
    """List the stored runs."""
    from mambanorm_study.runs.grid import check_seeds
    from mambanorm_study.runs.store import load_runs, runs_dir

    if options.check:
        return _check_store(options)
    filters = {
        "scale": options.scale and [options.scale],
        "task": options.tasks and arg.check_tasks(options.tasks),
        "seed": options.seeds and check_seeds(options.seeds, "smoke"),
    }
    store = runs_dir(options.runs_dir)
    frame = load_runs(store)
    for column, values in filters.items():
        if values is not None:
            frame = frame[frame[column].isin(values)]
    if options.export:
        _export(frame, Path(options.export))
        return 0
    print(f"{plural(len(frame), 'run')} in {store}")
    if len(frame):
        print(frame[COLUMNS].head(SHOWN).to_string(index=False, float_format="{:.4g}".format))
    if len(frame) > SHOWN:
        n_more = len(frame) - SHOWN
        print(f"… and {n_more} more: --export FILE writes all of them, with every column")
    return 0


def _export(frame, path: Path) -> None:
    """Write all columns of a run frame to a file. ValueError for an unknown kind of file."""
    from mambanorm_study.basics.atomic import write_bytes

    if path.suffix == ".csv":
        content = frame.to_csv(index=False).encode()
    elif path.suffix == ".parquet":
        content = frame.to_parquet(index=False)
    else:
        raise ValueError(f"--export writes .csv or .parquet, got {path}")
    write_bytes(path, content)
    print(f"{plural(len(frame), 'run')} written to {path}")


def _check_store(options: argparse.Namespace) -> int:
    """Print the damaged runs of the store, and return 1 if there are any."""
    from mambanorm_study.runs.store import check_runs, runs_dir

    unused = ("scale", "tasks", "seeds", "export")
    given = [f"--{name}" for name in unused if getattr(options, name) is not None]
    if given:
        raise ValueError(
            f"--check reads every run and prints what it finds: leave {', '.join(given)} out"
        )
    states = check_runs(options.runs_dir)
    damaged = {run_id: damage for run_id, damage in states.items() if damage}
    for run_id, damage in damaged.items():
        print(f"{run_id}  {damage}")
    store = runs_dir(options.runs_dir)
    print(f"{plural(len(states), 'run')} in {store}, {len(damaged)} of them not whole")
    return 1 if damaged else 0


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
    from mambanorm_study.runs.grid import base_config
    from mambanorm_study.tasks import TASKS

    if options.prepare:
        for name in arg.check_tasks(options.prepare):
            _prepare(name, arg.chosen_scale(options))
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


def _prepare(name: str, scale: str) -> None:
    """Load the data of a task, and print its sizes."""
    from mambanorm_study.tasks import TASKS, prepare_task

    data = prepare_task(name, scale)
    sizes = ", ".join(
        f"{len(getattr(data, split)):,} {split}" for split in ("train", "val", "test")
    )
    kind = "images" if TASKS[name].kind == "image" else "sequences"
    print(f"{name} at scale {scale} is ready: {sizes} {kind}, {data.n_classes} classes")
