"""Diagnostic figures: norms by depth (Figure 9), singular values (Figure 10).

The inputs are `diagnostics.token_norms` frames and `StoredRun.diagnostics` arrays (see `WeightLog.arrays`); `caption`
says scale and seeds (`tables.describe_frame`), which the arrays do not hold. Without it the caption says "1 seed: a
sketch". Depth counts blocks from 1. Norms and singular values have no unit: their axes are in arbitrary units (a.u.).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mambanorm.basics.errors import unknown
from mambanorm.diagnostics import norm_quantiles
from mambanorm.figures.colours import DASHES, GREY, INK, SPARE_COLOURS
from mambanorm.figures.style import ONE_RUN, finish, log_axis, new_figure, seeds_of, short, some_of, styled, whole_ticks
from mambanorm.study.tables import check_frame

PHASES = {"early": "#2E9E5B", "normal": "#2F6DB5", "failing": "#C8443C"}
PHASE_LINES = {"early": dict(linestyle="-."), "normal": dict(linewidth=1.2), "failing": dict(linewidth=2.4)}
FEW = 6  # panels of layers in one row

TOKENS = {"median": dict(color=INK, linewidth=1.6), "largest": dict(color="#D55E00", linewidth=1.6, linestyle="--")}


@styled
def fig_token_norms(frame: pd.DataFrame, *, phase: str = "trained", caption: str = "") -> Figure:
    """Figure 9: log₁₀ ‖y‖₂ of the median and of the largest token after each block, in train mode; a panel an arm, a
    cross where a block holds tokens that are not finite.

    Input: the frame of `diagnostics.norms_by_depth`, of one task and one depth of model. ValueError for another, and
    for an unknown phase.
    """
    check_frame(frame, ("arm", "mode", "phase", "n_layers", "depth", "site", "l2"))
    if phase not in frame.phase.unique():
        raise unknown("phase of this frame", phase, frame.phase.unique())
    frame = frame[(frame.phase == phase) & (frame["mode"] == "train") & (frame.site == "residual")]
    if several := [c for c in ("task", "n_layers") if c in frame and frame[c].nunique() > 1]:
        raise ValueError(f"the frame holds {several[0]} {', '.join(map(str, frame[several[0]].unique()))}: draw one")
    arms = list(frame.arm.unique())
    fig, axes = new_figure(1, len(arms), height=3.1, sharey=True)
    for ax, arm in zip(axes[0], arms, strict=True):
        norms = norm_quantiles(frame[frame.arm == arm])
        logs = np.log10(norms.where((norms > 0) & np.isfinite(norms)))  # a gap where there is no logarithm
        for name, look in TOKENS.items():
            ax.plot(logs.index, logs[name], label=name, **look)
        lost = norms.index[norms.nonfinite > 0]
        top = dict(ms=6, color=PHASES["failing"], transform=ax.get_xaxis_transform())
        ax.plot(lost, np.full(len(lost), 0.96), "X", **top)
        ax.set(title=short(arm), xlabel="block")
        whole_ticks(ax)
    axes[0, 0].set_ylabel("log₁₀ ‖y‖₂ (a.u.)")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=2)
    task = f", {frame.task.iloc[0]}" if "task" in frame else ""
    notes = (f"{phase}, {frame.n_layers.iloc[0]} blocks", "residual stream, train mode", "cross: tokens not finite")
    return finish(fig, f"The median and the largest token{task}", caption or seeds_of(frame), *notes)


@styled
def fig_outputs(frame: pd.DataFrame, inside: Mapping[str, Mapping[str, np.ndarray]], caption: str = "") -> Figure:
    """Figure 9 at the end of training: log10 of the largest token's ‖y‖₂ after each block, as the run's last finite
    step saw it in train mode; a column an arm, a line a run, red where it ended non-finite.

    Input: rows of a run frame, and by run id `ring_outputs` (R, layers). ValueError if no run has kept them.
    """
    frame = frame[[("ring_outputs" in inside.get(run_id, ())) for run_id in frame.run_id]]
    if frame.empty:
        raise ValueError("none of these runs has kept what its blocks gave: see mambanorm.claims.trained_inside")
    arms = list(dict.fromkeys(frame.arm))
    fig, axes = new_figure(1, len(arms), height=3.1, sharey=True)
    for ax, arm in zip(axes[0], arms, strict=True):
        mine = frame[frame.arm == arm]
        failed = mine.status == "diverged"
        for run_id, ended in zip(mine.run_id, failed, strict=True):
            largest = np.log10(inside[run_id]["ring_outputs"][-1])
            blocks = np.arange(1, len(largest) + 1)
            ax.plot(blocks, largest, alpha=0.75, **_ending("failing" if ended else "normal"))
        ax.set(title=f"{short(arm)}: {failed.sum()} of {len(mine)} failed", xlabel="block")
        whole_ticks(ax)
    axes[0, 0].set_ylabel("log₁₀ ‖y‖₂, largest token (a.u.)")
    looks = {"normal": "ran to its end", "failing": "ended non-finite"}
    fig.legend(handles=[Line2D([], [], label=v, **_ending(k)) for k, v in looks.items()], loc="outside upper right")
    notes = "residual stream, train mode, last finite step", "a line a run"
    return finish(fig, "How outputs grow with depth, in models that train", caption or seeds_of(frame), *notes)


def _ending(phase: str) -> dict:
    """The line of a run that ended so: without a number, dashed where it failed."""
    return dict(color=PHASES[phase], linewidth=1.2, linestyle="--" if phase == "failing" else "-")


@styled
def fig_singular_values(
    phases: dict[str, np.ndarray],
    control: np.ndarray | None = None,
    mp: tuple[float, float] | None = None,
    caption: str = "",
) -> Figure:
    """Figure 10: sorted singular values of out_proj, a panel a layer (at most six), a line a phase of one run.

    phases: early, normal, failing → (layers, k); control: a normalized run at the failing step, same shape; mp: the
    Marchenko–Pastur edges at initialisation (`diagnostics.marchenko_pastur`).
    """
    layers = next(iter(phases.values())).shape[0]
    shown = some_of(layers, FEW)
    fig, axes = new_figure(1, len(shown), height=3.6, sharey=True)
    for ax, layer in zip(axes[0], shown, strict=True):
        for i, (phase, sigma) in enumerate(phases.items()):
            _spectrum(ax, sigma[layer], i, label=phase, **_phase_line(phase, i))
        if control is not None:
            _spectrum(ax, control[layer], 0, label="control, normalized", color=GREY, linestyle="--", linewidth=1.2)
        for edge in mp or ():
            ax.axhline(edge, color=GREY, linewidth=0.9, linestyle=":", zorder=1)
        ax.set(title=f"block {layer + 1}", xlabel="index")
        whole_ticks(ax)
    log_axis(axes[0, 0])
    axes[0, 0].set_ylabel("singular value of out_proj (a.u.)")
    handles = dict(zip(*reversed(axes[0, 0].get_legend_handles_labels()), strict=True))
    fig.legend(handles.values(), handles, loc="outside upper right", ncols=len(handles))
    edges = "dotted: Marchenko–Pastur edges at initialisation" if mp else ""
    return finish(fig, "Singular values", caption or ONE_RUN, f"{len(shown)} of {layers} blocks", edges)


def _phase_line(phase: str, i: int) -> dict:
    """Colour, dash and width of the phase that comes as number i."""
    look = dict(color=SPARE_COLOURS[i % len(SPARE_COLOURS)], linestyle=DASHES[i % len(DASHES)], linewidth=1.6)
    return look | PHASE_LINES[phase] | dict(color=PHASES[phase]) if phase in PHASES else look


def _spectrum(ax: Axes, sigma: np.ndarray, line: int, **style) -> None:
    """Sorted singular values; words in its colour where the weight is not finite."""
    ax.plot(np.arange(1, len(sigma) + 1), np.sort(sigma)[::-1], **style)
    if not np.isfinite(sigma).any():
        text = f"{style['label']}: non-finite"
        ax.text(0.96, 0.95 - 0.07 * line, text, transform=ax.transAxes, ha="right", fontsize=7.5, color=style["color"])
