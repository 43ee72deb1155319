"""AutoNorm (S2): what its selectors choose, how its models hold under corruption, what they cost.

fig_selector      the weight of DyT over training and by class, from `SelectorLog.frame()`
fig_robustness    accuracy over severity, from `robustness_table`
fig_latency       accuracy against milliseconds, from the run frame and `latency_table`
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from mambanorm.figures.style import (
    GREY,
    INK,
    arm_styles,
    finish,
    new_figure,
    norm_colour,
    short,
    styled,
    whole_ticks,
)
from mambanorm.study.intervals import t_interval
from mambanorm.study.tables import check_frame, describe_frame, seeds_text

PLACE = {"n1": "attention", "n2": "feed-forward"}
KINDS = {
    "noise": ("Gaussian noise", "standard deviation, × that of the inputs"),
    "rotation": ("rotation", "largest angle, degrees"),
}


@styled
def fig_selector(log: pd.DataFrame, caption: str = "") -> Figure:
    """w₀, the weight of DyT, of every selector: over the steps (mean over the classes), and by class at the last step.
    1 − w₀ is LN's. log: `SelectorLog.frame()` of one run; `selector_weights` alone shows the right half only."""
    check_frame(log, ("block", "depth", "label", "w0"))
    blocks, over = list(log.block.unique()), "step" in log
    widths = dict(width_ratios=(1, 1.25)) if over else {}
    fig, axes = new_figure(1, 1 + over, height=0.9 + 0.42 * max(len(blocks), 6), **widths)
    if over:
        _over_steps(axes[0, 0], log, blocks)
    last = log[log.step == log.step.max()] if over else log
    table = last.pivot(index="block", columns="label", values="w0").loc[blocks]
    colours = LinearSegmentedColormap.from_list("choice", [norm_colour("LN"), "#FFFFFF", norm_colour("DyT")])
    ax = axes[0, -1]
    image = ax.imshow(table, cmap=colours, vmin=0, vmax=1, aspect="auto")
    for (i, j), value in np.ndenumerate(table.to_numpy()):
        ax.text(j, i, f"{value:.2f}".removeprefix("0"), ha="center", va="center", fontsize=7.5, color=INK)
    ax.set_yticks(range(len(blocks)), [_named(block, depth) for block, depth in _depths(last, blocks)])
    ax.set_xticks(range(table.shape[1]), table.columns)
    ax.set(title=f"by class, step {log.step.max()}" if over else "by class", xlabel="class")
    ax.grid(False)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    fig.colorbar(image, ax=ax, label="w₀: 0 = LN, 1 = DyT", pad=0.02).outline.set_visible(False)
    lines = "lines: solid = attention, dashed = feed-forward, dark = deep" if over else ""
    return finish(
        fig, "What the selectors choose", caption or "one run", "mean over the tokens of the split's rows", lines
    )


def _depths(frame: pd.DataFrame, blocks: list[str]) -> list[tuple[str, int]]:
    depth = frame.drop_duplicates("block").set_index("block").depth
    return [(block, int(depth[block])) for block in blocks]


def _named(block: str, depth: int) -> str:
    """`blocks.0.n1` → `block 1, attention`"""
    place = block.rsplit(".", 1)[-1]
    return f"block {depth}, {PLACE.get(place, place)}"


def _over_steps(ax: Axes, log: pd.DataFrame, blocks: list[str]) -> None:
    depths = dict(_depths(log, blocks))
    deepest = max(depths.values())
    for block in blocks:
        w0 = log[log.block == block].groupby("step").w0.mean()
        place = block.rsplit(".", 1)[-1]
        shade = 0.35 + 0.65 * depths[block] / deepest  # dark = deep
        line = dict(color=norm_colour("NormSelector"), alpha=shade, linestyle="--" if place == "n2" else "-")
        ax.plot(w0.index, w0, marker="o", markersize=2.4, linewidth=1.5, **line)
    ax.axhline(0.5, color=GREY, linewidth=0.9, linestyle=":")
    ax.set(title="while it trains", xlabel="step", ylabel="w₀, mean over the classes", ylim=(-0.02, 1.02))
    whole_ticks(ax)


@styled
def fig_robustness(table: pd.DataFrame, caption: str = "") -> Figure:
    """Accuracy over the severity of each corruption, a line an arm: mean over the seeds, band: 95 % t-interval."""
    check_frame(table, ("task", "arm", "seed", "kind", "severity", "accuracy"))
    if table.task.nunique() > 1:
        raise ValueError(f"the table holds the tasks {', '.join(table.task.unique())}: draw one at a time")
    kinds = list(table.kind.unique())
    fig, axes = new_figure(1, len(kinds), height=3.7, sharey=True)
    styles = arm_styles(list(table.arm.unique()))
    for ax, kind in zip(axes[0], kinds, strict=True):
        for arm, runs in table[table.kind == kind].groupby("arm", sort=False):
            points = runs.groupby("severity").accuracy.apply(lambda a: (100 * a.mean(), *t_interval(100 * a)))
            mean, low, high = np.array(points.tolist()).T
            ax.plot(points.index, mean, markersize=4.5, linewidth=1.6, label=short(arm), **styles[arm])
            ax.fill_between(points.index, low, high, color=styles[arm]["color"], alpha=0.12, linewidth=0)
        title, unit = KINDS.get(kind, (kind, "severity"))
        ax.set(title=title, xlabel=unit)
    axes[0, 0].set_ylabel("test accuracy (%)")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center")
    seeds = seeds_text(table.groupby("arm").seed.nunique())
    return finish(fig, f"Corrupted test rows, {table.task.iloc[0]}", caption or seeds, "bands: 95 % t-intervals")


@styled
def fig_latency(runs: pd.DataFrame, latency: pd.DataFrame) -> Figure:
    """Accuracy against the time of a forward pass, a dot an arm, a panel for each number of rows. Lines: the 95 %
    t-interval over the seeds, and the quartiles of the time."""
    check_frame(runs)
    rows = sorted(latency.rows.unique())
    fig, axes = new_figure(1, len(rows), height=3.6, sharey=True)
    styles = arm_styles([arm for arm in runs.arm.unique() if arm in set(latency.arm)])
    for ax, n in zip(axes[0], rows, strict=True):
        for arm, style in styles.items():
            accuracy = 100 * runs[runs.arm == arm].test_accuracy
            time = latency[(latency.arm == arm) & (latency.rows == n)].iloc[0]
            low, high = t_interval(accuracy)
            ax.vlines(time.ms, low, high, color=style["color"], linewidth=1.3, alpha=0.7)
            ax.hlines(accuracy.mean(), time.low, time.high, color=style["color"], linewidth=1.3, alpha=0.7)
            hollow = style["linestyle"] != "-"
            face = dict(color=style["color"], markerfacecolor="white" if hollow else style["color"])
            place = dict(marker=style["marker"], markersize=6.5, linestyle="", label=short(arm))
            ax.plot(time.ms, accuracy.mean(), **place, **face)
        ax.set(title="one row" if n == 1 else f"a batch of {n} rows", xlabel="forward pass (ms, median)")
        ax.set_xlim(left=0)
        ax.grid(axis="x")
    axes[0, 0].set_ylabel("test accuracy (%)")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center")
    lines = "lines: 95 % t-interval over the seeds, quartiles of the time"
    where = "on this machine, with the run's threads"
    return finish(fig, "Accuracy against latency", describe_frame(runs, lines), where)
