"""One claim on one task → its comparisons as rows: effect, bounds, threshold, and what the row says.

A row has one state:

    holds        the bounds lie wholly above the threshold
    fails        wholly below
    near         they hold the threshold, and lie within one threshold of it (two one-sided tests): ≈ threshold
    open         anything else: more seeds could tell
    imprecise    open, but not even 100 seeds would tell
    untestable   these runs cannot tell, whatever their number, for the reason in `why` (untestable.py)

The two bounds have levels of their own (protocol.py): the lower one is where the row may hold, the upper one where it
may fail. bounds.py computes them. `plain` is the 95 % t-interval of the seeds, with none of that.

    rows_of       all comparisons of a claim on a task
    divergence    how many runs of each arm diverged
    run_ids       the runs that one comparison is made of
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from mambanorm.claims.bounds import Noise, Risk, half_width, seeds_to_tell, state_of
from mambanorm.claims.comparisons import ACCURACIES, MEASURED, ON_TEST_ROWS, TEXT_PARTS, Comparison
from mambanorm.claims.evidence import Evidence, Paired, Splits, splits_of
from mambanorm.claims.failures import failing_ids, failure_cells, failure_rows
from mambanorm.claims.hypotheses import Claim
from mambanorm.claims.parts import Part, parts_of
from mambanorm.claims.protocol import MOST_SEEDS, ONE_SIDED, levels
from mambanorm.claims.untestable import NO_VARIANCE, untestable
from mambanorm.study.intervals import clopper_pearson, fisher, t_interval
from mambanorm.study.paper import paper_values

Row = dict[str, object]
STATES = ("fails", "untestable", "imprecise", "open", "near", "holds")
"""From the weakest to the strongest for the claim."""


def rows_of(claim: Claim, evidence: Evidence, task: str, tasks: int = 1) -> list[Row]:
    """The comparisons as rows; one without any run has n = 0. `tasks`: how many share one verdict."""
    if claim.runs == "failure":
        return failure_rows(claim, evidence, task)
    paired, rows = evidence.paired(claim, task), []
    parts, splits = parts_of(claim, paired), splits_of(task, evidence.scale)
    m = sum(part.comparison.decides for part in parts)
    for part in parts:
        one_sided = levels(claim, m, tasks) if part.comparison.decides else (ONE_SIDED, ONE_SIDED)
        rows.append(_row(claim, task, paired, part, one_sided, splits))
    return rows


def _row(claim: Claim, task: str, paired: Paired, part: Part, one_sided: tuple[float, float], splits: Splits) -> Row:
    comparison, values = part.comparison, part.values[np.isfinite(part.values)]
    n, threshold = len(values), claim.threshold_of(comparison)
    facts = dict(task=task, comparison=comparison.name, effect=float(values.mean()) if n else np.nan, n=n)
    facts |= dict(threshold=threshold, unit=comparison.unit, decides=comparison.decides)
    facts |= dict(paper=printed(claim, comparison, task), per_seed=values.tolist(), why="", seeds_to_tell=None)
    facts |= dict(errors=_errors(paired, part))
    if n < 2:
        return facts | dict(low=np.nan, high=np.nan, plain=(np.nan, np.nan), state="open")
    alike = values.std(ddof=1) < 1e-9
    noise, risks = _noise(paired, part, values, splits), tuple(_risks(paired, part, sign) for sign in (1, -1))
    low, high = (half_width(noise, n, *side) for side in zip(one_sided, risks, strict=True))
    low, high = float(facts["effect"] - low), float(facts["effect"] + high)
    facts |= dict(low=low, high=high, plain=t_interval(values), state=state_of(low, high, threshold))
    why = untestable(claim, paired, part, facts, splits)
    why = why or (NO_VARIANCE if alike and facts["state"] in ("open", "near") else "")
    if why:
        return facts | dict(state="untestable", why=why)
    if facts["state"] == "open":
        needed = seeds_to_tell(facts["effect"] - threshold, noise, n, one_sided, abs(threshold), risks)
        shared = ", because they share one test set" if splits.fixed else ""
        shared = ", because their splits overlap" if noise.ratio else shared
        why = "" if needed else f"not even {MOST_SEEDS} seeds would tell{shared}"
        facts |= dict(seeds_to_tell=needed, why=why, state="open" if needed else "imprecise")
    return facts


def _errors(paired: Paired, part: Part) -> tuple[float, float]:
    """Per cent of the test rows that each side gets wrong: where little is left to gain, a point is much."""
    if part.comparison.column not in ACCURACIES or not paired.seeds:
        return np.nan, np.nan
    accuracy = paired.columns[part.comparison.column]
    one, other = (float(100 - part.side(sign, accuracy).mean()) for sign in (1, -1))
    return one, other


def _noise(paired: Paired, part: Part, values: np.ndarray, splits: Splits) -> Noise:
    """Numbers on the inside are not measured on test rows. Where all seeds give the same difference, their spread is
    taken to be that of counting test rows."""
    column = part.comparison.column
    if column not in ON_TEST_ROWS:
        return Noise(values.std(ddof=1), 0.0, 0.0)
    if column == "bits":
        return Noise(values.std(ddof=1), 0.0, _reading(paired, part))
    counting = _counting(paired, part) / splits.test_rows
    sd = values.std(ddof=1)
    accuracy = column in ACCURACIES
    sd = np.sqrt(counting) if sd < 1e-9 and accuracy else sd
    return Noise(sd, 0.0, counting if accuracy else 0.0) if splits.fixed else Noise(sd, splits.ratio, 0.0)


def _reading(paired: Paired, part: Part) -> float:
    """Variance of the comparison from one test text to another, bits²: from how much its mean over the seeds differs
    between the consecutive parts of the text that all seeds share. NaN where a run lacks these parts."""
    used = (part.weights != 0).any(axis=1)
    of_parts = [(part.weights * paired.columns[name])[used].sum(axis=0).mean() for name in TEXT_PARTS]
    return float(np.var(of_parts, ddof=1) / len(of_parts))


def _counting(paired: Paired, part: Part) -> float:
    """Variance of the comparison when one row is counted, points²: of the two sides as if their errors fell on rows of
    their own, which is more than what models of one task have."""
    total = 0.0
    for sign in (1, -1):
        weight = np.maximum(sign * part.weights, 0.0).sum(axis=0).mean()
        column = part.comparison.column
        accuracy = paired.columns[column if column in ACCURACIES else "score"]
        p = np.clip(part.side(sign, accuracy).mean() / 100, 0.01, 0.99) if weight else 0.5
        total += 1e4 * weight**2 * p * (1 - p)
    return float(total)


def _risks(paired: Paired, part: Part, sign: int) -> tuple[Risk, ...]:
    """What unseen divergence may cost the arms on one side, arm by arm and for all of them at once."""
    column = part.comparison.column
    if paired.tried is None or column not in ON_TEST_ROWS:
        return ()
    ended = paired.columns["diverged"]  # (arms, seeds), of the runs in the mean
    finite = np.maximum((1 - ended).sum(axis=1), 1)
    accuracy = paired.columns[column if column in MEASURED else "score"]
    lost = np.maximum((accuracy - paired.columns["chance"]).sum(axis=1) / finite, 0.0)
    seen = ended.mean(axis=1)
    if part.comparison.column == "spread":
        return _risks_of_spread(paired, part, sign, lost, seen)
    mean = sign * part.weights.mean(axis=1)
    mine = np.flatnonzero(mean > 0)
    counts = np.stack([paired.failed, paired.tried], axis=1).astype(int).tolist()
    one = [Risk(float(mean[i] * lost[i]), 0.0, float(seen[i]), *counts[i]) for i in mine]
    if len(one) < 2:
        return tuple(one)
    linear = sum(risk.linear for risk in one)
    off = sum(risk.linear * risk.seen for risk in one) / linear if linear else 0.0
    return (*one, Risk(linear, 0.0, off, sum(risk.failed for risk in one), sum(risk.tried for risk in one)))


def _risks_of_spread(paired: Paired, part: Part, sign: int, lost: np.ndarray, seen: np.ndarray) -> tuple[Risk, ...]:
    """An arm whose mean falls by x, from c off its side's mean, changes the variance of a arms by (x²(1 − 1/a) − 2xc) /
    (a − 1): more spread of the narrow side, or less of the wide one, is what the comparison loses."""
    risks = []
    for side in (1, -1):
        mine = np.flatnonzero((side * part.weights > 0).all(axis=1))
        means, a = paired.columns["score"][mine].mean(axis=1), len(mine)
        for i, off in zip(mine, means - means.mean(), strict=True):
            loses = -side * sign  # what widens the narrow side is lost to the claim
            linear, square = -2 * lost[i] * off / (a - 1), lost[i] ** 2 * (1 - 1 / a) / (a - 1)
            counts = int(paired.failed[i]), int(paired.tried[i])
            risks.append(Risk(float(loses * linear), float(loses * square), float(seen[i]), *counts))
    return tuple(risks)


# ---------------------------------------------------------------------------------------------------------------------
# beside the rows


def divergence(claim: Claim, evidence: Evidence, task: str) -> list[Row]:
    """One row an arm: how many of its runs diverged, at all its rates, the exact interval of the rate, and Fisher's p
    against the claim's reference arm (NaN without one). Of the claim on failures (H9) the arms where models fail.
    """
    if claim.runs == "failure":
        ids = failing_ids(evidence.scale, evidence.test_seeds or (0,))
        found = {arm: evidence.diverged(mine) for arm, mine in ids.items()}
        counts = {arm: (int(np.nansum(runs)), int(np.isfinite(runs).sum())) for arm, runs in found.items()}
    else:
        paired = evidence.paired(claim, task)
        counts = {arm: (int(k), int(n)) for arm, (k, n) in zip(paired.arms, paired.diverged.tolist(), strict=True)}
    rows = []
    other_k, other_n = counts.get(claim.reference, (0, 0))
    for arm, (k, n) in counts.items():
        low, high = clopper_pearson(k, n) if n else (np.nan, np.nan)
        p = fisher(k, n, other_k, other_n) if n and other_n and arm != claim.reference else np.nan
        rows.append(dict(task=task, arm=arm, diverged=k, n=n, rate=k / n if n else np.nan, low=low, high=high, p=p))
    return rows


def run_ids(claim: Claim, evidence: Evidence, task: str, comparison: str) -> list[str]:
    """The runs that the comparison of that name is made of, each at the rate that the decision used."""
    if claim.runs == "failure":
        return [run_id for ids in failure_cells(evidence)[comparison].values() for run_id in ids]
    paired = evidence.paired(claim, task)
    part = next(part for part in parts_of(claim, paired) if part.comparison.name == comparison)
    return [run_id for run_id in paired.ids[part.weights != 0] if run_id is not None]


@lru_cache(maxsize=16)
def _printed(kind: str, task: str) -> dict[str, float]:
    values = paper_values(kind)
    return dict(values[values.task == task].set_index("arm").accuracy)


def printed(claim: Claim, comparison: Comparison, task: str) -> float:
    """The same weighted sum of the paper's numbers, in points; NaN if the paper does not print them all.

    Numbers of the main experiments stand beside every task. Numbers that the paper prints on a task that this kit has
    (ListOps, for H8s) stand beside that task only.
    """
    if not claim.printed_on or (claim.paper_task and task != claim.paper_task.lower()):
        return float("nan")
    accuracy = _printed(claim.kind, claim.printed_on)
    plain = comparison.column == "score" and claim.runs == "tuned"
    if not plain or not all(arm in accuracy for arm in comparison.weights):
        return float("nan")
    return round(100 * sum(weight * accuracy[arm] for arm, weight in comparison.weights.items()), 4)
