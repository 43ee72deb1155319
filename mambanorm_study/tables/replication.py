"""Replication: the reader's machine trains compared arms once more, on a new seed.

A new run of the same arm lies inside the 95 % prediction interval of the recorded ones nineteen
times in twenty.
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
from mambanorm_study.runs.grid import unique
from mambanorm_study.runs.presets import LANGUAGE_TASKS, VISION_TASKS
from mambanorm_study.runs.recorded_results import recorded_ids, recorded_runs
from mambanorm_study.runs.store import check_store, runs_dir as store_dir
from mambanorm_study.tables.experiments import (
    CROSSING_ARMS,
    MAMBA_ARM,
    NORMVARY_ARMS,
    POSITION_ARMS,
    TYPE_ARMS,
)
from mambanorm_study.tables.intervals import prediction_interval

# The file of a store that holds its first fresh seed, and the smallest one.
FRESH = ".fresh-seed"
FIRST_FRESH = 10_001

LEARNED = [
    arm for arm in NORMVARY_ARMS if arm.n1.startswith("NormVary") or arm == Arm("RMSN", "GN")
]
# The arms of type, position, NormVary and AutoNorm; of the grid its best and its worst are added.
COMPARED = {
    str(arm) for arm in (*TYPE_ARMS, *POSITION_ARMS, *LEARNED, *CROSSING_ARMS, *AUTONORM, MAMBA_ARM)
}
# The arms of position, which are left out of images: a run takes twice as long there, and the study
# has ten minutes.
NOT_OF_IMAGES = {str(arm) for arm in POSITION_ARMS} - {str(arm) for arm in (*TYPE_ARMS, MAMBA_ARM)}

COLUMNS = ["task", "arm", "seed", "value", "mean", "low", "high", "n", "unit", "lies"]


def fresh_seeds(runs_dir: str | Path | None = None, *, draw: bool = True) -> list[int]:
    """Return the seeds on which this store replicates: `MAMBANORM_FRESH` of them, or one,
    consecutive from a number above 10,000 that is drawn once and kept in the store.

    `draw=False` draws and writes nothing, and takes FIRST_FRESH where no number is kept. OSError
    for a store that cannot be written to.
    """
    first = _kept_seed(runs_dir)
    if first is None and draw:
        write_text(check_store(runs_dir) / FRESH, f"{FIRST_FRESH + secrets.randbelow(10**6)}\n")
        first = _kept_seed(runs_dir)
    if first is None:
        first = FIRST_FRESH
    return list(range(first, first + default_fresh_seeds()))


def _kept_seed(directory: str | Path | None) -> int | None:
    """Return the store's first fresh seed; None if its file is missing or holds no number."""
    with suppress(OSError, ValueError):
        return max(int((store_dir(directory) / FRESH).read_text("ascii")), FIRST_FRESH)
    return None


def to_replicate(configs: Iterable[RunConfig], source: str | None = None) -> list[RunConfig]:
    """Return one of these configs for each recorded task and arm that is trained once more, with
    its recorded seed.

    They are the arms of COMPARED (on images without NOT_OF_IMAGES), and of each task the best and
    the worst on validation. [] where all runs are trained here.
    """
    configs = unique(configs)
    if check_source(source) == "trained":
        return []
    ids = recorded_ids(config.scale for config in configs)
    known = [c for c in configs if c.run_id in ids and not (c.teacher or c.start)]
    if not known:
        return []
    means = recorded_runs(known).groupby(["scale", "task", "arm"]).val_accuracy.mean()
    by_task = means.groupby(["scale", "task"])
    extremes = {*by_task.idxmax(), *by_task.idxmin()}
    config_of = {(config.scale, config.task, config.arm): config for config in known}
    return [config for key, config in config_of.items() if key in extremes or _is_compared(config)]


def _is_compared(config: RunConfig) -> bool:
    if config.arm in NOT_OF_IMAGES and config.task in VISION_TASKS:
        return False
    return config.arm in COMPARED


def replicate(
    configs: Iterable[RunConfig],
    *,
    source: str | None = None,
    runs_dir: str | Path | None = None,
    **engine: Any,
) -> pd.DataFrame:
    """Return the run frame of the fresh seeds of the arms that `to_replicate` names, trained where
    the store lacks them; empty where all is trained here. `engine`: as of `sweep`.
    """
    fresh = fresh_configs(configs, source=source, runs_dir=runs_dir)
    if not fresh:
        return pd.DataFrame(columns=["task", "arm", "seed", "status", "test_accuracy"])
    # imported here, because listing the runs needs neither torch nor Dask
    from mambanorm_study.runs.sweep import sweep

    return sweep(fresh, runs_dir=runs_dir, source="trained", **engine)


def fresh_configs(
    configs: Iterable[RunConfig],
    *,
    source: str | None = None,
    runs_dir: str | Path | None = None,
    draw: bool = True,
) -> list[RunConfig]:
    """Return the configs that `replicate` trains. draw: as of `fresh_seeds`."""
    replicated = to_replicate(configs, source)
    if not replicated:
        return []
    seeds = fresh_seeds(runs_dir, draw=draw)
    return [config.but(seed=seed) for seed in seeds for config in replicated]


def replication(recorded: pd.DataFrame, fresh: pd.DataFrame) -> pd.DataFrame:
    """Return one row a fresh run: task, arm, seed, value, mean, low, high, n, unit and lies.

    Values are test accuracies in per cent, of language models bits a character. low and high are
    the 95 % prediction interval of the n recorded runs that finished, mean ± t·sd·√(1 + 1/n). lies:
    inside, below, above; diverged or failed, as the run did; or untold where fewer than three
    recorded runs finished.
    """
    recorded, fresh = _valued(recorded), _valued(fresh)
    finished = recorded[recorded.status == "ok"]
    rows = []
    for run in fresh.itertuples():
        values = finished.value[(finished.task == run.task) & (finished.arm == run.arm)]
        low, high = prediction_interval(values.to_numpy(float))
        if run.status != "ok":
            lies = run.status
        elif not np.isfinite(low):
            lies = "untold"
        elif run.value < low:
            lies = "below"
        else:
            lies = "above" if run.value > high else "inside"
        unit = "bits" if run.task in LANGUAGE_TASKS else "%"
        facts = (run.task, run.arm, run.seed, run.value, values.mean(), low, high, len(values))
        rows.append((*facts, unit, lies))
    return pd.DataFrame(rows, columns=COLUMNS)


def _valued(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with the column `value`: accuracy in per cent; of a language model the loss
    in bits a character.
    """
    value, is_text = 100 * runs.test_accuracy.astype(float), runs.task.isin(LANGUAGE_TASKS)
    if is_text.any():
        value = value.mask(is_text, runs.test_loss / np.log(2))
    return runs.assign(value=value)


def trained_here(
    configs: Iterable[RunConfig], runs_dir: str | Path | None, *, draw: bool = True
) -> list[RunConfig]:
    """Return the runs that are trained on this machine: those of configs that are not recorded, and
    a fresh seed of the recorded arms that are compared.

    draw: as of `fresh_seeds`. ValueError where recorded runs are the only source and one of
    STUDY_SCALE is not recorded; smaller ones are trained in any case.
    """
    configs, source = unique(configs), check_source()
    study_configs = [config for config in configs if config.scale == STUDY_SCALE]
    if source == "recorded" and study_configs:
        recorded_runs(study_configs)  # raises ValueError for a missing one
    ids = recorded_ids(config.scale for config in configs) if source != "trained" else set()
    missing = [config for config in configs if config.run_id not in ids]
    return missing + fresh_configs(configs, source=source, runs_dir=runs_dir, draw=draw)
