"""The pictures of the explorers (`mambanorm_study.widgets`), which must be drawn quickly.

Margins are fixed numbers: matplotlib needs longer to compute them than to draw everything else.
"""

from collections.abc import Mapping

import matplotlib
import numpy as np
import pandas as pd
from torch import Tensor

from mambanorm.arms import Arm
from mambanorm_study.figures.colours import COMBINATION, GREY, INDIGO, INK, norm_colour
from mambanorm_study.figures.diagrams import draw_block, draw_cells, moving_cells
from mambanorm_study.figures.lessons import draw_row, mean_sd
from mambanorm_study.figures.style import (
    StudyFigure,
    finish,
    jitter,
    quick_figure,
    styled,
)
from mambanorm_study.lessons.invariance import CHANGE_LIMIT
from mambanorm_study.tables.norm_catalog import ArmFacts
from mambanorm_study.tables.scan_by_hand import HandScan


@styled
def fig_norm_view(
    name: str, x: Tensor, y: Tensor, changes: Mapping[str, float], *, training: bool = True
) -> StudyFigure:
    """Return the norm's cube, and the first row of x and of y = norm(x), both (B, L, D).

    changes: change of x → relative change of the output (`lessons.invariance.output_change`), which
    counts as unmoved below CHANGE_LIMIT.
    """
    margins = dict(left=0.02, right=0.985, top=0.85, bottom=0.2, hspace=0.3, wspace=0.24)
    layout = [["cube", "x", "y"], ["trials", "x", "y"]]
    fig, axes = quick_figure(layout, height=4.2, margins=margins, width_ratios=(0.95, 1, 1))
    cells = moving_cells(name, training=training)
    draw_cells(axes["cube"], cells, norm_colour(name))
    axes["cube"].set_title("shares a statistic" if cells.any() else "shares nothing", loc="center")
    axes["trials"].set_axis_off()
    axes["trials"].set_title("what moves the output of row 1?")
    trials = [
        (change, f"moves by {size:.0%}" if size >= CHANGE_LIMIT else "unmoved")
        for change, size in changes.items()
    ]
    widths = 0.68, 0.42
    axes["trials"].table(trials, None, "left", widths, edges="open", bbox=(-0.05, 0, 1.1, 1))
    for key, values, title in (("x", x, "before"), ("y", y, "after")):
        limit = draw_row(axes[key], values[0].detach())
        axes[key].set(
            title=f"{title}: row 1, colours ±{limit:.1f}",
            xlabel=f"position\nall values: {mean_sd(values.detach())}",
            ylabel="channel",
        )
    rows, length, channels = x.shape
    return finish(
        fig,
        f"{name}, {'train' if training else 'eval'} mode",
        f"a made-up batch of {rows} rows, {length} positions, {channels} channels (seed 0)",
        "cube: the cells on which the front cell, top right, depends",
        "tried on this batch: the change of row 1's first half over its size; "
        f"unmoved: less than {CHANGE_LIMIT:.0%}",
    )


# The parts of a model whose parameters belong to norms.
NORM_PARTS = ("stem norm", "N1", "N2", "further", "final norm")


@styled
def fig_arm_view(facts: ArmFacts, results: pd.DataFrame, *, note: str) -> StudyFigure:
    """Return the block of an arm, and its recorded test accuracy; the caption has the parameters.

    results: one row per seed, columns scale, task, score and chance (in per cent), diverged. note:
    the text of the panel if there is no result.
    """
    margins = dict(left=0.13, right=0.985, top=0.93, bottom=0.24, hspace=0.2)
    fig, axes = quick_figure([["block"], ["results"]], height=5.4, margins=margins)
    draw_block(axes["block"], facts.arm, fontsize=9)
    ax, groups = axes["results"], list(results.groupby(["scale", "task"], sort=False))
    for y, (_, runs) in enumerate(groups):
        runs = runs.assign(y=y + jitter(len(runs), 0.5))
        for diverged, dots in runs.groupby("diverged"):
            marker = "X" if diverged else "o"
            ax.plot(dots.score, dots.y, marker, color=INK, alpha=0.6, markersize=4)
        ax.vlines(runs.score.mean(), y - 0.35, y + 0.35, color=COMBINATION, linewidth=2.2)
        ax.vlines(runs.chance.mean(), y - 0.2, y + 0.2, color=GREY, linewidth=1)
    ax.grid(visible=True, axis="x")
    ax.grid(visible=False, axis="y")
    ax.set(title="recorded test accuracy", xlabel="test accuracy (%)", xlim=(0, 100))
    ax.set_yticks(range(len(groups)), [f"{task}\n({scale})" for (scale, task), _ in groups])
    ax.set(ylabel="task (scale)", ylim=(max(len(groups), 1) - 0.4, -0.6))
    if not groups:
        ax.text(0.5, 0.5, note, transform=ax.transAxes, ha="center", va="center", color=GREY)
    norms = sum(facts.parameters.get(part, 0) for part in NORM_PARTS)
    arm = Arm.parse(facts.arm)
    return finish(
        fig,
        f"The model of arm {arm.label if arm.more else arm}",
        f"model of the digits: {facts.n_layers} blocks, width {facts.d_model}",
        f"{norms:,} of {facts.total:,} parameters are norms' ({100 * norms / facts.total:.2g} %)",
        *(f"{part}: {count:,}" for part, count in facts.parameters.items()),
        f"one block, forward and backward: {facts.block_ms:.1f} ms, "
        f"without norms {facts.plain_ms:.1f} ms (timed here just now, one thread)",
        "results: recorded, one dot per seed, line: mean, tick: chance, × diverged",
    )


# Panel → its title.
SCAN_TITLES = {
    "u": "input u",
    "Δ": "step size Δ",
    "h": "states h",
    "y": "output y, the mean of the states",
}


@styled
def fig_scan_view(scan: HandScan, *, delta: float, a: float) -> StudyFigure:
    """Return input u, step size Δ, states h and output y of `tables.scan_by_hand`, by position."""
    margins = dict(left=0.07, right=0.985, top=0.87, bottom=0.19, hspace=0.5, wspace=0.2)
    fig, axes = quick_figure([["u", "Δ"], ["h", "y"]], height=4.8, margins=margins, sharex=True)
    position = np.arange(1, len(scan.u) + 1)
    for key, values, colour in (("u", scan.u, GREY), ("Δ", scan.delta, INDIGO)):
        stems = axes[key].stem(position, values, linefmt=colour, basefmt=GREY)
        stems.markerline.set_markersize(3)
    states = [f"state {n}, rate {n * a:.2g}" for n in range(1, len(scan.states) + 1)]
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, len(states)))
    axes["h"].set_prop_cycle(color=colours)
    axes["h"].plot(position, scan.states.T, label=states)
    axes["h"].legend(loc="upper right", fontsize=7.5)
    axes["y"].plot(position, scan.y, color=INK, linewidth=1.8)
    for key, title in SCAN_TITLES.items():
        axes[key].set(title=title, xlabel="position", ylabel=f"{key} (a.u.)")
    slow, fast = float(scan.half_life[0]), float(scan.half_life[-1])
    return finish(
        fig,
        "A scan by hand",
        f"h ← exp(−Δ·rate)·h + Δ·u, with Δ = {delta:.3g} at most",
        "each position keeps exp(−Δ·rate) of a state: "
        f"half is gone after {slow:.3g} steps (state 1) to {fast:.3g}",
        "no seed",
    )
