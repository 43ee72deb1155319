"""`mambanorm runs`: lists the stored runs, writes them to a table, and checks their files."""

from __future__ import annotations

import argparse
from typing import Any

from mambanorm.cli import arguments as arg
from mambanorm.cli.arguments import Parser
from mambanorm.cli.printing import write_out

SUMMARY = "list the stored runs"
EXAMPLES = [
    "",
    "--tasks digits --scale quick",
    "--csv runs.csv",
    "--export runs.parquet",
    "--check",
]
SHOWN = 40  # runs that are printed
FILTERS = ("scale", "tasks", "seeds", "csv", "export")  # options that --check has no use for


def add(command: Parser) -> None:
    arg.add_common(command)
    command.add_argument(
        "--csv", type=arg.output, metavar="FILE", help="write every run and every column to a file instead, or to -"
    )
    export = "write every run and every column to a Parquet file, which keeps the types, instead"
    command.add_argument("--export", type=arg.output, metavar="FILE", help=export)
    check = "read every file of every run and say which are not what was written"
    command.add_argument("--check", action="store_true", help=check)


def run(options: argparse.Namespace) -> int:
    from mambanorm.basics.text import plural
    from mambanorm.training.seeds import check_seeds
    from mambanorm.training.store import existing_store, load_runs

    if options.check:
        return _check_store(options)
    where: dict[str, Any] = {}
    if options.scale is not None:
        where["scale"] = options.scale
    if options.tasks is not None:
        where["task"] = arg.check_tasks(options.tasks)
    if options.seeds is not None:
        where["seed"] = check_seeds(options.seeds, "smoke")
    store = existing_store(options.runs_dir)
    frame = load_runs(store, **where)
    if options.csv or options.export:
        _write_table(frame, options)
        return 0
    print(f"{plural(len(frame), 'run')} in {store}")
    if len(frame):
        shown = [
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
        brief = frame[shown]
        print(brief.head(SHOWN).to_string(index=False, float_format=lambda number: f"{number:.4g}"))
    if len(frame) > SHOWN:
        print(f"… and {len(frame) - SHOWN} more: --csv or --export FILE writes all of them, with every column")
    return 0


def _write_table(frame, options: argparse.Namespace) -> None:
    """The frame as CSV, as Parquet, or as both."""
    from mambanorm.basics.text import plural

    said = f"{plural(len(frame), 'run')} written to"
    if options.csv:
        write_out(options.csv, frame.to_csv(index=False).encode(), said)
    if options.export:
        write_out(options.export, frame.to_parquet(index=False), said)


def _check_store(options: argparse.Namespace) -> int:
    """Reads every file of every run and says which are not what was written; 1 if there are any."""
    from mambanorm.basics.text import plural
    from mambanorm.training.store import check_runs, runs_dir

    if ignored := [f"--{name}" for name in FILTERS if getattr(options, name) is not None]:
        raise ValueError(f"--check reads every run and prints what it finds: leave {', '.join(ignored)} out")
    table = check_runs(options.runs_dir)
    bad = table[~table["state"].isin(["whole", "unchecked"])]
    for row in bad.itertuples():
        print(f"{row.run_id}  {row.state}: {row.why}")
    counts = ", ".join(f"{n} {state}" for state, n in table["state"].value_counts().items())
    print(f"{plural(len(table), 'run')} in {runs_dir(options.runs_dir)}{': ' if counts else ''}{counts}")
    if "unchecked" in set(table["state"]):
        print("Unchecked runs are of an earlier version, which kept no checksums: sound as far as can be told.")
    if "damaged" in set(table["state"]):
        print("Move a damaged run's folder away, and what needs it trains it again.")
    return int(len(bad) > 0)
