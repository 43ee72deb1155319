"""A run frame → the numbers that arms are compared by: accuracy in per cent, and the loss of
language models in bits.

A diverged run has the score of chance. Bits are negated, so that higher is better.
"""

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

# The columns that a frame needs.
SCORED = (
    "run_id", "status", "test_accuracy", "best_val_accuracy", "chance", "task", "arm", "scale",
    "seed", "lr",
)  # fmt: skip

# The smallest effect of interest on language models, in bits a character: about half a percent.
SMALLEST_BITS = 0.01

# Columns of `summaries`, and those of them that are read of runs that did not diverge.
SUMMARIES = (
    "growth", "law", "sigma_rise", "sigma_trend", "unevenness", "sharpening", "fragility",
    "headroom",
)  # fmt: skip
OF_FINISHED = ("unevenness", "headroom")

# Nats of loss → bits, negated.
BITS = -1 / math.log(2)


def scores(frame: pd.DataFrame, scale: str) -> pd.DataFrame:
    """Return the runs of a scale that ended with finite numbers or diverged, each once, with the
    columns that a comparison can be about.

    Columns: run_id, task, arm, seed, lr, diverged, late, protocol, chance, validation; score,
    noise, rotation (accuracy in per cent, on clean and on corrupted rows), bits (of language
    models), and SUMMARIES. late: the best step by validation is in the last tenth; of language
    models, that tenth was worth SMALLEST_BITS. ValueError for language models of different texts.
    """
    runs = frame[(frame.scale == scale) & frame.status.isin(("ok", "diverged"))]
    runs = runs.drop_duplicates("run_id")
    diverged, is_text = runs.status == "diverged", runs.task.isin(LANGUAGE_TASKS)

    def numbers(name: str) -> pd.Series:
        return pd.to_numeric(runs[name]) if name in runs else pd.Series(np.nan, runs.index)

    chance, chance_bits = 100 * numbers("chance"), BITS * numbers("chance_loss")

    def accuracy(name: str) -> pd.Series:
        return (100 * numbers(name)).mask(diverged, chance)

    def bits(name: str) -> pd.Series:
        return (BITS * numbers(name)).mask(diverged, chance_bits)

    table = runs[["run_id", "task", "arm", "seed", "lr"]].assign(diverged=diverged.astype(float))
    table["score"] = accuracy("test_accuracy")
    for name in CORRUPTED:
        table[name] = accuracy(name)
        # a diverged run is at chance already: corruption cannot lower it
        table[f"{name}_change"] = (table[name] - table.score).mask(diverged)
    table["bits"] = bits("test_loss")
    table["validation"] = accuracy("best_val_accuracy").mask(is_text, bits("best_val_loss"))
    table["chance"] = chance.mask(is_text, chance_bits)
    is_late = numbers("best_step") > 0.9 * numbers("steps")
    is_late = is_late.mask(is_text, numbers("late_gain") >= SMALLEST_BITS)
    table["late"] = (is_late & ~diverged).astype(float)
    for name in SUMMARIES:
        table[name] = numbers(name).mask(diverged & (name in OF_FINISHED))
    table["steepness"], table["protocol"] = table.growth.abs(), numbers("protocol")
    _check_texts(numbers("chance_loss").groupby(runs.task))
    finite = np.isfinite(table[["score", "validation", "chance"]]).all(axis=1)
    return table[finite & (~is_text | np.isfinite(table.bits))]


def _check_texts(losses_by_task) -> None:
    """Raise ValueError if a text differs between runs. Python's documentation changes with Python,
    and the loss of guessing by frequency identifies a text.
    """
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
    """The runs that verdicts rest on. `frame`: the judged runs. `mine`: the runs of the reader's
    store at this scale.
    """

    frame: pd.DataFrame
    mine: pd.DataFrame
    scale: str
    source: str

    def __str__(self) -> str:
        """Return how many runs there are, how they were made, and under which protocols."""
        if self.source == "trained":
            return f"{len(self.mine)} runs of your store"
        described = recorded_results.describe_recorded(self.frame)
        versions = ", ".join(f"{v:g}" for v in sorted(self.frame.protocol.dropna().unique()))
        return f"{self.scale}: {described}; recorded under protocols {versions}"


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
    scale, source = study_scale(scale), check_source(source)
    if source == "auto":
        source = "recorded" if recorded_results.recorded_path(scale).is_file() else "trained"
    mine = of_test_seeds(with_summaries(load_runs(runs_dir, scale=scale), runs_dir), seeds)
    frame = mine if source == "trained" else of_test_seeds(recorded_results.recorded(scale), seeds)
    return RunsToJudge(frame, mine, scale, source)


def of_test_seeds(frame: pd.DataFrame, seeds: int | Iterable[int] | None) -> pd.DataFrame:
    """Return the frame with the first `seeds` test seeds of each task, or those of a list, and with
    all other seeds; None = all test seeds. ValueError for values that are no seeds.
    """
    if seeds is None or not len(frame):
        return frame
    listed = check_seeds(seeds, "smoke")
    is_test = frame.seed.map(is_test_seed)
    if isinstance(seeds, Iterable):
        return frame[~is_test | frame.seed.isin(listed)]
    rank = frame.seed.where(is_test).groupby(frame.task).rank("dense")
    return frame[~is_test | (rank <= len(listed))]
