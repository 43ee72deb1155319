"""Why a norm along the sequence gains on one task and loses on another: IN taken apart (notebook
03).

IN does two things to each channel of a row: it takes out the mean over the sequence, and it divides
by the spread. Each can be left out (options `centre` and `scale`), and each takes away something
that the row told.
"""

import json
from collections.abc import Iterable

import pandas as pd
import torch

from mambanorm_study.basics.settings import STUDY_SCALE, study_scale
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import grid
from mambanorm_study.tasks import load_task

HALVES: dict[str, tuple[str, dict[str, bool]]] = {
    "no norm": ("None>SSM>None", {}),
    "mean taken out": ("IN>SSM>IN", dict(scale=False)),
    "divided by spread": ("IN>SSM>IN", dict(centre=False)),
    "both: IN": ("IN>SSM>IN", {}),
    "over groups: GN": ("GN>SSM>GN", {}),
    "per token: RMSN": ("RMSN>SSM>RMSN", {}),
}
HALVES_TASKS = ("digits", "level")
"""One task on which IN gains at scale quick, and one that only the mean tells."""


def halves_runs(
    scale: str | None = None, seeds: int | Iterable[int] | None = None
) -> list[RunConfig]:
    """Every part of IN, and the norms beside it, on both tasks. At the study's own scale the small
    models of quick, by default with three seeds on digits and one on `level`: no half is
    recorded."""
    scale, few = study_scale(scale), {}
    if scale == STUDY_SCALE:
        scale, few = "quick", {"digits": 3, "level": 1}
    return [
        config
        for arm, options in HALVES.values()
        for task in HALVES_TASKS
        for config in grid(
            [arm],
            [task],
            scale=scale,
            seeds=few.get(task) if seeds is None else seeds,
            norm_options=options,
        )
    ]


def with_halves(runs: pd.DataFrame) -> pd.DataFrame:
    """The run frame of `halves_runs` with the column `part`, in the order of HALVES. Other runs are
    left out."""
    labels = {
        (arm, json.dumps(options, sort_keys=True)): name for name, (arm, options) in HALVES.items()
    }
    parts = [labels.get(key) for key in zip(runs.arm, runs.norm_options, strict=True)]
    order = {name: i for i, name in enumerate(HALVES)}
    known = runs.assign(part=parts).dropna(subset="part")
    return known.sort_values("part", key=lambda names: names.map(order), kind="stable").reset_index(
        drop=True
    )


def moments_alone(task: str, scale: str, seed: int = 0) -> float:
    """The test accuracy of the nearest neighbours by two numbers a row, its mean and its spread:
    what a norm along the sequence can take away. For tasks with real-valued rows."""
    from sklearn.neighbors import KNeighborsClassifier  # here: it takes a second

    data = load_task(task, scale, seed)
    (x, y), (test_x, test_y) = (
        (torch.stack([rows.mean(1), rows.std(1)], 1).flatten(1).numpy(), split.labels.numpy())
        for split in (data.train, data.test)
        for rows in [split.inputs.flatten(2)]
    )
    return float(KNeighborsClassifier(min(15, len(y))).fit(x, y).score(test_x, test_y))
