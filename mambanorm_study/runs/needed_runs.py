"""Trains runs that depend on other runs, such as test runs at the learning rate of tuning runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import unique
from mambanorm_study.runs.recorded_results import recorded, recorded_path
from mambanorm_study.runs.store import load_runs

# A function that takes the frame of known runs and returns the configs of all needed runs.
FindNeeded = Callable[[pd.DataFrame], list[RunConfig]]


def known_runs(
    scale: str, runs_dir: str | Path | None = None, *frames: pd.DataFrame | None
) -> pd.DataFrame:
    """Return one frame of the runs in the store, `frames` and recorded results, each run once."""
    stored = load_runs(runs_dir, scale=scale)
    recorded_frame = recorded(scale) if recorded_path(scale).is_file() else None
    known = [f for f in (stored, *frames, recorded_frame) if f is not None and len(f)]
    return pd.concat(known, ignore_index=True).drop_duplicates("run_id") if known else stored


class TrainedRuns(NamedTuple):
    """Result of `train_needed`: known runs, rows of failed runs, configs of all needed runs."""

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
    """Train the runs that `find_needed` returns and that are not known yet.

    New results may make further runs needed, so this is repeated until no run is missing. A failed
    run is not tried again. options: scheduler, workers, client and progress of `sweep`. Raises
    ValueError if no run is needed at all.
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
            sweep,  # needs torch and Dask, which listing runs does not
        )

        rows = sweep(missing, runs_dir=runs_dir, **options)
        failed.append(rows[rows.status == "failed"])
