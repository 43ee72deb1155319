"""IN in parts (notebook 03): why a norm along the sequence gains on one task and loses on another.

IN does two things to each channel of a row: it subtracts the mean over the sequence, and it divides
by the spread. Each part can be switched off (options `centre` and `scale`), and each removes
something that the row says.
"""

import json
from collections.abc import Iterable

import pandas as pd
import torch

from mambanorm_study.basics.settings import STUDY_SCALE, study_scale
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import grid
from mambanorm_study.tasks import Split, load_task

# Part → arm and norm options.
PARTS: dict[str, tuple[str, dict[str, bool]]] = {
    "no norm": ("None>SSM>None", {}),
    "mean taken out": ("IN>SSM>IN", {"scale": False}),
    "divided by spread": ("IN>SSM>IN", {"centre": False}),
    "both: IN": ("IN>SSM>IN", {}),
    "over groups: GN": ("GN>SSM>GN", {}),
    "per token: RMSN": ("RMSN>SSM>RMSN", {}),
}
# A task on which IN gains at scale quick, and one in which only the mean matters; with the default
# seeds of each at the study's scale.
PARTS_TASKS = ("digits", "level")
SEEDS = {"digits": 3, "level": 1}


def parts_runs(
    scale: str | None = None, seeds: int | Iterable[int] | None = None
) -> list[RunConfig]:
    """Return each part of IN, and the norms beside it, on both tasks.

    At the study's scale, where no part is recorded, they are the small models of quick, by default
    with the seeds of SEEDS.
    """
    scale = study_scale(scale)
    seeds_of_task = dict.fromkeys(PARTS_TASKS, seeds)
    if scale == STUDY_SCALE:
        scale = "quick"
        if seeds is None:
            seeds_of_task = SEEDS
    configs = []
    for arm, options in PARTS.values():
        for task in PARTS_TASKS:
            task_seeds = seeds_of_task[task]
            configs += grid([arm], [task], scale=scale, seeds=task_seeds, norm_options=options)
    return configs


def with_parts(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of `parts_runs` with the column `part`, in the order of PARTS, without other
    runs.
    """
    part_of = {(arm, json.dumps(options)): part for part, (arm, options) in PARTS.items()}
    parts = [part_of.get(key) for key in zip(runs.arm, runs.norm_options, strict=True)]
    order = list(PARTS).index
    known = runs.assign(part=parts).dropna(subset="part")
    return known.sort_values(
        "part", key=lambda parts: parts.map(order), kind="stable", ignore_index=True
    )


def accuracy_of_moments(task: str, scale: str, seed: int = 0) -> float:
    """Return the test accuracy of nearest neighbours on the mean and the spread of each row, which
    a norm along the sequence removes. For tasks with real-valued rows.
    """
    from sklearn.neighbors import KNeighborsClassifier  # imported here: it takes a second

    data = load_task(task, scale, seed)
    neighbours = KNeighborsClassifier(min(15, len(data.train)))
    neighbours.fit(_moments(data.train), data.train.labels.numpy())
    return float(neighbours.score(_moments(data.test), data.test.labels.numpy()))


def _moments(split: Split):
    rows = split.inputs.flatten(2)
    return torch.stack([rows.mean(1), rows.std(1)], 1).flatten(1).numpy()
