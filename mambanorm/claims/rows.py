"""One claim on one task → its comparisons as rows: effect, bounds, threshold, what the row says, and who diverged.

What a row may say stands in rule.py. `why` it is not judged: fewer than six finished pairs, a run that is missing, an
arm that still improves at the end of its steps or of its grid, a rate that is tied and says something else, no seed
that differs from another, what no run could show (models at chance, no room left, nothing to compare), and a claim
that is only measured. The claim on failures (H9) counts runs and has rows of its own.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby

import numpy as np

from mambanorm.claims import rule
from mambanorm.claims.claim import ACCURACIES, CONTROL, NONE, SMALLEST_BITS, SMALLEST_EFFECT, Claim, Comparison
from mambanorm.claims.evidence import LEARNS, Evidence, Runs, kind_of
from mambanorm.claims.hypotheses import UNEVEN
from mambanorm.study.experiments import failure_runs
from mambanorm.study.intervals import clopper_pearson, fisher_above
from mambanorm.study.paper import paper_values
from mambanorm.study.tables import label

Row = dict[str, object]
NO_NUMBER = dict(effect=np.nan, low=np.nan, high=np.nan, plain=(np.nan, np.nan), n=0, state="not judged", per_seed=())
NO_NUMBER |= dict(paper=np.nan, why="", seeds_to_tell=None, finish=None)
"""A comparison of which nothing is known."""
LUCK = 2.326
"""The range of five means of noise, in standard errors (Tippett 1925)."""


def rows_of(claim: Claim, evidence: Evidence, task: str, tasks: int = 1) -> list[Row]:
    """The comparisons as rows; one without any run has n = 0. `tasks`: how many share one verdict."""
    if claim.runs == "failure":
        return failure_rows(claim, evidence, task)
    runs = evidence.runs(claim, task)
    groups = [list(group) for _, group in groupby(claim.comparisons, key=_group(claim))]
    m = sum(group[0].decides for group in groups) or 1
    late = claim.runs == "tuned" and "steps" not in dict(evidence.setting)  # a share of the steps is asked for its sake
    return [_row(claim, task, runs, group, rule.levels(m, claim.at_least, tasks), late) for group in groups]


def _group(claim: Claim):
    return lambda c: c.group if claim.select == "best" and c.group else c.name


def _row(
    claim: Claim, task: str, runs: Runs, group: list[Comparison], one_sided: tuple[float, float], late: bool
) -> Row:
    one, threshold = group[0], np.nan if claim.no_verdict else claim.threshold_of(group[0])
    if not one.decides:
        one_sided = rule.ONE_SIDED, rule.ONE_SIDED
    facts = dict(task=task, comparison=_group(claim)(one), threshold=threshold, unit=one.unit, decides=one.decides)
    facts |= NO_NUMBER
    weights = np.array([[c.weights.get(arm, 0.0) for arm in runs.arms] for c in group])
    used = [runs.arms[i] for i in np.flatnonzero(weights.any(axis=0))]
    if lacking := [runs.gaps[arm] for arm in used if arm in runs.gaps]:
        return facts | dict(why="; ".join(lacking))
    if one.column == "range":
        return facts | _range(runs.finished("score")[weights.any(axis=0)], claim)
    scores = runs.columns[one.column]
    if claim.runs not in ("growth", "failing", "ladder"):  # which are about runs that fail, or all rates of an arm
        scores = np.where(runs.columns["diverged"] == 0, scores, np.nan)
    smallest = SMALLEST_BITS if kind_of(task) == "language" else SMALLEST_EFFECT
    validation = np.where(np.isfinite(scores), 0.0, np.nan) if claim.runs != "tuned" else runs.columns["validation"]
    own = rule.at_rate(scores, runs.best)
    told, member, rates = rule.compare(weights, scores, validation, smallest, threshold, one_sided)
    w, name = weights[member], group[member].name
    values = rule.weigh(w, own)
    values, n = values[np.isfinite(values)], int(told.n)
    facts |= dict(finish=_finish(runs, w) if claim.runs in ("tuned", "deep") else None)
    if not n:
        return facts | dict(why=f"the runs lack {one.column}, or did not finish")
    facts |= dict(comparison=name, n=n, per_seed=tuple(values.tolist()), paper=printed(claim, group[member], task))
    facts |= {key: float(getattr(told, at)) for key, at in dict(effect="mean", low="low", high="high").items()}
    facts |= dict(plain=tuple(map(float, told.plain)), state=str(told.state))
    if claim.no_verdict:
        return facts | dict(state="not judged", why=measured(claim))
    why = _why_not(claim, runs, w, one.column, facts, late)
    if not why and told.state == "not judged":
        why = _tie(runs, w, rates)
    if why:
        return facts | dict(state="not judged", why=why)
    if facts["state"] == "open":
        sd = float(values.std(ddof=1))
        seeds = rule.seeds_to_tell(facts["effect"] - threshold, sd, one_sided, abs(threshold))
        why = f"about {seeds} new seeds would tell" if seeds else f"more than {rule.MOST} new seeds would be needed"
        facts |= dict(seeds_to_tell=seeds, why=why)
    return facts


def _why_not(claim: Claim, runs: Runs, weights: np.ndarray, column: str, facts: Row, late: bool) -> str:
    """Why a row is not judged; "" where it is."""
    threshold, n = facts["threshold"], facts["n"]
    if n < rule.FEWEST:
        return f"fewer than six seeds on which every compared run finished: {n}"
    used = np.flatnonzero(weights)
    if late and (rising := [i for i in used if runs.late[i] > rule.RISING]):
        named = ", ".join(f"{label(runs.arms[i])} ({100 * runs.late[i]:.0f} % of its runs)" for i in rising)
        return f"still improving at the end of its steps: {named}"
    if at_edge := [f"{label(runs.arms[i])} ({runs.lr[i]:g})" for i in used if runs.edge[i]]:
        return f"still improving at the edge of its grid of rates: {', '.join(at_edge)}"
    if column == "unevenness" and lower_end(runs.at(column)[runs.arms.index(NONE)]) <= UNEVEN:
        return "premise not seen: without norms the blocks do not clearly differ by 5 %"
    if claim.runs in ("tuned", "ladder") and (low := _at_chance(runs, weights, column)):
        return low
    if column == "reach" and (hidden := _at_end(runs, weights, facts["state"])):
        return hidden
    room = 100 - _side(runs.finished(column), weights, -1).mean() if column in ACCURACIES else np.inf
    if room <= threshold and facts["high"] >= -threshold:
        return "at the ceiling: the other side leaves no room for the threshold"
    return "no variance: every seed gives the same difference" if np.ptp(facts["per_seed"]) < 1e-9 else ""


def _tie(runs: Runs, weights: np.ndarray, rates: np.ndarray) -> str:
    """Which rates that validation does not tell from the chosen ones say something else."""
    moved = [i for i in np.flatnonzero(weights) if rates[i] != runs.best[i]]
    if not moved:
        return "depends on the arm: another one is tied with it in validation and says something else"
    there = ", ".join(f"{label(runs.arms[i])} at {runs.rates[rates[i]]:g} and not {runs.lr[i]:g}" for i in moved)
    return f"depends on the rate: {there}, tied in validation, says something else"


def _side(numbers: np.ndarray, weights: np.ndarray, sign: int) -> np.ndarray:
    """(seeds,) the mean of numbers (arms, seeds) over the arms on one side, of the seeds on which all of them have
    one."""
    mine = np.maximum(sign * weights, 0.0)
    if not mine.any():
        return np.empty(0)
    found = rule.weigh(mine / mine.sum(), numbers)
    return found[np.isfinite(found)]


def _at_chance(runs: Runs, weights: np.ndarray, column: str) -> str:
    measured = "bits" if column == "bits" else "score"
    gain = runs.at(measured) - runs.at("chance")
    sides = [_side(gain, weights, sign) for sign in (1, -1)]
    if column == "reach":
        guess = any(side.mean() <= LEARNS for side in sides)
        return "at chance: an arm learns at no rate" if guess else ""
    return "" if any(lower_end(side) > 0 for side in sides) else "at chance: neither side clearly beats guessing"


def _at_end(runs: Runs, weights: np.ndarray, state: str) -> str:
    """Which arms an end of the ladder hides: where a comparison holds, rivals that may bear more than its highest rate
    or own arms that may bear less than its lowest; else the reverse. By more than half of an arm's seeds."""
    reach, ends, sign = runs.at("reach"), np.log10(runs.rates), -1 if state == "holds" else 1
    top, bottom = (((reach == end).mean(axis=1) > 0.5) for end in (ends[-1], ends[0]))
    hidden = np.flatnonzero((top & (sign * weights > 0)) | (bottom & (sign * weights < 0)))
    return f"at an end of the ladder of rates: {', '.join(label(runs.arms[i]) for i in hidden)}" if len(hidden) else ""


def lower_end(values: np.ndarray) -> float:
    """The lower end of the 95 % interval of the mean; −∞ for fewer than two values."""
    n, mean, half = rule.interval(values, rule.ONE_SIDED)
    return float(mean - half) if n > 1 else -np.inf


def measured(claim: Claim) -> str:
    return f"measured, and not judged: {claim.no_verdict}"


def _range(scores: np.ndarray, claim: Claim) -> Row:
    """How far the means of some arms (arms, seeds) lie apart, over the seeds on which all finished, and how far their
    noise alone would put five of them."""
    whole = scores[:, np.isfinite(scores).all(axis=0)]
    n = whole.shape[1]
    if n < 2:
        return dict(why="fewer than two seeds on which every arm finished")
    noise = whole - whole.mean(axis=0) - (whole - whole.mean(axis=0)).mean(axis=1, keepdims=True)
    error = np.sqrt((noise**2).sum() / (len(whole) - 1) / (n - 1) / n)
    luck = f"{measured(claim)}; noise alone would make it {LUCK * error:.1f} points"
    return dict(effect=float(np.ptp(whole.mean(axis=1))), n=n, why=luck)


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


def run_ids(claim: Claim, evidence: Evidence, task: str, comparison: str) -> list[str]:
    """The runs that the comparison of that name is made of, each at the rate of its arm."""
    if claim.runs == "failure":
        by_arm = _cells(evidence.scale, evidence.seeds.get(task) or (0,))[comparison]
        return [run_id for ids in by_arm.values() for run_id in ids]
    runs = evidence.runs(claim, task)
    (one,) = (c for c in claim.comparisons if c.name == comparison)
    at_rate = runs.ids[np.arange(len(runs.arms)), runs.best]
    return [run_id for arm in one.weights for run_id in at_rate[runs.arms.index(arm)] if run_id is not None]


# -------------------------------------------------------------------------------------------- how often runs diverge


def _finish(runs: Runs, weights: np.ndarray) -> tuple[int, int, int, int]:
    """Of the arms on the side of the claim, and of those on the other: runs at their rates that diverged, and all."""
    diverged = runs.at("diverged")
    sides = (diverged[sign * weights > 0] for sign in (1, -1))
    return tuple(int(count) for side in sides for count in (np.nansum(side), np.isfinite(side).sum()))


# ------------------------------------------------------------------------- H9: in which cells of depth × rate runs fail


@lru_cache(maxsize=64)
def _cells(scale: str, seeds: tuple[int, ...]) -> dict[str, dict[str, tuple[str, ...]]]:
    """The run ids of each cell, one a seed, by the name of its comparison and by arm."""
    cells: dict[str, dict[str, tuple[str, ...]]] = {}
    for config in failure_runs(scale, seeds):
        by_arm = cells.setdefault(f"None→None fails, {config.n_layers} blocks, lr {config.lr:g}", {})
        by_arm[config.arm] = (*by_arm.get(config.arm, ()), config.run_id)
    return cells


def failure_rows(claim: Claim, evidence: Evidence, task: str) -> list[Row]:
    """One row a cell: the share of None→None's runs that fail, in per cent, with its exact bounds, on the seeds that
    both arms have there.

    A cell holds if None→None is told to fail in more than half of its runs, the control in fewer than half, and the
    first more often than the second by Fisher's exact test. It fails if None→None is told to fail in fewer than half of
    its runs, or the control in more than half.
    """
    rows, cells = [], _cells(evidence.scale, evidence.seeds.get(task) or (0,))
    one_sided = rule.levels(len(cells), claim.at_least)
    for name, by_arm in cells.items():
        failed = np.array([evidence.diverged(by_arm[arm]) for arm in (NONE, CONTROL)])
        failed = failed[:, np.isfinite(failed).all(axis=0)]
        (k, others), n = failed.sum(axis=1).astype(int).tolist(), failed.shape[1]
        facts = dict(task=task, comparison=name, threshold=claim.threshold, unit=claim.unit, decides=True)
        rows.append(facts | NO_NUMBER | (_told(k, others, n, one_sided) if n else dict(why=f"not run: {name}")))
    return rows


def _told(k: int, others: int, n: int, one_sided: tuple[float, float]) -> Row:
    low, high = _bounds(k, n, one_sided)
    facts = dict(effect=100 * k / n, n=n, low=low, high=high, plain=tuple(100 * end for end in clopper_pearson(k, n)))
    facts |= dict(per_seed=(100.0,) * k + (0.0,) * (n - k), state=_state(k, others, n, one_sided))
    facts |= dict(why=f"{label(CONTROL)} there: {others} of {n}", failed=(k, others))
    if n < rule.FEWEST:
        return facts | dict(state="not judged", why=f"fewer than six seeds: {n}")
    if facts["state"] == "open":
        sizes = range(rule.FEWEST, 401)
        told = (m for m in sizes if _state(round(k * m / n), round(others * m / n), m, one_sided) != "open")
        facts["seeds_to_tell"] = next(told, None)
    return facts


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
