"""The sheet of the norms: one A4 page to print, with a small card (equation and properties) of each
registered norm.

Cells that share a statistic are hatched as well as coloured, for printers without colour.
"""

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from mambanorm.norms import NORMS, registered_name
from mambanorm.norms.registry import NormEntry
from mambanorm_study.figures.colours import AXIS_GREY, GREY, INK, norm_colour
from mambanorm_study.figures.diagrams import axes_text, draw_cells, influencing_cells
from mambanorm_study.figures.style import StudyFigure, styled

COLUMNS, ROWS = 2, 8  # of cards; more than 16 norms get more rows of flatter cards
WIDEST = 52  # characters in the longest line of a card
INTRODUCTION = (
    r"An activation has $B$ rows (of a batch), $L$ positions (of a sequence) and $D$ channels; "
    "$n$, $l$ and $c$ count them.",
    r"A norm takes statistics $\mu$, $\sigma^2$ over some of the activation's cells and divides by "
    r"$\sigma$; $\gamma$ and $\beta$ are learned, one per channel.",
    "Dark and hatched: the cells on which the output of the front cell, top right, depends in "
    "training.",
    "A norm that looks along $L$ sees the future: fine where a whole sequence is read, cheating in "
    "a language model.",
)


@styled
def fig_sheet(names: Sequence[str] | None = None) -> StudyFigure:
    """Return one A4 page with a card for each norm.

    names: None means every registered norm except Constant, which ignores its input. Raises
    ValueError for an unknown name.
    """
    if names is None:
        names = [name for name in NORMS if name != "Constant"]
    names = [registered_name(name) for name in names]
    rows = max(-(-len(names) // COLUMNS), ROWS)
    fig = StudyFigure(figsize=(8.27, 11.69), dpi=150)  # A4 in inches
    fig.text(0.05, 0.965, "The norms on one page", fontsize=17, weight="bold", color=INK)
    fig.text(0.05, 0.96, "\n".join(INTRODUCTION), fontsize=7.8, color=INK, va="top")
    margins = dict(left=0.05, right=0.95, top=0.905, bottom=0.033, hspace=0.05, wspace=0.03)
    axes = fig.subplots(rows, COLUMNS, gridspec_kw=margins).ravel()
    for ax in axes:
        ax.set_axis_off()
    for ax, name in zip(axes, names, strict=False):
        _draw_card(ax, NORMS[name])
    made_by = "mambanorm: made from its registry of norms by the command mambanorm sheet"
    fig.text(0.05, 0.02, made_by, fontsize=6.5, color=GREY)
    fig.set_label("The norms on one page: " + ", ".join(names))
    return fig


def _draw_card(ax: Axes, entry: NormEntry) -> None:
    """Draw the card of one norm: on the left the cells that share a statistic, on the right the
    equation and the properties.
    """
    ax.add_patch(Rectangle((0, 0.02), 1, 0.96, fill=False, edgecolor=AXIS_GREY, linewidth=0.7))
    box = ax.inset_axes((0.0, 0.06, 0.27, 0.86))
    draw_cells(box, influencing_cells(entry.name), norm_colour(entry.name), hatch="//////")
    ax.text(0.29, 0.94, entry.name, fontsize=10, weight="bold", va="top", color=INK)
    main, *conditions = equation(entry)
    sight, weight = ("causal", "normal") if entry.causal else ("sees the future", "bold")
    small = dict(fontsize=7, va="top", ha="right", color=INK)
    ax.text(0.98, 0.9, sight, weight=weight, **small)
    ax.text(0.98, 0.76, "\n".join([axes_text(entry.name), *conditions]), **small)
    ax.text(0.29, 0.59, main, fontsize=7.2, va="center", color=INK)
    facts = textwrap.wrap(f"learns {entry.learnable} · {entry.use}", WIDEST)
    source = textwrap.shorten(entry.source.replace("`", ""), WIDEST, placeholder=" …")
    ax.text(0.29, 0.05, "\n".join([*facts, source]), fontsize=6.3, va="bottom", color=INK)


def equation(entry: NormEntry) -> list[str]:
    """Return the equation of a norm and then its conditions, each as LaTeX between dollar signs.

    The result is a list of texts. If the equation already has dollar signs, because it mixes words
    and LaTeX, the list has only the unchanged equation.
    """
    if "$" in entry.equation:
        return [entry.equation]
    # a card has no room for a large fraction of sums, nor for an index below a sum
    fraction = r"\frac" if r"\sum" in entry.equation else r"\dfrac"
    text = entry.equation.replace(r"\sum", r"{\sum}").replace(r"\frac", fraction)
    return [f"${part.strip()}$" for part in re.split(r",\s*\\quad", text)]


def save_sheet(folder: str | Path, names: Sequence[str] | None = None) -> Path:
    """Write the sheet to `norms.pdf` in the folder; return the path of the file.

    names: see `fig_sheet`.
    """
    path = Path(folder) / "norms.pdf"
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Title": "The norms on one page", "CreationDate": None}
    fig_sheet(names).savefig(path, metadata=metadata)
    return path
