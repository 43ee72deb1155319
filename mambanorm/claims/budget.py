"""Fast or good? A claim over the training budget, and over the size of the model.

over_budget     claims, run frame → a row for each claim, task and share of the steps
over_size       the same for widths and depths
still_rising    how many runs at all steps were best in their last tenth

The rule is the one of every verdict. Each budget has a schedule and a choice of learning rates of its own; so a short
run is no cut of a long one. The verdict of a scale is the one at all of its steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from mambanorm.claims.evidence import Evidence, tasks_of
from mambanorm.claims.hypotheses import CLAIMS, find_claim
from mambanorm.claims.rule import RISING
from mambanorm.claims.verdict import Verdict, judge
from mambanorm.runs.grid import base_config
from mambanorm.study.experiments import BUDGETS, SIZES, at_budget

COLUMNS = (
    "claim", "task", "setting", "share", "steps", "verdict", "comparison", "state", "effect", "low", "high", "n",
    "threshold", "unit", "decided",
)  # fmt: skip

ASKED = tuple(name for name in CLAIMS if name[:-1] in ("H1", "H2", "H3", "H4", "H8"))
"""The claims that notebook 12 follows over the budget: no norm, type, place, GN's place and the proposal."""


def over_budget(claims: Iterable[str], frame: pd.DataFrame, scale: str = "evening") -> pd.DataFrame:
    """A row for each claim, each of its tasks in the frame and each share of BUDGETS with runs: the verdict there, and
    the comparison that decides at all steps, with its state and bounds. Where all steps have not been run, it is the
    one that decides there, and `decided` says so. ValueError for a claim of §4.6, which has no budget."""
    rows, evidence = [], Evidence(frame, scale)
    for claim, task in _pairs(claims, evidence):
        settings = {f"steps × {share:g}": at_budget(task, scale, share) for share in BUDGETS}
        for row, share in zip(_over(claim, frame, evidence, task, settings), BUDGETS, strict=True):
            rows.append(row | dict(share=share))
    return _frame(rows)


def over_size(claims: Iterable[str], frame: pd.DataFrame, scale: str = "evening", share: float = 1 / 4) -> pd.DataFrame:
    """The same for the scale's own width and depth and for those of SIZES, all at one share of the steps. All sizes are
    judged on the seeds that they share: otherwise the one with more seeds would look the surest."""
    rows, evidence = [], Evidence(frame, scale)
    for claim, task in _pairs(claims, evidence):
        steps, own = at_budget(task, scale, share), base_config(task, scale)
        sizes = [{}, *SIZES]
        names = [f"d {own.but(**size).d_model}, {own.but(**size).n_layers} blocks" for size in sizes]
        settings = dict(zip(names, (steps | size for size in sizes), strict=True))
        rows += [row | dict(share=share) for row in _over(claim, frame, evidence, task, settings, names[0])]
    return _frame(rows)


def _pairs(claims: Iterable[str], evidence: Evidence) -> list[tuple[str, str]]:
    claims = [claims] if isinstance(claims, str) else claims
    return [(name, task) for name in claims for task in tasks_of(find_claim(name), evidence.tasks, evidence.scale)]


def _over(
    claim: str,
    frame: pd.DataFrame,
    evidence: Evidence,
    task: str,
    settings: Mapping[str, Mapping[str, Any]],
    reference: str = "",
) -> list[dict[str, Any]]:
    """A row for each setting. The comparison is the one that decides in `reference`, or in the last one; where that one
    was not run, each setting's own. `evidence`: of the frame."""
    scale = evidence.scale
    runs = _shared_seeds(claim, frame, evidence, task, settings.values())
    found = {name: judge(claim, runs, scale=scale, tasks=[task], changes=changes) for name, changes in settings.items()}
    reference = reference or list(settings)[-1]
    decided, rows = found[reference].decided_by, []
    for (name, verdict), changes in zip(found.items(), settings.values(), strict=True):
        row = dict(claim=claim, task=task, setting=name, verdict=verdict.verdict, n=verdict.n_seeds)
        row |= dict(steps=changes.get("steps") or base_config(task, scale).steps, decided=reference if decided else "")
        rows.append(row | _comparison(verdict, decided or verdict.decided_by))
    return rows


def _shared_seeds(
    claim: str, frame: pd.DataFrame, evidence: Evidence, task: str, settings: Iterable[Mapping[str, Any]]
) -> Evidence:
    """The runs of the seeds that all settings have; a setting without a whole seed is not asked."""
    asked = (Evidence(evidence, changes=changes).tuned(find_claim(claim).arms, task) for changes in settings)
    seeds = [set(one.whole_seeds) for one in asked if one.whole_seeds]
    shared = set.intersection(*seeds) if seeds else set(evidence.seeds[task])
    if shared == set(evidence.seeds[task]):
        return evidence
    return Evidence(frame[frame.seed.isin(shared) & (frame.task == task)], evidence.scale)


def _comparison(verdict: Verdict, name: str) -> dict[str, Any]:
    rows = [row for row in verdict.records if row["comparison"] == name]
    row = rows[0] if rows else dict(effect=np.nan, low=np.nan, high=np.nan, state="")
    kept = {field: row[field] for field in ("effect", "low", "high", "state")}
    return kept | dict(comparison=name, threshold=verdict.threshold, unit=verdict.unit)


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    found = pd.DataFrame(rows, columns=list(COLUMNS))
    return found[found.n > 0].reset_index(drop=True)


def still_rising(frame: pd.DataFrame, scale: str = "evening") -> pd.DataFrame:
    """A row for each task and arm: its runs with all steps, at its rate, that did not diverge, and the share of them
    whose best step, by validation, lies in the last tenth (`late`). On a plateau it is about a tenth by chance;
    `RISING` is the most that the protocol lets pass as trained. A loss falls a little for as long as its schedule
    lasts; so of language models it is the share to which the last tenth was worth the smallest effect of interest
    (`late_gain` of summaries.py). NaN where that is not known."""
    evidence, rows = Evidence(frame, scale), []
    for task in evidence.tasks:
        for arm in dict.fromkeys(frame.arm[frame.task == task]):
            runs = evidence.tuned((arm,), task)
            if not runs.gaps and runs.whole_seeds:
                known, late = int(np.isfinite(runs.at("late")).sum()), float(runs.late[0])
                rows.append(dict(task=task, arm=arm, runs=known, late=late, trained=late <= RISING))
    return pd.DataFrame(rows, columns=["task", "arm", "runs", "late", "trained"])
