"""Lines over steps, learning rates, severities and lengths; nothing here trains or measures.

fig_curves      loss and validation accuracy over the steps, from `StoredRun.curves`
fig_ladder      accuracy over the learning rate, arm by arm, from the run frame
fig_over        a measured value over batch size, learning rate or depth, one line a norm or place
fig_mistakes    training curves of the mistakes of `mambanorm.advice` and their mended twins
fig_robustness  accuracy over severity, from `robustness_table`
fig_latency     accuracy against milliseconds, from the run frame and `latency_table`
fig_speed       time of a training step, from the frame of `mambanorm bench`
fig_scaling     time and memory per token over the length, from the same frame

The frame of `mambanorm bench` has a row a case: section, group, name, shape (B, L, D, N), status, median_ms, low_ms,
high_ms (quartiles), ratios, us_per_token, kb_per_token.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from mambanorm.basics.later import Later
from mambanorm.figures.style import (
    BEST,
    COMBINATION,
    GREY,
    INK,
    MARKERS,
    NO_NORM,
    PALETTE,
    SPARE_COLOURS,
    above,
    arm_styles,
    finish,
    instead,
    log_axis,
    new_figure,
    short,
    styled,
    whole_ticks,
)
from mambanorm.study.intervals import t_interval
from mambanorm.study.tables import check_frame, describe_frame, seeds_text

sns = Later("seaborn")


@styled
def fig_curves(curves: dict[str, pd.DataFrame], caption: str = "") -> Figure:
    """Training loss and validation accuracy against steps, one line a label (an arm, as a rule); a cross marks where a
    run ended non-finite, and losses are cut at 1.5 times the highest first one. `curves` holds StoredRun.curves;
    `caption` says scale and seeds (describe_frame)."""
    if not curves:
        raise ValueError("there are no curves to draw: give at least one label → curves")
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
    fig.legend(*ax.get_legend_handles_labels(), loc="outside right upper")
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
    return finish(fig, title, _seeds_of(frame, "lines: means, dots: seeds"), caption)


def _seeds_of(frame: pd.DataFrame, shows: str) -> str:
    seeds = frame.seed.nunique()
    return f"{frame.scale.iloc[0]} scale · {seeds_text([seeds])} · {shows if seeds > 1 else 'single runs'}"


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
    basis = _seeds_of(pd.concat(runs.values()), "one line a seed")
    return finish(fig, "Mistakes (dashed) beside their mended twins", basis, "below: means of the tests")


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
        for arm, style in styles.items():
            accuracy = 100 * runs[runs.arm == arm].test_accuracy
            time, colour = latency[(latency.arm == arm) & (latency.rows == n)].iloc[0], style["color"]
            ax.vlines(time.ms, *t_interval(accuracy), color=colour, linewidth=1.3, alpha=0.7)
            ax.hlines(accuracy.mean(), time.low, time.high, color=colour, linewidth=1.3, alpha=0.7)
            face = colour if style["linestyle"] == "-" else "white"
            dot = dict(marker=style["marker"], markersize=6.5, linestyle="", color=colour, markerfacecolor=face)
            ax.plot(time.ms, accuracy.mean(), label=short(arm), **dot)
        ax.set(title="one row" if n == 1 else f"a batch of {n} rows", xlabel="forward pass (ms, median)")
        ax.set_xlim(left=0)
        ax.grid(axis="x")
    axes[0, 0].set_ylabel("test accuracy (%)")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center")
    lines = "lines: 95 % t-interval over the seeds, quartiles of the time"
    where = "on this machine, with the run's threads"
    return finish(fig, "Accuracy against latency", describe_frame(runs, lines), where)


# ---------------------------------------------------------------------------------------------------------------------
# what a training step costs
# ---------------------------------------------------------------------------------------------------------------------

LINEAR_FROM = 512
"""From this length on, a fixed cost no longer shows in the cost per token."""


def _section(frame: pd.DataFrame, name: str, numbers: tuple[str, ...]) -> pd.DataFrame:
    """The rows of one section, what was not measured as NaN. ValueError if there are none or if columns are missing."""
    if missing := [column for column in ("section", "group", "name", "shape", *numbers) if column not in frame]:
        raise ValueError(f"the frame of measurements lacks the columns {', '.join(missing)}: see mambanorm bench")
    rows = frame[frame.section == name]
    if rows.empty:
        raise ValueError(f"the frame holds no rows of section {name!r}: mambanorm bench --only {name} measures it")
    return rows.assign(**{column: pd.to_numeric(rows[column]) for column in numbers})


@styled
def fig_speed(frame: pd.DataFrame, caption: str = "") -> Figure:
    """Time of one training step, a panel a size, a dot an implementation with its quartiles, on one logarithmic axis.

    The number above a dot is its time as a multiple of the floor's; in brackets, a peer's time as a multiple of ours.
    """
    rows = _section(frame, "step", ("median_ms", "low_ms", "high_ms"))
    panels = list(rows.groupby(rows["shape"].map(tuple), sort=False))
    fig, axes = new_figure(1, len(panels), height=4.2, sharey=True)
    names = list(dict.fromkeys(rows.name))
    for ax, (shape, panel) in zip(axes[0], panels, strict=True):
        for row in panel.itertuples():
            x = names.index(row.name)
            if not np.isfinite(row.median_ms):
                foot = dict(transform=ax.get_xaxis_transform(), rotation=90, ha="center", va="bottom")
                ax.text(x, 0.03, row.status, fontsize=8, color=GREY, **foot)
                continue
            if row.name == "floor":
                ax.axhline(row.median_ms, color=GREY, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
            if np.isfinite(row.low_ms):
                ax.vlines(x, row.low_ms, row.high_ms, color=INK, linewidth=1.4, zorder=2)
            colour = {"floor": GREY, "ours": BEST}.get(row.name, COMBINATION)
            ax.plot(x, row.median_ms, "o", markersize=7, color=colour, markeredgecolor="white", zorder=3)
            above(ax, x, np.nanmax([row.median_ms, row.high_ms]), _ratios(row), 7.5, (0, 7))
        ax.set_title(f"({', '.join(map(str, shape[:3]))})", color=INK)
        labels = [name.replace("+", "\n+ ") for name in names]
        ax.set_xticks(range(len(names)), labels, rotation=30, ha="right", rotation_mode="anchor")
        ax.set(xlim=(-0.6, len(names) - 0.4), xlabel="implementation")
    log_axis(axes[0, 0])
    low, high = axes[0, 0].get_ylim()
    axes[0, 0].set_ylim(low / 1.4, high * 3)  # room for the numbers
    axes[0, 0].set_ylabel("time of a training step (ms, log scale)")
    parts = "panels: (rows, length, d_model)", "dots: medians, lines: quartiles", "above: × floor (× ours)"
    return finish(fig, "A training step, beside its floor and its peers", caption, *parts)


def _ratios(row) -> str:
    """`2.3×` of the floor; for a peer also `(20×)` of ours; nothing for the floor itself."""
    texts = {to: f"{r:.1f}×" if r < 9.95 else f"{r:,.0f}×" for to, r in row.ratios.items() if row.name != "floor"}
    lines = [texts["floor"]] if "floor" in texts else []
    return "\n".join(lines + [f"({texts['ours']})"] if "ours" in texts else lines)


@styled
def fig_scaling(frame: pd.DataFrame, caption: str = "") -> Figure:
    """Time and peak memory per token against the length, a line a group; a level line is growth in proportion to it.

    The legend says by how much each line varies from 512 positions on; dashed: the mean of the first group there.
    """
    rows = _section(frame, "length", ("us_per_token", "kb_per_token"))
    rows = rows.assign(length=rows["shape"].str[1])
    fig, axes = new_figure(1, 2, height=3.9)
    panels = {"us_per_token": "time per token (µs, log scale)", "kb_per_token": "peak memory per token (kB, log scale)"}
    for ax, (column, label) in zip(axes[0], panels.items(), strict=True):
        ax.set_ylabel(label)
        if rows[column].isna().all():
            instead(ax, "not measured")
            continue
        for i, (group, line) in enumerate(rows.groupby("group", sort=False)):
            line = line.dropna(subset=column).sort_values("length")
            long = line[column][line.length >= LINEAR_FROM]
            text = f"{group}: varies {long.max() / long.min():.2f}×" if len(long) else group
            style = dict(color=(BEST, COMBINATION)[i % 2], linestyle=("-", "-.")[i % 2], linewidth=1.6, markersize=5)
            ax.plot(line.length, line[column], marker="o", label=text, **style)
            if i == 0 and len(long):
                ax.axhline(long.mean(), color=GREY, linewidth=1.1, linestyle="--", zorder=1)
        lengths = sorted(rows.length.unique())
        ax.set_xscale("log", base=2)
        ax.set_xticks(lengths, [f"{n:,}" for n in lengths], rotation=30)
        ax.xaxis.set_minor_formatter("")
        ax.set_xlabel("length (positions)")
        log_axis(ax)
        low, high = ax.get_ylim()
        ax.set_ylim(low / 1.3, high * 1.9)  # room for the legend
        ax.legend(loc="upper right")
    notes = (f"varies: highest by lowest from length {LINEAR_FROM} on", "dashed: growth in proportion to the length")
    return finish(fig, "What a longer sequence costs", caption, *notes)
