"""Figures of the clinic: what one batch shows of a model, and the steps before a failure."""

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mambanorm_study.figures.colours import COMBINATION, GREY, NO_NORM
from mambanorm_study.figures.lines import line_panels
from mambanorm_study.figures.style import finish, log_axis, new_figure, some_of, styled, whole_ticks

COLUMNS, MOST = 4, 12
FLOAT16 = 65504.0
LINES = {
    "rms": dict(color=COMBINATION, marker="o", label="RMS"),
    "p999": dict(color=GREY, marker="s", linestyle="--", label="99.9 %"),
    "max_abs": dict(color=NO_NORM, marker="^", linestyle=":", label="largest"),
}


@styled
def fig_clinic(table: pd.DataFrame, title: str) -> Figure:
    """Depth against magnitude, one panel a site (at most 12); table: that of a Diagnosis."""
    sites = list(dict.fromkeys(table.site))
    shown = [sites[i] for i in some_of(len(sites), MOST)] if sites else []
    rows = max(math.ceil(len(shown) / COLUMNS), 1)
    fig, axes = new_figure(rows, COLUMNS, height=1.9 * rows + 0.8)
    panels = axes.flatten()
    for ax, site in zip(panels, shown):
        _depth_panel(ax, table[table.site == site], site)
    for ax in axes[:, 0]:
        ax.set_ylabel("magnitude (a.u.)")
    for ax in panels[len(shown) :]:
        ax.set_axis_off()
    if shown:
        fig.legend(
            *axes[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=len(LINES)
        )
    left_out = f"{len(shown)} of {len(sites)} sites" if len(shown) < len(sites) else ""
    notes = (
        "one batch, one pass",
        "grey line: float16's largest, 65,504",
        "red ground: values that are not finite",
    )
    return finish(fig, title, *notes, left_out)


def _depth_panel(ax: Axes, rows: pd.DataFrame, site: str) -> None:
    worst = rows.groupby("depth")[[*LINES, "nonfinite"]].max()
    for column, look in LINES.items():
        values = worst[column].where(worst[column] > 0)
        ax.plot(worst.index, values, markersize=3, linewidth=1, **look)
    for depth in worst.index[worst.nonfinite > 0]:
        ax.axvspan(depth - 0.5, depth + 0.5, color=NO_NORM, alpha=0.2, linewidth=0)
    if (worst.max_abs > 0).any():
        log_axis(ax)
    if ax.get_ylim()[1] > FLOAT16 / 100:
        ax.axhline(FLOAT16, color=GREY, linewidth=0.9)
    whole_ticks(ax)
    ax.set_title(site, fontsize=8.5)
    ax.set_xlabel("layer")


@styled
def fig_failure(steps: pd.DataFrame, layers: pd.DataFrame, title: str, caption: str = "") -> Figure:
    """The steps before a failure. steps: step, loss, grad_norm; layers: step, depth, rms, grad_rms
    (long form)."""
    fig, axes = new_figure(1, 4, height=2.9)
    for ax, column, label in zip(
        axes[0], ("loss", "grad_norm"), ("loss", "norm of all gradients"), strict=False
    ):
        finite = steps[column].where(np.isfinite(steps[column]))
        ax.plot(steps.step, finite, color=COMBINATION, marker="o", markersize=2.5)
        _mark_non_finite(ax, steps.step[~np.isfinite(steps[column])])
        ax.set_ylabel(label)
    for ax, column, label in zip(
        axes[0, 2:], ("rms", "grad_rms"), ("RMS of a layer's output", "RMS of its gradient")
    ):
        depths = sorted(layers.depth.unique())
        for depth in (depths[i] for i in some_of(len(depths), 5)):
            mine = layers[layers.depth == depth]
            grey = str(0.8 - 0.7 * depth / max(depths))
            ax.plot(
                mine.step,
                mine[column].where(np.isfinite(mine[column])),
                color=grey,
                label=f"layer {depth}",
            )
        bad = layers.groupby("step")[column].apply(lambda values: bool(np.isinf(values).any()))
        _mark_non_finite(ax, bad.index[bad])
        ax.set_ylabel(label)
    for ax in axes[0]:
        if any((line.get_ydata() > 0).any() for line in ax.get_lines() if len(line.get_ydata())):
            log_axis(ax)
        ax.set_xlabel("step")
        whole_ticks(ax)
    if len(layers):
        axes[0, 2].legend(fontsize=6.5)
    return finish(fig, title, caption, "red ground: not finite")


def _mark_non_finite(ax: Axes, steps) -> None:
    for step in steps:
        ax.axvspan(step - 0.5, step + 0.5, color=NO_NORM, alpha=0.2, linewidth=0)


@styled
def fig_cures(curves: pd.DataFrame, ends: pd.DataFrame, title: str, *caption: str) -> Figure:
    """One panel a treatment, a line a seed, a cross where a run was no longer finite.

    curves: treatment, seed, step, bits, up to the last finite step. ends: treatment, seed, failed.
    """
    label = "training loss (bits a character)"
    runs = ends[["treatment", "seed", "failed"]]
    curves = runs.merge(curves[["treatment", "seed", "step", "bits"]], how="left").rename(
        columns={"bits": label}
    )
    curves = curves.assign(run="seed " + curves.seed.astype(str))
    fig, axes = line_panels(
        curves, "step", label, "run", panel="treatment", across=COLUMNS, row=2.7, linewidth=1.2
    )
    for ax, (treatment, mine) in zip(axes, ends.groupby("treatment", sort=False), strict=True):
        last = curves[(curves.treatment == treatment) & curves.failed].groupby("seed").last()
        ax.plot(last.step, last[label], "X", color=NO_NORM, markersize=7, zorder=4)
        ax.set_title(f"{treatment}\n{mine.failed.sum()} of {len(mine)} fail", fontsize=9)
    return finish(fig, title, "red cross: the last finite step of a run that fails", *caption)
