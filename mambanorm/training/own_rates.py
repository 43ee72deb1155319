"""What recorded runs tell of runs to come: the learning rate of an arm, and how long a run takes.

best_rate       the rate of an arm, here and in every verdict: the best mean on validation
own_rate        the rate at which an arm's recorded runs are best on validation
at_own_rates    `grid`, each arm at its own rate
weight          about how many seconds a run takes
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from mambanorm.arms import Arm
from mambanorm.basics.settings import check_source
from mambanorm.config import RunConfig
from mambanorm.training.grid import base_config, grid, relative_cost, unique
from mambanorm.training.presets import LANGUAGE_TASKS
from mambanorm.training.recorded_results import recorded_path

SCORES = ("best_val_accuracy", "chance", "best_val_loss", "chance_loss")


def best_rate(validation: np.ndarray) -> np.ndarray:
    """(…,) the index of the rate with the best mean over its seeds, the smaller of equals; a rate that has fewer seeds
    than another is none to choose. validation: (…, rates, seeds), a diverged run with chance, NaN where there is no
    run."""
    there = np.isfinite(validation)
    runs = there.sum(axis=-1)
    mean = np.where(there, validation, 0.0).sum(axis=-1) / np.maximum(runs, 1)
    whole = runs == runs.max(axis=-1, keepdims=True)
    return np.where(whole, np.round(mean, 9), -np.inf).argmax(axis=-1)


@lru_cache(maxsize=8)
def _scores(path: Path, mtime_ns: int) -> pd.DataFrame:
    """What `own_rate` asks of a recorded frame, by run id: task, arm, lr, seed, and the score on validation: accuracy
    (chance if the run diverged), of language models minus the loss (minus that of chance)."""
    frame = pd.read_parquet(path, columns=["run_id", "task", "arm", "lr", "seed", "status", *SCORES])
    ended = frame.status != "diverged"
    accuracy = frame.best_val_accuracy.where(ended, frame.chance)
    loss = frame.best_val_loss.where(ended, frame.chance_loss)
    frame["score"] = accuracy.where(~frame.task.isin(LANGUAGE_TASKS), -loss)
    return frame.drop_duplicates("run_id").set_index("run_id").sort_index()


@lru_cache(maxsize=512)
def _own_rate(path: Path, mtime_ns: int, scale: str, task: str, arm: str) -> tuple[float, tuple[int, ...]] | None:
    frame = _scores(path, mtime_ns)
    mine = frame[(frame.task == task) & (frame.arm == arm)]
    rates, seeds = (sorted(mine[name].unique().tolist()) for name in ("lr", "seed"))
    own = [base_config(task, scale, arm=arm, lr=lr) for lr in rates]
    ids = np.array([[config.with_seed(seed).run_id for seed in seeds] for config in own])
    scores = mine.score.reindex(ids.ravel()).to_numpy().reshape(ids.shape)
    if not np.isfinite(scores).any():
        return None
    best = best_rate(scores)
    return rates[best], tuple(seed for seed, score in zip(seeds, scores[best], strict=True) if np.isfinite(score))


def own_rate(task: str, arm: str, scale: str) -> tuple[float, tuple[int, ...]] | None:
    """The learning rate at which an arm is best on validation, the mean of all its recorded seeds, and these seeds.
    Of the runs that differ from the task's settings at this scale in arm, learning rate and seed alone; a rate that
    has fewer seeds than another is none to choose. None where nothing is recorded."""
    path = recorded_path(scale)
    return _own_rate(path, path.stat().st_mtime_ns, scale, task, arm) if path.is_file() else None


def at_own_rates(
    arms: Sequence[Arm],
    tasks: Sequence[str],
    scale: str,
    seeds: int | Iterable[int] | None = None,
    source: str | None = None,
) -> list[RunConfig]:
    """`grid`; where runs of a task are recorded and are to be read (`source`, None = the environment's), each arm at
    its own rate. Arms that are not recorded are then left out, and `seeds=None` are the seeds that all of them have.
    """
    if check_source(source) == "trained":
        return grid(arms, tasks, scale=scale, seeds=seeds)
    configs = []
    for task in tasks:
        rates = {str(arm): own_rate(task, str(arm), scale) for arm in arms}
        known = {arm: rate for arm, rate in rates.items() if rate}
        if not known:
            configs += grid(arms, [task], scale=scale, seeds=seeds)
            continue
        shared = sorted(set.intersection(*(set(own) for _, own in known.values())))
        here = (shared or None) if seeds is None else seeds  # None: the scale's own number
        configs += [c.but(lr=known[c.arm][0]) for c in grid(list(known), [task], scale=scale, seeds=here)]
    return unique(configs)


USUAL_S = 4e-6
"""Seconds of a unit of `relative_cost` where no run is recorded that tells."""


@lru_cache(maxsize=8)
def _seconds(path: Path, mtime_ns: int) -> dict[tuple[str, str], float]:
    """(task, arm) → the least seconds that a recorded run took, a layer, a step and a unit of width: least, because
    some were recorded while the machine did other things as well."""
    frame = pd.read_parquet(path, columns=["task", "arm", "steps", "n_layers", "d_model", "status", "wall_s"])
    frame = frame[frame.status == "ok"]
    return (frame.wall_s / _size(frame)).groupby([frame.task, frame.arm]).min().to_dict()


def _size(run: pd.DataFrame | RunConfig) -> pd.Series | int:
    return run.steps * run.n_layers * (run.d_model + 16)


def weight(config: RunConfig) -> float:
    """About how many seconds a run takes, judged by the recorded ones of its task and arm, or of its task: which one
    goes first, and how much of a sweep is done."""
    path = recorded_path(config.scale)
    known = _seconds(path, path.stat().st_mtime_ns) if path.is_file() else {}
    like = [seconds for (task, _), seconds in known.items() if task == config.task]
    if not like:
        return USUAL_S * relative_cost(config)
    batch = config.batch_size / base_config(config.task, config.scale, arm=config.arm).batch_size
    return known.get((config.task, config.arm), statistics.median(like)) * _size(config) * batch
