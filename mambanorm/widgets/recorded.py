"""What the recorded results say of one arm: a row a task and seed, at its learning rate.

recorded_cell, recorded_arm    an arm on one task, on all of them
recorded_rates                 … at every learning rate
grid_means                     every pair of the paper's norms → its mean accuracy
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pandas as pd

from mambanorm.arms import PAPER_NORMS, Arm
from mambanorm.claims.evidence import Evidence, Runs
from mambanorm.training.grid import base_config
from mambanorm.training.recorded_results import recorded, recorded_path

TASKS = {
    "evening": ("mnist1d",),
    "quick": ("digits", "listops", "digits_images"),
}
"""Scale → the recorded tasks whose score is an accuracy and that a Mamba block learns; trained models first."""
COLUMNS = ["scale", "task", "arm", "seed", "accuracy", "chance", "diverged", "lr", "run_id"]


@lru_cache(4)
def evidence(scale: str) -> Evidence | None:
    """The recorded results of a scale; None where there are none."""
    return Evidence(recorded(scale), scale) if recorded_path(scale).is_file() else None


@lru_cache(512)
def tuned(scale: str, task: str, arm: str) -> Runs | None:
    """One arm at its learning rates; None where it is not recorded."""
    known = evidence(scale)
    found = known.tuned((arm,), task) if known is not None and task in known.tasks else None
    return found if found is not None and found.whole_seeds else None


def recorded_cell(scale: str, task: str, arm: str) -> pd.DataFrame:
    """The rows of one arm (COLUMNS; accuracy and chance are fractions), empty where nothing is recorded. A diverged run
    has the accuracy of chance."""
    arm = str(Arm.parse(arm))
    found = tuned(scale, task, arm)
    if found is None:
        return pd.DataFrame(columns=COLUMNS)
    there = np.isfinite(found.at("diverged")[0])
    frame = pd.DataFrame(
        dict(
            scale=scale,
            task=task,
            arm=arm,
            seed=found.seeds,
            accuracy=found.at("score")[0] / 100,
            chance=found.at("chance")[0] / 100,
            diverged=found.at("diverged")[0] > 0,
            lr=found.lr[0],
            run_id=found.ids[0, found.best[0]],
        )
    )[COLUMNS]
    return frame[there].reset_index(drop=True)


def recorded_arm(arm: str) -> pd.DataFrame:
    """`recorded_cell` of every task of TASKS."""
    cells = [recorded_cell(scale, task, arm) for scale, tasks in TASKS.items() for task in tasks]
    return pd.concat([cell for cell in cells if len(cell)] or cells[:1], ignore_index=True)


def recorded_rates(scale: str, task: str, arm: str) -> pd.DataFrame:
    """Every recorded run of an arm in the setting of the scale: lr, seed, accuracy, diverged."""
    frame = _frame(scale)
    own = base_config(task, scale)
    usual = (frame.task == task) & (frame.arm == arm) & (frame.role == "test") & (frame.n_layers == own.n_layers)
    runs = frame[usual & (frame.steps <= own.steps) & (frame.d_model == own.d_model)]
    runs = runs[runs.run_id.isin({own.but(arm=arm, seed=int(run.seed), lr=run.lr).run_id for run in runs.itertuples()})]
    found = runs.assign(accuracy=runs.test_accuracy, diverged=runs.status == "diverged")
    return found[["lr", "seed", "accuracy", "diverged"]].reset_index(drop=True)


@lru_cache(4)
def _frame(scale: str) -> pd.DataFrame:
    return recorded(scale) if recorded_path(scale).is_file() else recorded("quick").iloc[:0]


@lru_cache(8)
def grid_means(scale: str, task: str) -> dict[str, float]:
    """Every pair of the paper's norms → its mean recorded accuracy; NaN where it is not recorded."""
    arms = [f"{n1}>SSM>{n2}" for n1 in PAPER_NORMS for n2 in PAPER_NORMS]
    cells = {arm: recorded_cell(scale, task, arm).accuracy for arm in arms}
    return {arm: float(accuracy.mean()) if len(accuracy) else float("nan") for arm, accuracy in cells.items()}
