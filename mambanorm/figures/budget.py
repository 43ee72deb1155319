"""Fast or good: the effect that decides a claim, over the training budget or over the size of the model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mambanorm.figures.style import GREY, empty_axes, finish, new_figure, styled
from mambanorm.figures.verdicts import STATES, WORDS, spelled
from mambanorm.study.tables import seeds_text

ACROSS = 3


@styled
def fig_budget(table: pd.DataFrame, caption: str = "") -> Figure:
    """A panel for each claim and task: the effect and its bounds over the steps (`claims.over_budget`), or over the
    settings where all have the same steps (`over_size`). A dot has the colour of its comparison's state; the verdict's
    word stands below."""
    if table.empty:
        raise ValueError("the table has no rows: none of these claims has been run over the budget")
    panels = [panel for _, panel in table.groupby(["claim", "task"], sort=False)]
    columns = min(len(panels), ACROSS)
    rows = -(-len(panels) // columns)
    fig, axes = new_figure(rows, columns, height=0.9 + 2.3 * rows)
    for ax, panel in zip(axes.flat, panels, strict=False):
        _panel(ax, panel)
    for ax in axes.flat[len(panels) :]:
        empty_axes(ax)
    states = [f"{state}: {STATES[state][1]}" for state in STATES if state in set(table.state)]
    over, all_of = ("training budget", "at all steps") if _by_steps(table) else ("size of the model", "at its own size")
    seeds = f"{seeds_text(table.n)}{'' if _by_steps(table) else f', all at {table.share.iloc[0]:g} of the steps'}"
    where = all_of if table.decided.all() else f"{all_of}, or there, where these were not run"
    dots = f"dot and line: the comparison that decides {where}, with its bounds, coloured by where these lie"
    notes = (dots, "grey line: the threshold", "below: the verdict on all comparisons", *states)
    return finish(fig, f"Fast or good? The effect over the {over}", caption, seeds, *notes)


def _panel(ax: Axes, panel: pd.DataFrame) -> None:
    first, places = panel.iloc[0], np.arange(len(panel))
    ax.axhline(first.threshold, color=GREY, linewidth=1.2)
    ax.plot(places, panel.effect, color=GREY, linewidth=0.9, alpha=0.6)
    for x, row in zip(places, panel.itertuples(), strict=True):
        colour = STATES[row.state][0] if row.state else GREY
        ax.vlines(x, row.low, row.high, color=colour, linewidth=2.2)
        ax.plot(x, row.effect, "o", markersize=6.5, color=colour, markeredgecolor="white", zorder=3)
    ax.set_xticks(places, _ticks(panel))
    for tick, word in zip(ax.get_xticklabels(), panel.verdict, strict=True):
        tick.set(color=WORDS[word][0], fontsize=7)
    ax.set(xlim=(-0.5, len(panel) - 0.5), title=f"{first.claim}, {first.task}", ylabel=spelled(first.unit))
    ax.set_xlabel("steps" if _by_steps(panel) else "")


def _by_steps(table: pd.DataFrame) -> bool:
    """Whether the settings are shares of the steps, and not sizes of the model."""
    return bool(table.setting.str.startswith("steps").all())


def _ticks(panel: pd.DataFrame) -> Sequence[str]:
    places = [f"{steps:,}" for steps in panel.steps] if _by_steps(panel) else panel.setting.str.replace(", ", "\n")
    return [f"{place}\n{word}" for place, word in zip(places, panel.verdict, strict=True)]
