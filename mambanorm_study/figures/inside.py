"""What happens inside a model: the paper's Figures 9 and 10, Appendix B, and NormVary's weights.

The parameter `caption` states scale and seeds (`run_tables.describe_frame`). L2 norms and singular
values have no unit, so their axes are in arbitrary units (a.u.).
"""

import numpy as np
import pandas as pd
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
    norm_colour,
    norm_marker,
)
from mambanorm_study.figures.lines import line_panels
from mambanorm_study.figures.style import (
    StudyFigure,
    finish,
    jitter,
    log_axis,
    new_figure,
    seeds_note,
    short_label,
    spaced_indices,
    styled,
)
from mambanorm_study.runs.weight_log import BLOCK_PARTS
from mambanorm_study.tables.growth import norm_quantiles
from mambanorm_study.tables.run_tables import check_frame

ENDED = {
    "ran to its end": dict(color=COMBINATION),
    "ended non-finite": dict(color=NO_NORM, linestyle="--"),
}
PHASES = {
    "early": dict(color=TEAL, linestyle="-."),
    "normal": dict(color=COMBINATION, linestyle="--", linewidth=1.2),
    "failing": dict(color=NO_NORM, linestyle=":", linewidth=2.4),
    "last": dict(color=NO_NORM, linestyle=":", linewidth=2.4),
    "control: RMSN→None": dict(color=GREY, linestyle="--", linewidth=1.8),
}
# Points of `fig_elements` → offset from the block, prefix of the columns of quantiles, colour.
KINDS_OF_POINTS = {"elements": (-0.21, "", INDIGO), "tokens": (0.21, "token_", TEAL)}
# Registry names of NormVary's members. NormVary's LN and RMSN take statistics over D·L (Eq. 11–12
# of the paper).
MEMBERS = [f"{name}-DL" if name in ("LN", "RMSN") else name for name in NormVary.members]


@styled
def fig_token_norms(frame: pd.DataFrame, *, phase: str = "trained") -> StudyFigure:
    """Return Figure 9: log₁₀ of the median and of the largest ‖y‖₂ of a token after each block.

    y is the residual stream in train mode; each arm has a panel. A cross marks a block after which
    some tokens are not finite; values that are not finite are not drawn. frame: rows of
    `growth.norms_by_depth` for one task and one number of layers; it may have the columns scale and
    seed. phase: the value of the column `phase` that is drawn. Raises ValueError for several tasks
    or numbers of layers, and for an unknown phase.
    """
    check_frame(frame, ("arm", "mode", "phase", "n_layers", "depth", "site", "l2"))
    if phase not in frame.phase.unique():
        raise unknown("phase of this frame", phase, frame.phase.unique())
    frame = frame[(frame.phase == phase) & (frame["mode"] == "train") & (frame.site == "residual")]
    for column in ("task", "n_layers"):
        values = frame[column].unique() if column in frame else []
        if len(values) > 1:
            raise ValueError(
                f"the frame has several values of {column}: {', '.join(map(str, values))}. "
                "Select one"
            )
    label = "log₁₀ ‖y‖₂ (a.u.)"
    norms = pd.concat(
        {arm: norm_quantiles(rows) for arm, rows in frame.groupby("arm", sort=False)},
        names=["arm", "block"],
    )
    logs = np.log10(norms[["median", "largest"]].where(lambda n: (n > 0) & np.isfinite(n)))
    long = logs.reset_index().melt(["arm", "block"], var_name="token", value_name=label)
    styles = {"median": dict(color=INK), "largest": dict(color=INDIGO, linestyle="--")}
    fig, axes = line_panels(long, "block", label, "token", styles, panel="arm")
    for ax, arm in zip(axes, frame.arm.unique(), strict=True):
        blocks = norms.loc[arm].query("nonfinite > 0").index
        ax.plot(
            blocks,
            np.full(len(blocks), 0.96),
            "X",
            color=NO_NORM,
            transform=ax.get_xaxis_transform(),
        )
    task = f", {frame.task.iloc[0]}" if "task" in frame else ""
    return finish(
        fig,
        f"The median and the largest token{task}",
        seeds_note(frame),
        f"{phase}, {frame.n_layers.iloc[0]} blocks",
        "residual stream, train mode",
        "cross: tokens not finite" if (norms.nonfinite > 0).any() else "",
    )


@styled
def fig_outputs(
    frame: pd.DataFrame, arrays_by_run: dict[str, dict[str, np.ndarray]], caption: str
) -> StudyFigure:
    """Return Figure 9 at the end of training: log₁₀ of the largest ‖y‖₂ of a token after each
    block.

    y is the residual stream at the last finite step of a run, in train mode. Each arm has a panel.
    Each run has a line, red and dashed if the run ended non-finite. frame: rows of a run frame.
    arrays_by_run: run_id → arrays with `ring_outputs` (steps, layers), the largest ‖y‖₂ of a token
    after each block in the last steps of the run. Runs without arrays are left out.
    """
    label = "largest token,\nlog₁₀ ‖y‖₂ (a.u.)"
    runs = frame[frame.run_id.isin(arrays_by_run)]
    endings = runs.status.map({"diverged": "ended non-finite"}).fillna("ran to its end")
    failed = (runs.status == "diverged").groupby(runs.arm)
    panels = {
        arm: f"{short_label(arm)}\n{is_failed.sum()} of {len(is_failed)} failed"
        for arm, is_failed in failed
    }
    rows = [
        {"panel": panels[arm], "run_id": run_id, "ended": ended, "block": block, label: norm}
        for run_id, arm, ended in zip(runs.run_id, runs.arm, endings, strict=True)
        for block, norm in enumerate(np.log10(arrays_by_run[run_id]["ring_outputs"][-1]), start=1)
    ]
    fig, _ = line_panels(
        pd.DataFrame(rows),
        "block",
        label,
        "ended",
        ENDED,
        panel="panel",
        units="run_id",
        estimator=None,
        alpha=0.75,
    )
    return finish(
        fig,
        "How outputs grow with depth, in models that train",
        caption,
        "residual stream, train mode, last finite step",
        "one line per run",
    )


@styled
def fig_outputs_of_norms(table: pd.DataFrame, caption: str) -> StudyFigure:
    """Return the largest token after each block of trained models, one panel per norm, one colour
    per place, one line per run.

    table: the frame of `lessons.outputs.outputs_by_depth`.
    """
    label = "largest token,\nlog₁₀ ‖y‖₂ (a.u.)"
    rows = table.assign(**{label: np.log10(table.largest), "block": table.depth})
    rows = rows[np.isfinite(rows[label])]
    rows["run"] = rows.place + rows.seed.astype(str)
    looks = {
        "before": dict(color=INDIGO),
        "after": dict(color=NO_NORM, linestyle="--"),
        "both": dict(color=TEAL, linestyle=":"),
    }
    fig, _ = line_panels(
        rows, "block", label, "place", looks, panel="norm", units="run", estimator=None
    )
    return finish(
        fig,
        "Four norms: which place keeps the outputs small?",
        caption,
        "residual stream, train mode, weights of the best evaluation",
        "one line per run",
    )


@styled
def fig_elements(frame: pd.DataFrame, caption: str = "", *, mode: str = "train") -> StudyFigure:
    """Return Figure 9 with points: log₁₀ of |element| and of ‖token‖₂ after each block, one panel
    per arm.

    The points are random elements and tokens, one column of points per seed; the lowest 1 % are cut
    off. A bar is the median and a diamond the 99.9 % quantile of a model, both as medians over the
    seeds. The line through a diamond goes from the lowest to the highest seed. Values that are not
    finite are not drawn. frame: the frame of `lessons.elements.elements_by_depth`. caption: the
    task. mode: "train" or "eval".
    """
    if mode not in set(frame["mode"]):
        raise unknown("mode of this frame", mode, frame["mode"].unique())
    frame = frame[frame["mode"] == mode]
    arms = list(frame.arm.unique())
    fig, axes = new_figure(1, len(arms), height=3.6, sharey=True)
    # squares on whole pixels, because a PNG of thousands of smooth dots is twice as large
    square = dict(marker="s", markersize=1.8, markeredgewidth=0, linestyle="", snap=True)
    diamond = dict(marker="D", markeredgecolor=INK, markersize=4.5, linestyle="")
    for ax, arm in zip(axes[0], arms, strict=True):
        for depth, block in frame[frame.arm == arm].groupby("depth"):
            for kind, (offset, prefix, colour) in KINDS_OF_POINTS.items():
                x, points = depth + offset, np.stack(list(block[kind]))  # (seeds, points)
                columns = np.repeat(x + jitter(len(points), 0.3), points.shape[1])
                ax.plot(columns, points.flatten(), color=colour, **square)
                median, tails = np.log10(block[f"{prefix}median"]), np.log10(block[f"{prefix}p999"])
                ax.hlines(median.median(), x - 0.19, x + 0.19, color=INK, linewidth=1.6)
                ax.vlines(x, tails.min(), tails.max(), color=INK, linewidth=0.8)
                ax.plot(x, tails.median(), color=colour, **diamond)
        ax.set(title=short_label(arm), xlabel="block", xticks=frame.depth.unique())
    drawn = np.concatenate([*frame.elements, *frame.tokens])
    lowest = np.quantile(drawn[np.isfinite(drawn)], 0.01)
    axes[0, 0].set(ylim=(lowest, None), ylabel="log₁₀ of the magnitude (a.u.)")
    legend = [
        Line2D([], [], color=INDIGO, **square | {"markersize": 5}, label="elements (left)"),
        Line2D([], [], color=TEAL, **square | {"markersize": 5}, label="tokens (right)"),
        Line2D([], [], color=INK, linewidth=1.6, label="median"),
        Line2D([], [], color=GREY, **diamond, label="99.9 % quantile"),
    ]
    fig.legend(handles=legend, loc="outside upper right", ncols=len(legend))
    return finish(
        fig,
        "Elements and tokens after each block",
        seeds_note(frame),
        caption,
        f"residual stream, {mode} mode, weights of the best evaluation",
        f"points: {len(frame.elements.iloc[0])} random elements and tokens of each block, a column "
        "for each seed, without the lowest 1 %",
        "bars and diamonds: medians over the seeds",
        "lines: lowest to highest seed",
    )


@styled
def fig_singular_values(
    phases: dict[str, np.ndarray],
    control: np.ndarray,
    edges: tuple[float, float],
    caption: str,
) -> StudyFigure:
    """Return Figure 10: sorted singular values of out_proj, one panel per layer (at most eight).

    Each phase of the run has a line, unless its singular values are not finite. phases: "early",
    "normal", "failing" (or "last") → singular values (layers, k). control: the singular values, at
    the failing step, of a run with norms. edges: the Marchenko–Pastur edges at initialisation
    (`diagnostics.out_proj_edges`).
    """
    spectra = {**phases, "control: RMSN→None": control}
    layers, label = len(next(iter(phases.values()))), "singular value (a.u.)"
    rows = [
        {"block": f"block {layer + 1}", "phase": phase, "index": i, label: value}
        for layer in spaced_indices(layers, 8)
        for phase, sigma in spectra.items()
        for i, value in enumerate(np.sort(sigma[layer])[::-1], start=1)
    ]
    fig, axes = line_panels(
        pd.DataFrame(rows),
        "index",
        label,
        "phase",
        {phase: PHASES[phase] for phase in spectra},
        panel="block",
        across=4,
        row_height=2.2,
    )
    for ax in axes:
        for edge in edges:
            ax.axhline(edge, color=GREY, linewidth=0.9, linestyle=":", zorder=1)
    log_axis(axes[0])
    is_finite = np.isfinite(list(spectra.values())).all()
    return finish(
        fig,
        "Singular values of out_proj",
        caption,
        f"{len(axes)} of {layers} blocks" if len(axes) < layers else "",
        "dotted: Marchenko–Pastur edges at initialisation",
        "" if is_finite else "no line: not finite",
    )


@styled
def fig_part_norms(arrays_by_arm: dict[str, dict[str, np.ndarray]], caption: str) -> StudyFigure:
    """Return the figure of Appendix B: growth of the weights of each part of a block, by depth.

    Growth is the L2 norm of the weights in the last snapshot divided by that in the first. Each arm
    has a panel. arrays_by_arm: arm → the arrays `step` (T,) and `part_norms` (T, layers, 4) of T
    snapshots. The four parts are in_proj, conv1d, SSM and out_proj.
    """
    label = "L2 norm, last ÷ first"
    rows = [
        {"arm": arm, "block": block, "part": part, label: factor}
        for arm, arrays in arrays_by_arm.items()
        for block, factors in enumerate(arrays["part_norms"][-1] / arrays["part_norms"][0], start=1)
        for part, factor in zip(BLOCK_PARTS, factors, strict=True)
    ]
    styles = {
        part: dict(color=INK if part == "out_proj" else GREY, marker=marker, linestyle=dash)
        for part, marker, dash in zip(BLOCK_PARTS, "osD^", DASHES[3::-1], strict=True)
    }
    fig, _ = line_panels(
        pd.DataFrame(rows), "block", label, "part", styles, panel="arm", markevery=1
    )
    return finish(
        fig,
        "How the weights have grown, by depth",
        caption,
        f"last snapshot ÷ step {next(iter(arrays_by_arm.values()))['step'][0]}; 1 means no change",
    )


@styled
def fig_mixture(arrays: dict[str, np.ndarray], caption: str) -> StudyFigure:
    """Return a figure of the learned weights with which NormVary mixes five norms, its members,
    over training.

    Each NormVary of the model (at most six) has two panels: the weights of the members' means
    above, the weights of the members' variances below. arrays: `step` (T,), `mixture` (T, number of
    NormVarys, 2, 5) in the order of depth, and `part_norms` (T, layers, 4). Raises ValueError
    without `mixture`.
    """
    if "mixture" not in arrays:
        raise ValueError("the arrays have no `mixture`: only runs with NormVary record it")
    norms = arrays["mixture"].shape[1]
    per_block = norms // arrays["part_norms"].shape[1]  # 2 if both N1 and N2 are NormVary
    norm_indices = spaced_indices(norms, 6)
    site = ", N{}" if per_block > 1 else ""
    names = [f"block {i // per_block + 1}{site.format(i % per_block + 1)}" for i in range(norms)]
    rows = [
        dict(panel=f"{symbol}, {names[norm]}", step=step, member=member, weight=weight)
        for i, symbol in enumerate(("μ", "σ²"))
        for norm in norm_indices
        for step, weights in zip(arrays["step"], arrays["mixture"][:, norm, i], strict=True)
        for member, weight in zip(MEMBERS, weights, strict=True)
    ]
    styles = {
        name: dict(color=norm_colour(name), marker=norm_marker(name), linewidth=1.4)
        for name in MEMBERS
    }
    # wide, because the line of RMSN-DL is drawn later and covers the line of LN-DL where the mean
    # over the channels is near zero
    styles["LN-DL"]["linewidth"] = 4.0
    fig, axes = line_panels(
        pd.DataFrame(rows),
        "step",
        "weight",
        "member",
        styles,
        panel="panel",
        across=len(norm_indices),
        row_height=2.3,
        legend="outside right center",
    )
    for ax in axes:
        ax.axhline(0.2, color=GREY, linewidth=0.9, linestyle=(0, (2, 2)))
    return finish(
        fig,
        "What NormVary mixes",
        caption,
        "above: weights of the means μ, below: weights of the variances σ²",
        "dotted: uniform, 0.2",
        "wide line: LN-DL, which the line of RMSN-DL may cover",
        "RMSN-DL subtracts no mean: above, its weight is that of a mean of zero",
    )
