"""Output that several commands share: messages on stderr, the dry run, a table of arms, one run."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from mambanorm_study.basics.text import plural, spell
from mambanorm_study.cli.arguments import engine

if TYPE_CHECKING:
    import pandas as pd

    from mambanorm_study.config import RunConfig
    from mambanorm_study.runs.store import StoredRun


def warn_once() -> Callable[..., None]:
    """Return a replacement of warnings.showwarning that prints each message once: several steps of
    a command may find the same fault in the store.
    """
    printed: set[str] = set()

    def show(message: object, *_args: object, **_keywords: object) -> None:
        if str(message) not in printed:
            printed.add(str(message))
            say(f"warning: {message}")

    return show


def say(message: object) -> None:
    """Print one line on stderr. A word of 300 characters or more, such as a wrong path, is cut."""
    text = re.sub(r"(\S{60})\S{240,}", r"\1…", " ".join(str(message).split()))
    print(f"mambanorm: {text}", file=sys.stderr)


def report_failed(frame: pd.DataFrame) -> int:
    """Return exit code 1, and print a line, if some runs could not be trained; else return 0."""
    failed = frame[frame["status"] == "failed"]
    if not len(failed):
        return 0
    runs, first = plural(len(frame), "run"), failed["error"].iloc[0]
    say(f"{len(failed)} of {runs} could not be trained; the first: {first}")
    return 1


def print_dry_run(configs: list[RunConfig], options: argparse.Namespace) -> None:
    """Print how many runs are needed, stored and missing, and how long the missing ones take."""
    from mambanorm_study.tables.plan import dry_run

    print(dry_run(configs, **engine(options)))


HOUR_S = 3600.0

# Cost (`relative_cost`) of runs that train within an hour on every task; no estimate is made.
SHORT = 5e6


def confirm(configs: list[RunConfig], options: argparse.Namespace) -> None:
    """Print how long the missing runs take if that is more than an hour, and ask at a terminal.

    Nothing is asked in a script, and with --yes. SystemExit if the answer is no.
    """
    from mambanorm_study.runs.grid import relative_cost
    from mambanorm_study.runs.store import missing_runs

    missing = missing_runs(configs, options.runs_dir)
    if sum(map(relative_cost, missing)) <= SHORT:
        return
    from mambanorm_study.tables.plan import how_long

    seconds, sentence = how_long(missing, workers=options.workers, scheduler=options.scheduler)
    if seconds <= HOUR_S:
        return
    say(
        f"{sentence}. It can be stopped at any time: finished runs are kept, "
        "the same command goes on from there"
    )
    if options.yes or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return
    print("Go on? [y/N] ", end="", flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        say("nothing was trained")
        raise SystemExit(130)


def print_arms(frame: pd.DataFrame) -> None:
    """Print mean ± sd over the seeds: one table for each task, one row for each arm."""
    from mambanorm_study.tables.run_tables import (
        describe_frame,
        distinguish_arms,
        mean_sd,
        percent,
        summarize,
    )

    frame = distinguish_arms(frame)
    table = summarize(frame)
    width = table["arm"].str.len().max()
    rmse = {}
    if "rmse" in frame:
        rmse = frame.groupby(["task", "arm"])["rmse"].mean().dropna().to_dict()
    for task, rows in table.groupby("task", sort=False):
        if any((task, arm) in rmse for arm in rows["arm"]):
            shown = (
                "R² on test, 0 % is predicting the training mean, and RMSE in the target's units"
            )
        else:
            shown = f"test accuracy, chance is {percent(rows['chance'].iloc[0])}"
        print(f"{task}: {shown}")
        for _, row in rows.iterrows():
            facts = [plural(row["n"], "run")]
            if (task, row["arm"]) in rmse:
                facts.insert(0, f"RMSE {rmse[task, row['arm']]:.4g}")
            if row["diverged"]:
                facts.append(f"{row['diverged']} diverged")
            print(f"  {row['arm']:<{width}}  {mean_sd(row):<14} ({', '.join(facts)})")
    print(describe_frame(frame))


def print_run(run: StoredRun) -> None:
    """Print the results of one stored run."""
    from mambanorm_study.tables.run_tables import percent

    config, facts = run.config, run.facts
    accuracy = percent(facts["test_accuracy"])
    print(f"{config.arm} on {config.task}, seed {config.seed}, scale {config.scale}")
    if facts.get("chance_loss") is not None:
        loss, chance = (facts[name] / math.log(2) for name in ("test_loss", "chance_loss"))
        print(f"  test loss       {loss:.3f} bits a token (of guessing by frequency: {chance:.3f})")
    if facts.get("rmse") is None:
        print(f"  test accuracy   {accuracy} (chance is {percent(facts['chance'])})")
    else:
        rmse, of_mean = f"{facts['rmse']:.4g}", f"{facts['chance_rmse']:.4g}"
        print(f"  test R²         {accuracy} (of predicting the training mean: 0)")
        print(f"  test RMSE       {rmse} (of predicting the training mean: {of_mean})")
    if facts["status"] == "diverged":
        where = f"at step {facts['first_nonfinite_step']}, first in {facts['first_nonfinite_site']}"
        print(f"  diverged        {where}: scored as chance")
    else:
        steps = f"step {facts['best_step']} of {facts['steps']}"
        best = percent(facts["best_val_accuracy"])
        print(f"  weights of      {steps}, best on validation ({best})")
    print(f"  time            {spell(facts['wall_s'])}, {facts['tokens_per_s']:,.0f} tokens/s")
    print(f"  run folder      {run.path}")
