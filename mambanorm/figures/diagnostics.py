"""Diagnostic figures: norms by depth (Figure 9), singular values (Figure 10), weights by depth (Appendix B), and what
NormVary mixes.

The inputs are `look.token_norms` frames and `StoredRun.diagnostics` arrays (see `WeightLog.arrays`); `caption`
says scale and seeds (`tables.describe_frame`), which the arrays do not hold. Without it the caption says "1 seed: a
sketch". Depth counts blocks from 1. Norms and singular values have no unit: their axes are in arbitrary units (a.u.).
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mambanorm.basics.errors import unknown
from mambanorm.figures.colours import COMBINATION, DASHES, GREY, INK, NO_NORM, SPARE_COLOURS, norm_colour, norm_marker
from mambanorm.figures.style import ONE_RUN, finish, log_axis, new_figure, seeds_of, short, some_of, styled, whole_ticks
from mambanorm.look import BLOCK_PARTS, norm_quantiles
from mambanorm.norms.normvary import NormVary
from mambanorm.study.tables import check_frame

PHASES = {"early": "#3E7D7A", "normal": COMBINATION, "failing": NO_NORM}
PHASE_LINES = {"early": dict(linestyle="-."), "normal": dict(linewidth=1.2), "failing": dict(linewidth=2.4)}
FEW = 6  # panels of layers in one row

TOKENS = {"median": dict(color=INK, linewidth=1.6), "largest": dict(color="#5D5FA8", linewidth=1.6, linestyle="--")}


@styled
def fig_token_norms(frame: pd.DataFrame, *, phase: str = "trained", caption: str = "") -> Figure:
    """Figure 9: log₁₀ ‖y‖₂ of the median and of the largest token after each block, in train mode; a panel an arm, a
    cross where a block holds tokens that are not finite.

    Input: the frame of `look.norms_by_depth`, of one task and one depth of model. ValueError for another, and
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

    Input: rows of a run frame, and by run id `ring_outputs` (R, layers).
    """
    frame = frame[[("ring_outputs" in inside.get(run_id, ())) for run_id in frame.run_id]]
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
    axes[0, 0].set_ylabel("largest token,\nlog₁₀ ‖y‖₂ (a.u.)")
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
    Marchenko–Pastur edges at initialisation (`look.marchenko_pastur`).
    """
    layers = next(iter(phases.values())).shape[0]
    shown = some_of(layers, FEW)
    fig, axes = new_figure(1, len(shown), height=3.6, sharey=True)
    for ax, layer in zip(axes[0], shown, strict=True):
        for i, (phase, sigma) in enumerate(phases.items()):
            look = dict(color=SPARE_COLOURS[i % len(SPARE_COLOURS)], linestyle=DASHES[i % len(DASHES)], linewidth=1.6)
            look |= PHASE_LINES[phase] | dict(color=PHASES[phase]) if phase in PHASES else {}
            _spectrum(ax, sigma[layer], i, label=phase, **look)
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


def _spectrum(ax: Axes, sigma: np.ndarray, line: int, **style) -> None:
    """Sorted singular values; words in its colour where the weight is not finite."""
    ax.plot(np.arange(1, len(sigma) + 1), np.sort(sigma)[::-1], **style)
    if not np.isfinite(sigma).any():
        text = f"{style['label']}: non-finite"
        ax.text(0.96, 0.95 - 0.07 * line, text, transform=ax.transAxes, ha="right", fontsize=7.5, color=style["color"])


# what was learned


@styled
def fig_part_norms(arrays_by_arm: dict[str, dict[str, np.ndarray]], caption: str = "") -> Figure:
    """Appendix B: by how much the L2 norm of in_proj, conv1d, SSM and out_proj has grown since the first snapshot, by
    depth; a panel an arm.

    Input: arm → arrays with `step` (T,) and `part_norms` (T, layers, 4).
    """
    fig, axes = new_figure(1, len(arrays_by_arm), height=3.2, sharey=True)
    for ax, (label, arrays) in zip(axes[0], arrays_by_arm.items(), strict=True):
        grown = arrays["part_norms"][-1] / arrays["part_norms"][0]  # (layers, 4)
        for name, factor, dash, marker in zip(BLOCK_PARTS, grown.T, DASHES[3::-1], "osD^", strict=True):
            look = dict(color=INK if name == "out_proj" else GREY, marker=marker, markersize=4, linestyle=dash)
            ax.plot(np.arange(1, len(factor) + 1), factor, label=name, **look)
        ax.set(title=short(label), xlabel="block")
        whole_ticks(ax)
    axes[0, 0].set_ylabel("L2 norm, last ÷ first")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=len(BLOCK_PARTS))
    since = f"last snapshot over step {next(iter(arrays_by_arm.values()))['step'][0]}"
    return finish(fig, "How the weights have grown, by depth", caption or ONE_RUN, f"{since}, 1: unchanged")


MEMBERS = {name: f"{name}-DL" if name in ("LN", "RMSN") else name for name in NormVary.members}
"""NormVary's members → how the registry names their statistics (Eq. 11–12 are over D·L)."""


@styled
def fig_mixture(arrays_by_label: dict[str, dict[str, np.ndarray]], caption: str = "") -> Figure:
    """NormVary's learned weights over training: a column a norm by depth, rows for means and variances; one dash a
    label. Input: `step` (T,) and `mixture` (T, norms, 2, 5). ValueError if a run has no learned mixture."""
    if lacking := [label for label, arrays in arrays_by_label.items() if "mixture" not in arrays]:
        raise ValueError(f"run {lacking[0]!r} holds no mixture: only NormVary has one")
    dashes = dict(zip(arrays_by_label, DASHES * len(arrays_by_label), strict=False))
    # LN-DL's line is wide: where the mean over the channels is near zero, RMSN-DL's, drawn later, lies on it
    looks = {
        name: dict(
            color=norm_colour(name), linewidth=4.0 if member == "LN" else 1.4, marker=norm_marker(name), markersize=4.5
        )
        for member, name in MEMBERS.items()
    }
    widest = max(arrays_by_label.values(), key=lambda arrays: arrays["mixture"].shape[1])
    norms = widest["mixture"].shape[1]
    shown, layers = some_of(norms, 6), widest["part_norms"].shape[1] if "part_norms" in widest else norms
    per_block = max(norms // layers, 1)
    fig, axes = new_figure(2, len(shown), height=4.6, sharex=True, sharey=True)
    for column, norm in enumerate(shown):
        site = f", N{norm % per_block + 1}" if per_block > 1 else ""  # where both sites of a block mix
        axes[0, column].set_title(f"block {norm // per_block + 1}{site}", color=INK)
        axes[1, column].set_xlabel("step")
        whole_ticks(axes[1, column])
        for row, part in enumerate(("mean", "variance")):
            axes[row, column].axhline(0.2, color=GREY, linewidth=0.9, linestyle=(0, (2, 2)))
            axes[row, 0].set_ylabel(f"weight of the {part}")
            for label, arrays in arrays_by_label.items():
                steps, weights = arrays["step"], arrays["mixture"][:, norm : norm + 1, row]
                for line, look in zip(weights.T, looks.values(), strict=True):
                    every = max(1, len(steps) // 6)
                    axes[row, column].plot(steps, line.T, linestyle=dashes[label], markevery=every, **look)
    handles = [Line2D([], [], label=name, **look) for name, look in looks.items()]
    if len(dashes) > 1:
        handles += [Line2D([], [], color=INK, linestyle=dash, label=short(label)) for label, dash in dashes.items()]
    fig.legend(handles=handles, loc="outside right center")
    notes = (
        "dotted: uniform, 0.2",
        "wide: LN-DL, on which RMSN-DL may lie",
        "RMSN-DL has no mean: its weight there stands for zero",
    )
    return finish(fig, "What NormVary mixes", caption or ONE_RUN, *notes)
