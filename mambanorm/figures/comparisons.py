"""Arms compared with each other: the N1 × N2 grid, learning curves, paired differences.

fig_grid        every pair of norms, from the run frame
fig_curves      loss and validation accuracy over the steps, from `StoredRun.curves`
fig_pairs       differences between two arms, from `tables.paired`
fig_validation  Table 2 as a picture: N1 × N2
fig_halves      IN taken apart, from `halves.with_halves`

`fresh` is a run frame of the reader's own runs, as of `mambanorm.replicate`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mambanorm.arms import PAPER_NORMS, Arm
from mambanorm.basics.errors import unknown
from mambanorm.figures.accuracy import (
    TEST_ACCURACY,
    bar,
    diamonds,
    headroom,
    keep_arms,
    n1_dot,
    norm_ticks,
    seed_dots,
    seeds_of,
    task_panels,
)
from mambanorm.figures.style import (
    BEST,
    COMBINATION,
    GREY,
    INK,
    NO_NORM,
    arm_styles,
    finish,
    jitter,
    new_figure,
    norm_colour,
    own_run,
    own_runs,
    short,
    styled,
    whole_ticks,
)
from mambanorm.study.paper import PATTERN_ONLY, paper_values
from mambanorm.study.tables import SAME_TASK, by_seed, check_frame, describe_frame, seeds_text, summarize


@styled
def fig_grid(
    frame: pd.DataFrame, task: str, norms: Sequence[str] = PAPER_NORMS, *, fresh: pd.DataFrame | None = None
) -> Figure:
    """The grid N1 × N2 of one task: mean and sd of the test accuracy in each cell, with a diamond the mean of its fresh
    runs; blank where nothing was run."""
    check_frame(frame)
    if task not in set(frame.task):
        raise unknown("task of this frame", task, frame.task.unique())
    frame = keep_arms(frame[frame.task == task], [f"{n1}>SSM>{n2}" for n1 in norms for n2 in norms])
    table = summarize(frame).set_index("arm")
    means = np.array([[100 * table["mean"].get(f"{n1}>SSM>{n2}", np.nan) for n2 in norms] for n1 in norms])
    fig, axes = new_figure(height=5.0, width=8.2)
    ax = axes[0, 0]
    image = ax.imshow(means, cmap="YlGnBu", aspect="auto", alpha=0.9)
    fig.colorbar(image, ax=ax, label=TEST_ACCURACY, pad=0.02, shrink=0.9).outline.set_visible(False)
    for (i, j), mean in np.ndenumerate(means):
        if np.isfinite(mean):
            dark = image.norm(mean) > 0.55
            arm = f"{norms[i]}>SSM>{norms[j]}"
            _cell(ax, j, i, table.loc[arm], seeds_of(fresh, task, arm), "white" if dark else INK)
    _frame_grid(ax, means, norms)
    blank = "blank: not run" if np.isnan(means).any() else ""
    return finish(fig, f"Every pair on {task}", describe_frame(frame), own_runs(fresh), "framed: the best mean", blank)


def _cell(ax: Axes, x: int, y: int, row: pd.Series, own: np.ndarray, colour: str) -> None:
    """Mean, sd, the mean of fresh runs, and how many of the seeds diverged."""
    ax.text(x, y - 0.12, f"{100 * row['mean']:.1f}", ha="center", va="center", color=colour, fontsize=10)
    if len(own):
        ax.text(x, y - 0.35, f"◇ {own.mean():.1f}", ha="center", va="center", color=colour, fontsize=7.5)
    spread = f"± {100 * row.sd:.1f}" if row.n > 1 else "1 seed"
    ax.text(x, y + 0.17, spread, ha="center", va="center", color=colour, fontsize=7.5, alpha=0.9)
    if row.diverged:
        style = dict(fill=False, edgecolor=NO_NORM, linestyle=":", linewidth=1.3)
        ax.add_patch(Rectangle((x - 0.46, y - 0.45), 0.92, 0.9, **style))
        text = f"{row.diverged} of {row.n} diverged"
        ax.text(x, y + 0.37, text, ha="center", va="center", color=NO_NORM, fontsize=6.5, weight="bold")


def _frame_grid(ax: Axes, means: np.ndarray, norms: Sequence[str]) -> None:
    """White lines between cells, names of the norms, a frame around the best cell."""
    n = len(norms)
    names = ["none" if name == "None" else name for name in norms]
    ax.set_xticks(range(n), names)
    ax.set_yticks(range(n), names)
    ax.set(xlabel="N₂, the norm after the SSM", ylabel="N₁, the norm before the SSM")
    ax.grid(False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    for k in range(1, n):
        ax.axhline(k - 0.5, color="white", linewidth=2)
        ax.axvline(k - 0.5, color="white", linewidth=2)
    if np.isfinite(means).any():
        i, j = np.unravel_index(np.nanargmax(means), means.shape)
        ax.add_patch(Rectangle((j - 0.47, i - 0.46), 0.94, 0.92, fill=False, edgecolor=BEST, linewidth=2.2))


@styled
def fig_curves(curves: dict[str, pd.DataFrame], caption: str = "") -> Figure:
    """Training loss and validation accuracy against steps, one line a label (an arm, as a rule); a cross marks where a
    run ended non-finite, and losses are cut at 1.5 times the highest first one. `curves` holds StoredRun.curves;
    `caption` says scale and seeds (describe_frame)."""
    if not curves:
        raise ValueError("there are no curves to draw: give at least one label → curves")
    fig, axes = new_figure(1, 2, height=3.8)
    ceiling = 1.5 * np.nanmax([curve.train_loss.iloc[0] for curve in curves.values()])
    for label, style in arm_styles(list(curves)).items():
        _loss(axes[0, 0], curves[label], ceiling, label=short(label), linewidth=1.4, markersize=4, **style)
        scored = curves[label].dropna(subset="val_accuracy")
        axes[0, 1].plot(scored.step, 100 * scored.val_accuracy, markersize=4, linewidth=1.4, **style)
    axes[0, 0].set(xlabel="step", ylabel="training loss (nats)")
    axes[0, 1].set(xlabel="step", ylabel="validation accuracy (%)")
    for ax in axes[0]:
        whole_ticks(ax)
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center")
    smooth = "loss: running mean over 10 steps"
    cut = f"cut at {ceiling:.1f}" if any((curve.train_loss > ceiling).any() for curve in curves.values()) else ""
    return finish(fig, "Learning curves", caption or seeds_text([1]), smooth, cut)


def _loss(ax: Axes, curve: pd.DataFrame, ceiling: float, **style) -> None:
    """One smoothed loss; a cross at its end if the last loss or gradient was not finite."""
    finite = curve[np.isfinite(curve.train_loss)]
    loss = finite.train_loss.clip(upper=ceiling).rolling(10, min_periods=1).mean()
    ax.plot(finite.step, loss, markevery=max(1, len(loss) // 6), **style)
    last = curve.iloc[-1]
    if len(finite) and not np.isfinite([last.train_loss, last.get("grad_norm", 0.0)]).all():
        cross = dict(markersize=8, markeredgecolor=INK, zorder=5, clip_on=False)
        ax.plot(finite.step.iloc[-1], loss.iloc[-1], "X", color=style["color"], **cross)


@styled
def fig_pairs(
    table: pd.DataFrame, caption: str = "", *, corrected: bool = False, fresh: pd.DataFrame | None = None
) -> Figure:
    """Forest plot of paired differences (rows of `tables.paired`): mean, 95 % interval, a small dot a seed, a diamond
    for two fresh runs of one seed. The mean is a filled dot if the interval excludes zero, else an open one.
    `corrected`: the intervals are, for several comparisons; the caption then says over what. A column `unit` other than
    "pp" stands for a loss."""
    if table.empty:
        raise ValueError("the table of paired differences is empty: make one with mambanorm.tables.paired")
    fig, axes = new_figure(height=1.5 + 0.36 * len(table))
    ax = axes[0, 0]
    for y, row in enumerate(table.itertuples()):
        _pair(ax, y, row)
        if own := _own_differences(fresh, row):
            ax.plot(own, np.full(len(own), y + 0.2), label="own", **own_run(size=5))
    own = own_runs(fresh) if any(line.get_label() == "own" for line in ax.lines) else ""
    ax.axvline(0, color=GREY, linewidth=1, zorder=1)
    several = table.task.nunique() > 1
    names = [f"{short(row.a)}  −  {short(row.b)}{f'   {row.task}' * several}" for row in table.itertuples()]
    ax.set_yticks(range(len(table)), names)
    unit = table["unit"].iloc[0] if "unit" in table else "pp"
    in_points = "difference in test accuracy (percentage points)"
    xlabel = in_points if unit == "pp" else f"by how much the test loss is lower ({unit})"
    ax.set(xlabel=xlabel, ylabel="pair", ylim=(len(table) - 0.5, -0.6))
    ax.grid(axis="x")
    ax.grid(visible=False, axis="y")
    scales = ", ".join(filter(None, table["scale"].unique())) if "scale" in table else ""
    seeds = f"{scales} scale · {seeds_text(table.n)}" if scales else seeds_text(table.n)
    title = "Paired differences" + f", {table.task.iloc[0]}" * (not several)
    known = bool(table.low.notna().any())
    words = ", ".join(filter(None, ("large dots: means", "lines: their intervals" * known, "small dots: seeds")))
    colours = "blue: above zero, red: below, grey: the interval holds zero (open dot)" * known
    colours += "; not corrected for several comparisons" * (known and len(table) > 1 and not corrected)
    shows = caption or f"{seeds} · mean and 95 % t-interval"
    return finish(fig, title, shows, words, colours, "differences within a seed", own)


def _own_differences(fresh: pd.DataFrame | None, row) -> list[float]:
    """a − b of the fresh runs of a row's two arms, seed by seed, in the row's unit; [] where one of them is missing."""
    if fresh is None or not {row.a, row.b} <= set(fresh.arm[fresh.task == row.task]):
        return []
    in_points = getattr(row, "unit", "pp") == "pp"
    value, factor = ("test_accuracy", 100) if in_points else ("test_loss", -1 / np.log(2))
    a, b = (by_seed(fresh, row.task, arm, value) for arm in (row.a, row.b))
    return (factor * (a - b)).dropna().tolist()


def _pair(ax: Axes, y: float, row) -> None:
    """One row: blue above zero, red below, grey and open where the interval holds zero or one seed gives none."""
    colour = COMBINATION if row.low > 0 else NO_NORM if row.high < 0 else GREY
    if np.isfinite(row.low):
        ax.hlines(y, row.low, row.high, color=colour, linewidth=2)
    ax.plot(row.per_seed, np.full(len(row.per_seed), y + 0.2), "o", markersize=2.6, color=colour, alpha=0.6)
    face, edge = ("white", colour) if colour == GREY else (colour, "white")
    ax.plot(row.difference, y, "o", markersize=6.5, markerfacecolor=face, markeredgecolor=edge, zorder=3)


@styled
def fig_validation(
    frame: pd.DataFrame, n1s: Sequence[str] = ("RMSN", "NormVary"), *, fresh: pd.DataFrame | None = None
) -> Figure:
    """Table 2 taken apart: accuracy against N2, a line for each N1. Parallel lines mean that the effect of one norm
    does not depend on the other. Crosses: what the paper prints for the task of the same name."""
    n2s = [n2 for n2 in ("None", "GN", "LN") if frame.arm.str.endswith(f">{n2}").any()]
    frame = keep_arms(frame, [f"{n1}>SSM>{n2}" for n1 in n1s for n2 in n2s])
    fig, panels, _ = task_panels(frame, chance=False)
    table_2 = paper_values("sequence").query("source == 'Table 2'")
    for task, ax in panels.items():
        printed = table_2[table_2.task == SAME_TASK.get(task)]
        for i, n1 in enumerate(n1s):
            seeds = {x + 0.12 * (i - 0.5): seeds_of(frame, task, f"{n1}>SSM>{n2}") for x, n2 in enumerate(n2s)}
            seeds = {x: values for x, values in seeds.items() if len(values)}
            for x, n2 in enumerate(n2s):
                diamonds(ax, x + 0.24 * (i - 0.5), seeds_of(fresh, task, f"{n1}>SSM>{n2}"), colour=norm_colour(n1))
            line = n1_dot(n1) | dict(linestyle="-" if i == 0 else "--", markeredgecolor=norm_colour(n1))
            ax.plot(list(seeds), [v.mean() for v in seeds.values()], label=n1, zorder=3, **line)
            for x, values in seeds.items():
                ax.plot(x + jitter(len(values), 0.08), values, "o", **seed_dots(norm_colour(n1)))
        for arm, percent_printed in zip(printed.arm, 100 * printed.accuracy, strict=True):
            n1, n2, _ = Arm.parse(arm)
            if n2 not in n2s:
                continue
            ax.plot(n2s.index(n2), percent_printed, "x", markersize=7, color=norm_colour(n1))
        norm_ticks(ax, n2s, "N₂, the norm after the SSM")
    axes = list(panels.values())
    axes[0].legend(title="N₁, before the SSM", loc="best", title_fontsize=8.5)
    crosses = f"crosses: the paper's Table 2, {PATTERN_ONLY}" * any(task in SAME_TASK for task in panels)
    notes = ("small dots: seeds", own_runs(fresh), crosses)
    return finish(fig, "Whose gain is it: N₁'s or N₂'s?", describe_frame(frame, "means and seeds"), *notes)


@styled
def fig_halves(frame: pd.DataFrame) -> Figure:
    """IN taken apart: a bar for each part of it (column `part` of `with_halves`), a panel a task."""
    check_frame(frame, ("part", "task", "arm", "seed", "test_accuracy"))
    fig, panels, _ = task_panels(frame)
    parts = list(dict.fromkeys(frame.part))
    for task, ax in panels.items():
        here = frame[frame.task == task]
        for x, part in enumerate(parts):
            runs = here[here.part == part]
            whole = not part.startswith(("mean", "divided"))
            values = 100 * runs.test_accuracy.dropna().to_numpy()
            bar(
                ax, x, values, norm_colour(Arm.parse(runs.arm.iloc[0]).n1), light=not whole, hatch="" if whole else "//"
            )
        ax.set_xticks(range(len(parts)), [part.replace(" ", "\n") for part in parts], fontsize=8)
        ax.set(xlabel="norm before and after the SSM")
        headroom(ax)
    return finish(
        fig, "What does IN take away?", describe_frame(frame), "dotted: chance", "hatched: one half of IN alone"
    )
