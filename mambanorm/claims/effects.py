"""One claim on one task → its comparisons as rows: effect, interval, threshold, and what the row says.

A row has one state:

    holds        the interval lies wholly above the threshold
    fails        wholly below
    near         it holds the threshold, and lies within one threshold of it (two one-sided tests): ≈ threshold
    open         anything else: more seeds could tell
    untestable   these runs cannot tell, for the reason in `why`

The interval's two ends have levels of their own (protocol.py): the lower one is where the row may hold, the upper one
where it may fail. Both leave room for what the seeds do not show: the overlap of their splits, and one divergence more
than was seen.

    rows_of       all comparisons of a claim on a task
    divergence    how many runs of each arm diverged
    run_ids       the runs that one comparison is made of
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import groupby

import numpy as np
from scipy import stats

from mambanorm.claims.comparisons import NONE, Comparison
from mambanorm.claims.evidence import Evidence, Paired, overlap
from mambanorm.claims.gaps import label
from mambanorm.claims.hypotheses import CONTROL, Claim
from mambanorm.claims.protocol import MOST_SEEDS, ONE_SIDED, levels
from mambanorm.study.experiments import FEW_ROWS, failing_runs, failure_runs
from mambanorm.study.intervals import clopper_pearson, fisher, fisher_above, t_quantile
from mambanorm.study.paper import paper_values

Row = dict[str, object]
STATES = ("fails", "untestable", "open", "near", "holds")
"""From the weakest to the strongest for the claim."""


def rows_of(claim: Claim, evidence: Evidence, task: str, tasks: int = 1) -> list[Row]:
    """The comparisons as rows; one without any run has n = 0. `tasks`: how many share one verdict."""
    if claim.runs == "failure":
        return failure_rows(claim, evidence, task)
    paired, rows = evidence.paired(claim, task), []
    parts = parts_of(claim, paired)
    m = sum(part.comparison.decides for part in parts)
    ratio = overlap(task, evidence.scale)
    for part in parts:
        lower, upper = levels(claim, m, tasks) if part.comparison.decides else (ONE_SIDED, ONE_SIDED)
        rows.append(_row(claim, task, paired, part, (lower, upper), ratio))
    return rows


class Part:
    """One comparison of a claim, as numbers: `weights` (arms, seeds) differ by seed where one of a group is chosen;
    `values` (seeds,)."""

    def __init__(self, comparison: Comparison, weights: np.ndarray, paired: Paired):
        self.comparison, self.name, self.weights = comparison, comparison.name, weights
        used = (weights != 0).any(axis=1)
        if comparison.column == "spread":
            self.values = _spread(paired.columns["score"], weights)
        else:
            numbers = np.where(used[:, None], paired.columns[comparison.column], 0.0)
            self.values = (weights * numbers).sum(axis=0)

    def side(self, sign: int, numbers: np.ndarray) -> np.ndarray:
        """(seeds,) the mean of numbers (arms, seeds) over the arms on one side of the comparison."""
        mine = np.maximum(sign * self.weights, 0.0)
        return (mine * np.where(mine > 0, numbers, 0.0)).sum(axis=0) / mine.sum(axis=0)


def parts_of(claim: Claim, paired: Paired) -> list[Part]:
    """The comparisons that are made, of each group the one that validation on the other seeds chooses, seed by seed."""
    place = {arm: i for i, arm in enumerate(paired.arms)}
    made = []
    for group, members in groupby(claim.comparisons, key=lambda c: c.group if claim.select == "best" else c.name):
        members = list(members)
        weights = np.zeros((len(members), len(place), len(paired.seeds)))
        for i, member in enumerate(members):
            for arm, weight in member.weights.items():
                weights[i, place[arm]] = weight
        made.append(Part(*_chosen(group, members, weights, paired), paired))
    return made


def _chosen(name: str, members: list[Comparison], weights: np.ndarray, paired: Paired) -> tuple[Comparison, np.ndarray]:
    """The comparison with the largest promise (of most seeds), and its weights (arms, seeds), seed by seed."""
    if len(members) == 1:
        return members[0], weights[0]
    if not paired.seeds:
        return replace(members[0], name=name), weights[0]
    promise = np.where(weights != 0, weights * np.where(np.isfinite(paired.promise), paired.promise, 0.0), 0.0).sum(
        axis=1
    )
    absent = (np.any(weights != 0, axis=2) & ~np.isfinite(paired.promise).all(axis=1)).any(
        axis=1
    )  # a candidate not run
    if absent.any():
        return replace(members[0], name=name), np.full_like(weights[0], np.nan)
    best = np.round(promise, 9).argmax(axis=0)
    most = members[int(np.bincount(best, minlength=len(members)).argmax())]
    return most, np.take_along_axis(weights, best[None, None, :], axis=0)[0]


def _spread(scores: np.ndarray, weights: np.ndarray, signs: tuple[int, ...] = (1, -1)) -> np.ndarray:
    """Variance of the arms' mean scores on the positive side minus that on the negative side, in points²; (seeds,), the
    jackknife's pseudo-values, whose mean is the estimate. `signs`: only these sides.

    Products of *different* seeds have no noise in their mean. So Σ_{j≠k} c_j·c_k / (n(n − 1)(a − 1)) of the a arms'
    centred scores c estimates the variance of their true means without bias, whatever the noise of each arm.
    """
    n = scores.shape[1]
    if n < 3:
        return np.full(n, np.nan)
    gram = np.zeros((n, n))
    for sign in signs:
        mine = scores[(sign * weights > 0).all(axis=1)]
        centred = mine - mine.mean(axis=0)
        gram += sign * (centred.T @ centred) / (len(mine) - 1)
    np.fill_diagonal(gram, 0.0)
    total = gram.sum()
    without = (total - 2 * gram.sum(axis=0)) / ((n - 1) * (n - 2))
    return total / (n - 1) - (n - 1) * without


def _row(claim: Claim, task: str, paired: Paired, part: Part, one_sided: tuple[float, float], ratio: float) -> Row:
    comparison, values = part.comparison, part.values[np.isfinite(part.values)]
    n, threshold = len(values), claim.threshold_of(comparison)
    facts = dict(task=task, comparison=part.name, effect=float(values.mean()) if n else np.nan, n=n)
    facts |= dict(threshold=threshold, unit=comparison.unit, decides=comparison.decides)
    facts |= dict(paper=printed(claim, comparison, task), per_seed=values.tolist(), why="", seeds_to_tell=None)
    if n < 2:
        return facts | dict(low=np.nan, high=np.nan, state="open")
    error = values.std(ddof=1)
    risks = _risks(paired, part, 1), _risks(paired, part, -1)
    width = error * np.sqrt(1 / n + ratio)
    low = facts["effect"] - half_width(width, n, one_sided[0], risks[0])
    high = facts["effect"] + half_width(width, n, one_sided[1], risks[1])
    facts |= dict(low=float(low), high=float(high), state=state_of(low, high, threshold))
    facts["why"] = _untestable(claim, paired, part, facts, error)
    if facts["why"]:
        return facts | dict(state="untestable")
    facts |= _judged_by_rate(paired, part, facts["state"]) if comparison.column == "score" else {}
    if facts["state"] == "open" and not facts["why"]:
        margin = facts["effect"] - threshold
        facts["seeds_to_tell"] = seeds_to_tell(margin, error, n, ratio, one_sided, abs(threshold), risks)
        if facts["seeds_to_tell"] is None:
            why = f"{MOST_SEEDS} seeds would not tell" + (", because their splits overlap" if ratio else "")
            facts |= dict(state="untestable", why=why)
    return facts


def state_of(low: float, high: float, threshold: float) -> str:
    if low > threshold:
        return "holds"
    if high < threshold:
        return "fails"
    near = low > threshold - abs(threshold) and high < threshold + abs(threshold)
    return "near" if near else "open"


def seeds_to_tell(margin: float, sd: float, n: int, ratio: float, one_sided, reach: float, risks) -> int | None:
    """About how many seeds would tell, had they this effect (its distance from the threshold), this spread and this
    share of divergence; None if not even all test seeds. `reach`: half the width of the band that counts as ≈."""

    def told(more: int) -> bool:
        error = sd * np.sqrt(1 / more + ratio)
        grown = [tuple((cost, k * more // n, tried * more // n) for cost, k, tried in side) for side in risks]
        low, high = (half_width(error, more, *side) for side in zip(one_sided, grown, strict=True))
        return margin > low or margin < -high or (margin - low > -reach and margin + high < reach)

    if n >= MOST_SEEDS or not told(MOST_SEEDS):
        return None
    steps = [*range(n + 1, n + 9), *range(n + 10, n + 32, 2), *range(n + 32, MOST_SEEDS, 4), MOST_SEEDS]
    return next(more for more in steps if told(more))


def _risks(paired: Paired, part: Part, sign: int) -> tuple[tuple[float, int, int], ...]:
    """What unseen divergence may cost the arms on one side: (points off the comparison if an arm always diverged, its
    diverged runs, its runs), arm by arm and for all of them at once."""
    if paired.tried is None or part.comparison.column != "score":
        return ()
    lost = np.maximum((paired.columns["score"] - paired.columns["chance"]).mean(axis=1), 0.0)
    mean = sign * part.weights.mean(axis=1)
    mine = np.flatnonzero(mean > 0)
    one = [(float(mean[i] * lost[i]), int(paired.failed[i]), int(paired.tried[i])) for i in mine]
    together = tuple(sum(numbers) for numbers in zip(*one, strict=True))
    return (*one, together) if len(one) > 1 else tuple(one)


def half_width(error: float, n: int, one_sided: float, risks: tuple[tuple[float, int, int], ...]) -> float:
    """How far one end of an interval lies from the mean of n seeds with this standard error.

    An arm that diverges with probability p shows no more divergences than were seen with probability P(p), and costs
    its comparison p times what a divergence costs. So that luck of this kind and of the mean come together in at most
    `one_sided` of studies, the mean is tested at the level one_sided/P(p), for every p.
    """
    width = t_quantile(n - 1, one_sided) * error
    for cost, k, tried in risks:
        p, t = _by_rate(n - 1, one_sided, k, tried)
        width = max(width, float((p * cost + t * error).max(initial=0.0)))
    return width


@lru_cache(maxsize=20_000)
def _by_rate(df: int, one_sided: float, k: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Rates beyond what was seen, k of n, and the quantile of t that goes with each."""
    rates = np.linspace(k / n, clopper_pearson(k, n, 1 - 2 * one_sided)[1], 32, endpoint=False)
    level = np.minimum(one_sided / stats.binom.cdf(k, n, rates), 1 - 1e-9)
    return rates - k / n, stats.t.isf(level, df)


def _judged_by_rate(paired: Paired, part: Part, state: str) -> Row:
    """A side that diverges more often than the other does not win: its row is open. Empty where it does not."""
    if paired.tried is None or state not in ("holds", "fails"):
        return {}
    mean = part.weights.mean(axis=1)
    rates = paired.failed / np.maximum(paired.tried, 1)
    sides = [(np.maximum(sign * mean, 0), sign) for sign in (1, -1)]
    better, worse = (float((side * rates).sum() / side.sum()) if side.any() else 0.0 for side, _ in sides)
    wins, loses = (better, worse) if state == "holds" else (worse, better)
    if wins <= loses + 1e-12:
        return {}
    side = sides[0 if state == "holds" else 1][0]
    names = [arm for arm, w, k in zip(paired.arms, side, paired.failed, strict=True) if w and k]
    told = ", ".join(f"{label(a)} {paired.failed[paired.arms.index(a)]:.0f}" for a in names)
    return dict(state="open", why=f"the side that is ahead diverged more often ({told} runs): it cannot win by it")


def _untestable(claim: Claim, paired: Paired, part: Part, facts: Row, error: float) -> str:
    """Why these runs cannot tell; "" where they can."""
    if error < 1e-9:
        return "no variance: every seed gives the same difference"
    column, threshold = part.comparison.column, facts["threshold"]
    if column in ("score", "spread") and claim.runs == "tuned":
        above = [_lower(part.side(sign, paired.columns["score"] - paired.columns["chance"])) > 0 for sign in (1, -1)]
        if not any(above):
            return "at chance: neither side is told from guessing"
        if column == "score" and 100 - part.side(-1, paired.columns["score"]).mean() <= threshold:
            return "at the ceiling: the other side leaves no room for the threshold"
        if column == "spread" and not any(_told_spread(paired, part, sign, threshold) for sign in (1, -1)):
            return "no spread: on neither side it is told to be larger than the threshold"
        return _at_the_edge(paired, part, facts["state"])
    return ""


def _lower(values: np.ndarray) -> float:
    """The lower end of the plain 95 % interval of the mean."""
    values = values[np.isfinite(values)]
    return values.mean() - t_quantile(len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))


def _told_spread(paired: Paired, part: Part, sign: int, threshold: float) -> bool:
    return _lower(sign * _spread(paired.columns["score"], part.weights, (sign,))) > threshold


def _at_the_edge(paired: Paired, part: Part, state: str) -> str:
    """A row cannot hold against an arm, or fail with an arm, that a learning rate beyond its grid may still improve."""
    sign = {"holds": -1, "fails": 1}.get(state, 0)
    at_edge = [
        f"{label(arm)} ({lr:g})"
        for arm, lr, edge, weights in zip(paired.arms, paired.chosen, paired.edge, part.weights, strict=True)
        if edge and (weights * sign > 0).any()
    ]
    return f"learning rate at the edge of its grid: {', '.join(at_edge)}" if at_edge else ""


# ---------------------------------------------------------------------------------------------------------------------
# failures (H9)


def failure_cells(evidence: Evidence) -> dict[str, dict[str, tuple[str, ...]]]:
    """The run ids of each cell of depth × learning rate, by the name of its comparison and by arm."""
    few = FEW_ROWS[evidence.scale] if evidence.variant else 0
    return _cells(evidence.scale, evidence.test_seeds or (0,), few)


@lru_cache(maxsize=64)
def _cells(scale: str, seeds: tuple[int, ...], few: int) -> dict[str, dict[str, tuple[str, ...]]]:
    cells: dict[str, dict[str, tuple[str, ...]]] = {}
    for config in failure_runs(scale, seeds, few):
        by_arm = cells.setdefault(f"None→None fails, {config.n_layers} blocks, lr {config.lr:g}", {})
        by_arm[config.arm] = (*by_arm.get(config.arm, ()), config.run_id)
    return cells


@lru_cache(maxsize=64)
def _failing_ids(scale: str, seeds: tuple[int, ...]) -> dict[str, tuple[str, ...]]:
    """Of the settings of Figure 10: arm → run ids."""
    runs = sorted(failing_runs(scale, seeds), key=lambda config: config.arm)
    return {arm: tuple(config.run_id for config in mine) for arm, mine in groupby(runs, key=lambda config: config.arm)}


def failure_rows(claim: Claim, evidence: Evidence, task: str) -> list[Row]:
    """The share of non-finite ends of None→None in each cell, in per cent; to hold, it must also be told to be larger
    than the control's, by Fisher's exact test at the same level."""
    cells, rows = failure_cells(evidence), []
    lower, upper = levels(claim, len(cells))
    for name, by_arm in cells.items():
        (k, n), (others, of) = evidence.counts(by_arm[NONE]), evidence.counts(by_arm[CONTROL])
        facts = dict(task=task, comparison=name, effect=100 * k / n if n else np.nan, n=min(n, of), paper=np.nan)
        facts |= dict(threshold=claim.threshold, unit=claim.unit, decides=True, why="", seeds_to_tell=None)
        facts |= dict(per_seed=[100.0] * k + [0.0] * (n - k), low=np.nan, high=np.nan, state="open")
        if n and of:
            low, high = 100 * clopper_pearson(k, n, 1 - 2 * lower)[0], 100 * clopper_pearson(k, n, 1 - 2 * upper)[1]
            told = fisher_above(k, n, others, of) < lower
            state = "fails" if high < claim.threshold else "holds" if low > claim.threshold and told else "open"
            facts |= dict(low=low, high=high, state=state)
            facts["why"] = f"{label(CONTROL)} there: {others} of {of}"
        rows.append(facts)
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# beside the rows


def divergence(claim: Claim, evidence: Evidence, task: str) -> list[Row]:
    """One row an arm: how many of its runs diverged, at all its rates, the exact interval of the rate, and Fisher's p
    against the claim's reference arm (NaN without one). Of the claim on failures (H9) the arms where models fail.
    """
    if claim.runs == "failure":
        ids = _failing_ids(evidence.scale, evidence.test_seeds or (0,))
        counts = {arm: evidence.counts(mine) for arm, mine in ids.items()}
    else:
        paired = evidence.paired(claim, task)
        known = np.isfinite(paired.columns["diverged"])
        failed = np.nansum(paired.columns["diverged"], axis=1) if paired.failed is None else paired.failed
        tried = known.sum(axis=1) if paired.tried is None else paired.tried
        counts = {arm: (int(k), int(n)) for arm, k, n in zip(paired.arms, failed, tried, strict=True)}
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
    part = next(part for part in parts_of(claim, paired) if part.name == comparison)
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
    if claim.paper_task and task != claim.paper_task.lower():
        return float("nan")
    accuracy = _printed(claim.kind, claim.printed_on)
    plain = comparison.column == "score" and claim.runs == "tuned"
    if not plain or not all(arm in accuracy for arm in comparison.weights):
        return float("nan")
    return round(100 * sum(weight * accuracy[arm] for arm, weight in comparison.weights.items()), 4)
