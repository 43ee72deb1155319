"""The comparisons of one claim as a small SVG, for the folds of the table of verdicts.

It shows what `fig_claim` does, in a third of the bytes of its picture and sharp at any size: a notebook holds one of
them for each claim, with a row for each comparison and task.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from urllib.parse import quote

import numpy as np
from matplotlib.ticker import MaxNLocator

from mambanorm.figures.style import GREY, INK
from mambanorm.figures.verdicts import NOT_BY_SEED, STATES, note_of, row_name, spelled

ROW, TOP, AXIS = 25, 6, 34
"""Heights in pixels: of a row, above the first, and of the axis below the last."""
LEFT, PLOT, WIDTH = 262, 250, 690
"""Where the plot begins, how wide it is, and how wide the whole is, in pixels."""


def claim_svg(verdict) -> str:
    """The SVG of a claim's comparisons as text: a panel for each unit. ValueError for a claim that was not run."""
    rows = verdict.rows[verdict.rows.n > 0] if len(verdict.rows) else verdict.rows
    if not len(rows):
        raise ValueError(f"claim {verdict.claim.id} was not run: there is nothing to draw")
    several, y, parts = rows.task.nunique() > 1, 0, []
    for unit, panel in rows.groupby("unit", sort=False):
        parts += _panel(unit, list(panel.itertuples()), y, several)
        y += TOP + ROW * len(panel) + AXIS
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {y}' width='{WIDTH}' height='{y}' "
        f"font-family='system-ui,sans-serif' font-size='11' fill='{INK}' stroke-linecap='round'>{''.join(parts)}</svg>"
    )


def as_data(svg: str) -> str:
    """The SVG as a data URI."""
    return f"data:image/svg+xml,{quote(svg, safe=''' !$'()*+,-./:;=?@_~''')}"


def _panel(unit: str, rows: list, top: int, several: bool) -> list[str]:
    """One unit's comparisons below each other, over their common axis."""
    ticks = _ticks(rows, unit)
    span = ticks[-1] - ticks[0]
    end = top + TOP + ROW * len(rows)

    def x(value: float) -> str:
        return f"{LEFT + PLOT * (np.clip(value, ticks[0], ticks[-1]) - ticks[0]) / span:.0f}"

    lines = "".join(f"M{x(t)} {top + TOP}V{end}" for t in ticks)
    parts = [f"<path d='{lines}' stroke='#eee'/>"]
    if ticks[0] < 0 < ticks[-1]:
        parts.append(f"<path d='M{x(0)} {top + TOP}V{end}' stroke='#bbb'/>")
    numbers = "".join(f"<text x='{x(t)}' y='{end + 13}'>{_number(t)}</text>" for t in ticks)
    named = f"<text x='{LEFT + PLOT // 2}' y='{end + 27}'>{spelled(unit)}</text>"
    parts.append(f"<g text-anchor='middle'>{numbers}{named}</g>")
    for i, row in enumerate(rows):
        parts += _row(row, top + TOP + ROW * i + ROW // 2, x, unit, several)
    return parts


def _ticks(rows: Iterable, unit: str) -> np.ndarray:
    """Round numbers that hold every value drawn."""
    values = [v for row in rows for v in (row.effect, row.low, row.high, row.threshold, row.paper)]
    values += [v for row in rows if unit not in NOT_BY_SEED for v in row.per_seed]
    known = np.array([float(v) for v in values if v is not None and np.isfinite(v)])
    low, high = known.min(), known.max()
    return MaxNLocator(nbins=6).tick_values(low, high if high > low else low + 1)


def _row(row, y: int, x, unit: str, several: bool) -> list[str]:
    """Its name, threshold, interval, mean and seeds, the paper's number, and its state in words."""
    colour = STATES[row.state][0]
    marks = [f"<text x='{LEFT - 8}' y='{y + 4}' text-anchor='end'>{html.escape(row_name(row, several))}</text>"]
    marks.append(f"<path d='M{x(row.threshold)} {y - 9}v18' stroke='{GREY}'/>")
    if np.isfinite(row.low):
        marks.append(f"<path d='M{x(row.low)} {y}H{x(row.high)}' stroke='{colour}' stroke-width='2.2'/>")
    if unit not in NOT_BY_SEED:
        dots = "".join(f"M{x(seed)} {y + 7}h0" for seed in row.per_seed)
        marks.append(f"<path d='{dots}' stroke='{colour}' stroke-width='3' opacity='.6'/>")
    marks.append(f"<circle cx='{x(row.effect)}' cy='{y}' r='4' fill='{colour}' stroke='#fff'/>")
    if np.isfinite(row.paper):
        marks.append(f"<path d='M{x(row.paper)} {y}m-4.5 0l4.5-4.5 4.5 4.5-4.5 4.5z' fill='none' stroke='{INK}'/>")
    return [*marks, _said(row, y, colour)]


def _said(row, y: int, colour: str) -> str:
    """The state, and below it in small why it is none or how many seeds would tell."""
    note, at = note_of(row), LEFT + PLOT + 12
    word = f"<text x='{at}' y='{y + (0 if note else 4)}' font-weight='700' fill='{colour}'>{row.state}</text>"
    return word + (
        f"<text x='{at}' y='{y + 10}' font-size='9' fill='{GREY}'>{html.escape(note)}</text>" if note else ""
    )


def _number(value: float) -> str:
    return re.sub("^-", "−", f"{value:g}" if abs(value) > 1e-12 else "0")
