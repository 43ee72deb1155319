"""`mambanorm record`: trains all that study and verdicts need and writes the recorded results."""

from __future__ import annotations

import argparse

from mambanorm.cli import arguments as arg
from mambanorm.cli.arguments import Parser
from mambanorm.cli.printing import print_dry_run, say

SUMMARY = "train all that the study and the verdicts need and record the run frame"
EXAMPLES = [
    "--scale quick --seeds 8",
    "--scale smoke --seeds 1 --out smoke.parquet",
]


def add(command: Parser) -> None:
    command.add_argument(
        "--out", type=arg.file, metavar="FILE", help="where the frame goes (default: data/results/<scale>.parquet)"
    )
    arg.add_common(command, seeds_help=arg.JUDGED_SEEDS_HELP)
    arg.add_training(command)


def run(options: argparse.Namespace) -> int:
    from mambanorm import claims
    from mambanorm.training.recorded_results import describe_recorded, read_results
    from mambanorm.training.store import load_runs

    scale = arg.chosen_scale(options)
    tasks = arg.check_tasks(options.tasks) if options.tasks else None
    asked = dict(seeds=options.seeds, tasks=tasks, runs_dir=options.runs_dir)
    if options.dry_run:
        held = claims.manifest(load_runs(options.runs_dir, scale=scale), scale, options.seeds, tasks)
        print(held.drop(columns="claims").to_string(index=False))
        print_dry_run(claims.recorded_configs(scale, **asked), options)
        return 0
    engine = dict(scheduler=options.scheduler, workers=options.workers)
    try:
        path = claims.record_results(scale, **asked, path=options.out, **engine)
    except RuntimeError as error:  # some runs could not be trained; the others are kept
        say(str(error))
        return 1
    frame = read_results(path)
    print(f"{path}: {describe_recorded(frame)}; {claims.recorded_under(frame)}")
    return 0
