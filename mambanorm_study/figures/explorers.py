"""The pictures of the explorers (`mambanorm_study.widgets`), made to be drawn quickly: data in,
figure out.

Margins are given: matplotlib takes longer to find them out than for all the drawing.
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
from mambanorm_study.figures.colours import BEST, COMBINATION, GREY, INK, NO_NORM, norm_colour
from mambanorm_study.figures.diagrams import SHAPE, draw_block, draw_cells, moving_cells
from mambanorm_study.figures.lessons import draw_row, mean_sd
from mambanorm_study.figures.style import finish, instead, jitter, quick_figure, short, styled
from mambanorm_study.tables.norm_catalog import ArmFacts
from mambanorm_study.tables.scan_by_hand import HandScan

# a norm


@styled
def fig_norm_view(
    name: str,
    x: Tensor,
    y: Tensor,
    moved: dict[str, float],
    felt: float,
    *,
    groups: int = 4,
    training: bool = True,
) -> Figure:
    """The norm's cube, the first row of x and of y = norm(x), both (B, L, D), with mean and sd of
    all their values, and by how much each change of x moves the output (`lessons.invariance.felt`;
    unmoved below `felt`). The cube has four channels, so that more than four groups look like
    four."""
    margins = dict(left=0.02, right=0.985, top=0.85, bottom=0.2, hspace=0.3, wspace=0.24)
    layout = [["cube", "x", "y"], ["trials", "x", "y"]]
    fig, axes = quick_figure(layout, height=4.2, margins=margins, width_ratios=(0.95, 1, 1))
    cells = moving_cells(name, groups=min(groups, SHAPE[2]), training=training)
    draw_cells(axes["cube"], cells, norm_colour(name))
    axes["cube"].set_title(
        "shares a statistic" if cells.any() else "shares nothing", color=INK, loc="center"
    )
    axes["trials"].set_axis_off()
    axes["trials"].set_title("what moves the output of row 1?", color=INK)
    for i, (change, size) in enumerate(moved.items()):
        look = dict(
            y=0.9 - i * 0.165, transform=axes["trials"].transAxes, fontsize=8.5, va="center"
        )
        words, colour = ("unmoved", GREY) if size < felt else (f"moves by {size:.0%}", INK)
        axes["trials"].text(0.02, s=change, color=INK, **look)
        axes["trials"].text(0.98, s=words, color=colour, ha="right", **look)
    for key, values, title in (("x", x, "before"), ("y", y, "after")):
        limit = draw_row(axes[key], values[0].detach())
        axes[key].set(xlabel=f"position\nall values: {mean_sd(values.detach())}", ylabel="channel")
        axes[key].set_title(f"{title}: row 1, colours ±{limit:.1f}", color=INK)
    rows, length, channels = x.shape
    return finish(
        fig,
        f"{name}, {'train' if training else 'eval'} mode",
        f"a made-up batch of {rows} rows, {length} positions, {channels} channels (seed 0)",
        "cube: the cells on which the front cell, top right, depends",
        f"tried on this batch: the change of row 1's first half over its size; unmoved: less than {felt:.0%}",
    )


# an arm

NORM_PLACES = ("stem norm", "N1", "N2", "further", "final norm")


@styled
def fig_arm_view(facts: ArmFacts, results: pd.DataFrame, *, note: str = "") -> Figure:
    """The block, the parameters of every place of its model (`arm_facts`), and the recorded test
    accuracy by task: a dot a seed (columns scale, task, accuracy, chance, diverged). `note` stands
    where there is no result."""
    margins = dict(left=0.115, right=0.985, top=0.93, bottom=0.21, hspace=0.2, wspace=0.42)
    fig, axes = quick_figure(
        [["block", "block"], ["parameters", "results"]], height=5.4, margins=margins
    )
    draw_block(axes["block"], facts.arm, fontsize=9)
    _draw_parameters(axes["parameters"], facts)
    _draw_results(axes["results"], results, note)
    norms = sum(facts.parameters.get(place, 0) for place in NORM_PLACES)
    timed = f"one block, forward and backward: {facts.block_ms:.1f} ms, without norms {facts.plain_ms:.1f} ms"
    seeds = (
        f"; {results.groupby(['scale', 'task']).size().max()} seeds at most" if len(results) else ""
    )
    arm = Arm.parse(facts.arm)
    return finish(
        fig,
        f"The model of arm {arm.label if arm.more else arm}",
        f"model of the digits: {facts.n_layers} blocks, width {facts.d_model}",
        f"{norms:,} of {facts.total:,} parameters are norms' ({100 * norms / facts.total:.2g} %)",
        f"{timed} (timed here just now, one thread)",
        f"results: recorded, line: mean, tick: chance, × diverged{seeds}",
    )


def _draw_parameters(ax: Axes, facts: ArmFacts) -> None:
    """A bar a place, logarithmic, with its number."""
    places, counts = list(facts.parameters), np.array(list(facts.parameters.values()))
    ax.barh(
        range(len(places)),
        np.maximum(counts, 0.5),
        color=[INK if p in NORM_PLACES else "#B9B9B9" for p in places],
    )
    for i, count in enumerate(counts):
        ax.text(max(count, 0.5) * 1.15, i, f"{count:,}", va="center", fontsize=8, color=INK)
    ax.set_xscale("log")
    ax.minorticks_off()
    ax.xaxis.set_major_formatter(
        EngFormatter(sep="")
    )  # 10k: powers as formulas take as long as all else
    ax.set(xlim=(0.5, 40 * counts.max()), ylim=(len(places) - 0.4, -0.6))
    ax.set(xlabel="parameters (log scale)", ylabel="place in the model")
    ax.set_yticks(range(len(places)), places)
    ax.grid(visible=False)
    ax.set_title("what it learns", color=INK)


def _draw_results(ax: Axes, results: pd.DataFrame, note: str) -> None:
    """Test accuracy by task: a dot a seed, a line at their mean, a tick at chance."""
    ax.set_title("recorded test accuracy", color=INK)
    ax.set(xlim=(0, 100), xlabel="test accuracy (%)", ylabel="task (scale)")
    ax.grid(visible=True, axis="x")
    ax.grid(visible=False, axis="y")
    groups = list(results.groupby(["scale", "task"], sort=False)) if len(results) else []
    for i, (_, runs) in enumerate(groups):
        _seeds(ax, runs, i, alpha=0.6, markersize=4)
        ax.vlines(100 * runs.accuracy.mean(), i - 0.35, i + 0.35, color=COMBINATION, linewidth=2.2)
        ax.vlines(100 * runs.chance.mean(), i - 0.2, i + 0.2, color=GREY, linewidth=1)
    ax.set_yticks(
        range(len(groups)), [f"{task}\n({scale})" for (scale, task), _ in groups], fontsize=7.5
    )
    ax.set_ylim(max(len(groups), 1) - 0.4, -0.6)
    if not groups:
        instead(ax, note or "not recorded")


def _seeds(ax: Axes, runs: pd.DataFrame, y: float, lost: str = INK, **look) -> None:
    """A dot a seed at the height y, a cross for one that diverged."""
    at = y + jitter(len(runs), 0.5)
    for failed, marker, colour in ((False, "o", INK), (True, "X", lost)):
        mine = (runs.diverged == failed).to_numpy(bool)
        ax.plot(100 * runs.accuracy[mine], at[mine], marker, color=colour, **look)


# a scan by hand


@styled
def fig_scan_view(scan: HandScan, *, delta: float, a: float) -> Figure:
    """Input u, step size Δ, the states h and the output y of `inside.scan_by_hand`, by position; no
    unit (a.u.)."""
    margins = dict(left=0.07, right=0.985, top=0.87, bottom=0.19, hspace=0.5, wspace=0.2)
    fig, axes = quick_figure([["u", "delta"], ["h", "y"]], height=4.8, margins=margins, sharex=True)
    where = np.arange(1, len(scan.u) + 1)
    for key, values, colour in (("u", scan.u, GREY), ("delta", scan.delta, "#5D5FA8")):
        axes[key].vlines(where, 0, values, color=colour, linewidth=1.5)
        axes[key].plot(where, values, "o", markersize=3, color=colour)
        axes[key].axhline(0, color=GREY, linewidth=0.7)
    for n, state in enumerate(scan.states.numpy(), start=1):
        colour = matplotlib.colormaps["viridis"](0.85 * (n - 1) / max(len(scan.states) - 1, 1))
        axes["h"].plot(
            where, state, color=colour, linewidth=1.6, label=f"state {n}, rate {n * a:.2g}"
        )
    axes["y"].plot(where, scan.y, color=INK, linewidth=1.8)
    titles = {
        "u": "input u",
        "delta": "step size Δ",
        "h": "states h",
        "y": "output y, the mean of the states",
    }
    for key, title in titles.items():
        axes[key].set_title(title, color=INK)
        axes[key].set_ylabel(f"{'Δ' if key == 'delta' else key} (a.u.)")
    axes["h"].set_xlabel("position")
    axes["y"].set_xlabel("position")
    axes["h"].legend(loc="upper right", fontsize=7.5)
    slow, fast = float(scan.half_life[0]), float(scan.half_life[-1])
    kept = f"each position keeps exp(−Δ·rate) of a state: half is gone after {slow:.3g} steps (state 1) to {fast:.3g}"
    return finish(
        fig,
        "A scan by hand",
        f"h ← exp(−Δ·rate)·h + Δ·u, with Δ = {delta:.3g} at most",
        kept,
        "no seed",
    )


# a cell of the grid


@styled
def fig_cell_view(
    arm: str,
    task: str,
    scale: str,
    cell: pd.DataFrame,
    rates: pd.DataFrame,
    means: Mapping[str, float],
) -> Figure:
    """An arm on a task. cell: its runs at the tuned learning rates (seed, accuracy, chance,
    diverged); rates: all its runs (lr, accuracy, diverged); means: every recorded arm of the grid →
    its mean accuracy (fractions)."""
    margins = dict(left=0.095, right=0.985, top=0.81, bottom=0.26, wspace=0.26)
    fig, axes = quick_figure([["seeds", "rates"]], height=3.7, margins=margins)
    known = np.array([mean for mean in means.values() if np.isfinite(mean)])
    _draw_seeds(axes["seeds"], arm, cell, known)
    _draw_rates(axes["rates"], rates)
    place = 1 + sum(known > means.get(arm, np.nan))
    found = f"{100 * cell.accuracy.mean():.1f} % on average, place {place} of {len(known)} recorded"
    return finish(
        fig,
        f"{short(arm)} on {task}: {found if len(cell) else 'not recorded'}",
        f"recorded, {scale} scale, {f'{len(cell)} seeds; spread: their dots' if len(cell) else 'no seed'}",
        "grey ticks: the means of all arms, thick: the best, × diverged (counted as chance)",
        "at the learning rate with the best mean validation over its seeds",
    )


def _draw_seeds(ax: Axes, arm: str, cell: pd.DataFrame, known: np.ndarray) -> None:
    """A dot a seed, above the ticks of all arms' means."""
    ax.vlines(100 * known, -0.15, 0.15, color=GREY, linewidth=0.8)
    if len(known):
        ax.vlines(100 * known.max(), -0.25, 0.25, color=BEST, linewidth=2)
    if len(cell):
        _seeds(ax, cell, 1, lost=NO_NORM, alpha=0.7, markersize=5)
        ax.vlines(100 * cell.accuracy.mean(), 0.6, 1.4, color=COMBINATION, linewidth=2.2)
        ax.vlines(100 * cell.chance.mean(), 0.7, 1.3, color=GREY, linewidth=1, linestyle=":")
    ax.set(ylim=(-0.5, 1.7), xlim=(0, 100), xlabel="test accuracy (%)", ylabel="arm")
    ax.set_yticks([0, 1], ["all\narms", short(arm).replace("→", "→\n")])
    ax.grid(visible=False)
    ax.set_title("its seeds", color=INK)


def _draw_rates(ax: Axes, rates: pd.DataFrame) -> None:
    """Test accuracy at each learning rate, a dot a seed and a line through the means."""
    for lr, runs in rates.groupby("lr"):
        x, failed = lr * np.exp(jitter(len(runs), 0.12)), runs.diverged.to_numpy(bool)
        ax.plot(x[~failed], 100 * runs.accuracy[~failed], "o", markersize=3, color=INK, alpha=0.5)
        ax.plot(x[failed], 100 * runs.accuracy[failed], "X", markersize=5, color=NO_NORM, alpha=0.7)
    mean = rates.groupby("lr").accuracy.mean()
    ax.plot(mean.index, 100 * mean, color=COMBINATION, linewidth=1.6)
    if len(mean):
        ax.set_xscale("log")
    ax.set_xticks(mean.index, [f"{lr:g}" for lr in mean.index])
    ax.minorticks_off()
    ax.set(ylim=(0, 100), xlabel="learning rate", ylabel="test accuracy (%)")
    ax.set_title(
        f"its learning rates: {int(rates.diverged.sum())} of {len(rates)} diverged", color=INK
    )
