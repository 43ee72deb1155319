"""The paper's accuracy figures: run frame in, figure out (Figures 1 and 5–8, Table 2, IN taken
apart), and what accuracy costs in time.

Each is one function of a frame (see `load_runs`) and draws a panel a task. Dots are seeds, bars and
large dots are means, thin lines ± one standard deviation. Diamonds are the runs of `fresh`, a run
frame of the reader's own (see `replicate`). Numbers that the paper prints stand in a panel of their
own: its tasks differ from ours, so the pattern, not the level, is comparable.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mambanorm.arms import NORM_CHOICES, PAPER_NORMS, Arm
from mambanorm_study.figures.colours import (
    COMBINATION,
    GREY,
    INK,
    NO_NORM,
    PALETTE,
    SINGLE,
    arm_styles,
    norm_colour,
    norm_marker,
    own_run,
)
from mambanorm_study.figures.style import (
    above,
    finish,
    jitter,
    new_figure,
    own_runs,
    panel_grid,
    short,
    styled,
)
from mambanorm_study.tables.intervals import t_interval
from mambanorm_study.tables.paper import FIGURE_7, MAIN_TASKS, PATTERN_ONLY, SECTIONS, paper_values
from mambanorm_study.tables.run_tables import (
    check_frame,
    choose,
    describe_frame,
    paper_kind,
    percent,
    summarize,
)

TEST_ACCURACY = "test accuracy (%)"


def scored(frame: pd.DataFrame, arms: Sequence[str] | None = None) -> pd.DataFrame:
    """The runs that a figure draws (None = of all arms), so that its caption counts no others, with
    the test accuracy as `percent`. ValueError if there are none, or several of one seed."""
    check_frame(frame)
    kept = frame if arms is None else frame[frame.arm.isin(arms)]
    if kept.empty:
        raise ValueError(f"none of the arms drawn here has been run: {', '.join(arms)}")
    if kept.duplicated(["task", "arm", "seed"]).any():
        raise ValueError(
            "an arm has several runs of one seed on a task: keep one scale, depth and lr"
        )
    return kept.assign(percent=100 * kept.test_accuracy)


def own_of(fresh: pd.DataFrame | None, runs: pd.DataFrame) -> pd.DataFrame:
    """The reader's own runs as `scored` has them: no row where there are none."""
    return (
        runs.iloc[:0]
        if fresh is None or fresh.empty
        else fresh.assign(percent=100 * fresh.test_accuracy)
    )


def task_panels(frame: pd.DataFrame, *, chance: bool = True, height: float = 4.0):
    """A figure with one titled panel a task, chance as a dotted line; task → axes."""
    panels = list(frame.groupby("task", sort=False))
    fig, axes = panel_grid(len(panels), 3, row=height)
    for ax, (task, runs) in zip(axes, panels, strict=True):
        ax.set_title(task, color=INK)
        ax.set_ylabel(TEST_ACCURACY)
        if chance and runs.chance.notna().any():
            ax.axhline(100 * runs.chance.mean(), color=GREY, linewidth=0.9, linestyle=(0, (2, 2)))
    return fig, dict(zip(frame.task.unique(), axes, strict=True))


def norm_ticks(ax: Axes, names: Sequence[str], label: str) -> None:
    """Norm names under an axis that counts them from 0."""
    ax.set_xticks(range(len(names)), ["none" if name == "None" else name for name in names])
    ax.set(xlabel=label, xlim=(-0.6, len(names) - 0.4))
    ax.tick_params(axis="x", length=0)


def arm_panels(
    runs,
    fresh,
    places: Sequence[str],
    groups: Mapping[str, dict],
    label: str,
    *,
    bar=False,
    join="",
    apart=0.4,
):
    """A figure, and task → axes: of each arm the mean, as a bar with the sd or as a large dot, a
    dot a seed, a diamond for a run of `fresh`. Columns of the runs say where: `place` on the x
    axis, `group`, whose look the mean has (groups stand `apart`), and `norm`, whose colour. Lines
    join the means that agree in the column `join`."""
    fig, panels = task_panels(runs, chance=bar)
    side = dict(zip(groups, jitter(len(groups), apart), strict=True))
    own, ends = own_of(fresh, runs), []
    for (task, arm), mine in runs.dropna(subset="percent").groupby(["task", "arm"], sort=False):
        place, group, norm = mine[["place", "group", "norm"]].iloc[0]
        ax, x, mean, colour = (
            panels[task],
            places.index(place) + side[group],
            mine.percent.mean(),
            norm_colour(norm),
        )
        if bar:
            look = (
                dict(color=colour, edgecolor="white", yerr=mine.percent.std(), ecolor=INK)
                | groups[group]
            )
            ax.bar(x, mean, apart or 0.62, **look)
        else:
            ax.plot(
                x, mean, norm_marker(norm), markersize=8, color=colour, zorder=5, **groups[group]
            )
            ends.append((task, mine[join].iloc[0], x, mean, colour))
        seeds = mine.percent[mine.seed.notna()]
        dots = (
            dict(color=INK, markeredgecolor="white", markeredgewidth=0.5)
            if bar
            else dict(color=colour, alpha=0.6)
        )
        ax.plot(x + jitter(len(seeds), 0.16), seeds, "o", markersize=3.2, **dots)
        ours = own.percent[(own.task == task) & (own.arm == arm)]
        ax.plot(
            np.full(len(ours), x + np.copysign(0.14, side[group])),
            ours,
            **own_run(INK if bar else colour),
        )
    for _, line in pd.DataFrame(
        sorted(ends), columns=["task", "join", "x", "mean", "colour"]
    ).groupby(["task", "join"]):
        panels[line.task.iloc[0]].plot(
            line.x, line["mean"], color=line.colour.iloc[0], linewidth=1.4
        )
    for ax in panels.values():
        norm_ticks(ax, places, label)
        if bar:  # from zero, with room above the highest
            ax.set_ylim(0, max(ax.dataLim.ymax, 1) * 1.12)
    dot = dict(markersize=8, linestyle="")
    looks = {
        name: dict(color=PALETTE.get(name, GREY), marker=norm_marker(name)) | dot | groups[name]
        for name in groups
    }
    patches = [Patch(label=name, color=GREY, **look) for name, look in groups.items() if bar]
    if len(groups) > 1:
        handles = patches or [Line2D([], [], label=name, **look) for name, look in looks.items()]
        fig.legend(handles=handles, loc="outside upper right", ncols=len(groups))
    return fig, panels


GROUPS = {"no norm": NO_NORM, "single norm": SINGLE, "combination": COMBINATION}


def group_of(arm: str) -> str:
    """no norm | single norm (one type, wherever it stands) | combination (two types or more)."""
    return list(GROUPS)[min(len(set(Arm.parse(arm).norms) - {"None"}), 2)]


@styled
def fig_headline(frame: pd.DataFrame, *, fresh: pd.DataFrame | None = None) -> Figure:
    """Figure 1: every arm's mean and seeds, in three groups: no norm, a single type, two types
    combined."""
    runs = scored(frame)
    own = own_of(fresh, runs)
    fig, panels = task_panels(frame, chance=False, height=4.3)
    for task, ax in panels.items():
        here = runs[runs.task == task]
        for x, (group, colour) in enumerate(GROUPS.items()):
            means = (
                here[here.arm.map(group_of) == group]
                .groupby("arm")
                .percent.mean()
                .dropna()
                .sort_values()
            )
            if means.empty:
                ax.text(
                    x,
                    0.02,
                    "not run",
                    transform=ax.get_xaxis_transform(),
                    ha="center",
                    color=GREY,
                    fontsize=8,
                )
                continue
            places = dict(zip(means.index, x + jitter(len(means), 0.62), strict=True))
            mine, ours = here[here.arm.isin(places)], own[(own.task == task) & own.arm.isin(places)]
            ax.plot(
                mine.arm.map(places),
                mine.percent,
                "o",
                markersize=2.4,
                color=colour,
                alpha=0.45,
                zorder=2,
            )
            ax.plot(
                list(places.values()),
                means,
                "o",
                markersize=6,
                color=colour,
                markeredgecolor="white",
                zorder=3,
            )
            ax.plot([places[arm] for arm in ours.arm], ours.percent, **own_run(size=3.5))
            ax.hlines(means.mean(), x - 0.4, x + 0.4, color=colour, linewidth=1.4, alpha=0.8)
            best = means.index[-1]
            above(ax, x, mine.percent.max(), f"{short(best)}\n{percent(means[best] / 100)}", 8)
        ax.set_xticks(range(len(GROUPS)), GROUPS)
        ax.set(xlim=(-0.5, 2.6), xlabel="normalization strategy")
        ax.margins(y=0.15)
    marks = "large dots: means of arms, small: seeds, line: mean of the group"
    return finish(
        fig,
        "No norm, one type, two types",
        describe_frame(frame, "means and seeds"),
        marks,
        own_runs(fresh),
    )


def printed(runs: pd.DataFrame) -> pd.DataFrame:
    """What the paper prints for these arms on its own task, as runs without a seed on a task of
    their own."""
    values = paper_values(kind := paper_kind(runs))
    mine = values[(values.task == MAIN_TASKS[kind]) & values.arm.isin(runs.arm)].drop_duplicates(
        "arm"
    )
    task = f"the paper, {MAIN_TASKS[kind]}: not our level"
    return mine.assign(task=task, percent=100 * mine.accuracy, seed=np.nan, chance=np.nan)


def _beside_paper(
    runs, fresh, norms: Sequence[str], groups: Mapping[str, dict], label: str, home: str
):
    """Bars of these arms, in a panel of its own those of the paper with its numbers, and what a
    caption says of it; a number from another section than `home` is named."""
    paper = printed(runs)
    every = pd.concat([runs, paper])
    place = every.arm.map(lambda arm: max(Arm.parse(arm).norms, key=lambda norm: norm != "None"))
    after = every.arm.str.startswith("None>") & (every.arm != NONE)
    every = every.assign(
        norm=place, place=place, group=np.where(after, list(groups)[-1], next(iter(groups)))
    )
    shown = every[place.isin(norms)]
    fig, panels = arm_panels(
        shown, fresh, list(norms), groups, label, bar=True, apart=0.4 * (len(groups) - 1)
    )
    for bar in panels[paper.task.iloc[0]].patches:
        above(
            bar.axes,
            bar.get_x() + bar.get_width() / 2,
            bar.get_height(),
            f"{bar.get_height():.1f}",
            6.8,
            (0, 2),
            GREY,
        )
    elsewhere = [
        f"{short(arm)} from {of}"
        for arm, of in zip(paper.arm, paper.section, strict=True)
        if of != home
    ]
    notes = own_runs(fresh), "dotted: chance", f"paper: {', '.join([PATTERN_ONLY, *elsewhere])}"
    return fig, panels, every[every.arm == NONE], notes


NONE = "None>SSM>None"


@styled
def fig_type(
    frame: pd.DataFrame, norms: Sequence[str] = PAPER_NORMS, *, fresh: pd.DataFrame | None = None
) -> Figure:
    """Figure 5: the same norm before and after the SSM; the paper's printed values in a panel of
    their own."""
    runs = scored(frame, [f"{norm}>SSM>{norm}" for norm in norms])
    look, label = {"both": dict(alpha=0.9)}, "norm, before and after the SSM"
    fig, _, _, notes = _beside_paper(runs, fresh, norms, look, label, SECTIONS["Figure 5"])
    return finish(fig, "Which type of norm?", describe_frame(runs), *notes)


@styled
def fig_position(
    frame: pd.DataFrame, norms: Sequence[str] = NORM_CHOICES, *, fresh: pd.DataFrame | None = None
) -> Figure:
    """Figure 6 and Table 1: each norm before the SSM and after it, a line at no norm; the paper's
    values beside."""
    runs = scored(
        frame, [NONE, *(arm for norm in norms for arm in (f"{norm}>SSM>None", f"None>SSM>{norm}"))]
    )
    groups = {"before the SSM": dict(alpha=0.4), "after the SSM": dict(alpha=0.9)}
    fig, panels, none, notes = _beside_paper(
        runs, fresh, norms, groups, "norm", SECTIONS["Table 1"]
    )
    for task, mine in none.groupby("task"):
        panels[task].axhline(mine.percent.mean(), color=NO_NORM, linewidth=1, zorder=1)
    return finish(
        fig, "Before or after the SSM?", describe_frame(runs), "red line: no norm", *notes
    )


def partners(n2: str, norms: Sequence[str] = NORM_CHOICES) -> list[str]:
    """The combinations that end in N2: N1 over the other norms, neither None nor N2 itself (Figures
    7, 8)."""
    return [f"{n1}>SSM>{n2}" for n1 in norms if n1 not in {n2, "None"}]


def best_combination(
    frame: pd.DataFrame, task: str, n2: str, norms: Sequence[str] = NORM_CHOICES
) -> str | None:
    """The combination before N2 chosen on validation; None if none was run."""
    run = ((frame.task == task) & frame.arm.isin(partners(n2, norms))).any()
    return choose(frame, task, partners(n2, norms)) if run else None


@styled
def fig_single_vs_best(
    frame: pd.DataFrame, norms: Sequence[str] = NORM_CHOICES, *, fresh: pd.DataFrame | None = None
) -> Figure:
    """Figure 7: for each N2, the type N2→N2 against the best combination, chosen on validation,
    shown on test."""
    runs = scored(frame, [arm for n2 in norms for arm in (f"{n2}>SSM>{n2}", *partners(n2, norms))])
    best = {
        (task, best_combination(runs, task, n2, norms))
        for task in runs.task.unique()
        for n2 in norms
    }
    chosen = np.array([pair in best for pair in zip(runs.task, runs.arm, strict=True)])
    groups = {"single: N₂→N₂": dict(markerfacecolor="white"), "best combination, its N₁ above": {}}
    drawn = runs.assign(place=runs.n2, norm=runs.n2, group=np.where(chosen, *reversed(groups)))
    label = "N₂, the norm after the SSM"
    fig, panels = arm_panels(
        drawn[chosen | (runs.n1 == runs.n2)], fresh, list(norms), groups, label, join="place"
    )
    for (task, n1, n2), mine in runs[chosen].groupby(["task", "n1", "n2"]):
        above(panels[task], norms.index(n2) + 0.2, mine.percent.max(), n1, 7.5)
    for ax in panels.values():
        ax.margins(y=0.1)
    kind = paper_kind(runs)
    numbers = ", ".join(f"{short(arm)} {value:.1f} %" for arm, value in FIGURE_7[kind].items())
    paper = f"paper, {MAIN_TASKS[kind]}: {numbers} ({PATTERN_ONLY})"
    notes = (
        "large dots: means, small: seeds",
        "N₁ chosen on validation, shown on test",
        own_runs(fresh),
        paper,
    )
    return finish(
        fig, "One type, or the best pair?", describe_frame(runs, "means and seeds"), *notes
    )


@styled
def fig_n2_box(frame: pd.DataFrame, norms: Sequence[str] = NORM_CHOICES) -> Figure:
    """Figure 8: for each N2, the spread over the other N1 (without None and N2 itself); a dot is an
    arm's mean."""
    runs = scored(frame, [arm for n2 in norms for arm in partners(n2, norms)])
    fig, panels = task_panels(runs, chance=False)
    means = (
        summarize(runs, ["task", "arm", "n1", "n2"])
        .sort_values("arm")
        .assign(percent=lambda f: 100 * f["mean"])
    )
    lines = dict(
        showmeans=True,
        meanprops=dict(marker="x", markeredgecolor=INK),
        medianprops=dict(color=INK, linewidth=1.6),
    )
    box = dict(
        positions=range(len(norms)),
        widths=0.66,
        whis=(0, 100),
        patch_artist=True,
        manage_ticks=False,
    )
    dots = {
        n1: dict(color=norm_colour(n1), marker=norm_marker(n1), markersize=7, linestyle="")
        for n1 in norms
    }
    for task, ax in panels.items():
        here = means[means.task == task]
        boxes = ax.boxplot([here.percent[here.n2 == n2].dropna() for n2 in norms], **box, **lines)[
            "boxes"
        ]
        for patch, n2 in zip(boxes, norms, strict=True):
            patch.set(facecolor=to_rgba(norm_colour(n2), 0.28), edgecolor=INK, linewidth=0.8)
        for (n1, dot), shift in zip(dots.items(), jitter(len(norms), 0.5), strict=True):
            mine = here[here.n1 == n1]
            ax.plot(
                mine.n2.map(norms.index) + shift,
                mine.percent,
                zorder=5,
                markeredgecolor="white",
                **dot,
            )
        norm_ticks(ax, norms, "N₂, the norm after the SSM")
    handles = [Line2D([], [], label=n1, **dot) for n1, dot in dots.items()]
    fig.legend(
        handles=handles, title="N₁, before the SSM", loc="outside right center", title_fontsize=8.5
    )
    marks = "box: quartiles over N₁, line: median, cross: mean, whiskers: all"
    title = "Which norm after the SSM, whatever stands before?"
    return finish(fig, title, describe_frame(runs, "means over seeds"), marks)


@styled
def fig_validation(
    frame: pd.DataFrame,
    n1s: Sequence[str] = ("RMSN", "NormVary"),
    *,
    fresh: pd.DataFrame | None = None,
) -> Figure:
    """Table 2 taken apart: accuracy against N2, a line for each N1. Parallel lines mean that the
    effect of one norm does not depend on the other."""
    n2s = [n2 for n2 in ("None", "GN", "LN") if frame.arm.str.endswith(f">{n2}").any()]
    runs = scored(frame, [f"{n1}>SSM>{n2}" for n1 in n1s for n2 in n2s])
    drawn, groups = runs.assign(place=runs.n2, group=runs.n1, norm=runs.n1), {n1: {} for n1 in n1s}
    fig, _ = arm_panels(
        drawn, fresh, n2s, groups, "N₂, the norm after the SSM", join="group", apart=0.24
    )
    notes = "colours: N₁, before the SSM", "small dots: seeds", own_runs(fresh)
    return finish(
        fig, "Whose gain is it: N₁'s or N₂'s?", describe_frame(runs, "means and seeds"), *notes
    )


@styled
def fig_halves(frame: pd.DataFrame) -> Figure:
    """IN taken apart: a bar for each part of it (column `part` of `with_parts`), a panel a
    task."""
    check_frame(frame, ("part", "task", "arm", "seed", "test_accuracy"))
    groups = {"a whole norm": dict(alpha=0.9), "one half of IN alone": dict(alpha=0.4, hatch="//")}
    half, place = frame.part.str.startswith(("mean", "divided")), frame.part.str.replace(" ", "\n")
    runs = frame.assign(
        percent=100 * frame.test_accuracy, place=place, group=np.where(half, *reversed(groups))
    )
    runs = runs.assign(norm=[Arm.parse(arm).n1 for arm in frame.arm], arm=frame.part)
    label = "norm before and after the SSM"
    fig, _ = arm_panels(runs, None, list(place.unique()), groups, label, bar=True, apart=0)
    return finish(fig, "What does IN take away?", describe_frame(frame), "dotted: chance")


@styled
def fig_latency(runs: pd.DataFrame, latency: pd.DataFrame) -> Figure:
    """Accuracy against the time of a forward pass, a dot an arm, a panel for each number of rows.
    Lines: the 95 % t-interval over the seeds, and the quartiles of the time."""
    check_frame(runs)
    rows = sorted(latency.rows.unique())
    fig, axes = new_figure(1, len(rows), height=3.6, sharey=True)
    styles = arm_styles([arm for arm in runs.arm.unique() if arm in set(latency.arm)])
    for ax, n in zip(axes[0], rows, strict=True):
        for (arm, style), marker in zip(styles.items(), "oDs^vP*Xhp<>dH8", strict=False):
            score = 100 * runs.test_accuracy[runs.arm == arm]
            time = latency[(latency.arm == arm) & (latency.rows == n)].iloc[0]
            ends = dict(
                xerr=[[time.ms - time.low], [time.high - time.ms]],
                yerr=score.mean() - t_interval(score)[0],
            )
            look = dict(
                color=style["color"], marker=marker, markersize=6.5, linestyle="", label=short(arm)
            )
            ax.errorbar(time.ms, score.mean(), **ends, **look)
        ax.set(
            title="one row" if n == 1 else f"a batch of {n} rows",
            xlabel="forward pass (ms, median)",
        )
        ax.set_xlim(left=0)
        ax.grid(axis="x")
    axes[0, 0].set_ylabel("test accuracy (%)")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center")
    lines = "lines: 95 % t-interval over the seeds, quartiles of the time"
    where = "on this machine, with the run's threads"
    return finish(fig, "Accuracy against latency", describe_frame(runs, lines), where)
