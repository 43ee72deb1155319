"""Seeds: how a number of them, or a list, is read and checked.

check_seeds     a number of seeds, or a list of them → the list
check_once      nothing is given twice
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

from mambanorm.basics.settings import check_scale
from mambanorm.config import check_seed
from mambanorm.training.presets import SEEDS_PER_ARM

MOST_SEEDS = 1_000
"""How many seeds a list may have. A plain number n stands for 0…n−1 and is at most 100: seed 100 tunes."""

TUNE_SEEDS, SELECT_SEEDS = (100, 101), (200, 201)
"""Seeds that are no test seeds. Version 1 of the verdicts' protocol chose learning rates on the first, "the best of" on
the second; version 2 needs neither, its test seeds choose for each other."""


def check_seeds(seeds: int | Iterable[int] | None, scale: str) -> list[int]:
    """`8` → [0…7]; a list of seeds as it is; None → the scale's.

    ValueError if there are none, too many, one twice, or one that is no whole number from 0 up.
    """
    seeds = SEEDS_PER_ARM[check_scale(scale)] if seeds is None else seeds
    hint = "give a number of seeds, which 8 as 0…7 is, or a list such as [0, 1, 2]"
    if isinstance(seeds, bool | str | bytes | float):
        raise ValueError(f"seeds must be whole numbers, got {seeds!r}: {hint}")
    if not isinstance(seeds, Iterable):
        return list(range(_check_count(_whole(seeds, hint), hint)))
    chosen = [check_seed(_whole(seed, hint)) for seed in islice(seeds, MOST_SEEDS + 1)]
    if len(chosen) > MOST_SEEDS:
        raise ValueError(f"more than {MOST_SEEDS:,} seeds in a list: {hint}")
    if not chosen:
        raise ValueError(f"at least one seed is needed, got {seeds!r}: {hint}")
    check_once("seed", chosen)
    return chosen


def _whole(number: object, hint: str) -> int:
    """A whole number, whichever integer type it came in."""
    try:
        if not isinstance(number, bool):
            return operator.index(number)
    except TypeError:
        pass
    raise ValueError(f"a seed is a whole number, got {number!r}: {hint}")


def _check_count(count: int, hint: str) -> int:
    if count < 1:
        raise ValueError(f"at least one seed is needed, got {count}: {hint}")
    if count > TUNE_SEEDS[0]:
        most = TUNE_SEEDS[0]
        raise ValueError(f"{count:,} seeds are too many: at most {most}, because those from {most} on tune and select")
    return count


def check_once(what: str, given: Sequence[object]) -> None:
    """ValueError for what is given twice."""
    if twice := [one for one, times in Counter(given).items() if times > 1]:
        raise ValueError(f"{what} {twice[0]!r} is given twice")
