"""Comparisons of arms: the N1 × N2 grid, paired differences, and a norm among all others.

`fresh` is a run frame of the reader's own runs, as of `mambanorm.replicate`.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
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
    ink_on,
    norm_colour,
    norm_marker,
)
from mambanorm_study.figures.panels import AFTER_SSM, TEST_ACCURACY, scored, scored_fresh
from mambanorm_study.figures.style import (
    DPI,
    WIDTH,
    StudyFigure,
    difference_axis,
    finish,
    fresh_note,
    jitter,
    new_figure,
    short,
    sns,
    styled,
)
from mambanorm_study.figures.verdicts import draw_estimate
from mambanorm_study.tables.contrasts import site_gains
from mambanorm_study.tables.run_tables import (
    by_seed,
    check_frame,
    describe_frame,
    seeds_text,
    summarize,
)


@styled
def fig_grid(frame: pd.DataFrame, task: str, *, fresh: pd.DataFrame | None = None) -> Figure:
    """Return the grid N1 × N2 of one task, with mean and sd of the test accuracy in each cell.

    A diamond is the mean of the fresh runs. Raises ValueError if the frame lacks the task.
    """
    check_frame(frame)
    if task not in set(frame.task):
        raise unknown("task of this frame", task, frame.task.unique())
    arms = [f"{n1}>SSM>{n2}" for n1 in PAPER_NORMS for n2 in PAPER_NORMS]
    runs = scored(frame[frame.task == task], arms)
    fresh_means = scored_fresh(fresh, runs).query("task == @task").groupby("arm").percent.mean()
    table = summarize(runs, ["n1", "n2", "arm"])
    table["text"] = [_cell_text(row, fresh_means.get(row.arm)) for _, row in table.iterrows()]
    means, texts = (
        table.pivot(index="n1", columns="n2", values=column).reindex(
            PAPER_NORMS, columns=PAPER_NORMS
        )
        for column in ("mean", "text")
    )
    fig, ((ax,),) = new_figure(height=5.0, width=8.2)
    names = ["none", *PAPER_NORMS[1:]]
    sns.heatmap(
        100 * means,
        annot=texts.fillna(""),
        annot_kws=dict(fontsize=8),
        fmt="",
        ax=ax,
        cmap="YlGnBu",
        alpha=0.9,
        vmin=100 * np.nanquantile(means, 0.1),
        linewidths=2,
        cbar_kws=dict(label=TEST_ACCURACY, pad=0.02, shrink=0.9, extend="min"),
        xticklabels=names,
        yticklabels=names,
    )
    _use_readable_ink(ax, columns=len(names))
    best = table.loc[table["mean"].idxmax()]
    corner = PAPER_NORMS.index(best.n2) + 0.02, PAPER_NORMS.index(best.n1) + 0.03
    ax.add_patch(Rectangle(corner, 0.96, 0.94, fill=False, edgecolor=BEST, linewidth=2.2))
    ax.set(xlabel=AFTER_SSM, ylabel="N₁, the norm before the SSM")
    ax.tick_params(length=0, rotation=0)
    ax.grid(False)
    return finish(
        fig,
        f"Every pair on {task}",
        describe_frame(runs),
        fresh_note(fresh),
        "palest: the lowest tenth, framed: the best mean",
        "blank: not run" if means.isna().any(axis=None) else "",
    )


def _use_readable_ink(ax: Axes, columns: int) -> None:
    """Choose the colour of each cell's text, as seaborn writes white on many light cells."""
    faces = ax.collections[0].get_facecolors()
    for text in ax.texts:
        x, y = map(int, text.get_position())
        text.set_color(ink_on(to_hex(faces[columns * y + x])))


def _cell_text(row: pd.Series, fresh_mean: float | None) -> str:
    """Return the lines of one cell: fresh mean, mean, sd, and how many runs diverged."""
    lines = [] if fresh_mean is None else [f"◇ {fresh_mean:.1f}"]
    lines.append(rf"$\mathbf{{{100 * row['mean']:.1f}}}$")
    lines.append(f"± {100 * row.sd:.1f}" if row.n > 1 else "1 seed")
    if row.diverged:
        lines.append(f"{row.diverged} of {row.n} diverged")
    return "\n".join(lines)


# The colour of a difference → how the caption explains it.
SIGNS = {
    COMBINATION: "blue: above zero",
    NO_NORM: "red: below",
    GREY: "grey: the interval holds zero (open dot)",
}


@styled
def fig_pairs(
    table: pd.DataFrame, caption: str = "", *, fresh: pd.DataFrame | None = None
) -> Figure:
    """Return a forest plot of paired differences, one panel a task.

    table: rows of `tables.paired`; a column `unit` other than "pp" marks differences of a loss. The
    mean is a filled dot if its 95 % interval excludes zero, otherwise an open dot. Small dots are
    seeds, diamonds are two fresh runs of one seed. Raises ValueError for a table without rows.
    """
    if table.empty:
        raise ValueError(
            "the table of paired differences is empty: make one with "
            "mambanorm_study.tables.run_tables.paired"
        )
    fresh_differences = [_fresh_differences(fresh, row) for row in table.itertuples()]
    signs = np.select([table.low > 0, table.high < 0], [COMBINATION, NO_NORM], GREY)
    table = table.assign(fresh=fresh_differences, colour=signs)
    panels = dict(list(table.groupby("task", sort=False)))
    heights = [0.7 + 0.36 * len(panel) for panel in panels.values()]
    fig, axes = new_figure(len(panels), 1, height=sum(heights) + 0.8, height_ratios=heights)
    cut = []
    for ax, (task, panel) in zip(axes[:, 0], panels.items(), strict=True):
        cut.append(_draw_pairs(ax, panel, title=task if len(panels) > 1 else ""))
    has_intervals = table.low.notna().any()
    lines = f"lines: their intervals{', cut at the edge' * any(cut)}, " if has_intervals else ""
    colours = ", ".join(SIGNS[colour] for colour in SIGNS if (table.colour == colour).any())
    uncorrected = "; not corrected for several comparisons" if len(table) > 1 else ""
    return finish(
        fig,
        "Paired differences" + (f", {table.task.iloc[0]}" if len(panels) == 1 else ""),
        caption or f"{_scales(table)}{seeds_text(table.n)} · mean and 95 % t-interval",
        f"large dots: means, {lines}small dots: seeds",
        colours + uncorrected if has_intervals else "",
        "differences within a seed",
        fresh_note(fresh) if any(fresh_differences) else "",
    )


def _scales(table: pd.DataFrame) -> str:
    names = [name for name in table["scale"].unique() if name] if "scale" in table else []
    return f"{', '.join(names)} scale · " if names else ""


def _draw_pairs(ax: Axes, rows: pd.DataFrame, title: str) -> bool:
    """Draw the differences of one task. Return True if an interval is cut at the edge."""
    for y, row in enumerate(rows.itertuples()):
        draw_estimate(
            ax,
            y,
            row.difference,
            row.low,
            row.high,
            row.colour,
            row.per_seed,
            row.fresh,
            is_open=row.colour == GREY,
        )
    difference_axis(ax)
    furthest_seed = np.abs(np.concatenate(rows.per_seed.tolist())).max(initial=0)
    # the interval of two seeds is so wide that it would hide the seeds
    is_cut = rows[["low", "high"]].abs().max(axis=None) > 3 * furthest_seed
    if is_cut:
        ax.set_xlim(-2 * furthest_seed, 2 * furthest_seed)
    ax.set_yticks(
        range(len(rows)), [f"{short(row.a)}  −  {short(row.b)}" for row in rows.itertuples()]
    )
    unit = rows["unit"].iloc[0] if "unit" in rows else "pp"
    label = "difference in test accuracy (percentage points)"
    if unit != "pp":
        label = f"by how much the test loss is lower ({unit})"
    ax.set(title=title, xlabel=label, ylabel="pair", ylim=(len(rows) - 0.5, -0.6))
    return is_cut


def _fresh_differences(fresh: pd.DataFrame | None, row) -> list[float]:
    """Return a − b of the fresh runs of a row's two arms, seed by seed, in the row's unit.

    The list is empty if one of the two arms is missing.
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
    table: pd.DataFrame, caption: str = "", *, fresh: pd.DataFrame | None = None
) -> Figure:
    """Return the gain of each further site over Mamba's own arm, one panel a task.

    table: rows of `contrasts.site_gains`. A marker, one for each norm, is the mean with its 95 %
    t-interval; it is filled if the interval excludes zero. Small dots are seeds, diamonds are gains
    of the fresh runs. Raises ValueError for a table without rows.
    """
    if table.empty:
        raise ValueError(
            "the table has no rows: no arm with one further site was run (experiments.site_arms)"
        )
    tasks, norms = list(dict.fromkeys(table.task)), list(dict.fromkeys(table.norm))
    sites = [site for site in MORE_SITES if site in set(table.site)]
    y = table.site.map(sites.index) + table.norm.map(
        dict(zip(norms, jitter(len(norms), 0.48), strict=True))
    )
    keys = ["task", "site", "norm"]
    gains = site_gains(fresh) if fresh is not None and len(fresh) else table.iloc[:0]
    table = table.assign(y=y).merge(gains[[*keys, "per_seed"]], "left", keys, suffixes=("", "_f"))
    fig, axes = new_figure(1, len(tasks), height=1.6 + 0.42 * max(len(sites), 2), sharey=True)
    for ax, task in zip(axes[0], tasks, strict=True):
        _draw_gains(ax, table[table.task == task])
    axes[0, 0].set_yticks(range(len(sites)), [SYMBOLS.get(site, site) for site in sites])
    axes[0, 0].set(ylabel="site", ylim=(len(sites) - 0.5, -0.5))
    fig.legend(
        handles=[_norm_handle(norm) for norm in norms],
        loc="outside right upper",
        title="norm there",
    )
    return finish(
        fig,
        "One more norm in RMSN→None, site by site",
        caption or f"{seeds_text(table.n)} · mean and 95 % t-interval",
        "right of the line: better than without",
        "filled: the interval does not hold zero",
        "small dots: seeds",
        fresh_note(fresh),
        "not corrected for so many comparisons" if len(table) > len(tasks) else "",
    )


def _draw_gains(ax: Axes, rows: pd.DataFrame) -> None:
    for row in rows.itertuples():
        draw_estimate(
            ax,
            row.y,
            row.gain,
            row.low,
            row.high,
            norm_colour(row.norm),
            row.per_seed,
            row.per_seed_f if isinstance(row.per_seed_f, list) else (),
            is_open=not (row.low > 0 or row.high < 0),
            below=0.1,
            marker=norm_marker(row.norm),
        )
    difference_axis(ax)
    unit = rows.unit.iloc[0]
    label = "gain in test accuracy (points)" if unit == "points" else unit
    ax.set(title=rows.task.iloc[0], xlabel=label)
    ax.locator_params(axis="x", nbins=5)


def _norm_handle(norm: str, **look) -> Line2D:
    return Line2D(
        [], [], label=norm, color=norm_colour(norm), marker=norm_marker(norm), linestyle="", **look
    )


PLACES = ("before", "after", "both", "two norms")  # the rows of a card


@styled
def fig_card(strips: Mapping[str, pd.DataFrame], name: str, caption: str = "") -> Figure:
    """Return the mean of every norm at each place, one panel a task, with one norm circled.

    strips: task → columns arm and mean. name: the norm of the card. Arms of two norms are grey
    dots. Raises ValueError without a task.
    """
    if not strips:
        raise ValueError("there is no task to draw: none of the arms has been run")
    fig = StudyFigure(figsize=(WIDTH, 3.1), dpi=DPI, layout="constrained")
    grid = fig.add_gridspec(1, len(strips))
    norms = []
    for i, (task, table) in enumerate(strips.items()):
        ax = fig.add_subplot(grid[0, i])
        norms += _draw_strip(ax, table, name)
        ax.set(title=task, ylabel="" if i else "the norm stands")
        ax.set_yticks(range(len(PLACES)), [""] * len(PLACES) if i else PLACES)
    handles = [_norm_handle(name, markeredgecolor=INK, markersize=8)]
    handles += [_norm_handle(norm) for norm in dict.fromkeys(norms) if norm != name]
    fig.legend(handles=handles, loc="outside right upper")
    return finish(fig, f"{name} among the norms that are recorded", caption, f"circled: {name}")


def _draw_strip(ax: Axes, table: pd.DataFrame, name: str) -> list[str]:
    """Draw every arm of one task and circle those of the norm. Return the norms that were drawn."""
    norms = []
    for row in table.itertuples():
        place, norm = _place_and_norm(row.arm)
        if norm:
            look = dict(color=norm_colour(norm), marker=norm_marker(norm), markersize=7)
            norms.append(norm)
        else:
            look = dict(color=GREY, marker=".", markersize=4)
        ax.plot(row.mean, place, linestyle="", alpha=0.85, zorder=3, **look)
        if norm == name:
            ax.plot(
                row.mean,
                place,
                "o",
                markersize=14,
                markerfacecolor="none",
                markeredgecolor=INK,
                zorder=4,
            )
    ax.set(
        ylim=(3.6, -0.6),
        xlabel="minus the test loss (bits)" if (table["mean"] < 0).all() else TEST_ACCURACY,
    )
    ax.grid(axis="x")
    return norms


def _place_and_norm(arm: str) -> tuple[int, str]:
    """Return the row of an arm in PLACES, and its only norm ("" if it has two)."""
    n1, n2, further = Arm.parse(arm)
    if further or len({n1, n2} - {"None"}) > 1:
        return 3, ""
    if n1 == n2:
        return 2, n1
    return (0, n1) if n2 == "None" else (1, n2)
