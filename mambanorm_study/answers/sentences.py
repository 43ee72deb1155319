"""Sentences that are written by hand and say what a figure shows, with checked numbers."""

import re
from collections.abc import Iterable

import numpy as np
import pandas as pd

from mambanorm_study.tables.run_tables import paired

# A number that a sentence states about the runs: {5.3}, {−0.134}, {1,200}.
STATED = re.compile(r"\{([+−]?[\d,]+(?:\.\d+)?)\}")


def stated_numbers(sentence: str) -> list[str]:
    """Return the numbers in braces in a sentence, such as ["+5.3"] for "by {+5.3} points"."""
    return STATED.findall(sentence)


def without_braces(sentence: str) -> str:
    """Return the sentence as it is printed: "by +5.3 points" for "by {+5.3} points"."""
    return STATED.sub(r"\1", sentence)


def wrong_numbers(sentence: str, values: Iterable[float]) -> list[str]:
    """Return the numbers in braces that differ from `values` after rounding, as texts such as
    "5.3 is stated, 4.9 is measured".

    values: one value for each number in braces. A number without a sign is compared with the
    magnitude of its value. Raises ValueError if there are more or fewer values than numbers.
    """
    wrong = []
    for stated, value in zip(stated_numbers(sentence), values, strict=True):
        measured = _as_stated(value, stated)
        if measured != stated:
            wrong.append(f"{stated} is stated, {measured} is measured")
    return wrong


def seen(sentence: str, *values: float, recorded: bool = True) -> str:
    """Return what a figure shows, as Markdown.

    sentence: written for the recorded runs, with each number about the runs in braces: "BN after
    the scan leads by {5.3} points." values: the same numbers, computed from the runs. recorded:
    False if the figure shows other runs than the recorded ones; their numbers are then added.
    Raises AssertionError if the recorded runs give another number than the sentence states.
    """
    text = without_braces(sentence)
    if recorded:
        wrong = wrong_numbers(sentence, values)
        assert not wrong, f"{text} {'; '.join(wrong)}"
        return text
    numbers = zip(stated_numbers(sentence), values, strict=True)
    measured = ", ".join(_as_stated(value, stated) for stated, value in numbers)
    return f"In the recorded runs: {text} In your runs: {measured}."


def _as_stated(value: float, stated: str) -> str:
    """Return a value with the sign and the decimals of the number `stated`."""
    decimals = len(stated.partition(".")[2])
    has_sign = stated[0] in "+−"
    if not np.isfinite(value):
        return "–"
    rounded = round(value if has_sign else abs(value), decimals) + 0.0
    return f"{rounded:{'+' if has_sign else ''},.{decimals}f}".replace("-", "−")


def gap(runs: pd.DataFrame, a: str, b: str, task: str = "curves") -> float:
    """Return the mean difference "a minus b" in test accuracy on a task, in points, over the seeds
    that both arms have; NaN if they share no seed.
    """
    of_task = runs[(runs.task == task) & runs.arm.isin([a, b])]
    pairs = paired(of_task, a, b) if of_task.arm.nunique() == 2 else pd.DataFrame()
    return float(pairs.difference.iloc[0]) if len(pairs) else float("nan")
