"""The learning rate of each arm that recorded tuning runs choose, and its recorded seeds."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from mambanorm.arms import Arm
from mambanorm_study.basics.settings import check_source
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import grid, is_test_seed, is_tuning_seed, setting_id, unique
from mambanorm_study.runs.presets import LANGUAGE_TASKS
from mambanorm_study.runs.recorded_results import recorded_path

COLUMNS = (
    *("run_id", "task", "arm", "lr", "seed", "status"),
    *("best_val_accuracy", "chance", "best_val_loss", "chance_loss"),
)


class RecordedLR(NamedTuple):
    """The learning rate chosen for an arm, and the seeds recorded at it: test seeds, else tuning
    seeds.
    """

    lr: float
    seeds: tuple[int, ...]


def recorded_lr(task: str, arm: str, scale: str) -> RecordedLR | None:
    """Return the recorded learning rate with the best mean validation score on the tuning seeds.

    Only runs count that differ from the task's settings at this scale in arm, learning rate and
    seed alone. Returns None if no tuning run is recorded.
    """
    path = recorded_path(scale)
    return _choose_lr(path, path.stat().st_mtime_ns, task, arm) if path.is_file() else None


@lru_cache(maxsize=512)  # the run_ids of all rows take some 20 ms
def _choose_lr(path: Path, mtime_ns: int, task: str, arm: str) -> RecordedLR | None:
    rows, scale = _read_scores(path, mtime_ns), path.stem
    rows = rows[(rows.task == task) & (rows.arm == arm)]
    run_ids = [
        setting_id(task, scale, arm, lr, seed) for lr, seed in zip(rows.lr, rows.seed, strict=True)
    ]
    rows = rows[rows.run_id == run_ids]
    tuning = rows[rows.seed.map(is_tuning_seed)]
    if tuning.empty:
        return None
    lr = best_lr(tuning)
    seeds = sorted(rows.seed[rows.lr == lr].tolist())
    test_seeds = [seed for seed in seeds if is_test_seed(seed)]
    return RecordedLR(lr, tuple(test_seeds or filter(is_tuning_seed, seeds)))


def best_lr(rows: pd.DataFrame) -> float:
    """Return the learning rate with the highest mean score, of equals the smallest.

    rows: lr and score of each run. A learning rate with fewer runs than another cannot win.
    """
    scores = rows.groupby("lr").score.agg(["mean", "count"])
    complete = scores[scores["count"] == scores["count"].max()]
    return float(complete["mean"].round(9).idxmax())


@lru_cache(maxsize=8)
def _read_scores(path: Path, mtime_ns: int) -> pd.DataFrame:
    """Return the recorded runs with their validation score.

    It is the accuracy (chance if the run diverged); for language models minus the loss.
    """
    frame = pd.read_parquet(path, columns=list(COLUMNS)).drop_duplicates("run_id")
    converged = frame.status != "diverged"
    accuracy = frame.best_val_accuracy.where(converged, frame.chance)
    loss = frame.best_val_loss.where(converged, frame.chance_loss)
    frame["score"] = accuracy.where(~frame.task.isin(LANGUAGE_TASKS), -loss)
    return frame.dropna(subset="score")


def recorded_seeds(task: str, scale: str) -> tuple[int, ...]:
    """Return the seeds on which most arms of a task are recorded at a scale; () if none is."""
    path = recorded_path(scale)
    if not path.is_file():
        return ()
    rows = _read_scores(path, path.stat().st_mtime_ns)
    chosen = [recorded_lr(task, arm, scale) for arm in rows.arm[rows.task == task].unique()]
    counts = Counter(choice.seeds for choice in chosen if choice)
    return max(counts, key=lambda seeds: (counts[seeds], len(seeds)), default=())


def grid_at_recorded_lr(
    arms: Sequence[Arm],
    tasks: Sequence[str],
    scale: str,
    seeds: int | Iterable[int] | None = None,
    source: str | None = None,
    *,
    whole: bool = False,
) -> list[RunConfig]:
    """Return `grid`, with each recorded arm at its recorded learning rate if runs are to be read.

    source: "trained" gives the plain grid; None = the environment's. seeds: None = those that all
    recorded arms share, else those of most arms of the task. Arms that are not recorded are left
    out of a task with recorded arms, unless `whole`.
    """
    if check_source(source) == "trained":
        return grid(arms, tasks, scale=scale, seeds=seeds)
    configs = []
    for task in tasks:
        choices = {str(arm): recorded_lr(task, str(arm), scale) for arm in arms}
        chosen = {arm: choice for arm, choice in choices.items() if choice}
        task_seeds = seeds
        if seeds is None:
            task_seeds = _shared_seeds(list(chosen.values())) or recorded_seeds(task, scale) or None
        task_arms = arms if whole or not chosen else list(chosen)
        for config in grid(task_arms, [task], scale=scale, seeds=task_seeds):
            choice = chosen.get(config.arm)
            configs.append(config.but(lr=choice.lr) if choice else config)
    return unique(configs)


def _shared_seeds(choices: list[RecordedLR]) -> list[int]:
    """Return the sorted seeds that all of them have."""
    return sorted(set.intersection(*(set(choice.seeds) for choice in choices))) if choices else []
