"""Figures whose data come from mambanorm.lessons: the way down a loss surface, invariances, a VGG with and without
batch norm, what a state remembers, a block without one of its parts."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from mambanorm.figures.style import COMBINATION, GREY, INK, PALE, PALETTE, finish, jitter, new_figure, styled
from mambanorm.study.tables import seeds_text

ARM_COLOURS = {"none": PALETTE["None"], "none, He start": PALETTE["RMSN"], "BN": PALETTE["BN"]}
ARM_DASHES = {"none": ":", "none, He start": "--", "BN": "-"}
PART_COLOURS = {"nothing": COMBINATION, "conv": PALETTE["RMSN"], "gate": PALETTE["GN"]}


@styled
def fig_descent(bowls: Mapping[str, object], caption: str = "") -> Figure:
    """Loss over two weights as contours, and the path of gradient descent; `bowls`: way of scaling → `Bowl`."""
    fig, axes = new_figure(1, len(bowls), height=3.6)
    for ax, (how, bowl) in zip(axes[0], bowls.items(), strict=True):
        levels = bowl.loss.min() + np.geomspace(1e-3, 1, 12) * np.ptp(bowl.loss)
        ax.contour(bowl.w0, bowl.w1, bowl.loss, levels=levels, cmap="Blues_r", linewidths=0.9)
        ax.plot(bowl.path.w0, bowl.path.w1, "-o", color=PALETTE["GN"], markersize=2.5, linewidth=1)
        ax.plot(*bowl.path[["w0", "w1"]].iloc[0], "s", color=INK, markersize=5)
        ax.set(xlim=(bowl.w0[0], bowl.w0[-1]), ylim=(bowl.w1[0], bowl.w1[-1]))
        ax.set_title(f"{how}: {bowl.path.step.iloc[-1]} steps", color=INK)
        ax.set_xlabel("weight of feature 1")
        ax.set_aspect("equal")
        ax.grid(False)
    axes[0, 0].set_ylabel("weight of feature 2")
    words = "contours: loss, dark is low · orange: one dot a step, from the square until 99 % of the way down"
    return finish(fig, "Gradient descent on features of different scale", caption, words)


@styled
def fig_invariances(table: pd.DataFrame, felt: float = 0.01) -> Figure:
    """Norms × changes of the input as a heat map of `invariances`: "–" where the output stays (below `felt`)."""
    fig, ((ax,),) = new_figure(height=1.5 + 0.27 * len(table))
    values = table.to_numpy()
    ramp = LinearSegmentedColormap.from_list("felt", [PALE, PALETTE["BN"]])
    ax.imshow(np.where(values < felt, np.nan, values), cmap=ramp, vmin=0, vmax=1.2, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        text = "–" if value < felt else f"{value:.2f}"
        ax.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if value > 0.6 else INK)
    ax.set_xticks(range(table.shape[1]), [re.sub(r", | (?=[×+])", "\n", name) for name in table])
    ax.set_yticks(range(len(table)), table.index)
    ax.set(xlabel="what is done to the input", ylabel="norm")
    ax.grid(False), ax.spines[:].set_visible(False), ax.tick_params(length=0)
    words = "relative change of the output of one row's first half (root mean square); – : below 0.01, not felt"
    return finish(
        fig, "What a norm does not feel", words, "one made-up batch, 6 rows, 32 positions, 16 channels, seed 0"
    )


@styled
def fig_batch_norm(frame: pd.DataFrame) -> Figure:
    """Training accuracy by epoch, one panel a learning rate: mean over the seeds and the span from worst to best."""
    rates = sorted(frame.lr.unique())
    fig, axes = new_figure(1, len(rates), height=3.4, sharey=True)
    for ax, rate in zip(axes[0], rates, strict=True):
        for arm, runs in frame[frame.lr == rate].groupby("arm", sort=False):
            by_epoch = (100 * runs.train_accuracy).groupby(runs.epoch)
            mean, colour = by_epoch.mean(), ARM_COLOURS[arm]
            ax.plot(mean.index, mean, ARM_DASHES[arm], color=colour, label=arm, marker="o", markersize=3)
            ax.fill_between(mean.index, by_epoch.min(), by_epoch.max(), color=colour, alpha=0.2, linewidth=0)
        ax.set_title(f"learning rate {rate:g}", color=INK)
        ax.set_xlabel("epoch")
        ax.set_xticks(sorted(frame.epoch.unique()))
    axes[0, 0].set_ylabel("training accuracy (%)")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center")
    words = f"{frame['scale'].iloc[0]} scale · {seeds_text([frame.seed.nunique()])}"
    return finish(fig, "A small VGG on 8×8 digits", words, "line: mean, band: worst to best seed")


@styled
def fig_memory_of_delta(frame: pd.DataFrame) -> Figure:
    """What a state holds of one input, step after step, one line a Δ: as a share of what entered, and absolutely."""
    fig, (left_right,) = new_figure(1, 2, height=3.2)
    for ax, column, label in zip(left_right, ("share", "h"), ("share that is left (%)", "state h"), strict=True):
        for place, (delta, run) in enumerate(frame.groupby("delta")):
            style = dict(color=COMBINATION, alpha=0.35 + 0.65 * place / frame.delta.nunique())
            dashes = ("-", "--", "-.", ":")[place % 4]
            values = 100 * run[column] if column == "share" else run[column]
            ax.plot(run.step, values, dashes, label=f"Δ = {delta:g}", **style)
        ax.set(xlabel="steps since the input", ylabel=label)
    fig.legend(*left_right[0].get_legend_handles_labels(), loc="outside right center")
    return finish(fig, "What a state remembers of one input", "a = −1, b = 1, input 1 at step 0, then 0", "no training")


@styled
def fig_parts(frame: pd.DataFrame) -> Figure:
    """Test accuracy of a one-block model that lacks one part, a dot a seed and a bar for the mean; dotted: chance."""
    tasks = list(dict.fromkeys(frame.task))
    fig, axes = new_figure(1, len(tasks), height=3.2)
    for ax, task in zip(axes[0], tasks, strict=True):
        _parts_of(ax, frame[frame.task == task])
        ax.set_title(task, color=INK)
    axes[0, 0].set_ylabel("test accuracy (%)")
    words = f"{frame['scale'].iloc[0]} scale · {seeds_text([frame.seed.nunique()])}"
    return finish(fig, "A block without one of its parts", words, "bar: mean, dots: seeds, dotted: chance")


def _parts_of(ax: Axes, frame: pd.DataFrame) -> None:
    parts = list(dict.fromkeys(frame.without))
    for place, part in enumerate(parts):
        values = 100 * frame[frame.without == part].test_accuracy.to_numpy()
        ax.bar(place, values.mean(), width=0.6, color=PART_COLOURS[part], alpha=0.75)
        ax.plot(place + jitter(len(values)), values, "o", color=INK, markersize=3)
    ax.axhline(100 * frame.chance.iloc[0], color=GREY, linestyle=":")
    ax.set_xticks(range(len(parts)), ["the whole block" if part == "nothing" else f"no {part}" for part in parts])
    ax.set(ylim=(0, 104), xlabel=f"model, after {frame.epochs.iloc[0]} epochs")
