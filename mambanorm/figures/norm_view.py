"""One norm at work, for the explorer: its cube, a row before and after, the histograms, and what leaves it unmoved."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from mambanorm.figures.diagrams import SHAPE, draw_box, moving_cells
from mambanorm.figures.style import GREY, INK, empty_axes, finish, norm_colour, quick_figure, styled

LAYOUT = [["cube", "x", "y"], ["trials", "x values", "y values"]]
MARGINS = dict(left=0.02, right=0.985, top=0.85, bottom=0.19, hspace=0.42, wspace=0.24)
YES, NO = "#2E7D5B", "#B5472F"


@styled
def fig_norm_view(
    name: str, x: Tensor, y: Tensor, moved: dict[str, float], felt: float, *, groups: int = 4, training: bool = True
) -> Figure:
    """The norm's cube, the first row of x and of y = norm(x), both (B, L, D), the histograms of all their values, and
    by how much each change of x moves the output (`lessons.invariance.felt`; unmoved below `felt`). The cube has four
    channels, so that more than four groups look like four."""
    fig, axes = quick_figure(LAYOUT, height=5.2, margins=MARGINS, width_ratios=(0.95, 1, 1))
    cells = moving_cells(name, groups=min(groups, SHAPE[2]), training=training)
    empty_axes(axes["cube"])
    draw_box(axes["cube"], cells, norm_colour(name))
    axes["cube"].set_title("shares a statistic" if cells.any() else "shares nothing", color=INK, loc="center")
    _draw_moved(axes["trials"], moved, felt)
    for key, values, title, colour in (("x", x, "before", GREY), ("y", y, "after", norm_colour(name))):
        _draw_row(axes[key], values, f"{title}: row 1")
        _draw_values(axes[f"{key} values"], values, f"{title}: all values", colour)
    rows, length, channels = x.shape
    return finish(
        fig,
        f"{name}, {'train' if training else 'eval'} mode",
        f"a made-up batch of {rows} rows, {length} positions, {channels} channels (seed 0)",
        "cube: the cells on which the front cell, top right, depends",
        f"tried on this batch: the change of row 1's first half over its size; unmoved: less than {felt:.0%}",
    )


def _draw_row(ax: Axes, values: Tensor, title: str) -> None:
    """One row as a picture of channels × positions, colours from − to + its largest value."""
    row = values[0].detach().numpy().T  # (D, L)
    limit = max(float(np.abs(row).max()), 1e-9)
    ax.imshow(row, aspect="auto", cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    ax.set(xlabel="position", ylabel="channel", xticks=[], yticks=[])
    ax.set_title(f"{title}, colours ±{limit:.1f}", color=INK)
    ax.grid(False)


def _draw_values(ax: Axes, values: Tensor, title: str, colour: str) -> None:
    flat = values.detach().numpy().ravel()
    ax.hist(flat, bins=50, color=colour, histtype="stepfilled")  # one shape: fifty bars take long to draw
    ax.set(xlabel="value (a.u.)", ylabel="count")
    ax.set_title(title, color=INK)
    words = f"mean {round(float(flat.mean()), 2) + 0.0:.2f}\nsd {flat.std():.2f}"
    ax.text(0.98, 0.97, words, transform=ax.transAxes, ha="right", va="top", fontsize=8.5, color=INK)


def _draw_moved(ax: Axes, moved: dict[str, float], felt: float) -> None:
    """A table: what was changed, and whether the output moved."""
    empty_axes(ax)
    ax.set_title("what moves the output of row 1?", color=INK)
    for i, (change, size) in enumerate(moved.items()):
        height = 0.9 - i * 0.165
        ax.text(0.02, height, change, transform=ax.transAxes, fontsize=8.5, color=INK, va="center")
        words, colour = ("unmoved", YES) if size < felt else (f"moves by {size:.0%}", NO)
        ax.text(0.98, height, words, transform=ax.transAxes, fontsize=8.5, color=colour, va="center", ha="right")
