"""Figures of activations in one pass, steps before a failure, and losses of treated trainings."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mambanorm_clinic.sites import FLOAT16_MAX
from mambanorm_study.figures.colours import COMBINATION, GREY, NO_NORM
from mambanorm_study.figures.lines import line_panels
from mambanorm_study.figures.style import (
    finish,
    log_axis,
    panel_grid,
    spaced_indices,
    styled,
    whole_ticks,
)

PANELS_PER_ROW, MAX_PANELS = 4, 12
LINES = {
    "rms": dict(color=COMBINATION, marker="o", label="RMS"),
    "p999": dict(color=GREY, marker="s", linestyle="--", label="99.9 %"),
    "max_abs": dict(color=NO_NORM, marker="^", linestyle=":", label="largest"),
}
FAILURE_PANELS = {
    "loss": "loss",
    "grad_norm": "norm of all gradients",
    "rms": "RMS of a layer's output",
    "grad_rms": "RMS of the output's gradient",
}


@styled
def fig_clinic(table: pd.DataFrame, title: str) -> Figure:
    """Return a figure of the activations' magnitude over depth, for at most 12 sites.

    Each site has one panel, with lines for the RMS, the 99.9 % quantile and the largest magnitude.
    table: the attribute `table` of a Diagnosis.
    """
    sites = list(dict.fromkeys(table.site))
    drawn_sites = [sites[i] for i in spaced_indices(len(sites), MAX_PANELS)]
    fig, axes = panel_grid(
        max(len(drawn_sites), 1), PANELS_PER_ROW, row_height=1.9, extra_height=0.8
    )
    for ax, site in zip(axes, drawn_sites, strict=False):
        _depth_panel(ax, table[table.site == site], site)
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=len(LINES))
    return finish(
        fig,
        title,
        "one batch, one pass",
        f"grey line: float16's largest number, {FLOAT16_MAX:,.0f}",
        "red background: some values are not finite",
        f"{len(drawn_sites)} of {len(sites)} sites" if len(drawn_sites) < len(sites) else "",
    )


def _depth_panel(ax: Axes, rows: pd.DataFrame, site: str) -> None:
    worst = rows.groupby("depth")[[*LINES, "nonfinite"]].max()
    for column, style in LINES.items():
        values = worst[column].where(worst[column] > 0)
        ax.plot(worst.index, values, markersize=3, linewidth=1, **style)
    _mark_non_finite(ax, worst.index[worst.nonfinite > 0])
    if (worst.max_abs > 0).any():
        log_axis(ax)
    if ax.get_ylim()[1] > FLOAT16_MAX / 100:
        ax.axhline(FLOAT16_MAX, color=GREY, linewidth=0.9)
    whole_ticks(ax)
    is_first = ax.get_subplotspec().is_first_col()
    ax.set(xlabel="layer", ylabel="magnitude (a.u.)" if is_first else "")
    ax.set_title(site, fontsize=8.5)


@styled
def fig_failure(steps: pd.DataFrame, layers: pd.DataFrame, title: str, caption: str = "") -> Figure:
    """Return a figure of the training steps before a failure, with four panels over the steps.

    The panels show the loss; the norm of all gradients; and for at most five layers the RMS of the
    layer's output and the RMS of the output's gradient. steps, layers: the DataFrames of a Report
    (see watching.py).
    """
    depths = sorted(layers.depth.unique())
    depths = [depths[i] for i in spaced_indices(len(depths), 5)]
    layers = layers[layers.depth.isin(depths)]
    whole_model = steps.assign(depth=0)
    fig, axes = panel_grid(len(FAILURE_PANELS), PANELS_PER_ROW, row_height=2.9)
    for ax, (column, label) in zip(axes, FAILURE_PANELS.items(), strict=True):
        frame = whole_model if column in whole_model else layers
        lines = frame.groupby(["step", "depth"])[column].last().unstack().dropna(axis=1, how="all")
        finite = lines.where(np.isfinite(lines))
        for depth, values in finite.items():
            color = str(0.8 - 0.7 * depth / max(depths)) if depth else COMBINATION
            ax.plot(values, color=color, marker="o", markersize=2.5, label=f"layer {depth}")
        _mark_non_finite(ax, lines.index[finite.isna().any(axis=1)])
        if (finite > 0).any(axis=None):
            log_axis(ax)
        whole_ticks(ax)
        ax.set(xlabel="step", ylabel=label)
    if depths:
        axes[2].legend(fontsize=6.5)
    return finish(fig, title, caption, "red background: the value is not finite")


def _mark_non_finite(ax: Axes, positions) -> None:
    for x in positions:
        ax.axvspan(x - 0.5, x + 0.5, color=NO_NORM, alpha=0.2, linewidth=0)


@styled
def fig_cures(curves: pd.DataFrame, ends: pd.DataFrame, title: str, *caption: str) -> Figure:
    """Return a figure of training losses, with one panel per treatment and one line per seed.

    A treatment is a change that may prevent a failure, such as a norm. A cross marks the last
    finite step of a run that failed. curves: a DataFrame with one row per run and finite step.
    Columns: treatment, seed, step, bits (the loss in bits per character). ends: a DataFrame with
    one row per run. Columns: treatment, seed, failed (True or False).
    """
    label = "training loss (bits per character)"
    curves = (
        ends[["treatment", "seed", "failed"]]
        .merge(curves[["treatment", "seed", "step", "bits"]], how="left")
        .rename(columns={"bits": label})
        .assign(run=lambda frame: "seed " + frame.seed.astype(str))
    )
    fig, axes = line_panels(
        curves,
        "step",
        label,
        "run",
        panel="treatment",
        across=PANELS_PER_ROW,
        row_height=2.7,
        linewidth=1.2,
    )
    for ax, (treatment, rows) in zip(axes, ends.groupby("treatment", sort=False), strict=True):
        failed_curves = curves[(curves.treatment == treatment) & curves.failed]
        last_rows = failed_curves.groupby("seed").last()
        ax.plot(last_rows.step, last_rows[label], "X", color=NO_NORM, markersize=7, zorder=4)
        ax.set_title(f"{treatment}\n{rows.failed.sum()} of {len(rows)} fail", fontsize=9)
    return finish(fig, title, "red cross: the last finite step of a run that fails", *caption)
