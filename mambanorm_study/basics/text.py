"""Durations, counts and numbers as text: `4 min`, `3 runs`, `3.2 G`."""

import math


def spell(seconds: float) -> str:
    """Return a duration as text, such as `35 s`, `4 min`, `2 h 5 min` or `2,300 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 600 else f"{seconds / 3600:,.0f} h"


def plural(n: int, what: str) -> str:
    """Return a count as text, such as `1 run` or `2 runs`."""
    return f"{n} {what}{'' if n == 1 else 's'}"


def number_text(number: float) -> str:
    """Return a number as text: with three significant digits below 100, such as `0.678`, and
    rounded to an integer from 100 up, such as `4,340`.
    """
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def prefixed(number: float) -> str:
    """Return a number as text, with up to three significant digits and an SI prefix: `3.2 G`."""
    number = float(f"{number:.3g}")
    power = min(int(math.log10(number)) // 3, 7) if number >= 1 else 0
    return f"{number / 1000**power:.3g} {' kMGTPEZ'[power]}".strip()
