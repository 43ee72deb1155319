"""Replication: the reader's own machine trains compared arms once more, on a seed that no one has
recorded.

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
from mambanorm_study.basics.settings import STUDY_SCALE, check_source, fresh_seeds_asked
from mambanorm_study.config import RunConfig
from mambanorm_study.models.attention_arms import AUTONORM
from mambanorm_study.runs.grid import unique
from mambanorm_study.runs.presets import LANGUAGE_TASKS, VISION_TASKS
from mambanorm_study.runs.recorded_results import recorded_ids, recorded_runs
from mambanorm_study.runs.store import check_store
from mambanorm_study.runs.store import runs_dir as store_dir
from mambanorm_study.tables.experiments import (
    CROSSING_ARMS,
    MAMBA_ARM,
    NORMVARY_ARMS,
    POSITION_ARMS,
    TYPE_ARMS,
)
from mambanorm_study.tables.intervals import prediction_interval

FRESH = ".fresh-seed"
"""The file of a store that holds its seed."""

FIRST_FRESH = 10_001
LEARNED = [
    arm for arm in NORMVARY_ARMS if arm.n1.startswith("NormVary") or arm == Arm("RMSN", "GN")
]
COMPARED = {
    str(arm) for arm in (*TYPE_ARMS, *POSITION_ARMS, *LEARNED, *CROSSING_ARMS, *AUTONORM, MAMBA_ARM)
}
"""The arms of type, position, NormVary and AutoNorm; of the grid its best and its worst come
besides."""
MOVED = {str(arm) for arm in POSITION_ARMS} - {str(arm) for arm in (*TYPE_ARMS, MAMBA_ARM)}
"""Those of position, which are left out of images: a run takes twice as long there, and the study
has ten minutes."""


def fresh_seeds(runs_dir: str | Path | None = None, *, draw: bool = True) -> list[int]:
    """The seeds on which this store replicates, as many as `MAMBANORM_FRESH` says, or one: one
    after the other from a number above 10,000 that is drawn once and kept. OSError for a store that
    cannot be written to. `draw=False` draws and writes nothing: a store without such a number is
    told the least."""
    if (first := _kept(runs_dir)) is None and draw:
        write_text(check_store(runs_dir) / FRESH, f"{FIRST_FRESH + secrets.randbelow(10**6)}\n")
        first = _kept(runs_dir)
    first = FIRST_FRESH if first is None else first
    return list(range(first, first + fresh_seeds_asked()))


def _kept(directory: str | Path | None) -> int | None:
    """The store's first fresh seed; None if there is none yet, or what stands there is no seed."""
    with suppress(OSError, ValueError):
        return max(int((store_dir(directory) / FRESH).read_text("ascii")), FIRST_FRESH)
    return None


def to_replicate(configs: Iterable[RunConfig], source: str | None = None) -> list[RunConfig]:
    """Of these configs one of each recorded task and arm that is trained once more, with its seed
    of before: the arms of COMPARED (of images without MOVED), and of each task the best and the
    worst on validation. Empty where all is trained here."""
    configs = unique(configs)
    held = (
        recorded_ids(config.scale for config in configs)
        if check_source(source) != "trained"
        else set()
    )
    known = [
        config
        for config in configs
        if config.run_id in held and not (config.teacher or config.start)
    ]
    if not known:
        return []
    means = recorded_runs(known).groupby(["scale", "task", "arm"]).val_accuracy.mean()
    each = [of for _, of in means.groupby(["scale", "task"])]
    ends = {pick(of) for of in each for pick in (pd.Series.idxmax, pd.Series.idxmin)}
    one_each = {(config.scale, config.task, config.arm): config for config in known}
    compared = {
        key for key in one_each if key[2] in COMPARED - (MOVED if key[1] in VISION_TASKS else set())
    }
    return [config for key, config in one_each.items() if key in compared | ends]


def replicate(
    configs: Iterable[RunConfig],
    *,
    source: str | None = None,
    runs_dir: str | Path | None = None,
    **how: Any,
) -> pd.DataFrame:
    """The run frame of the fresh seeds of the arms that `to_replicate` names, trained where the
    store lacks them; empty where all is trained here. `how`: as of `sweep`."""
    again = fresh_configs(configs, source=source, runs_dir=runs_dir)
    if not again:
        return pd.DataFrame(columns=["task", "arm", "seed", "status", "test_accuracy"])
    from mambanorm_study.runs.sweep import (
        sweep,
    )  # here: what would be trained is said without torch and Dask

    return sweep(again, runs_dir=runs_dir, source="trained", **how)


def fresh_configs(
    configs: Iterable[RunConfig],
    *,
    source: str | None = None,
    runs_dir: str | Path | None = None,
    draw: bool = True,
) -> list[RunConfig]:
    """What `replicate` trains. draw: as of `fresh_seeds`."""
    asked = to_replicate(configs, source)
    return [
        config.with_seed(seed)
        for seed in (fresh_seeds(runs_dir, draw=draw) if asked else ())
        for config in asked
    ]


def replication(recorded: pd.DataFrame, fresh: pd.DataFrame) -> pd.DataFrame:
    """One row a fresh run: task, arm, seed, value, mean, low, high, n, unit and lies: inside,
    below, above; diverged or failed, as the run did; or untold where fewer than three recorded runs
    finished.

    Values are test accuracies in per cent, of language models bits a character. low and high are
    the 95 % prediction interval of the n recorded runs that finished, mean ± t·sd·√(1 + 1/n).
    """
    recorded, fresh, rows = _valued(recorded), _valued(fresh), []
    for run in fresh.itertuples():
        runs = recorded[
            (recorded.task == run.task) & (recorded.arm == run.arm) & (recorded.status == "ok")
        ]
        low, high = prediction_interval(runs.value.to_numpy(float))
        outside = "below" if run.value < low else "above" if run.value > high else "inside"
        lies = outside if np.isfinite(low) else "untold"
        facts = dict(
            task=run.task, arm=run.arm, seed=run.seed, value=run.value, mean=runs.value.mean()
        )
        unit = "bits" if run.task in LANGUAGE_TASKS else "%"
        facts |= dict(low=low, high=high, n=len(runs), unit=unit)
        rows.append(facts | dict(lies=lies if run.status == "ok" else run.status))
    return pd.DataFrame(
        rows, columns=["task", "arm", "seed", "value", "mean", "low", "high", "n", "unit", "lies"]
    )


def _valued(runs: pd.DataFrame) -> pd.DataFrame:
    """With the column `value`: accuracy in per cent; of a language model the loss in bits a
    character."""
    value, text = 100 * runs.test_accuracy.astype(float), runs.task.isin(LANGUAGE_TASKS)
    return runs.assign(
        value=value.where(~text, runs.test_loss / np.log(2)) if text.any() else value
    )


def trained_here(
    configs: Iterable[RunConfig], runs_dir: str | Path | None, *, draw: bool = True
) -> list[RunConfig]:
    """What of these runs is trained on this machine, now or before: those that are not recorded,
    and a fresh seed of the recorded arms that are compared. draw: as of `fresh_seeds`. ValueError
    where recorded runs are the only source and one of STUDY_SCALE is not recorded; smaller ones are
    trained in any case."""
    configs, source = unique(configs), check_source()
    if source == "recorded" and (
        asked := [config for config in configs if config.scale == STUDY_SCALE]
    ):
        recorded_runs(asked)
    held = recorded_ids(config.scale for config in configs) if source != "trained" else set()
    again = fresh_configs(configs, source=source, runs_dir=runs_dir, draw=draw)
    return [*(config for config in configs if config.run_id not in held), *again]
