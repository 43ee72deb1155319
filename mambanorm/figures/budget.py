"""Fast or good: the effect that decides a claim, over the training budget or over the size of the model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mambanorm.figures.style import GREY, empty_axes, finish, new_figure, styled
from mambanorm.figures.verdicts import WORDS, spelled
from mambanorm.study.tables import seeds_text

ACROSS = 4


@styled
def fig_budget(table: pd.DataFrame, caption: str = "") -> Figure:
    """A panel for each claim and task: the effect and its bounds over the steps (`claims.over_budget`), or over the
    settings where all have the same steps (`over_size`). A dot has the colour of the verdict there."""
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
    words = [f"{word}: {WORDS[word][1]}" for word in WORDS if word in set(table.verdict)]
    over, all_of = ("training budget", "at all steps") if _by_steps(table) else ("size of the model", "at its own size")
    dots = f"dot and line: the comparison that decides {all_of}, with its bounds · grey line: the threshold"
    return finish(fig, f"Fast or good? The effect over the {over}", caption, seeds_text(table.n), dots, *words)


def _panel(ax: Axes, panel: pd.DataFrame) -> None:
    first, places = panel.iloc[0], np.arange(len(panel))
    ax.axhline(first.threshold, color=GREY, linewidth=1.2)
    ax.plot(places, panel.effect, color=GREY, linewidth=0.9, alpha=0.6)
    for x, row in zip(places, panel.itertuples(), strict=True):
        colour = WORDS[row.verdict][0]
        ax.vlines(x, row.low, row.high, color=colour, linewidth=2.2)
        ax.plot(x, row.effect, "o", markersize=6.5, color=colour, markeredgecolor="white", zorder=3)
    ax.set_xticks(places, _ticks(panel))
    ax.set(xlim=(-0.5, len(panel) - 0.5), title=f"{first.claim}, {first.task}", ylabel=spelled(first.unit))
    ax.set_xlabel("steps" if _by_steps(panel) else "")


def _by_steps(table: pd.DataFrame) -> bool:
    """Whether the settings are shares of the steps, and not sizes of the model."""
    return bool(table.setting.str.startswith("steps").all())


def _ticks(panel: pd.DataFrame) -> Sequence[str]:
    if _by_steps(panel):
        return [f"{steps:,}" for steps in panel.steps]
    return [name.replace(", ", "\n") for name in panel.setting]
