"""Phrases for several answers: differences with their intervals, and lists."""

from collections.abc import Iterable

import pandas as pd

from mambanorm_study.tables.intervals import t_interval
from mambanorm_study.tables.run_tables import (
    describe_frame,
    difference_with_interval,
    interval_in_words,
)


def mean_difference(differences: pd.Series) -> pd.Series:
    """Return a series with the entries `difference`, the mean of `differences` (one per seed), and
    `low` and `high`, the ends of the 95 % t-interval of this mean.
    """
    low, high = t_interval(differences.dropna())
    return pd.Series({"difference": differences.mean(), "low": low, "high": high})


def difference_text(row) -> str:
    """Return the difference in a row of `run_tables.paired` with its interval, as text: "+2.3
    points [−0.4, 5.0]".
    """
    return difference_with_interval(row.difference, row.low, row.high)


def judged_difference(row) -> str:
    """Return the difference in a row of `run_tables.paired` with its interval and with what the
    interval says about it, as text: "+2.3 points [−0.4, 5.0], we cannot tell".
    """
    return f"{difference_text(row)}, {interval_in_words(row.low, row.high)}"


def join_words(words: Iterable[str]) -> str:
    """Return "a", "a and b", or "a, b and c"; "none" if there are no words."""
    *first, last = list(words) or ["none"]
    return f"{', '.join(first)} and {last}" if first else last


def numbered_list(sentences: Iterable[str]) -> str:
    """Return sentences as a numbered list in Markdown."""
    return "\n".join(f"{i}. {text}" for i, text in enumerate(sentences, 1))


def answer_text(runs: pd.DataFrame, shows: str, lines: Iterable[str]) -> str:
    """Return an answer in Markdown: an opening with the scale and the seeds of `runs`, then
    `lines`.

    shows: the statistics in the lines, such as "mean ± sd, differences with 95 % t-interval".
    """
    return f"**Answer** ({describe_frame(runs, shows)}).\n\n" + "\n".join(lines)
