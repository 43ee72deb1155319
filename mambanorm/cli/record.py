"""`mambanorm record`: trains all that study and verdicts need and writes the recorded results."""

from __future__ import annotations

import argparse
from pathlib import Path

from mambanorm.cli import arguments as arg
from mambanorm.cli.arguments import Parser
from mambanorm.cli.printing import confirm, print_dry_run, say

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

    scale = arg.chosen_scale(options)
    tasks = arg.check_tasks(options.tasks) if options.tasks else None
    asked = dict(seeds=options.seeds, tasks=tasks, runs_dir=options.runs_dir)
    before = claims.recorded_before(scale, options.out and Path(options.out))
    known = claims.known_runs(scale, options.runs_dir, before)
    there = set() if before is None else set(before.run_id)
    configs = claims.recorded_configs(scale, **asked, frame=known)
    to_train = [config for config in configs if config.run_id not in there]
    if options.dry_run:
        print(claims.manifest(known, scale, options.seeds, tasks).drop(columns="claims").to_string(index=False))
        print(f"{len(configs) - len(to_train)} of them are recorded already")
        print_dry_run(to_train, options)
        return 0
    confirm(to_train, options)
    engine = dict(scheduler=options.scheduler, workers=options.workers)
    try:
        path = claims.record_results(scale, **asked, path=options.out, **engine)
    except RuntimeError as error:  # some runs could not be trained; the others are kept
        say(str(error))
        return 1
    frame = read_results(path)
    print(f"{path}: {describe_recorded(frame)}; {claims.recorded_under(frame)}")
    return 0
