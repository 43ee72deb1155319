"""Diagrams: which cells share a statistic (Figure 2), the block (Figures 3 and 4), the four ways
through an image, and the sheet of the norms: one A4 page to print and hand out.

All are drawn from the code itself: the registered norms, their `axes` and `causal`, the arm
notation, `cross_scan`. No training run is behind them, so the captions name no seeds.
"""

import itertools
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Polygon, Rectangle

from mambanorm.arms import SYMBOLS, Arm
from mambanorm.norms import NORMS, create_norm, norm_name
from mambanorm.norms.registry import NormEntry
from mambanorm_study.figures.colours import GREY, INK, NO_NORM, ink_on, norm_colour
from mambanorm_study.figures.style import StudyFigure, finish, panel_grid, sns, styled
from mambanorm_study.models.cross_scan import DIRECTIONS, cross_scan

SHAPE, GROUPS = (3, 5, 4), 2
"""B, L, D of the drawn box, and its groups of channels."""


def moving_cells(name: str, *, groups: int = GROUPS, training: bool = True) -> np.ndarray:
    """The cells (B, L, D), True or False, on which the output of the last channel at the first
    row's last position depends, found by running the norm in training mode (or in eval mode). All
    False where the cell depends on itself alone: nothing is shared. For a mixture such as NormVary
    this is the union of its members' cells."""
    norm = create_norm(name, SHAPE[2], groups=groups).double().train(training)
    x = torch.randn(
        SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    norm(x)[0, -1, -1].backward()
    cells = x.grad.abs().numpy() > 1e-12
    return cells if cells.sum() > 1 else np.zeros(SHAPE, bool)


@styled
def fig_axes(names: Sequence[str] | None = None) -> Figure:
    """Figure 2: for each norm of the registry (or those named), the cells of (B, L, D) that share
    one statistic."""
    names = list(NORMS) if names is None else [norm_name(name) for name in names]
    fig, axes = panel_grid(len(names), 7, row=1.8, more=0.7)
    for ax, name in zip(axes, names, strict=True):
        draw_cells(ax, moving_cells(name), norm_colour(name))
        ax.set_title(name, fontsize=9, loc="center", weight="bold", color=INK, pad=14)
        words = dict(transform=ax.transAxes, ha="center", fontsize=8)
        ax.text(0.5, 1.015, over_axes(name), color=GREY, **words)
        verdict, colour = ("causal", GREY) if NORMS[name].causal else ("sees the future", NO_NORM)
        ax.text(0.5, -0.05, verdict, va="top", color=colour, **words)
    _, L, D = SHAPE
    for x, y, letter in ((L / 2, -0.5, "L →"), (-0.55, D / 2, "D"), (L + 0.85, 0.15, "B")):
        _label(axes[0], x, y, letter, 8, GREY)
    return finish(
        fig,
        "Which cells share one statistic",
        "B rows, L positions, D channels, G = 2 groups of them",
        "coloured: the cells that the output of the front cell, top right, depends on in training",
        "NormVary mixes the statistics of BN, GN, IN, LN-DL and RMSN-DL"
        if "NormVary" in names
        else "",
    )


def over_axes(name: str) -> str:
    """`over B · L`, as the registry has it."""
    return "over " + " · ".join(NORMS[name].axes) if NORMS[name].axes else "no statistic"


def draw_cells(ax: Axes, cells: np.ndarray, colour: str, hatch: str = "") -> None:
    """The three visible faces of a box of cells: front (L×D), top (L×B), right (B×D); the shared
    ones coloured, and hatched where a hatch is given, for print without colour."""
    ax.set_axis_off()
    B, L, D = cells.shape
    faces = [
        ((pos, d), (1, 0), (0, 1), cells[0, pos, d], 0.0) for pos in range(L) for d in range(D)
    ]
    step = np.array([0.45, 0.34])  # one row further back
    for b in range(B):
        back = step * b
        faces += [
            ((back[0] + pos, D + back[1]), (1, 0), step, cells[b, pos, D - 1], 0.22)
            for pos in range(L)
        ]
        faces += [
            ((L + back[0], d + back[1]), step, (0, 1), cells[b, L - 1, d], 0.38) for d in range(D)
        ]
    for corner, across, up, shared, shade in faces:
        o, u, v = np.array(corner, float), np.array(across, float), np.array(up, float)
        face = np.array(to_rgb(colour if shared else "#F6F6F4")) * (
            1 - (shade if shared else shade / 6)
        )
        look = dict(hatch=hatch, edgecolor=INK) if hatch and shared else dict(edgecolor="#B9B9B9")
        ax.add_patch(Polygon([o, o + u, o + u + v, o + v], facecolor=face, linewidth=0.6, **look))
    ax.set(xlim=(-1.1, L + 0.45 * B + 0.3), ylim=(-0.9, D + 0.34 * B + 0.15), aspect="equal")


MAIN, GATE, TOP, BELOW = 0.0, -1.25, 0.95, -0.62
"""Heights of the main branch, the gate, the residual, and what goes into the SSM from below."""


class Station(NamedTuple):
    """One box of the flow diagram, centred at x, y; a round sign where its text is ⊗ or ⊕, dashed
    where it is –."""

    text: str
    x: float
    y: float = MAIN
    colour: str = "#FFFFFF"

    @property
    def half(self) -> float:
        """From its centre to where an arrow begins or ends."""
        return 0.2 if self.text in "⊗⊕" else 0.39


LINE = (
    ("N1", "", 1.25), ("lin", "Lin", 2.75), ("conv", "Conv", 3.8), ("silu", "SiLU", 4.85), ("+conv", "", 4.85),
    ("ssm", "SSM", 5.9), ("N2", "", 7.05), ("times", "⊗", 8.15), ("+gated", "", 8.15), ("out", "Lin", 9.15),
    ("+branch", "", 9.15), ("plus", "⊕", 10.1), ("+residual", "", 10.1),
)  # fmt: skip
"""The main branch: key, text ("" = a norm), place. Further sites stand one STEP behind their place,
and shift what follows."""
STEP, INSIDE = 1.05, ("B", "C", "delta", "delta_after")


def block_stations(arm: str | Arm) -> dict[str, Station]:
    """What the block consists of, from its arm: key → station, in the order of Eq. 1–3; `+site` is
    a further norm."""
    arm = Arm.parse(arm)
    norms = {"N1": arm.n1, "N2": arm.n2} | {f"+{site}": norm for site, norm in arm.more}
    stations, shift = {}, 0.0
    for key, text, x in LINE:
        if key[0] == "+" and key not in norms:
            continue
        shift += STEP * (key[0] == "+")
        fixed = Station(text, x + shift, colour="#3B3F46" if text == "SSM" else "#FFFFFF")
        stations[key] = fixed if text else _norm_station(norms[key], x + shift)
    stations["gate_lin"], stations["gate_silu"] = (
        Station("Lin", 2.75, GATE),
        Station("SiLU", 4.85, GATE),
    )
    if "+z" in norms:
        stations["+z"] = _norm_station(norms["+z"], 3.8, GATE)
    inside = [site for site in INSIDE if f"+{site}" in norms]
    for i, site in enumerate(inside):
        x, norm = stations["ssm"].x + 0.98 * (i - (len(inside) - 1) / 2), norms[f"+{site}"]
        stations[f"+{site}"] = Station(
            f"{SYMBOLS.get(site, site)}: {norm}", x, BELOW, norm_colour(norm)
        )
    return stations


def _norm_station(name: str, x: float, y: float = MAIN) -> Station:
    return Station("–", x, y) if name == "None" else Station(name, x, y, norm_colour(name))


def draw_block(ax: Axes, arm: str | Arm, *, fontsize: float = 9) -> None:
    """The block as a flow diagram on bare axes."""
    at = block_stations(arm)
    end = max(station.x for station in at.values())
    ax.set_axis_off()
    ax.set(xlim=(-0.35, end + 1.25), ylim=(GATE - 0.6, TOP + 0.3), aspect="equal")
    for key, (text, x, y, colour) in at.items():
        if text in "⊗⊕":
            _label(ax, x, y, text, fontsize * 1.9)
            continue
        small = y == BELOW
        size = fontsize * 0.68 if small or len(text) > 5 else fontsize
        words = text.replace("NormVary-fixed", "NormVary\nfixed")
        box(
            ax,
            x,
            y,
            words,
            colour,
            size=(0.9, 0.3) if small else (0.78, 0.5),
            fontsize=size,
            dashed=text == "–",
        )
        if key in ("N1", "N2"):
            _label(ax, x, MAIN + 0.42, f"{key[0]}$_{key[1]}$", fontsize)
        elif key[0] == "+" and not small:
            _label(ax, x, y + 0.42, key[1:], 0.8 * fontsize)
    _draw_flow(ax, at)
    _label(ax, -0.1, MAIN, "$x$", fontsize + 1.5)
    _label(ax, end + 1.0, MAIN, "$y$", fontsize + 1.5)


def _label(ax: Axes, x: float, y: float, text: str, size: float, colour: str = INK) -> None:
    ax.text(x, y, text, ha="center", va="center", fontsize=size, color=colour, zorder=4)


def box(
    ax: Axes,
    x: float,
    y: float,
    text: str,
    colour: str,
    *,
    size: tuple[float, float],
    fontsize: float,
    dashed: bool,
) -> None:
    """A rounded box around its text, centred at x, y; dashed and grey where nothing stands
    there."""
    style = dict(facecolor=colour, edgecolor="#8A8A8A", linestyle="--" if dashed else "-", zorder=3)
    corner = (x - size[0] / 2, y - size[1] / 2)
    ax.add_patch(FancyBboxPatch(corner, *size, boxstyle="round,pad=0,rounding_size=0.1", **style))
    _label(ax, x, y, text, fontsize, GREY if dashed else ink_on(colour))


def _draw_flow(ax: Axes, at: dict[str, Station]) -> None:
    """Arrows along the main branch, down to the gate and back, and over the top for the
    residual."""
    line = [station for station in at.values() if station.y == MAIN]
    gate = [at[key] for key in ("gate_lin", "+z", "gate_silu") if key in at]
    for a, b in (*itertools.pairwise(line), *itertools.pairwise(gate)):
        arrow(ax, (a.x + a.half, a.y), (b.x - b.half, b.y))
    arrow(ax, (0.1, MAIN), (line[0].x - line[0].half, MAIN))
    arrow(ax, (line[-1].x + line[-1].half, MAIN), (line[-1].x + 0.85, MAIN))
    for station in at.values():
        if station.y == BELOW:
            arrow(
                ax,
                (station.x, BELOW + 0.15),
                (at["ssm"].x + 0.2 * (station.x - at["ssm"].x), MAIN - 0.25),
            )
    fork, times, plus = 1.98, at["times"].x, at["plus"].x
    arrow(ax, (fork, MAIN), (fork, GATE), (gate[0].x - 0.39, GATE))
    arrow(ax, (gate[-1].x + 0.39, GATE), (times, GATE), (times, MAIN - 0.22))
    arrow(ax, (0.4, MAIN), (0.4, TOP), (plus, TOP), (plus, MAIN + 0.22))


def arrow(ax: Axes, *points: tuple[float, float]) -> None:
    """A line through the points that ends in an arrow head."""
    if len(points) > 2:
        ax.plot(
            *zip(*points[:-1], strict=True),
            color=GREY,
            linewidth=1.0,
            solid_joinstyle="round",
            zorder=2,
        )
    look = dict(arrowstyle="-|>", mutation_scale=8, color=GREY, linewidth=1.0, shrinkA=0, shrinkB=0)
    ax.add_patch(FancyArrowPatch(*points[-2:], **look))


@styled
def fig_block(*arms: str | Arm) -> Figure:
    """Figures 3 and 4: the Mamba block with its two normalization sites, further sites beside them;
    a panel an arm."""
    fig, axes = panel_grid(
        len(arms), 2, row=2.9 if len(arms) == 1 else 1.6, more=0.0 if len(arms) == 1 else 0.4
    )
    for ax, arm in zip(axes, arms, strict=True):
        draw_block(ax, arm, fontsize=11 if len(arms) == 1 else 7)
        ax.set_title(Arm.parse(arm).label if len(arms) > 1 else "", color=INK)
    branches = (
        (5.25, TOP + 0.16, "residual"),
        (6.4, GATE + 0.16, "gate"),
        (3.8, MAIN + 0.42, "main branch"),
    )
    for x, y, text in branches:
        _label(axes[0], x, y, text, 8 if len(arms) == 1 else 6, GREY)
    words = (
        "Lin: linear projection · Conv: depth-wise convolution · SSM: selective scan",
        "N₁ feeds both branches, N₂ stands before the gate (Eq. 1–3)",
        "dashed: no norm" if any("None" in Arm.parse(arm) for arm in arms) else "",
    )
    title = f"The block of arm {Arm.parse(arms[0])}" if len(arms) == 1 else "Where a norm can stand"
    return finish(fig, title, *words)


@styled
def fig_cross_scan(height: int = 4, width: int = 4) -> Figure:
    """The order in which each direction of `cross_scan` meets the positions of an image."""
    numbers = torch.arange(height * width).view(1, 1, height, width)
    fig, axes = panel_grid(len(DIRECTIONS), 4, row=2.9)
    for ax, name, order in zip(axes, DIRECTIONS, cross_scan(numbers)[0, :, 0], strict=True):
        places = 1 + order.argsort().view(height, width)
        how = dict(
            annot=True,
            fmt="d",
            cbar=False,
            square=True,
            linewidths=3,
            xticklabels=False,
            yticklabels=False,
        )
        sns.heatmap(places, cmap="viridis_r", vmax=1.4 * height * width, ax=ax, **how)
        ax.set_title(name, color=INK)
        ax.grid(False)
    words = (
        f"an image of {height}×{width} positions; numbers: the order in which the scan meets them"
    )
    return finish(
        fig,
        "Four ways through an image",
        words,
        "the four outputs are put back in place and summed",
    )


# the sheet: a card for each norm; shared cells are hatched as well as coloured, for printers
# without colour

A4 = (8.27, 11.69)  # inches
COLUMNS, ROWS = 2, 8  # a card of fewer norms is no larger; of more it is less high
WIDEST = 52  # characters of a line of a card
INTRODUCTION = (
    r"An activation has $B$ rows (of a batch), $L$ positions (of a sequence) and $D$ channels; "
    "$n$, $l$ and $c$ count them.",
    r"A norm takes statistics $\mu$, $\sigma^2$ over some of the activation's cells and divides by $\sigma$; "
    r"$\gamma$ and $\beta$ are learned, one a channel.",
    "Dark and hatched: the cells on which the output of the front cell, top right, depends in training.",
    "A norm that looks along $L$ sees the future: fine where a whole sequence is read, cheating in a language model.",
)


@styled
def fig_sheet(names: Sequence[str] | None = None) -> Figure:
    """One A4 page with a card for each norm of the registry but Constant, which sees no input (or
    those named). ValueError for an unknown name."""
    names = (
        [n for n in NORMS if n != "Constant"]
        if names is None
        else [norm_name(name) for name in names]
    )
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
        ax.add_patch(Rectangle((0, 0.02), 1, 0.96, fill=False, edgecolor="#9A9A9A", linewidth=0.7))
        _card(ax, NORMS[name])
    made = "mambanorm: made from its registry of norms by the command mambanorm sheet"
    fig.text(0.05, 0.02, made, fontsize=6.5, color=GREY)
    fig.set_label("The norms on one page: " + ", ".join(names))
    return fig


def _card(ax: Axes, entry: NormEntry) -> None:
    """One norm: its box of cells on the left, its words on the right."""
    box = ax.inset_axes((0.0, 0.06, 0.27, 0.86))
    draw_cells(box, moving_cells(entry.name), norm_colour(entry.name), hatch="//////")
    ax.text(0.29, 0.91, entry.name, fontsize=11, weight="bold", color=INK, va="top")
    warned = dict(color="white", bbox=dict(facecolor=INK, edgecolor=INK, pad=1.6))
    look = dict(color=INK) if entry.causal else warned
    ax.text(
        0.975,
        0.9,
        "causal" if entry.causal else "sees the future",
        fontsize=7,
        va="top",
        ha="right",
        **look,
    )
    ax.text(0.98, 0.755, over_axes(entry.name), fontsize=7, va="top", ha="right", color=INK)
    main, *conditions = equation(entry)
    ax.text(0.29, 0.58, main, fontsize=9 if r"\sum" in main else 8, va="center", color=INK)
    ax.text(0.98, 0.56, "  ".join(conditions), fontsize=6.4, va="center", ha="right", color=INK)
    use = textwrap.wrap(
        f"learns {entry.learnable} · {entry.use}" if entry.use else f"learns {entry.learnable}",
        WIDEST,
    )
    for i, line in enumerate(use[:2]):
        ax.text(0.29, 0.34 - 0.115 * i, line, fontsize=6.8, va="center", color=INK)
    source = textwrap.shorten(entry.source.replace("`", ""), WIDEST + 6, placeholder=" …")
    ax.text(0.29, 0.11, source, fontsize=6.1, va="center", color=GREY)


def equation(entry: NormEntry) -> list[str]:
    """The equation and its conditions for matplotlib: LaTeX between dollars, unless it is words
    with LaTeX in them."""
    if "$" in entry.equation:
        return [entry.equation]
    text = entry.equation.replace(
        r"\sum", r"{\sum}"
    )  # its index behind it: below it there is no room in a card
    text = text if r"\sum" in text else text.replace(r"\frac", r"\dfrac")
    return [f"${part.strip()}$" for part in re.split(r",\s*\\quad", text)]


def save_sheet(folder: str | Path, names: Sequence[str] | None = None) -> list[Path]:
    """Writes `norms.pdf` and `norms.svg` into the folder, which is made if need be; returns their
    paths."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    fig = fig_sheet(names)
    paths = [folder / "norms.pdf", folder / "norms.svg"]
    fig.savefig(paths[0], metadata={"Title": "The norms on one page", "CreationDate": None})
    with matplotlib.rc_context({"svg.hashsalt": "mambanorm"}):  # the same sheet gives the same file
        fig.savefig(paths[1], metadata={"Date": None})
    return paths
