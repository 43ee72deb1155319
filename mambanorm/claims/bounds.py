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
    """An arm that diverges at the rate p takes `linear`·(p − seen) + `square`·(p − seen)² off the comparison. seen: the
    share of the runs in its mean that diverged; failed, tried: of all its runs that count."""

    linear: float
    square: float
    seen: float
    failed: int
    tried: int


def half_width(noise: Noise, n: int, one_sided: float, risks: tuple[Risk, ...]) -> float:
    """How far one bound lies from the mean of n seeds.

    An arm that diverges with probability p costs its comparison what `Risk` says, and shows k divergences or fewer with
    probability F(k). For every such p, up to STABLE of an arm without any divergence, the mean is tested at a level
    that rises as k falls: one_sided / (F(k)·h), h = Σⱼ P(j)/F(j). Over all j that could have been seen these levels are
    one_sided on average, so luck with divergences and luck with the mean come together in at most `one_sided` of
    studies.
    """
    error = noise.error(n)
    width = t_quantile(n - 1, one_sided) * error
    for linear, square, seen, failed, tried in risks:
        p, t = _by_rate(n - 1, one_sided, failed, tried)
        width = max(width, float((linear * (p - seen) + square * (p - seen) ** 2 + t * error).max(initial=0.0)))
    return width


@lru_cache(maxsize=20_000)
def _by_rate(df: int, one_sided: float, k: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Rates at which k of n runs may have diverged, and the quantile of t that goes with each; none for an arm that is
    stable."""
    if k == 0 and (1 - STABLE) ** n <= ONE_SIDED:
        return np.empty(0), np.empty(0)
    most = clopper_pearson(k, n, 1 - one_sided / 8)[1]  # beyond it every level is near 1
    rates = np.linspace(k / n, min(most, STABLE) if k == 0 else most, 32)
    below = special.bdtr(np.arange(n + 1)[:, None], n, rates)  # F(j), a column a rate
    exactly = np.diff(below, axis=0, prepend=0.0)
    shared = np.divide(exactly, below, out=np.zeros_like(below), where=below > 0).sum(axis=0)
    level = np.minimum(one_sided / np.maximum(below[k] * shared, 1e-300), 1 - 1e-9)
    return rates, -special.stdtrit(df, level)


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
