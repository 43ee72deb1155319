"""The claim on failures (H9): in which cells of depth × learning rate do models without norms fail and controls train?

A cell holds if None→None is told to fail in more than half of its runs, the control in fewer than half, and the first
more often than the second by Fisher's exact test. It fails if None→None is told to fail in fewer than half of its runs,
or the control in more than half.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import numpy as np

from mambanorm.claims import gaps
from mambanorm.claims.comparisons import NONE
from mambanorm.claims.evidence import Evidence
from mambanorm.claims.hypotheses import CONTROL, Claim
from mambanorm.claims.protocol import MOST_SEEDS, levels
from mambanorm.study.experiments import FEW_ROWS, failing_runs, failure_runs
from mambanorm.study.intervals import clopper_pearson, fisher_above
from mambanorm.study.tables import SKETCH_BELOW


class Counts(NamedTuple):
    cells: tuple[str, ...]
    failed: np.ndarray  # (cells, 2) of None→None and of the control
    seeds: int
    gaps: list[str]
    left_out: list[str]


@lru_cache(maxsize=64)
def _cells(scale: str, seeds: tuple[int, ...], few: int) -> dict[str, dict[str, tuple[str, ...]]]:
    cells: dict[str, dict[str, tuple[str, ...]]] = {}
    for config in failure_runs(scale, seeds, few):
        by_arm = cells.setdefault(f"None→None fails, {config.n_layers} blocks, lr {config.lr:g}", {})
        by_arm[config.arm] = (*by_arm.get(config.arm, ()), config.run_id)
    return cells


@lru_cache(maxsize=64)
def failing_ids(scale: str, seeds: tuple[int, ...]) -> dict[str, tuple[str, ...]]:
    """Of the settings of Figure 10: arm → run ids."""
    runs = sorted(failing_runs(scale, seeds), key=lambda config: config.arm)
    return {arm: tuple(config.run_id for config in mine) for arm, mine in groupby(runs, key=lambda config: config.arm)}


def failure_cells(evidence: Evidence) -> dict[str, dict[str, tuple[str, ...]]]:
    """The run ids of each cell, one a test seed, by the name of its comparison and by arm."""
    few = FEW_ROWS[evidence.scale] if evidence.variant else 0
    return _cells(evidence.scale, evidence.test_seeds or (0,), few)


def count(evidence: Evidence) -> Counts:
    """How many runs of each cell failed, of the seeds that have every run; what is missing is named."""
    cells, seeds = failure_cells(evidence), evidence.test_seeds or (0,)
    diverged = np.array([[evidence.diverged(by_arm[arm]) for arm in (NONE, CONTROL)] for by_arm in cells.values()])
    there = np.isfinite(diverged)  # (cells, 2, seeds)
    nowhere = ~there.any(axis=2, keepdims=True)
    some, whole = there.any(axis=(0, 1)), (there | nowhere).all(axis=(0, 1))
    names = [f"{cell}, {gaps.label(arm)}" for cell in cells for arm in (NONE, CONTROL)]
    absent = [f"not run: {name}" for name, no in zip(names, nowhere.ravel(), strict=True) if no and some.any()]
    left_out = []
    for k in np.flatnonzero(some & ~whole):
        first = names[int(np.flatnonzero(~(there | nowhere)[:, :, k].ravel())[0])]
        left_out.append(f"seed {seeds[k]} left out: {first} not run")
    kept = some & whole
    failed = np.nansum(diverged[:, :, kept], axis=2).astype(int)
    return Counts(tuple(cells), failed, int(kept.sum()), absent, left_out)


def failure_rows(claim: Claim, evidence: Evidence, task: str) -> list[dict[str, object]]:
    """One row a cell: the share of None→None's runs that fail, in per cent, with its exact bounds."""
    counts, rows = count(evidence), []
    one_sided = levels(claim, len(counts.cells))
    for name, (k, others) in zip(counts.cells, counts.failed.tolist(), strict=True):
        n = counts.seeds
        facts = dict(task=task, comparison=name, effect=100 * k / n if n else np.nan, n=n, paper=np.nan, decides=True)
        facts |= dict(threshold=claim.threshold, unit=claim.unit, why="", seeds_to_tell=None, state="open")
        facts |= dict(per_seed=[100.0] * k + [0.0] * (n - k), low=np.nan, high=np.nan, plain=(np.nan, np.nan))
        rows.append(facts | (_told(claim, k, others, n, one_sided) if n else {}))
    return rows


def _told(claim: Claim, k: int, others: int, n: int, one_sided: tuple[float, float]) -> dict[str, object]:
    low, high = _bounds(k, n, one_sided)
    facts = dict(low=low, high=high, plain=tuple(100 * end for end in clopper_pearson(k, n)))
    facts |= dict(state=_state(k, others, n, one_sided), why=f"{gaps.label(CONTROL)} there: {others} of {n}")
    if facts["state"] != "open":
        return facts
    steps = (
        m
        for m in range(SKETCH_BELOW, MOST_SEEDS + 1)
        if _state(round(k * m / n), round(others * m / n), m, one_sided) != "open"
    )
    facts["seeds_to_tell"] = next(steps, None)
    return facts if facts["seeds_to_tell"] else facts | dict(state="imprecise")


def _bounds(k: int, n: int, one_sided: tuple[float, float]) -> tuple[float, float]:
    lower, upper = one_sided
    return 100 * clopper_pearson(k, n, 1 - 2 * lower)[0], 100 * clopper_pearson(k, n, 1 - 2 * upper)[1]


def _state(k: int, others: int, n: int, one_sided: tuple[float, float]) -> str:
    (low, high), flipped = _bounds(k, n, one_sided), one_sided[::-1]
    control_low, control_high = _bounds(others, n, flipped)
    if high < 50 or control_low > 50:
        return "fails"
    holds = low > 50 and control_high < 50 and fisher_above(k, n, others, n) < one_sided[0]
    return "holds" if holds else "open"
