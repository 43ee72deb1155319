"""Figures of the small experiments in `mambanorm_study.lessons`, and of what a norm or a selector
does to single values."""

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from torch import Tensor

from mambanorm.norms import create_norm
from mambanorm_study.figures.colours import GREY, INK, NO_NORM, PALE, PALETTE, norm_colour
from mambanorm_study.figures.style import finish, new_figure, seeds_of, sns, styled
from mambanorm_study.tables.run_tables import check_frame
from mambanorm_study.tasks.base import Split


@styled
def fig_descent(bowls: Mapping[str, object], caption: str = "") -> Figure:
    """Loss over two weights as contours, and the path of gradient descent; `bowls`: way of scaling
    → `Bowl`."""
    fig, axes = new_figure(1, len(bowls), height=3.6)
    for ax, (how, bowl) in zip(axes[0], bowls.items(), strict=True):
        levels = bowl.loss.min() + np.geomspace(1e-3, 1, 8) * np.ptp(bowl.loss)
        ax.contour(bowl.w0, bowl.w1, bowl.loss, levels=levels, colors=GREY, linewidths=0.7)
        ax.plot(bowl.path.w0, bowl.path.w1, "-o", color=NO_NORM, markersize=2.5, linewidth=1)
        ax.plot(*bowl.path[["w0", "w1"]].iloc[0], "s", color=INK, markersize=5)
        ax.set(
            xlim=(bowl.w0[0], bowl.w0[-1]),
            ylim=(bowl.w1[0], bowl.w1[-1]),
            xlabel="weight of feature 1",
        )
        ax.set_title(f"{how}: {bowl.path.step.iloc[-1]} steps", color=INK)
        ax.set_aspect("equal")
        ax.grid(False)
    axes[0, 0].set_ylabel("weight of feature 2")
    words = "lines of equal loss · red: one dot a step, from the square until 99 % of the way down"
    return finish(fig, "Gradient descent on features of different scale", caption, words)


@styled
def fig_invariances(table: pd.DataFrame, felt: float = 0.01) -> Figure:
    """Norms × changes of the input as a heat map of `invariances`: "–" where the output stays
    (below `felt`)."""
    fig, ((ax,),) = new_figure(height=1.5 + 0.27 * len(table))
    ramp = LinearSegmentedColormap.from_list("felt", [PALE, "#505050"]).with_extremes(under="white")
    words = table.map(lambda value: "–" if value < felt else f"{value:.2f}")
    changes = [re.sub(r", | (?=[×+])", "\n", name) for name in table]
    how = dict(
        annot=words, fmt="", annot_kws=dict(fontsize=8), cmap=ramp, vmin=felt, vmax=1.2, cbar=False
    )
    sns.heatmap(table, xticklabels=changes, yticklabels=list(table.index), **how, ax=ax)
    ax.set(xlabel="what is done to the input", ylabel="norm")
    ax.tick_params(length=0, rotation=0)
    felt_is = "relative change of the output of one row's first half (root mean square); – : below 0.01, not felt"
    batch = "one made-up batch, 6 rows, 32 positions, 16 channels, seed 0"
    return finish(fig, "What a norm does not feel", felt_is, batch)


@styled
def fig_memory(delta: Tensor, A: Tensor) -> Figure:
    """How many steps until a state has decayed to half, for Δ (channels,) and A (channels, N): log
    2 / (Δ·|A|)."""
    half = (np.log(2) / (delta[:, None] * A.abs())).detach().numpy()  # (channels, N)
    fig, ((ax,),) = new_figure(height=3.0)
    shown = np.log10(half[np.argsort(half[:, 0])].T)
    image = ax.imshow(shown, aspect="auto", cmap="viridis", interpolation="nearest")
    fig.colorbar(image, ax=ax, pad=0.01, label="log10 of steps to half")
    ax.set(xlabel="channel, by its Δ", ylabel="state n (0 is the slowest)")
    ax.grid(False)
    words = f"half-life from {half.min():.2g} to {half.max():.3g} steps"
    return finish(fig, "What the SSM remembers at the start", words)


@styled
def fig_parts(frame: pd.DataFrame) -> Figure:
    """Test accuracy of a one-block model that lacks one part, a dot a seed and a bar for the mean;
    dotted: chance."""
    tasks = list(dict.fromkeys(frame.task))
    fig, axes = new_figure(1, len(tasks), height=3.2)
    runs = frame.assign(test_accuracy=100 * frame.test_accuracy)
    for ax, task in zip(axes[0], tasks, strict=True):
        here = runs[runs.task == task]
        how = dict(x="without", y="test_accuracy", ax=ax)
        sns.barplot(here, color="#B9B9B9", width=0.6, errorbar=None, **how)
        sns.swarmplot(here, color=INK, size=3, warn_thresh=1, **how)
        ax.axhline(100 * here.chance.iloc[0], color=GREY, linestyle=":")
        parts = [
            "the whole block" if part == "nothing" else f"no {part}"
            for part in here.without.unique()
        ]
        ax.set_xticks(range(len(parts)), parts)
        ax.set(
            ylim=(0, 104),
            xlabel=f"model, after {here.epochs.iloc[0]} epochs",
            ylabel="test accuracy (%)",
        )
        ax.set_title(task, color=INK)
    words = "bar: mean, dots: seeds, dotted: chance"
    return finish(fig, "A block without one of its parts", seeds_of(frame), words)


@styled
def fig_effect(x: Tensor, names: Sequence[str], **options) -> Figure:
    """One row of x (B, L, D) before and after each norm, as a picture of L × D; the norms see the
    whole batch.

    Each panel has its own colour range, ± its largest value, written below: a norm is meant to
    change the range.
    """
    shown = {"input": x} | {name: create_norm(name, x.shape[-1], **options)(x) for name in names}
    fig, axes = new_figure(1, len(shown), height=3.1)
    for ax, (name, y) in zip(axes[0], shown.items(), strict=True):
        row = y[0].detach()
        limit = draw_row(ax, row)
        ax.set_title(name, color=INK)
        ax.set_xlabel(f"position\n{mean_sd(row)}\ncolours ±{limit:.1f}", fontsize=8)
    axes[0, 0].set_ylabel("channel")
    rows, length, channels = x.shape
    words = f"row 1 of a batch of {rows}, {length} positions, {channels} channels"
    return finish(fig, "What a norm does to one row", words)


def draw_row(ax: Axes, row: Tensor) -> float:
    """One row (L, D) as a picture of channels × positions, colours from − to + its largest size,
    which it returns."""
    limit = max(float(row.abs().max()), 1e-9)
    ax.imshow(
        row.numpy().T,
        aspect="auto",
        cmap="RdBu_r",
        vmin=-limit,
        vmax=limit,
        interpolation="nearest",
    )
    ax.set(xticks=[], yticks=[])
    ax.grid(False)
    return limit


def mean_sd(values: Tensor) -> str:
    """ "mean 0.12, sd 1.00"; never −0.00."""
    return f"mean {round(float(values.mean()), 2) + 0.0:.2f}, sd {values.std(correction=0):.2f}"


@styled
def fig_rows(split: Split, n: int = 8, caption: str = "") -> Figure:
    """The first n sequences of a split with their labels: as square images where their length is a
    square number and they are values, else as one line of values (or token ids) over the
    positions."""
    fig, axes = new_figure(1, n, height=1.9)
    for ax, sequence, label in zip(axes[0], split.inputs[:n], split.labels[:n], strict=True):
        side = math.isqrt(sequence.numel())
        square = sequence.is_floating_point() and side**2 == sequence.numel()
        ax.imshow(
            sequence.reshape((side, side) if square else (1, -1)).numpy(),
            cmap="gray_r",
            aspect="auto",
        )
        ax.set_title(f"class {int(label)}", color=INK, fontsize=9)
        ax.set_xlabel(f"step 0…{side - 1} of a row" if square else "step", fontsize=7)
        ax.set(xticks=[], yticks=[])
        ax.grid(False)
    return finish(fig, "The first sequences of the training set", caption)


@styled
def fig_costs(table: pd.DataFrame, caption: str = "") -> Figure:
    """Time of each norm, forward plus backward, as a multiple of LN's; columns norm, ratio, low,
    high."""
    fig, ((ax,),) = new_figure(height=3.0)
    places = np.arange(len(table))
    ax.bar(places, table.ratio, color=[PALETTE.get(name, GREY) for name in table.norm])
    ax.vlines(places, table.low, table.high, color=INK, linewidth=1)
    ax.axhline(1, color=GREY, linestyle=":")
    ax.set_xticks(places, table.norm, rotation=30, ha="right", rotation_mode="anchor")
    ax.set(xlabel="norm", ylabel="time, LN = 1")
    return finish(fig, "What a norm costs", caption)


BRANCHES = {"n1": "attention", "n2": "feed-forward"}


@styled
def fig_selector(log: pd.DataFrame, caption: str = "one run") -> Figure:
    """w₀, the weight of DyT, of every selector, by class (`look.selector_weights`). 1 − w₀ is
    LN's."""
    check_frame(log, ("block", "depth", "label", "w0"))
    depths = log.groupby("block", sort=False).depth.first()
    fig, ((ax,),) = new_figure(1, 1, height=0.9 + 0.42 * max(len(depths), 6))
    table = log.pivot(index="block", columns="label", values="w0").loc[depths.index]
    colours = LinearSegmentedColormap.from_list(
        "choice", [norm_colour("LN"), "#FFFFFF", norm_colour("DyT")]
    )
    words, bar = (
        table.map(lambda w0: f"{w0:.2f}".removeprefix("0")),
        dict(label="w₀: 0 = LN, 1 = DyT", pad=0.02),
    )
    how = dict(
        annot=words, fmt="", annot_kws=dict(fontsize=7.5, color=INK), cmap=colours, vmin=0, vmax=1
    )
    place = {
        block: block.rsplit(".", 1)[-1] for block in depths.index
    }  # `blocks.0.n1` stands in block 1, at attention
    names = [f"block {depths[b]}, {BRANCHES.get(place[b], place[b])}" for b in depths.index]
    sns.heatmap(table, xticklabels=1, yticklabels=names, **how, cbar_kws=bar, ax=ax)
    ax.set(title="by class", xlabel="class", ylabel="")
    ax.tick_params(length=0, rotation=0)
    return finish(
        fig, "What the selectors choose", caption, "mean over the tokens of the split's rows"
    )


def example_batch(
    rows: int = 8, length: int = 24, channels: int = 16, *, offset: float = 2.0, spread: float = 3.0
) -> Tensor:
    """A made-up batch (rows, length, channels) on which the norms differ: channels have means and
    spreads of their own, rows too."""
    draw = torch.Generator().manual_seed(0)
    means = offset * torch.randn(1, 1, channels, generator=draw) + torch.randn(
        rows, 1, 1, generator=draw
    )
    scale = torch.exp(0.3 * spread * torch.randn(1, 1, channels, generator=draw))
    waves = torch.sin(torch.linspace(0, 6, length)[None, :, None] + torch.arange(channels) / 3)
    return means + scale * (waves + 0.3 * torch.randn(rows, length, channels, generator=draw))
