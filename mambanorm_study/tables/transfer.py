"""Pretraining and fine-tuning in two phases, compared with training from scratch.

The comparison is that of S2 (docs/sources.md), §IV.C.3: a model that was pretrained on another task
is trained on, at first its head alone and then all its weights. Beside it stand the same model
without pretraining, and the pretrained model with all weights trained from the first step on.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from mambanorm_study.basics.settings import check_source
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.presets import TABLES
from mambanorm_study.runs.recorded_results import recorded_ids
from mambanorm_study.tables.experiments import (
    PRETRAINED_ON,
    RECORDED_TRANSFERS,
    TRANSFER_ARMS,
    transfer_runs,
)
from mambanorm_study.tables.intervals import t_interval
from mambanorm_study.tasks import load_task

# The differences a − b that `differences` returns, as descriptions of `transfer_runs`.
DIFFERENCES = (
    ("all at once", "from scratch"),
    ("head first", "from scratch"),
    ("head first", "all at once"),
)


def load_or_train(
    task: str,
    scale: str,
    seeds: int | Iterable[int] | None = None,
    *,
    source: str | None = None,
    **engine: Any,
) -> pd.DataFrame:
    """Return `differences` on a task in PRETRAINED_ON.

    Runs that are neither recorded nor stored are trained. If the files of a task are missing, the
    result is that of the recorded runs of scale quick. seeds: None means the recorded ones.
    source, engine: as in `sweep`.
    """
    # imported here, so that the import of this module does not load Dask
    from mambanorm_study.runs.sweep import sweep

    recorded_seeds = range(RECORDED_TRANSFERS[task])
    runs = transfer_runs(task, scale, recorded_seeds if seeds is None else seeds)
    is_trained = check_source(source) == "trained" or not _ids(runs) <= recorded_ids([scale])
    if is_trained and not _data_are_there(task, scale):
        runs, source = transfer_runs(task, "quick", recorded_seeds), "recorded"
    configs = [config for configs in runs.values() for config in configs]
    return differences(runs, sweep(configs, source=source, **engine))


def _ids(runs: Mapping[str, list[RunConfig]]) -> set[str]:
    return {config.run_id for configs in runs.values() for config in configs}


def _data_are_there(task: str, scale: str) -> bool:
    """Return True if the data of a task and of its pretraining can be loaded."""
    try:
        for name in (task, PRETRAINED_ON[task]):
            load_task(name, scale, 0)
    except (ValueError, OSError):
        return False
    return True


def differences(runs: Mapping[str, list[RunConfig]], frame: pd.DataFrame) -> pd.DataFrame:
    """Return the paired differences between the ways to train, one row for each arm and pair of
    DIFFERENCES.

    runs: as `transfer_runs` returns them. frame: their run frame. Columns: task (with the arm),
    arm, a, b, difference (mean), low and high (95 % t-interval), n (number of seeds), per_seed, and
    means (of a and of b). The unit is a point of test accuracy or, for a table, the unit of the
    RMSE; there a negative difference is an improvement.
    """
    results = frame.drop_duplicates("run_id").set_index("run_id")
    task = runs["from scratch"][0].task
    values = results.rmse if task in TABLES else 100 * results.test_accuracy
    rows = []
    for arm in TRANSFER_ARMS:
        by_seed = {
            name: pd.Series({c.seed: values[c.run_id] for c in configs if c.arm == arm})
            for name, configs in runs.items()
        }
        for a, b in DIFFERENCES:
            per_seed = (by_seed[a] - by_seed[b]).dropna()
            low, high = t_interval(per_seed)
            rows.append(
                {
                    "task": f"{task}, {arm}",
                    "arm": arm,
                    "a": a,
                    "b": b,
                    "difference": per_seed.mean(),
                    "low": low,
                    "high": high,
                    "n": len(per_seed),
                    "per_seed": per_seed.tolist(),
                    "means": (by_seed[a].mean(), by_seed[b].mean()),
                }
            )
    return pd.DataFrame(rows)
