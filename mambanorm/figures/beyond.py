"""Norms at the sites of later models, and ladders of learning rates.

fig_site_gains    what a norm at one more site brings, from `sites_table.site_gains`
fig_ladder        accuracy over the learning rate, arm by arm, from the run frame
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mambanorm.arms import MORE_SITES, SYMBOLS
from mambanorm.figures.style import (
    GREY,
    MARKERS,
    arm_styles,
    finish,
    new_figure,
    norm_colour,
    own_run,
    own_runs,
    short,
    styled,
)
from mambanorm.study.contrasts import site_gains
from mambanorm.study.intervals import t_interval
from mambanorm.study.tables import check_frame, describe_frame, seeds_text


@styled
def fig_site_gains(table: pd.DataFrame, caption: str = "", *, fresh: pd.DataFrame | None = None) -> Figure:
    """A panel a task, a row a site: mean gain over Mamba's own arm with its 95 % t-interval, a small dot a seed, a
    marker for each norm, filled where the interval does not hold zero. `fresh`: a run frame of the reader's own runs,
    whose gains are diamonds. ValueError for a table without rows."""
    if table.empty:
        raise ValueError("the table has no rows: no arm with one further site was run (sites_table.site_arms)")
    tasks, norms = list(dict.fromkeys(table.task)), list(dict.fromkeys(table.norm))
    sites = [site for site in MORE_SITES if site in set(table.site)]
    own = site_gains(fresh) if fresh is not None and len(fresh) else table.iloc[:0]
    fig, axes = new_figure(1, len(tasks), height=1.6 + 0.42 * max(len(sites), 2), sharey=True)
    for ax, task in zip(axes[0], tasks, strict=True):
        _gains(ax, table[table.task == task], own[own.task == task], sites, norms)
        ax.set(title=task)
    axes[0, 0].set_yticks(range(len(sites)), [SYMBOLS.get(site, site) for site in sites])
    axes[0, 0].set(ylabel="site", ylim=(len(sites) - 0.5, -0.5))
    handles = {handle.get_label(): handle for ax in axes[0] for handle in ax.get_lines() if handle.get_label() in norms}
    fig.legend(handles.values(), handles.keys(), loc="outside right upper", title="norm there")
    basis = caption or f"{seeds_text(table.n)} · mean and 95 % t-interval"
    notes = "right of the line: better than without", "filled: the interval does not hold zero", "small dots: seeds"
    several = "not corrected for so many comparisons" if len(table) > len(tasks) else ""
    return finish(fig, "One more norm in RMSN→None, site by site", basis, *notes, own_runs(fresh), several)


def _gains(ax: Axes, rows: pd.DataFrame, own: pd.DataFrame, sites: list[str], norms: list[str]) -> None:
    places = {site: y for y, site in enumerate(sites)}
    for shift, norm in zip(np.linspace(-0.24, 0.24, len(norms)) if len(norms) > 1 else [0.0], norms, strict=True):
        colour = norm_colour(norm)
        for i, row in enumerate(rows[rows.norm == norm].itertuples()):
            y = places[row.site] + shift
            told = row.low > 0 or row.high < 0
            face = dict(color=colour, markerfacecolor=colour if told else "white", markersize=6, zorder=3)
            ax.plot(row.gain, y, marker=MARKERS[norm], linestyle="", label=norm if i == 0 else "_", **face)
            ax.plot(row.per_seed, np.full(len(row.per_seed), y + 0.1), ".", markersize=3, color=colour, alpha=0.5)
            mine = np.concatenate([[], *own[(own.norm == norm) & (own.site == row.site)].per_seed])
            ax.plot(mine, np.full(len(mine), y + 0.1), **own_run(size=5))
            if np.isfinite(row.low):
                ax.hlines(y, row.low, row.high, color=colour, linewidth=1.5)
    ax.axvline(0, color=GREY, linewidth=1)
    unit = rows.unit.iloc[0]
    ax.set_xlabel("gain in test accuracy (points)" if unit == "points" else unit)
    ax.grid(axis="x")


@styled
def fig_ladder(frame: pd.DataFrame, caption: str = "") -> Figure:
    """Test accuracy over the learning rate, a line an arm: mean and 95 % t-interval, a small dot a seed; a run that
    diverged counts as chance. ValueError for a frame without runs or with several tasks."""
    check_frame(frame, ("task", "arm", "seed", "lr", "test_accuracy", "status", "chance"))
    if frame.task.nunique() > 1:
        raise ValueError(f"a ladder is of one task, got {', '.join(frame.task.unique())}: filter the frame")
    scored = frame.assign(score=100 * frame.test_accuracy.where(frame.status != "diverged", frame.chance))
    fig, axes = new_figure(height=3.9)
    ax = axes[0, 0]
    styles = arm_styles(list(dict.fromkeys(scored.arm)))
    for shift, (arm, style) in zip(np.linspace(0.985, 1.015, len(styles)), styles.items(), strict=True):
        for lr, runs in scored[scored.arm == arm].groupby("lr"):
            ax.plot(np.full(len(runs), lr * shift), runs.score, ".", color=style["color"], alpha=0.4, markersize=4)
            low, high = t_interval(runs.score)
            if np.isfinite(low):
                ax.vlines(lr * shift, low, high, color=style["color"], linewidth=1.6)
        means = scored[scored.arm == arm].groupby("lr").score.mean()
        ax.plot(means.index * shift, means, label=short(arm), linewidth=1.4, markersize=5.5, **style)
    ax.axhline(100 * frame.chance.mean(), color=GREY, linestyle=":", linewidth=1)
    rates = sorted(scored.lr.unique())
    ax.set(xscale="log", xlabel="learning rate", ylabel="test accuracy (%)")
    ax.set_xticks(rates, [f"{lr:g}" for lr in rates])
    ax.minorticks_off()
    fig.legend(*ax.get_legend_handles_labels(), loc="outside right upper")
    basis = caption or describe_frame(frame, "mean and 95 % t-interval")
    return finish(fig, "How high can the learning rate be?", basis, "small dots: seeds", "dotted: chance")
