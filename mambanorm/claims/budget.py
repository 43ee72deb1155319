"""Fast or good? A claim over the training budget, and over the size of the model.

over_budget     claims, run frame → a row for each claim, task and share of the steps
over_size       the same for widths and depths
still_rising    how many runs at all steps were best in their last tenth
in_words        the verdicts over the budget as one: "reproduced early, gone when trained"

The rule is the one of every verdict. Each budget has a schedule and a choice of learning rates of its own; so a short
run is no cut of a long one. The verdict of a scale is the one at all of its steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from mambanorm.claims.claim import SMALLEST_BITS
from mambanorm.claims.evidence import Evidence
from mambanorm.claims.hypotheses import find_claim
from mambanorm.claims.judged_on import kind_of, tasks_of
from mambanorm.claims.verdict import VERDICTS, Verdict, judge
from mambanorm.study.experiments import BUDGETS, SIZES, at_budget
from mambanorm.training.config import base_config

RISING = 1 / 3
"""The largest share of runs that may be best in their last tenth, at a scale whose models are called trained."""

COLUMNS = (
    "claim", "task", "setting", "share", "steps", "verdict", "comparison", "effect", "low", "high", "n", "threshold",
    "unit",
)  # fmt: skip


def over_budget(claims: Iterable[str], frame: pd.DataFrame, scale: str = "evening") -> pd.DataFrame:
    """A row for each claim, each of its tasks in the frame and each share of BUDGETS with runs: the verdict there, and
    the comparison that decides at all steps, with its bounds."""
    rows = []
    for claim, task in _pairs(claims, frame, scale):
        settings = {f"steps × {share:g}": at_budget(task, scale, share) for share in BUDGETS}
        for row, share in zip(_over(claim, frame, scale, task, settings), BUDGETS, strict=True):
            rows.append(row | dict(share=share))
    return _frame(rows)


def over_size(claims: Iterable[str], frame: pd.DataFrame, scale: str = "evening", share: float = 1 / 4) -> pd.DataFrame:
    """The same for the scale's own width and depth and for those of SIZES, all at one share of the steps."""
    rows = []
    for claim, task in _pairs(claims, frame, scale):
        steps, own = at_budget(task, scale, share), base_config(task, scale)
        sizes = [{}, *SIZES]
        names = [f"d {own.but(**size).d_model}, {own.but(**size).n_layers} blocks" for size in sizes]
        settings = dict(zip(names, (steps | size for size in sizes), strict=True))
        rows += [row | dict(share=share) for row in _over(claim, frame, scale, task, settings, reference=names[0])]
    return _frame(rows)


def _pairs(claims: Iterable[str], frame: pd.DataFrame, scale: str) -> list[tuple[str, str]]:
    tasks = Evidence(frame, scale).tasks
    return [(name, task) for name in claims for task in tasks_of(find_claim(name), tasks, scale)]


def _over(
    claim: str,
    frame: pd.DataFrame,
    scale: str,
    task: str,
    settings: Mapping[str, Mapping[str, Any]],
    reference: str = "",
) -> list[dict[str, Any]]:
    """A row for each setting. The comparison is the one that decides in `reference`, or in the last one; where that one
    was not run, each setting's own."""
    found = {
        name: judge(claim, frame, scale=scale, tasks=[task], changes=changes) for name, changes in settings.items()
    }
    decided = found[reference or list(settings)[-1]].decided_by
    rows = []
    for (name, verdict), changes in zip(found.items(), settings.values(), strict=True):
        row = dict(claim=claim, task=task, setting=name, verdict=verdict.verdict, n=verdict.n_seeds)
        steps = changes.get("steps") or base_config(task, scale).steps
        rows.append(row | dict(steps=steps) | _comparison(verdict, decided or verdict.decided_by))
    return rows


def _comparison(verdict: Verdict, name: str) -> dict[str, Any]:
    rows = [row for row in verdict.records if row["comparison"] == name]
    row = rows[0] if rows else dict(effect=np.nan, low=np.nan, high=np.nan)
    kept = {field: row[field] for field in ("effect", "low", "high")}
    return kept | dict(comparison=name, threshold=verdict.threshold, unit=verdict.unit)


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    found = pd.DataFrame(rows, columns=list(COLUMNS))
    return found[found.verdict != "not run"].reset_index(drop=True)


def still_rising(frame: pd.DataFrame, scale: str = "evening") -> pd.DataFrame:
    """A row for each task: its runs with all steps, those that diverged, and the share of the others whose best step,
    by validation, lies in the last tenth. On a plateau it is about a tenth by chance; `RISING` is the most that the
    protocol lets pass as trained. A loss falls a little for as long as its schedule lasts; so of language models it is
    the share to which the last tenth was worth the smallest effect of interest (`late_gain` of summaries.py)."""
    rows = []
    for task, runs in frame[frame.scale == scale].groupby("task", sort=False):
        own = base_config(task, scale)
        ids = [own.but(arm=row.arm, seed=row.seed, lr=row.lr).run_id for row in runs.itertuples()]
        runs = runs[runs.run_id == ids]
        whole = runs[runs.status == "ok"]
        late = whole.best_step > 0.9 * own.steps
        late = whole.late_gain >= SMALLEST_BITS if kind_of(task) == "language" else late
        late = float(late.mean()) if len(whole) else np.nan
        rows.append(dict(task=task, runs=len(runs), diverged=len(runs) - len(whole), late=late, trained=late <= RISING))
    return pd.DataFrame(rows, columns=["task", "runs", "diverged", "late", "trained"])


def in_words(verdicts: Sequence[str]) -> str:
    """The verdicts from the shortest to the longest training as one.

    `reproduced, from the first steps on`; `reproduced early, gone when trained`; `inconclusive early, reproduced when
    trained`."""
    told = [word for word in verdicts if word in VERDICTS[:5]]
    if not told:
        return "not run"
    early, late = told[0], told[-1]
    if len(told) == 1:
        return late
    if set(told) == {late}:
        return f"{late}, from the first steps on"
    gone = early == "reproduced" and late in ("contradicted", "≈ threshold")
    return f"{early} early, {'gone' if gone else late} when trained"
