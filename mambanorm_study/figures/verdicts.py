"""Plots of verdicts: all claims on one page, one claim, and claims over the training budget.

Verdicts are those of `mambanorm_study.claims`; each claim keeps its unit and its smallest effect.
"""

from collections.abc import Iterable, Sequence
from textwrap import fill

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mambanorm_study.figures.colours import GREY, INK, WORD_COLOURS, fresh_marker
from mambanorm_study.figures.style import difference_axis, finish, new_figure, panel_grid, styled
from mambanorm_study.tables.run_tables import seeds_text

# The word of a verdict → its meaning, for captions and the HTML table.
WORD_MEANINGS = {
    "supported": "the 95 % interval lies above 0",
    "no gain": "it contains 0 and lies below the smallest effect of interest (one point)",
    "opposite": "it lies below 0",
    "cannot tell": "anything else; about how many more seeds would tell is printed",
    "no word": "measured only, fewer than six pairs of runs, or accuracy near chance",
}
SHARED_UNITS = ("pp", "bits a character")  # claims in one of these units share a panel
NOT_BY_SEED = ("% of runs",)  # units of numbers that a single seed does not have
UNIT_NAMES = {
    "pp": "percentage points",
    "AIC": "AIC of the best other law − that of the exponential",
}
# An axis ends at this many times the median reach of its rows if one row reaches much further.
CLIP = 2.5


@styled
def fig_verdicts(verdicts: Sequence) -> Figure:
    """Return the deciding comparison of each claim and task with its interval, one row each.

    Claims on accuracy share an axis, which ends where most rows end. Every other claim has its own
    axis. A claim that was not run has an empty row. Raises ValueError if `verdicts` is empty.
    """
    if not verdicts:
        raise ValueError("there is no verdict to draw: make them with mambanorm.judge")
    words = list(WORD_MEANINGS)
    verdicts = sorted(verdicts, key=lambda verdict: words.index(verdict.word))
    panels = _panels(verdicts)
    heights = [0.75 + 0.56 * len(panel) for panel in panels]
    fig, axes = new_figure(len(panels), 1, height=sum(heights) + 0.9, height_ratios=heights)
    clipped = [_draw_verdicts(ax, panel) for ax, panel in zip(axes[:, 0], panels, strict=True)]
    run = [verdict for verdict in verdicts if verdict.n]
    return finish(
        fig,
        "Every claim, every verdict",
        f"protocol {verdicts[0].protocol}",
        f"{verdicts[0].scale} scale",
        seeds_text([verdict.n for verdict in run]) if run else "no runs",
        "large dot and line: mean difference and 95 % interval; small dots: seeds",
        *_marks([verdict for verdict in verdicts if np.isfinite(verdict.turns_on.paper)]),
        "* not fresh: earlier versions of the rule have judged these runs"
        if any(_is_stale(verdict) for verdict in run)
        else "",
        "an arrow points to an effect beyond the axis" if any(clipped) else "",
        *legend([verdict.word for verdict in verdicts]),
    )


def _panels(verdicts: Sequence) -> list[list]:
    """Return the verdicts of each panel: first those in a shared unit, then claim by claim."""
    panels: dict[str, list] = {unit: [] for unit in SHARED_UNITS}
    for verdict in verdicts:
        unit = verdict.turns_on.unit
        panels.setdefault(unit if unit in SHARED_UNITS else verdict.claim.id, []).append(verdict)
    return [panel for panel in panels.values() if panel]


def _is_stale(verdict) -> bool:
    return verdict.n > 0 and not verdict.turns_on.fresh


def legend(words: Iterable[str]) -> list[str]:
    """Return "word: its meaning" for each of the words."""
    shown = set(words)
    return [f"{word}: {meaning}" for word, meaning in WORD_MEANINGS.items() if word in shown]


def _marks(with_paper: Sequence) -> tuple[str, str]:
    """Return the captions of the ticks and of the hollow diamonds ("" without a diamond)."""
    places = ", ".join(dict.fromkeys(verdict.claim.printed_on for verdict in with_paper))
    return "grey tick: the smallest effect of interest", (
        f"hollow diamond: the paper's own number, on {places}" if places else ""
    )


def _draw_verdicts(ax: Axes, verdicts: Sequence) -> bool:
    """Draw one panel. Return True if a row reaches beyond its axis."""
    for y, verdict in enumerate(verdicts):
        if verdict.n:
            _draw_comparison(ax, y, verdict.turns_on, verdict.word)
        _write_word(
            ax,
            y,
            verdict.said + " *" * _is_stale(verdict),
            _note(verdict),
            WORD_COLOURS[verdict.word],
        )
    _name_rows(
        ax,
        [fill(f"{verdict.claim.id}  {verdict.claim.words}", 52) for verdict in verdicts],
        verdicts[0].turns_on.unit,
    )
    return _clip(ax, verdicts)


def _note(verdict) -> str:
    """Return the lines below a word: the effect, the comparison, and what is missing."""
    if not verdict.n:
        return verdict.reason or "not run"
    row = verdict.turns_on
    paper = f"; paper {row.paper:+.1f}".replace("-", "−") if np.isfinite(row.paper) else ""
    lines = [f"{row.amount}{paper}", f"{row.comparison}, {verdict.task}"]
    if verdict.reason:
        lines.append(fill(verdict.reason, 60, max_lines=1, placeholder=" …"))
    return "\n".join(lines)


def _clip(ax: Axes, verdicts: Sequence) -> bool:
    """End the axis where most rows end. Return True if a row reaches beyond it."""
    run = [(y, verdict) for y, verdict in enumerate(verdicts) if verdict.n]
    rows = [verdict.turns_on for _, verdict in run]
    reach = [np.nanmax(np.abs([row.effect, row.low, row.high, row.paper])) for row in rows]
    limit = CLIP * np.median(reach) if len(rows) > 2 else np.inf
    if max(reach, default=0) <= 1.5 * limit:
        return False
    low, high = ax.get_xlim()
    low, high = max(low, -1.15 * limit), min(high, limit)
    ax.set_xlim(low, high)
    for y, verdict in run:
        colour = WORD_COLOURS[verdict.word]
        if verdict.turns_on.effect >= high:
            ax.plot(0.97 * high, y, ">", color=colour)
        elif verdict.turns_on.effect <= low:
            ax.plot(0.97 * low, y, "<", color=colour)
    return True


def _name_rows(ax: Axes, names: Sequence[str], unit: str) -> None:
    ax.set_yticks(range(len(names)), names)
    ax.set(ylim=(len(names) - 0.4, -0.6), xlabel=unit_name(unit))
    difference_axis(ax, color=INK, linewidth=0.7, zorder=0)
    ax.locator_params(axis="x", nbins=5)


def _write_word(ax: Axes, y: float, word: str, note: str, colour: str) -> None:
    place = dict(transform=ax.get_yaxis_transform())
    if not note:
        ax.text(1.01, y, word, color=colour, weight="bold", va="center", **place)
        return
    ax.text(1.01, y - 0.06, word, color=colour, weight="bold", va="bottom", **place)
    ax.text(1.01, y + 0.02, note, color=INK, fontsize=7, va="top", linespacing=1.05, **place)


def _draw_comparison(ax: Axes, y: float, row, word: str) -> None:
    """Draw a row with a tick at the smallest effect and a hollow diamond at the paper's number."""
    ax.plot([row.smallest] * 2, [y - 0.36, y + 0.36], color=GREY, linewidth=1.2, zorder=1)
    draw_estimate(
        ax,
        y,
        row.effect,
        row.low,
        row.high,
        WORD_COLOURS[word],
        (() if row.unit in NOT_BY_SEED else row.per_seed),
    )
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
    """Draw a row of a forest plot: a mean and its interval, and `below` them one dot a seed.

    fresh: differences of the reader's fresh runs, drawn as diamonds. is_open: draw a hollow mean.
    """
    if np.isfinite(low):
        ax.hlines(y, low, high, color=colour, linewidth=2.2)
    ax.plot(seeds, np.full(len(seeds), y + below), "o", markersize=2.5, color=colour, alpha=0.55)
    ax.plot(
        mean,
        y,
        marker=marker,
        markersize=6.5,
        color=colour,
        markerfacecolor="white" if is_open else colour,
        markeredgecolor=colour if is_open else "white",
        zorder=3,
    )
    ax.plot(fresh, np.full(len(fresh), y + below), **fresh_marker(size=5))


def unit_name(unit: str) -> str:
    """Return the unit of a comparison as an axis names it."""
    return UNIT_NAMES.get(unit, unit)


@styled
def fig_claim(verdict) -> Figure:
    """Return every comparison of one claim: mean, 95 % interval, seeds and the paper's number.

    Comparisons in different units, as for growth (H10), get a panel for each unit. Raises
    ValueError for a claim that was not run.
    """
    rows = [row for row in verdict.rows if row.n]
    if not rows:
        raise ValueError(f"claim {verdict.claim.id} was not run: there is nothing to draw")
    units = list(dict.fromkeys(row.unit for row in rows))
    panels = [[row for row in rows if row.unit == unit] for unit in units]
    heights = [0.7 + 0.38 * len(panel) for panel in panels]
    fig, axes = new_figure(
        len(panels), 1, height=sum(heights) + 0.75, width=8.4, height_ratios=heights
    )
    for ax, panel in zip(axes[:, 0], panels, strict=True):
        _draw_comparisons(ax, panel)
    return finish(
        fig,
        f"{verdict.claim.id} on {verdict.task}: {verdict.said}",
        verdict.basis,
        seeds_text([row.n for row in rows]),
        "line: 95 % interval",
        *_marks([verdict] if any(np.isfinite(row.paper) for row in rows) else []),
        *legend([row.word for row in rows]),
    )


def _draw_comparisons(ax: Axes, rows: Sequence) -> None:
    for y, row in enumerate(rows):
        _draw_comparison(ax, y, row, row.word)
        note = ""
        if row.word == "cannot tell" and row.seeds_to_tell:
            note = f"about {row.seeds_to_tell} new seeds would tell"
        _write_word(ax, y, row.said, note, WORD_COLOURS[row.word])
    _name_rows(
        ax, [row.comparison + ("" if row.decides else "  (beside)") for row in rows], rows[0].unit
    )


@styled
def fig_budget(table: pd.DataFrame, caption: str = "") -> Figure:
    """Return the deciding comparison over the steps, one panel for each claim and task.

    table: `claims.pages.over_budget`. Raises ValueError for a table without rows.
    """
    if table.empty:
        raise ValueError("the table has no rows: none of these claims has been run over the budget")
    panels = [panel for _, panel in table.groupby(["claim", "task"], sort=False)]
    fig, axes = panel_grid(len(panels), 3, row=2.3, more=0.9)
    for ax, panel in zip(axes, panels, strict=True):
        _draw_budget(ax, panel)
    return finish(
        fig,
        "Fast or good? The effect over the training budget",
        caption,
        seeds_text(table.n),
        "dot and line: the comparison that decides at all steps, with its 95 % interval, "
        "in the colour of its word",
        "grey line: the smallest effect of interest",
        *legend(table.word),
    )


def _draw_budget(ax: Axes, rows: pd.DataFrame) -> None:
    first, places = rows.iloc[0], np.arange(len(rows))
    ax.axhline(first.smallest, color=GREY, linewidth=1.2)
    ax.plot(places, rows.effect, color=GREY, linewidth=0.9, alpha=0.6)
    ax.set_xticks(places, [f"{row.steps:,}\n{row.word}" for row in rows.itertuples()], fontsize=7)
    for x, row, tick in zip(places, rows.itertuples(), ax.get_xticklabels(), strict=True):
        colour = WORD_COLOURS[row.word]
        ax.vlines(x, row.low, row.high, color=colour, linewidth=2.2)
        ax.plot(x, row.effect, "o", color=colour, markersize=6.5, markeredgecolor="white", zorder=3)
        tick.set_color(colour)
    ax.set(
        xlim=(-0.5, len(rows) - 0.5),
        title=f"{first.claim}, {first.task}",
        ylabel=unit_name(first.unit),
        xlabel="steps",
    )
