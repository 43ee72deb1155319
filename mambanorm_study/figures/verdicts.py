"""Figures of verdicts: all claims on one page, one claim, and claims over the number of steps.

The verdicts are from `mambanorm_study.claims`. Each claim has a unit and a smallest effect of
interest. The word of a verdict is its outcome, a key of WORD_MEANINGS.
"""

from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from mambanorm_study.figures.colours import GREY, INK, WORD_COLOURS, fresh_marker
from mambanorm_study.figures.style import (
    StudyFigure,
    difference_axis,
    finish,
    new_figure,
    panel_grid,
    styled,
)
from mambanorm_study.tables.run_tables import seeds_text

# Word of a verdict → meaning of the word, for captions and the HTML table.
WORD_MEANINGS = {
    "supported": "the 95 % interval lies above 0",
    "no gain": "it contains 0 and lies below the smallest effect of interest (one point)",
    "opposite": "it lies below 0",
    "cannot tell": "anything else; about how many more seeds would tell is printed",
    "no word": "measured only, fewer than six pairs of runs, or accuracy near chance",
}
SHARED_UNITS = ("pp", "bits a character")  # claims in one of these units share a panel
UNIT_NAMES = {
    "pp": "percentage points",
    "AIC": "AIC of the best other law − that of the exponential",
}


class Row(NamedTuple):
    """One row of a figure: on the left its name, in the middle a comparison of arms, on the right
    the word of the comparison (its outcome, such as "supported") and a note.

    comparison: a `claims.verdict.Row`.
    """

    name: str
    comparison: Any
    word: str
    text: str  # the verdict as it is printed, such as "no gain of a point"
    note: str


@styled
def fig_verdicts(
    verdicts: Sequence, title: str = "Every claim, every verdict", *, in_order: bool = False
) -> StudyFigure:
    """Return a figure of the comparison that decides each verdict, with its interval: one row per
    claim and task, with the claim in words.

    Claims with the same unit of SHARED_UNITS share a panel; every other claim has its own panel. An
    axis is cut where a few rows reach much further than the others. A claim that was not run has an
    empty row. in_order: draw the verdicts of a question, which are on one task: keep their order,
    draw one panel for each unit, and leave the comparisons out, because the sentences say them.
    Raises ValueError if `verdicts` is empty.
    """
    if not verdicts:
        raise ValueError("there is no verdict to draw: make them with mambanorm.judge")
    words = list(WORD_MEANINGS)
    if not in_order:
        verdicts = sorted(verdicts, key=lambda verdict: words.index(verdict.word))
    panels: dict[str, list[Row]] = {unit: [] for unit in SHARED_UNITS}
    for verdict in verdicts:
        unit = verdict.main_row.unit
        panel = unit if unit in SHARED_UNITS or in_order else verdict.claim.id
        panels.setdefault(panel, []).append(_row_of_verdict(verdict, not in_order))
    rows = [panel for panel in panels.values() if panel]
    heights = [0.75 + 0.56 * len(panel) for panel in rows]
    fig, axes = new_figure(len(rows), 1, height=sum(heights) + 0.9, height_ratios=heights)
    for ax, panel in zip(axes[:, 0], rows, strict=True):
        _draw_rows(ax, panel)
    is_cut = [_cut_axis(ax, panel) for ax, panel in zip(axes[:, 0], rows, strict=True)]
    run = [verdict for verdict in verdicts if verdict.n]
    return finish(
        fig,
        title,
        f"protocol {verdicts[0].protocol}",
        verdicts[0].task if in_order else "",
        f"{verdicts[0].scale} scale",
        seeds_text([verdict.n for verdict in run]) if run else "no runs",
        "large dot and line: mean difference and 95 % interval; small dots: seeds within the axis",
        *_mark_captions([verdict for verdict in verdicts if np.isfinite(verdict.main_row.paper)]),
        "* not fresh: learning rates chosen on these seeds, or judged by an earlier rule"
        if any(not verdict.main_row.fresh for verdict in run)
        else "",
        "an arrow points to an effect beyond the axis" if any(is_cut) else "",
    )


def _row_of_verdict(verdict, with_comparison: bool) -> Row:
    """Return the row of a verdict. The row's note gives the effect, the paper's number, the
    comparison (if `with_comparison`), and the reason if the word is "cannot tell" or "no word".
    """
    row, star, note = verdict.main_row, "", verdict.reason or "not run"
    if verdict.n:
        paper = f"; paper {row.paper:+.1f}".replace("-", "−") if np.isfinite(row.paper) else ""
        reason = fill(verdict.reason, 60, max_lines=1, placeholder=" …")
        comparison = f"{row.comparison}, {verdict.task}; {verdict.claim.id}\n"
        note = f"{row.amount}{paper}\n{comparison if with_comparison else ''}{reason}"
        star = "" if row.fresh else " *"
    name = "\n".join(fill(line, 52) for line in verdict.claim.words.splitlines())
    return Row(name, row, verdict.word, verdict.as_text + star, note.rstrip())


def _meanings(words: Iterable[str]) -> list[str]:
    """Return "word: meaning" for each of the words, in the order of WORD_MEANINGS."""
    words_shown = set(words)
    return [f"{word}: {meaning}" for word, meaning in WORD_MEANINGS.items() if word in words_shown]


def _mark_captions(verdicts_with_paper: Sequence) -> tuple[str, str]:
    """Return the parts of the caption that explain the grey ticks and the hollow diamonds.

    The second part is "" if `verdicts_with_paper`, the verdicts with a number of the paper, is
    empty.
    """
    tasks = ", ".join(
        dict.fromkeys(verdict.claim.compared_paper_task for verdict in verdicts_with_paper)
    )
    diamond = f"hollow diamond: the paper's own number, on {tasks}" if tasks else ""
    return "grey tick: the smallest effect of interest", diamond


def _draw_rows(ax: Axes, rows: Sequence[Row]) -> None:
    """Draw the rows of one panel; their comparisons have the same unit."""
    on_axis = dict(transform=ax.get_yaxis_transform())
    for y, row in enumerate(rows):
        colour = WORD_COLOURS[row.word]
        if row.comparison.n:
            _draw_comparison(ax, y, row.comparison, colour)
        height, va = (y - 0.06, "bottom") if row.note else (y, "center")
        ax.text(1.01, height, row.text, color=colour, weight="bold", va=va, **on_axis)
        ax.text(
            1.01, y + 0.02, row.note, color=INK, fontsize=7, va="top", linespacing=1.05, **on_axis
        )
    unit = rows[0].comparison.unit
    ax.set_yticks(range(len(rows)), [row.name for row in rows])
    ax.set(ylim=(len(rows) - 0.4, -0.6), xlabel=UNIT_NAMES.get(unit, unit))
    difference_axis(ax, color=INK, linewidth=0.7, zorder=0)
    ax.locator_params(axis="x", nbins=5)


def _cut_axis(ax: Axes, rows: Sequence[Row]) -> bool:
    """Cut the x axis at a limit, 2.5 times the median reach of the rows, if the reach of a row is
    more than 1.5 times this limit. Return True if the axis was cut.

    The reach of a row is the largest magnitude of its effect, interval and paper's number. The axis
    of fewer than three rows is never cut.
    """
    run = [(y, row.word, row.comparison) for y, row in enumerate(rows) if row.comparison.n]
    reach = [np.nanmax(np.abs([c.effect, c.low, c.high, c.paper])) for _, _, c in run]
    limit = 2.5 * np.median(reach) if len(run) > 2 else np.inf
    if max(reach, default=0) <= 1.5 * limit:
        return False
    low, high = np.clip(ax.get_xlim(), -1.15 * limit, limit)
    ax.set_xlim(low, high)
    for y, word, comparison in run:
        if comparison.effect >= high:
            ax.plot(0.97 * high, y, ">", color=WORD_COLOURS[word])
        elif comparison.effect <= low:
            ax.plot(0.97 * low, y, "<", color=WORD_COLOURS[word])
    return True


def _draw_comparison(ax: Axes, y: float, row, colour: str) -> None:
    """Draw a comparison, with a tick at the smallest effect of interest and a hollow diamond at the
    paper's number.
    """
    ax.plot([row.smallest] * 2, [y - 0.36, y + 0.36], color=GREY, linewidth=1.2, zorder=1)
    seeds = () if row.unit == "% of runs" else row.per_seed  # a single run has no percentage
    draw_estimate(ax, y, row.effect, row.low, row.high, colour, seeds)
    if np.isfinite(row.paper):
        ax.plot(
            row.paper, y, "D", markersize=6, markerfacecolor="none", markeredgecolor=INK, zorder=4
        )


def draw_estimate(
    ax: Axes,
    y: float,
    mean: float,
    low: float,
    high: float,
    colour: str,
    seeds: Sequence[float],
    fresh: Sequence[float] = (),
    *,
    is_open: bool = False,
    below: float = 0.22,
    marker: str = "o",
) -> None:
    """Draw a row of a forest plot: a mean with its interval, and below the mean one dot per seed.

    seeds: the difference for each seed. fresh: differences between the reader's own runs, drawn as
    diamonds. is_open: draw the mean as a hollow marker. below: distance from the mean to the dots.
    """
    if np.isfinite(low):
        ax.hlines(y, low, high, color=colour, linewidth=2.2)
    ax.plot(seeds, np.full(len(seeds), y + below), "o", markersize=2.5, color=colour, alpha=0.55)
    face, edge = ("white", colour) if is_open else (colour, "white")
    style = dict(markersize=6.5, markerfacecolor=face, markeredgecolor=edge, zorder=3)
    ax.plot(mean, y, marker=marker, color=colour, **style)
    ax.plot(fresh, np.full(len(fresh), y + below), **fresh_marker(size=5))


@styled
def fig_claim(verdict) -> StudyFigure:
    """Return a figure of every comparison of one claim: mean, 95 % interval, seeds and the paper's
    number.

    Comparisons in different units, as in the claim on growth (H10), have one panel per unit. Raises
    ValueError for a claim that was not run.
    """
    panels: dict[str, list[Row]] = {}
    for row in verdict.rows:
        more_seeds = f"about {row.seeds_to_tell} new seeds would tell"
        note = more_seeds if row.word == "cannot tell" and row.seeds_to_tell else ""
        name = row.comparison + ("" if row.decides else "  (not deciding)")
        if row.n:
            panels.setdefault(row.unit, []).append(Row(name, row, row.word, row.as_text, note))
    if not panels:
        raise ValueError(f"claim {verdict.claim.id} was not run: there is nothing to draw")
    heights = [0.7 + 0.38 * len(panel) for panel in panels.values()]
    fig, axes = new_figure(
        len(panels), 1, height=sum(heights) + 0.75, width=8.4, height_ratios=heights
    )
    for ax, panel in zip(axes[:, 0], panels.values(), strict=True):
        _draw_rows(ax, panel)
    comparisons = [row.comparison for panel in panels.values() for row in panel]
    return finish(
        fig,
        f"{verdict.claim.id} on {verdict.task}: {verdict.as_text}",
        verdict.basis,
        seeds_text([row.n for row in comparisons]),
        "line: 95 % interval",
        *_mark_captions([verdict] if any(np.isfinite(row.paper) for row in comparisons) else []),
        *_meanings([row.word for row in comparisons]),
    )


@styled
def fig_budget(table: pd.DataFrame, caption: str) -> StudyFigure:
    """Return a figure of the deciding comparison's effect over the number of training steps, one
    panel per claim and task.

    table: the frame of `claims.pages.comparisons_by_steps`. Raises ValueError for a table without
    rows.
    """
    if table.empty:
        raise ValueError(
            "the table has no rows: none of these claims has been run at several numbers of steps"
        )
    panels = [panel for _, panel in table.groupby(["claim", "task"], sort=False)]
    fig, axes = panel_grid(len(panels), 3, row_height=2.3, extra_height=0.9)
    for ax, panel in zip(axes, panels, strict=True):
        _draw_budget(ax, panel)
    return finish(
        fig,
        "Do the answers change with the number of steps?",
        caption,
        seeds_text(table.n),
        "dot and line: the comparison that decides at all steps, with its 95 % interval, "
        "in the colour of its word",
        "grey line: the smallest effect of interest",
    )


def _draw_budget(ax: Axes, rows: pd.DataFrame) -> None:
    first, x, colours = rows.iloc[0], range(len(rows)), rows.word.map(WORD_COLOURS)
    ax.axhline(first.smallest, color=GREY, linewidth=1.2)
    ax.plot(x, rows.effect, color=GREY, linewidth=0.9, alpha=0.6)
    ax.vlines(x, rows.low, rows.high, color=colours, linewidth=2.2)
    ax.scatter(x, rows.effect, s=42, color=colours, edgecolor="white", zorder=3)
    ax.set_xticks(x, [f"{row.steps:,}\n{row.word}" for row in rows.itertuples()], fontsize=7)
    title = fill(f"{first.words} ({first.task})", 33)
    ax.set(xlim=(-0.5, len(rows) - 0.5), title=title, xlabel="steps")
    ax.title.set_fontsize(8.5)
    ax.set_ylabel(UNIT_NAMES.get(first.unit, first.unit))
