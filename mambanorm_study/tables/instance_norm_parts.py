"""The two operations of IN, centring and scaling (notebook 03). They explain why a norm along the
sequence gains accuracy on one task and loses accuracy on another.

For each channel of a row, IN subtracts the mean over the sequence and divides by the standard
deviation over the sequence. Each of these two parts can be switched off (options `centre` and
`scale`), and each part removes information about the row.
"""

import json
from collections.abc import Iterable

import pandas as pd
import torch

from mambanorm_study.basics.settings import STUDY_SCALE, study_scale
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import grid
from mambanorm_study.tasks import Split, load_task

# Name of a part of IN, or of a norm with which IN is compared → arm and norm options.
PARTS: dict[str, tuple[str, dict[str, bool]]] = {
    "no norm": ("None>SSM>None", {}),
    "mean taken out": ("IN>SSM>IN", {"scale": False}),
    "divided by spread": ("IN>SSM>IN", {"centre": False}),
    "both: IN": ("IN>SSM>IN", {}),
    "over groups: GN": ("GN>SSM>GN", {}),
    "per token: RMSN": ("RMSN>SSM>RMSN", {}),
}
# A task on which IN gains accuracy at scale quick, and a task whose classes differ only in the mean
# of the sequence. SEEDS has the default number of seeds of each task at the study's scale.
PARTS_TASKS = ("digits", "level")
SEEDS = {"digits": 3, "level": 1}


def parts_runs(
    scale: str | None = None, seeds: int | Iterable[int] | None = None
) -> list[RunConfig]:
    """Return the runs of all entries of PARTS (no norm, each operation of IN alone, IN, and other
    norms), on both tasks of PARTS_TASKS.

    The runs are not recorded at the study's scale. For this scale, runs at scale quick, whose
    models are small, are returned instead, by default with the numbers of seeds in SEEDS.
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
    """Return the rows of a run frame that belong to an entry of PARTS, in the order of PARTS, with
    the additional column `part`, the name of the entry.
    """
    frames = []
    for part, (arm, options) in PARTS.items():
        is_part = (runs.arm == arm) & (runs.norm_options == json.dumps(options))
        frames.append(runs[is_part].assign(part=part))
    return pd.concat(frames, ignore_index=True)


def accuracy_from_moments(task: str, scale: str, seed: int = 0) -> float:
    """Return the test accuracy (a fraction) of a nearest-neighbour classifier that sees only what
    IN removes: for each row and channel the mean and the standard deviation over the sequence. The
    inputs of the task must be real values.
    """
    from sklearn.neighbors import KNeighborsClassifier  # imported here: the import takes a second

    data = load_task(task, scale, seed)
    neighbours = KNeighborsClassifier(min(15, len(data.train)))
    neighbours.fit(_moments(data.train), data.train.labels.numpy())
    return float(neighbours.score(_moments(data.test), data.test.labels.numpy()))


def _moments(split: Split):
    rows = split.inputs.flatten(2)
    return torch.stack([rows.mean(1), rows.std(1)], 1).flatten(1).numpy()
