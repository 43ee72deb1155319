"""Arms compared with each other: the N1 × N2 grid, differences with their intervals, a norm among
all others.

`fresh` is a run frame of the reader's own runs, as of `mambanorm.replicate`.
"""

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from mambanorm.arms import MORE_SITES, PAPER_NORMS, SYMBOLS, Arm
from mambanorm.errors import unknown
from mambanorm_study.figures.accuracy import TEST_ACCURACY, own_of, scored
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
from mambanorm_study.figures.style import (
    DPI,
    WIDTH,
    StudyFigure,
    finish,
    jitter,
    new_figure,
    own_runs,
    panel_grid,
    short,
    sns,
    styled,
    upright,
)
from mambanorm_study.figures.verdicts import WORD_COLOURS, estimate, legend, spelled
from mambanorm_study.tables.contrasts import site_gains
from mambanorm_study.tables.run_tables import (
    by_seed,
    check_frame,
    describe_frame,
    seeds_text,
    summarize,
)


@styled
def fig_grid(
    frame: pd.DataFrame,
    task: str,
    norms: Sequence[str] = PAPER_NORMS,
    *,
    fresh: pd.DataFrame | None = None,
) -> Figure:
    """The grid N1 × N2 of one task: mean and sd of the test accuracy in each cell, with a diamond
    the mean of its fresh runs; blank where nothing was run."""
    check_frame(frame)
    if task not in set(frame.task):
        raise unknown("task of this frame", task, frame.task.unique())
    runs = scored(frame[frame.task == task], [f"{n1}>SSM>{n2}" for n1 in norms for n2 in norms])
    own = own_of(fresh, runs)
    own = own[own.task == task].groupby("arm").percent.mean()
    table = summarize(runs, ["n1", "n2", "arm"])
    table["words"] = [
        f"◇ {own.get(row['arm'], 0):.1f}\n" * (row["arm"] in own)
        + rf"$\mathbf{{{100 * row['mean']:.1f}}}$"
        + (f"\n± {100 * row.sd:.1f}" if row.n > 1 else "\n1 seed")
        + f"\n{row.diverged} of {row.n} diverged" * bool(row.diverged)
        for _, row in table.iterrows()
    ]
    means, words = (
        table.pivot(index="n1", columns="n2", values=name).reindex(index=norms, columns=norms)
        for name in ("mean", "words")
    )
    fig, ((ax,),) = new_figure(height=5.0, width=8.2)
    names = ["none" if name == "None" else name for name in norms]
    bar = dict(label=TEST_ACCURACY, pad=0.02, shrink=0.9, extend="min")
    colours = dict(
        cmap="YlGnBu", alpha=0.9, linewidths=2, cbar_kws=bar, vmin=100 * np.nanquantile(means, 0.1)
    )
    colours |= dict(xticklabels=names, yticklabels=names, annot_kws=dict(fontsize=8), fmt="")
    sns.heatmap(100 * means, annot=words.fillna(""), ax=ax, **colours)
    faces = ax.collections[0].get_facecolors()
    for text in ax.texts:  # seaborn's own choice is white on much that is light
        x, y = map(int, text.get_position())
        text.set_color(ink_on(to_hex(faces[len(norms) * y + x])))
    best = table.loc[table["mean"].idxmax()]
    corner = list(norms).index(best.n2) + 0.02, list(norms).index(best.n1) + 0.03
    ax.add_patch(Rectangle(corner, 0.96, 0.94, fill=False, edgecolor=BEST, linewidth=2.2))
    ax.set(xlabel="N₂, the norm after the SSM", ylabel="N₁, the norm before the SSM")
    ax.tick_params(length=0, rotation=0)
    ax.grid(visible=False)
    blank = "blank: not run" if means.isna().any(axis=None) else ""
    marks = "palest: the lowest tenth, framed: the best mean"
    return finish(fig, f"Every pair on {task}", describe_frame(runs), own_runs(fresh), marks, blank)


@styled
def fig_pairs(
    table: pd.DataFrame,
    caption: str = "",
    *,
    corrected: bool = False,
    fresh: pd.DataFrame | None = None,
) -> Figure:
    """Forest plot of paired differences (rows of `tables.paired`): mean, 95 % interval, a small dot
    a seed, a diamond for two fresh runs of one seed. The mean is a filled dot if the interval
    excludes zero, else an open one. `corrected`: the intervals are corrected for several
    comparisons; the caption says for which. A column `unit` other than "pp" stands for a loss."""
    if table.empty:
        raise ValueError(
            "the table of paired differences is empty: make one with mambanorm_study.tables.run_tables.paired"
        )
    panels = dict(list(table.groupby("task", sort=False)))
    heights = [0.7 + 0.36 * len(panel) for panel in panels.values()]
    fig, axes = new_figure(len(panels), 1, height=sum(heights) + 0.8, height_ratios=heights)
    drawn, has_own, cut = set(), False, ""
    for ax, (task, panel) in zip(axes[:, 0], panels.items(), strict=True):
        for y, row in enumerate(panel.itertuples()):
            colour = COMBINATION if row.low > 0 else NO_NORM if row.high < 0 else GREY
            drawn.add(colour)
            own = _own_differences(fresh, row)
            has_own = has_own or bool(own)
            dot = dict(markerfacecolor="white", markeredgecolor=GREY) if colour == GREY else {}
            estimate(ax, y, row.difference, row.low, row.high, colour, row.per_seed, own, **dot)
        upright(ax)
        seeds = np.abs(np.concatenate(panel.per_seed.tolist())).max(initial=0)
        if (
            panel[["low", "high"]].abs().max(axis=None) > 3 * seeds
        ):  # the interval of two seeds, say
            ax.set_xlim(-2 * seeds, 2 * seeds)
            cut = ", cut at the edge"
        ax.set_yticks(
            range(len(panel)), [f"{short(row.a)}  −  {short(row.b)}" for row in panel.itertuples()]
        )
        unit = panel["unit"].iloc[0] if "unit" in panel else "pp"
        in_points = "difference in test accuracy (percentage points)"
        xlabel = in_points if unit == "pp" else f"by how much the test loss is lower ({unit})"
        ax.set(
            xlabel=xlabel,
            ylabel="pair",
            ylim=(len(panel) - 0.5, -0.6),
            title=task if len(panels) > 1 else "",
        )
    scales = ", ".join(filter(None, table["scale"].unique())) if "scale" in table else ""
    seeds = f"{scales} scale · {seeds_text(table.n)}" if scales else seeds_text(table.n)
    title = "Paired differences" + f", {task}" * (len(panels) == 1)
    known = bool(table.low.notna().any())
    words = "large dots: means, " + f"lines: their intervals{cut}, " * known + "small dots: seeds"
    said = {
        COMBINATION: "blue: above zero",
        NO_NORM: "red: below",
        GREY: "grey: the interval holds zero (open dot)",
    }
    colours = ", ".join(words for colour, words in said.items() if colour in drawn) * known
    colours += "; not corrected for several comparisons" * (
        known and len(table) > 1 and not corrected
    )
    shows = caption or f"{seeds} · mean and 95 % t-interval"
    return finish(
        fig,
        title,
        shows,
        words,
        colours,
        "differences within a seed",
        own_runs(fresh) if has_own else "",
    )


def _own_differences(fresh: pd.DataFrame | None, row) -> list[float]:
    """a − b of the fresh runs of a row's two arms, seed by seed, in the row's unit; [] where one of
    them is missing."""
    if fresh is None or not {row.a, row.b} <= set(fresh.arm[fresh.task == row.task]):
        return []
    in_points = getattr(row, "unit", "pp") == "pp"
    value, factor = ("test_accuracy", 100) if in_points else ("test_loss", -1 / np.log(2))
    a, b = (by_seed(fresh, row.task, arm, value) for arm in (row.a, row.b))
    return (factor * (a - b)).dropna().tolist()


@styled
def fig_site_gains(
    table: pd.DataFrame, caption: str = "", *, fresh: pd.DataFrame | None = None
) -> Figure:
    """A panel a task, a row a site: mean gain over Mamba's own arm with its 95 % t-interval, a
    small dot a seed, a marker for each norm, filled where the interval does not hold zero. `fresh`:
    a run frame of the reader's own runs, whose gains are diamonds. ValueError for a table without
    rows."""
    if table.empty:
        raise ValueError(
            "the table has no rows: no arm with one further site was run (experiments.site_arms)"
        )
    tasks, norms = list(dict.fromkeys(table.task)), list(dict.fromkeys(table.norm))
    sites = [site for site in MORE_SITES if site in set(table.site)]
    shift = dict(zip(norms, jitter(len(norms), 0.48), strict=True))
    own = site_gains(fresh) if fresh is not None and len(fresh) else table.iloc[:0]
    fig, axes = new_figure(1, len(tasks), height=1.6 + 0.42 * max(len(sites), 2), sharey=True)
    for ax, task in zip(axes[0], tasks, strict=True):
        rows = table[table.task == task]
        for row in rows.itertuples():
            y, colour = sites.index(row.site) + shift[row.norm], norm_colour(row.norm)
            ours = (
                own.per_seed[
                    (own.task == task) & (own.site == row.site) & (own.norm == row.norm)
                ].sum()
                or ()
            )
            dot = (
                {}
                if row.low > 0 or row.high < 0
                else dict(markerfacecolor="white", markeredgecolor=colour)
            )
            dot |= dict(marker=norm_marker(row.norm), below=0.1)
            estimate(ax, y, row.gain, row.low, row.high, colour, row.per_seed, ours, **dot)
        upright(ax)
        unit = rows.unit.iloc[0]
        ax.set(title=task, xlabel="gain in test accuracy (points)" if unit == "points" else unit)
        ax.locator_params(axis="x", nbins=5)
    axes[0, 0].set_yticks(range(len(sites)), [SYMBOLS.get(site, site) for site in sites])
    axes[0, 0].set(ylabel="site", ylim=(len(sites) - 0.5, -0.5))
    dots = [
        Line2D([], [], color=norm_colour(n), marker=norm_marker(n), linestyle="", label=n)
        for n in norms
    ]
    fig.legend(handles=dots, loc="outside right upper", title="norm there")
    basis = caption or f"{seeds_text(table.n)} · mean and 95 % t-interval"
    notes = (
        "right of the line: better than without",
        "filled: the interval does not hold zero",
        "small dots: seeds",
    )
    several = "not corrected for so many comparisons" if len(table) > len(tasks) else ""
    return finish(
        fig, "One more norm in RMSN→None, site by site", basis, *notes, own_runs(fresh), several
    )


@styled
def fig_budget(table: pd.DataFrame, caption: str = "") -> Figure:
    """Return a panel for each claim and task: the deciding comparison over the steps
    (`claims.pages.over_budget`), its interval, and its word below. ValueError for a table without
    rows."""
    if table.empty:
        raise ValueError("the table has no rows: none of these claims has been run over the budget")
    panels = [panel for _, panel in table.groupby(["claim", "task"], sort=False)]
    fig, axes = panel_grid(len(panels), 3, row=2.3, more=0.9)
    for ax, panel in zip(axes, panels, strict=True):
        first, places = panel.iloc[0], np.arange(len(panel))
        ax.axhline(first.smallest, color=GREY, linewidth=1.2)
        ax.plot(places, panel.effect, color=GREY, linewidth=0.9, alpha=0.6)
        for x, row in enumerate(panel.itertuples()):
            colour = WORD_COLOURS[row.word][0]
            ax.vlines(x, row.low, row.high, color=colour, linewidth=2.2)
            ax.plot(
                x, row.effect, "o", markersize=6.5, color=colour, markeredgecolor="white", zorder=3
            )
        ax.set_xticks(
            places, (panel.steps.map("{:,}".format) + "\n" + panel.word).tolist(), fontsize=7
        )
        for tick, word in zip(ax.get_xticklabels(), panel.word, strict=True):
            tick.set_color(WORD_COLOURS[word][0])
        ax.set(
            xlim=(-0.5, len(panel) - 0.5),
            title=f"{first.claim}, {first.task}",
            ylabel=spelled(first.unit),
        )
        ax.set_xlabel("steps")
    dots = "dot and line: the comparison that decides at all steps, with its 95 % interval, in the colour of its word"
    notes = (dots, "grey line: the smallest effect of interest", *legend(table.word))
    return finish(
        fig,
        "Fast or good? The effect over the training budget",
        caption,
        seeds_text(table.n),
        *notes,
    )


@styled
def fig_card(
    strips: Mapping[str, pd.DataFrame],
    name: str,
    caption: str = "",
    *,
    title: str = "",
    lines: Sequence[str] = (),
) -> Figure:
    """A panel a task, a row a place: every norm that was run there at its mean (frames with columns
    arm and mean), the one of the card circled. Arms of two norms are grey dots below. `lines`: what
    is said above the panels, for the head of a card that stands alone. ValueError without a
    task."""
    if not strips:
        raise ValueError("there is no task to draw: none of the arms has been run")
    text = [part for line in lines for part in (*textwrap.wrap(line, 104), "")]
    high = 0.19 * len(text)
    fig = StudyFigure(figsize=(WIDTH, 3.1 + high), dpi=DPI, layout="constrained")
    grid = fig.add_gridspec(
        2 if text else 1, len(strips), height_ratios=(high, 2.6) if text else None
    )
    if text:
        words = fig.add_subplot(grid[0, :])
        words.set_axis_off()
        words.text(
            0,
            1,
            "\n".join(text),
            transform=words.transAxes,
            va="top",
            fontsize=10,
            color=INK,
            linespacing=1.25,
        )
    shown: dict[str, None] = {}
    for i, (task, table) in enumerate(strips.items()):
        ax = fig.add_subplot(grid[-1, i])
        for row in table.itertuples():
            n1, n2, more = Arm.parse(row.arm)
            place = (
                3
                if more or len({n1, n2} - {"None"}) > 1
                else 2
                if n1 == n2
                else 0
                if n2 == "None"
                else 1
            )
            norm = "" if place == 3 else n2 if n1 == "None" else n1
            shown |= {norm: None} if norm and norm != name else {}
            look = (
                dict(color=norm_colour(norm), marker=norm_marker(norm))
                if norm
                else dict(color=GREY, marker=".")
            )
            ax.plot(
                row.mean,
                place,
                linestyle="",
                markersize=7 if norm else 4,
                alpha=0.85,
                zorder=3,
                **look,
            )
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
        ax.set_yticks(range(4), ["before", "after", "both", "two norms"] if i == 0 else [""] * 4)
        text_task = "minus the test loss (bits)" if (table["mean"] < 0).all() else TEST_ACCURACY
        ax.set(
            ylim=(3.6, -0.6),
            title=task,
            xlabel=text_task,
            ylabel="the norm stands" if i == 0 else "",
        )
        ax.grid(axis="x")
    marks = [
        Line2D([], [], color=norm_colour(n), marker=norm_marker(n), linestyle="", label=n)
        for n in shown
    ]
    own = dict(
        color=norm_colour(name),
        marker=norm_marker(name),
        linestyle="",
        markeredgecolor=INK,
        markersize=8,
    )
    fig.legend(handles=[Line2D([], [], label=name, **own), *marks], loc="outside right upper")
    return finish(
        fig, title or f"{name} among the norms that are recorded", caption, f"circled: {name}"
    )
