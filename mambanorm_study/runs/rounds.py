"""Training in rounds: which runs are needed next may depend on results, as test runs do on the
tuned learning rate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import unique
from mambanorm_study.runs.recorded_results import recorded, recorded_path
from mambanorm_study.runs.store import load_runs

Ask = Callable[[pd.DataFrame], list[RunConfig]]
"""A function from the runs that are known to the runs that are needed."""


def known_runs(
    scale: str, runs_dir: str | Path | None = None, *frames: pd.DataFrame | None
) -> pd.DataFrame:
    """Return the runs of a store, then those of further frames that it lacks, then those that the
    kit records."""
    kit = recorded(scale) if recorded_path(scale).is_file() else None
    own = load_runs(runs_dir, scale=scale)
    found = [frame for frame in (own, *frames, kit) if frame is not None and len(frame)]
    return pd.concat(found, ignore_index=True).drop_duplicates("run_id") if found else own


class Trained(NamedTuple):
    known: pd.DataFrame  # the runs that are known now
    failed: pd.DataFrame  # the rows of runs that could not be trained
    asked: list[RunConfig]  # all runs that were needed


def train_asked(
    ask: Ask, scale: str, runs_dir: str | Path | None, *frames: pd.DataFrame | None, **engine: Any
) -> Trained:
    """Train what `ask` needs and no frame has, round by round, until it needs nothing more.

    `engine`: sweep's scheduler, workers, client, progress. ValueError if nothing is needed at all.
    """
    asked: list[RunConfig] = []
    failed: list[pd.DataFrame] = []
    while True:
        known = known_runs(scale, runs_dir, *frames)
        before, asked = {config.run_id for config in asked}, unique([*asked, *ask(known)])
        if not asked:
            raise ValueError(
                "there is nothing to train: none of these claims is about these tasks (`mambanorm tasks`)"
            )
        missing = [c for c in asked if c.run_id not in before and c.run_id not in set(known.run_id)]
        if not missing:
            return Trained(known, pd.concat(failed) if failed else known.iloc[:0], asked)
        from mambanorm_study.runs.sweep import (
            sweep,
        )  # here, because listing the runs needs neither torch nor Dask

        rows = sweep(missing, runs_dir=runs_dir, **engine)
        failed.append(rows[rows.status == "failed"])
