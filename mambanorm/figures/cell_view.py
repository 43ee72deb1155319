"""One cell of the 6×6 grid, for the explorer: its seeds among the other cells, its learning rates, its curves."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mambanorm.figures.style import BEST, GREY, INK, NO_NORM, finish, jitter, quick_figure, short, styled

LAYOUT = [["seeds", "rates", "curves"]]
MARGINS = dict(left=0.095, right=0.985, top=0.81, bottom=0.26, wspace=0.32)


@styled
def fig_cell_view(
    arm: str,
    task: str,
    scale: str,
    cell: pd.DataFrame,
    rates: pd.DataFrame,
    means: Mapping[str, float],
    curves: pd.DataFrame | None = None,
) -> Figure:
    """An arm on a task. cell: its runs at the tuned learning rates (seed, accuracy, chance, diverged); rates: all its
    runs (lr, accuracy, diverged); means: every recorded arm of the grid → its mean accuracy (fractions); curves:
    `StoredRun.curves` of one of its runs, None where this machine has none."""
    fig, axes = quick_figure(LAYOUT, height=3.7, margins=MARGINS, width_ratios=(1.15, 1, 1))
    _draw_seeds(axes["seeds"], arm, cell, means)
    _draw_rates(axes["rates"], rates)
    _draw_curves(axes["curves"], curves)
    known = [mean for mean in means.values() if np.isfinite(mean)]
    place = 1 + sum(mean > means.get(arm, np.nan) for mean in known)
    found = (
        f"{100 * cell.accuracy.mean():.1f} % on average, place {place} of {len(known)} recorded"
        if len(cell)
        else "not recorded"
    )
    seeds = f"{len(cell)} seeds; spread: their dots" if len(cell) else "no seed"
    return finish(
        fig,
        f"{short(arm)} on {task}: {found}",
        f"recorded, {scale} scale, {seeds}",
        "grey ticks: the other arms' means, orange: the best, × diverged (counted as chance)",
        "each seed's learning rate is chosen on the other seeds",
    )


def _draw_seeds(ax: Axes, arm: str, cell: pd.DataFrame, means: Mapping[str, float]) -> None:
    """A dot a seed, above the ticks of all arms' means."""
    known = np.array([mean for mean in means.values() if np.isfinite(mean)])
    ax.vlines(100 * known, -0.15, 0.15, color=GREY, linewidth=0.8)
    if len(known):
        ax.vlines(100 * known.max(), -0.25, 0.25, color=BEST, linewidth=2)
    for failed, marker, colour in ((False, "o", INK), (True, "X", NO_NORM)):
        mine = (cell.diverged == failed).to_numpy(bool)
        ax.plot(
            100 * cell.accuracy[mine], 1 + jitter(len(cell), 0.5)[mine], marker, markersize=5, color=colour, alpha=0.7
        )
    if len(cell):
        ax.vlines(100 * cell.accuracy.mean(), 0.6, 1.4, color="#2F6DB5", linewidth=2.2)
        ax.vlines(100 * cell.chance.mean(), 0.7, 1.3, color=GREY, linewidth=1, linestyle=":")
    ax.set(ylim=(-0.5, 1.7), xlim=(0, 100), xlabel="test accuracy (%)", ylabel="arm")
    ax.set_yticks([0, 1], ["all\narms", short(arm).replace("→", "→\n")])
    ax.grid(visible=False)
    ax.set_title("its seeds", color=INK)


def _draw_rates(ax: Axes, rates: pd.DataFrame) -> None:
    """Test accuracy at each learning rate, a dot a seed and a line through the means."""
    for lr, runs in rates.groupby("lr"):
        x = lr * np.exp(jitter(len(runs), 0.12))
        failed = runs.diverged.to_numpy(bool)
        ax.plot(x[~failed], 100 * runs.accuracy[~failed], "o", markersize=3, color=INK, alpha=0.5)
        ax.plot(x[failed], 100 * runs.accuracy[failed], "X", markersize=5, color=NO_NORM, alpha=0.7)
    mean = rates.groupby("lr").accuracy.mean()
    ax.plot(mean.index, 100 * mean, color="#2F6DB5", linewidth=1.6)
    if len(mean):
        ax.set_xscale("log")
        ax.set_xticks(mean.index, [f"{lr:g}" for lr in mean.index])
        ax.minorticks_off()
    else:
        ax.set_xticks([])
    ax.set(ylim=(0, 100), xlabel="learning rate", ylabel="test accuracy (%)")
    failed = int(rates.diverged.sum()) if len(rates) else 0
    ax.set_title(f"its learning rates: {failed} of {len(rates)} diverged", color=INK)


def _draw_curves(ax: Axes, curves: pd.DataFrame | None) -> None:
    """Training loss and validation accuracy of one run, if this machine has it."""
    ax.set(xlabel="step", ylabel="accuracy (%)", ylim=(0, 100))
    ax.set_title("its curve", color=INK)
    if curves is None:
        words = (
            "curves are not recorded.\nA run of this arm that is trained\nhere shows its own:\nmambanorm train --arm …"
        )
        ax.text(0.5, 0.5, words, transform=ax.transAxes, ha="center", va="center", color=GREY, fontsize=8.5)
        ax.set(xticks=[], yticks=[])
        return
    scored = curves.dropna(subset="val_accuracy")
    ax.plot(scored.step, 100 * scored.val_accuracy, marker="o", markersize=3, color=INK)
    ax.set_title("validation of a stored run", color=INK)
