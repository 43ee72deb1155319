"""Diagrams: which cells share a statistic (Figure 2), the four patterns (Figure 3), the block (Figure 4), the four ways
through an image.

All are drawn from the code itself: the registered norms, their `axes` and `causal`, the arm notation, `cross_scan`.
No training run is behind them, so the captions name no seeds.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Polygon

from mambanorm.arms import SYMBOLS, Arm
from mambanorm.figures.style import GREY, INK, empty_axes, finish, ink_on, new_figure, norm_colour, styled
from mambanorm.norms import NORMS, create_norm, norm_name
from mambanorm.operations import cross_scan
from mambanorm.operations.cross import DIRECTIONS

SHAPE, GROUPS = (3, 5, 4), 2
"""B, L, D of the drawn box, and its groups of channels."""

# ---------------------------------------------------------------------------------------------------------------------
# Figure 2
# ---------------------------------------------------------------------------------------------------------------------


def shared_cells(axes: Sequence[str], shape: tuple[int, int, int] = SHAPE, groups: int = GROUPS) -> np.ndarray:
    """The cells (B, L, D), True or False, that share one statistic with the first row's last channel at the last
    position. All False for no axes: nothing is shared. "D/G" is the channel's group. ValueError for another axis."""
    cells = np.zeros(shape, bool)
    if not axes:
        return cells
    _, L, D = shape
    own = {"B": slice(0, 1), "L": slice(L - 1, L), "D": slice(D - 1, D)}
    spans = {"B": ("B", slice(None)), "L": ("L", slice(None)), "D": ("D", slice(None))}
    spans["D/G"] = ("D", slice(D - D // groups, D))
    for axis in axes:
        if axis not in spans:
            raise ValueError(f"unknown axis {axis!r} of a statistic: valid are {', '.join(spans)}")
        name, span = spans[axis]
        own[name] = span
    cells[own["B"], own["L"], own["D"]] = True
    return cells


def moving_cells(
    name: str, shape: tuple[int, int, int] = SHAPE, groups: int = GROUPS, *, training: bool = True
) -> np.ndarray:
    """The same, found by running the norm in training mode (or in eval mode): the cells on which the output of the last
    channel at the first row's last position depends. For a mixture such as NormVary this is the union of its members'
    cells."""
    norm = create_norm(name, shape[2], groups=groups).double().train(training)
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    norm(x)[0, -1, -1].backward()
    cells = x.grad.abs().numpy() > 1e-12
    return cells if cells.sum() > 1 else np.zeros(shape, bool)


@styled
def fig_axes(names: Sequence[str] | None = None) -> Figure:
    """Figure 2: for each norm of the registry (or those named), the cells of (B, L, D) that share one statistic."""
    names = list(NORMS) if names is None else [norm_name(name) for name in names]
    columns = min(6, len(names))
    rows = -(-len(names) // columns)
    fig, axes = new_figure(rows, columns, height=2.0 * rows + 0.7)
    for ax, name in itertools.zip_longest(axes.flat, names):
        empty_axes(ax)
        if name is not None:
            _draw_norm(ax, name, letters=name == names[0])
    return finish(
        fig,
        "Which cells share one statistic",
        "B rows, L positions, D channels, G = 2 groups of them",
        "coloured: the cells that the output of the front cell, top right, depends on in training",
        "NormVary mixes the statistics of BN, GN, IN, LN-DL and RMSN-DL" if "NormVary" in names else "",
    )


def _draw_norm(ax: Axes, name: str, letters: bool) -> None:
    entry = NORMS[name]
    draw_box(ax, moving_cells(name), norm_colour(name))
    ax.set_title(name, fontsize=10.5, loc="center", weight="bold", color=INK, pad=14)
    over = "over " + " · ".join(entry.axes) if entry.axes else "no statistic"
    ax.text(0.5, 1.015, over, transform=ax.transAxes, ha="center", fontsize=8, color=GREY)
    verdict, colour = ("causal", "#2E7D5B") if entry.causal else ("sees the future", "#B5472F")
    ax.text(0.5, -0.05, verdict, transform=ax.transAxes, ha="center", va="top", fontsize=8, color=colour)
    if letters:
        _, L, D = SHAPE
        for x, y, letter in ((L / 2, -0.5, "L →"), (-0.55, D / 2, "D"), (L + 0.85, 0.15, "B")):
            ax.text(x, y, letter, ha="center", va="center", fontsize=8, color=GREY)


def draw_box(ax: Axes, cells: np.ndarray, colour: str, hatch: str = "") -> None:
    """The three visible faces of a box of cells: front (L×D), top (L×B), right (B×D); the shared ones coloured, and
    hatched where a hatch is given, for print without colour."""
    B, L, D = cells.shape
    faces = [((pos, d), (1, 0), (0, 1), cells[0, pos, d], 0.0) for pos in range(L) for d in range(D)]
    step = np.array([0.45, 0.34])  # one row further back
    for b in range(B):
        back = step * b
        faces += [((back[0] + pos, D + back[1]), (1, 0), step, cells[b, pos, D - 1], 0.22) for pos in range(L)]
        faces += [((L + back[0], d + back[1]), step, (0, 1), cells[b, L - 1, d], 0.38) for d in range(D)]
    for corner, across, up, shared, shade in faces:
        o, u, v = np.array(corner, float), np.array(across, float), np.array(up, float)
        face = _darker(colour if shared else "#F6F6F4", shade if shared else shade / 6)
        corners, lines = [o, o + u, o + u + v, o + v], hatch if shared else ""
        ax.add_patch(
            Polygon(corners, facecolor=face, edgecolor=INK if lines else "#B9B9B9", linewidth=0.6, hatch=lines)
        )
    ax.set(xlim=(-1.1, L + 0.45 * B + 0.3), ylim=(-0.9, D + 0.34 * B + 0.15), aspect="equal")


def _darker(colour: str, amount: float) -> tuple[float, ...]:
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return tuple(rgb * (1 - amount))


# ---------------------------------------------------------------------------------------------------------------------
# Figures 3 and 4
# ---------------------------------------------------------------------------------------------------------------------

MAIN, GATE, TOP, BELOW = 0.0, -1.25, 0.95, -0.62
"""Heights of the main branch, the gate, the residual, and what goes into the SSM from below."""


@dataclass(frozen=True)
class Station:
    """One box (or a round sign) of the flow diagram, centred at x, y."""

    text: str
    x: float
    y: float
    colour: str = "#FFFFFF"
    dashed: bool = False
    round: bool = False
    small: bool = False


LINE = (
    ("N1", "", 1.25), ("lin", "Lin", 2.75), ("conv", "Conv", 3.8), ("silu", "SiLU", 4.85), ("+conv", "", 4.85),
    ("ssm", "SSM", 5.9), ("N2", "", 7.05), ("times", "⊗", 8.15), ("+gated", "", 8.15), ("out", "Lin", 9.15),
    ("+branch", "", 9.15), ("plus", "⊕", 10.1), ("+residual", "", 10.1),
)  # fmt: skip
"""The main branch: key, text ("" = a norm), place. Further sites stand one STEP behind their place, and shift what
follows."""
STEP, INSIDE = 1.05, ("B", "C", "delta", "delta_after")


def block_stations(arm: str | Arm) -> dict[str, Station]:
    """What the block consists of, from its arm: key → station, in the order of Eq. 1–3; `+site` is a further norm."""
    arm = Arm.parse(arm)
    names = {"N1": arm.n1, "N2": arm.n2} | {f"+{site}": norm for site, norm in arm.more}
    stations, shift = {}, 0.0
    for key, text, x in LINE:
        if key[0] == "+":
            if key not in names:
                continue
            shift += STEP
        if text:
            stations[key] = Station(
                text, x + shift, MAIN, "#3B3F46" if text == "SSM" else "#FFFFFF", round=text in "⊗⊕"
            )
        else:
            stations[key] = _norm_station(names[key], x + shift, MAIN)
    stations["gate_lin"], stations["gate_silu"] = Station("Lin", 2.75, GATE), Station("SiLU", 4.85, GATE)
    if "+z" in names:
        stations["+z"] = _norm_station(names["+z"], 3.8, GATE)
    inside = [site for site in INSIDE if f"+{site}" in names]
    for i, site in enumerate(inside):
        x = stations["ssm"].x + 0.98 * (i - (len(inside) - 1) / 2)
        text = f"{SYMBOLS.get(site, site)}: {names[f'+{site}']}"
        stations[f"+{site}"] = Station(text, x, BELOW, norm_colour(names[f"+{site}"]), small=True)
    return stations


def _norm_station(name: str, x: float, y: float) -> Station:
    none = name == "None"
    return Station("–" if none else name, x, y, "#FFFFFF" if none else norm_colour(name), dashed=none)


def draw_block(ax: Axes, arm: str | Arm, *, fontsize: float = 9) -> None:
    """The block as a flow diagram on bare axes."""
    empty_axes(ax)
    stations = block_stations(arm)
    end = max(station.x for station in stations.values())
    ax.set(xlim=(-0.35, end + 1.25), ylim=(GATE - 0.6, TOP + 0.3), aspect="equal")
    for station in stations.values():
        _draw_station(ax, station, fontsize)
    for key, station in stations.items():
        if key in ("N1", "N2"):
            _label(ax, station.x, MAIN + 0.42, f"{key[0]}$_{key[1]}$", fontsize)
        elif key[0] == "+" and not station.small:
            _label(ax, station.x, station.y + 0.42, key[1:], 0.8 * fontsize)
    _draw_flow(ax, stations)
    _label(ax, -0.1, MAIN, "$x$", fontsize + 1.5)
    _label(ax, end + 1.0, MAIN, "$y$", fontsize + 1.5)


def _label(ax: Axes, x: float, y: float, text: str, size: float, colour: str = INK) -> None:
    ax.text(x, y, text, ha="center", va="center", fontsize=size, color=colour)


def _draw_station(ax: Axes, station: Station, fontsize: float) -> None:
    if station.round:
        _label(ax, station.x, station.y, station.text, fontsize * 1.9)
        return
    width, height = (0.9, 0.3) if station.small else (0.78, 0.5)
    style = dict(facecolor=station.colour, edgecolor="#8A8A8A", linestyle="--" if station.dashed else "-")
    corner = (station.x - width / 2, station.y - height / 2)
    ax.add_patch(FancyBboxPatch(corner, width, height, boxstyle="round,pad=0,rounding_size=0.1", zorder=3, **style))
    size = fontsize * 0.68 if station.small or len(station.text) > 5 else fontsize
    text = station.text.replace("NormVary-fixed", "NormVary\nfixed")
    colour = GREY if station.dashed else ink_on(station.colour)
    ax.text(station.x, station.y, text, ha="center", va="center", fontsize=size, color=colour, zorder=4)


def _draw_flow(ax: Axes, at: dict[str, Station]) -> None:
    """Arrows along the main branch, down to the gate and back, and over the top for the residual."""
    line = [key for key, station in at.items() if station.y == MAIN]
    edge = {key: 0.2 if at[key].round else 0.39 for key in at}
    _arrow(ax, (0.1, MAIN), (at["N1"].x - edge["N1"], MAIN))
    for a, b in itertools.pairwise(line):
        _arrow(ax, (at[a].x + edge[a], MAIN), (at[b].x - edge[b], MAIN))
    _arrow(ax, (at[line[-1]].x + edge[line[-1]], MAIN), (at[line[-1]].x + 0.85, MAIN))
    for station in at.values():
        if station.small:
            _arrow(ax, (station.x, BELOW + 0.15), (at["ssm"].x + 0.2 * (station.x - at["ssm"].x), MAIN - 0.25))
    fork, times, plus = 1.98, at["times"].x, at["plus"].x
    gate = [key for key in ("gate_lin", "+z", "gate_silu") if key in at]
    _arrow(ax, (fork, MAIN), (fork, GATE), (at["gate_lin"].x - 0.39, GATE))
    for a, b in itertools.pairwise(gate):
        _arrow(ax, (at[a].x + 0.39, GATE), (at[b].x - 0.39, GATE))
    _arrow(ax, (at["gate_silu"].x + 0.39, GATE), (times, GATE), (times, MAIN - 0.22))
    _arrow(ax, (0.4, MAIN), (0.4, TOP), (plus, TOP), (plus, MAIN + 0.22))


def _arrow(ax: Axes, *points: tuple[float, float]) -> None:
    """A line through the points that ends in an arrow head."""
    if len(points) > 2:
        ax.plot(*zip(*points[:-1], strict=True), color=GREY, linewidth=1.0, solid_joinstyle="round", zorder=2)
    ax.add_patch(
        FancyArrowPatch(
            points[-2], points[-1], arrowstyle="-|>", mutation_scale=8, color=GREY, linewidth=1.0, shrinkA=0, shrinkB=0
        )
    )


@styled
def fig_block(arm: str | Arm = "RMSN>SSM>GN") -> Figure:
    """Figure 4: the Mamba block with its two normalization sites, for one arm; its further sites beside them."""
    fig, axes = new_figure(height=2.9)
    ax = axes[0, 0]
    draw_block(ax, arm, fontsize=11)
    for x, y, text in ((5.25, TOP + 0.16, "residual"), (6.4, GATE + 0.16, "gate"), (3.8, MAIN + 0.42, "main branch")):
        _label(ax, x, y, text, 8, GREY)
    words = (
        "Lin: linear projection · Conv: depth-wise convolution · SSM: selective scan",
        "N₁ feeds both branches, N₂ stands before the gate (Eq. 1–3)",
    )
    missing = "dashed: no norm" if "None" in Arm.parse(arm) else ""
    return finish(fig, f"The block of arm {Arm.parse(arm)}", *words, missing)


PATTERNS = {
    "(a) position: before the SSM": "LN>SSM>None",
    "(b) position: after the SSM": "None>SSM>LN",
    "(c) type: none": "None>SSM>None",
    "(d) type: the same before and after": "LN>SSM>LN",
}


@styled
def fig_patterns() -> Figure:
    """Figure 3: before, after, none, both; LN stands for any norm."""
    fig, axes = new_figure(2, 2, height=3.6)
    for ax, (title, arm) in zip(axes.flat, PATTERNS.items(), strict=True):
        draw_block(ax, arm, fontsize=7)
        ax.set_title(title, fontsize=9.5, color=INK)
    return finish(fig, "Where a norm can stand: four patterns", "LN stands for any norm · dashed: no norm")


# ---------------------------------------------------------------------------------------------------------------------
# the cross-scan
# ---------------------------------------------------------------------------------------------------------------------


@styled
def fig_cross_scan(height: int = 4, width: int = 4) -> Figure:
    """The order in which each direction of `cross_scan` meets the positions of an image."""
    numbers = torch.arange(height * width).view(1, 1, height, width)
    fig, axes = new_figure(1, len(DIRECTIONS), height=2.9)
    for ax, name, order in zip(axes.flat, DIRECTIONS, cross_scan(numbers)[0, :, 0], strict=True):
        empty_axes(ax)
        ax.set_title(name, fontsize=10, color=INK)
        y, x = np.divmod(order.numpy(), width)
        colours = matplotlib.colormaps["viridis"](np.linspace(0.95, 0.35, len(order)))
        ax.plot(x, y, color=GREY, linewidth=1, zorder=1)
        ax.scatter(x, y, s=330, c=colours, marker="s", zorder=2)
        for place, (column, row) in enumerate(zip(x, y, strict=True), start=1):
            ax.text(
                column,
                row,
                str(place),
                ha="center",
                va="center",
                fontsize=8,
                color=INK if 2 * place <= len(order) else "white",
            )
        ax.set(xlim=(-0.6, width - 0.4), ylim=(height - 0.4, -0.6), aspect="equal")
    words = f"an image of {height}×{width} positions; numbers: the order in which the scan meets them"
    return finish(fig, "Four ways through an image", words, "the four outputs are put back in place and summed")
