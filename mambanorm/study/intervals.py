"""Small-sample inference for the verdicts: intervals of paired differences, of rates, and the tests between groups.

    paired t          mean of the per-seed differences, Student's t
    simultaneous      Bonferroni: 1 − .05/m each, so that all m of a claim hold together in 95 %
    Clopper–Pearson   exact interval of a rate
    Fisher            exact tests of two rates

A percentile bootstrap is too narrow at 8 seeds, and Holm on sign-flip p-values can never reject there: neither is used.

Glossary: n seeds, m comparisons of a claim, level = coverage of a two-sided interval.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from scipy import special

from mambanorm.basics.later import Later

stats = Later("scipy.stats")  # takes half a second

LEVEL = 0.95


def t_interval(values: Iterable[float], level: float = 0.95) -> tuple[float, float]:
    """The t-interval of the mean; NaN for fewer than two values."""
    values = np.asarray(list(values), float)
    if len(values) < 2:
        return float("nan"), float("nan")
    half = t_quantile(len(values) - 1, (1 - level) / 2) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


@lru_cache(maxsize=8192)
def t_quantile(df: int, one_sided: float = 0.025) -> float:
    """The quantile of Student's t that is exceeded with this probability; infinite without a degree of freedom."""
    return float(-special.stdtrit(df, one_sided)) if df > 0 else float("inf")


def simultaneous(m: int, level: float = LEVEL) -> float:
    """The level that each of m intervals needs for all of them together to hold the level (Bonferroni)."""
    if m < 1:
        raise ValueError(f"the number of comparisons must be at least 1, got {m}")
    return 1 - (1 - level) / m


@lru_cache(maxsize=4096)
def clopper_pearson(k: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """The exact interval of a rate of which k of n were seen. ValueError for k outside 0…n or no trial."""
    if not 0 <= k <= n or n < 1:
        raise ValueError(f"k of n events needs 0 ≤ k ≤ n and n ≥ 1, got {k} of {n}")
    tail = (1 - level) / 2  # quantiles of the beta distribution
    low = float(special.betaincinv(k, n - k + 1, tail)) if k else 0.0
    return low, float(special.betaincinv(k + 1, n - k, 1 - tail)) if k < n else 1.0


@lru_cache(maxsize=4096)
def fisher(k: int, n: int, other_k: int, other_n: int) -> float:
    """Two-sided p of Fisher's exact test that two rates, k of n and other_k of other_n, are one."""
    return float(stats.fisher_exact([[k, n - k], [other_k, other_n - other_k]]).pvalue)


@lru_cache(maxsize=4096)
def fisher_above(k: int, n: int, other_k: int, other_n: int) -> float:
    """One-sided p of Fisher's exact test that k of n is no larger a rate than other_k of other_n."""
    return float(stats.fisher_exact([[k, n - k], [other_k, other_n - other_k]], alternative="greater").pvalue)


def deviations(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Mean |y − median(y)| along an axis: the spread of version 1 of the verdicts' protocol."""
    return np.abs(values - np.median(values, axis=axis, keepdims=True)).mean(axis=axis)
