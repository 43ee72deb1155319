"""The runs that claims rest on: which they are, which of them a run frame lacks, and training them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from mambanorm.arms import Arm
from mambanorm.basics.settings import check_scale, default_scale
from mambanorm.claims.claim import Claim
from mambanorm.claims.evidence import Evidence, check_changes, fixed_runs, tasks_of
from mambanorm.claims.frames import of_seeds
from mambanorm.claims.hypotheses import CLAIMS, find_claim
from mambanorm.claims.protocol import LAST, TRAINED_TASKS, planned_seeds
from mambanorm.claims.rows import run_ids
from mambanorm.claims.verdict import Verdict
from mambanorm.config import RunConfig
from mambanorm.runs.grid import base_config, check_names, check_seeds, check_task, grid, unique
from mambanorm.runs.store import load_runs
from mambanorm.study.experiments import inside_task, lr_grid, model_of
from mambanorm.study.summaries import with_summaries

VERDICT_TASKS = ("digits", "digits_images")  # unless asked otherwise: sequences, and the same data as images


def needed(
    claim_id: str | Claim,
    seeds: int | Iterable[int] | None = 8,
    tasks: Iterable[str] | None = None,
    scale: str | None = None,
    frame: pd.DataFrame | None = None,
    changes: Mapping[str, Any] | None = None,
) -> list[RunConfig]:
    """The configs of all runs that a claim rests on, on these tasks (None = those planned first at evening,
    else the one of §4.6); an empty list where no task of it is asked for. The results in a frame may add learning rates
    to an arm's grid: train, then ask again with it, until nothing is missing.
    `changes`: fields in which they differ from those of the scale, such as dict(d_model=16); not for claims of §4.6.
    ValueError for seeds from 100 to 299, which are no test seeds."""
    claim, scale = find_claim(claim_id), default_scale() if scale is None else check_scale(scale)
    trained = scale == "evening" and claim.runs == "tuned"
    planned = [task for task in TRAINED_TASKS if task not in LAST] if trained else [inside_task(scale)]
    tasks = planned if tasks is None else check_names("tasks", tasks)
    seeds, tasks = check_seeds(seeds, scale), tasks_of(claim, tasks, scale)
    if taken := [seed for seed in seeds if base_config(seed=seed).role != "test"]:
        raise ValueError(f"test seeds are 0 to 99, got {taken}: those from 100 to 299 are no test seeds")
    check_changes(claim, changes)
    if claim.runs != "tuned":
        return unique(fixed_runs(claim, scale, seeds)) if tasks else []
    changes = dict(changes or {})
    evidence, configs = Evidence(frame, scale, changes=changes), []
    for task in tasks:
        for rate in lr_grid(task, scale, model_of(claim.arms)):
            configs += grid(claim.arms, [task], scale=scale, seeds=seeds, lr=rate, **changes)
        for arm, rate in evidence.further_rates(claim.arms, task):
            configs += grid([arm], [task], scale=scale, seeds=seeds, lr=rate, **changes)
    return configs


def chosen_lr(frame: pd.DataFrame, arm: str, task: str, *, scale: str | None = None) -> float:
    """The learning rate of an arm: the best mean validation over its test seeds, a diverged run counting as chance.
    ValueError if a rate of the grid was not run: a choice among only some would be unfair."""
    runs = Evidence(frame, scale).tuned((str(Arm.parse(arm)),), check_task(task))
    if runs.gaps or not runs.usable(0):
        why = next(iter(runs.gaps.values()), "no seed was run at every rate")
        raise ValueError(f"{arm} is not tuned on {task}: {why}. Train it first, see mambanorm.needed")
    return float(runs.lr[0])


def runs_behind(verdict: Verdict, frame: pd.DataFrame) -> pd.DataFrame:
    """The runs behind the comparison that decides: the rows of its arms on its task, at the learning rates that the
    decision used. No row for a claim that was not run."""
    if not verdict.n_seeds:
        return frame.iloc[:0]
    evidence, row = Evidence(frame, verdict.scale), verdict.turns_on
    return frame[frame.run_id.isin(run_ids(verdict.claim, evidence, row["task"], row["comparison"]))]


def verdict_runs(
    claims: Iterable[str] | None = None,
    *,
    seeds: int | Iterable[int] | None = None,
    tasks: Iterable[str] | None = None,
    scale: str | None = None,
    runs_dir: str | Path | None = None,
) -> list[RunConfig]:
    """The configs that the claims need (None = all claims, those seeds and tasks that the protocol plans: 8 seeds and
    VERDICT_TASKS, at evening its own), with the rates beyond the three of every arm for which the store's results ask.
    """
    scale = default_scale() if scale is None else scale
    tasks = VERDICT_TASKS if tasks is None and scale != "evening" else tasks
    asked = [
        (claim, check_seeds(planned_seeds(claim.id, scale) if seeds is None else seeds, scale))
        for claim in map(find_claim, CLAIMS if claims is None else check_names("claims", claims))
    ]
    frame = load_runs(runs_dir, scale=scale, seed=sorted({seed for _, own in asked for seed in own}))
    return unique(config for claim, own in asked for config in needed(claim, own, tasks, scale, of_seeds(frame, own)))


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
    asked = dict(seeds=seeds, tasks=tasks, scale=scale, runs_dir=runs_dir)
    claims = claims if claims is None else check_names("claims", claims)
    frame, _ = until_grown(lambda: verdict_runs(claims, **asked), runs_dir, **engine)
    return with_summaries(frame, runs_dir, again=claims is None or not {"H15v", "H16s"}.isdisjoint(claims))


def until_grown(
    ask: Callable[[], list[RunConfig]], runs_dir: str | Path | None, **engine: Any
) -> tuple[pd.DataFrame, list[RunConfig]]:
    """Trains what is asked for, again and again until its results ask for no more; a round adds a rate to some arms.
    ValueError if nothing is asked for."""
    from mambanorm.runs.sweep import sweep  # here: what a claim needs is told without torch and Dask

    configs: list[RunConfig] = []
    if not ask():
        raise ValueError("there is nothing to train: none of these claims is about these tasks (see `mambanorm tasks`)")
    while (more := ask()) != configs:
        configs, frame = more, sweep(more, runs_dir=runs_dir, **engine)
    return frame, configs
