"""How far an effect may lie from the mean of its seeds: the bounds by which a comparison is decided.

They are wider than a t-interval by what the seeds do not show: that their test rows overlap, and that an arm may
diverge more often than was seen.

    Noise            what widens the mean's error besides the seeds' spread
    Risk             what divergence may cost one side
    half_width       the distance of one bound from the mean
    state_of         holds | fails | near | open
    seeds_to_tell    how many seeds would tell
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import special

from mambanorm.claims.protocol import MOST_SEEDS, ONE_SIDED, STABLE
from mambanorm.study.intervals import clopper_pearson, t_quantile

POWER = 0.8
"""`seeds_to_tell` would tell so often, not just half the time."""


class Noise(NamedTuple):
    """Of a mean over n seeds with spread sd: its variance is sd²·(1/n + ratio) + fixed."""

    sd: float
    ratio: float  # test rows / training rows, where the splits come from one pool (Nadeau & Bengio 2003, Eq. 9)
    fixed: float  # points², the noise of a test set that all seeds share

    def error(self, n: int) -> float:
        return float(np.sqrt(self.sd**2 * (1 / n + self.ratio) + self.fixed))


class Risk(NamedTuple):
    """An arm that diverges at a rate p beyond what was seen takes `linear`·p + `square`·p² off the comparison."""

    linear: float
    square: float
    failed: int
    tried: int


def half_width(noise: Noise, n: int, one_sided: float, risks: tuple[Risk, ...]) -> float:
    """How far one bound lies from the mean of n seeds.

    An arm that diverges with probability p shows no more divergences than were seen with probability P(p), and costs
    its comparison what `Risk` says. So that luck of this kind and of the mean come together in at most `one_sided` of
    studies, the mean is tested at the level one_sided/P(p), for every p up to STABLE (of an arm without any divergence)
    or up to its exact bound (of one with some).
    """
    error = noise.error(n)
    width = t_quantile(n - 1, one_sided) * error
    for linear, square, failed, tried in risks:
        p, t = _by_rate(n - 1, one_sided, failed, tried)
        width = max(width, float((linear * p + square * p**2 + t * error).max(initial=0.0)))
    return width


@lru_cache(maxsize=20_000)
def _by_rate(df: int, one_sided: float, k: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Rates beyond what was seen, k of n, and the quantile of t that goes with each; none for an arm that is stable."""
    most = clopper_pearson(k, n, 1 - 2 * one_sided)[1]
    if k == 0:
        most = 0.0 if (1 - STABLE) ** n <= ONE_SIDED else min(most, STABLE)
    rates = np.linspace(k / n, most, 32) if most else np.empty(0)
    level = np.minimum(one_sided / special.bdtr(k, n, rates), 1 - 1e-9)
    return rates - k / n, -special.stdtrit(df, level)


def state_of(low: float, high: float, threshold: float) -> str:
    if low > threshold:
        return "holds"
    if high < threshold:
        return "fails"
    near = low > threshold - abs(threshold) and high < threshold + abs(threshold)
    return "near" if near else "open"


def seeds_to_tell(
    margin: float,
    noise: Noise,
    n: int,
    one_sided: tuple[float, float],
    reach: float,
    risks: tuple[tuple[Risk, ...], tuple[Risk, ...]],
) -> int | None:
    """About how many new seeds would tell in four studies of five, had they this effect (`margin` from its threshold),
    this spread and this share of divergence; None if not even all test seeds. `reach`: half the band that counts as ≈.
    """

    def told(more: int) -> bool:
        grown = [
            tuple(r._replace(failed=r.failed * more // n, tried=r.tried * more // n) for r in side) for side in risks
        ]
        low, high = (half_width(noise, more, *side) for side in zip(one_sided, grown, strict=True))
        luck = special.ndtri(POWER) * noise.sd / np.sqrt(more)
        near = margin - low - luck > -reach and margin + high + luck < reach
        return margin - luck > low or margin + luck < -high or near

    if not told(MOST_SEEDS):
        return None
    steps = [*range(6, n + 9), *range(n + 10, n + 32, 2), *range(n + 32, MOST_SEEDS, 4), MOST_SEEDS]
    return next(more for more in steps if told(more))
