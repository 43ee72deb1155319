"""Figures of the advice on norms: the mistakes beside their mended twins, and what depends on batch, rate and depth.

fig_over        a measured value over batch size, learning rate or depth, one line a norm or place
fig_mistakes    training curves of the mistakes and their twins
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from mambanorm.figures.style import (
    COMBINATION,
    MARKERS,
    NO_NORM,
    PALETTE,
    SPARE_COLOURS,
    finish,
    new_figure,
    styled,
)
from mambanorm.study.tables import seeds_text

PLACES = {"pre": COMBINATION, "post": NO_NORM, "train": NO_NORM, "eval": COMBINATION}
NAMES = {
    "accuracy": "test accuracy (%)", "error": "test error (RMSE)", "batch": "training batch (rows, log scale)",
    "lr": "learning rate (log scale)", "depth": "layers",
}  # fmt: skip
WINDOW = 5


def _caption(frame: pd.DataFrame) -> str:
    shows = "lines: means, dots: seeds" if frame.seed.nunique() > 1 else "single runs"
    return f"{frame.scale.iloc[0]} scale · {seeds_text([frame.seed.nunique()])} · {shows}"


def _look(name: str, i: int) -> dict:
    colour = PALETTE.get(name) or PLACES.get(name) or SPARE_COLOURS[i % len(SPARE_COLOURS)]
    return dict(color=colour, marker=MARKERS.get(name, ("o", "s", "^")[i % 3]))


@styled
def fig_over(
    frame: pd.DataFrame, x: str, by: str, title: str, *, value: str = "accuracy", x_label: str = "", caption: str = ""
) -> Figure:
    """A value over x, one line for each value of the column `by`; batch sizes and rates on a logarithmic axis."""
    fig, ((ax,),) = new_figure(height=3.2)
    for i, (name, runs) in enumerate(frame.groupby(by, sort=False)):
        look = _look(str(name), i)
        means = runs.groupby(x)[value].mean()
        ax.plot(means.index, means, label="no norm" if name == "None" else name, markersize=5, **look)
        ax.scatter(runs[x], runs[value], s=9, alpha=0.5, color=look["color"], linewidths=0)
    if x in ("batch", "lr"):
        ax.set_xscale("log", base=2 if x == "batch" else 10)
    if x != "lr":
        ax.set_xticks(sorted(frame[x].unique()), [str(n) for n in sorted(frame[x].unique())])
    ax.set_xlabel(x_label or NAMES.get(x, x))
    ax.set_ylabel(NAMES.get(value, value))
    fig.legend(loc="outside right center")
    return finish(fig, title, _caption(frame), caption)


@styled
def fig_mistakes(runs: Mapping[int, pd.DataFrame], titles: Mapping[int, str], units: Mapping[int, str]) -> Figure:
    """One panel a mistake: the training loss of the wrong and the right twin, and what each measured in the end.

    runs: number → the frame of `advice.mistake_runs`; units: number → what `measured` is.
    """
    fig, axes = new_figure(1, len(runs), height=3.6)
    for ax, (number, frame) in zip(axes[0], runs.items(), strict=True):
        for twin, colour, line in (("wrong", NO_NORM, "--"), ("right", COMBINATION, "-")):
            mine = frame[frame.twin == twin]
            for losses in mine.losses:
                smooth = pd.Series(np.asarray(losses, dtype=float)).rolling(WINDOW, min_periods=1).mean()
                ax.plot(np.arange(1, len(smooth) + 1), smooth, line, color=colour, linewidth=1, alpha=0.8)
            label = f"{mine.label.iloc[0]}: {mine.measured.mean():.3g}"
            ax.plot([], [], line, color=colour, label=label)
        ax.set_title(textwrap.fill(f"{number}. {titles[number]}", 26), fontsize=8.5)
        ax.set_yscale("log")
        for set_formatter in (ax.yaxis.set_major_formatter, ax.yaxis.set_minor_formatter):
            set_formatter(LogFormatter(minor_thresholds=(1.2, 0.4)))
        ax.set_xlabel("training step")
        ax.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.22), fontsize=7.5, title=units[number], title_fontsize=7.5
        )
    axes[0, 0].set_ylabel(f"training loss, mean of {WINDOW} steps (log)")
    whole = pd.concat(runs.values())
    lines = "one line a seed" if whole.seed.nunique() > 1 else "single runs"
    caption = (
        f"{whole.scale.iloc[0]} scale · {seeds_text([whole.seed.nunique()])} · {lines} · below: means of the tests"
    )
    return finish(fig, "Mistakes (dashed) beside their mended twins", caption)
