"""Where a claim is judged: on which tasks, and at which settings the claims of §4.6."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mambanorm.claims.hypotheses import Claim
from mambanorm.config import RunConfig
from mambanorm.study.experiments import (
    FEW_ROWS,
    deep_runs,
    failing_runs,
    failure_runs,
    growth_runs,
    inside_task,
    ladder_runs,
)
from mambanorm.training.presets import LANGUAGE_TASKS, TABLES, VISION_TASKS

KINDS = (
    dict.fromkeys(VISION_TASKS, "vision") | dict.fromkeys(TABLES, "table") | dict.fromkeys(LANGUAGE_TASKS, "language")
)


def tasks_of(claim: Claim, tasks: Iterable[str], scale: str) -> list[str]:
    """Those of the tasks that the claim is about."""
    if claim.runs != "tuned":
        return [task for task in dict.fromkeys(tasks) if task == inside_task(scale)]
    return [task for task in dict.fromkeys(tasks) if kind_of(task) == claim.kind]


def kind_of(task: str) -> str:
    """ "vision", "language", "table" (a regression, of which no claim speaks) or "sequence"."""
    return KINDS.get(task, "sequence")


def check_changes(claim: Claim, changes: Mapping[str, Any] | None) -> None:
    """ValueError for changes of a claim of §4.6."""
    if changes and claim.runs != "tuned":
        raise ValueError(f"{claim.id} is about runs of its own, whose settings are part of the question: no changes")


def variants(claim: Claim, scale: str) -> tuple[str, ...]:
    """The settings at which a claim of §4.6 is judged. The first decides; the other is reported beside it."""
    if claim.runs in ("tuned", "deep", "ladder") or not FEW_ROWS[scale]:
        return ("",)
    return "with all rows", f"with {FEW_ROWS[scale]} training rows"


def fixed_runs(claim: Claim, scale: str, seeds: Iterable[int], variant: int = 0) -> list[RunConfig]:
    """The configs of a claim of §4.6: their learning rate is part of the question."""
    seeds, few = list(seeds), FEW_ROWS[scale] if variant else 0
    if claim.runs == "deep":
        return deep_runs(scale, seeds)
    if claim.runs == "ladder":
        return ladder_runs(claim.arms, scale, seeds)
    if claim.runs == "growth":
        return growth_runs(scale, seeds=seeds, train_rows=few)
    if claim.runs == "failing":
        return [config for config in failing_runs(scale, seeds, few) if config.arm in claim.arms]
    return failure_runs(scale, seeds, few)
