"""The pictures of the explorers (`mambanorm_study.widgets`), which must be drawn quickly.

Margins are fixed numbers: matplotlib needs longer to compute them than to draw everything else.
"""

from collections.abc import Mapping

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from torch import Tensor

from mambanorm.arms import Arm
from mambanorm_study.figures.colours import (
    BAR_GREY,
    BEST,
    COMBINATION,
    GREY,
    INDIGO,
    INK,
    NO_NORM,
    norm_colour,
)
from mambanorm_study.figures.diagrams import SHAPE, draw_block, draw_cells, moving_cells
from mambanorm_study.figures.lessons import draw_row, mean_sd
from mambanorm_study.figures.style import (
    finish,
    jitter,
    quick_figure,
    short,
    styled,
    write_centred,
)
from mambanorm_study.lessons.invariance import CHANGE_LIMIT
from mambanorm_study.tables.scan_by_hand import HandScan

# a norm


@styled
def fig_norm_view(
    name: str,
    x: Tensor,
    y: Tensor,
    changes: dict[str, float],
    *,
    groups: int = 4,
    training: bool = True,
) -> Figure:
    """Return the norm's cube, and the first row of x and of y = norm(x), both (B, L, D).

    changes: change of x → relative change of the output (`lessons.invariance.output_change`);
    below CHANGE_LIMIT it
    counts as unmoved. The cube has four channels, so more than four groups look like four.
    """
    margins = dict(left=0.02, right=0.985, top=0.85, bottom=0.2, hspace=0.3, wspace=0.24)
    layout = [["cube", "x", "y"], ["trials", "x", "y"]]
    fig, axes = quick_figure(layout, height=4.2, margins=margins, width_ratios=(0.95, 1, 1))
    cells = moving_cells(name, groups=min(groups, SHAPE[2]), training=training)
    draw_cells(axes["cube"], cells, norm_colour(name))
    axes["cube"].set_title("shares a statistic" if cells.any() else "shares nothing", loc="center")
    _draw_changes(axes["trials"], changes)
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


def _draw_changes(ax: Axes, changes: Mapping[str, float]) -> None:
    ax.set_axis_off()
    ax.set_title("what moves the output of row 1?")
    for i, (change, size) in enumerate(changes.items()):
        line = dict(y=0.9 - i * 0.165, transform=ax.transAxes, fontsize=8.5, va="center")
        text, colour = ("unmoved", GREY) if size < CHANGE_LIMIT else (f"moves by {size:.0%}", INK)
        ax.text(0.02, s=change, color=INK, **line)
        ax.text(0.98, s=text, color=colour, ha="right", **line)


# an arm

NORM_PLACES = ("stem norm", "N1", "N2", "further", "final norm")


@styled
def fig_arm_view(
    arm: str, parameters: Mapping[str, int], results: pd.DataFrame, *, note: str = ""
) -> Figure:
    """Return the block of an arm, the parameters of its model, and its recorded test accuracy.

    parameters: `norm_catalog.arm_parameters`. results: one row a seed, columns scale, task,
    accuracy, chance, diverged. note: the text of the panel where there is no result.
    """
    margins = dict(left=0.115, right=0.985, top=0.93, bottom=0.21, hspace=0.2, wspace=0.42)
    layout = [["block", "block"], ["parameters", "results"]]
    fig, axes = quick_figure(layout, height=5.4, margins=margins)
    draw_block(axes["block"], arm, fontsize=9)
    _draw_parameters(axes["parameters"], parameters)
    _draw_results(axes["results"], results, note)
    norms = sum(parameters.get(place, 0) for place in NORM_PLACES)
    total = sum(parameters.values())
    seeds = ""
    if len(results):
        seeds = f"; {results.groupby(['scale', 'task']).size().max()} seeds at most"
    parsed = Arm.parse(arm)
    return finish(
        fig,
        f"The model of arm {parsed.label if parsed.more else parsed}",
        "model of the digits at scale quick",
        f"{norms:,} of {total:,} parameters are norms' ({100 * norms / total:.2g} %)",
        f"results: recorded, line: mean, tick: chance, × diverged{seeds}",
    )


def _draw_parameters(ax: Axes, parameters: Mapping[str, int]) -> None:
    places, counts = list(parameters), np.array(list(parameters.values()))
    y, widths = range(len(places)), np.maximum(counts, 0.5)
    ax.barh(y, widths, color=[INK if place in NORM_PLACES else BAR_GREY for place in places])
    for i, count in enumerate(counts):
        ax.text(widths[i] * 1.15, i, f"{count:,}", va="center", fontsize=8, color=INK)
    ax.set_xscale("log")
    ax.minorticks_off()
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))  # formulas take as long as all the rest
    ax.set_yticks(y, places)
    ax.grid(visible=False)
    ax.set(
        title="what it learns",
        xlabel="parameters (log scale)",
        ylabel="place in the model",
        xlim=(0.5, 40 * counts.max()),
        ylim=(len(places) - 0.4, -0.6),
    )


def _draw_results(ax: Axes, results: pd.DataFrame, note: str) -> None:
    ax.grid(visible=True, axis="x")
    ax.grid(visible=False, axis="y")
    groups = list(results.groupby(["scale", "task"], sort=False)) if len(results) else []
    for i, (_, runs) in enumerate(groups):
        _draw_seeds(ax, runs, i, alpha=0.6, markersize=4)
        ax.vlines(100 * runs.accuracy.mean(), i - 0.35, i + 0.35, color=COMBINATION, linewidth=2.2)
        ax.vlines(100 * runs.chance.mean(), i - 0.2, i + 0.2, color=GREY, linewidth=1)
    ax.set_yticks(
        range(len(groups)), [f"{task}\n({scale})" for (scale, task), _ in groups], fontsize=7.5
    )
    ax.set(
        title="recorded test accuracy",
        xlabel="test accuracy (%)",
        ylabel="task (scale)",
        xlim=(0, 100),
        ylim=(max(len(groups), 1) - 0.4, -0.6),
    )
    if not groups:
        write_centred(ax, note or "not recorded")


def _draw_seeds(ax: Axes, runs: pd.DataFrame, y: float, diverged: str = INK, **look) -> None:
    """Draw a dot a seed at the height y, and a cross in the colour `diverged` for a lost run."""
    heights = y + jitter(len(runs), 0.5)
    for failed, marker, colour in ((False, "o", INK), (True, "X", diverged)):
        shown = (runs.diverged == failed).to_numpy(bool)
        ax.plot(100 * runs.accuracy[shown], heights[shown], marker, color=colour, **look)


# a scan by hand

# Panel → its title.
SCAN_TITLES = {
    "u": "input u",
    "delta": "step size Δ",
    "h": "states h",
    "y": "output y, the mean of the states",
}


@styled
def fig_scan_view(scan: HandScan, *, delta: float, a: float) -> Figure:
    """Return input u, step size Δ, states h and output y of `inside.scan_by_hand`, by position."""
    margins = dict(left=0.07, right=0.985, top=0.87, bottom=0.19, hspace=0.5, wspace=0.2)
    fig, axes = quick_figure([["u", "delta"], ["h", "y"]], height=4.8, margins=margins, sharex=True)
    where = np.arange(1, len(scan.u) + 1)
    for key, values, colour in (("u", scan.u, GREY), ("delta", scan.delta, INDIGO)):
        axes[key].vlines(where, 0, values, color=colour, linewidth=1.5)
        axes[key].plot(where, values, "o", markersize=3, color=colour)
        axes[key].axhline(0, color=GREY, linewidth=0.7)
    for n, state in enumerate(scan.states.numpy(), start=1):
        colour = matplotlib.colormaps["viridis"](0.85 * (n - 1) / max(len(scan.states) - 1, 1))
        axes["h"].plot(
            where, state, color=colour, linewidth=1.6, label=f"state {n}, rate {n * a:.2g}"
        )
    axes["y"].plot(where, scan.y, color=INK, linewidth=1.8)
    for key, title in SCAN_TITLES.items():
        axes[key].set(title=title, ylabel=f"{'Δ' if key == 'delta' else key} (a.u.)")
    for key in ("h", "y"):
        axes[key].set_xlabel("position")
    axes["h"].legend(loc="upper right", fontsize=7.5)
    slow, fast = float(scan.half_life[0]), float(scan.half_life[-1])
    return finish(
        fig,
        "A scan by hand",
        f"h ← exp(−Δ·rate)·h + Δ·u, with Δ = {delta:.3g} at most",
        "each position keeps exp(−Δ·rate) of a state: "
        f"half is gone after {slow:.3g} steps (state 1) to {fast:.3g}",
        "no seed",
    )


# a cell of the grid


@styled
def fig_cell_view(
    arm: str,
    task: str,
    scale: str,
    cell: pd.DataFrame,
    runs: pd.DataFrame,
    means: Mapping[str, float],
) -> Figure:
    """Return the recorded runs of one arm on a task: its seeds, and its learning rates.

    cell: its runs at the tuned learning rate (seed, accuracy, chance, diverged). runs: all its runs
    (lr, accuracy, diverged). means: arm of the grid → mean accuracy, a fraction.
    """
    margins = dict(left=0.095, right=0.985, top=0.81, bottom=0.26, wspace=0.26)
    fig, axes = quick_figure([["seeds", "rates"]], height=3.7, margins=margins)
    known = np.array([mean for mean in means.values() if np.isfinite(mean)])
    _draw_cell(axes["seeds"], arm, cell, known)
    _draw_rates(axes["rates"], runs)
    result, seeds = "not recorded", "no seed"
    if len(cell):
        place = f"place {1 + sum(known > means[arm])} of {len(known)} recorded"
        result = f"{100 * cell.accuracy.mean():.1f} % on average, {place}"
        seeds = f"{len(cell)} seeds; spread: their dots"
    return finish(
        fig,
        f"{short(arm)} on {task}: {result}",
        f"recorded, {scale} scale, {seeds}",
        "grey ticks: the means of all arms, thick: the best, × diverged (counted as chance)",
        "at the learning rate with the best mean validation over its seeds",
    )


def _draw_cell(ax: Axes, arm: str, cell: pd.DataFrame, known: np.ndarray) -> None:
    ax.vlines(100 * known, -0.15, 0.15, color=GREY, linewidth=0.8)
    if len(known):
        ax.vlines(100 * known.max(), -0.25, 0.25, color=BEST, linewidth=2)
    if len(cell):
        _draw_seeds(ax, cell, 1, diverged=NO_NORM, alpha=0.7, markersize=5)
        ax.vlines(100 * cell.accuracy.mean(), 0.6, 1.4, color=COMBINATION, linewidth=2.2)
        ax.vlines(100 * cell.chance.mean(), 0.7, 1.3, color=GREY, linewidth=1, linestyle=":")
    ax.set_yticks([0, 1], ["all\narms", short(arm).replace("→", "→\n")])
    ax.grid(visible=False)
    ax.set(
        title="its seeds",
        xlabel="test accuracy (%)",
        ylabel="arm",
        xlim=(0, 100),
        ylim=(-0.5, 1.7),
    )


def _draw_rates(ax: Axes, runs: pd.DataFrame) -> None:
    for lr, of_lr in runs.groupby("lr"):
        x, failed = lr * np.exp(jitter(len(of_lr), 0.12)), of_lr.diverged.to_numpy(bool)
        y = 100 * of_lr.accuracy
        ax.plot(x[~failed], y[~failed], "o", markersize=3, color=INK, alpha=0.5)
        ax.plot(x[failed], y[failed], "X", markersize=5, color=NO_NORM, alpha=0.7)
    mean = runs.groupby("lr").accuracy.mean()
    ax.plot(mean.index, 100 * mean, color=COMBINATION, linewidth=1.6)
    if len(mean):
        ax.set_xscale("log")
    ax.set_xticks(mean.index, [f"{lr:g}" for lr in mean.index])
    ax.minorticks_off()
    ax.set(
        title=f"its learning rates: {int(runs.diverged.sum())} of {len(runs)} diverged",
        xlabel="learning rate",
        ylabel="test accuracy (%)",
        ylim=(0, 100),
    )
