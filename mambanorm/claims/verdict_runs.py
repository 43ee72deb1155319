"""All runs of the verdicts: train, let the grids of learning rates grow, train again, add the summaries.

verdict_runs    the configs of several claims, once each
train_verdicts  trains what is missing → the run frame, until no arm asks for a further learning rate
recorded_configs, record_results    the same with the runs of the study → data/results
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from mambanorm.atomic import writable_folder
from mambanorm.claims.hypotheses import CLAIMS, Claim
from mambanorm.claims.needed import needed
from mambanorm.claims.protocol import SAME_RUNS, VERSION, commit_in_force
from mambanorm.claims.summaries import with_summaries
from mambanorm.settings import default_scale
from mambanorm.study.experiments import STUDY_TASKS, leaves_grid_out, study
from mambanorm.text import plural
from mambanorm.training.config import RunConfig, check_names, check_seeds, unique
from mambanorm.training.presets import TABLES
from mambanorm.training.recorded_results import read_results, recorded_path, write_recorded
from mambanorm.training.store import load_runs
from mambanorm.training.sweep import sweep

VERDICT_SEEDS = 8
"""Test seeds of a verdict, unless asked otherwise; fewer than 6 are a sketch."""

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
    """The configs that the claims need (None = all claims, 8 seeds, VERDICT_TASKS).

    The results of `frame` (None = those of the store) may ask for learning rates beyond the three of every arm.
    """
    scale = default_scale() if scale is None else scale
    seeds = check_seeds(VERDICT_SEEDS if seeds is None else seeds, scale)
    tasks = VERDICT_TASKS if tasks is None else tasks
    frame = load_runs(runs_dir, scale=scale) if frame is None else frame
    return unique(c for claim in _listed(claims) for c in needed(claim, seeds, tasks, scale, _of(frame, seeds)))


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
    claims, seeds = _listed(claims), check_seeds(VERDICT_SEEDS if seeds is None else seeds, scale)
    asked = dict(seeds=seeds, tasks=tasks, scale=scale, runs_dir=runs_dir)
    frame, _ = _until_grown(lambda: verdict_runs(claims, **asked), runs_dir, **engine)
    return with_summaries(frame, runs_dir)


def _until_grown(
    ask: Callable[[], list[RunConfig]], runs_dir: str | Path | None, **engine: Any
) -> tuple[pd.DataFrame, list[RunConfig]]:
    """Trains what is asked for, again and again until its results ask for no more; a round adds a rate to some arms."""
    configs: list[RunConfig] = []
    while (more := ask()) != configs:
        configs, frame = more, sweep(more, runs_dir=runs_dir, **engine)
    return frame, configs


def recorded_configs(
    scale: str | None = None,
    *,
    seeds: int | Iterable[int] | None = None,
    tasks: Iterable[str] | None = None,
    runs_dir: str | Path | None = None,
    frame: pd.DataFrame | None = None,
) -> list[RunConfig]:
    """What recorded results hold (None = the environment's scale, 8 seeds, the study's tasks): the runs of the study
    and of the verdicts. A task that is left out of the grid at that scale is not asked for claims that need the grid.
    """
    scale = default_scale() if scale is None else scale
    seeds = check_seeds(VERDICT_SEEDS if seeds is None else seeds, scale)
    tasks = check_names("tasks", STUDY_TASKS if tasks is None else tasks)
    frame, configs = load_runs(runs_dir, scale=scale) if frame is None else frame, []
    for task in (task for task in tasks if task not in TABLES):  # no claim is about a regression
        claims = [name for name, claim in CLAIMS.items() if not (claim.needs_grid and leaves_grid_out(task, scale))]
        configs += verdict_runs(claims, seeds=seeds, tasks=[task], scale=scale, frame=frame)
    configs += [config for runs in study(scale, tasks, seeds).values() for config in runs]
    return unique(configs)


def record_results(scale: str | None = None, *, path: str | Path | None = None, **asked: Any) -> Path:
    """Trains `recorded_configs` and writes the recorded results of a scale; returns their path.

    `asked`: its keywords and sweep's scheduler, workers, client, progress. Each row names the protocol that was in
    force before this recording began, and its commit; a run that was recorded before keeps its own. RuntimeError if a
    run could not be trained; nothing is then written. OSError, before anything is trained, if the file's folder cannot
    be written to.
    """
    engine = {name: asked.pop(name) for name in ("scheduler", "workers", "client", "progress") if name in asked}
    runs_dir, protocol = asked.get("runs_dir"), commit_in_force()
    path = (recorded_path(scale) if path is None else Path(path)).resolve()
    writable_folder(path.parent, "the recorded results")
    frame, configs = _until_grown(lambda: recorded_configs(scale, **asked), runs_dir, **engine)
    frame = with_summaries(frame, runs_dir)
    if failed := int((frame.status == "failed").sum()):
        raise RuntimeError(f"{plural(failed, 'run')} could not be trained: nothing is recorded")
    write_recorded(_named(frame.assign(protocol=VERSION, protocol_commit=protocol), path), configs, path)
    return path


def _named(frame: pd.DataFrame, path: Path) -> pd.DataFrame:
    """The frame with the protocols that the file at `path` names for the runs that it has as they are now."""
    names = ["protocol", "protocol_commit"]
    before = read_results(path) if path.is_file() else pd.DataFrame(columns=["run_id", "git_commit", *names])
    if not {*names} <= {*before.columns}:
        return frame
    known = frame[["run_id", "git_commit"]].merge(before[["run_id", "git_commit", *names]], how="left")
    known.index = frame.index
    kept = known.protocol.isin(SAME_RUNS)
    return frame.assign(**{name: known[name].where(kept, frame[name]).astype(frame[name].dtype) for name in names})
