"""The parts of IN (notebook 03): why a norm along the sequence gains on one task and loses on
another.

For each channel of a row, IN subtracts the mean over the sequence and divides by the standard
deviation. Each part can be switched off (options `centre` and `scale`), and each removes
information about the row.
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
# A task on which IN gains at scale quick, and one whose classes differ only in the mean; and the
# default seeds of each at the study's scale.
PARTS_TASKS = ("digits", "level")
SEEDS = {"digits": 3, "level": 1}


def parts_runs(
    scale: str | None = None, seeds: int | Iterable[int] | None = None
) -> list[RunConfig]:
    """Return the runs of each part of IN, and of the norms it is compared with, on both tasks.

    At the study's scale, where no part is recorded, they are the small models of quick, by default
    with the seeds in SEEDS.
    """
    scale = study_scale(scale)
    is_small = scale == STUDY_SCALE
    configs = []
    for arm, options in PARTS.values():
        for task in PARTS_TASKS:
            configs += grid(
                [arm],
                [task],
                scale="quick" if is_small else scale,
                seeds=SEEDS[task] if is_small and seeds is None else seeds,
                norm_options=options,
            )
    return configs


def with_parts(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of the parts of IN, in the order of PARTS, with the column `part`."""
    frames = []
    for part, (arm, options) in PARTS.items():
        is_part = (runs.arm == arm) & (runs.norm_options == json.dumps(options))
        frames.append(runs[is_part].assign(part=part))
    return pd.concat(frames, ignore_index=True)


def accuracy_of_moments(task: str, scale: str, seed: int = 0) -> float:
    """Return the test accuracy of nearest neighbours that see only the mean and the standard
    deviation of each row, which a norm along the sequence removes. The rows must have real values.
    """
    from sklearn.neighbors import KNeighborsClassifier  # imported here: it takes a second

    data = load_task(task, scale, seed)
    neighbours = KNeighborsClassifier(min(15, len(data.train)))
    neighbours.fit(_moments(data.train), data.train.labels.numpy())
    return float(neighbours.score(_moments(data.test), data.test.labels.numpy()))


def _moments(split: Split):
    rows = split.inputs.flatten(2)
    return torch.stack([rows.mean(1), rows.std(1)], 1).flatten(1).numpy()
