"""Trains runs that depend on the results of other runs.

For example, test runs use the learning rate that tuning runs selected.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import unique
from mambanorm_study.runs.recorded_results import recorded, recorded_path
from mambanorm_study.runs.store import load_runs

# A function that takes the run frame (one row per run) of all known runs and returns the configs of
# all needed runs, known or not.
FindNeeded = Callable[[pd.DataFrame], list[RunConfig]]


def known_runs(
    scale: str, runs_dir: str | Path | None = None, *frames: pd.DataFrame | None
) -> pd.DataFrame:
    """Return one run frame with the runs of the store, of `frames` and of the recorded results.

    Only runs of `scale` are read from the store and the recorded results. The run frame has one row
    per run; of a run that occurs more than once, it has the first row in the order above.
    """
    stored = load_runs(runs_dir, scale=scale)
    recorded_frame = recorded(scale) if recorded_path(scale).is_file() else None
    known = [f for f in (stored, *frames, recorded_frame) if f is not None and len(f)]
    return pd.concat(known, ignore_index=True).drop_duplicates("run_id") if known else stored


class TrainedRuns(NamedTuple):
    """Result of `train_needed`.

    known: run frame (one row per run) of all known runs. failed: run frame of the failed runs.
    needed: configs of all needed runs.
    """

    known: pd.DataFrame
    failed: pd.DataFrame
    needed: list[RunConfig]


def train_needed(
    find_needed: FindNeeded,
    scale: str,
    runs_dir: str | Path | None,
    *frames: pd.DataFrame | None,
    **options: Any,
) -> TrainedRuns:
    """Train the runs whose configs `find_needed` returns, except those that are known already.

    New results may make further runs needed, so `find_needed` is called again after each training,
    until no run is missing. A failed run is not tried again.

    frames: run frames of further known runs (`known_runs`). options: scheduler, workers, client and
    progress of `sweep`. Raises ValueError if no run is needed at all.
    """
    needed: list[RunConfig] = []
    failed: list[pd.DataFrame] = []
    while True:
        known = known_runs(scale, runs_dir, *frames)
        done = {config.run_id for config in needed}.union(known.run_id)
        needed = unique([*needed, *find_needed(known)])
        if not needed:
            raise ValueError(
                "there is nothing to train: none of these claims is about these tasks "
                "(`mambanorm tasks`)"
            )
        missing = [config for config in needed if config.run_id not in done]
        if not missing:
            return TrainedRuns(known, pd.concat(failed) if failed else known.iloc[:0], needed)
        from mambanorm_study.runs.sweep import (
            sweep,  # imports torch and Dask, which listing runs does not need
        )

        rows = sweep(missing, runs_dir=runs_dir, **options)
        failed.append(rows[rows.status == "failed"])
