"""The look of the figures, in one place: sizes, the caption line, and how a figure shows itself.

A figure is made with `new_figure` inside a function marked `@styled`, and never enters pyplot's
global list: a notebook shows it once, as the value of the cell. Every figure has a white ground. A
dark page of the report turns light and dark over, and hues stay (`templates/look.css` of the
report): so no caption says what is dark or light.
"""

import functools
import io
import textwrap
from collections.abc import Callable, Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator
from PIL import Image

from mambanorm.arms import Arm
from mambanorm_study.basics.settings import Later
from mambanorm_study.figures.colours import GREY, INK, PALE
from mambanorm_study.tables.run_tables import seeds_text

sns = Later("seaborn")  # takes a second; the explorers do without

RC = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titley": 1.0,  # given: to look for what stands above an axis takes a seventh of the drawing
    "axes.labelsize": 9,
    "axes.edgecolor": "#9A9A9A",
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
WIDTH, DPI, SHARP = 9.5, 100, 1.5
"""Inches, pixels an inch, and how many times as many a PNG has in a notebook: twice would be more
than 500 kB."""
ONE_RUN = seeds_text([1])
"""What a caption says where nothing is known of scale and seeds."""
TICKS = 5
"""At most so many steps between the ticks of an explorer's axis: a tick takes a millisecond."""


class StudyFigure(Figure):
    """A matplotlib Figure that shows itself in a notebook, whether or not pyplot was ever imported
    there: as a PNG at SHARP times its width. Title and caption are its alternative text, for those
    who cannot see it."""

    def _repr_png_(self, scale: float = SHARP) -> bytes:
        """The picture in at most 256 colours, a third of the bytes: what agrees in 25 tones of red,
        green and blue each becomes the mean of it, so that flat areas keep their colour, greys have
        no tint, and a colour bar no bands."""
        drawn, small = io.BytesIO(), io.BytesIO()
        self.savefig(drawn, format="png", dpi=scale * self.dpi)
        true = Image.open(drawn).convert("RGB")
        few = true.point(lambda tone: round(tone / 255 * 24) * 255 // 24).quantize(
            256, dither=Image.Dither.NONE
        )
        colour = np.ravel(few)
        sums = [np.bincount(colour, tone, 256) for tone in np.reshape(true, (-1, 3)).T]
        means = np.transpose(sums / np.bincount(colour, None, 256).clip(1))
        means = np.where(
            np.ptp(means, 1, keepdims=True) < 8, means.mean(1, keepdims=True), means
        )  # nearly grey: grey
        few.putpalette(means.round().astype(np.uint8).tobytes())
        few.save(small, format="png", optimize=True)
        return small.getvalue()

    def _repr_mimebundle_(self, **_) -> tuple[dict[str, bytes], dict[str, dict[str, str]]]:
        # asked before pyplot's own formatter, so it is shown once, and small
        words = {"alt": self.get_label(), "width": round(self.get_figwidth() * self.dpi)}
        return {"image/png": self._repr_png_()}, {"image/png": words}


def styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Decorator: draws with the settings of RC and leaves the user's own unchanged."""

    @functools.wraps(draw)
    def in_style(*args, **kwargs) -> Figure:
        with matplotlib.rc_context(RC):
            return draw(*args, **kwargs)

    return in_style


def new_figure(
    rows: int = 1, columns: int = 1, *, height: float = 4.0, width: float = WIDTH, **subplots
):
    """A figure and its axes as an array (rows, columns); sizes in inches. Keywords go to
    `Figure.subplots`."""
    fig = StudyFigure(figsize=(width, height), dpi=DPI, layout="constrained")
    fig.get_layout_engine().set(h_pad=0.07, w_pad=0.06)
    return fig, fig.subplots(rows, columns, squeeze=False, **subplots)


def panel_grid(n: int, across: int, *, row: float, more: float = 0.0, **subplots):
    """A figure with n panels, so many across, and its axes as a list; a row has `row` inches, the
    rest `more`."""
    columns = min(n, across)
    rows = -(-n // columns)
    fig, axes = new_figure(rows, columns, height=row * rows + more, **subplots)
    for spare in axes.flat[n:]:
        spare.set_axis_off()
    return fig, list(axes.flat[:n])


def quick_figure(
    layout: Sequence[Sequence[str]], *, height: float, margins: dict[str, float], **mosaic
):
    """A figure for an explorer and its axes by name, as `Figure.subplot_mosaic` lays them out.
    `margins` are those of `Figure.subplots_adjust`: they are given, for finding them out takes
    longer than the drawing."""
    fig = StudyFigure(figsize=(WIDTH, height), dpi=DPI)
    fig.subplots_adjust(**margins)
    axes = fig.subplot_mosaic(layout, **mosaic)
    for ax in axes.values():
        ax.locator_params(nbins=TICKS)
    return fig, axes


def finish(fig: Figure, title: str, *caption: str) -> Figure:
    """Adds the title and the caption: small, grey, at the bottom; its parts are joined by " · "."""
    fig.set_label(" · ".join(filter(None, (title, *caption))))
    fig.suptitle(title, x=0.008, ha="left", fontsize=11.5, color=INK)
    text = _wrapped(" · ".join(filter(None, caption)), width=int(16 * fig.get_figwidth()))
    fig.supxlabel(text, x=0.008, ha="left", fontsize=7.8, color=GREY)
    return fig


def _wrapped(caption: str, width: int) -> str:
    """Lines of at most `width` characters, broken between the parts of a caption where that is
    possible."""
    lines = [""]
    for part in caption.split(" · "):
        joined = f"{lines[-1]} · {part}" if lines[-1] else part
        lines = (
            [*lines[:-1], joined] if len(joined) <= width else [*lines, *textwrap.wrap(part, width)]
        )
    return "\n".join(lines).strip()


def short(label: str) -> str:
    """`RMSN>SSM>GN` → `RMSN→GN`; any other label as it is."""
    try:
        return Arm.parse(label).label
    except ValueError:
        return label


def whole_ticks(ax: Axes) -> None:
    """Blocks and steps are counted in whole numbers."""
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))


def own_runs(fresh: pd.DataFrame | None) -> str:
    """What a caption says of such runs: "diamonds: your own run, seed 12,345"; "" if there are
    none."""
    if fresh is None or fresh.empty:
        return ""
    seeds = [f"{seed:,}" for seed in sorted(set(fresh.seed))]
    return f"diamonds: your own runs, seed{'s' * (len(seeds) > 1)} {' and '.join(seeds)}"


def seeds_of(frame: pd.DataFrame) -> str:
    """What a caption says of a frame that is no run frame: scale and seeds, as far as it has such
    columns."""
    scale = f"{', '.join(frame['scale'].unique())} scale · " if "scale" in frame else ""
    arms = frame.groupby("arm") if "arm" in frame else frame
    return scale + (seeds_text(np.atleast_1d(arms.seed.nunique())) if "seed" in frame else ONE_RUN)


def log_axis(ax: Axes) -> None:
    """A logarithmic y axis (and those that share it) in plain numbers (0.1, 0.2, 0.5, 1, …),
    decades if it is long."""
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    subs = (1, 2, 3, 5) if high < 10 * low else (1, 2, 5) if high < 200 * low else (1,)
    ax.yaxis.set_major_locator(LogLocator(subs=subs))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter("")


def upright(ax: Axes, **line) -> None:
    """An axis of differences: a line at zero, a grid across it."""
    ax.axvline(0, **dict(color=GREY, linewidth=1, zorder=1) | line)
    ax.grid(axis="x")
    ax.grid(visible=False, axis="y")


def above(
    ax: Axes,
    x: float,
    y: float,
    text: str,
    size: float,
    points: tuple[float, float] = (0, 5),
    colour: str = INK,
) -> None:
    """Words above a data point, moved right and up by so many typographic points."""
    ax.annotate(
        text,
        (x, y),
        points,
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=size,
        color=colour,
    )


def instead(ax: Axes, words: str) -> None:
    """Words in the middle of a panel that has nothing to show."""
    ax.text(
        0.5, 0.5, words, transform=ax.transAxes, ha="center", va="center", color=GREY, fontsize=8.5
    )


def some_of(n: int, at_most: int) -> list[int]:
    """At most so many indices out of 0…n−1, evenly spaced, first and last among them."""
    return sorted({int(i) for i in np.linspace(0, n - 1, min(n, at_most)).round()})


def jitter(n: int, width: float = 0.16) -> np.ndarray:
    """Fixed sideways offsets for n points, so that seeds do not hide one another."""
    return np.linspace(-width / 2, width / 2, n) if n > 1 else np.zeros(n)
