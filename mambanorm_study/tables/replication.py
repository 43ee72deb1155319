"""Replication: train the compared arms once more on this machine, on new seeds that are not
recorded (fresh seeds).

If nothing but the seed differs, a new run of an arm lies inside the 95 % prediction interval of the
arm's recorded runs nineteen times in twenty.
"""

import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mambanorm.arms import Arm
from mambanorm_study.basics.atomic import write_text
from mambanorm_study.basics.settings import (
    KERNEL,
    STORED_ONLY,
    STUDY_SCALE,
    check_source,
    default_fresh_seeds,
)
from mambanorm_study.config import RunConfig
from mambanorm_study.models.attention_arms import AUTONORM
from mambanorm_study.runs import recorded_results, store
from mambanorm_study.runs.grid import unique
from mambanorm_study.runs.presets import LANGUAGE_TASKS, VISION_TASKS
from mambanorm_study.tables.experiments import (
    CROSSING_ARMS,
    MAMBA_ARM,
    NORMVARY_ARMS,
    POSITION_ARMS,
    TYPE_ARMS,
)
from mambanorm_study.tables.intervals import prediction_interval
from mambanorm_study.tables.run_tables import with_value

# The name of the file in a store that holds the store's first fresh seed, and the smallest number
# that a fresh seed can be.
FRESH_SEED_FILE = ".fresh-seed"
SMALLEST_FRESH_SEED = 10_001

# The arms with NormVary before the SSM, and RMSN→GN, which differs from NormVary→GN only in the
# norm before the SSM.
LEARNED_ARMS = [
    arm for arm in NORMVARY_ARMS if arm.n1.startswith("NormVary") or arm == Arm("RMSN", "GN")
]
# The arms of notebooks 03 (type), 04 (position), 06 (NormVary) and 10 (AutoNorm) that are trained
# once more. `configs_to_replicate` adds the best and the worst arm of each task.
COMPARED = {
    str(arm)
    for arm in (*TYPE_ARMS, *POSITION_ARMS, *LEARNED_ARMS, *CROSSING_ARMS, *AUTONORM, MAMBA_ARM)
}
# The arms of COMPARED that are trained once more on image tasks. POSITION_ARMS that are neither in
# TYPE_ARMS nor MAMBA_ARM are omitted, because a run on images takes twice as long as other runs and
# the study should take about ten minutes.
COMPARED_ON_IMAGES = COMPARED.difference(map(str, POSITION_ARMS)).union(
    map(str, [*TYPE_ARMS, MAMBA_ARM])
)

COLUMNS = ["task", "arm", "seed", "value", "mean", "low", "high", "n", "unit", "lies"]


def fresh_seeds(runs_dir: str | Path | None = None, *, draw: bool = True) -> list[int]:
    """Return the fresh seeds of a store: as many consecutive numbers as the environment variable
    `MAMBANORM_FRESH` says (default: one).

    The first fresh seed is a random number above 10,000, which is drawn and stored when it is first
    needed. If `draw` is False and no seed is stored, SMALLEST_FRESH_SEED is used, and nothing is
    written. Raises OSError for a store that cannot be written to.
    """
    if draw and not (store.runs_dir(runs_dir) / FRESH_SEED_FILE).is_file():
        seed = SMALLEST_FRESH_SEED + secrets.randbelow(10**6)
        write_text(store.check_store(runs_dir) / FRESH_SEED_FILE, f"{seed}\n")
    first = SMALLEST_FRESH_SEED
    with suppress(OSError, ValueError):  # there is no file, or it has no number
        first = max(
            int((store.runs_dir(runs_dir) / FRESH_SEED_FILE).read_text("ascii")),
            SMALLEST_FRESH_SEED,
        )
    return list(range(first, first + default_fresh_seeds()))


def configs_to_replicate(
    configs: Iterable[RunConfig], source: str | None = None
) -> list[RunConfig]:
    """Return those of the configs that this machine trains once more with new seeds: one recorded
    config for each compared arm of each task.

    The compared arms are COMPARED (on image tasks COMPARED_ON_IMAGES), and each task's best and
    worst arm by validation. Returns [] if none of the configs is recorded, or if recorded results
    are not used (source "trained").
    """
    configs = unique(configs)
    ids = recorded_results.recorded_ids(config.scale for config in configs)
    known = [c for c in configs if c.run_id in ids and not (c.teacher or c.start)]
    if check_source(source) == "trained" or not known:
        return []
    recorded = recorded_results.recorded_runs(known)
    means = recorded.groupby(["scale", "task", "arm"]).val_accuracy.mean()
    by_task = means.groupby(["scale", "task"])
    extremes = {*by_task.idxmax(), *by_task.idxmin()}
    config_of = {(config.scale, config.task, config.arm): config for config in known}

    def is_compared(scale: str, task: str, arm: str) -> bool:
        compared = COMPARED_ON_IMAGES if task in VISION_TASKS else COMPARED
        return (scale, task, arm) in extremes or arm in compared

    return [config for key, config in config_of.items() if is_compared(*key)]


def replicate(
    configs: Iterable[RunConfig],
    *,
    source: str | None = None,
    runs_dir: str | Path | None = None,
    **engine: Any,
) -> pd.DataFrame:
    """Train those configs of `fresh_configs` that the store lacks, and return the run frame (one
    row per run) of all configs of `fresh_configs`; an empty frame if there are no such configs.
    engine: further arguments of `sweep`.
    """
    fresh = fresh_configs(configs, source=source, runs_dir=runs_dir)
    if not fresh:
        return pd.DataFrame(columns=["task", "arm", "seed", "status", "test_accuracy"])
    # imported here, so that listing the runs loads neither torch nor Dask
    from mambanorm_study.runs.sweep import sweep

    return sweep(fresh, runs_dir=runs_dir, source="trained", **engine)


def fresh_configs(
    configs: Iterable[RunConfig],
    *,
    source: str | None = None,
    runs_dir: str | Path | None = None,
    draw: bool = True,
) -> list[RunConfig]:
    """Return each config of `configs_to_replicate` once with each fresh seed. draw: see
    `fresh_seeds`.

    In a notebook that a study executes, only the configs whose runs are stored are returned: the
    study has already trained as many as it has time for.
    """
    replicated = configs_to_replicate(configs, source)
    if not replicated:
        return []
    seeds = fresh_seeds(runs_dir, draw=draw)
    fresh = [config.but(seed=seed) for seed in seeds for config in replicated]
    if os.environ.get(KERNEL) != STORED_ONLY:
        return fresh
    missing = store.missing_runs(fresh, runs_dir)
    return [config for config in fresh if config not in missing]


def replication(recorded: pd.DataFrame, fresh: pd.DataFrame) -> pd.DataFrame:
    """Return a comparison of each fresh run with the recorded runs of its task and arm: one row for
    each fresh run.

    Columns: task, arm, seed; value (the fresh run's test accuracy in per cent, for language models
    its test loss in bits per character); mean, low, high and n (mean and 95 % prediction interval
    from the n recorded runs that finished); unit; lies (where the value lies: "inside", "below" or
    "above" this interval; "diverged" or "failed" if the fresh run did so; "untold" if fewer than
    three recorded runs finished).
    """
    recorded, fresh = with_value(recorded), with_value(fresh)
    finished = recorded[recorded.status == "ok"]
    rows = []
    for run in fresh.itertuples():
        values = finished.value[(finished.task == run.task) & (finished.arm == run.arm)]
        interval = prediction_interval(values.to_numpy(float))
        unit = "bits" if run.task in LANGUAGE_TASKS else "%"
        facts = (run.task, run.arm, run.seed, run.value)
        rows.append((*facts, values.mean(), *interval, len(values), unit))
    table = pd.DataFrame(rows, columns=COLUMNS[:-1])
    status = fresh.status.to_numpy()
    conditions = [
        status != "ok", table.low.isna(), table.value < table.low, table.value > table.high
    ]  # fmt: skip
    return table.assign(lies=np.select(conditions, [status, "untold", "below", "above"], "inside"))


def unrecorded(configs: Iterable[RunConfig]) -> list[RunConfig]:
    """Return the configs that have to be trained on this machine, because they are not recorded.

    Raises ValueError if the environment's source is "recorded" and a config of STUDY_SCALE is not
    recorded. Configs of other scales that are not recorded are trained even then.
    """
    configs, source = unique(configs), check_source()
    study_configs = [config for config in configs if config.scale == STUDY_SCALE]
    if source == "recorded" and study_configs:
        recorded_results.recorded_runs(study_configs)  # raises ValueError for a missing run
    scales = () if source == "trained" else {config.scale for config in configs}
    ids = recorded_results.recorded_ids(scales)
    return [config for config in configs if config.run_id not in ids]
