"""The look of the figures, in one place: colours by norm, sizes, the caption line, and how a figure shows itself.

A figure is made with `new_figure` inside a function marked `@styled`, and never enters pyplot's global list: a notebook
shows it once, as the value of the cell. Colours are Okabe & Ito's (safe for colour-blind readers); the other scopes of
a norm are tints of its colour.
"""

from __future__ import annotations

import functools
import io
import textwrap
from collections.abc import Callable, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image
from scipy.spatial import KDTree

from mambanorm.model.arms import Arm

PALETTE = {
    "None": "#8C8C8C",
    "BN": "#0072B2",
    "IN": "#56B4E9",
    "LN": "#009E73",
    "RMSN": "#E69F00",
    "GN": "#D55E00",
    "NormVary": "#B0559A",
    "LN-DL": "#73C7AE",
    "RMSN-DL": "#F2CC78",
    "GN-token": "#EBAA7C",
    "NormVary-fixed": "#DBAFD0",
    "NormVary-token": "#7E3B70",
    "DyT": "#9A7B2F",
    "Derf": "#C9B27C",
    "NormSelector": "#4B4FA8",
}
"""Registry name → colour."""
MARKERS = {"None": "X", "BN": "o", "IN": "s", "LN": "^", "RMSN": "v", "GN": "P", "NormVary": "*"}
"""Registry name → the shape of a dot, for readers and printers who do not see the colour."""
SPARE_COLOURS = ("#5D5FA8", "#7A5C3E", "#3E7D7A", "#A23B4B", "#6B8E23")  # for norms registered later

NO_NORM, SINGLE, COMBINATION = "#C8443C", "#E0A526", "#2F6DB5"
"""Figure 1's red, yellow and blue."""
BEST = "#F08A00"

INK, GREY, PALE = "#2B2B2B", "#767676", "#E9E9E9"

RC = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
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
WIDTH, DPI = 9.5, 100


class StudyFigure(Figure):
    """A matplotlib Figure that shows itself in a notebook, whether or not pyplot was ever imported there.

    It shows as a PNG of 256 colours, half the size of matplotlib's, so that executed notebooks stay small; title and
    caption are its alternative text, for those who cannot see it.
    """

    def _repr_png_(self) -> bytes:
        drawn, small = io.BytesIO(), io.BytesIO()
        self.savefig(drawn, format="png", dpi=self.dpi)
        few_colours(Image.open(drawn).convert("RGB")).save(small, format="png", optimize=True)
        return small.getvalue()

    def quick_png(self) -> bytes:
        """The picture in all its colours, for explorers: three times as fast as the one of a notebook's output."""
        drawn = io.BytesIO()
        self.savefig(drawn, format="png", dpi=self.dpi, pil_kwargs={"compress_level": 1})
        return drawn.getvalue()

    def _repr_mimebundle_(self, **_) -> tuple[dict[str, bytes], dict[str, dict[str, str]]]:
        # asked before pyplot's own formatter, so it is shown once, and small
        return {"image/png": self._repr_png_()}, {"image/png": {"alt": self.get_label()}}


def few_colours(image: Image.Image) -> Image.Image:
    """The image in 256 colours: its 160 commonest as they are, so that flat areas keep their tone, and 96 that cover
    the others, so that a small red word stays red."""
    pixels = np.asarray(image).reshape(-1, 3)
    codes, place, counts = np.unique(pixels @ (65536, 256, 1), return_inverse=True, return_counts=True)
    colours = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=1)
    spread = image.quantize(96, method=Image.Quantize.MAXCOVERAGE).getpalette()[: 3 * 96]
    palette = np.concatenate([colours[np.argsort(-counts)[:160]], np.reshape(spread, (-1, 3))])
    nearest = KDTree(palette).query(colours)[1].astype(np.uint8)
    few = Image.fromarray(nearest[place].reshape(image.height, image.width))
    few.putpalette(palette.astype(np.uint8).tobytes())
    return few


def styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Decorator: draws with the settings of RC and leaves the user's own unchanged."""

    @functools.wraps(draw)
    def in_style(*args, **kwargs) -> Figure:
        with matplotlib.rc_context(RC):
            return draw(*args, **kwargs)

    return in_style


def new_figure(rows: int = 1, columns: int = 1, *, height: float = 4.0, width: float = WIDTH, **subplots):
    """A figure and its axes as an array (rows, columns); sizes in inches. Keywords go to `Figure.subplots`."""
    fig = StudyFigure(figsize=(width, height), dpi=DPI, layout="constrained")
    fig.get_layout_engine().set(h_pad=0.07, w_pad=0.06)
    return fig, fig.subplots(rows, columns, squeeze=False, **subplots)


def quick_figure(layout: Sequence[Sequence[str]], *, height: float, margins: dict[str, float], **mosaic):
    """A figure for an explorer and its axes by name, as `Figure.subplot_mosaic` lays them out. `margins` are those of
    `Figure.subplots_adjust`: they are given, for finding them out takes longer than the drawing."""
    fig = StudyFigure(figsize=(WIDTH, height), dpi=DPI)
    fig.subplots_adjust(**margins)
    return fig, fig.subplot_mosaic(layout, **mosaic)


def finish(fig: Figure, title: str, *caption: str) -> Figure:
    """Adds the title and the caption: small, grey, at the bottom; its parts are joined by " · "."""
    fig.set_label(" · ".join(filter(None, (title, *caption))))
    fig.suptitle(title, x=0.008, ha="left", fontsize=11.5, color=INK)
    text = _wrapped(" · ".join(filter(None, caption)), width=int(16 * fig.get_figwidth()))
    fig.supxlabel(text, x=0.008, ha="left", fontsize=7.8, color=GREY)
    return fig


def _wrapped(caption: str, width: int) -> str:
    """Lines of at most `width` characters, broken between the parts of a caption where that is possible."""
    lines = [""]
    for part in caption.split(" · "):
        joined = f"{lines[-1]} · {part}" if lines[-1] else part
        lines = [*lines[:-1], joined] if len(joined) <= width else [*lines, *textwrap.wrap(part, width)]
    return "\n".join(lines).strip()


def norm_colour(name: str) -> str:
    """The colour of a norm; one registered later gets a spare colour, always the same."""
    return PALETTE.get(name) or SPARE_COLOURS[sum(map(ord, name)) % len(SPARE_COLOURS)]


def norm_marker(name: str) -> str:
    """The shape of a norm's dots. Its other scopes and controls share it; a norm registered later has a round dot."""
    return MARKERS.get(name.split("-")[0], "o")


def arm_styles(labels: Sequence[str]) -> dict[str, dict]:
    """Line colour and dash by label: an arm takes the colour of its N2 (of N1 where N2 is None), and arms that share
    a colour differ in their dashes; other labels take spare colours."""
    styles, used = {}, {}
    for i, label in enumerate(labels):
        try:
            arm = Arm.parse(label)
            colour = norm_colour(arm.n1 if arm.n2 == "None" else arm.n2)
        except ValueError:
            colour = (*SPARE_COLOURS, *PALETTE.values())[i % (len(SPARE_COLOURS) + len(PALETTE))]
        used[colour] = used.get(colour, -1) + 1
        styles[label] = dict(color=colour, linestyle=("-", "--", ":", "-.")[used[colour] % 4])
    return styles


def short(label: str) -> str:
    """`RMSN>SSM>GN` → `RMSN→GN`; any other label as it is."""
    try:
        return Arm.parse(label).label
    except ValueError:
        return label


def whole_ticks(ax: Axes) -> None:
    """Blocks and steps are counted in whole numbers."""
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))


def empty_axes(ax: Axes) -> None:
    """No ticks, no spines: for drawings and unused panels."""
    ax.set_axis_off()


def some_of(n: int, at_most: int) -> list[int]:
    """At most so many indices out of 0…n−1, evenly spaced, first and last among them."""
    return sorted({int(i) for i in np.linspace(0, n - 1, min(n, at_most)).round()})


def jitter(n: int, width: float = 0.16) -> np.ndarray:
    """Fixed sideways offsets for n points, so that seeds do not hide one another."""
    return np.linspace(-width / 2, width / 2, n) if n > 1 else np.zeros(n)
