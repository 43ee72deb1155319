"""The rule of the verdicts, protocol 11: PROTOCOL.md says it in words, on its first page.

Two questions, asked apart: how good are the runs that finish (a paired t-interval held against a threshold), and how
often does a run not finish (exact binomial intervals, Fisher's exact test). Every function takes one study, and with
further axes in front thousands of made-up ones, so that calibration.py measures this code and no copy of it. The rate
of an arm is `best_rate` of runs/recorded_results.py: lessons and verdicts have one. States of a comparison:

    holds, fails    the bounds lie wholly above, wholly below the threshold
    near            the 95 % interval holds the threshold and lies within one threshold of it
    open            anything else: more seeds would tell
    not judged      fewer than FEWEST finished pairs, no variance, or another state at a tied rate
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import special

from mambanorm.runs.recorded_results import best_rate
from mambanorm.study.intervals import fisher_above

ONE_SIDED = 0.025
"""The one-sided level: a 95 % interval has it at either end."""

FEWEST = 6
"""Pairs of finished runs without which nothing is judged: five of one sign come up by chance in one case of 16."""

RISING = 1 / 3
"""An arm still improves with its steps if more of its finished runs than this are best in the last tenth of them; on a
plateau it is a tenth."""

POWER = 0.8
"""`seeds_to_tell` would tell in so many studies."""

MOST = 10_000
"""Seeds beyond which `seeds_to_tell` does not look."""

STATES = ("fails", "not judged", "open", "near", "holds")
"""From the weakest to the strongest for the claim."""

SAID = ("holds", "fails", "near")
"""Those that a comparison is told to be in."""

VERDICTS = ("reproduced", "contradicted", "≈ threshold", "open", "not judged")


class Told(NamedTuple):
    """What the seeds tell of a comparison, arrays (…,): `low` and `high` have the levels at which it may hold and fail,
    `plain` is the 95 % interval."""

    state: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    plain: tuple[np.ndarray, np.ndarray]
    n: np.ndarray


def levels(m: int, at_least: int | None = None, tasks: int = 1) -> tuple[float, float]:
    """One-sided levels of the lower and the upper bound of each of m comparisons of which u = `at_least` must hold.

    All must hold (None): each at 2.5 % (intersection–union test), and to fail 2.5 %/m (Bonferroni). One must hold: the
    reverse. Between them 2.5 %/(m − u + 1) and 2.5 %/u (partial conjunction, Benjamini & Heller 2008). One task of
    several is enough to contradict a claim, so they share that level; to reproduce it takes each.
    """
    u = at_least or m
    return ONE_SIDED / (m - u + 1), ONE_SIDED / (u * tasks)


def interval(values: np.ndarray, *one_sided: float) -> tuple[np.ndarray, ...]:
    """Over the last axis, NaN left out: n, mean, and for each level how far a bound of the t-interval lies from it
    (NaN for n < 2)."""
    there = np.isfinite(values)
    n = there.sum(axis=-1)
    mean = np.where(there, values, 0.0).sum(axis=-1) / np.where(n, n, np.nan)
    square = np.where(there, (values - mean[..., None]) ** 2, 0.0).sum(axis=-1)
    error = np.sqrt(square / np.where(n > 1, n - 1, np.nan) / np.where(n, n, np.nan))
    freedom = np.maximum(np.arange(values.shape[-1] + 1) - 1, 1)
    return n, mean, *(-special.stdtrit(freedom, level)[n] * error for level in one_sided)


def tell(values: np.ndarray, threshold: float, one_sided: tuple[float, float] = (ONE_SIDED, ONE_SIDED)) -> Told:
    """values (…, seeds): one difference a seed, NaN where a compared run did not finish."""
    n, mean, down, up, half = interval(values, *one_sided, ONE_SIDED)
    low, high, left, right = mean - down, mean + up, mean - half, mean + half
    reach = abs(threshold)
    near = (left <= threshold) & (threshold <= right) & (left > threshold - reach) & (right < threshold + reach)
    enough = (n >= FEWEST) & (half > 1e-9)
    state = np.select([~enough, low > threshold, high < threshold, near], [STATES[1], "holds", "fails", "near"], "open")
    return Told(state, mean, low, high, (left, right), n)


def weigh(weights: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The weighted sum of arms, weights (arms,), numbers (…, arms, seeds); NaN of an arm without weight is no NaN."""
    used = weights != 0
    return (weights[used, None] * numbers[..., used, :]).sum(axis=-2)


def at_rate(numbers: np.ndarray, rate: np.ndarray) -> np.ndarray:
    """numbers (…, arms, rates, seeds) at the rate (…, arms) of each arm."""
    return np.take_along_axis(numbers, rate[..., None, None], axis=-2)[..., 0, :]


def tied(validation: np.ndarray, best: np.ndarray, smallest: float, finished: np.ndarray | bool = True) -> np.ndarray:
    """(…, rates): the others of which the 95 % interval of best − other holds 0, a diverged run with chance, while of
    the seeds on which both finished the gap is below the smallest effect. validation: (…, rates, seeds), NaN without a
    run; finished: the same, False where it diverged."""
    ended = np.where(finished, validation, np.nan)
    n, gap, half = interval(at_rate(validation, best)[..., None, :] - validation, ONE_SIDED)
    _, lead = interval(at_rate(ended, best)[..., None, :] - ended)
    other = np.arange(validation.shape[-2]) != best[..., None]
    return other & (n == n.max(axis=-1, keepdims=True)) & (abs(gap) <= half) & (lead < smallest)


def compare(
    weights: np.ndarray,
    scores: np.ndarray,
    validation: np.ndarray,
    smallest: float,
    threshold: float,
    one_sided: tuple[float, float] = (ONE_SIDED, ONE_SIDED),
) -> tuple[Told, np.ndarray, np.ndarray]:
    """A comparison, or the one of a group that validation chooses: weights (members, arms), scores and validation
    (…, arms, rates, seeds), scores NaN where a run did not finish. → what is told; which member (…,); and the rates
    (…, arms) at which it would be said otherwise. The state is "not judged" where the tied rates that speak most
    against it, of all arms at once, or a member that is tied with the chosen one, say something else.
    """
    best, finished = best_rate(validation), np.isfinite(scores)
    candidates = tied(validation, best, smallest, finished) | (np.arange(scores.shape[-2]) == best[..., None])
    means, own, ended = interval(scores)[1], at_rate(scores, best), np.where(finished, validation, np.nan)
    promise, its_end = (np.stack([weigh(w, at_rate(v, best)) for w in weights], axis=-2) for v in (validation, ended))
    promise = np.where(np.isfinite(promise).all(axis=-2, keepdims=True), promise, np.nan)  # of seeds that all have
    member = best_rate(promise)
    rivals = tied(promise, member, smallest, np.isfinite(its_end))
    found, against, broken = [], [], []
    for w in weights:
        told = tell(weigh(w, own), threshold, one_sided)
        odd, odd_rates = np.zeros(told.state.shape, bool), np.broadcast_to(best, told.state.shape + best.shape[-1:])
        for sign, may_lose in ((-1, ("holds", "near")), (1, ("fails", "near"))):  # as low as can be, and as high
            side = np.where(candidates & np.isfinite(means), sign * np.sign(w)[:, None] * means, -np.inf)
            rates = side.argmax(axis=-1)
            there = tell(weigh(w, at_rate(scores, rates)), threshold, one_sided).state
            lost = np.isin(told.state, may_lose) & (there != told.state)
            odd, odd_rates = odd | lost, np.where(lost[..., None], rates, odd_rates)
        found.append(told)
        against.append(odd_rates)
        broken.append(odd)

    def of_member(values: list[np.ndarray]) -> np.ndarray:
        return np.take_along_axis(np.stack(values, axis=-1), member[..., None], axis=-1)[..., 0]

    state = of_member([told.state for told in found])
    others = np.stack([told.state for told in found], axis=-1) != state[..., None]
    odd = of_member(broken) | (np.isin(state, SAID) & (rivals & others).any(axis=-1))
    numbers = (of_member([getattr(told, name) for told in found]) for name in ("mean", "low", "high"))
    plain = tuple(of_member([told.plain[i] for told in found]) for i in (0, 1))
    result = Told(np.where(odd, STATES[1], state), *numbers, plain, of_member([told.n for told in found]))
    rates = np.take_along_axis(np.stack(against, axis=-1), member[..., None, None], axis=-1)[..., 0]
    return result, member, rates


def decide(states: np.ndarray, at_least: int | None = None) -> np.ndarray:
    """The word of a claim from the states (…, m) of its comparisons, of which `at_least` must hold (None: all)."""
    m = states.shape[-1]
    u = at_least or m

    def count(*names: str) -> np.ndarray:
        return np.isin(states, names).sum(axis=-1)

    def could_be_told(*unsettled: str) -> np.ndarray:
        """Whether it could still be decided if every comparison in these states were told."""
        return (count("holds", *unsettled) >= u) | (count("fails", *unsettled) > m - u)

    cases = [count("holds") >= u, count("fails") > m - u, could_be_told("open"), could_be_told("open", "not judged")]
    return np.select(cases, [VERDICTS[0], VERDICTS[1], VERDICTS[3], VERDICTS[4]], VERDICTS[2])


def edge(validation: np.ndarray, smallest: float) -> int:
    """±1 if the best of an arm's rates is an end of its grid, and its 95 % interval over its neighbour lies above the
    smallest effect; else 0. validation: (rates, seeds), NaN without a run."""
    whole = np.isfinite(validation).sum(axis=-1)
    rates = np.flatnonzero((whole == whole.max()) & (whole > 1))
    best = int(best_rate(validation))
    if len(rates) < 2 or best not in (rates[0], rates[-1]):
        return 0
    end = 1 if best == rates[-1] else -1
    _, gain, half = interval(validation[best] - validation[rates[-2] if end > 0 else rates[1]], ONE_SIDED)
    return end if gain - half > smallest else 0


def more_often(k: int, n: int, other_k: int, other_n: int) -> bool:
    """Whether k of n is told to be a larger rate than other_k of other_n: one-sided Fisher below 2.5 %."""
    return bool(n and other_n) and fisher_above(k, n, other_k, other_n) < ONE_SIDED


def seeds_to_tell(margin: float, sd: float, one_sided: tuple[float, float], reach: float) -> int | None:
    """About how many new seeds would tell in four studies of five, had they this mean (`margin` from the threshold) and
    this spread; None if more than MOST. `reach`: half the band that counts as ≈ threshold."""
    n = np.arange(FEWEST, MOST + 1)
    error = sd / np.sqrt(n)
    down, up, half = (-special.stdtrit(n - 1, level) * error for level in (*one_sided, ONE_SIDED))
    luck = special.ndtri(POWER) * error
    near = (margin - half - luck > -reach) & (margin + half + luck < reach)
    told = (margin - luck > down) | (margin + luck < -up) | near
    return int(n[told.argmax()]) if told.any() else None
