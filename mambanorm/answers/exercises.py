"""What more seeds change, in words: for the solutions of notebooks 03, 04, 06 and 08."""

from __future__ import annotations

from itertools import combinations

import pandas as pd

from mambanorm.answers.words import label
from mambanorm.study.tables import interval_says, seeds_text, summarize

TOLD = ("above zero", "below zero")


def parted(few: pd.DataFrame, more: pd.DataFrame) -> str:
    """Which pairs of arms overlap in their 95 % intervals with few seeds and no longer do with more, task by task.
    Both are run frames of the same arms."""
    after = summarize(more)
    lines = [f"With {seeds_text(after.n)}:"]
    for task, here in summarize(few).groupby("task", sort=False):
        before, still = _overlapping(here), _overlapping(after[after.task == task])
        apart = [pair for pair in before if set(pair) not in map(set, still)]
        named = "; ".join(f"{label(a)} from {label(b)}" for a, b in apart)
        lines.append(f"- **{task}**: {len(apart)} of {len(before)} overlaps are gone{named and ': ' + named}.")
    return "\n".join(lines)


def _overlapping(table: pd.DataFrame) -> list[tuple[str, str]]:
    """Pairs of arms whose intervals share a point. One seed has no interval and so rules out nothing."""
    rows = combinations(table.itertuples(), 2)
    return [(a.arm, b.arm) for a, b in rows if not (a.low > b.high or b.low > a.high)]


def decided(few: pd.DataFrame, more: pd.DataFrame) -> str:
    """Which differences are told from zero with more seeds and were not with few, and on which side they lie. Both are
    frames of `tables.paired`; a difference is known by its task and its two arms."""
    before = {(row.task, row.a, row.b): interval_says(row.low, row.high) for row in few.itertuples()}
    lines = [f"With {seeds_text(more.n)}:"]
    for task, here in more.groupby("task", sort=False):
        says = {(row.a, row.b): interval_says(row.low, row.high) for row in here.itertuples()}
        new = {pair: say for pair, say in says.items() if say in TOLD and say != before.get((task, *pair))}
        named = "; ".join(f"{label(a)} − {label(b)} is {say}" for (a, b), say in new.items())
        lines.append(f"- **{task}**: {named or 'none is told from zero that was not before'}.")
    return "\n".join(lines)
