"""What the commands print: lines on stderr, a file or standard output, the dry run, a table of
arms, one run."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable
from typing import Any

from mambanorm_study.basics.text import plural, spell
from mambanorm_study.cli.arguments import check_tasks


def warn_once() -> Callable[..., None]:
    """Takes the place of warnings.showwarning and prints a message only once: several steps of a
    command may find the same fault in the store."""
    said: set[str] = set()

    def tell(message: object, *_args: object, **_keywords: object) -> None:
        if str(message) not in said:
            said.add(str(message))
            say(f"warning: {message}")

    return tell


def say(message: object) -> None:
    """One line on stderr. A word that would fill a screen, such as a path that is no path, is cut
    short."""
    text = re.sub(r"(\S{60})\S{240,}", r"\1…", " ".join(str(message).split()))
    print(f"mambanorm: {text}", file=sys.stderr)


def report_failed(frame: Any) -> int:
    """Exit code 1 and a line on stderr if some runs could not be trained."""
    failed = frame[frame["status"] == "failed"]
    if len(failed):
        say(
            f"{len(failed)} of {plural(len(frame), 'run')} could not be trained; the first: {failed['error'].iloc[0]}"
        )
    return int(len(failed) > 0)


def print_dry_run(configs: list, options: argparse.Namespace) -> None:
    """What a dry run prints: how many runs are asked for, stored and missing, and how long the
    missing ones take."""
    from mambanorm_study.tables.estimate import dry_run

    check_tasks({config.task for config in configs})
    print(
        dry_run(
            configs, runs_dir=options.runs_dir, workers=options.workers, scheduler=options.scheduler
        )
    )


HOUR_S = 3600.0
SHORT = 5e6
"""Of `relative_cost`: so much is trained within the hour, whatever the task, and nobody waits for
an estimate."""


def confirm(configs: list, options: argparse.Namespace) -> None:
    """Says how long the missing runs take if that is more than an hour, and at a terminal asks
    whether to go on. Scripts go on, and so does --yes. SystemExit for a no."""
    from mambanorm_study.runs.grid import relative_cost
    from mambanorm_study.runs.store import missing_runs

    if sum(map(relative_cost, configs)) > SHORT:  # else nobody waits for a look into the store
        configs = missing_runs(configs, options.runs_dir)
    if sum(map(relative_cost, configs)) <= SHORT:
        return
    from mambanorm_study.tables.estimate import how_long

    seconds, sentence = how_long(configs, workers=options.workers, scheduler=options.scheduler)
    if seconds <= HOUR_S:
        return
    say(
        f"{sentence}. It can be stopped at any time: finished runs are kept, the same command goes on from there"
    )
    if options.yes or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return
    print("Go on? [y/N] ", end="", flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        say("nothing was trained")
        raise SystemExit(130)


REGRESSION = "R² on test, 0 % is predicting the training mean, and RMSE in the target's units"


def print_arms(frame) -> None:
    """Mean ± sd over the seeds, one row an arm, one table a task."""
    from mambanorm_study.tables.run_tables import describe_frame, percent, summarize, distinguish_arms

    frame = distinguish_arms(frame)
    table = summarize(frame)
    width = max(map(len, table["arm"]))
    for task, rows in table.groupby("task", sort=False):
        errors = (
            frame[frame["task"] == task].groupby("arm")["rmse"].mean().dropna()
            if "rmse" in frame
            else {}
        )
        chance = percent(rows["chance"].iloc[0])
        print(f"{task}: {REGRESSION if len(errors) else f'test accuracy, chance is {chance}'}")
        for row in rows.itertuples():
            note = f", {row.diverged} diverged" if row.diverged else ""
            error = f"RMSE {errors[row.arm]:.4g}, " if row.arm in errors else ""
            mean = (
                f"{100 * row.mean:.1f} ± {100 * row.sd:.1f} %" if row.n > 1 else percent(row.mean)
            )
            print(f"  {row.arm:<{width}}  {mean:<14} ({error}{plural(row.n, 'run')}{note})")
    print(describe_frame(frame))


def print_run(run) -> None:
    from mambanorm_study.tables.run_tables import percent

    config, facts = run.config, run.facts
    print(f"{config.arm} on {config.task}, seed {config.seed}, scale {config.scale}")
    if facts.get("chance_loss") is not None:
        loss, chance = (facts[name] / math.log(2) for name in ("test_loss", "chance_loss"))
        print(f"  test loss       {loss:.3f} bits a token (of guessing by frequency: {chance:.3f})")
    if facts.get("rmse") is None:
        print(
            f"  test accuracy   {percent(facts['test_accuracy'])} (chance is {percent(facts['chance'])})"
        )
    else:
        print(
            f"  test R²         {percent(facts['test_accuracy'])} (of predicting the training mean: 0)"
        )
        print(
            f"  test RMSE       {facts['rmse']:.4g} (of predicting the training mean: {facts['chance_rmse']:.4g})"
        )
    if facts["status"] == "diverged":
        where = f"at step {facts['first_nonfinite_step']}, first in {facts['first_nonfinite_site']}"
        print(f"  diverged        {where}: scored as chance")
    else:
        best = percent(facts["best_val_accuracy"])
        print(
            f"  weights of      step {facts['best_step']} of {facts['steps']}, best on validation ({best})"
        )
    print(f"  time            {spell(facts['wall_s'])}, {facts['tokens_per_s']:,.0f} tokens/s")
    print(f"  run folder      {run.path}")
