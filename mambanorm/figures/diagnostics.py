"""Diagnostic figures: norms by depth (Figure 9), singular values (Figure 10), weights by depth (Appendix B), and what
NormVary mixes.

The inputs are `diagnostics.token_norms` frames and `StoredRun.diagnostics` arrays (see `WeightLog.arrays`); `caption`
says scale and seeds (`tables.describe_frame`), which the arrays do not hold. Without it the caption says "1 seed: a
sketch". Depth counts blocks from 1. Norms and singular values have no unit: their axes are in arbitrary units (a.u.).
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from mambanorm.basics.errors import unknown
from mambanorm.diagnostics import BLOCK_PARTS, norm_quantiles
from mambanorm.figures.colours import DASHES, GREY, INK, SPARE_COLOURS, arm_styles, norm_colour, norm_marker
from mambanorm.figures.style import ONE_RUN, finish, log_axis, new_figure, seeds_of, short, some_of, styled, whole_ticks
from mambanorm.norms.normvary import NormVary
from mambanorm.study.tables import check_frame

PHASES = {"early": "#2E9E5B", "normal": "#2F6DB5", "failing": "#C8443C"}
PHASE_LINES = {"early": dict(linestyle="-."), "normal": dict(linewidth=1.2), "failing": dict(linewidth=2.4)}
FEW = 6  # panels of layers in one row

MODES = {"train": "#2F6DB5", "eval": "#D55E00"}
MODE_WIDTHS = {"train": 1.8, "eval": 0.9}  # where the modes coincide, the thin line lies in the thick one
QUANTILE_LINES = {"median": "-", "90 %": "--", "99.9 %": "-.", "largest": ":"}
"""The columns of `diagnostics.norm_quantiles` that Figure 9 shows."""
FAR = 5.0  # decades


@styled
def fig_token_norms(
    frame: pd.DataFrame, *, phase: str = "trained", sites: Sequence[str] | None = None, caption: str = ""
) -> Figure:
    """Figure 9: log10 ‖y‖₂ per token by depth, a column an arm, a row a site, colours train and eval mode.

    Lines: median, 90 %, 99.9 % and the largest token (`diagnostics.norm_quantiles`), band: all finite tokens. Input:
    the frame of `diagnostics.norms_by_depth`, phase initial or trained, of which the deepest models are drawn. sites
    None = those of the frame. ValueError for an unknown phase and for a frame of several tasks.
    """
    check_frame(frame, ("arm", "mode", "phase", "n_layers", "depth", "site", "l2"))
    if phase not in frame.phase.unique():  # a token a row: Python must not go through them
        raise unknown("phase of this frame", phase, frame.phase.unique())
    frame = frame[(frame.phase == phase) & (frame.n_layers == frame.n_layers.max())]
    if "task" in frame and frame.task.nunique() > 1:
        raise ValueError(f"the frame holds the tasks {', '.join(frame.task.unique())}: draw one at a time")
    sites = list(frame.site.unique()) if sites is None else sites
    depth, arms = int(frame.n_layers.iloc[0]), list(frame.arm.unique())
    fig, axes = new_figure(len(sites), len(arms), height=1.6 + 1.5 * len(sites), sharex=True, sharey="row")
    for column, arm in enumerate(arms):
        axes[0, column].set_title(short(arm), color=INK)
        axes[-1, column].set_xlabel("block")
        for row, site in enumerate(sites):
            tokens = frame[(frame.arm == arm) & (frame.site == site)]
            _depth_lines(axes[row, column], tokens)
            axes[row, 0].set_ylabel(f"{site}: log₁₀ ‖y‖₂ (a.u.)")
        whole_ticks(axes[-1, column])
        axes[-1, column].set_xlim(0.5, depth + 0.5)
    for row in axes:
        _keep_readable(row)
    modes = [mode for mode in MODES if mode in frame["mode"].unique()]
    handles = [Line2D([], [], color=MODES[m], linewidth=MODE_WIDTHS[m], label=f"{m} mode") for m in modes]
    handles += [Line2D([], [], color=INK, label=name, linestyle=dash) for name, dash in QUANTILE_LINES.items()]
    fig.legend(handles=handles, loc="outside upper right", ncols=len(handles))
    notes = (f"{phase}, {depth} blocks", "lines over tokens, band: every finite token, cross: non-finite tokens")
    task = f", {frame.task.iloc[0]}" if "task" in frame else ""
    return finish(fig, f"How outputs grow with depth{task}", caption or seeds_of(frame), *notes)


def _depth_lines(ax: Axes, tokens: pd.DataFrame) -> None:
    """Quantiles and range of all tokens by depth, for each mode; a cross where a block holds non-finite values."""
    for mode, rows in tokens.groupby("mode", sort=False):
        colour, side = MODES.get(mode, INK), {"train": -0.12, "eval": 0.12}.get(mode, 0)
        finite = rows[np.isfinite(rows.l2) & (rows.l2 > 0)].groupby("depth").l2.agg(["min", "max"])
        ax.fill_between(finite.index, *np.log10(finite.to_numpy().T), color=colour, alpha=0.1, linewidth=0)
        norms = norm_quantiles(rows)
        logs = np.log10(norms.where((norms > 0) & np.isfinite(norms)))  # a gap where there is no logarithm
        for name, dash in QUANTILE_LINES.items():
            width = MODE_WIDTHS.get(mode, 1.5)
            ax.plot(logs.index, logs[name], color=colour, linestyle=dash, linewidth=width, zorder=3)
        lost = norms.index[norms.nonfinite > 0]
        ax.plot(lost + side, np.full(len(lost), 0.96), "X", ms=6, color=colour, transform=ax.get_xaxis_transform())


def _keep_readable(axes: Sequence[Axes]) -> None:
    """Keeps one panel from squashing the others. Where it reaches beyond them by more than FAR and more than their
    height, the shared axis is cut, and words in the panel say how far it goes on."""
    lows, highs = np.sort([ax.dataLim.intervaly for ax in axes], axis=0).T
    if len(axes) < 3 or not np.isfinite([lows[1], highs[-2]]).all():
        return
    height, (bottom, top) = highs[-2] - lows[1], axes[0].get_ylim()
    top = highs[-2] + 0.25 * height if highs[-1] > highs[-2] + max(height, FAR) else top
    bottom = lows[1] - 0.25 * height if lows[0] < lows[1] - max(height, FAR) else bottom
    for ax in axes:
        low, high = ax.dataLim.intervaly
        words = dict(transform=ax.transAxes, fontsize=7.5, color=INK)
        if high > top:
            ax.text(0.03, 0.98, f"up to {high:.1f}", va="top", **words)
        if low < bottom:
            ax.text(0.03, 0.02, f"down to {low:.1f}", va="bottom", **words)
    axes[0].set_ylim(bottom, top)


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


@styled
def fig_sigma1(
    steps: np.ndarray,
    sigma: np.ndarray,
    *,
    control: np.ndarray | None = None,
    control_steps: np.ndarray | None = None,
    failure: int | None = None,
    caption: str = "",
) -> Figure:
    """The largest singular value σ₁ of out_proj over steps, a line a block, light = shallow, dark = deep. A dot marks
    each step whose weights were kept; the line between two dots is a guess.

    sigma: (T, layers) at `steps` (T,); control: the same at `control_steps` (None = `steps`); failure: the first
    non-finite step.
    """
    control_steps = steps if control_steps is None else control_steps
    fig, axes = new_figure(height=3.8)
    ax, layers = axes[0, 0], sigma.shape[1]
    shade = ScalarMappable(Normalize(1, max(layers, 2)), "viridis_r")
    for layer in range(layers):
        line = dict(color=shade.to_rgba(layer + 1), marker="o", markersize=2.4)
        ax.plot(steps, sigma[:, layer], linewidth=1.3, **line)
        if control is not None and layer in (0, layers - 1):
            ax.plot(control_steps, control[:, layer], linewidth=1.1, linestyle="--", **line)
    if failure is not None:
        ax.axvline(failure, color=PHASES["failing"], linewidth=1.1, linestyle=":")
        where = dict(transform=ax.get_xaxis_transform(), va="bottom", fontsize=8, color=PHASES["failing"])
        ax.text(failure, 1.01, f"non-finite at step {failure}", ha="right", **where)
    ax.set(xlabel="step", ylabel="σ₁ of out_proj (a.u.)")
    log_axis(ax)
    whole_ticks(ax)
    fig.colorbar(shade, ax=ax, label="block", pad=0.02, ticks=MaxNLocator(integer=True)).outline.set_visible(False)
    dashed = "dashed: the normalized control, first and last block" if control is not None else ""
    notes = (dashed, "dots: steps kept, lines between them: guesses")
    return finish(fig, "The largest singular value, block by block", caption or ONE_RUN, *notes)


# what was learned


@styled
def fig_part_norms(arrays_by_arm: dict[str, dict[str, np.ndarray]], caption: str = "") -> Figure:
    """Appendix B: L2 norm of in_proj, conv1d, SSM and out_proj by depth; a line an arm, faint: the first snapshot.

    Input: arm → arrays with `step` (T,) and `part_norms` (T, layers, 4).
    """
    fig, axes = new_figure(1, len(BLOCK_PARTS), height=3.2)
    for part, (ax, name) in enumerate(zip(axes[0], BLOCK_PARTS, strict=True)):
        for label, style in _colours_apart(arm_styles(list(arrays_by_arm))).items():
            norms = arrays_by_arm[label]["part_norms"][:, :, part]
            blocks = np.arange(1, norms.shape[1] + 1)
            ax.plot(blocks, norms[0], alpha=0.35, linewidth=1.2, **style)
            ax.plot(blocks, norms[-1], linewidth=1.5, label=short(label), **style)
        ax.set(title=name, xlabel="block", ylabel="L2 norm (a.u.)")
        whole_ticks(ax)
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center")
    steps = next(iter(arrays_by_arm.values()))["step"]
    return finish(fig, "Weights by depth", caption or ONE_RUN, f"faint: step {steps[0]}, full colour: last snapshot")


def _colours_apart(styles: dict[str, dict]) -> dict[str, dict]:
    """Gives arms that share a norm's colour different colours: dashes cannot be told apart in a zigzag over blocks."""
    spare, used, apart = iter(SPARE_COLOURS[3:] + SPARE_COLOURS[1:3]), set(), {}
    for label, style in styles.items():
        colour = style["color"] if style["color"] not in used else next(spare, style["color"])
        apart[label] = style | {"color": colour}
        used.add(colour)
    return apart


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
