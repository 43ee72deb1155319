"""Figures of the small experiments in `mambanorm_study.lessons`, of example data, of the costs of
norms, and of the choices of NormSelector.
"""

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from torch import Tensor

from mambanorm.norms import create_norm
from mambanorm_study.figures.colours import (
    DARK_GREY,
    GREY,
    INK,
    NO_NORM,
    PALE,
    WHITE,
    norm_colour,
)
from mambanorm_study.figures.panels import arm_panels
from mambanorm_study.figures.style import StudyFigure, finish, new_figure, seeds_note, sns, styled
from mambanorm_study.lessons.invariance import CHANGE_LIMIT
from mambanorm_study.tasks.base import Split


@styled
def fig_descent(bowls: Mapping[str, object], caption: str = "") -> StudyFigure:
    """Return the loss over two weights as contours, with the path of gradient descent, one panel
    per way of scaling the features.

    bowls: way of scaling the features → `lessons.preprocessing.Bowl`.
    """
    fig, axes = new_figure(1, len(bowls), height=3.6)
    for ax, (scaling, bowl) in zip(axes[0], bowls.items(), strict=True):
        levels = bowl.loss.min() + np.geomspace(1e-3, 1, 8) * np.ptp(bowl.loss)
        ax.contour(bowl.w0, bowl.w1, bowl.loss, levels=levels, colors=GREY, linewidths=0.7)
        ax.plot(bowl.path.w0, bowl.path.w1, "-o", color=NO_NORM, markersize=2.5, linewidth=1)
        ax.plot(*bowl.path[["w0", "w1"]].iloc[0], "s", color=INK, markersize=5)
        ax.set(
            title=f"{scaling}: {bowl.path.step.iloc[-1]} steps",
            xlabel="weight of feature 1",
            xlim=(bowl.w0[0], bowl.w0[-1]),
            ylim=(bowl.w1[0], bowl.w1[-1]),
            aspect="equal",
        )
        ax.grid(False)
    axes[0, 0].set_ylabel("weight of feature 2")
    return finish(
        fig,
        "Gradient descent on features of different scale",
        caption,
        "lines of equal loss · red: one dot per step, from the square until 99 % of the way down",
    )


@styled
def fig_invariances(table: pd.DataFrame) -> StudyFigure:
    """Return a heat map of how much each norm's output changes with each change of the input.

    table: the frame of `lessons.invariance.invariances`, norms × changes of the input. "–" marks an
    output that changes by less than CHANGE_LIMIT.
    """
    fig, ((ax,),) = new_figure(height=1.5 + 0.27 * len(table))
    ramp = LinearSegmentedColormap.from_list("change", [PALE, DARK_GREY]).with_extremes(
        under="white"
    )
    sns.heatmap(
        table,
        annot=table.map(lambda value: "–" if value < CHANGE_LIMIT else f"{value:.2f}"),
        annot_kws=dict(fontsize=8),
        fmt="",
        cmap=ramp,
        vmin=CHANGE_LIMIT,
        vmax=1.2,
        cbar=False,
        xticklabels=[re.sub(r", | (?=[×+])", "\n", name) for name in table],
        yticklabels=list(table.index),
        ax=ax,
    )
    ax.set(xlabel="change of the input", ylabel="norm")
    ax.tick_params(length=0, rotation=0)
    return finish(
        fig,
        "To which changes of its input a norm is invariant",
        "relative change of the output of one row's first half (root mean square); "
        f"– : below {CHANGE_LIMIT}, invariant",
        "one made-up batch, 6 rows, 32 positions, 16 channels, seed 0",
    )


@styled
def fig_memory(delta: Tensor, A: Tensor) -> StudyFigure:
    """Return a heat map of the half-life of every state of an SSM, in steps: log 2 / (Δ·|A|).

    delta: Δ (channels,). A: (channels, N), N states per channel.
    """
    half_life = (np.log(2) / (delta[:, None] * A.abs())).detach().numpy()  # (channels, N)
    fig, ((ax,),) = new_figure(height=3.0)
    sns.heatmap(
        np.log10(half_life[np.argsort(half_life[:, 0])].T),
        cmap="viridis",
        cbar_kws=dict(pad=0.01, label="log10 of steps to half"),
        xticklabels=10,
        yticklabels=5,
        ax=ax,
    )
    ax.set(xlabel="channel, by its Δ", ylabel="state n (0 is the slowest)")
    return finish(
        fig,
        "What the SSM remembers at the start",
        f"half-life from {half_life.min():.2g} to {half_life.max():.3g} steps",
    )


@styled
def fig_missing_parts(frame: pd.DataFrame) -> StudyFigure:
    """Return the test accuracy of one-block models that lack one part, one panel per task.

    A bar is the mean ± one standard deviation, a dot is a seed, the dotted line is chance. frame: a
    run frame with the additional columns `without`, the name of the missing part, and `epochs`.
    """
    runs = frame.assign(
        percent=100 * frame.test_accuracy,
        arm=frame.without,
        tick=("no " + frame.without).replace("no nothing", "the whole block"),
        group="models",
        norm="None",
    )
    ticks, epochs = list(runs.tick.unique()), " and ".join(map(str, frame.epochs.unique()))
    label = f"model, after {epochs} epochs"
    fig, _ = arm_panels(
        runs, None, ticks, {"models": {"alpha": 0.5}}, label, bar=True, group_distance=0
    )
    return finish(
        fig,
        "A block without one of its parts",
        seeds_note(frame),
        "bar: mean ± sd, dots: seeds, dotted: chance",
    )


@styled
def fig_norm_effects(x: Tensor, names: Sequence[str]) -> StudyFigure:
    """Return the first row of x (B, L, D) before and after each norm, as images of D × L.

    The norms are applied to the whole batch. Norms change the range of the values, so each panel
    has its own colour scale, which ends at ± the panel's largest magnitude, written below the
    panel.
    """
    outputs = {"input": x, **{name: create_norm(name, x.shape[-1])(x) for name in names}}
    fig, axes = new_figure(1, len(outputs), height=3.1)
    for ax, (name, y) in zip(axes[0], outputs.items(), strict=True):
        row = y[0].detach()
        limit = draw_row(ax, row)
        ax.set_title(name)
        ax.set_xlabel(f"position\n{mean_sd(row)}\ncolours ±{limit:.1f}", fontsize=8)
    axes[0, 0].set_ylabel("channel")
    rows, length, channels = x.shape
    return finish(
        fig,
        "What a norm does to one row",
        f"row 1 of a batch of {rows}, {length} positions, {channels} channels",
    )


def draw_row(ax: Axes, row: Tensor) -> float:
    """Draw one row (L, D) of a batch as an image of channels × positions. Return the row's largest
    magnitude, at which the colour scale ends.
    """
    limit = max(float(row.abs().max()), 1e-9)
    ax.imshow(
        row.numpy().T,
        aspect="auto",
        interpolation="nearest",
        cmap="RdBu_r",
        vmin=-limit,
        vmax=limit,
    )
    ax.set(xticks=[], yticks=[])
    return limit


def mean_sd(values: Tensor) -> str:
    """Return the mean and sd as text: "mean 0.12, sd 1.00"; the mean is never −0.00."""
    return f"mean {round(float(values.mean()), 2) + 0.0:.2f}, sd {values.std(correction=0):.2f}"


@styled
def fig_rows(split: Split, caption: str = "") -> StudyFigure:
    """Return a figure of the first eight sequences of a split with their classes.

    A sequence of n² real numbers is drawn as an image of n × n pixels, any other sequence as one
    line of pixels.
    """
    fig, axes = new_figure(1, 8, height=1.9)
    for ax, sequence, label in zip(axes[0], split.inputs[:8], split.labels[:8], strict=True):
        side = math.isqrt(sequence.numel())
        is_square = sequence.is_floating_point() and side**2 == sequence.numel()
        shape, steps = ((side, side), f"{side} steps per row") if is_square else ((1, -1), "step")
        ax.imshow(sequence.reshape(shape), cmap="gray_r", aspect="auto")
        ax.set(title=f"class {int(label)}", xlabel=steps, xticks=[], yticks=[])
    return finish(fig, "The first sequences of the training set", caption)


@styled
def fig_costs(table: pd.DataFrame, caption: str = "") -> StudyFigure:
    """Return bars of the time of each norm, forward plus backward, as a multiple of LN's time.

    table: frame with the columns norm, ratio (the height of a bar), low and high (the ends of the
    bar's error bar).
    """
    fig, ((ax,),) = new_figure(height=3.0)
    ax.bar(
        table.norm,
        table.ratio,
        color=table.norm.map(norm_colour),
        yerr=[table.ratio - table.low, table.high - table.ratio],
        ecolor=INK,
    )
    ax.axhline(1, color=GREY, linestyle=":")
    ax.set_xticks(range(len(table)), table.norm, rotation=30, ha="right", rotation_mode="anchor")
    ax.set(xlabel="norm", ylabel="time, LN = 1")
    return finish(fig, "What a norm costs", caption)


@styled
def fig_loss_ranges(frame: pd.DataFrame, caption: str = "") -> StudyFigure:
    """Return the range of the loss along the gradient at each step of training, one panel per arm.

    The band goes from the lowest to the highest loss, medians over the seeds. frame: the frame of
    `lessons.why_norms.loss_ranges`.
    """
    arms = list(frame.arm.unique())
    fig, axes = new_figure(1, len(arms), height=3.1, sharey=True)
    for ax, arm in zip(axes[0], arms, strict=True):
        band = frame[frame.arm == arm].groupby("step")[["low", "high"]].median()
        ax.fill_between(band.index, band.low, band.high, color=norm_colour(arm), linewidth=0)
        ax.set(title="no norm" if arm == "None" else arm, xlabel="training step", yscale="log")
    axes[0, 0].set_ylabel("loss along the gradient")
    return finish(
        fig,
        "The range of the loss along the gradient",
        caption,
        "band: lowest to highest loss over the step sizes, medians over the seeds",
        seeds_note(frame),
    )


@styled
def fig_gan(frame: pd.DataFrame, caption: str = "") -> StudyFigure:
    """Return generated digits, their distance to real ones, and the discriminator's accuracy in
    pure and in mixed batches, one row per generator and discriminator.

    frame: the frame of `lessons.gan.gan_runs`.
    """
    arm = (frame.generator + " · " + frame.discriminator).str.removesuffix(" · ")
    runs = frame.assign(arm=arm.str.replace("None", "no norm"))
    fig, ((left, middle, right),) = new_figure(
        1, 3, height=5.2, sharey=True, gridspec_kw={"width_ratios": (1.8, 1, 1)}
    )
    for row, samples in enumerate(runs.samples[runs.seed == 0]):
        digits = np.hstack([np.pad(digit, 1) for digit in np.reshape(samples, (-1, 8, 8))])
        place = dict(extent=(0, 8, row + 0.5, row - 0.5), aspect="auto", zorder=1)
        left.imshow(digits, "gray_r", vmin=0, vmax=16, **place)
    sns.stripplot(runs, x="frechet", y="arm", ax=middle, color=INK, size=4, jitter=False)
    batches = {"pure_accuracy": "pure batches (upper)", "mixed_accuracy": "mixed batches (lower)"}
    long = runs.rename(columns=batches).melt(["arm"], batches.values(), "scored in", "accuracy")
    sns.stripplot(
        long,
        x="accuracy",
        y="arm",
        hue="scored in",
        ax=right,
        palette=[INK, NO_NORM],
        size=4,
        jitter=False,
        dodge=True,
    )
    right.legend(loc="upper left")
    left.set(xticks=[], xlabel="generated digits, seed 0", ylabel="generator · discriminator")
    middle.set(
        xscale="log",
        xticks=(1, 3, 10, 30),
        xticklabels=("1", "3", "10", "30"),
        xlabel="Fréchet distance (log scale)",
    )
    right.set(xlabel="discriminator's accuracy (%)")
    return finish(
        fig,
        "Norms in a GAN on 8×8 digits",
        caption,
        seeds_note(runs.drop(columns="arm")),
        "dots: seeds",
        "accuracy: real or generated, in train mode, the same images in both kinds of batches",
    )


@styled
def fig_selector(log: pd.DataFrame, caption: str = "one run") -> StudyFigure:
    """Return a heat map of w₀, DyT's weight, for each NormSelector and class; LN's is 1 − w₀.

    log: the frame of `weight_log.selector_weights`, with the columns block, depth, label, and w0.
    """
    names = {"n1": "attention", "n2": "feed-forward"}  # norm → branch with this norm
    branch = log.block.str.rpartition(".")[2].replace(names)
    rows = "block " + log.depth.astype(str) + ", " + branch
    table = log.assign(row=rows).pivot(index="row", columns="label", values="w0")
    table = table.loc[rows.unique()]
    fig, ((ax,),) = new_figure(height=0.9 + 0.42 * max(len(table), 6))
    sns.heatmap(
        table,
        annot=table.map(lambda w0: f"{w0:.2f}".removeprefix("0")),
        annot_kws=dict(fontsize=7.5, color=INK),
        fmt="",
        cmap=LinearSegmentedColormap.from_list(
            "choice", [norm_colour("LN"), WHITE, norm_colour("DyT")]
        ),
        vmin=0,
        vmax=1,
        cbar_kws=dict(label="w₀: 0 = LN, 1 = DyT", pad=0.02),
        xticklabels=1,
        yticklabels=1,
        ax=ax,
    )
    ax.set(title="by class", xlabel="class", ylabel="")
    ax.tick_params(length=0, rotation=0)
    return finish(
        fig, "What the selectors choose", caption, "mean over the tokens of the split's rows"
    )


def example_batch(*, offset: float = 2.0, spread: float = 3.0) -> Tensor:
    """Return a made-up batch of 8 rows, 24 positions and 16 channels that shows how norms differ.

    Channels differ in mean and scale, rows in mean. offset: factor of the channel means. spread:
    how much the scales of the channels differ; 0 gives all channels the scale 1.
    """
    draw = torch.Generator().manual_seed(0)
    rows, length, channels = 8, 24, 16
    channel_means = offset * torch.randn(1, 1, channels, generator=draw)
    row_means = torch.randn(rows, 1, 1, generator=draw)
    scale = torch.exp(0.3 * spread * torch.randn(1, 1, channels, generator=draw))
    waves = torch.sin(torch.linspace(0, 6, length)[None, :, None] + torch.arange(channels) / 3)
    noise = torch.randn(rows, length, channels, generator=draw)
    return channel_means + row_means + scale * (waves + 0.3 * noise)
