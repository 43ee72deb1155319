"""The runs that a claim rests on, and which of them a run frame lacks.

needed      claim, seeds, tasks, scale → the configs; with a frame, also the rates that it asks for beyond the grid
missing     those of them that a frame does not hold
chosen_lr   the learning rate of an arm: the best validation accuracy over the test seeds
runs_behind the runs on which a verdict turned
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from mambanorm.arms import Arm
from mambanorm.basics.settings import check_scale, default_scale
from mambanorm.claims import effects
from mambanorm.claims.evidence import Evidence
from mambanorm.claims.hypotheses import Claim, find_claim
from mambanorm.claims.judged_on import check_changes, fixed_runs, tasks_of, variants
from mambanorm.claims.verdict import Verdict
from mambanorm.config import RunConfig
from mambanorm.study.experiments import inside_task, lr_grid, model_of
from mambanorm.training.grid import base_config, check_names, check_seeds, check_task, grid, unique


def needed(
    claim_id: str | Claim,
    seeds: int | Iterable[int] | None = 8,
    tasks: Iterable[str] | None = None,
    scale: str | None = None,
    frame: pd.DataFrame | None = None,
    changes: Mapping[str, Any] | None = None,
) -> list[RunConfig]:
    """The configs of all runs that a claim rests on; an empty list where no task of it is asked for. `changes`: fields
    in which they differ from those of the scale, such as dict(d_model=16); not for claims of §4.6.

    With a frame, the rates by which its results make an arm's grid grow are among them: train, then ask again, until
    nothing is missing. ValueError for test seeds from 100 on, which have other roles.
    """
    claim, scale = find_claim(claim_id), default_scale() if scale is None else check_scale(scale)
    tasks = [inside_task(scale)] if tasks is None else check_names("tasks", tasks)
    seeds, tasks = check_seeds(seeds, scale), tasks_of(claim, tasks, scale)
    if taken := [seed for seed in seeds if base_config(seed=seed).role != "test"]:
        raise ValueError(f"test seeds are 0 to 99, got {taken}: those from 100 on are no test seeds")
    check_changes(claim, changes)
    if claim.runs != "tuned":
        asked = range(len(variants(claim, scale)) if tasks else 0)
        return unique(config for variant in asked for config in fixed_runs(claim, scale, seeds, variant))
    changes = dict(changes or {})
    evidence, configs = Evidence(frame, scale, changes=changes), []
    for task in tasks:
        for rate in lr_grid(task, scale, model_of(claim.arms)):
            configs += grid(claim.arms, [task], scale=scale, seeds=seeds, lr=rate, **changes)
        for arm, rate in evidence.further_rates(claim.arms, task):
            configs += grid([arm], [task], scale=scale, seeds=seeds, lr=rate, **changes)
    return configs


def missing(
    claim_id: str | Claim,
    frame: pd.DataFrame,
    seeds: int | Iterable[int] | None = 8,
    tasks: Iterable[str] | None = None,
    scale: str | None = None,
) -> list[RunConfig]:
    """Those of `needed` that the frame does not hold; a failed run counts as missing."""
    held = set(Evidence(frame, scale).index)
    return [config for config in needed(claim_id, seeds, tasks, scale, frame) if config.run_id not in held]


def chosen_lr(frame: pd.DataFrame, arm: str, task: str, *, scale: str | None = None) -> float:
    """The learning rate with the best mean validation accuracy over the test seeds; the smaller of equals.

    A diverged run counts as chance. ValueError if a rate of the grid was not run: a choice among only some would be
    unfair.
    """
    paired = Evidence(frame, scale).tuned((str(Arm.parse(arm)),), check_task(task))
    if paired.gaps or not paired.seeds:
        why = (*paired.gaps, *paired.left_out, "no test run")[0]
        raise ValueError(f"{arm} is not tuned on {task}: {why}. Train it first, see mambanorm.needed")
    return float(paired.chosen[0])


def runs_behind(verdict: Verdict, frame: pd.DataFrame, evidence: Evidence | None = None) -> pd.DataFrame:
    """The runs behind the comparison that decides: the rows of its arms on its task, at the learning rates that the
    decision used. No row for a claim that was not run. `evidence`: of the frame, if it has been read."""
    if not verdict.decided_by:
        return frame.iloc[:0]
    evidence = evidence or Evidence(frame, verdict.scale)
    ids = [
        name
        for row in verdict.records
        if verdict.decided_by in (f"{row['comparison']} on {row['task']}", row["comparison"])
        and row["task"] in verdict.tasks
        for name in effects.run_ids(verdict.claim, evidence, row["task"], row["comparison"])
    ]
    return frame[frame.run_id.isin(ids)]
