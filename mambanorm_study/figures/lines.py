"""Lines over anything: steps, learning rates, batch sizes, severities, the blocks of a model (the
paper's Figures 9 and 10, Appendix B). Nothing here trains.

`caption` says scale and seeds (`tables.describe_frame`) where the data do not hold them. Norms and
singular values have no unit: their axes are in arbitrary units (a.u.).
"""

import textwrap
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mambanorm.errors import unknown
from mambanorm.norms.normvary import NormVary
from mambanorm_study.figures.colours import (
    COMBINATION,
    DASHES,
    GREY,
    INK,
    NO_NORM,
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
    seeds_of,
    short,
    sns,
    some_of,
    styled,
    whole_ticks,
)
from mambanorm_study.runs.weight_log import BLOCK_PARTS
from mambanorm_study.tables.growth import norm_quantiles
from mambanorm_study.tables.intervals import t_interval
from mambanorm_study.tables.run_tables import check_frame

ENDED = {
    "ran to its end": dict(color=COMBINATION),
    "ended non-finite": dict(color=NO_NORM, linestyle="--"),
}


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
    """A figure and its axes: a panel for each value of the column `panel`, in it a line for each
    value of `by`, drawn as its entry of `looks` says (by default as an arm's). `dots`: a small one
    for each row. Keywords go to `seaborn.lineplot`."""
    panels = dict(list(frame.groupby(panel, sort=False))) if panel else {"": frame}
    looks = looks or arm_styles(list(dict.fromkeys(frame[by])))
    lines = {
        name: dict(markersize=4.5, linewidth=1.5, markeredgecolor=look["color"]) | look
        for name, look in looks.items()
    }
    how = dict(legend=False, markevery=max(1, frame[x].nunique() // 6)) | how
    fig, axes = panel_grid(len(panels), across, row=row, sharex=sharex, sharey=True)
    for ax, (name, here) in zip(axes, panels.items(), strict=True):
        ax.tick_params(labelbottom=True)  # seaborn hides the label of an axis without
        for one, look in lines.items():
            mine = here[here[by] == one].dropna(subset=y)
            if len(mine):
                sns.lineplot(mine, x=x, y=y, ax=ax, **how | look)
            if dots:
                ax.plot(mine[x], mine[y], ".", color=look["color"], alpha=0.4, markersize=4)
        title = short(name) if isinstance(name, str) else f"{NAMES.get(panel, panel)} {name}"
        ax.set(title=title, xlabel=x, ylabel=y if ax.get_subplotspec().is_first_col() else "")
        if frame[x].dtype == int:
            whole_ticks(ax)
    handles = [
        Line2D([], [], label="no norm" if one == "None" else short(one), **look)
        for one, look in lines.items()
    ]
    fig.legend(handles=handles, loc=legend, ncols=1 if "center" in legend else len(handles))
    return fig, axes


NAMES = {
    "accuracy": "test accuracy (%)", "train_accuracy": "training accuracy (%)", "error": "test error (RMSE)",
    "batch": "training batch, rows", "lr": "learning rate", "depth": "layers",
    "noise": "standard deviation, × that of the inputs", "rotation": "largest angle, degrees",
}  # fmt: skip
"""A column, or what a panel shows → the words on its axis."""
BANDS = {"": None, "95 % t-intervals": t_interval, "worst to best seed": ("pi", 100)}
"""What a caption says of bands around the means → seaborn's `errorbar`."""


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
    """A value over x: a line through the means for each value of the column `by`, a dot a seed, a
    panel for each value of the column `panel`, around the lines a band of BANDS; batch sizes and
    rates on a logarithmic axis. A column `chance`, in per cent, is a dotted line."""
    check_frame(frame, (x, by, value))
    seeds, log, ticks = (
        frame.seed.nunique() if "seed" in frame else 0,
        x in ("batch", "lr"),
        sorted(frame[x].unique()),
    )
    how = dict(panel=panel, sharex=False, dots=seeds > 1, legend="outside right center")
    how |= dict(errorbar=BANDS[band] if seeds > 1 else None, err_kws=dict(alpha=0.15, linewidth=0))
    fig, axes = line_panels(frame, x, value, by, **how)
    for ax, name in zip(axes, frame[panel].unique() if panel else [x], strict=True):
        if log:
            ax.set_xscale("log")
        if len(ticks) < 9 and not panel:
            ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            ax.minorticks_off()
        if "chance" in frame:
            ax.axhline(frame.chance.mean(), color=GREY, linestyle=":", linewidth=1)
        ax.set_xlabel(x_label or NAMES.get(name, NAMES.get(x, x)) + " (log scale)" * log)
    axes[0].set_ylabel(NAMES.get(value, value))
    shows = "lines: means, dots: seeds" if seeds > 1 else "single runs" if seeds else ""
    marks = (
        f"bands: {band}" if band and seeds > 1 else "",
        "dotted: chance" if "chance" in frame else "",
    )
    return finish(fig, title, seeds_of(frame) if seeds else "", caption, shows, *marks)


@styled
def fig_curves(curves: dict[str, pd.DataFrame], caption: str = "") -> Figure:
    """Training loss and validation accuracy against steps, one line a label (an arm, as a rule); a
    cross marks where a run ended non-finite, and losses are cut at 1.5 times the highest first one.
    `curves` holds StoredRun.curves."""
    fig, ((left, right),) = new_figure(1, 2, height=3.8)
    ceiling = 1.5 * np.nanmax([curve.train_loss.iloc[0] for curve in curves.values()])
    for label, style in arm_styles(list(curves)).items():
        curve, look = curves[label], dict(linewidth=1.4, markersize=4) | style
        finite = curve[np.isfinite(curve.train_loss)]
        loss = finite.train_loss.clip(upper=ceiling).rolling(10, min_periods=1).mean()
        left.plot(finite.step, loss, markevery=max(1, len(loss) // 6), label=short(label), **look)
        last = curve.iloc[-1]
        if len(finite) and not np.isfinite([last.train_loss, last.get("grad_norm", 0.0)]).all():
            cross = dict(markersize=8, markeredgecolor=INK, zorder=5, clip_on=False)
            left.plot(finite.step.iloc[-1], loss.iloc[-1], "X", color=style["color"], **cross)
        at = curve.dropna(subset="val_accuracy")
        right.plot(at.step, 100 * at.val_accuracy, **look)
    left.set(xlabel="step", ylabel="training loss (nats)")
    right.set(xlabel="step", ylabel="validation accuracy (%)")
    for ax in (left, right):
        whole_ticks(ax)
    fig.legend(*left.get_legend_handles_labels(), loc="outside right center")
    cut = (
        f"loss cut at {ceiling:.1f}"
        if any((curve.train_loss > ceiling).any() for curve in curves.values())
        else ""
    )
    notes = "loss: running mean over 10 steps", cut
    return finish(fig, "Learning curves", caption or ONE_RUN, *notes)


WINDOW = 5


@styled
def fig_mistakes(
    runs: Mapping[int, pd.DataFrame], titles: Mapping[int, str], units: Mapping[int, str]
) -> Figure:
    """One panel a mistake: the training loss of the wrong and the right twin, and what each
    measured in the end.

    runs: number → the frame of `advice.mistake_runs`; units: number → what `measured` is.
    """
    fig, axes = new_figure(1, len(runs), height=3.6)
    for ax, (number, frame) in zip(axes[0], runs.items(), strict=True):
        for twin, colour, line in (("wrong", NO_NORM, "--"), ("right", COMBINATION, "-")):
            mine = frame[frame.twin == twin]
            losses = (
                pd.DataFrame(mine.losses.tolist(), dtype=float)
                .T.rolling(WINDOW, min_periods=1)
                .mean()
            )
            ax.plot(losses.index + 1, losses, line, color=colour, linewidth=1, alpha=0.8)
            ax.plot(
                [],
                [],
                line,
                color=colour,
                label=f"{mine.label.iloc[0]}: {mine.measured.mean():.3g}",
            )
        ax.set_title(textwrap.fill(f"{number}. {titles[number]}", 26), fontsize=8.5)
        ax.set_xlabel("training step")
        log_axis(ax)
        small = dict(fontsize=7.5, title=units[number], title_fontsize=7.5)
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), **small)
    axes[0, 0].set_ylabel(f"training loss, mean of {WINDOW} steps (log)")
    every = pd.concat(runs.values())
    shows = "one line a seed" if every.seed.nunique() > 1 else "single runs"
    basis = seeds_of(every), shows, "below: means of the tests"
    return finish(fig, "Mistakes (dashed) beside their mended twins", *basis)


# the blocks of a model


@styled
def fig_token_norms(frame: pd.DataFrame, *, phase: str = "trained", caption: str = "") -> Figure:
    """Figure 9: log₁₀ ‖y‖₂ of the median and of the largest token after each block, in train mode;
    a panel an arm. A line ends where a block holds tokens that are not finite, and a cross stands
    there.

    Input: the frame of `look.norms_by_depth`, of one task and one depth of model. ValueError for
    another, and for an unknown phase.
    """
    check_frame(frame, ("arm", "mode", "phase", "n_layers", "depth", "site", "l2"))
    if phase not in frame.phase.unique():
        raise unknown("phase of this frame", phase, frame.phase.unique())
    frame = frame[(frame.phase == phase) & (frame["mode"] == "train") & (frame.site == "residual")]
    if several := [c for c in ("task", "n_layers") if c in frame and frame[c].nunique() > 1]:
        raise ValueError(
            f"the frame holds {several[0]} {', '.join(map(str, frame[several[0]].unique()))}: draw one"
        )
    norms = pd.concat(
        {arm: norm_quantiles(rows) for arm, rows in frame.groupby("arm", sort=False)},
        names=["arm", "block"],
    )
    logs = np.log10(norms[["median", "largest"]].where(lambda n: (n > 0) & np.isfinite(n)))
    long = logs.reset_index().melt(
        ["arm", "block"], var_name="token", value_name="log₁₀ ‖y‖₂ (a.u.)"
    )
    looks = {"median": dict(color=INK), "largest": dict(color="#5D5FA8", linestyle="--")}
    fig, axes = line_panels(long, "block", "log₁₀ ‖y‖₂ (a.u.)", "token", looks, panel="arm")
    for ax, arm in zip(axes, frame.arm.unique(), strict=True):
        lost = norms.loc[arm].query("nonfinite > 0").index
        ax.plot(
            lost, np.full(len(lost), 0.96), "X", color=NO_NORM, transform=ax.get_xaxis_transform()
        )
    task = f", {frame.task.iloc[0]}" if "task" in frame else ""
    notes = (
        f"{phase}, {frame.n_layers.iloc[0]} blocks",
        "residual stream, train mode",
        "cross: tokens not finite",
    )
    return finish(
        fig, f"The median and the largest token{task}", caption or seeds_of(frame), *notes
    )


@styled
def fig_outputs(
    frame: pd.DataFrame, inside: Mapping[str, Mapping[str, np.ndarray]], caption: str = ""
) -> Figure:
    """Figure 9 at the end of training: log10 of the largest token's ‖y‖₂ after each block, as the
    run's last finite step saw it in train mode; a panel an arm, a line a run, red and dashed where
    it ended non-finite.

    Input: rows of a run frame, and by run id `ring_outputs` (R, layers).
    """
    frame = frame[[("ring_outputs" in inside.get(run_id, ())) for run_id in frame.run_id]]
    label = "largest token,\nlog₁₀ ‖y‖₂ (a.u.)"
    failed = frame.status == "diverged"
    long = frame.assign(
        **{label: [np.log10(inside[run_id]["ring_outputs"][-1]) for run_id in frame.run_id]}
    )
    long["ended"] = np.where(failed, *reversed(ENDED))
    counts = failed.groupby(frame.arm).agg(lambda lost: f"{lost.sum()} of {len(lost)} failed")
    long["panel"] = frame.arm.map(short) + ": " + frame.arm.map(counts)
    long = long.explode(label, ignore_index=True).astype({label: float})
    long["block"] = long.groupby("run_id").cumcount() + 1
    fig, _ = line_panels(
        long,
        "block",
        label,
        "ended",
        ENDED,
        panel="panel",
        units="run_id",
        estimator=None,
        alpha=0.75,
    )
    notes = "residual stream, train mode, last finite step", "a line a run"
    return finish(
        fig, "How outputs grow with depth, in models that train", caption or seeds_of(frame), *notes
    )


PHASES = {
    "early": dict(color="#3E7D7A", linestyle="-."),
    "normal": dict(color=COMBINATION, linestyle="--", linewidth=1.2),
    "failing": dict(color=NO_NORM, linestyle=":", linewidth=2.4),
    "last": dict(color=NO_NORM, linestyle=":", linewidth=2.4),
    "control, normalized": dict(color=GREY, linestyle="--", linewidth=1.8),
}


@styled
def fig_singular_values(
    phases: dict[str, np.ndarray],
    control: np.ndarray | None = None,
    mp: tuple[float, float] | None = None,
    caption: str = "",
) -> Figure:
    """Figure 10: sorted singular values of out_proj, a panel a layer (at most six), a line a phase
    of one run; no line where a weight is not finite.

    phases: early, normal, failing (or last) → (layers, k); control: a normalized run at the failing
    step, same shape; mp: the Marchenko–Pastur edges at initialisation (`look.marchenko_pastur`).
    """
    every = phases | ({} if control is None else {"control, normalized": control})
    layers, label = len(next(iter(phases.values()))), "singular value of out_proj (a.u.)"
    rows = [
        {"block": f"block {layer + 1}", "phase": phase, "index": i, label: value}
        for layer in some_of(layers, 6)
        for phase, sigma in every.items()
        for i, value in enumerate(np.sort(sigma[layer])[::-1], start=1)
    ]
    looks = {phase: PHASES[phase] for phase in every}
    fig, axes = line_panels(
        pd.DataFrame(rows), "index", label, "phase", looks, panel="block", row=3.6
    )
    for ax in axes:
        for edge in mp or ():
            ax.axhline(edge, color=GREY, linewidth=0.9, linestyle=":", zorder=1)
    log_axis(axes[0])
    edges = "dotted: Marchenko–Pastur edges at initialisation" if mp else ""
    gap = "no line: not finite" if not np.isfinite(list(every.values())).all() else ""
    return finish(
        fig, "Singular values", caption or ONE_RUN, f"{len(axes)} of {layers} blocks", edges, gap
    )


@styled
def fig_part_norms(arrays_by_arm: dict[str, dict[str, np.ndarray]], caption: str = "") -> Figure:
    """Appendix B: by how much the L2 norm of in_proj, conv1d, SSM and out_proj has grown since the
    first snapshot, by depth; a panel an arm.

    Input: arm → arrays with `step` (T,) and `part_norms` (T, layers, 4).
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
    fig, _ = line_panels(
        pd.DataFrame(rows), "block", label, "part", looks, panel="arm", markevery=1
    )
    since = f"last snapshot over step {next(iter(arrays_by_arm.values()))['step'][0]}"
    return finish(
        fig, "How the weights have grown, by depth", caption or ONE_RUN, f"{since}, 1: unchanged"
    )


MEMBERS = [f"{name}-DL" if name in ("LN", "RMSN") else name for name in NormVary.members]
"""NormVary's members as the registry names their statistics (Eq. 11–12 are over D·L)."""


@styled
def fig_mixture(arrays: dict[str, np.ndarray], caption: str = "") -> Figure:
    """NormVary's learned weights over training: a column a norm by depth (at most six), rows for
    means and variances. Input: `step` (T,) and `mixture` (T, norms, 2, 5). ValueError if the run
    has no learned mixture."""
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
    # LN-DL's line is wide: where the mean over the channels is near zero, RMSN-DL's, drawn later,
    # lies on it
    looks = {
        name: dict(
            color=norm_colour(name),
            marker=norm_marker(name),
            linewidth=4.0 if name == "LN-DL" else 1.4,
        )
        for name in MEMBERS
    }
    how = dict(panel="panel", across=len(shown), row=2.3, legend="outside right center")
    fig, axes = line_panels(pd.DataFrame(rows), "step", "weight", "member", looks, **how)
    for i, ax in enumerate(axes):
        norm = shown[i % len(shown)]
        site = (
            f", N{norm % per_block + 1}" if per_block > 1 else ""
        )  # where both sites of a block mix
        ax.set_title("" if i >= len(shown) else f"block {norm // per_block + 1}{site}", color=INK)
        ax.axhline(0.2, color=GREY, linewidth=0.9, linestyle=(0, (2, 2)))
    axes[0].set_ylabel("weight of the mean")
    axes[len(shown)].set_ylabel("weight of the variance")
    notes = (
        "dotted: uniform, 0.2",
        "wide: LN-DL, on which RMSN-DL may lie",
        "RMSN-DL has no mean: its weight there is that of a mean of zero",
    )
    return finish(fig, "What NormVary mixes", caption or ONE_RUN, *notes)
