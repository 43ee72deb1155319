"""All runs of the verdicts: train, let the grids of learning rates grow, train again, add the summaries.

verdict_runs    the configs of several claims, once each
train_verdicts  trains what is missing → the run frame, until no arm asks for a further learning rate
until_grown     the same for any question
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from mambanorm.basics.settings import default_scale
from mambanorm.claims.hypotheses import CLAIMS, Claim, find_claim
from mambanorm.claims.needed import needed
from mambanorm.claims.protocol import TRAINED_TASKS, planned_seeds
from mambanorm.claims.summaries import with_summaries
from mambanorm.config import RunConfig
from mambanorm.training.grid import check_seeds, unique
from mambanorm.training.store import load_runs

VERDICT_TASKS = ("digits", "digits_images")
"""The tasks of the verdicts, unless asked otherwise: a task of sequences, and the same data as images."""


def verdict_runs(
    claims: Iterable[str] | None = None,
    *,
    seeds: int | Iterable[int] | None = None,
    tasks: Iterable[str] | None = None,
    scale: str | None = None,
    runs_dir: str | Path | None = None,
    frame: pd.DataFrame | None = None,
) -> list[RunConfig]:
    """The configs that the claims need (None = all claims, those seeds and tasks that the protocol plans: 8 seeds and
    VERDICT_TASKS, at evening its own).

    The results of `frame` (None = those of the store, of the seeds that are asked for: no other run is looked at) may
    ask for learning rates beyond the three of every arm.
    """
    scale = default_scale() if scale is None else scale
    tasks = (TRAINED_TASKS if scale == "evening" else VERDICT_TASKS) if tasks is None else tasks
    asked = [
        (claim, check_seeds(planned_seeds(claim.id, scale) if seeds is None else seeds, scale))
        for claim in map(find_claim, _listed(claims))
    ]
    if frame is None:  # without the seeds that no claim asks for, of which a store may hold many more
        frame = load_runs(runs_dir, scale=scale, seed=sorted({seed for _, own in asked for seed in own}))
    return unique(config for claim, own in asked for config in needed(claim, own, tasks, scale, _of(frame, own)))


def _of(frame: pd.DataFrame, seeds: Iterable[int]) -> pd.DataFrame:
    """The runs of these seeds: others do not make their grids grow."""
    return frame[frame.seed.isin(list(seeds))] if len(frame) else frame


def _listed(claims: str | Claim | Iterable[str | Claim] | None) -> list[str | Claim]:
    """All claims for None; a single claim becomes a list of one. ValueError for an empty list."""
    if claims is None or isinstance(claims, str | Claim):
        return list(CLAIMS) if claims is None else [claims]
    if not (claims := list(claims)):
        raise ValueError("claims must be a list of claims such as ['H1s'], got []")
    return claims


def train_verdicts(
    claims: Iterable[str] | None = None,
    *,
    seeds: int | Iterable[int] | None = None,
    tasks: Iterable[str] | None = None,
    scale: str | None = None,
    runs_dir: str | Path | None = None,
    **engine: Any,
) -> pd.DataFrame:
    """Trains what the claims lack and returns their run frame with its summaries; `engine` = sweep's scheduler,
    workers, client, progress. Rows of runs that could not be trained have status "failed"."""
    scale = default_scale() if scale is None else scale
    claims = _listed(claims)
    asked = dict(seeds=seeds, tasks=tasks, scale=scale, runs_dir=runs_dir)
    frame, _ = until_grown(lambda: verdict_runs(claims, **asked), runs_dir, **engine)
    return with_summaries(frame, runs_dir)


def until_grown(
    ask: Callable[[], list[RunConfig]], runs_dir: str | Path | None, **engine: Any
) -> tuple[pd.DataFrame, list[RunConfig]]:
    """Trains what is asked for, again and again until its results ask for no more; a round adds a rate to some arms.
    ValueError if nothing is asked for."""
    from mambanorm.training.sweep import sweep  # here: what a claim needs is told without torch and Dask

    configs: list[RunConfig] = []
    if not ask():
        raise ValueError("there is nothing to train: none of these claims is about these tasks (see `mambanorm tasks`)")
    while (more := ask()) != configs:
        configs, frame = more, sweep(more, runs_dir=runs_dir, **engine)
    return frame, configs
