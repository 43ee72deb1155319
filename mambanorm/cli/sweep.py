"""`mambanorm sweep`: trains the missing runs of several arms and prints a mean for each."""

from __future__ import annotations

import argparse
import gc
from typing import TYPE_CHECKING

from mambanorm.cli import arguments as arg
from mambanorm.cli.arguments import Parser
from mambanorm.cli.printing import confirm, print_arms, print_dry_run, report_failed

if TYPE_CHECKING:
    from mambanorm.config import RunConfig

SUMMARY = "train the missing runs of several arms and print mean ± sd of each"
EXAMPLES = [
    '--arms "RMSN>SSM>None,RMSN>SSM>GN" --seeds 5',
    "--grid position --tasks digits,listops --dry-run",
    '--arms "None>SSM>None,preset:VMamba" --set n_layers=8 --set lr=1e-3',
]


def add(command: Parser) -> None:
    which = command.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--arms", type=arg.names, metavar="ARMS", help='arms, separated by commas: "RMSN>SSM>GN,preset:VMamba"'
    )
    which.add_argument("--grid", help="a list of the study: type, position, grid or normvary")
    arg.add_common(command)
    arg.add_set(command)
    arg.add_training(command)


def run(options: argparse.Namespace) -> int:
    from mambanorm.basics.errors import unknown
    from mambanorm.study import experiments
    from mambanorm.training.grid import grid

    grids = {
        "type": experiments.TYPE_ARMS,
        "position": experiments.POSITION_ARMS,
        "grid": experiments.GRID_ARMS,
        "normvary": experiments.NORMVARY_ARMS,
    }
    if options.grid is not None and options.grid not in grids:
        raise unknown("grid", options.grid, grids)
    changes = arg.parse_changes(options.set)
    arms = grids[options.grid] if options.grid else options.arms
    tasks = arg.check_tasks(options.tasks or ["digits"])
    configs = grid(arms, tasks, scale=options.scale, seeds=options.seeds, **changes)
    gc.freeze()  # 50,000 configs are no garbage: going through them again and again took half a second
    try:
        return _sweep(configs, options)
    finally:
        gc.unfreeze()


def _sweep(configs: list[RunConfig], options: argparse.Namespace) -> int:
    if options.dry_run:
        print_dry_run(configs, options)
        return 0
    from mambanorm.training.store import load_runs, tidy

    frame = load_runs(options.runs_dir, configs=configs)
    if len(frame) < len(configs):
        confirm(configs, options)
        from mambanorm.training.sweep import sweep  # here: where all is stored, nothing waits for torch and Dask

        frame = sweep(configs, scheduler=options.scheduler, workers=options.workers, runs_dir=options.runs_dir)
    else:
        tidy(options.runs_dir)
    print_arms(frame)
    return report_failed(frame)
