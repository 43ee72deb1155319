"""Figures of the first lessons: what a norm does to one row, what the SSM remembers, how large a signal is where."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from mambanorm.arms import SITES, Arm
from mambanorm.figures.style import GREY, INK, PALETTE, arm_styles, finish, new_figure, styled
from mambanorm.norms import create_norm
from mambanorm.tasks.base import Split


@styled
def fig_effect(x: Tensor, names: Sequence[str], **options) -> Figure:
    """One row of x (B, L, D) before and after each norm, as a picture of L × D; the norms see the whole batch.

    Each panel has its own colour range, ± its largest value, written below it: the norms are meant to change it.
    """
    shown = {"input": x} | {name: create_norm(name, x.shape[-1], **options)(x) for name in names}
    fig, axes = new_figure(1, len(shown), height=3.1)
    for ax, (name, y) in zip(axes[0], shown.items(), strict=True):
        row = y[0].detach().numpy().T
        limit = float(np.abs(row).max())
        ax.imshow(row, aspect="auto", cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
        ax.set_title(name, color=INK)
        mean_sd = f"mean {round(float(row.mean()), 2) + 0.0:.2f}, sd {row.std():.2f}"
        ax.set_xlabel(f"position\n{mean_sd}\ncolours ±{limit:.1f}", fontsize=8)
        ax.grid(False)
        ax.set_xticks([]), ax.set_yticks([])
    axes[0, 0].set_ylabel("channel")
    rows, length, channels = x.shape
    return finish(
        fig, "What a norm does to one row", f"row 1 of a batch of {rows}, {length} positions, {channels} channels"
    )


@styled
def fig_rows(split: Split, n: int = 8, caption: str = "") -> Figure:
    """The first n sequences of a split with their labels: as square images where their length is a square number and
    they are values, else as one line of values (or token ids) over the positions."""
    fig, axes = new_figure(1, n, height=1.9)
    for ax, sequence, label in zip(axes[0], split.inputs[:n], split.labels[:n], strict=True):
        side = math.isqrt(sequence.numel())
        square = sequence.is_floating_point() and side**2 == sequence.numel()
        ax.imshow(sequence.reshape((side, side) if square else (1, -1)).numpy(), cmap="gray_r", aspect="auto")
        ax.set_title(f"class {int(label)}", color=INK, fontsize=9)
        ax.set_xlabel(f"step 0…{side - 1} of a row" if square else "step", fontsize=7)
        ax.grid(False), ax.set_xticks([]), ax.set_yticks([])
    return finish(fig, "The first sequences of the training set", caption)


@styled
def fig_memory(delta: Tensor, A: Tensor) -> Figure:
    """How many steps until a state has decayed to half, for Δ (channels,) and A (channels, N): log 2 / (Δ·|A|)."""
    half = (np.log(2) / (delta[:, None] * A.abs())).detach().numpy()  # (channels, N)
    order = np.argsort(half[:, 0])
    fig, ((ax,),) = new_figure(height=3.0)
    image = ax.imshow(np.log10(half[order].T), aspect="auto", cmap="viridis", interpolation="nearest")
    bar = fig.colorbar(image, ax=ax, pad=0.01)
    bar.set_label("log10 of steps to half")
    ax.set_xlabel("channel, by its Δ")
    ax.set_ylabel("state n (0 is the slowest)")
    ax.grid(False)
    return finish(
        fig, "What the SSM remembers at the start", f"half-life from {half.min():.2g} to {half.max():.3g} steps"
    )


@styled
def fig_sites(frames: dict[str, pd.DataFrame], caption: str = "") -> Figure:
    """RMS at each recorded site of a block, one line an arm; `frames`: arm → Recorder.frame() of one block."""
    fig, ((ax,),) = new_figure(height=3.7)
    styles = arm_styles(list(frames))
    for arm, frame in frames.items():
        rms = frame.set_index("site").rms.reindex(SITES)
        ax.plot(range(len(SITES)), rms, markersize=4.5, label=Arm.parse(arm).label, **styles[arm])
    ax.set_yscale("log")
    ax.set_xticks(range(len(SITES)), SITES, rotation=30, ha="right", rotation_mode="anchor")
    ax.set_xlabel("site, in the order of computation")
    ax.set_ylabel("RMS (log scale)")
    fig.legend(loc="outside right center")
    return finish(fig, "How large the signal is, site by site", caption)


@styled
def fig_costs(table: pd.DataFrame, caption: str = "") -> Figure:
    """Time of each norm, forward plus backward, as a multiple of LN's; columns norm, ratio, low, high."""
    fig, ((ax,),) = new_figure(height=3.0)
    places = np.arange(len(table))
    ax.bar(places, table.ratio, color=[PALETTE.get(name, GREY) for name in table.norm])
    ax.vlines(places, table.low, table.high, color=INK, linewidth=1)
    ax.axhline(1, color=GREY, linestyle=":")
    ax.set_xticks(places, table.norm, rotation=30, ha="right", rotation_mode="anchor")
    ax.set_xlabel("norm")
    ax.set_ylabel("time, LN = 1")
    return finish(fig, "What a norm costs", caption)


def example_batch(
    rows: int = 8, length: int = 24, channels: int = 16, *, offset: float = 2.0, spread: float = 3.0
) -> Tensor:
    """A made-up batch (rows, length, channels) on which the norms differ: channels have means and spreads of their own,
    rows too. ValueError for a size that is no whole number of at least 1."""
    for name, size in dict(rows=rows, length=length, channels=channels).items():
        if type(size) is not int or size < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {size!r}")
    draw = torch.Generator().manual_seed(0)
    means = offset * torch.randn(1, 1, channels, generator=draw) + torch.randn(rows, 1, 1, generator=draw)
    scale = torch.exp(0.3 * spread * torch.randn(1, 1, channels, generator=draw))
    waves = torch.sin(torch.linspace(0, 6, length)[None, :, None] + torch.arange(channels) / 3)
    return means + scale * (waves + 0.3 * torch.randn(rows, length, channels, generator=draw))
