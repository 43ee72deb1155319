"""Line plots over steps, learning rates, batch sizes, severities and the blocks of a model.

The last are the paper's Figures 9 and 10 and Appendix B. `caption` gives scale and seeds
(`tables.describe_frame`) where the data do not hold them. Norms and singular values have no unit:
their axes are in arbitrary units (a.u.).
"""

import textwrap
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mambanorm.errors import unknown
from mambanorm.norms.normvary import NormVary
from mambanorm_study.figures.colours import (
    COMBINATION,
    DASHES,
    GREY,
    INDIGO,
    INK,
    NO_NORM,
    TEAL,
    arm_styles,
    norm_colour,
    norm_marker,
)
from mambanorm_study.figures.style import (
    ONE_RUN,
    finish,
    log_axis,
    new_figure,
    panel_grid,
    seeds_note,
    short,
    sns,
    some_of,
    styled,
    whole_ticks,
)
from mambanorm_study.runs.weight_log import BLOCK_PARTS
from mambanorm_study.tables.growth import norm_quantiles
from mambanorm_study.tables.intervals import t_interval
from mambanorm_study.tables.tables import check_frame

# A column, or the name of a panel → the label of its axis.
NAMES = {
    "accuracy": "test accuracy (%)",
    "train_accuracy": "training accuracy (%)",
    "error": "test error (RMSE)",
    "batch": "training batch, rows",
    "lr": "learning rate",
    "depth": "layers",
    "noise": "standard deviation, × that of the inputs",
    "rotation": "largest angle, degrees",
}
# The caption of the bands around the means → seaborn's `errorbar`.
BANDS = {"": None, "95 % t-intervals": t_interval, "worst to best seed": ("pi", 100)}
ENDED = {
    "ran to its end": dict(color=COMBINATION),
    "ended non-finite": dict(color=NO_NORM, linestyle="--"),
}
WINDOW = 5  # steps of the running mean in `fig_mistakes`
PHASES = {
    "early": dict(color=TEAL, linestyle="-."),
    "normal": dict(color=COMBINATION, linestyle="--", linewidth=1.2),
    "failing": dict(color=NO_NORM, linestyle=":", linewidth=2.4),
    "last": dict(color=NO_NORM, linestyle=":", linewidth=2.4),
    "control, normalized": dict(color=GREY, linestyle="--", linewidth=1.8),
}
# NormVary's members as the registry names their statistics (those of Eq. 11–12 are over D·L).
MEMBERS = [f"{name}-DL" if name in ("LN", "RMSN") else name for name in NormVary.members]


def line_panels(
    frame: pd.DataFrame,
    x: str,
    y: str,
    by: str,
    looks: Mapping[str, dict] | None = None,
    *,
    panel: str = "",
    across: int = 9,
    row: float = 3.1,
    legend: str = "outside upper right",
    sharex: bool = True,
    dots: bool = False,
    **how,
):
    """Return a figure and its axes, one panel for each value of the column `panel`.

    A panel has one line for each value of `by`. looks: value of `by` → line style; None = styles of
    arms. dots: draw a small dot for each row. Keywords go to `seaborn.lineplot`.
    """
    panels = dict(list(frame.groupby(panel, sort=False))) if panel else {"": frame}
    looks = looks or arm_styles(list(dict.fromkeys(frame[by])))
    base = dict(markersize=4.5, linewidth=1.5)
    lines = {
        name: {**base, "markeredgecolor": look["color"], **look} for name, look in looks.items()
    }
    how = {"legend": False, "markevery": max(1, frame[x].nunique() // 6), **how}
    fig, axes = panel_grid(len(panels), across, row=row, sharex=sharex, sharey=True)
    for ax, (name, rows) in zip(axes, panels.items(), strict=True):
        ax.tick_params(labelbottom=True)  # seaborn hides the label of an axis without tick labels
        for value, look in lines.items():
            of_line = rows[rows[by] == value].dropna(subset=y)
            if len(of_line):
                sns.lineplot(of_line, x=x, y=y, ax=ax, **{**how, **look})
            if dots:
                ax.plot(of_line[x], of_line[y], ".", color=look["color"], alpha=0.4, markersize=4)
        title = short(name) if isinstance(name, str) else f"{NAMES.get(panel, panel)} {name}"
        ax.set(title=title, xlabel=x, ylabel=y if ax.get_subplotspec().is_first_col() else "")
        if frame[x].dtype == int:
            whole_ticks(ax)
    labels = ["no norm" if value == "None" else short(value) for value in lines]
    handles = [
        Line2D([], [], label=label, **look)
        for label, look in zip(labels, lines.values(), strict=True)
    ]
    fig.legend(handles=handles, loc=legend, ncols=1 if "center" in legend else len(handles))
    return fig, axes


@styled
def fig_over(
    frame: pd.DataFrame,
    x: str,
    by: str,
    title: str,
    *,
    value: str = "accuracy",
    panel: str = "",
    band: str = "",
    x_label: str = "",
    caption: str = "",
) -> Figure:
    """Return a value over x: one line through the means for each value of `by`, one dot a seed.

    panel: a column; each of its values has a panel. band: a key of BANDS, drawn around the lines.
    Batch sizes and learning rates have a logarithmic axis. A column `chance`, in per cent, is a
    dotted line.
    """
    check_frame(frame, (x, by, value))
    seeds = frame.seed.nunique() if "seed" in frame else 0
    is_log, ticks = x in ("batch", "lr"), sorted(frame[x].unique())
    bands = dict(errorbar=BANDS[band] if seeds > 1 else None, err_kws=dict(alpha=0.15, linewidth=0))
    how = dict(panel=panel, sharex=False, dots=seeds > 1, legend="outside right center", **bands)
    fig, axes = line_panels(frame, x, value, by, **how)
    for ax, name in zip(axes, frame[panel].unique() if panel else [x], strict=True):
        if is_log:
            ax.set_xscale("log")
        if len(ticks) < 9 and not panel:
            ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            ax.minorticks_off()
        if "chance" in frame:
            ax.axhline(frame.chance.mean(), color=GREY, linestyle=":", linewidth=1)
        label = NAMES.get(name, NAMES.get(x, x)) + " (log scale)" * is_log
        ax.set_xlabel(x_label or label)
    axes[0].set_ylabel(NAMES.get(value, value))
    return finish(
        fig,
        title,
        seeds_note(frame) if seeds else "",
        caption,
        "lines: means, dots: seeds" if seeds > 1 else "single runs" if seeds else "",
        f"bands: {band}" if band and seeds > 1 else "",
        "dotted: chance" if "chance" in frame else "",
    )


@styled
def fig_curves(curves: dict[str, pd.DataFrame], caption: str = "") -> Figure:
    """Return training loss and validation accuracy over the steps, one line a label.

    curves: label (usually an arm) → StoredRun.curves. A cross marks the end of a run that became
    non-finite. Losses are cut at 1.5 times the highest first loss.
    """
    fig, ((left, right),) = new_figure(1, 2, height=3.8)
    ceiling = 1.5 * np.nanmax([curve.train_loss.iloc[0] for curve in curves.values()])
    for label, style in arm_styles(list(curves)).items():
        curve, look = curves[label], {"linewidth": 1.4, "markersize": 4, **style}
        finite = curve[np.isfinite(curve.train_loss)]
        loss = finite.train_loss.clip(upper=ceiling).rolling(10, min_periods=1).mean()
        left.plot(finite.step, loss, markevery=max(1, len(loss) // 6), label=short(label), **look)
        last = curve.iloc[-1]
        if len(finite) and not np.isfinite([last.train_loss, last.get("grad_norm", 0.0)]).all():
            cross = dict(markersize=8, markeredgecolor=INK, zorder=5, clip_on=False)
            left.plot(finite.step.iloc[-1], loss.iloc[-1], "X", color=style["color"], **cross)
        validated = curve.dropna(subset="val_accuracy")
        right.plot(validated.step, 100 * validated.val_accuracy, **look)
    left.set(xlabel="step", ylabel="training loss (nats)")
    right.set(xlabel="step", ylabel="validation accuracy (%)")
    for ax in (left, right):
        whole_ticks(ax)
    fig.legend(*left.get_legend_handles_labels(), loc="outside right center")
    is_cut = any((curve.train_loss > ceiling).any() for curve in curves.values())
    notes = "loss: running mean over 10 steps", f"loss cut at {ceiling:.1f}" if is_cut else ""
    return finish(fig, "Learning curves", caption or ONE_RUN, *notes)


@styled
def fig_mistakes(
    runs: Mapping[int, pd.DataFrame], titles: Mapping[int, str], units: Mapping[int, str]
) -> Figure:
    """Return the training loss of the wrong and the right twin, one panel a mistake.

    The legends give the final measurements. runs: number → the frame of `advice.mistake_runs`.
    units: number → the unit of `measured`.
    """
    fig, axes = new_figure(1, len(runs), height=3.6)
    for ax, (number, frame) in zip(axes[0], runs.items(), strict=True):
        for twin, colour, line in (("wrong", NO_NORM, "--"), ("right", COMBINATION, "-")):
            _draw_twin(ax, frame[frame.twin == twin], color=colour, linestyle=line)
        ax.set_title(textwrap.fill(f"{number}. {titles[number]}", 26), fontsize=8.5)
        ax.set_xlabel("training step")
        log_axis(ax)
        small = dict(fontsize=7.5, title=units[number], title_fontsize=7.5)
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), **small)
    axes[0, 0].set_ylabel(f"training loss, mean of {WINDOW} steps (log)")
    every = pd.concat(runs.values())
    shows = "one line a seed" if every.seed.nunique() > 1 else "single runs"
    title = "Mistakes (dashed) beside their mended twins"
    return finish(fig, title, seeds_note(every), shows, "below: means of the tests")


def _draw_twin(ax: Axes, runs: pd.DataFrame, **line) -> None:
    losses = pd.DataFrame(runs.losses.tolist(), dtype=float).T
    losses = losses.rolling(WINDOW, min_periods=1).mean()
    ax.plot(losses.index + 1, losses, linewidth=1, alpha=0.8, **line)
    label = f"{runs.label.iloc[0]}: {runs.measured.mean():.3g}"
    ax.plot([], [], label=label, **line)


# the blocks of a model


@styled
def fig_token_norms(frame: pd.DataFrame, *, phase: str = "trained", caption: str = "") -> Figure:
    """Return Figure 9: log₁₀ ‖y‖₂ of the median and the largest token after each block.

    The norms are those of the residual stream in train mode; each arm has a panel. A line ends at a
    cross where a block holds tokens that are not finite. frame: `look.norms_by_depth` of one task
    and one number of layers. Raises ValueError for several of them, and for an unknown phase.
    """
    check_frame(frame, ("arm", "mode", "phase", "n_layers", "depth", "site", "l2"))
    if phase not in frame.phase.unique():
        raise unknown("phase of this frame", phase, frame.phase.unique())
    frame = frame[(frame.phase == phase) & (frame["mode"] == "train") & (frame.site == "residual")]
    for column in ("task", "n_layers"):
        values = frame[column].unique() if column in frame else []
        if len(values) > 1:
            raise ValueError(f"the frame holds {column} {', '.join(map(str, values))}: draw one")
    label = "log₁₀ ‖y‖₂ (a.u.)"
    norms = pd.concat(
        {arm: norm_quantiles(rows) for arm, rows in frame.groupby("arm", sort=False)},
        names=["arm", "block"],
    )
    logs = np.log10(norms[["median", "largest"]].where(lambda n: (n > 0) & np.isfinite(n)))
    long = logs.reset_index().melt(["arm", "block"], var_name="token", value_name=label)
    looks = {"median": dict(color=INK), "largest": dict(color=INDIGO, linestyle="--")}
    fig, axes = line_panels(long, "block", label, "token", looks, panel="arm")
    for ax, arm in zip(axes, frame.arm.unique(), strict=True):
        blocks = norms.loc[arm].query("nonfinite > 0").index
        at_top = dict(transform=ax.get_xaxis_transform())
        ax.plot(blocks, np.full(len(blocks), 0.96), "X", color=NO_NORM, **at_top)
    task = f", {frame.task.iloc[0]}" if "task" in frame else ""
    return finish(
        fig,
        f"The median and the largest token{task}",
        caption or seeds_note(frame),
        f"{phase}, {frame.n_layers.iloc[0]} blocks",
        "residual stream, train mode",
        "cross: tokens not finite",
    )


@styled
def fig_outputs(
    frame: pd.DataFrame, inside: Mapping[str, Mapping[str, np.ndarray]], caption: str = ""
) -> Figure:
    """Return Figure 9 at the end of training: log₁₀ ‖y‖₂ of the largest token after each block.

    The norms are those of a run's last finite step in train mode. Each arm has a panel and each run
    a line, which is red and dashed if the run ended non-finite. frame: rows of a run frame. inside:
    run_id → `ring_outputs` (R, layers).
    """
    frame = frame[[("ring_outputs" in inside.get(run_id, ())) for run_id in frame.run_id]]
    label = "largest token,\nlog₁₀ ‖y‖₂ (a.u.)"
    failed = frame.status == "diverged"
    long = frame.assign(
        **{label: [np.log10(inside[run_id]["ring_outputs"][-1]) for run_id in frame.run_id]}
    )
    finite_end, failed_end = ENDED
    long["ended"] = np.where(failed, failed_end, finite_end)
    counts = failed.groupby(frame.arm).agg(lambda lost: f"{lost.sum()} of {len(lost)} failed")
    long["panel"] = frame.arm.map(short) + ": " + frame.arm.map(counts)
    long = long.explode(label, ignore_index=True).astype({label: float})
    long["block"] = long.groupby("run_id").cumcount() + 1
    how = dict(panel="panel", units="run_id", estimator=None, alpha=0.75)
    fig, _ = line_panels(long, "block", label, "ended", ENDED, **how)
    title = "How outputs grow with depth, in models that train"
    notes = "residual stream, train mode, last finite step", "a line a run"
    return finish(fig, title, caption or seeds_note(frame), *notes)


@styled
def fig_singular_values(
    phases: dict[str, np.ndarray],
    control: np.ndarray | None = None,
    mp: tuple[float, float] | None = None,
    caption: str = "",
) -> Figure:
    """Return Figure 10: sorted singular values of out_proj, one panel a layer (at most six).

    A phase of the run has a line, unless a weight is not finite. phases: early, normal, failing (or
    last) → (layers, k). control: a normalized run at the failing step, same shape. mp: the
    Marchenko–Pastur edges at initialisation (`look.marchenko_pastur`).
    """
    every = phases if control is None else {**phases, "control, normalized": control}
    layers, label = len(next(iter(phases.values()))), "singular value of out_proj (a.u.)"
    rows = [
        {"block": f"block {layer + 1}", "phase": phase, "index": i, label: value}
        for layer in some_of(layers, 6)
        for phase, sigma in every.items()
        for i, value in enumerate(np.sort(sigma[layer])[::-1], start=1)
    ]
    looks = {phase: PHASES[phase] for phase in every}
    long = pd.DataFrame(rows)
    fig, axes = line_panels(long, "index", label, "phase", looks, panel="block", row=3.6)
    for ax in axes:
        for edge in mp or ():
            ax.axhline(edge, color=GREY, linewidth=0.9, linestyle=":", zorder=1)
    log_axis(axes[0])
    is_finite = np.isfinite(list(every.values())).all()
    return finish(
        fig,
        "Singular values",
        caption or ONE_RUN,
        f"{len(axes)} of {layers} blocks",
        "dotted: Marchenko–Pastur edges at initialisation" if mp else "",
        "" if is_finite else "no line: not finite",
    )


@styled
def fig_part_norms(arrays_by_arm: dict[str, dict[str, np.ndarray]], caption: str = "") -> Figure:
    """Return Appendix B: growth of the L2 norms of a block's parts, by depth, one panel an arm.

    The growth is the last snapshot over the first. arrays_by_arm: arm → `step` (T,) and
    `part_norms` (T, layers, 4) of in_proj, conv1d, SSM and out_proj.
    """
    label = "L2 norm, last ÷ first"
    rows = [
        {"arm": arm, "block": block, "part": part, label: factor}
        for arm, arrays in arrays_by_arm.items()
        for block, factors in enumerate(arrays["part_norms"][-1] / arrays["part_norms"][0], start=1)
        for part, factor in zip(BLOCK_PARTS, factors, strict=True)
    ]
    looks = {
        part: dict(color=INK if part == "out_proj" else GREY, marker=marker, linestyle=dash)
        for part, marker, dash in zip(BLOCK_PARTS, "osD^", DASHES[3::-1], strict=True)
    }
    long = pd.DataFrame(rows)
    fig, _ = line_panels(long, "block", label, "part", looks, panel="arm", markevery=1)
    first_step = next(iter(arrays_by_arm.values()))["step"][0]
    note = f"last snapshot over step {first_step}, 1: unchanged"
    return finish(fig, "How the weights have grown, by depth", caption or ONE_RUN, note)


@styled
def fig_mixture(arrays: dict[str, np.ndarray], caption: str = "") -> Figure:
    """Return NormVary's learned weights over training, one column a norm by depth (at most six).

    The rows are means and variances. arrays: `step` (T,) and `mixture` (T, norms, 2, 5). Raises
    ValueError if the run has no learned mixture.
    """
    if "mixture" not in arrays:
        raise ValueError("the run holds no mixture: only NormVary has one")
    norms = arrays["mixture"].shape[1]
    per_block = max(norms // arrays["part_norms"].shape[1], 1) if "part_norms" in arrays else 1
    shown = some_of(norms, 6)
    rows = [
        dict(panel=(part, norm), step=step, member=member, weight=weight)
        for part in range(2)
        for norm in shown
        for step, weights in zip(arrays["step"], arrays["mixture"][:, norm, part], strict=True)
        for member, weight in zip(MEMBERS, weights, strict=True)
    ]
    looks = {
        name: dict(color=norm_colour(name), marker=norm_marker(name), linewidth=1.4)
        for name in MEMBERS
    }
    # RMSN-DL's line, drawn later, covers it where the mean over the channels is near zero
    looks["LN-DL"]["linewidth"] = 4.0
    how = dict(panel="panel", across=len(shown), row=2.3, legend="outside right center")
    fig, axes = line_panels(pd.DataFrame(rows), "step", "weight", "member", looks, **how)
    for ax in axes:
        ax.set_title("")
        ax.axhline(0.2, color=GREY, linewidth=0.9, linestyle=(0, (2, 2)))
    for ax, norm in zip(axes, shown, strict=False):
        site = f", N{norm % per_block + 1}" if per_block > 1 else ""  # both sites of a block mix
        ax.set_title(f"block {norm // per_block + 1}{site}")
    axes[0].set_ylabel("weight of the mean")
    axes[len(shown)].set_ylabel("weight of the variance")
    notes = (
        "dotted: uniform, 0.2",
        "wide: LN-DL, on which RMSN-DL may lie",
        "RMSN-DL has no mean: its weight there is that of a mean of zero",
    )
    return finish(fig, "What NormVary mixes", caption or ONE_RUN, *notes)
