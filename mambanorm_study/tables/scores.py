"""The numbers by which runs are compared: the accuracy in per cent, and for language models the
negated loss in bits per character, so that higher is better for both.

A diverged run has the score of chance. The functions at the end of the file select the runs on
which the verdicts of the claims are based.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from mambanorm_study.basics.settings import check_source, study_scale
from mambanorm_study.runs import grid, recorded_results
from mambanorm_study.runs.presets import LANGUAGE_TASKS, TEXTS
from mambanorm_study.runs.store import load_runs
from mambanorm_study.tables.summaries import CORRUPTED, OF_QUESTIONS, with_summaries

# The columns that a run frame must have for `scores`.
REQUIRED_COLUMNS = (
    "run_id", "status", "test_accuracy", "best_val_accuracy", "chance", "task", "arm", "scale",
    "seed", "lr",
)  # fmt: skip

# The smallest effect of interest on language models, in bits per character: about half a percent.
SMALLEST_BITS = 0.01

# Columns of summaries.py that `scores` copies, and those of them that become NaN for diverged runs.
SUMMARIES = (
    "growth", "law", "sigma_rise", "sigma_trend", "unevenness", "sharpening", "fragility",
    "headroom", *OF_QUESTIONS,
)  # fmt: skip
NAN_IF_DIVERGED = ("unevenness", "headroom")

# The factor that converts a loss in nats into negated bits.
BITS = -1 / math.log(2)

# The columns that `scores` reads as numbers. A column that the run frame lacks counts as NaN.
NUMERIC_COLUMNS = (
    "chance", "test_accuracy", "best_val_accuracy", *CORRUPTED, "chance_loss", "test_loss",
    "best_val_loss", "best_step", "steps", "late_gain", "protocol", *SUMMARIES,
)  # fmt: skip


def scores(frame: pd.DataFrame, scale: str) -> pd.DataFrame:
    """Return one row for each run of a scale that finished or diverged, with the columns by which
    runs are compared. frame: a run frame; a column of summaries.py that it lacks becomes NaN.

    score                           accuracy in per cent on the clean test rows
    noise, rotation                 accuracy in per cent on test rows with noise, or rotated
    noise_change, rotation_change   noise − score, and rotation − score; NaN for diverged runs
    bits                            the negated test loss of language models in bits per character
    validation, chance              the best validation score and the score of chance, in the unit
                                    of bits for language models, else in that of score
    late                            1 if the best step by validation is in the last tenth of the
                                    steps (for language models: if the last tenth of the steps
                                    lowered the loss by at least SMALLEST_BITS); else 0
    steepness                       the absolute value of the column growth (see summaries.py)

    Further columns: run_id, task, arm, seed, lr, diverged, protocol, steps and SUMMARIES. Raises
    ValueError if the language models of one task were trained on different texts.
    """
    runs = frame[(frame.scale == scale) & frame.status.isin(("ok", "diverged"))]
    runs = runs.drop_duplicates("run_id")
    diverged, is_text = runs.status == "diverged", runs.task.isin(LANGUAGE_TASKS)
    numbers = runs.reindex(columns=list(NUMERIC_COLUMNS)).apply(pd.to_numeric).astype(float)
    accuracy = 100 * numbers.mask(diverged, numbers.chance, axis=0)
    bits = BITS * numbers.mask(diverged, numbers.chance_loss, axis=0)
    is_late = (numbers.best_step > 0.9 * numbers.steps).mask(
        is_text, numbers.late_gain >= SMALLEST_BITS
    )
    table = runs[["run_id", "task", "arm", "seed", "lr"]].assign(
        diverged=diverged.astype(float),
        score=accuracy.test_accuracy,
        bits=bits.test_loss,
        validation=accuracy.best_val_accuracy.mask(is_text, bits.best_val_loss),
        chance=accuracy.chance.mask(is_text, bits.chance_loss),
        late=(is_late & ~diverged).astype(float),
        protocol=numbers.protocol,
        steps=numbers.steps,
        steepness=numbers.growth.abs(),
    )
    for name in CORRUPTED:
        table[name] = accuracy[name]
        # a diverged run has the accuracy of chance already, so corruption cannot lower it
        table[f"{name}_change"] = (table[name] - table.score).mask(diverged)
    for name in SUMMARIES:
        table[name] = numbers[name].mask(diverged & (name in NAN_IF_DIVERGED))
    _check_texts(numbers.chance_loss.groupby(runs.task))
    finite = np.isfinite(table[["score", "validation", "chance"]]).all(axis=1)
    return table[finite & (~is_text | np.isfinite(table.bits))]


def _check_texts(losses_by_task) -> None:
    """Raise ValueError if the runs of one language task were trained on different texts.

    The text of the task pydoc depends on the version of Python. A text is identified by the loss of
    guessing each character by its frequency. losses_by_task: this loss of every run, grouped by
    task.
    """
    for task, losses in losses_by_task:
        different = sorted(losses.dropna().round(6).unique())
        if task in TEXTS and len(different) > 1:
            known = ", ".join(f"{loss:.6f}" for loss in different)
            raise ValueError(
                f"the runs of {task} have read different texts (chance_loss {known} nats): judge "
                "only the runs of one Python version"
            )


# ---------------------------------------------------------------------------- which runs are judged

NOT_RECORDED = (
    "Trained models are not recorded here yet: `mambanorm record --scale evening` adds them."
)


@dataclass(frozen=True)
class RunsToJudge:
    """The runs on which the verdicts of a scale are based.

    frame: the run frame (one row per run) of the judged runs. stored: the run frame of the runs in
    the run store at this scale. source: "recorded" if the judged runs are recorded ones, "trained"
    if they are the stored ones.
    """

    frame: pd.DataFrame
    stored: pd.DataFrame
    scale: str
    source: str

    def __str__(self) -> str:
        """Return as text how many runs are judged and where they come from; for recorded runs also
        the versions of the protocol under which they were recorded.
        """
        if self.source == "trained":
            return f"{len(self.stored)} runs of your store"
        described = recorded_results.describe_recorded(self.frame)
        versions = ", ".join(f"{v:g}" for v in sorted(self.frame.protocol.dropna().unique()))
        return f"{self.scale}: {described}; recorded under protocols {versions}"


def runs_to_judge(
    scale: str | None = None,
    source: str | None = None,
    seeds: int | Iterable[int] | None = None,
    runs_dir: str | Path | None = None,
) -> RunsToJudge:
    """Return the runs on which the verdicts of a scale are based.

    scale: None means the environment's scale or, if it sets none, the study's scale. source: None
    means the environment's source; "auto" means "recorded" if the scale has recorded results, else
    "trained". seeds: see `select_test_seeds`.
    """
    scale, source = study_scale(scale), check_source(source)
    if source == "auto":
        source = "recorded" if recorded_results.recorded_path(scale).is_file() else "trained"
    stored = select_test_seeds(with_summaries(load_runs(runs_dir, scale=scale), runs_dir), seeds)
    frame = stored
    if source != "trained":
        frame = select_test_seeds(recorded_results.recorded(scale), seeds)
    return RunsToJudge(frame, stored, scale, source)


def select_test_seeds(frame: pd.DataFrame, seeds: int | Iterable[int] | None) -> pd.DataFrame:
    """Return the runs of a frame on the given test seeds, and all runs on seeds that are not test
    seeds.

    seeds: a list of test seeds; a number n means the first n test seeds of each task; None means
    all test seeds. Raises ValueError for anything else.
    """
    if seeds is None or not len(frame):
        return frame
    listed = grid.check_seeds(seeds, "smoke")
    is_test = frame.seed.map(grid.is_test_seed)
    if isinstance(seeds, Iterable):
        return frame[~is_test | frame.seed.isin(listed)]
    rank = frame.seed.where(is_test).groupby(frame.task).rank("dense")
    return frame[~is_test | (rank <= len(listed))]
