"""The style of the figures: sizes, titles and captions, and figures that notebooks show as PNG.

Make a figure with `new_figure` inside a function that is decorated with `@styled`. The figure is
not in pyplot's global list, so a notebook shows it once, as the value of the cell. Every figure has
a white background. The report's dark pages invert light and dark but keep the hues
(`report/templates/look.css`), so a caption must not say what is dark or light.
"""

import io
import textwrap
from collections.abc import Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator
from PIL import Image

from mambanorm.arms import Arm
from mambanorm_study.basics.settings import Later
from mambanorm_study.figures.colours import AXIS_GREY, GREY, INK, PALE
from mambanorm_study.tables.run_tables import seeds_text

sns = Later("seaborn")  # its import takes a second, and the explorers do not need it

RC = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.titley": 1.0,  # fixed, because computing it takes a seventh of the drawing time
    "axes.labelsize": 9,
    "axes.edgecolor": AXIS_GREY,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": PALE,
    "grid.linewidth": 0.8,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "hatch.linewidth": 0.6,
}
WIDTH, DPI = 9.5, 100  # inches, pixels per inch


class StudyFigure(Figure):
    """A matplotlib Figure that a notebook shows as a PNG, even where pyplot was never imported.

    The alternative text of the image is the figure's title and caption.
    """

    def _repr_png_(self, scale: float = 1.5) -> bytes:
        """Return the figure as a PNG of at most 256 colours, a third as large as with all colours.

        scale: pixels of the PNG per displayed pixel; with scale=2, notebooks would exceed 500 kB.
        Red, green and blue are rounded to 25 levels, and the rounded picture is reduced to 256
        colours. Pixels that then have the same colour get the mean of their original colours. So
        flat areas keep their colour, greys have no tint, and a colour bar has no bands.
        """
        original_png, small_png = io.BytesIO(), io.BytesIO()
        self.savefig(original_png, format="png", dpi=scale * self.dpi)
        original = Image.open(original_png).convert("RGB")
        levels = original.point(lambda tone: round(tone / 255 * 24) * 255 // 24)
        indexed = levels.quantize(256, dither=Image.Dither.NONE)
        index = np.ravel(indexed)
        sums = [np.bincount(index, tone, 256) for tone in np.reshape(original, (-1, 3)).T]
        means = np.transpose(sums / np.bincount(index, None, 256).clip(1))
        nearly_grey = np.ptp(means, 1, keepdims=True) < 8
        means = np.where(nearly_grey, means.mean(1, keepdims=True), means)
        indexed.putpalette(means.round().astype(np.uint8).tobytes())
        indexed.save(small_png, format="png", optimize=True)
        return small_png.getvalue()

    def _repr_mimebundle_(self, **_) -> tuple[dict[str, bytes], dict[str, dict[str, str]]]:
        # IPython calls this before pyplot's own formatter, so the figure is shown once
        metadata = {"alt": self.get_label(), "width": round(self.get_figwidth() * self.dpi)}
        return {"image/png": self._repr_png_()}, {"image/png": metadata}


# Decorator: draw with the settings in RC, then restore the user's settings.
styled = matplotlib.rc_context(RC)


def new_figure(
    rows: int = 1, columns: int = 1, *, height: float = 4.0, width: float = WIDTH, **subplots
):
    """Return a figure and an array (rows, columns) of its axes.

    height, width: size of the figure in inches. Further keywords go to `Figure.subplots`.
    """
    fig = StudyFigure(figsize=(width, height), dpi=DPI, layout="constrained")
    fig.get_layout_engine().set(h_pad=0.07, w_pad=0.06)
    return fig, fig.subplots(rows, columns, squeeze=False, **subplots)


def panel_grid(n: int, across: int, *, row_height: float, extra_height: float = 0.0, **subplots):
    """Return a figure with n panels, at most `across` in a row, and a list of the panels' axes.

    row_height, extra_height: inches; the figure is row_height · rows + extra_height high. Further
    keywords go to `Figure.subplots`.
    """
    columns = min(n, across)
    rows = -(-n // columns)
    fig, axes = new_figure(rows, columns, height=row_height * rows + extra_height, **subplots)
    for spare in axes.flat[n:]:
        spare.set_axis_off()
    return fig, list(axes.flat[:n])


def quick_figure(
    layout: Sequence[Sequence[str]], *, height: float, margins: dict[str, float], **mosaic
):
    """Return a figure that is quick to draw, for an explorer, and a dict of its axes by name.

    `layout` and further keywords go to `Figure.subplot_mosaic`, `margins` to
    `Figure.subplots_adjust`. The margins are fixed, because computing them takes longer than
    drawing the figure.
    """
    fig = StudyFigure(figsize=(WIDTH, height), dpi=DPI)
    fig.subplots_adjust(**margins)
    axes = fig.subplot_mosaic(layout, **mosaic)
    for ax in axes.values():
        ax.locator_params(nbins=5)  # drawing a tick takes 1 ms
    return fig, axes


def finish(fig: Figure, title: str, *caption: str) -> Figure:
    """Add a title at the top and a caption in small grey type at the bottom; return the figure.

    caption: the parts of the caption. Empty parts are left out, and the others are joined by " · ".
    Lines are broken between parts where possible.
    """
    text = " · ".join(filter(None, caption))
    fig.set_label(f"{title} · {text}")
    fig.suptitle(title, x=0.008, ha="left", fontsize=11.5, color=INK)
    lines, width = [], int(16 * fig.get_figwidth())
    for part in text.split(" · "):
        if lines and len(f"{lines[-1]} · {part}") <= width:
            lines[-1] += f" · {part}"
        else:
            lines += textwrap.wrap(part, width)
    fig.supxlabel("\n".join(lines), x=0.008, ha="left", fontsize=7.8, color=GREY)
    return fig


def short_label(label: str) -> str:
    """Return `RMSN→GN` for `RMSN>SSM>GN`. A label that names no arm is returned unchanged."""
    try:
        return Arm.parse(label).label
    except ValueError:
        return label


def whole_ticks(ax: Axes) -> None:
    """Put x ticks at whole numbers only, for an axis of blocks or steps."""
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))


def fresh_note(fresh: pd.DataFrame | None) -> str:
    """Return the caption part on the reader's own runs: "diamonds: your own runs, seed 12,345".

    fresh: a run frame of these runs. Returns "" if the frame is None or empty.
    """
    if fresh is None or fresh.empty:
        return ""
    seeds = [f"{seed:,}" for seed in sorted(set(fresh.seed))]
    return f"diamonds: your own runs, seed{'s' * (len(seeds) > 1)} {' and '.join(seeds)}"


def seeds_note(frame: pd.DataFrame) -> str:
    """Return the caption part on a frame's scale and seeds: "quick scale · 3 seeds: a sketch".

    A frame without the column seed counts as one seed.
    """
    scale = f"{', '.join(frame['scale'].unique())} scale · " if "scale" in frame else ""
    if "seed" not in frame:
        return scale + seeds_text([1])
    counts = frame.groupby("arm").seed.nunique() if "arm" in frame else [frame.seed.nunique()]
    return scale + seeds_text(counts)


def log_axis(ax: Axes) -> None:
    """Make the y axis logarithmic, with plain numbers such as 0.1, 0.2, 0.5 and 1 at its ticks.

    An axis whose ends differ by a factor of 200 or more has ticks at powers of ten only. All panels
    that share this y axis are changed.
    """
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    subs = (1, 2, 3, 5) if high < 10 * low else (1, 2, 5) if high < 200 * low else (1,)
    ax.yaxis.set_major_locator(LogLocator(subs=subs))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter("")


def difference_axis(ax: Axes, **line) -> None:
    """Draw a vertical line at zero and vertical grid lines, for an x axis of differences.

    Keywords change the style of the line at zero.
    """
    ax.axvline(0, **{"color": GREY, "linewidth": 1, "zorder": 1, **line})
    ax.grid(axis="x")
    ax.grid(visible=False, axis="y")


def write_above(
    ax: Axes,
    x: float,
    y: float,
    text: str,
    size: float,
    offset: tuple[float, float] = (0, 5),
    colour: str = INK,
) -> None:
    """Write text above the data point (x, y).

    size: font size. offset: distance from the data point to the right and up, in typographic
    points.
    """
    ax.annotate(
        text,
        (x, y),
        offset,
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=size,
        color=colour,
    )


def spaced_indices(n: int, at_most: int) -> list[int]:
    """Return at most `at_most` evenly spaced indices of 0…n−1, the first and the last included."""
    return sorted({int(i) for i in np.linspace(0, n - 1, min(n, at_most)).round()})


def jitter(n: int, width: float = 0.16) -> np.ndarray:
    """Return n evenly spaced offsets from −width/2 to width/2, which keep the dots of several seeds
    apart.
    """
    return np.linspace(-width / 2, width / 2, n) if n > 1 else np.zeros(n)
