"""Comparisons of arms: the N1 × N2 grid, paired differences, and one norm among all norms.

`fresh` is a run frame of the reader's own runs, from `mambanorm_study.replicate`.
"""

from collections.abc import Iterable, Mapping

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from mambanorm.arms import MORE_SITES, PAPER_NORMS, SYMBOLS, Arm
from mambanorm.errors import unknown
from mambanorm_study.figures.colours import (
    BEST,
    COMBINATION,
    GREY,
    INK,
    NO_NORM,
    norm_colour,
    norm_marker,
)
from mambanorm_study.figures.panels import AFTER_SSM, TEST_ACCURACY, fresh_in_percent, select_runs
from mambanorm_study.figures.style import (
    StudyFigure,
    difference_axis,
    finish,
    fresh_note,
    jitter,
    new_figure,
    short_label,
    sns,
    styled,
)
from mambanorm_study.figures.verdicts import draw_estimate
from mambanorm_study.tables.contrasts import site_gains
from mambanorm_study.tables.run_tables import by_seed, check_frame, describe_frame, summarize


@styled
def fig_grid(frame: pd.DataFrame, task: str, *, fresh: pd.DataFrame | None = None) -> StudyFigure:
    """Return the grid N1 × N2 of one task, with mean and sd of the test accuracy in each cell.

    The number after a diamond is the mean of the runs in `fresh`. Raises ValueError if the frame
    has no runs of the task.
    """
    check_frame(frame)
    if task not in set(frame.task):
        raise unknown("task of this frame", task, frame.task.unique())
    arms = [f"{n1}>SSM>{n2}" for n1 in PAPER_NORMS for n2 in PAPER_NORMS]
    runs = select_runs(frame[frame.task == task], arms)
    fresh_means = fresh_in_percent(fresh, runs).query("task == @task").groupby("arm").percent.mean()
    table = summarize(runs, ["n1", "n2", "arm"])
    table["text"] = [_cell_text(row, fresh_means.get(row.arm)) for _, row in table.iterrows()]
    cells = table.pivot(index="n1", columns="n2", values=["mean", "text"])
    means, texts = (
        cells[column].reindex(PAPER_NORMS, columns=PAPER_NORMS) for column in ("mean", "text")
    )
    means = 100 * means.astype(float)
    fig, ((ax,),) = new_figure(height=5.0, width=8.2)
    sns.heatmap(
        means,
        annot=texts.fillna(""),
        annot_kws=dict(fontsize=8, color=INK),
        fmt="",
        ax=ax,
        # only the pale part of the colour map, because the text in the cells is dark
        cmap=list(matplotlib.colormaps["YlGnBu"](np.linspace(0, 0.6, 256))),
        vmin=np.nanquantile(means, 0.1),
        linewidths=2,
        cbar_kws=dict(label=TEST_ACCURACY, pad=0.02, shrink=0.9, extend="min"),
    )
    best = table.loc[table["mean"].idxmax()]
    corner = PAPER_NORMS.index(best.n2) + 0.02, PAPER_NORMS.index(best.n1) + 0.03
    ax.add_patch(Rectangle(corner, 0.96, 0.94, fill=False, edgecolor=BEST, linewidth=2.2))
    ax.set(xlabel=AFTER_SSM, ylabel="N₁, the norm before the SSM")
    ax.tick_params(length=0, rotation=0)
    ax.grid(visible=False)
    return finish(
        fig,
        f"Every pair on {task}",
        describe_frame(runs),
        fresh_note(fresh),
        "palest cells: the lowest tenth, frame: the best mean",
        "blank: not run" if means.isna().any(axis=None) else "",
    )


def _cell_text(row: pd.Series, fresh_mean: float | None) -> str:
    """Return the text of a cell: the mean of the reader's own runs, if any, and the mean, the sd
    and the number of diverged runs in `row`.
    """
    lines = [] if fresh_mean is None else [f"◇ {fresh_mean:.1f}"]
    lines.append(rf"$\mathbf{{{100 * row['mean']:.1f}}}$")
    lines.append(f"± {100 * row.sd:.1f}" if row.n > 1 else "1 seed")
    if row.diverged:
        lines.append(f"{row.diverged} of {row.n} diverged")
    return "\n".join(lines)


@styled
def fig_pairs(
    table: pd.DataFrame, caption: str, *, fresh: pd.DataFrame | None = None
) -> StudyFigure:
    """Return a forest plot of paired differences, one panel per task.

    table: rows of `run_tables.paired`, for arms a and b. If its column `unit` is not "pp", a
    difference says by how much the test loss of a is below the test loss of b. caption: scale and
    seeds. A large dot is a mean, filled if its 95 % interval excludes zero. Small dots are seeds.
    Diamonds are differences between two runs in `fresh` with the same seed. Raises ValueError for a
    table without rows.
    """
    if table.empty:
        raise ValueError(
            "the table of paired differences is empty: make one with "
            "mambanorm_study.tables.run_tables.paired"
        )
    fresh_differences = [_fresh_differences(fresh, row) for row in table.itertuples()]
    signs = np.select([table.low > 0, table.high < 0], [COMBINATION, NO_NORM], GREY)
    panels = list(table.assign(fresh=fresh_differences, colour=signs).groupby("task", sort=False))
    heights = [0.7 + 0.36 * len(rows) for _, rows in panels]
    fig, axes = new_figure(len(panels), 1, height=sum(heights) + 0.8, height_ratios=heights)
    is_cut = [_draw_pairs(ax, *panel) for ax, panel in zip(axes[:, 0], panels, strict=True)]
    cut = ", cut at the edge" if any(is_cut) else ""
    lines = f"lines: their intervals{cut}, " if table.low.notna().any() else ""
    meanings = {
        COMBINATION: "blue: above zero",
        NO_NORM: "red: below zero",
        GREY: "grey and open: the interval contains zero",
    }
    return finish(
        fig,
        "Paired differences",
        caption,
        f"large dots: means, {lines}small dots: seeds",
        ", ".join(text for colour, text in meanings.items() if lines and colour in signs),
        "not corrected for several comparisons" if len(table) > 1 else "",
        "differences between runs with the same seed",
        fresh_note(fresh) if any(fresh_differences) else "",
    )


def _draw_pairs(ax: Axes, task: str, rows: pd.DataFrame) -> bool:
    """Draw the differences of one task, a row per pair. Return True if an interval is cut off at
    the edge of the axis.
    """
    for y, row in enumerate(rows.itertuples()):
        is_open = row.colour == GREY
        draw_estimate(
            ax,
            y,
            row.difference,
            row.low,
            row.high,
            row.colour,
            row.per_seed,
            row.fresh,
            is_open=is_open,
        )
    difference_axis(ax)
    furthest_seed = np.abs(np.concatenate(rows.per_seed.tolist())).max(initial=0)
    # an interval from two seeds can be so wide that the dots of the seeds would coincide on an axis
    # with the whole interval
    is_cut = rows[["low", "high"]].abs().max(axis=None) > 3 * furthest_seed
    if is_cut:
        ax.set_xlim(-2 * furthest_seed, 2 * furthest_seed)
    pairs = [f"{short_label(row.a)}  −  {short_label(row.b)}" for row in rows.itertuples()]
    ax.set_yticks(range(len(rows)), pairs)
    unit = rows["unit"].iloc[0] if "unit" in rows else "pp"
    label = "difference in test accuracy (percentage points)"
    if unit != "pp":
        label = f"by how much the test loss is lower ({unit})"
    ax.set(title=task, xlabel=label, ylabel="pair", ylim=(len(rows) - 0.5, -0.6))
    return is_cut


def _fresh_differences(fresh: pd.DataFrame | None, row) -> list[float]:
    """Return the differences of arm row.a minus arm row.b between runs in `fresh`, one per seed, in
    the row's unit.

    The list is empty if `fresh` lacks one of the two arms.
    """
    if fresh is None or not {row.a, row.b} <= set(fresh.arm[fresh.task == row.task]):
        return []
    value, factor = "test_accuracy", 100
    if getattr(row, "unit", "pp") != "pp":
        value, factor = "test_loss", -1 / np.log(2)
    a, b = (by_seed(fresh, row.task, arm, value) for arm in (row.a, row.b))
    return (factor * (a - b)).dropna().tolist()


@styled
def fig_site_gains(
    table: pd.DataFrame, caption: str, *, fresh: pd.DataFrame | None = None
) -> StudyFigure:
    """Return a figure of how much a norm at one further site gains in Mamba's RMSN→None, one panel
    per task.

    table: rows of `contrasts.site_gains`. caption: scale and seeds. A large marker is a mean gain
    with its 95 % t-interval; the shape of the marker shows the norm, and the marker is filled if
    the interval excludes zero. Small dots are seeds, diamonds are gains in `fresh`. Raises
    ValueError for a table without rows.
    """
    if table.empty:
        raise ValueError(
            "the table has no rows: no arm with one further site was run (experiments.site_arms)"
        )
    norms = list(table.norm.unique())
    sites = [site for site in MORE_SITES if site in set(table.site)]
    offsets = dict(zip(norms, jitter(len(norms), 0.48), strict=True))
    table = table.assign(y=table.site.map(sites.index) + table.norm.map(offsets))
    keys = ["task", "site", "norm"]
    gains = site_gains(fresh) if fresh is not None and len(fresh) else table.iloc[:0]
    table = table.merge(gains[[*keys, "per_seed"]], "left", keys, suffixes=("", "_fresh"))
    panels = list(table.groupby("task", sort=False))
    fig, axes = new_figure(1, len(panels), height=1.6 + 0.42 * max(len(sites), 2), sharey=True)
    for ax, (task, rows) in zip(axes[0], panels, strict=True):
        _draw_gains(ax, rows)
        ax.set_title(task)
    axes[0, 0].set_yticks(range(len(sites)), [SYMBOLS.get(site, site) for site in sites])
    axes[0, 0].set(ylabel="site", ylim=(len(sites) - 0.5, -0.5))
    _norm_legend(fig, norms, title="norm at the site")
    return finish(
        fig,
        "One more norm in RMSN→None, site by site",
        caption,
        "right of the line: better with the norm than without it",
        "filled: the interval excludes zero",
        "small dots: seeds",
        fresh_note(fresh),
        "not corrected for several comparisons" if len(table) > len(panels) else "",
    )


def _draw_gains(ax: Axes, rows: pd.DataFrame) -> None:
    """Draw the mean gains of one task, with their intervals and seeds."""
    for row in rows.itertuples():
        is_open = not (row.low > 0 or row.high < 0)
        style = dict(marker=norm_marker(row.norm), is_open=is_open, below=0.1)
        fresh = row.per_seed_fresh if isinstance(row.per_seed_fresh, list) else ()
        interval = row.gain, row.low, row.high
        draw_estimate(ax, row.y, *interval, norm_colour(row.norm), row.per_seed, fresh, **style)
    difference_axis(ax)
    unit = rows.unit.iloc[0]
    ax.set_xlabel("gain in test accuracy (points)" if unit == "points" else unit)
    ax.locator_params(axis="x", nbins=5)


def _norm_legend(fig: StudyFigure, norms: Iterable[str], title: str = "") -> None:
    """Add a legend with the colour and the marker of each norm."""
    styles = {norm: dict(color=norm_colour(norm), marker=norm_marker(norm)) for norm in norms}
    handles = [Line2D([], [], label=norm, linestyle="", **style) for norm, style in styles.items()]
    fig.legend(handles=handles, loc="outside right upper", title=title)


TWO_NORMS = "two norms"


@styled
def fig_card(
    means: Mapping[str, pd.DataFrame],
    name: str,
    caption: str = "",
) -> StudyFigure:
    """Return the figure of a norm's card: the mean test result of every arm, one panel per task.

    A card is a summary of one norm, see `mambanorm card`. The row of a dot says where the arm has
    its norm. Arms with two norms or with a norm at a further site are small grey dots. means: task
    → frame with the columns arm and mean (test accuracy in per cent, or minus the test loss in
    bits). name: the norm whose arms are circled.
    """
    fig, axes = new_figure(1, len(means), height=3.1, sharey=True)
    arms = pd.concat(means, names=["task"]).reset_index("task")
    arms[["row", "norm"]] = [_row_and_norm(arm) for arm in arms.arm]
    for ax, (task, rows) in zip(axes[0], arms.groupby("task", sort=False), strict=True):
        for norm, dots in rows.groupby("norm", sort=False):
            style = dict(color=norm_colour(norm), marker=norm_marker(norm), markersize=7)
            if norm == TWO_NORMS:
                style = dict(color=GREY, marker=".", markersize=4)
            ax.plot(dots["mean"], dots.row, linestyle="", alpha=0.85, zorder=3, **style)
        circled, circle = rows[rows.norm == name], dict(markerfacecolor="none", zorder=4)
        ax.plot(circled["mean"], circled.row, "o", markersize=14, markeredgecolor=INK, **circle)
        is_loss = (rows["mean"] < 0).all()
        ax.set(title=task, xlabel="minus the test loss (bits)" if is_loss else TEST_ACCURACY)
        ax.grid(axis="x")
    axes[0, 0].set_yticks(range(4), ["before", "after", "both", TWO_NORMS])
    axes[0, 0].set(ylim=(3.6, -0.6), ylabel="where the norm is")
    _norm_legend(fig, dict.fromkeys([name, *arms.norm[arms.norm != TWO_NORMS]]))
    return finish(fig, f"{name} among the recorded norms", caption, f"circled: {name}")


def _row_and_norm(arm: str) -> tuple[int, str]:
    """Return the row (0 to 3) in which `fig_card` draws an arm, and the arm's only norm, or
    TWO_NORMS for an arm with two norms or with a norm at a further site.
    """
    n1, n2, further = Arm.parse(arm)
    if further or len({n1, n2} - {"None"}) > 1:
        return 3, TWO_NORMS
    if n1 == n2:
        return 2, n1
    return (0, n1) if n2 == "None" else (1, n2)
