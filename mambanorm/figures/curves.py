"""Lines over steps, learning rates, and severities; nothing here trains."""

import textwrap
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from mambanorm.figures.colours import COMBINATION, GREY, INK, MARKERS, NO_NORM, PALETTE, SPARE_COLOURS, arm_styles
from mambanorm.figures.style import finish, new_figure, seeds_of, short, sns, styled, whole_ticks
from mambanorm.study.intervals import t_interval
from mambanorm.study.tables import check_frame, describe_frame, seeds_text


@styled
def fig_curves(curves: dict[str, pd.DataFrame], caption: str = "") -> Figure:
    """Training loss and validation accuracy against steps, one line a label (an arm, as a rule); a cross marks where a
    run ended non-finite, and losses are cut at 1.5 times the highest first one. `curves` holds StoredRun.curves;
    `caption` says scale and seeds (describe_frame)."""
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
    cut = f"cut at {ceiling:.1f}" if any((curve.train_loss > ceiling).any() for curve in curves.values()) else ""
    smooth = "loss: running mean over 10 steps"
    return finish(fig, "Learning curves", caption or seeds_text([1]), smooth, cut)


@styled
def fig_ladder(frame: pd.DataFrame, caption: str = "") -> Figure:
    """Test accuracy over the learning rate, a line an arm: mean and 95 % t-interval, a small dot a seed; a run that
    diverged counts as chance. ValueError for a frame without runs or with several tasks."""
    check_frame(frame, ("task", "arm", "seed", "lr", "test_accuracy", "status", "chance"))
    if frame.task.nunique() > 1:
        raise ValueError(f"a ladder is of one task, got {', '.join(frame.task.unique())}: filter the frame")
    score = 100 * frame.test_accuracy.where(frame.status != "diverged", frame.chance)
    fig, ((ax,),) = new_figure(height=3.9)
    styles = arm_styles(list(dict.fromkeys(frame.arm)))
    for shift, (arm, style) in zip(np.linspace(0.985, 1.015, len(styles)), styles.items(), strict=True):
        runs = pd.DataFrame(dict(lr=frame.lr * shift, score=score))[frame.arm == arm]
        ax.plot(runs.lr, runs.score, ".", color=style["color"], alpha=0.4, markersize=4)
        _mean_line(ax, runs, "lr", "score", style, label=short(arm), err_style="bars")
    ax.axhline(100 * frame.chance.mean(), color=GREY, linestyle=":", linewidth=1)
    rates = sorted(frame.lr.unique())
    ax.set(xscale="log", xlabel="learning rate", ylabel="test accuracy (%)")
    ax.set_xticks(rates, [f"{lr:g}" for lr in rates])
    ax.minorticks_off()
    fig.legend(*ax.get_legend_handles_labels(), loc="outside upper right", ncols=len(styles))
    basis = caption or describe_frame(frame, "mean and 95 % t-interval")
    return finish(fig, "How high can the learning rate be?", basis, "small dots: seeds", "dotted: chance")


def _mean_line(ax: Axes, runs: pd.DataFrame, x: str, y: str, style: dict, label: str, **look) -> None:
    """The mean of y at every x with its 95 % t-interval, as a band or as bars."""
    look = dict(markersize=5, linewidth=1.5, errorbar=t_interval) | look
    err = dict(linewidth=1.6) if "err_style" in look else dict(alpha=0.12, linewidth=0)
    look |= dict(markeredgecolor=style["color"], markeredgewidth=1.0) | style
    sns.lineplot(runs, x=x, y=y, label=label, legend=False, ax=ax, err_kws=err, **look)


PLACE_COLOURS = {"pre": COMBINATION, "post": NO_NORM, "train": NO_NORM, "eval": COMBINATION}
NAMES = {
    "accuracy": "test accuracy (%)", "error": "test error (RMSE)", "batch": "training batch (rows, log scale)",
    "lr": "learning rate (log scale)", "depth": "layers",
}  # fmt: skip
WINDOW = 5


@styled
def fig_over(
    frame: pd.DataFrame, x: str, by: str, title: str, *, value: str = "accuracy", x_label: str = "", caption: str = ""
) -> Figure:
    """A value over x, one line for each value of the column `by`; batch sizes and rates on a logarithmic axis."""
    fig, ((ax,),) = new_figure(height=3.2)
    for i, (name, runs) in enumerate(frame.groupby(by, sort=False)):
        colour = PALETTE.get(name) or PLACE_COLOURS.get(name) or SPARE_COLOURS[i % len(SPARE_COLOURS)]
        style = dict(color=colour, marker=MARKERS.get(name, "os^"[i % 3]))
        _mean_line(ax, runs, x, value, style, label="no norm" if name == "None" else str(name), errorbar=None)
        ax.scatter(runs[x], runs[value], s=9, alpha=0.5, color=colour, linewidths=0)
    if x in ("batch", "lr"):
        ax.set_xscale("log", base=2 if x == "batch" else 10)
    if x != "lr":
        ax.set_xticks(sorted(frame[x].unique()), [str(n) for n in sorted(frame[x].unique())])
    ax.set(xlabel=x_label or NAMES.get(x, x), ylabel=NAMES.get(value, value))
    fig.legend(loc="outside right center")
    shows = "lines: means, dots: seeds" if frame.seed.nunique() > 1 else "single runs"
    return finish(fig, title, seeds_of(frame), shows, caption)


@styled
def fig_mistakes(runs: Mapping[int, pd.DataFrame], titles: Mapping[int, str], units: Mapping[int, str]) -> Figure:
    """One panel a mistake: the training loss of the wrong and the right twin, and what each measured in the end.

    runs: number → the frame of `advice.mistake_runs`; units: number → what `measured` is.
    """
    fig, axes = new_figure(1, len(runs), height=3.6)
    for ax, (number, frame) in zip(axes[0], runs.items(), strict=True):
        for twin, colour, line in (("wrong", NO_NORM, "--"), ("right", COMBINATION, "-")):
            mine = frame[frame.twin == twin]
            for losses in mine.losses:
                smooth = pd.Series(losses, dtype=float).rolling(WINDOW, min_periods=1).mean()
                ax.plot(smooth.index + 1, smooth, line, color=colour, linewidth=1, alpha=0.8)
            ax.plot([], [], line, color=colour, label=f"{mine.label.iloc[0]}: {mine.measured.mean():.3g}")
        ax.set_title(textwrap.fill(f"{number}. {titles[number]}", 26), fontsize=8.5)
        ax.set(yscale="log", xlabel="training step")
        for set_formatter in (ax.yaxis.set_major_formatter, ax.yaxis.set_minor_formatter):
            set_formatter(LogFormatter(minor_thresholds=(1.2, 0.4)))
        small = dict(fontsize=7.5, title=units[number], title_fontsize=7.5)
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), **small)
    axes[0, 0].set_ylabel(f"training loss, mean of {WINDOW} steps (log)")
    every = pd.concat(runs.values())
    shows = "one line a seed" if every.seed.nunique() > 1 else "single runs"
    basis = seeds_of(every), shows, "below: means of the tests"
    return finish(fig, "Mistakes (dashed) beside their mended twins", *basis)


KINDS = {
    "noise": ("Gaussian noise", "standard deviation, × that of the inputs"),
    "rotation": ("rotation", "largest angle, degrees"),
}


@styled
def fig_robustness(table: pd.DataFrame, caption: str = "") -> Figure:
    """Accuracy over the severity of each corruption, a line an arm: mean over the seeds, band: 95 % t-interval."""
    check_frame(table, ("task", "arm", "seed", "kind", "severity", "accuracy"))
    if table.task.nunique() > 1:
        raise ValueError(f"the table holds the tasks {', '.join(table.task.unique())}: draw one at a time")
    kinds = list(table.kind.unique())
    fig, axes = new_figure(1, len(kinds), height=3.7, sharey=True)
    percent = table.assign(accuracy=100 * table.accuracy)
    for ax, kind in zip(axes[0], kinds, strict=True):
        for arm, style in arm_styles(list(table.arm.unique())).items():
            runs = percent[(table.kind == kind) & (table.arm == arm)]
            _mean_line(ax, runs, "severity", "accuracy", style, label=short(arm))
        title, unit = KINDS.get(kind, (kind, "severity"))
        ax.set(title=title, xlabel=unit, ylabel="test accuracy (%)")
        ax.label_outer()
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center")
    seeds = seeds_text(table.groupby("arm").seed.nunique())
    return finish(fig, f"Corrupted test rows, {table.task.iloc[0]}", caption or seeds, "bands: 95 % t-intervals")


@styled
def fig_latency(runs: pd.DataFrame, latency: pd.DataFrame) -> Figure:
    """Accuracy against the time of a forward pass, a dot an arm, a panel for each number of rows. Lines: the 95 %
    t-interval over the seeds, and the quartiles of the time."""
    check_frame(runs)
    rows = sorted(latency.rows.unique())
    fig, axes = new_figure(1, len(rows), height=3.6, sharey=True)
    styles = arm_styles([arm for arm in runs.arm.unique() if arm in set(latency.arm)])
    for ax, n in zip(axes[0], rows, strict=True):
        for (arm, style), marker in zip(styles.items(), "oDs^vP*Xhp<>dH8", strict=False):
            accuracy = 100 * runs[runs.arm == arm].test_accuracy
            time, colour = latency[(latency.arm == arm) & (latency.rows == n)].iloc[0], style["color"]
            ax.vlines(time.ms, *t_interval(accuracy), color=colour, linewidth=1.3, alpha=0.7)
            ax.hlines(accuracy.mean(), time.low, time.high, color=colour, linewidth=1.3, alpha=0.7)
            ax.plot(time.ms, accuracy.mean(), marker, markersize=6.5, color=colour, label=short(arm))
        ax.set(title="one row" if n == 1 else f"a batch of {n} rows", xlabel="forward pass (ms, median)")
        ax.set_xlim(left=0)
        ax.grid(axis="x")
    axes[0, 0].set_ylabel("test accuracy (%)")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center")
    lines = "lines: 95 % t-interval over the seeds, quartiles of the time"
    where = "on this machine, with the run's threads"
    return finish(fig, "Accuracy against latency", describe_frame(runs, lines), where)
