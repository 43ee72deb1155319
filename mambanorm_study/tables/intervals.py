"""Small-sample inference: intervals of paired differences, of rates and of the next run.

A percentile bootstrap is too narrow at 8 seeds, and Holm on sign-flip p-values can never reject
there: neither is used.
"""

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from scipy import special

from mambanorm_study.runs.presets import TEXTS

LEVEL = 0.95
FEWEST = 3  # the number of values that a prediction interval needs


def t_interval(values: Iterable[float], level: float = LEVEL) -> tuple[float, float]:
    """Return the t-interval of the mean; NaN for fewer than two values."""
    values = np.asarray(list(values), float)
    if len(values) < 2:
        return float("nan"), float("nan")
    half = t_quantile(len(values) - 1, (1 - level) / 2) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


@lru_cache(maxsize=8192)
def t_quantile(df: int, one_sided: float = 0.025) -> float:
    """Return the quantile of Student's t that is exceeded with this probability; infinite without a
    degree of freedom.
    """
    return float(-special.stdtrit(df, one_sided)) if df > 0 else float("inf")


@lru_cache(maxsize=4096)
def clopper_pearson(k: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Return the exact (Clopper–Pearson) interval of a rate, from k events in n trials. ValueError
    for k outside 0…n or no trial.
    """
    if not 0 <= k <= n or n < 1:
        raise ValueError(f"k of n events needs 0 ≤ k ≤ n and n ≥ 1, got {k} of {n}")
    tail = (1 - level) / 2  # the ends are quantiles of beta distributions
    low = float(special.betaincinv(k, n - k + 1, tail)) if k else 0.0
    high = float(special.betaincinv(k + 1, n - k, 1 - tail)) if k < n else 1.0
    return low, high


def k_of_n(k: int, n: int) -> str:
    """Return the count with the exact interval of its rate: `1 of 12 [0, 38 %]`."""
    low, high = clopper_pearson(k, n)
    return f"{k} of {n} [{100 * low:.0f}, {100 * high:.0f} %]"


def prediction_interval(values: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """Return the interval of the next value drawn from the normal distribution of these values; NaN
    for fewer than FEWEST.
    """
    n = len(values)
    if n < FEWEST:
        return np.nan, np.nan
    half = t_quantile(n - 1, (1 - level) / 2) * np.std(values, ddof=1) * np.sqrt(1 + 1 / n)
    return float(np.mean(values) - half), float(np.mean(values) + half)


@lru_cache(maxsize=64)
def shared_rows(task: str, scale: str) -> str:
    """Return what the seeds of a task share, so that an interval over seeds is about it alone: "one
    test text", "one test set" or "one pool of rows"; "" if each seed makes new rows.
    """
    if task in TEXTS:
        return "one test text"
    import torch  # imported here, because the runs of a claim can be listed without torch

    from mambanorm_study.tasks import TASKS, check_task, load_task

    entry = TASKS[check_task(task)]
    shape = entry.shape(scale) if entry.shape is not None else None
    if shape is not None and shape.new_rows:
        return ""
    if shape is not None and shape.sizes[0]:
        return "one pool of rows" if shape.reshuffled else "one test set"
    data, other = (load_task(task, scale, seed) for seed in (0, 1))
    same_test = torch.equal(data.test.labels, other.test.labels)
    return "one test set" if same_test else "one pool of rows"
