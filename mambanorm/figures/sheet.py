"""The sheet of the norms: one A4 page to print and hand out, made from the registry.

A card for each norm: the cells that share one statistic, the equation, over which axes, whether it sees the future,
what it learns, when to take it, where it comes from. Shared cells are hatched as well as coloured, for printers without
colour.
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mambanorm.figures.colours import GREY, INK, norm_colour
from mambanorm.figures.diagrams import draw_cells, moving_cells, over_axes
from mambanorm.figures.style import StudyFigure, styled
from mambanorm.norms import NORMS, norm_name
from mambanorm.norms.registry import NormEntry

A4 = (8.27, 11.69)  # inches
COLUMNS, ROWS = 2, 8  # a card of fewer norms is no larger; of more it is less high
WIDEST = 52  # characters of a line of a card
INTRODUCTION = (
    r"An activation has $B$ rows (of a batch), $L$ positions (of a sequence) and $D$ channels; "
    "$n$, $l$ and $c$ count them.",
    r"A norm takes statistics $\mu$, $\sigma^2$ over some of its cells and divides by $\sigma$; "
    r"$\gamma$ and $\beta$ are learned, one a channel.",
    "Dark and hatched: the cells on which the output of the front cell, top right, depends in training.",
    "A norm that looks along $L$ sees the future: fine where a whole sequence is read, cheating in a language model.",
)
RULES = (
    "The future must stay unseen: a causal norm.",
    "Images: BN in batches of 8 rows or more, else GN.",
    "Recurrent net, Transformer: LN or RMSN.",
    "Style of an image: IN.",
    "A Mamba block: notebooks 03 to 05 measure it.",
    "A rule of thumb, after S4 (Morrissey 2025).",
)
"""What stands in a place that is left over."""


@styled
def fig_sheet(names: Sequence[str] | None = None) -> Figure:
    """One A4 page with a card for each norm of the registry (or those named). ValueError for an unknown name."""
    names = list(NORMS) if names is None else [norm_name(name) for name in names]
    used = -(-len(names) // COLUMNS)
    rows = max(used, ROWS)
    fig = StudyFigure(figsize=A4, dpi=150)
    fig.text(0.05, 0.965, "The norms on one page", fontsize=17, weight="bold", color=INK)
    for i, line in enumerate(INTRODUCTION):
        fig.text(0.05, 0.95 - 0.0122 * i, line, fontsize=7.8, color=INK)
    grid = fig.add_gridspec(rows, COLUMNS, left=0.05, right=0.95, top=0.9, bottom=0.035, hspace=0.08, wspace=0.03)
    places = itertools.product(range(used), range(COLUMNS))
    for name, place in itertools.zip_longest(names, places):
        ax = _frame(fig.add_subplot(grid[place]))
        _rules(ax) if name is None else _card(ax, NORMS[name])
    made = "mambanorm: made from its registry of norms by the command mambanorm sheet"
    fig.text(0.05, 0.02, made, fontsize=6.5, color=GREY)
    fig.set_label("The norms on one page: " + ", ".join(names))
    return fig


def _frame(ax: Axes) -> Axes:
    ax.set_axis_off()
    ax.set(xlim=(0, 1), ylim=(0, 1))
    ax.add_patch(Rectangle((0, 0.02), 1, 0.96, fill=False, edgecolor="#9A9A9A", linewidth=0.7))
    return ax


def _card(ax: Axes, entry: NormEntry) -> None:
    """One norm: its box of cells on the left, its words on the right."""
    box = ax.inset_axes((0.0, 0.06, 0.27, 0.86))
    draw_cells(box, moving_cells(entry.name), norm_colour(entry.name), hatch="//////")
    ax.text(0.29, 0.91, entry.name, fontsize=11, weight="bold", color=INK, va="top")
    _causality(ax, entry)
    main, *conditions = equation(entry)
    ax.text(0.29, 0.58, main, fontsize=9 if r"\sum" in main else 8, va="center", color=INK)
    ax.text(0.98, 0.56, "  ".join(conditions), fontsize=6.4, va="center", ha="right", color=INK)
    *use, source = _words(entry)
    for i, line in enumerate(use):
        ax.text(0.29, 0.34 - 0.115 * i, line, fontsize=6.8, va="center", color=INK)
    ax.text(0.29, 0.11, source, fontsize=6.1, va="center", color=GREY)


def _causality(ax: Axes, entry: NormEntry) -> None:
    """Top right: causal, or white on black that it is not; below it the axes."""
    warned = dict(color="white", bbox=dict(facecolor=INK, edgecolor=INK, pad=1.6))
    look = dict(color=INK) if entry.causal else warned
    ax.text(0.975, 0.9, "causal" if entry.causal else "sees the future", fontsize=7, va="top", ha="right", **look)
    ax.text(0.98, 0.755, over_axes(entry.name), fontsize=7, va="top", ha="right", color=INK)


def equation(entry: NormEntry) -> list[str]:
    """The equation and its conditions for matplotlib: LaTeX between dollars, unless it is words with LaTeX in them."""
    if "$" in entry.equation:
        return [entry.equation]
    text = entry.equation.replace(r"\sum", r"{\sum}")  # its index behind it: below it there is no room in a card
    text = text if r"\sum" in text else text.replace(r"\frac", r"\dfrac")
    return [f"${part.strip()}$" for part in re.split(r",\s*\\quad", text)]


def _words(entry: NormEntry) -> list[str]:
    """What it learns and when to take it, in at most two lines, then its source."""
    use = textwrap.wrap(f"learns {entry.learnable} · {entry.use}" if entry.use else f"learns {entry.learnable}", WIDEST)
    source = entry.source.replace("`", "")
    return [*use[:2], textwrap.shorten(source, WIDEST + 6, placeholder=" …")]


def _rules(ax: Axes) -> None:
    ax.text(0.04, 0.91, "Which one?", fontsize=11, weight="bold", color=INK, va="top")
    for i, rule in enumerate(RULES):
        ax.text(0.04, 0.66 - 0.115 * i, rule, fontsize=6.8, va="center", color=INK)


def save_sheet(folder: str | Path, names: Sequence[str] | None = None) -> list[Path]:
    """Writes `norms.pdf` and `norms.svg` into the folder, which is made if need be; returns their paths."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    fig = fig_sheet(names)
    paths = [folder / "norms.pdf", folder / "norms.svg"]
    fig.savefig(paths[0], metadata={"Title": "The norms on one page", "CreationDate": None})
    paths[1].write_text(fig.to_svg(), encoding="utf-8")
    return paths
