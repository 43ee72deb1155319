"""One claim on one task → its comparisons as rows: effect, intervals, threshold, and whether it holds or fails.

contrast    the weighted sum of arms, seed by seed: paired t
spread      the same of |accuracy − median| over the arms (Brown–Forsythe's deviations)
failure     rates, exact intervals
run_ids     the runs that one comparison is made of
selected    the comparison that is made of each group, or the hardest rival, both chosen on the select seeds
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import groupby

import numpy as np
import pandas as pd

from mambanorm.claims.comparisons import Comparison
from mambanorm.claims.evidence import Evidence
from mambanorm.claims.hypotheses import Claim
from mambanorm.model.arms import Arm
from mambanorm.study.experiments import FEW_ROWS, failing_runs, failure_runs
from mambanorm.study.intervals import (
    brown_forsythe,
    clopper_pearson,
    deviations,
    fisher,
    sign_flip_interval,
    simultaneous,
    t_interval,
)
from mambanorm.study.paper import paper_values
from mambanorm.training.config import SELECT_SEEDS, RunConfig

Row = dict[str, object]
STATES = ("fails", "open", "holds")


def rows_of(claim: Claim, evidence: Evidence, task: str) -> tuple[list[Row], str]:
    """The comparisons as rows, and the name of the one that is the hardest rival ("" if the claim has none).

    A comparison without any run has n = 0.
    """
    if claim.measure == "failure":
        return failure_rows(claim, evidence, task), ""
    comparisons, rival = selected(claim, evidence, task)
    tables = {column: evidence.table(claim, task, column) for column in {c.column for c in comparisons}}
    measure = MEASURES[claim.measure]
    m = claim.m * evidence.families
    return [row(claim, task, c, measure(tables[c.column], c).dropna(), m) for c in comparisons], rival


def row(claim: Claim, task: str, comparison: Comparison, values: pd.Series, m: int) -> Row:
    """One comparison of m from its per-seed values."""
    facts = dict(task=task, comparison=comparison.name, effect=float(values.mean()), n=len(values))
    low, high = t_interval(values, simultaneous(m))
    each_low, each_high = t_interval(values)
    facts |= dict(low=low, high=high, each_low=each_low, each_high=each_high)
    facts |= dict(
        threshold=claim.threshold_of(comparison), paper=printed(claim, comparison, task), unit=comparison.unit
    )
    return judged(claim, facts | dict(per_seed=values.tolist()))


def judged(claim: Claim, facts: Row) -> Row:
    """Adds `state`, and `main`: whether the row takes part in the decision."""
    low = facts["each_low"] if claim.correction == "each" else facts["low"]
    state = "holds" if low > facts["threshold"] else "fails" if facts["high"] < facts["threshold"] else "open"
    return facts | dict(state=state, main=claim.main in ("", facts["comparison"]))


def by_sign_flip(claim: Claim, rows: list[Row], m: int) -> list[Row] | None:
    """The rows, of m comparisons, with inverted sign-flip intervals; None where there are too few seeds for one."""
    again = []
    for facts in rows:
        low, high = sign_flip_interval(facts["per_seed"], simultaneous(m))
        if not np.isfinite(low):
            return None
        each_low, each_high = sign_flip_interval(facts["per_seed"])
        again.append(judged(claim, facts | dict(low=low, high=high, each_low=each_low, each_high=each_high)))
    return again


def contrast(table: pd.DataFrame, comparison: Comparison) -> pd.Series:
    """The weighted sum of the arms by seed; NaN where one of them has no run with that seed."""
    arms = list(comparison.weights)
    if not arms:
        return pd.Series(np.nan, index=table.index)
    return pd.Series(table[arms].to_numpy() @ np.array(list(comparison.weights.values())), index=table.index)


def spread(table: pd.DataFrame, comparison: Comparison) -> pd.Series:
    """Mean |y − median| over the arms with a positive weight minus the same over those with a negative one, by seed."""
    wide, narrow = sides(comparison)
    gap = deviations(table[wide].to_numpy(), axis=1) - deviations(table[narrow].to_numpy(), axis=1)
    return pd.Series(gap, index=table.index)


def sides(comparison: Comparison) -> tuple[list[str], list[str]]:
    """The arms with positive and those with negative weight."""
    weights = comparison.weights.items()
    return [arm for arm, weight in weights if weight > 0], [arm for arm, weight in weights if weight < 0]


MEASURES: dict[str, Callable[[pd.DataFrame, Comparison], pd.Series]] = {"contrast": contrast, "spread": spread}


def selected(claim: Claim, evidence: Evidence, task: str) -> tuple[list[Comparison], str]:
    """The comparisons that are made, and the hardest rival, both chosen by validation on the select seeds. All select
    seeds are needed: a group that lacks one becomes an empty comparison with the group's name."""
    if not claim.select:
        return list(claim.comparisons), ""
    table = evidence.table(claim, task, "validation", SELECT_SEEDS)
    means = {c.name: contrast(table, c).mean(skipna=False) for c in claim.comparisons}
    if claim.select == "rival":
        known = all(np.isfinite(mean) for mean in means.values())
        return list(claim.comparisons), min(means, key=means.get) if known else ""
    made = []
    for group, members in groupby(claim.comparisons, key=lambda c: c.group):
        members = list(members)
        known = all(np.isfinite(means[c.name]) for c in members)
        made.append(max(members, key=lambda c: means[c.name]) if known else Comparison(group, {}))
    return made, ""


def failure_cells(evidence: Evidence) -> dict[str, list[RunConfig]]:
    """The runs of each cell of depth × learning rate, by the name of its comparison."""
    few, cells = FEW_ROWS[evidence.scale] if evidence.variant else 0, {}
    for config in failure_runs(evidence.scale, evidence.test_seeds or [0], few):
        cells.setdefault(f"None→None, {config.n_layers} blocks, lr {config.lr:g}", []).append(config)
    return cells


def failure_rows(claim: Claim, evidence: Evidence, task: str) -> list[Row]:
    """The share of non-finite ends in each cell of depth × learning rate, in per cent."""
    cells = failure_cells(evidence)
    rows = []
    for name, configs in cells.items():
        k, n = evidence.counts(configs)
        facts = dict(task=task, comparison=name, effect=100 * k / n if n else np.nan)
        low, high, each_low, each_high = (np.nan,) * 4
        if n:
            low, high = (100 * end for end in clopper_pearson(k, n, simultaneous(len(cells))))
            each_low, each_high = (100 * end for end in clopper_pearson(k, n))
        facts |= dict(
            low=low, high=high, each_low=each_low, each_high=each_high, n=n, threshold=claim.threshold, unit=claim.unit
        )
        rows.append(judged(claim, facts | dict(paper=np.nan, per_seed=[100.0] * k + [0.0] * (n - k))))
    return rows


def run_ids(claim: Claim, evidence: Evidence, task: str, comparison: str) -> list[str]:
    """The test runs that the comparison of that name is made of, those that the frame lacks included."""
    if claim.measure == "failure":
        return [config.run_id for config in failure_cells(evidence)[comparison]]
    arms = next(c.weights for c in claim.comparisons if c.name == comparison)
    by_seed = evidence.run_ids(claim, task, evidence.test_seeds)
    return [one for ids in by_seed for arm, one in zip(claim.arms, ids, strict=True) if arm in arms]


def divergence(claim: Claim, evidence: Evidence, task: str) -> list[Row]:
    """One row an arm: how many of its runs diverged, the exact interval of the rate, and Fisher's p against the claim's
    reference arm (NaN without one). For the claim on failures (H9), the controls at the settings that fail."""
    if claim.measure == "failure":
        counts: dict[str, tuple[int, int]] = {}
        runs = sorted(failing_runs(evidence.scale, evidence.test_seeds or [0]), key=lambda c: c.arm)
        counts = {arm: evidence.counts(mine) for arm, mine in groupby(runs, key=lambda c: c.arm)}
    else:
        table = evidence.table(claim, task, "diverged")
        counts = {arm: (int(table[arm].sum()), int(table[arm].count())) for arm in claim.arms}
    rows = []
    for arm, (k, n) in counts.items():
        low, high = clopper_pearson(k, n) if n else (np.nan, np.nan)
        other_k, other_n = counts.get(claim.reference, (0, 0))
        p = fisher(k, n, other_k, other_n) if n and other_n and arm != claim.reference else np.nan
        rows.append(dict(task=task, arm=arm, diverged=k, n=n, rate=k / n if n else np.nan, low=low, high=high, p=p))
    return rows


def classical_spread(claim: Claim, evidence: Evidence, task: str) -> float:
    """p of the unpaired Brown–Forsythe test over all runs, one group an N2; NaN where a run is missing."""
    table = evidence.table(claim, task).dropna()
    columns: dict[str, list[str]] = {}
    for arm in claim.arms:
        columns.setdefault(Arm.parse(arm).n2, []).append(arm)
    return brown_forsythe(*(table[arms].to_numpy().ravel() for arms in columns.values())) if len(table) else np.nan


@lru_cache(maxsize=16)
def _printed(kind: str, task: str) -> dict[str, float]:
    values = paper_values(kind)
    return dict(values[values.task == task].set_index("arm").accuracy)


def printed(claim: Claim, comparison: Comparison, task: str) -> float:
    """The same weighted sum of the paper's numbers, in points; NaN if the paper does not print them all.

    Numbers of the main experiments stand beside every task. Numbers that the paper prints on a task that this kit has
    (ListOps, for H8s) stand beside that task only.
    """
    if claim.paper_task and task != claim.paper_task.lower():
        return float("nan")
    accuracy = _printed(claim.kind, claim.printed_on)
    plain = claim.measure == "contrast" and comparison.column == "score" and comparison.weights
    if not plain or not all(arm in accuracy for arm in comparison.weights):
        return float("nan")
    return round(100 * sum(weight * accuracy[arm] for arm, weight in comparison.weights.items()), 4)
