"""Phrases that several answers share: differences with their intervals, and lists."""

from collections.abc import Iterable
from typing import NamedTuple

import pandas as pd

from mambanorm_study.tables.intervals import t_interval
from mambanorm_study.tables.run_tables import describe_frame, interval_says, points


class Difference(NamedTuple):
    """A mean difference with its interval, in the columns of `tables.paired`."""

    difference: float
    low: float
    high: float


def mean_difference(differences: pd.Series) -> Difference:
    """Return the mean of differences, one a seed, with its 95 % t-interval."""
    return Difference(differences.mean(), *t_interval(differences.dropna()))


def difference_text(row) -> str:
    """Return the difference of a row of `tables.paired`: "+2.3 points [−0.4, 5.0]"."""
    return points(row.difference, row.low, row.high)


def judged_difference(row, between: str = ", ") -> str:
    """Return the difference and what its interval says: "+2.3 points [−0.4, 5.0], we cannot tell".

    between: the text between the two.
    """
    return f"{difference_text(row)}{between}{interval_says(row.low, row.high)}"


def join_words(words: Iterable[str]) -> str:
    """Return "a", "a and b", or "a, b and c"; "none" for no word."""
    *first, last = list(words) or ["none"]
    return f"{', '.join(first)} and {last}" if first else last


def numbered_list(sentences: Iterable[str]) -> str:
    """Return a numbered list in Markdown, for questions that have numbers."""
    return "\n".join(f"{i}. {text}" for i, text in enumerate(sentences, 1))


def answer_text(runs: pd.DataFrame, shows: str, lines: Iterable[str]) -> str:
    """Return an answer: its head with scale, seeds and spread, and its lines."""
    return f"**Answer** ({describe_frame(runs, shows)}).\n\n" + "\n".join(lines)
