"""Diagrams: the cells that share a statistic (Figure 2), the block (Figures 3 and 4), and the four
directions of the cross-scan.

All diagrams are computed from the code: from the attributes `axes` and `causal` of the registered
norms, the notation of arms, and `cross_scan`. They show no training runs, so their captions name no
seeds.
"""

import itertools
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import FancyBboxPatch, Polygon

from mambanorm.arms import SYMBOLS, Arm
from mambanorm.norms import NORMS, create_norm
from mambanorm_study.figures.colours import (
    BAR_GREY,
    BOX_GREY,
    CELL_GREY,
    GREY,
    INK,
    NO_NORM,
    SSM_GREY,
    WHITE,
    ink_on,
    norm_colour,
)
from mambanorm_study.figures.style import StudyFigure, finish, jitter, panel_grid, sns, styled
from mambanorm_study.models.vision import DIRECTIONS, cross_scan

SHAPE, GROUPS = (3, 5, 4), 2  # (B, L, D) of the drawn box of cells; number of groups of channels


def influencing_cells(name: str, *, groups: int = GROUPS, training: bool = True) -> np.ndarray:
    """Return a boolean mask (B, L, D) of the input cells that one output value of a norm depends
    on.

    The output value is at the last channel of the last position of the first row. It depends on an
    input cell if its gradient with respect to this cell is not zero. The mask is all False if the
    value depends only on the input cell at the same row, position and channel. training: put the
    norm in train mode, else in eval mode.
    """
    norm = create_norm(name, SHAPE[2], groups=groups).double().train(training)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(SHAPE, dtype=torch.float64, generator=draw).requires_grad_()
    norm(x)[0, -1, -1].backward()
    cells = x.grad.abs().numpy() > 1e-12
    return cells if cells.sum() > 1 else np.zeros(SHAPE, bool)


@styled
def fig_axes() -> StudyFigure:
    """Return Figure 2: for each norm, the cells of (B, L, D) that share one statistic."""
    fig, axes = panel_grid(len(NORMS), 7, row_height=1.8, extra_height=0.7)
    for ax, name in zip(axes, NORMS, strict=True):
        draw_cells(ax, influencing_cells(name), norm_colour(name))
        ax.set_title(name, fontsize=9, loc="center", weight="bold", pad=14)
        small = dict(transform=ax.transAxes, ha="center", fontsize=8)
        ax.text(0.5, 1.015, axes_text(name), color=GREY, **small)
        word, colour = ("causal", GREY) if NORMS[name].causal else ("sees the future", NO_NORM)
        ax.text(0.5, -0.05, word, va="top", color=colour, **small)
    _, L, D = SHAPE
    for x, y, letter in ((L / 2, -0.5, "L →"), (-0.55, D / 2, "D"), (L + 0.85, 0.15, "B")):
        _write(axes[0], x, y, letter, 8, GREY)
    return finish(
        fig,
        "Which cells share one statistic",
        "B rows, L positions, D channels, G = 2 groups of them",
        "coloured: the cells that the output of the front cell, top right, depends on in training",
        "NormVary mixes the statistics of BN, GN, IN, LN-DL and RMSN-DL",
    )


def axes_text(name: str) -> str:
    """Return the axes of a norm's statistics as text: "over B · L", or "no statistic"."""
    return "over " + " · ".join(NORMS[name].axes) if NORMS[name].axes else "no statistic"


def draw_cells(ax: Axes, cells: np.ndarray, colour: str, hatch: str = "") -> None:
    """Draw the front (L×D), top (L×B) and right (D×B) face of a box of cells.

    cells: mask (B, L, D) of the cells that share a statistic, which are drawn in `colour`. hatch: a
    matplotlib hatch for these cells, for print without colour.
    """
    ax.set_axis_off()
    B, L, D = cells.shape
    right, up, back = np.array([1, 0]), np.array([0, 1]), np.array([0.45, 0.34])
    faces = (  # corner, the two edges of a cell, mask of shared cells, darkness (0 to 1)
        (0 * up, right, up, cells[0], 0.0),
        (D * up, right, back, cells[:, :, -1].T, 0.22),
        (L * right, up, back, cells[:, -1, :].T, 0.38),
    )
    for corner, u, v, mask, shade in faces:
        for (i, j), shared in np.ndenumerate(mask):
            o = corner + i * u + j * v
            light = 1 - (shade if shared else shade / 6)
            ax.add_patch(
                Polygon(
                    [o, o + u, o + u + v, o + v],
                    facecolor=light * np.array(to_rgb(colour if shared else CELL_GREY)),
                    edgecolor=INK if hatch and shared else BAR_GREY,
                    hatch=hatch if shared else "",
                    linewidth=0.6,
                )
            )
    ax.set(xlim=(-1.1, L + 0.45 * B + 0.3), ylim=(-0.9, D + 0.34 * B + 0.15), aspect="equal")


# Vertical positions of the main branch, the gate branch, the residual connection and the norms of
# the SSM's inputs.
MAIN, GATE, TOP, BELOW = 0.0, -1.25, 0.95, -0.62


class Box(NamedTuple):
    """One box of the flow diagram with its centre at (x, y).

    The text names a norm or an operation. The texts ⊗ and ⊕ are drawn without a box. The text –
    means that the site has no norm; the box is dashed.
    """

    text: str
    x: float
    y: float = MAIN

    @property
    def colour(self) -> str:
        """The fill colour of the box."""
        norm = self.text.rpartition(": ")[2]
        ground = SSM_GREY if self.text == "SSM" else WHITE
        return norm_colour(norm) if norm in NORMS else ground


# Boxes of the main branch: key, text ("" means the arm's norm at this site), x. A box whose key
# starts with + is drawn only if the arm has a norm at this further site. Such a box moves the
# boxes after it to the right.
MAIN_BRANCH = (
    ("N1", "", 1.25), ("lin", "Lin", 2.75), ("conv", "Conv", 3.8), ("silu", "SiLU", 4.85),
    ("+conv", "", 4.85), ("ssm", "SSM", 5.9), ("N2", "", 7.05), ("times", "⊗", 8.15),
    ("+gated", "", 8.15), ("out", "Lin", 9.15), ("+branch", "", 9.15), ("plus", "⊕", 10.1),
    ("+residual", "", 10.1),
)  # fmt: skip
BRANCH_LABELS = (  # text, x, y
    ("residual", 5.25, TOP + 0.16),
    ("gate", 6.4, GATE + 0.16),
    ("main branch", 3.8, MAIN + 0.42),
)
SSM_INPUTS = ("B", "C", "delta", "delta_after")  # sites of the SSM's inputs


def diagram_boxes(arm: str | Arm) -> dict[str, Box]:
    """Return a map from key to box for the block of an arm; the boxes of the main branch are first,
    in the order of the paper's Eq. 1–3.

    The key of the box of a further site is "+" and the name of the site, such as "+conv".
    """
    arm = Arm.parse(arm)
    norms = {"N1": arm.n1, "N2": arm.n2, **{f"+{site}": norm for site, norm in arm.more}}
    norms = {key: "–" if norm == "None" else norm for key, norm in norms.items()}
    boxes, shift = {}, 0.0
    for key, text, x in MAIN_BRANCH:
        if key in norms or text:
            shift += 1.05 * key.startswith("+")
            boxes[key] = Box(norms.get(key, text), x + shift)
    boxes["gate_lin"] = Box("Lin", 2.75, GATE)
    boxes["gate_silu"] = Box("SiLU", 4.85, GATE)
    if "+z" in norms:
        boxes["+z"] = Box(norms["+z"], 3.8, GATE)
    inside = [site for site in SSM_INPUTS if f"+{site}" in norms]
    for site, offset in zip(inside, jitter(len(inside), 0.98 * (len(inside) - 1)), strict=True):
        text = f"{SYMBOLS.get(site, site)}: {norms[f'+{site}']}"
        boxes[f"+{site}"] = Box(text, boxes["ssm"].x + offset, BELOW)
    return boxes


def draw_block(ax: Axes, arm: str | Arm, *, fontsize: float = 9) -> None:
    """Draw the block of an arm as a flow diagram."""
    boxes = diagram_boxes(arm)
    end = max(box.x for box in boxes.values())
    ax.set_axis_off()
    ax.set(xlim=(-0.35, end + 1.25), ylim=(GATE - 0.6, TOP + 0.3), aspect="equal")
    for key, box in boxes.items():
        _draw_box(ax, key, box, fontsize)
    _draw_flow(ax, boxes)
    _write(ax, -0.1, MAIN, "$x$", fontsize + 1.5)
    _write(ax, end + 1.0, MAIN, "$y$", fontsize + 1.5)


def _draw_box(ax: Axes, key: str, box: Box, fontsize: float) -> None:
    """Draw a box with its text and, above the box of a norm, the name of the norm's site.

    key: the key of the box in `diagram_boxes`.
    """
    text, x, y = box
    if text in "⊗⊕":
        _write(ax, x, y, text, fontsize * 1.9)
        return
    is_small, is_empty = y == BELOW, text == "–"
    width, height = (0.9, 0.3) if is_small else (0.78, 0.5)
    ax.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - height / 2),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.1",
            facecolor=box.colour,
            edgecolor=BOX_GREY,
            linestyle="--" if is_empty else "-",
            zorder=3,
        )
    )
    _write(
        ax,
        x,
        y,
        text.replace("NormVary-fixed", "NormVary\nfixed"),
        fontsize * (0.68 if is_small or len(text) > 5 else 1),
        GREY if is_empty else ink_on(box.colour),
    )
    if key in ("N1", "N2"):
        _write(ax, x, y + 0.42, f"{key[0]}$_{key[1]}$", fontsize)
    elif key.startswith("+") and not is_small:
        _write(ax, x, y + 0.42, key[1:], 0.8 * fontsize)


def _write(ax: Axes, x: float, y: float, text: str, size: float, colour: str = INK) -> None:
    ax.text(x, y, text, ha="center", va="center", fontsize=size, color=colour, zorder=4)


def _draw_flow(ax: Axes, boxes: dict[str, Box]) -> None:
    """Draw the arrows between the boxes."""
    line = [box for box in boxes.values() if box.y == MAIN]
    gate = sorted([box for box in boxes.values() if box.y == GATE], key=lambda box: box.x)
    for a, b in (*itertools.pairwise(line), *itertools.pairwise(gate)):
        _draw_arrow(ax, (a.x + _half_width(a), a.y), (b.x - _half_width(b), b.y))
    first, last, ssm = line[0], line[-1], boxes["ssm"].x
    _draw_arrow(ax, (0.1, MAIN), (first.x - _half_width(first), MAIN))
    _draw_arrow(ax, (last.x + _half_width(last), MAIN), (last.x + 0.85, MAIN))
    for x in [box.x for box in boxes.values() if box.y == BELOW]:
        _draw_arrow(ax, (x, BELOW + 0.15), (ssm + 0.2 * (x - ssm), MAIN - 0.25))
    fork, times, plus = 1.98, boxes["times"].x, boxes["plus"].x
    _draw_arrow(ax, (fork, MAIN), (fork, GATE), (gate[0].x - 0.39, GATE))
    _draw_arrow(ax, (gate[-1].x + 0.39, GATE), (times, GATE), (times, MAIN - 0.22))
    _draw_arrow(ax, (0.4, MAIN), (0.4, TOP), (plus, TOP), (plus, MAIN + 0.22))


def _half_width(box: Box) -> float:
    """Return the distance from the centre of a box to its left and right edge, where arrows end."""
    return 0.2 if box.text in "⊗⊕" else 0.39


def _draw_arrow(ax: Axes, *points: tuple[float, float]) -> None:
    """Draw a line through the points with an arrow head at its end."""
    x, y = zip(*points[:-1], strict=True)
    ax.plot(x, y, color=GREY, linewidth=1.0, solid_joinstyle="round", zorder=2)
    ax.annotate(
        "",
        points[-1],
        points[-2],
        arrowprops=dict(arrowstyle="-|>", color=GREY, mutation_scale=8, shrinkA=0, shrinkB=0),
    )


@styled
def fig_block(*arms: str | Arm) -> StudyFigure:
    """Return Figures 3 and 4: the Mamba block with the norms of an arm, one panel per arm."""
    is_single = len(arms) == 1
    fig, axes = panel_grid(
        len(arms), 2, row_height=2.9 if is_single else 1.6, extra_height=0.0 if is_single else 0.4
    )
    for ax, arm in zip(axes, arms, strict=True):
        draw_block(ax, arm, fontsize=11 if is_single else 7)
        ax.set_title("" if is_single else Arm.parse(arm).label)
    for branch, x, y in BRANCH_LABELS:
        _write(axes[0], x, y, branch, 8 if is_single else 6, GREY)
    return finish(
        fig,
        f"The block of arm {Arm.parse(arms[0])}" if is_single else "Where a norm can stand",
        "Lin: linear projection · Conv: depth-wise convolution · SSM: selective scan",
        "N₁ feeds both branches, N₂ stands before the gate (Eq. 1–3)",
        "dashed: no norm" if any("None" in Arm.parse(arm) for arm in arms) else "",
    )


@styled
def fig_cross_scan() -> StudyFigure:
    """Return a figure of the order in which each direction of `cross_scan` reads an image."""
    side = 4
    numbers = torch.arange(side**2).view(1, 1, side, side)
    fig, axes = panel_grid(len(DIRECTIONS), 4, row_height=2.9)
    for ax, name, order in zip(axes, DIRECTIONS, cross_scan(numbers)[0, :, 0], strict=True):
        sns.heatmap(
            1 + order.argsort().view(side, side),
            cmap="viridis_r",
            vmax=1.4 * side**2,
            ax=ax,
            annot=True,
            fmt="d",
            cbar=False,
            square=True,
            linewidths=3,
            xticklabels=False,
            yticklabels=False,
        )
        ax.set_title(name)
    return finish(
        fig,
        "Four ways through an image",
        f"an image of {side}×{side} positions; numbers: the order in which the scan reads them",
        "the four outputs are put back in place and summed",
    )
