"""Replication: this machine trains the compared arms once more, on a seed that is not recorded (a
fresh seed).

A new run of an arm lies inside the 95 % prediction interval of its recorded runs nineteen times in
twenty.
"""

import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mambanorm.arms import Arm
from mambanorm_study.basics.atomic import write_text
from mambanorm_study.basics.settings import STUDY_SCALE, check_source, default_fresh_seeds
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

# The file of a store that holds its first fresh seed, and the smallest fresh seed.
FRESH = ".fresh-seed"
FIRST_FRESH = 10_001

LEARNED = [
    arm for arm in NORMVARY_ARMS if arm.n1.startswith("NormVary") or arm == Arm("RMSN", "GN")
]
# The arms of type, position, NormVary and AutoNorm. Of each task the best and the worst arm are
# added.
COMPARED = {
    str(arm) for arm in (*TYPE_ARMS, *POSITION_ARMS, *LEARNED, *CROSSING_ARMS, *AUTONORM, MAMBA_ARM)
}
# On images without the arms of position, because a run takes twice as long there, and the study has
# ten minutes.
COMPARED_ON_IMAGES = COMPARED.difference(map(str, POSITION_ARMS)).union(
    map(str, [*TYPE_ARMS, MAMBA_ARM])
)

COLUMNS = ["task", "arm", "seed", "value", "mean", "low", "high", "n", "unit", "lies"]


def fresh_seeds(runs_dir: str | Path | None = None, *, draw: bool = True) -> list[int]:
    """Return the fresh seeds of a store: `MAMBANORM_FRESH` consecutive numbers (default: one).

    The first one is drawn above 10,000 when it is first needed, and stored. If `draw` is False and
    no seed is stored, it is FIRST_FRESH, and nothing is written. Raises OSError for a store that
    cannot be written to.
    """
    if draw and not (store.runs_dir(runs_dir) / FRESH).is_file():
        seed = FIRST_FRESH + secrets.randbelow(10**6)
        write_text(store.check_store(runs_dir) / FRESH, f"{seed}\n")
    first = FIRST_FRESH
    with suppress(OSError, ValueError):  # no file, or no number in it
        first = max(int((store.runs_dir(runs_dir) / FRESH).read_text("ascii")), FIRST_FRESH)
    return list(range(first, first + default_fresh_seeds()))


def to_replicate(configs: Iterable[RunConfig], source: str | None = None) -> list[RunConfig]:
    """Return a recorded config of each task and arm that this machine trains once more.

    The arms are those of COMPARED (on images COMPARED_ON_IMAGES) and the best and the worst of each
    task on validation. Returns [] if all runs are trained on this machine.
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
    """Return the run frame of the arms of `to_replicate` on the fresh seeds, trained if the store
    lacks them; an empty frame if there are none. engine: see `sweep`.
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
    """Return the configs that `replicate` trains. draw: see `fresh_seeds`."""
    replicated = to_replicate(configs, source)
    if not replicated:
        return []
    seeds = fresh_seeds(runs_dir, draw=draw)
    return [config.with_seed(seed) for seed in seeds for config in replicated]


def replication(recorded: pd.DataFrame, fresh: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each fresh run, with the columns COLUMNS.

    value: test accuracy in per cent, for language models bits per character. mean, low, high: the
    mean and the 95 % prediction interval of the n recorded runs that finished. lies: "inside",
    "below" or "above" this interval; "diverged" or "failed" if the fresh run did; "untold" if fewer
    than three recorded runs finished.
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


def trained_here(
    configs: Iterable[RunConfig], runs_dir: str | Path | None, *, draw: bool = True
) -> list[RunConfig]:
    """Return the runs that are trained on this machine: the configs that are not recorded, and the
    recorded arms that are compared on fresh seeds.

    draw: see `fresh_seeds`. Raises ValueError if recorded runs are the only source and a config of
    STUDY_SCALE is not recorded. Configs of smaller scales are trained in any case.
    """
    configs, source = unique(configs), check_source()
    study_configs = [config for config in configs if config.scale == STUDY_SCALE]
    if source == "recorded" and study_configs:
        recorded_results.recorded_runs(study_configs)  # raises ValueError for a missing one
    scales = () if source == "trained" else {config.scale for config in configs}
    ids = recorded_results.recorded_ids(scales)
    missing = [config for config in configs if config.run_id not in ids]
    return missing + fresh_configs(configs, source=source, runs_dir=runs_dir, draw=draw)
