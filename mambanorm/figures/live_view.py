"""Runs while they train, for the explorer: loss and accuracy above, sizes by depth and gradients below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from matplotlib.figure import Figure

from mambanorm.figures.style import (
    GREY,
    INK,
    SPARE_COLOURS,
    arm_styles,
    finish,
    quick_figure,
    short,
    styled,
    whole_ticks,
)

LAYOUT = [["loss", "accuracy"], ["l2", "gradients"]]
MARGINS = dict(left=0.085, right=0.985, top=0.87, bottom=0.17, hspace=0.42, wspace=0.2)


class Watched(Protocol):
    """What is drawn of a run (`training.live.LiveRun`)."""

    steps: list[int]
    losses: list[float]
    looked: list[int]
    accuracies: list[float]
    l2: np.ndarray
    gradients: np.ndarray
    status: str


@styled
def fig_live_view(
    runs: Sequence[tuple[str, Watched]],
    bins: np.ndarray,
    *,
    arms: Sequence[str],
    task: str,
    scale: str,
    seed: int,
    rows: int,
) -> Figure:
    """(arm, run) pairs as they are now, a colour each; none before the start of `arms`. Training loss (running mean
    over 10 steps), accuracy on `rows` validation rows, the median token's ‖y‖₂ by depth, and the shares of gradients in
    `bins` (log₁₀ of their size)."""
    fig, axes = quick_figure(LAYOUT, height=5.0, margins=MARGINS)
    lines = arm_styles(arms)
    if len({style["color"] for style in lines.values()}) < len(lines):  # arms with one N2: colours that differ
        lines = {arm: style | {"color": colour} for (arm, style), colour in zip(lines.items(), SPARE_COLOURS)}
    for arm, run in runs:
        _draw_run(axes, run, lines[arm], f"{short(arm)}: {run.status}", bins)
    words = {
        "loss": ("step", "training loss (nats)"),
        "accuracy": ("step", "accuracy (%)"),
        "l2": ("depth (blocks)", "median ‖y‖₂ (a.u.)"),
        "gradients": ("log₁₀ |gradient| of a weight", "share of weights (%)"),
    }
    for key, (below, beside) in words.items():
        axes[key].set(xlabel=below, ylabel=beside)
    axes["accuracy"].set_ylim(0, 100)
    axes["gradients"].set_xlim(bins[0], bins[-1])
    whole_ticks(axes["l2"])
    if runs:
        axes["loss"].legend(loc="upper right", fontsize=8)
    if not any(run.looked for _, run in runs):
        for ax in axes.values():  # numbers on an empty axis would be made up
            ax.set(xticks=[], yticks=[])
            ax.text(0.5, 0.5, "starting" if runs else "press start", transform=ax.transAxes, ha="center", color=GREY)
    how = f"{task}, {scale} scale, seed {seed}: one seed, a sketch"
    looked = f"accuracy on {rows} validation rows, not the test"
    title = " and ".join(map(short, arms))
    return finish(
        fig, f"{title}, while they train", how, looked, "same initial weights and batches", "one thread a run"
    )


def _draw_run(axes: dict, run: Watched, style: dict, label: str, bins: np.ndarray) -> None:
    """One run's four lines. Its thread goes on writing, so each list is cut to the shorter of its pair."""
    line = {
        name: value for name, value in style.items() if "marker" not in name
    }  # told by its dash where steps are close
    losses = np.array(run.losses[-len(run.steps) :], float)
    steps, looked = np.array(run.steps[: len(losses)]), np.array(run.looked)
    mean = np.array([losses[max(0, i - 9) : i + 1].mean() for i in range(len(losses))])
    axes["loss"].plot(steps, mean[: len(steps)], label=label, linewidth=1.5, **line)
    shown = min(len(looked), len(run.accuracies))
    axes["accuracy"].plot(looked[:shown], 100 * np.array(run.accuracies[:shown]), markersize=3, linewidth=1.5, **style)
    axes["l2"].plot(np.arange(1, len(run.l2) + 1), run.l2, markersize=3, linewidth=1.5, **style)
    axes["gradients"].stairs(100 * run.gradients, bins, linewidth=1.3, **line)
    if run.status == "diverged" and shown:
        axes["loss"].plot(steps[-1], mean[len(steps) - 1], "X", color=INK, markersize=8)
