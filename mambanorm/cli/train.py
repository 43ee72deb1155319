"""`mambanorm train`: trains one run with a live line, or shows it if the store has it."""

from __future__ import annotations

import argparse

from mambanorm.cli import arguments as arg
from mambanorm.cli.arguments import Parser
from mambanorm.cli.printing import confirm, print_dry_run, print_run, say

SUMMARY = "train one run, or show it if the store has it"
EXAMPLES = [
    '--arm "RMSN>SSM>GN"',
    '--arm "LN>SSM>LN" --task listops --seed 3',
    '--arm preset:VMamba --set norm_options={"eps":1e-6}',
]


def add(command: Parser) -> None:
    arm_help = 'the norms, written "RMSN>SSM>GN" or "RMSN>SSM>None+B:RMSN" (with quotes), or preset:VMamba'
    command.add_argument("--arm", required=True, help=arm_help)
    command.add_argument("--task", "--tasks", default="digits", help="the task (default: digits)")
    command.add_argument("--seed", "--seeds", type=arg.seed, help="the seed (default: the preset's)")
    arg.add_common(command, several=False)
    arg.add_set(command)
    arg.add_training(command)


def run(options: argparse.Namespace) -> int:
    from mambanorm.training.grid import base_config
    from mambanorm.training.store import find_run

    changes = arg.parse_changes(options.set)
    arg.check_tasks([options.task])
    seed = {} if options.seed is None else {"seed": options.seed}
    asked = base_config(options.task, options.scale, arm=options.arm, **seed, **changes)
    if options.dry_run:
        print_dry_run([asked], options)
        return 0
    stored = find_run(asked, options.runs_dir)
    if stored is not None:
        print("In the store already, nothing to train:")
    else:
        confirm([asked], options)
        if (error := _train(asked, options)) is not None:
            say(f"this run could not be trained: {error}")
            return 1
    print_run(stored or find_run(asked, options.runs_dir))
    return 0


def _train(config, options: argparse.Namespace) -> str | None:
    """Trains and stores a run, here with a live line or where the scheduler says; returns the reason if it fails."""
    from tqdm.auto import tqdm

    from mambanorm.training.sweep import sweep
    from mambanorm.training.worker import train_one

    if options.scheduler:
        frame = sweep([config], scheduler=options.scheduler, runs_dir=options.runs_dir)
        return None if frame["status"].iloc[0] != "failed" else frame["error"].iloc[0]
    named = f"{config.arm} on {config.task}, seed {config.seed}"
    with tqdm(total=config.steps, desc=named, unit="step", delay=0.1) as bar:  # none before the first step

        def show(step: int, _model: object, loss: float) -> None:
            bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
            bar.update(step - bar.n)  # a run that continues does not begin at step 1

        try:
            train_one(config, options.runs_dir, on_step=show)
        except (RuntimeError, MemoryError) as error:
            return f"{type(error).__name__}: {error}"
    return None
