"""The sheet of the norms: one A4 page to print, with a card for each norm of the registry.

Shared cells are hatched as well as coloured, for printers without colour.
"""

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mambanorm.norms import NORMS, norm_name
from mambanorm.norms.registry import NormEntry
from mambanorm_study.figures.colours import AXIS_GREY, GREY, INK, norm_colour
from mambanorm_study.figures.diagrams import axes_text, draw_cells, moving_cells
from mambanorm_study.figures.style import StudyFigure, styled

A4 = (8.27, 11.69)  # inches
COLUMNS, ROWS = 2, 8  # with fewer norms a card keeps its size, with more it is less high
WIDEST = 52  # characters of a line of a card
INTRODUCTION = (
    r"An activation has $B$ rows (of a batch), $L$ positions (of a sequence) and $D$ channels; "
    "$n$, $l$ and $c$ count them.",
    r"A norm takes statistics $\mu$, $\sigma^2$ over some of the activation's cells and divides by "
    r"$\sigma$; $\gamma$ and $\beta$ are learned, one a channel.",
    "Dark and hatched: the cells on which the output of the front cell, top right, depends in "
    "training.",
    "A norm that looks along $L$ sees the future: fine where a whole sequence is read, cheating in "
    "a language model.",
)


@styled
def fig_sheet(names: Sequence[str] | None = None) -> Figure:
    """Return one A4 page with a card for each norm.

    names: None = every norm of the registry but Constant, which sees no input. Raises ValueError
    for an unknown name.
    """
    if names is None:
        names = [name for name in NORMS if name != "Constant"]
    names = [norm_name(name) for name in names]
    rows = max(-(-len(names) // COLUMNS), ROWS)
    fig = StudyFigure(figsize=A4, dpi=150)
    fig.text(0.05, 0.965, "The norms on one page", fontsize=17, weight="bold", color=INK)
    for i, line in enumerate(INTRODUCTION):
        fig.text(0.05, 0.95 - 0.0122 * i, line, fontsize=7.8, color=INK)
    grid = fig.add_gridspec(
        rows, COLUMNS, left=0.05, right=0.95, top=0.9, bottom=0.035, hspace=0.08, wspace=0.03
    )
    for i, name in enumerate(names):
        ax = fig.add_subplot(grid[i // COLUMNS, i % COLUMNS])
        ax.set_axis_off()
        ax.set(xlim=(0, 1), ylim=(0, 1))
        ax.add_patch(Rectangle((0, 0.02), 1, 0.96, fill=False, edgecolor=AXIS_GREY, linewidth=0.7))
        _draw_card(ax, NORMS[name])
    fig.text(
        0.05,
        0.02,
        "mambanorm: made from its registry of norms by the command mambanorm sheet",
        fontsize=6.5,
        color=GREY,
    )
    fig.set_label("The norms on one page: " + ", ".join(names))
    return fig


def _draw_card(ax: Axes, entry: NormEntry) -> None:
    box = ax.inset_axes((0.0, 0.06, 0.27, 0.86))
    draw_cells(box, moving_cells(entry.name), norm_colour(entry.name), hatch="//////")

    def write(x: float, y: float, text: str, size: float, va: str = "center", **look) -> None:
        ax.text(x, y, text, fontsize=size, va=va, **{"color": INK, **look})

    write(0.29, 0.91, entry.name, 11, "top", weight="bold")
    if entry.causal:
        write(0.975, 0.9, "causal", 7, "top", ha="right")
    else:
        write(
            0.975,
            0.9,
            "sees the future",
            7,
            "top",
            ha="right",
            color="white",
            bbox=dict(facecolor=INK, edgecolor=INK, pad=1.6),
        )
    write(0.98, 0.755, axes_text(entry.name), 7, "top", ha="right")
    main, *conditions = equation(entry)
    write(0.29, 0.58, main, 9 if r"\sum" in main else 8)
    write(0.98, 0.56, "  ".join(conditions), 6.4, ha="right")
    facts = " · ".join(filter(None, [f"learns {entry.learnable}", entry.use]))
    for i, line in enumerate(textwrap.wrap(facts, WIDEST)[:2]):
        write(0.29, 0.34 - 0.115 * i, line, 6.8)
    write(
        0.29,
        0.11,
        textwrap.shorten(entry.source.replace("`", ""), WIDEST + 6, placeholder=" …"),
        6.1,
        color=GREY,
    )


def equation(entry: NormEntry) -> list[str]:
    """Return the equation of a norm and its conditions as LaTeX between dollars.

    An equation that is words with LaTeX in them is returned as it is.
    """
    if "$" in entry.equation:
        return [entry.equation]
    if r"\sum" in entry.equation:  # the index behind the sum, as a card has no room below it
        text = entry.equation.replace(r"\sum", r"{\sum}")
    else:
        text = entry.equation.replace(r"\frac", r"\dfrac")
    return [f"${part.strip()}$" for part in re.split(r",\s*\\quad", text)]


def save_sheet(folder: str | Path, names: Sequence[str] | None = None) -> list[Path]:
    """Write the sheet to `norms.pdf` and `norms.svg` in the folder; return their paths."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    fig = fig_sheet(names)
    pdf, svg = folder / "norms.pdf", folder / "norms.svg"
    fig.savefig(pdf, metadata={"Title": "The norms on one page", "CreationDate": None})
    with matplotlib.rc_context({"svg.hashsalt": "mambanorm"}):  # the same sheet gives the same file
        fig.savefig(svg, metadata={"Date": None})
    return [pdf, svg]
