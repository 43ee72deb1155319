"""Intervals from few values: for the mean of the values, for a rate, and for the next value.

With 8 seeds percentile-bootstrap intervals are too narrow, and sign-flip tests with Holm's
correction can never reject the null hypothesis. Neither method is used.
"""

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from scipy import special

from mambanorm_study.runs.presets import TEXTS

FEWEST = 3  # values needed for a prediction interval


def t_interval(values: Iterable[float]) -> tuple[float, float]:
    """Return (low, high), the 95 % t-interval of the mean; (NaN, NaN) for fewer than two values."""
    values = np.asarray(list(values), float)
    if len(values) < 2:
        return float("nan"), float("nan")
    half = t_quantile(len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


@lru_cache(maxsize=8192)
def t_quantile(df: int, upper_tail: float = 0.025) -> float:
    """Return the value that Student's t with `df` degrees of freedom exceeds with the probability
    `upper_tail`; infinity for df = 0.
    """
    return float(-special.stdtrit(df, upper_tail)) if df > 0 else float("inf")


@lru_cache(maxsize=4096)
def clopper_pearson(k: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Return (low, high), the exact (Clopper–Pearson) interval for a rate, given k events in n
    trials. level: the confidence level.

    Raises ValueError unless 0 ≤ k ≤ n.
    """
    if not 0 <= k <= n:
        raise ValueError(f"k must be from 0 to n = {n}, got {k}")
    tail = (1 - level) / 2
    low = special.betaincinv(k, n - k + 1, tail) if k else 0.0
    high = special.betaincinv(k + 1, n - k, 1 - tail) if k < n else 1.0
    return float(low), float(high)


def count_with_interval(k: int, n: int) -> str:
    """Return a count and the exact 95 % interval for its rate as text: `1 of 12 [0, 38 %]`."""
    low, high = clopper_pearson(k, n)
    return f"{k} of {n} [{100 * low:.0f}, {100 * high:.0f} %]"


def prediction_interval(values: np.ndarray) -> tuple[float, float]:
    """Return (low, high), the 95 % prediction interval for the next value, if all values come from
    one normal distribution; (NaN, NaN) for fewer than three values (FEWEST).
    """
    n = len(values)
    if n < FEWEST:
        return np.nan, np.nan
    half = t_quantile(n - 1) * np.std(values, ddof=1) * np.sqrt(1 + 1 / n)
    return float(np.mean(values) - half), float(np.mean(values) + half)


@lru_cache(maxsize=64)
def shared_data_name(task: str, scale: str) -> str:
    """Return a name for the data that all seeds of a task share: "one test text", "one test set" or
    "one pool of rows"; "" if each seed draws new rows.

    If seeds share data, an interval over seeds says nothing about other data.
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
