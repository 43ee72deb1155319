"""Functions that print what several commands print: messages on stderr, the missing runs and their
time, the mean scores of arms, and the results of a run.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from typing import TYPE_CHECKING

from mambanorm_study.basics.text import plural, spell
from mambanorm_study.cli.arguments import sweep_options

if TYPE_CHECKING:
    import pandas as pd

    from mambanorm_study.config import RunConfig
    from mambanorm_study.runs.store import StoredRun


def say(message: object) -> None:
    """Print a message as one line on stderr. Words of 300 characters or more are cut to 60."""
    text = re.sub(r"(\S{60})\S{240,}", r"\1…", " ".join(str(message).split()))
    print(f"mambanorm: {text}", file=sys.stderr)


def report_failed(frame: pd.DataFrame) -> int:
    """Return the exit code: 1 if some runs could not be trained, else 0.

    If some runs could not be trained, their number and the first error are printed. frame: a run
    frame (one row per run).
    """
    errors = frame["error"][frame["status"] == "failed"]
    if len(errors):
        say(
            f"{len(errors)} of {plural(len(frame), 'run')} could not be trained; "
            f"the first: {errors.iloc[0]}"
        )
    return int(len(errors) > 0)


HOUR_S = 3600.0

# Runs of every task train within an hour if the sum of their `relative_cost` is at most SHORT_COST.
SHORT_COST = 5e6


def may_train(configs: list[RunConfig], options: argparse.Namespace) -> bool:
    """Return False if --dry-run is given, else True.

    With --dry-run, print how many of the runs are missing and how long they would take. Without
    --dry-run, print how long the missing runs take, but only if they take more than an hour.
    """
    from mambanorm_study.runs import grid, store
    from mambanorm_study.tables.plan import dry_run, estimate_time

    if options.dry_run:
        print(dry_run(configs, **sweep_options(options)))
        return False
    missing = store.missing_runs(configs, options.runs_dir)
    if sum(map(grid.relative_cost, missing)) > SHORT_COST:
        seconds, sentence = estimate_time(
            missing, workers=options.workers, scheduler=options.scheduler
        )
        if seconds > HOUR_S:
            say(
                f"{sentence}. Ctrl-C stops the training at any time: finished runs are stored, and "
                "the same command trains the missing runs"
            )
    return True


R2_HEADER = "R² on test (0 % = predicting the training mean), and RMSE in the units of the target"


def print_arms(frame: pd.DataFrame) -> None:
    """Print one table per task, with one row per arm: mean ± sd of the test score over the seeds.

    frame: a run frame (one row per run).
    """
    from mambanorm_study.tables import run_tables

    frame = run_tables.distinguish_arms(frame)
    table = run_tables.summarize(frame)
    if "rmse" in frame:
        rmse = frame.groupby(["task", "arm"], as_index=False)["rmse"].mean()
        table = table.merge(rmse, on=["task", "arm"], how="left")
    width = table["arm"].str.len().max()
    for task, rows in table.groupby("task", sort=False):
        is_regression = "rmse" in rows and rows["rmse"].notna().any()
        chance = run_tables.percent(rows["chance"].iloc[0])
        print(f"{task}: {R2_HEADER if is_regression else f'test accuracy, chance is {chance}'}")
        for _, row in rows.iterrows():
            facts = plural(row["n"], "run")
            if is_regression:
                facts = f"RMSE {row['rmse']:.4g}, {facts}"
            if row["diverged"]:
                facts += f", {row['diverged']} diverged"
            print(f"  {row['arm']:<{width}}  {run_tables.mean_sd(row):<14} ({facts})")
    print(run_tables.describe_frame(frame))


def print_run(run: StoredRun) -> None:
    """Print the test results, the time and the folder of one stored run."""
    from mambanorm_study.tables.run_tables import percent

    config, facts = run.config, run.facts
    accuracy = percent(facts["test_accuracy"])
    print(f"{config.arm} on {config.task}, seed {config.seed}, scale {config.scale}")
    if facts.get("chance_loss") is not None:
        loss, chance = (facts[name] / math.log(2) for name in ("test_loss", "chance_loss"))
        print(
            f"  test loss       {loss:.3f} bits per token (of guessing by frequency: {chance:.3f})"
        )
    if facts.get("rmse") is None:
        print(f"  test accuracy   {accuracy} (chance is {percent(facts['chance'])})")
    else:
        print(f"  test R²         {accuracy} (of predicting the training mean: 0)")
        print(
            f"  test RMSE       {facts['rmse']:.4g} "
            f"(of predicting the training mean: {facts['chance_rmse']:.4g})"
        )
    if facts["status"] == "diverged":
        print(
            f"  diverged        at step {facts['first_nonfinite_step']}, first in "
            f"{facts['first_nonfinite_site']}: scored as chance"
        )
    else:
        print(
            f"  weights from    step {facts['best_step']} of {facts['steps']}, "
            f"the best on validation ({percent(facts['best_val_accuracy'])})"
        )
    print(f"  time            {spell(facts['wall_s'])}, {facts['tokens_per_s']:,.0f} tokens/s")
    print(f"  run folder      {run.path}")
