"""A run frame → the numbers that arms are compared by: accuracy in per cent, the loss of language
models in bits.

A diverged run has chance, everywhere in the kit. Bits are negated, so that higher is better.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from mambanorm_study.basics.settings import check_source, study_scale
from mambanorm_study.runs import recorded_results
from mambanorm_study.runs.grid import check_seeds, is_test_seed
from mambanorm_study.runs.presets import LANGUAGE_TASKS, TEXTS
from mambanorm_study.runs.store import load_runs
from mambanorm_study.tables.summaries import CORRUPTED, with_summaries

SCORED = (
    "run_id",
    "status",
    "test_accuracy",
    "best_val_accuracy",
    "chance",
    "task",
    "arm",
    "scale",
    "seed",
    "lr",
)
"""The columns that a frame needs."""

SMALLEST_BITS = 0.01
"""The smallest effect of interest on language models, in bits a character: about half a percent."""

STORED = (
    "growth",
    "law",
    "sigma_rise",
    "sigma_trend",
    "unevenness",
    "sharpening",
    "fragility",
    "headroom",
)
OF_FINISHED = ("unevenness", "headroom")
"""Columns that are read of runs that did not diverge."""


def scores(frame: pd.DataFrame, scale: str) -> pd.DataFrame:
    """Return the runs of a scale that ended with finite numbers or diverged, each once: run_id,
    task, arm, seed, lr, diverged, late, protocol, chance, validation, and the columns that a
    comparison can be about.

    score, noise, rotation: accuracy in per cent, on clean and on corrupted rows. bits: of language
    models. late: if the best step by validation is in the last tenth; of language models, whether
    that tenth was worth SMALLEST_BITS. ValueError for language models of different texts.
    """
    runs = frame[(frame.scale == scale) & frame.status.isin(("ok", "diverged"))].drop_duplicates(
        "run_id"
    )
    diverged, text = runs.status == "diverged", runs.task.isin(LANGUAGE_TASKS)

    def of(name: str) -> pd.Series:
        return pd.to_numeric(runs[name]) if name in runs else pd.Series(np.nan, runs.index)

    def ended(name: str, factor: float, otherwise: str) -> pd.Series:
        return factor * of(name).mask(diverged, of(otherwise))

    found = runs[["run_id", "task", "arm", "seed", "lr"]].assign(diverged=diverged.astype(float))
    found["score"] = ended("test_accuracy", 100, "chance")
    for name in CORRUPTED:
        found[name] = ended(name, 100, "chance")
        found[f"{name}_change"] = (found[name] - found.score).mask(
            diverged
        )  # a failed run has nothing to lose
    bits = -1 / math.log(2)
    found["bits"] = ended("test_loss", bits, "chance_loss")
    validation_bits = ended("best_val_loss", bits, "chance_loss")
    found["validation"] = ended("best_val_accuracy", 100, "chance").mask(text, validation_bits)
    found["chance"] = (100 * of("chance")).mask(text, bits * of("chance_loss"))
    late = (of("best_step") > 0.9 * of("steps")).mask(text, of("late_gain") >= SMALLEST_BITS)
    found["late"] = (late & ~diverged).astype(float)
    for name in STORED:
        found[name] = of(name).mask(diverged & (name in OF_FINISHED))
    found["steepness"], found["protocol"] = found.growth.abs(), of("protocol")
    _check_texts(of("chance_loss").groupby(runs.task))
    finite = np.isfinite(found[["score", "validation", "chance"]]).all(axis=1) & (
        ~text | np.isfinite(found.bits)
    )
    return found[finite]


def _check_texts(losses_by_task) -> None:
    """Raise ValueError if a text differs between runs: Python's documentation changes with Python,
    and the loss of guessing by frequency tells texts apart."""
    for task, losses in losses_by_task:
        different = sorted(losses.dropna().round(6).unique())
        if task in TEXTS and len(different) > 1:
            known = ", ".join(f"{loss:.6f}" for loss in different)
            raise ValueError(
                f"the runs of {task} are of different texts (chance_loss {known} nats): judge "
                "those of one Python alone"
            )


# ---------------------------------------------------------------------------- which runs are judged

NOT_RECORDED = (
    "Trained models are not recorded here yet: `mambanorm record --scale evening` adds them."
)


@dataclass(frozen=True)
class RunsToJudge:
    """`frame`: the runs that are judged. `mine`: the runs of the reader's store at this scale."""

    frame: pd.DataFrame
    mine: pd.DataFrame
    scale: str
    source: str

    def __str__(self) -> str:
        """How many runs, made with what, under which versions of the protocol."""
        if self.source == "trained":
            return f"{len(self.mine)} runs of your store"
        versions = ", ".join(
            f"{version:g}" for version in sorted(self.frame.protocol.dropna().unique())
        )
        return f"{self.scale}: {recorded_results.describe_recorded(self.frame)}; recorded under "
        f"protocols {versions}"


def runs_to_judge(
    scale: str | None = None,
    source: str | None = None,
    seeds: int | Iterable[int] | None = None,
    runs_dir: str | Path | None = None,
) -> RunsToJudge:
    """Return the runs that the verdicts of a scale rest on (None = the environment's, else trained
    models).

    source: None = "recorded" if the kit has results of the scale, else "trained". seeds: as in
    `of_test_seeds`.
    """
    scale = study_scale(scale)
    if (source := check_source(source)) == "auto":
        source = "recorded" if recorded_results.recorded_path(scale).is_file() else "trained"
    mine = of_test_seeds(with_summaries(load_runs(runs_dir, scale=scale), runs_dir), seeds)
    frame = mine if source == "trained" else of_test_seeds(recorded_results.recorded(scale), seeds)
    return RunsToJudge(frame, mine, scale, source)


def of_test_seeds(frame: pd.DataFrame, seeds: int | Iterable[int] | None) -> pd.DataFrame:
    """Return the frame with the first `seeds` test seeds of each task, or those of a list, and with
    every other seed; None = all of them. ValueError for seeds that are none."""
    if seeds is None or not len(frame):
        return frame
    listed = check_seeds(seeds, "smoke")
    test = frame.seed.map(is_test_seed)
    first = frame.seed.where(test).groupby(frame.task).rank("dense")
    return frame[
        ~test | (frame.seed.isin(listed) if isinstance(seeds, Iterable) else first <= len(listed))
    ]
