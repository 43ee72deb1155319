"""Small-sample inference for the verdicts: intervals of paired differences, of rates, and the tests between groups.

    paired t          mean of the per-seed differences, Student's t
    sign flip         the inverted exact sign-flip test, by Hartigan's subset means: assumes symmetry, nothing else
    simultaneous      Bonferroni: 1 − .05/m each, so that all m of a claim hold together in 95 %
    Clopper–Pearson   exact interval of a rate
    Fisher            exact test that two rates are one
    Brown–Forsythe    test that groups have one spread

A percentile bootstrap is too narrow at 8 seeds, and Holm on sign-flip p-values can never reject there: neither is used.

Glossary: n seeds, m comparisons of a claim, level = coverage of a two-sided interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
from scipy import stats

LEVEL = 0.95
SIGN_FLIP_AT_MOST = 14  # 2¹⁴ subset means


def t_interval(values: Iterable[float], level: float = 0.95) -> tuple[float, float]:
    """The t-interval of the mean; NaN for fewer than two values."""
    values = np.asarray(list(values), float)
    if len(values) < 2:
        return float("nan"), float("nan")
    half = stats.t.ppf((1 + level) / 2, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


@lru_cache(maxsize=8192)
def t_quantile(df: int, one_sided: float = 0.025) -> float:
    """The quantile of Student's t that is exceeded with this probability; infinite without a degree of freedom."""
    return float(stats.t.isf(one_sided, df)) if df > 0 else float("inf")


def simultaneous(m: int, level: float = LEVEL) -> float:
    """The level that each of m intervals needs for all of them together to hold the level (Bonferroni)."""
    if m < 1:
        raise ValueError(f"the number of comparisons must be at least 1, got {m}")
    return 1 - (1 - level) / m


@lru_cache(maxsize=16)
def _subset_means(n: int) -> np.ndarray:
    """(2ⁿ − 1, n): row i averages the i-th non-empty subset."""
    members = (np.arange(1, 2**n)[:, None] >> np.arange(n)) & 1
    return members / members.sum(1, keepdims=True)


def sign_flip_interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float]:
    """The centres that an exact two-sided sign-flip test of the mean does not reject.

    The 2ⁿ − 1 means of the non-empty subsets cut the line into 2ⁿ parts, each of which holds the centre with
    probability 2⁻ⁿ (Hartigan 1969), whatever the symmetric distribution. (−∞, ∞) where n is too small for the level;
    ValueError above SIGN_FLIP_AT_MOST values.
    """
    values = np.asarray(values, float)
    n = len(values)
    if n > SIGN_FLIP_AT_MOST:
        raise ValueError(f"a sign-flip interval takes at most {SIGN_FLIP_AT_MOST} values, got {n}: take t_interval")
    k = int((1 - level) / 2 * 2**n + 1e-9)
    if k < 1:
        return -np.inf, np.inf
    means = np.sort(_subset_means(n) @ values)
    return float(means[k - 1]), float(means[-k])


@lru_cache(maxsize=4096)
def clopper_pearson(k: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """The exact interval of a rate of which k of n were seen. ValueError for k outside 0…n or no trial."""
    if not 0 <= k <= n or n < 1:
        raise ValueError(f"k of n events needs 0 ≤ k ≤ n and n ≥ 1, got {k} of {n}")
    interval = stats.binomtest(int(k), int(n)).proportion_ci(level, method="exact")
    return float(interval.low), float(interval.high)


@lru_cache(maxsize=4096)
def fisher(k: int, n: int, other_k: int, other_n: int) -> float:
    """Two-sided p of Fisher's exact test that two rates, k of n and other_k of other_n, are one."""
    return float(stats.fisher_exact([[k, n - k], [other_k, other_n - other_k]]).pvalue)


@lru_cache(maxsize=4096)
def fisher_above(k: int, n: int, other_k: int, other_n: int) -> float:
    """One-sided p of Fisher's exact test that k of n is no larger a rate than other_k of other_n."""
    return float(stats.fisher_exact([[k, n - k], [other_k, other_n - other_k]], alternative="greater").pvalue)


def deviations(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Mean |y − median(y)| along an axis: what Brown and Forsythe compare between groups."""
    return np.abs(values - np.median(values, axis=axis, keepdims=True)).mean(axis=axis)


def brown_forsythe(*groups: Sequence[float]) -> float:
    """p of the Brown–Forsythe test that the groups have one spread; NaN where no value differs from its median."""
    if all(np.ptp(group) == 0 for group in groups):
        return float("nan")
    return float(stats.levene(*groups, center="median").pvalue)
