"""Figures of the clinic: one batch through a model, and the steps before a failure."""

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mambanorm_clinic.sites import FLOAT16_MAX
from mambanorm_study.figures.colours import COMBINATION, GREY, NO_NORM
from mambanorm_study.figures.lines import line_panels
from mambanorm_study.figures.style import finish, log_axis, new_figure, some_of, styled, whole_ticks

PANELS_ACROSS, MOST_PANELS = 4, 12
LINES = {
    "rms": dict(color=COMBINATION, marker="o", label="RMS"),
    "p999": dict(color=GREY, marker="s", linestyle="--", label="99.9 %"),
    "max_abs": dict(color=NO_NORM, marker="^", linestyle=":", label="largest"),
}


@styled
def fig_clinic(table: pd.DataFrame, title: str) -> Figure:
    """Return magnitude over depth, one panel a site (at most 12); table: of a Diagnosis."""
    sites = list(dict.fromkeys(table.site))
    shown = [sites[i] for i in some_of(len(sites), MOST_PANELS)] if sites else []
    rows = max(math.ceil(len(shown) / PANELS_ACROSS), 1)
    fig, axes = new_figure(rows, PANELS_ACROSS, height=1.9 * rows + 0.8)
    panels = axes.flatten()
    for ax, site in zip(panels, shown, strict=False):
        _depth_panel(ax, table[table.site == site], site)
    for ax in axes[:, 0]:
        ax.set_ylabel("magnitude (a.u.)")
    for ax in panels[len(shown) :]:
        ax.set_axis_off()
    if shown:
        handles, labels = axes[0, 0].get_legend_handles_labels()
        fig.legend(handles, labels, loc="outside upper right", ncols=len(LINES))
    left_out = f"{len(shown)} of {len(sites)} sites" if len(shown) < len(sites) else ""
    notes = (
        "one batch, one pass",
        f"grey line: float16's largest, {FLOAT16_MAX:,.0f}",
        "red ground: values that are not finite",
    )
    return finish(fig, title, *notes, left_out)


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
    ax.set_title(site, fontsize=8.5)
    ax.set_xlabel("layer")


@styled
def fig_failure(steps: pd.DataFrame, layers: pd.DataFrame, title: str, caption: str = "") -> Figure:
    """Return the steps before a failure.

    steps: step, loss, grad_norm; layers: step, depth, rms, grad_rms (long form).
    """
    fig, axes = new_figure(1, 4, height=2.9)
    axes = axes[0]
    _steps_panel(axes[0], steps.step, steps.loss, "loss")
    _steps_panel(axes[1], steps.step, steps.grad_norm, "norm of all gradients")
    _layers_panel(axes[2], layers, "rms", "RMS of a layer's output")
    _layers_panel(axes[3], layers, "grad_rms", "RMS of its gradient")
    for ax in axes:
        if any((line.get_ydata() > 0).any() for line in ax.get_lines() if len(line.get_ydata())):
            log_axis(ax)
        ax.set_xlabel("step")
        whole_ticks(ax)
    if len(layers):
        axes[2].legend(fontsize=6.5)
    return finish(fig, title, caption, "red ground: not finite")


def _steps_panel(ax: Axes, steps: pd.Series, values: pd.Series, label: str) -> None:
    is_finite = np.isfinite(values)
    ax.plot(steps, values.where(is_finite), color=COMBINATION, marker="o", markersize=2.5)
    _mark_non_finite(ax, steps[~is_finite])
    ax.set_ylabel(label)


def _layers_panel(ax: Axes, layers: pd.DataFrame, column: str, label: str) -> None:
    depths = sorted(layers.depth.unique())
    for i in some_of(len(depths), 5):
        rows = layers[layers.depth == depths[i]]
        grey = str(0.8 - 0.7 * depths[i] / max(depths))
        values = rows[column].where(np.isfinite(rows[column]))
        ax.plot(rows.step, values, color=grey, label=f"layer {depths[i]}")
    is_infinite = np.isinf(layers[column].astype(float))
    _mark_non_finite(ax, layers.step[is_infinite].unique())
    ax.set_ylabel(label)


def _mark_non_finite(ax: Axes, positions) -> None:
    for x in positions:
        ax.axvspan(x - 0.5, x + 0.5, color=NO_NORM, alpha=0.2, linewidth=0)


@styled
def fig_cures(curves: pd.DataFrame, ends: pd.DataFrame, title: str, *caption: str) -> Figure:
    """Return one panel for each treatment, with a line for each seed and a cross where it failed.

    curves: treatment, seed, step, bits, up to the last finite step. ends: treatment, seed, failed.
    """
    label = "training loss (bits a character)"
    runs = ends[["treatment", "seed", "failed"]]
    curves = runs.merge(curves[["treatment", "seed", "step", "bits"]], how="left")
    curves = curves.rename(columns={"bits": label})
    curves = curves.assign(run="seed " + curves.seed.astype(str))
    fig, axes = line_panels(
        curves,
        "step",
        label,
        "run",
        panel="treatment",
        across=PANELS_ACROSS,
        row=2.7,
        linewidth=1.2,
    )
    for ax, (treatment, rows) in zip(axes, ends.groupby("treatment", sort=False), strict=True):
        failed = curves[(curves.treatment == treatment) & curves.failed]
        last = failed.groupby("seed").last()
        ax.plot(last.step, last[label], "X", color=NO_NORM, markersize=7, zorder=4)
        ax.set_title(f"{treatment}\n{rows.failed.sum()} of {len(rows)} fail", fontsize=9)
    return finish(fig, title, "red cross: the last finite step of a run that fails", *caption)
