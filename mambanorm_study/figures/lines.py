"""Line plots over steps, learning rates, batch sizes, severities and depth.

The parameter `caption` states the scale and the seeds (`run_tables.describe_frame`) if the data
lack them.
"""

import textwrap

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from mambanorm_study.figures.colours import (
    COMBINATION,
    GREY,
    INK,
    NO_NORM,
    arm_styles,
)
from mambanorm_study.figures.style import (
    StudyFigure,
    finish,
    log_axis,
    new_figure,
    panel_grid,
    seeds_note,
    short_label,
    sns,
    styled,
    whole_ticks,
)
from mambanorm_study.tables.intervals import t_interval
from mambanorm_study.tables.run_tables import check_frame

# Name of a column or of a panel → label of the axis.
AXIS_LABELS = {
    "accuracy": "test accuracy (%)",
    "train_accuracy": "training accuracy (%)",
    "val_accuracy": "validation accuracy (%)",
    "error": "test error (RMSE)",
    "batch": "training batch, rows",
    "lr": "learning rate",
    "depth": "layers",
    "noise": "standard deviation, × that of the inputs",
    "rotation": "largest angle, degrees",
}
# Caption of the bands around the means → argument `errorbar` of `seaborn.lineplot`.
BANDS = {"": None, "95 % t-intervals": t_interval, "worst to best seed": ("pi", 100)}
WINDOW = 5  # number of steps in the running mean of `fig_mistakes`


def line_panels(
    frame: pd.DataFrame,
    x: str,
    y: str,
    by: str,
    styles: dict[str, dict] | None = None,
    *,
    panel: str = "",
    across: int = 9,
    row_height: float = 3.1,
    legend: str = "outside upper right",
    sharex: bool = True,
    dots: bool = False,
    **line_options,
):
    """Return a figure of the column `y` over the column `x`, and the list of its axes.

    The figure has one panel per value of the column `panel` ("" means a single panel), and in each
    panel one line per value of the column `by`. styles: value of `by` → line style; None means the
    styles of arms. across: the largest number of panels in a row. row_height: inches. legend: where
    the legend is, as in `Figure.legend`. dots: also draw a small dot per row of the frame. Further
    keywords go to `seaborn.lineplot`.
    """
    panels = list(frame.groupby(panel, sort=False)) if panel else [("", frame)]
    base = dict(markersize=4.5, linewidth=1.5)
    lines = {
        value: {**base, "markeredgecolor": style["color"], **style}
        for value, style in (styles or arm_styles(list(frame[by].unique()))).items()
    }
    line_options = {
        "legend": False,
        "markevery": max(1, frame[x].nunique() // 6),
        **line_options,
    }
    fig, axes = panel_grid(len(panels), across, row_height=row_height, sharex=sharex, sharey=True)
    for ax, (name, rows) in zip(axes, panels, strict=True):
        ax.tick_params(labelbottom=True)  # seaborn hides the label of an axis without tick labels
        for value, style in lines.items():
            points = rows[rows[by] == value].dropna(subset=y)
            if len(points):
                sns.lineplot(points, x=x, y=y, ax=ax, **{**line_options, **style})
            if dots:
                ax.plot(points[x], points[y], ".", color=style["color"], alpha=0.4, markersize=4)
        title = (
            short_label(name)
            if isinstance(name, str)
            else f"{AXIS_LABELS.get(panel, panel)} {name}"
        )
        ax.set(title=title, xlabel=x, ylabel=y if ax.get_subplotspec().is_first_col() else "")
        if frame[x].dtype == int:
            whole_ticks(ax)
    handles = [
        Line2D([], [], label="no norm" if value == "None" else short_label(value), **style)
        for value, style in lines.items()
    ]
    fig.legend(handles=handles, loc=legend, ncols=1 if "center" in legend else len(handles))
    return fig, axes


@styled
def fig_lines(
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
) -> StudyFigure:
    """Return a figure of lines, the mean of the column `value` over the column `x`, and one dot per
    seed.

    Each value of the column `by` has a line. panel: a column with one panel per value; "" means a
    single panel. band: a key of BANDS, for the bands around the lines. x_label: "" means the label
    in AXIS_LABELS. Batch sizes and learning rates have a logarithmic axis. A column `chance`, in
    per cent, is drawn as a dotted line.
    """
    check_frame(frame, (x, by, value))
    seeds = frame.seed.nunique() if "seed" in frame else 0
    is_log, ticks = x in ("batch", "lr"), sorted(frame[x].unique())
    fig, axes = line_panels(
        frame,
        x,
        value,
        by,
        panel=panel,
        sharex=False,
        dots=seeds > 1,
        legend="outside right center",
        errorbar=BANDS[band] if seeds > 1 else None,
        err_kws=dict(alpha=0.15, linewidth=0),
    )
    for ax, name in zip(axes, frame[panel].unique() if panel else [x], strict=True):
        if is_log:
            ax.set_xscale("log")
        if len(ticks) < 9 and not panel:
            ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            ax.minorticks_off()
        if "chance" in frame:
            ax.axhline(frame.chance.mean(), color=GREY, linestyle=":", linewidth=1)
        ax.set_xlabel(
            x_label or AXIS_LABELS.get(name, AXIS_LABELS.get(x, x)) + " (log scale)" * is_log
        )
    axes[0].set_ylabel(AXIS_LABELS.get(value, value))
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
def fig_curves(curves: dict[str, pd.DataFrame], caption: str) -> StudyFigure:
    """Return training loss and validation accuracy over the steps, one line per label.

    curves: label (usually an arm) → `StoredRun.curves`. A cross marks the end of a run whose loss
    or gradient became non-finite. Losses are cut at 1.5 times the highest first loss of all runs.
    """
    fig, ((left, right),) = new_figure(1, 2, height=3.8)
    ceiling = 1.5 * np.nanmax([curve.train_loss.iloc[0] for curve in curves.values()])
    for label, style in arm_styles(list(curves)).items():
        curve = curves[label]
        finite = curve[np.isfinite(curve.train_loss)]
        loss = finite.train_loss.clip(upper=ceiling).rolling(10, min_periods=1).mean()
        left.plot(
            finite.step, loss, markevery=max(1, len(loss) // 6), label=short_label(label), **style
        )
        last = curve.iloc[-1]
        if not np.isfinite([last.train_loss, last.get("grad_norm", 0.0)]).all():
            left.plot(
                finite.step[-1:],
                loss[-1:],
                "X",
                color=style["color"],
                markersize=8,
                markeredgecolor=INK,
                zorder=5,
                clip_on=False,
            )
        validated = curve.dropna(subset="val_accuracy")
        right.plot(validated.step, 100 * validated.val_accuracy, **style)
    left.set(xlabel="step", ylabel="training loss (nats)")
    right.set(xlabel="step", ylabel="validation accuracy (%)")
    for ax in (left, right):
        whole_ticks(ax)
    fig.legend(*left.get_legend_handles_labels(), loc="outside right center")
    loss = f"loss: running mean over 10 steps, cut at {ceiling:.1f}"
    return finish(fig, "Learning curves", caption, loss)


# Column `twin` in the frame of `advice.mistake_runs` ("wrong" with the mistake, "right" without it)
# → style of the run's line.
TWINS = {"wrong": dict(color=NO_NORM, linestyle="--"), "right": dict(color=COMBINATION)}


@styled
def fig_mistakes(
    runs: dict[int, pd.DataFrame], titles: dict[int, str], units: dict[int, str]
) -> StudyFigure:
    """Return the training loss with a mistake and without the mistake, one panel per mistake.

    The text below a panel gives the mean test result with the mistake and without it. runs: number
    of the mistake → the frame of `advice.mistake_runs`. titles: number → title of the mistake.
    units: number → unit of the column `measured`.
    """
    fig, axes = new_figure(1, len(runs), height=3.6)
    for ax, (number, frame) in zip(axes[0], runs.items(), strict=True):
        for run in frame.itertuples():
            loss = pd.Series(run.losses, dtype=float).rolling(WINDOW, min_periods=1).mean()
            ax.plot(loss.index + 1, loss, linewidth=1, alpha=0.8, **TWINS[run.twin])
        log_axis(ax)
        means = frame.groupby("label", sort=False).measured.mean()
        lines = [textwrap.fill(f"{label}: {mean:.3g}", 36) for label, mean in means.items()]
        ax.set_xlabel("\n".join(["training step", "", units[number], *lines]), fontsize=7.5)
        ax.set_title(textwrap.fill(f"{number}. {titles[number]}", 26), fontsize=8.5)
    axes[0, 0].set_ylabel(f"training loss, mean of {WINDOW} steps (log)")
    all_runs = pd.concat(runs.values())
    return finish(
        fig,
        "Training with a mistake (red, dashed) and without it (blue)",
        seeds_note(all_runs),
        "one line per seed" if all_runs.seed.nunique() > 1 else "single runs",
        "below each panel: mean test results",
    )
