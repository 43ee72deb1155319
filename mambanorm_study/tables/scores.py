"""The numbers by which runs are compared: accuracy in per cent, and for language models the loss in
bits per character.

A diverged run has the score of chance. Bits are negated, so that higher is better.
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
from mambanorm_study.tables.summaries import CORRUPTED, with_summaries

# The columns that `scores` needs.
SCORED = (
    "run_id", "status", "test_accuracy", "best_val_accuracy", "chance", "task", "arm", "scale",
    "seed", "lr",
)  # fmt: skip

# The smallest effect of interest on language models, in bits per character: about half a percent.
SMALLEST_BITS = 0.01

# Columns of summaries.py, and those that are NaN for diverged runs.
SUMMARIES = (
    "growth", "law", "sigma_rise", "sigma_trend", "unevenness", "sharpening", "fragility",
    "headroom",
)  # fmt: skip
OF_FINISHED = ("unevenness", "headroom")

# Factor from a loss in nats to bits, negated.
BITS = -1 / math.log(2)

# The columns that `scores` reads as numbers; NaN if the frame lacks them.
NUMBERS = (
    "chance", "test_accuracy", "best_val_accuracy", *CORRUPTED, "chance_loss", "test_loss",
    "best_val_loss", "best_step", "steps", "late_gain", "protocol", *SUMMARIES,
)  # fmt: skip


def scores(frame: pd.DataFrame, scale: str) -> pd.DataFrame:
    """Return the runs of a scale that finished or diverged, each once, with the columns by which
    they can be compared.

    score, noise and rotation: accuracy in per cent, on clean and on corrupted rows; noise_change
    and rotation_change: these two minus score. bits: for language models. validation and chance: in
    the unit of score or bits. late: 1 if the best step by validation is in the last tenth of the
    steps, for language models if that tenth lowered the loss by SMALLEST_BITS. Further columns:
    run_id, task, arm, seed, lr, diverged, steepness, protocol and SUMMARIES. Raises ValueError for
    language models of different texts.
    """
    runs = frame[(frame.scale == scale) & frame.status.isin(("ok", "diverged"))]
    runs = runs.drop_duplicates("run_id")
    diverged, is_text = runs.status == "diverged", runs.task.isin(LANGUAGE_TASKS)
    numbers = runs.reindex(columns=list(NUMBERS)).apply(pd.to_numeric).astype(float)
    accuracy = 100 * numbers[["chance", "test_accuracy", "best_val_accuracy", *CORRUPTED]]
    accuracy = accuracy.mask(diverged, accuracy.chance, axis=0)
    bits = BITS * numbers[["chance_loss", "test_loss", "best_val_loss"]]
    bits = bits.mask(diverged, bits.chance_loss, axis=0)
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
        steepness=numbers.growth.abs(),
    )
    for name in CORRUPTED:
        table[name] = accuracy[name]
        # a diverged run is at chance already, so corruption cannot lower its accuracy
        table[f"{name}_change"] = (table[name] - table.score).mask(diverged)
    for name in SUMMARIES:
        table[name] = numbers[name].mask(diverged & (name in OF_FINISHED))
    _check_texts(numbers.chance_loss.groupby(runs.task))
    finite = np.isfinite(table[["score", "validation", "chance"]]).all(axis=1)
    return table[finite & (~is_text | np.isfinite(table.bits))]


def _check_texts(losses_by_task) -> None:
    """Raise ValueError if runs of one task have different texts.

    The text of pydoc depends on the version of Python. It is identified by the loss of guessing by
    frequency.
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
    """The runs that verdicts are based on.

    frame: the judged runs. stored: the runs of the run store at this scale.
    """

    frame: pd.DataFrame
    stored: pd.DataFrame
    scale: str
    source: str

    def __str__(self) -> str:
        """Return how many runs there are, how they were made, and under which protocols."""
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
    """Return the runs that the verdicts of a scale are based on.

    scale: None = the environment's, else that of the study. source: None = "recorded" if there are
    recorded results of the scale, else "trained". seeds: see `of_test_seeds`.
    """
    scale, source = study_scale(scale), check_source(source)
    if source == "auto":
        source = "recorded" if recorded_results.recorded_path(scale).is_file() else "trained"
    stored = of_test_seeds(with_summaries(load_runs(runs_dir, scale=scale), runs_dir), seeds)
    frame = stored
    if source != "trained":
        frame = of_test_seeds(recorded_results.recorded(scale), seeds)
    return RunsToJudge(frame, stored, scale, source)


def of_test_seeds(frame: pd.DataFrame, seeds: int | Iterable[int] | None) -> pd.DataFrame:
    """Return the frame without the runs on other test seeds than these. Runs on other than test
    seeds stay.

    seeds: a list, or the number of test seeds to keep of each task; None = all. Raises ValueError
    for anything else.
    """
    if seeds is None or not len(frame):
        return frame
    listed = grid.check_seeds(seeds, "smoke")
    is_test = frame.seed.map(grid.is_test_seed)
    if isinstance(seeds, Iterable):
        return frame[~is_test | frame.seed.isin(listed)]
    rank = frame.seed.where(is_test).groupby(frame.task).rank("dense")
    return frame[~is_test | (rank <= len(listed))]
