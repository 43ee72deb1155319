"""The learning rates of a verdict: cross-fitted, inside their grid, and judged by divergence as well.

Tuning is part of what an arm's result is, so it is inside the interval. The rate of seed k is the one with the best
mean validation accuracy over the *other* seeds, and no run chooses the rate that it is judged at. While the best rate
of an arm is an end of its grid, and better than its neighbour by more than the smallest effect, the grid grows there.

    Rates           what is chosen for some arms
    crossfit        validation accuracies → Rates
    edge            which end of an arm's grid is still rising
    grow            further rates of one arm, one by one
    rates_that_count    whose divergence is held against an arm, or speaks for it
    reach               on a ladder of rates: the highest that trains

Validation is the accuracy in per cent, of a language model its bits with a minus. Arrays are (arms, rates, seeds), the
smallest rate first. A rate that an arm does not have is not `usable`, (arms, rates).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from mambanorm.claims.claim import SMALLEST_EFFECT
from mambanorm.study.intervals import t_quantile


class Rates(NamedTuple):
    choice: np.ndarray  # (arms, seeds) index of the rate
    promise: np.ndarray  # (arms, seeds) its mean validation accuracy over the other seeds
    chosen: np.ndarray  # (arms,) index of the rate that all seeds together choose


def crossfit(validation: np.ndarray, usable: np.ndarray, own: int) -> Rates:
    """`own`: the index of the task's own rate, which a single seed takes, because it has no other to choose on."""
    n = validation.shape[2]
    total = np.where(usable, np.where(usable[..., None], validation, 0.0).sum(axis=2), -np.inf)
    if n == 1:
        others = np.broadcast_to(-abs(np.arange(usable.shape[1]) - own)[None, :, None], validation.shape).astype(float)
    else:
        others = (total[..., None] - np.where(usable[..., None], validation, 0.0)) / (n - 1)
    others = np.where(usable[..., None], others, -np.inf)
    choice = np.round(others, 9).argmax(axis=1)  # rounded, so that the smaller of equals is taken
    promise = np.take_along_axis(others, choice[:, None], axis=1)[:, 0]
    return Rates(choice, promise, np.round(total, 9).argmax(axis=1))


def edge(validation: np.ndarray, usable: np.ndarray, smallest: float = SMALLEST_EFFECT) -> int:
    """±1 if the best of an arm's rates is an end of its grid, and told to be better than its neighbour by more than the
    `smallest` effect of interest; else 0. validation: (rates, seeds), usable: (rates,)."""
    rates, n = np.flatnonzero(usable), validation.shape[1]
    if len(rates) < 2 or n < 2:
        return 0
    best = rates[np.round(validation[rates].sum(axis=1), 9).argmax()]
    if best not in (rates[0], rates[-1]):
        return 0
    end = 1 if best == rates[-1] else -1
    gain = validation[best] - validation[rates[-2] if end > 0 else rates[1]]
    lower = gain.mean() - t_quantile(n - 1) * gain.std(ddof=1) / np.sqrt(n)
    return end if lower > smallest else 0


def grow(
    validation: np.ndarray,
    usable: np.ndarray,
    look: Callable[[int], np.ndarray | None],
    smallest: float = SMALLEST_EFFECT,
) -> None:
    """Takes further rates into (rates, seeds) and (rates,) of one arm, as long as the rule asks for one that is there.
    `look(i)`: the validation accuracies at the i-th rate, None where a run is missing."""
    while end := edge(validation, usable, smallest):
        rates = np.flatnonzero(usable)
        step = (rates[-1] if end > 0 else rates[0]) + end
        found = look(step) if 0 <= step < len(usable) else None
        if found is None:
            return
        validation[step], usable[step] = found, True


def rates_that_count(diverged: np.ndarray, usable: np.ndarray, choice: np.ndarray) -> np.ndarray:
    """(arms, rates): the rates whose divergence is held against an arm, or speaks for it: up to the highest that a seed
    chose, and above it as long as no run diverged. diverged: (arms, rates) how many runs did.

    A rate at which the arm diverges and that nobody chose is simply too high for it. Leaving it out can only lower the
    number of runs that speak for the arm, so more divergence never helps.
    """
    above = np.arange(usable.shape[1]) > choice.max(axis=1)[:, None]
    calm = usable & (diverged == 0)
    return usable & np.cumprod(calm | ~above, axis=1).astype(bool)


TRAINS = 0.8
"""A rate trains a model that has this share of what its best rate brings above chance."""


def reach(score: np.ndarray, chance: np.ndarray, rates: Sequence[float]) -> np.ndarray:
    """log₁₀ of the highest rate that trains, (arms, seeds), by linear interpolation between the last that does and the
    next. score, chance: (arms, rates, seeds), in one unit; NaN where a rate was not run. Where the highest rate trains,
    it is that one; a seed that learns at no rate has the lowest."""
    found = np.full((score.shape[0], score.shape[2]), np.nan)
    for i, k in np.ndindex(*found.shape):
        run = np.isfinite(score[i, :, k])
        if run.any():
            found[i, k] = _last_that_trains(score[i, run, k], chance[i, run, k].max(), np.log10(rates)[run])
    return found


def _last_that_trains(score: np.ndarray, chance: float, log_rates: np.ndarray) -> float:
    if score.max() <= chance:  # it learns at no rate
        return log_rates[0]
    line = chance + TRAINS * (score.max() - chance)
    last = np.flatnonzero(score >= line)[-1]
    if last == len(score) - 1:
        return log_rates[last]
    part = (score[last] - line) / (score[last] - score[last + 1])
    return log_rates[last] + part * (log_rates[last + 1] - log_rates[last])
