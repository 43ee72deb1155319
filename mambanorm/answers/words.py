"""Small pieces of sentences that several answers share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pandas as pd

from mambanorm.arms import Arm
from mambanorm.study.intervals import t_interval
from mambanorm.study.tables import describe_frame, interval_says, points


def label(arm: str) -> str:
    """`RMSN>SSM>GN` as it is read: RMSN→GN."""
    return Arm.parse(arm).label


class Gain(NamedTuple):
    """A mean difference with its interval, as a row of `tables.paired` has them."""

    difference: float
    low: float
    high: float


def over_seeds(differences: pd.Series) -> Gain:
    """The mean of differences seed by seed, with its 95 % t-interval."""
    return Gain(differences.mean(), *t_interval(differences.dropna()))


def gained(row) -> str:
    """The difference of a row of `tables.paired` with its interval: "+2.3 points [−0.4, 5.0]"."""
    return points(row.difference, row.low, row.high)


def told(row, between: str = ", ") -> str:
    """The same, and what the interval says: "+2.3 points [−0.4, 5.0], we cannot tell"."""
    return f"{gained(row)}{between}{clearly(row)}"


def clearly(row) -> str:
    """What the interval of such a row says: "clearly above zero", "clearly below zero", "we cannot tell", or "one seed
    cannot tell"."""
    return interval_says(row.low, row.high)


def listed(words: Iterable[str], nothing: str = "none") -> str:
    """ "a", "a and b", "a, b and c"; `nothing` for no word."""
    words = list(words)
    if not words:
        return nothing
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def numbered(sentences: Iterable[str]) -> str:
    """A numbered list in Markdown, for questions that have numbers."""
    return "\n".join(f"{i}. {text}" for i, text in enumerate(sentences, 1))


def answer(runs: pd.DataFrame, shows: str, lines: Iterable[str], between: str = "\n") -> str:
    """The head of an answer, which says scale, seeds and spread, and its lines."""
    return f"**Answer** ({describe_frame(runs, shows)}).\n\n" + between.join(lines)
