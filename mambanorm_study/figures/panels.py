"""Figures of test accuracy with one panel per task; a panel shows each arm's mean and seeds.

`fresh` is a run frame of the reader's own runs (`mambanorm_study.replicate`), which are drawn as
white diamonds.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mambanorm_study.figures.colours import (
    GREY,
    INK,
    PALETTE,
    fresh_marker,
    norm_colour,
    norm_marker,
)
from mambanorm_study.figures.style import jitter, panel_grid
from mambanorm_study.tables.run_tables import check_frame

TEST_ACCURACY = "test accuracy (%)"
AFTER_SSM = "N₂, the norm after the SSM"


def select_runs(frame: pd.DataFrame, arms: Sequence[str] | None = None) -> pd.DataFrame:
    """Return the runs of `arms` (None means all arms) with a column `percent`, the test accuracy in
    per cent.

    Raises ValueError if none of the arms was run, or if an arm has two runs of one seed on a task.
    """
    check_frame(frame)
    runs = frame if arms is None else frame[frame.arm.isin(arms)]
    if runs.empty:
        raise ValueError(f"none of the arms drawn here has been run: {', '.join(arms)}")
    if runs.duplicated(["task", "arm", "seed"]).any():
        raise ValueError(
            "an arm has several runs of one seed on a task: keep one scale, depth and lr"
        )
    return runs.assign(percent=100 * runs.test_accuracy)


def fresh_in_percent(fresh: pd.DataFrame | None, runs: pd.DataFrame) -> pd.DataFrame:
    """Return `fresh` with a column `percent`, the test accuracy in per cent. If `fresh` is None or
    empty, return a frame with the columns of `runs` and no rows.
    """
    if fresh is None or fresh.empty:
        return runs.iloc[:0]
    return fresh.assign(percent=100 * fresh.test_accuracy)


def task_panels(runs: pd.DataFrame, *, chance: bool = True, height: float = 4.0):
    """Return a figure with one empty panel per task, and a map from task to axes.

    chance: draw a dotted line at chance accuracy. height: height of a row of panels, in inches.
    """
    tasks = runs.task.unique()
    fig, axes = panel_grid(len(tasks), 3, row_height=height)
    panels = dict(zip(tasks, axes, strict=True))
    for task, ax in panels.items():
        ax.set(title=task, ylabel=TEST_ACCURACY)
        level = 100 * runs.chance[runs.task == task].mean()
        if chance and np.isfinite(level):
            ax.axhline(level, color=GREY, linewidth=0.9, linestyle=(0, (2, 2)))
    return fig, panels


def norm_ticks(ax: Axes, names: Sequence[str], label: str) -> None:
    """Write the names of norms at 0, 1, … of the x axis, and set the label of the axis."""
    ax.set_xticks(range(len(names)), ["none" if name == "None" else name for name in names])
    ax.set(xlabel=label, xlim=(-0.6, len(names) - 0.4))
    ax.tick_params(axis="x", length=0)


def arm_panels(
    runs: pd.DataFrame,
    fresh: pd.DataFrame | None,
    ticks: Sequence[str],
    groups: Mapping[str, dict],
    label: str,
    *,
    bar: bool = False,
    joined_by: str = "",
    group_distance: float = 0.4,
):
    """Return a figure of each arm's mean, seeds and `fresh` runs, and a map from task to axes.

    runs: from `select_runs`, with the further columns `tick` (one of `ticks`), `group` (a key of
    `groups`), and `norm`, which gives the colour. groups: group → style of its means. label: text
    below the x axis. bar: draw a mean as a bar with its standard deviation instead of a large dot.
    joined_by: a column; lines connect the means of rows with the same value in this column.
    group_distance: distance on the x axis between the first and the last group at a tick.
    """
    fig, panels = task_panels(runs, chance=bar)
    offsets = dict(zip(groups, jitter(len(groups), group_distance), strict=True))
    x = runs.tick.map(list(ticks).index) + runs.group.map(offsets)
    runs = runs.assign(x=x, colour=runs.norm.map(norm_colour)).dropna(subset="percent")
    fresh = fresh_in_percent(fresh, runs)
    for (task, arm), rows in runs.groupby(["task", "arm"], sort=False):
        ax, first = panels[task], rows.iloc[0]
        _draw_arm(ax, rows, groups[first.group], bar_width=(group_distance or 0.62) if bar else 0)
        diamonds = fresh.percent[(fresh.task == task) & (fresh.arm == arm)]
        diamond_x = np.full(len(diamonds), first.x + np.copysign(0.14, offsets[first.group]))
        ax.plot(diamond_x, diamonds, **fresh_marker(INK if bar else first.colour))
    for (task, _), rows in runs.groupby(["task", joined_by]) if joined_by else ():
        means = rows.groupby("x").percent.mean()
        panels[task].plot(means.index, means, color=rows.colour.iloc[0], linewidth=1.4)
    for ax in panels.values():
        norm_ticks(ax, ticks, label)
        if bar:  # from zero, with room above the highest bar
            ax.set_ylim(0, max(ax.dataLim.ymax, 1) * 1.12)
    if len(groups) > 1:
        handles = [_legend_handle(group, mean_style, bar) for group, mean_style in groups.items()]
        fig.legend(handles=handles, loc="outside upper right", ncols=len(groups))
    return fig, panels


def _draw_arm(ax: Axes, rows: pd.DataFrame, mean_style: dict, bar_width: float) -> None:
    """Draw the mean of one arm, as a bar unless `bar_width` is 0, and a dot for each seed."""
    x, colour, norm = rows[["x", "colour", "norm"]].iloc[0]
    mean, dots = rows.percent.mean(), dict(color=colour, alpha=0.6)
    if bar_width:
        bar = dict(color=colour, edgecolor="white", yerr=rows.percent.std(), ecolor=INK)
        ax.bar(x, mean, bar_width, **bar, **mean_style)
        dots = dict(color=INK, markeredgecolor="white", markeredgewidth=0.5)
    else:
        ax.plot(x, mean, norm_marker(norm), markersize=8, color=colour, zorder=5, **mean_style)
    seeds = rows.percent[rows.seed.notna()]
    ax.plot(x + jitter(len(seeds)), seeds, "o", markersize=3.2, **dots)


def _legend_handle(group: str, mean_style: dict, bar: bool) -> Patch | Line2D:
    """Return the legend entry of a group: a rectangle if `bar` is True, else a marker."""
    if bar:
        return Patch(label=group, color=GREY, **mean_style)
    style = dict(color=PALETTE.get(group, GREY), marker=norm_marker(group), markersize=8)
    return Line2D([], [], label=group, linestyle="", **style, **mean_style)
