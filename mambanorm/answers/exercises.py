"""What more seeds change, in words: for the solutions of notebooks 03, 04, 06 and 08."""

from __future__ import annotations

import pandas as pd

from mambanorm.answers.words import label
from mambanorm.study.tables import interval_says, seeds_text

TOLD = ("above zero", "below zero")


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
