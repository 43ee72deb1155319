"""Why new seeds are judged alone: made-up studies that look twice at the same question.

The true effect lies exactly at its threshold, so that the word "holds" is wrong. One study says it by chance in 2.5 %
of cases (a one-sided 97.5 % t-bound). What becomes of that when a study that could not tell gets as many seeds again?
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from mambanorm.study.intervals import t_quantile

ONE_SIDED = 0.025


def two_looks(seeds: int = 8, studies: int = 20_000, draw: int = 0) -> pd.DataFrame:
    """The share of made-up studies that call an effect at the threshold larger than it: one row for one study, for the
    old and new seeds of an undecided one together, and for its new seeds alone; column `wrong`, a fraction.

    Noise is normal and seeds are independent. ValueError with fewer than two seeds or one study.
    """
    if seeds < 2 or studies < 1:
        raise ValueError(f"two looks need at least 2 seeds and 1 study, got {seeds} and {studies}")
    noise = np.random.default_rng(draw).standard_normal((studies, 2 * seeds))
    first, fresh, pooled = (_above(part) for part in (noise[:, :seeds], noise[:, seeds:], noise))
    rows = {
        "one study": first.mean(),
        "old and new seeds together": (first | pooled).mean(),  # the second look is taken where the first did not tell
        "new seeds alone": fresh[~first].mean(),
    }
    return pd.DataFrame({"wrong": rows})


def _above(values: np.ndarray) -> np.ndarray:
    """(studies,) whether the lower bound of the mean over seeds (studies, seeds) lies above the threshold, here 0."""
    n = values.shape[1]
    half = t_quantile(n - 1, ONE_SIDED) * values.std(axis=1, ddof=1) / np.sqrt(n)
    return values.mean(axis=1) - half > 0
