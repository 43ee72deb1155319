"""The paper's accuracy figures (Figures 1 and 5 to 8, Table 2, the halves of IN), and latency.

Each function takes a run frame (see `load_runs`) and draws one panel a task. Small dots are seeds.
Bars and large dots are means, thin lines ± one standard deviation. Diamonds are the runs of
`fresh`, a run frame of the reader's own (see `replicate`). Numbers that the paper prints have a
panel of their own: its tasks differ from ours, so compare the pattern and not the level.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mambanorm.arms import NORM_CHOICES, PAPER_NORMS, Arm
from mambanorm_study.figures.colours import (
    COMBINATION,
    GREY,
    INK,
    NO_NORM,
    SINGLE,
    arm_styles,
    fresh_marker,
    norm_colour,
    norm_marker,
)
from mambanorm_study.figures.panels import (
    AFTER_SSM,
    TEST_ACCURACY,
    arm_panels,
    norm_ticks,
    scored,
    scored_fresh,
    task_panels,
)
from mambanorm_study.figures.style import (
    finish,
    fresh_note,
    jitter,
    new_figure,
    short,
    styled,
    write_above,
)
from mambanorm_study.tables.intervals import t_interval
from mambanorm_study.tables.paper import MAIN_TASKS, PATTERN_ONLY, paper_values
from mambanorm_study.tables.run_tables import (
    check_frame,
    choose,
    describe_frame,
    paper_kind,
    percent,
    summarize,
)

NONE = "None>SSM>None"
GROUPS = {"no norm": NO_NORM, "single norm": SINGLE, "combination": COMBINATION}


def group_of(arm: str) -> str:
    """Return the group of an arm in Figure 1: no norm, one type at any sites, or several types."""
    types = set(Arm.parse(arm).norms) - {"None"}
    return list(GROUPS)[min(len(types), 2)]


@styled
def fig_headline(frame: pd.DataFrame, *, fresh: pd.DataFrame | None = None) -> Figure:
    """Return Figure 1: mean and seeds of every arm, grouped into no norm, one type, and two."""
    runs = scored(frame).dropna(subset="percent")
    fresh_runs = scored_fresh(fresh, runs)
    fig, panels = task_panels(frame, chance=False, height=4.3)
    for task, ax in panels.items():
        for x, (group, colour) in enumerate(GROUPS.items()):
            of_group = runs[(runs.task == task) & (runs.arm.map(group_of) == group)]
            _draw_group(ax, x, of_group, fresh_runs[fresh_runs.task == task], colour)
        ax.set_xticks(range(len(GROUPS)), GROUPS)
        ax.set(xlim=(-0.5, 2.6), xlabel="normalization strategy")
        ax.margins(y=0.15)
    return finish(
        fig,
        "No norm, one type, two types",
        describe_frame(frame, "means and seeds"),
        "large dots: means of arms, small: seeds, line: mean of the group",
        fresh_note(fresh),
    )


def _draw_group(ax: Axes, x: int, runs: pd.DataFrame, fresh: pd.DataFrame, colour: str) -> None:
    """Draw the arms of one group around x, from the lowest mean to the highest."""
    if runs.empty:
        ax.text(
            x,
            0.02,
            "not run",
            color=GREY,
            fontsize=8,
            transform=ax.get_xaxis_transform(),
            ha="center",
        )
        return
    means = runs.groupby("arm").percent.mean().sort_values()
    places = pd.Series(x + jitter(len(means), 0.62), means.index)
    seeds, large = dict(markersize=2.4, alpha=0.45, zorder=2), dict(markersize=6, zorder=3)
    ax.plot(runs.arm.map(places), runs.percent, "o", color=colour, **seeds)
    ax.plot(places, means, "o", color=colour, markeredgecolor="white", **large)
    fresh = fresh[fresh.arm.isin(means.index)]
    ax.plot(fresh.arm.map(places), fresh.percent, **fresh_marker(size=3.5))
    ax.hlines(means.mean(), x - 0.4, x + 0.4, color=colour, linewidth=1.4, alpha=0.8)
    write_above(
        ax, x, runs.percent.max(), f"{short(means.index[-1])}\n{percent(means.iloc[-1] / 100)}", 8
    )


def printed(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the paper's numbers for these arms as runs without a seed on a task of their own."""
    kind = paper_kind(runs)
    values = paper_values(kind).drop_duplicates(["task", "arm"])
    values = values[(values.task == MAIN_TASKS[kind]) & values.arm.isin(runs.arm)]
    return values.assign(
        task=f"the paper, {MAIN_TASKS[kind]}: not our level",
        percent=100 * values.accuracy,
        seed=np.nan,
        chance=np.nan,
    )


def _beside_paper(
    runs: pd.DataFrame,
    fresh: pd.DataFrame | None,
    norms: Sequence[str],
    groups: Mapping[str, dict],
    *,
    title: str,
    label: str,
    section: str,
    none_line: bool = False,
) -> Figure:
    """Return bars of the arms, and in a panel of its own those of the paper with its numbers.

    groups: first of arms with a norm before the SSM, last of arms with one after it alone. section:
    of the paper; the caption names numbers of other sections. none_line: draw the arm without a
    norm as a line.
    """
    paper = printed(runs)
    every = pd.concat([runs, paper])
    arms = every.arm.map(Arm.parse)
    norm = [arm.n2 if arm.n1 == "None" else arm.n1 for arm in arms]
    names = list(groups)
    group = [names[-1] if arm.n1 == "None" else names[0] for arm in arms]
    every = every.assign(place=norm, norm=norm, group=group)
    shown, apart = every[every.place.isin(norms)], 0.4 * (len(groups) - 1)
    fig, panels = arm_panels(shown, fresh, norms, groups, label, bar=True, apart=apart)
    for bar in panels[paper.task.iloc[0]].patches:
        x, height = bar.get_x() + bar.get_width() / 2, bar.get_height()
        write_above(bar.axes, x, height, f"{height:.1f}", 6.8, (0, 2), GREY)
    for task, rows in every[every.arm == NONE].groupby("task") if none_line else ():
        panels[task].axhline(rows.percent.mean(), color=NO_NORM, linewidth=1, zorder=1)
    elsewhere = paper[paper.section != section]
    others = [f"{short(row.arm)} from {row.section}" for row in elsewhere.itertuples()]
    return finish(
        fig,
        title,
        describe_frame(runs),
        "red line: no norm" if none_line else "",
        fresh_note(fresh),
        "dotted: chance",
        f"paper: {', '.join([PATTERN_ONLY, *others])}",
    )


@styled
def fig_type(frame: pd.DataFrame, *, fresh: pd.DataFrame | None = None) -> Figure:
    """Return Figure 5: the same norm before and after the SSM, beside the paper's numbers."""
    return _beside_paper(
        scored(frame, [f"{norm}>SSM>{norm}" for norm in PAPER_NORMS]),
        fresh,
        PAPER_NORMS,
        {"both": dict(alpha=0.9)},
        title="Which type of norm?",
        label="norm, before and after the SSM",
        section="§4.2",
    )


@styled
def fig_position(frame: pd.DataFrame, *, fresh: pd.DataFrame | None = None) -> Figure:
    """Return Figure 6 and Table 1: each norm before and after the SSM, beside the paper's numbers.

    A red line is the arm without a norm.
    """
    before = [f"{norm}>SSM>None" for norm in NORM_CHOICES]
    after = [f"None>SSM>{norm}" for norm in NORM_CHOICES]
    return _beside_paper(
        scored(frame, [NONE, *before, *after]),
        fresh,
        NORM_CHOICES,
        {"before the SSM": dict(alpha=0.4), "after the SSM": dict(alpha=0.9)},
        title="Before or after the SSM?",
        label="norm",
        section="§4.3",
        none_line=True,
    )


def partners(n2: str) -> list[str]:
    """Return the combinations that end in N2: any other norm before it (Figures 7 and 8)."""
    return [f"{n1}>SSM>{n2}" for n1 in NORM_CHOICES if n1 not in {n2, "None"}]


def best_combination(frame: pd.DataFrame, task: str, n2: str) -> str | None:
    """Return the combination with N2 that validation chooses; None if none was run."""
    was_run = ((frame.task == task) & frame.arm.isin(partners(n2))).any()
    return choose(frame, task, partners(n2)) if was_run else None


@styled
def fig_single_vs_best(frame: pd.DataFrame, *, fresh: pd.DataFrame | None = None) -> Figure:
    """Return Figure 7: for each N2, one type at both sites against the best combination.

    Validation chooses the combination; the figure shows its test accuracy.
    """
    singles = [f"{n2}>SSM>{n2}" for n2 in NORM_CHOICES]
    runs = scored(frame, [*singles, *(arm for n2 in NORM_CHOICES for arm in partners(n2))])
    tasks = runs.task.unique()
    best = {(task, best_combination(runs, task, n2)) for task in tasks for n2 in NORM_CHOICES}
    chosen = np.array([pair in best for pair in zip(runs.task, runs.arm, strict=True)])
    groups = {"single: N₂→N₂": dict(markerfacecolor="white"), "best combination, its N₁ above": {}}
    single, combination = groups
    group = np.where(chosen, combination, single)
    drawn = runs.assign(place=runs.n2, norm=runs.n2, group=group)[chosen | (runs.n1 == runs.n2)]
    fig, panels = arm_panels(drawn, fresh, NORM_CHOICES, groups, AFTER_SSM, join="place")
    for (task, n1, n2), rows in runs[chosen].groupby(["task", "n1", "n2"]):
        write_above(panels[task], (NORM_CHOICES.index(n2) + 0.2), rows.percent.max(), n1, 7.5)
    for ax in panels.values():
        ax.margins(y=0.1)
    kind = paper_kind(runs)
    values = paper_values(kind).query("source == 'Figure 7'")
    numbers = [f"{short(row.arm)} {100 * row.accuracy:.1f} %" for row in values.itertuples()]
    return finish(
        fig,
        "One type, or the best pair?",
        describe_frame(runs, "means and seeds"),
        "large dots: means, small: seeds",
        "N₁ chosen on validation, shown on test",
        fresh_note(fresh),
        f"paper, {MAIN_TASKS[kind]}: {', '.join(numbers)} ({PATTERN_ONLY})",
    )


@styled
def fig_n2_box(frame: pd.DataFrame) -> Figure:
    """Return Figure 8: for each N2, the spread over the other norms before it.

    A dot is the mean of one arm.
    """
    runs = scored(frame, [arm for n2 in NORM_CHOICES for arm in partners(n2)])
    fig, panels = task_panels(runs, chance=False)
    means = summarize(runs, ["task", "arm", "n1", "n2"]).sort_values("arm")
    means["percent"] = 100 * means["mean"]
    for task, ax in panels.items():
        _draw_boxes(ax, means[means.task == task])
        norm_ticks(ax, NORM_CHOICES, AFTER_SSM)
    handles = [Line2D([], [], label=n1, **_n1_dot(n1)) for n1 in NORM_CHOICES]
    fig.legend(
        handles=handles, title="N₁, before the SSM", loc="outside right center", title_fontsize=8.5
    )
    return finish(
        fig,
        "Which norm after the SSM, whatever stands before?",
        describe_frame(runs, "means over seeds"),
        "box: quartiles over N₁, line: median, cross: mean, whiskers: all",
    )


def _n1_dot(n1: str) -> dict:
    return dict(color=norm_colour(n1), marker=norm_marker(n1), markersize=7, linestyle="")


def _draw_boxes(ax: Axes, means: pd.DataFrame) -> None:
    drawn = ax.boxplot(
        [means.percent[means.n2 == n2].dropna() for n2 in NORM_CHOICES],
        positions=range(len(NORM_CHOICES)),
        widths=0.66,
        whis=(0, 100),
        patch_artist=True,
        manage_ticks=False,
        showmeans=True,
        meanprops=dict(marker="x", markeredgecolor=INK),
        medianprops=dict(color=INK, linewidth=1.6),
    )
    for patch, n2 in zip(drawn["boxes"], NORM_CHOICES, strict=True):
        patch.set(facecolor=to_rgba(norm_colour(n2), 0.28), edgecolor=INK, linewidth=0.8)
    for n1, shift in zip(NORM_CHOICES, jitter(len(NORM_CHOICES), 0.5), strict=True):
        rows = means[means.n1 == n1]
        x = rows.n2.map(NORM_CHOICES.index) + shift
        ax.plot(x, rows.percent, zorder=5, markeredgecolor="white", **_n1_dot(n1))


@styled
def fig_validation(
    frame: pd.DataFrame,
    n1s: Sequence[str] = ("RMSN", "NormVary"),
    *,
    fresh: pd.DataFrame | None = None,
) -> Figure:
    """Return Table 2 taken apart: accuracy against N2, one line for each N1.

    The lines are parallel if the effect of one norm does not depend on the other.
    """
    n2s = [n2 for n2 in ("None", "GN", "LN") if frame.arm.str.endswith(f">{n2}").any()]
    runs = scored(frame, [f"{n1}>SSM>{n2}" for n1 in n1s for n2 in n2s])
    drawn = runs.assign(place=runs.n2, group=runs.n1, norm=runs.n1)
    groups = {n1: {} for n1 in n1s}
    fig, _ = arm_panels(drawn, fresh, n2s, groups, AFTER_SSM, join="group", apart=0.24)
    return finish(
        fig,
        "Whose gain is it: N₁'s or N₂'s?",
        describe_frame(runs, "means and seeds"),
        "colours: N₁, before the SSM",
        "small dots: seeds",
        fresh_note(fresh),
    )


@styled
def fig_halves(frame: pd.DataFrame) -> Figure:
    """Return a bar for each part of IN (column `part` of `with_halves`), one panel a task."""
    check_frame(frame, ("part", "task", "arm", "seed", "test_accuracy"))
    groups = {"a whole norm": dict(alpha=0.9), "one half of IN alone": dict(alpha=0.4, hatch="//")}
    whole, half = groups
    runs = frame.assign(
        percent=100 * frame.test_accuracy,
        place=frame.part.str.replace(" ", "\n"),
        group=np.where(frame.part.str.startswith(("mean", "divided")), half, whole),
        norm=[Arm.parse(arm).n1 for arm in frame.arm],
        arm=frame.part,
    )
    fig, _ = arm_panels(
        runs,
        None,
        list(runs.place.unique()),
        groups,
        "norm before and after the SSM",
        bar=True,
        apart=0,
    )
    return finish(fig, "What does IN take away?", describe_frame(frame), "dotted: chance")


@styled
def fig_latency(runs: pd.DataFrame, latency: pd.DataFrame) -> Figure:
    """Return accuracy against the time of a forward pass, one panel for each number of rows.

    latency: arm, rows, ms (median), low and high (quartiles). Lines around a dot are the 95 %
    t-interval over the seeds and the quartiles of the time.
    """
    check_frame(runs)
    rows = sorted(latency.rows.unique())
    fig, axes = new_figure(1, len(rows), height=3.6, sharey=True)
    styles = arm_styles([arm for arm in runs.arm.unique() if arm in set(latency.arm)])
    for ax, n in zip(axes[0], rows, strict=True):
        for (arm, style), marker in zip(styles.items(), "oDs^vP*Xhp<>dH8", strict=False):
            score = 100 * runs.test_accuracy[runs.arm == arm]
            time = latency[(latency.arm == arm) & (latency.rows == n)].iloc[0]
            quartiles = [[time.ms - time.low], [time.high - time.ms]]
            half_width = score.mean() - t_interval(score)[0]
            centre = time.ms, score.mean()
            ax.errorbar(
                *centre,
                xerr=quartiles,
                yerr=half_width,
                label=short(arm),
                color=style["color"],
                marker=marker,
                markersize=6.5,
                linestyle="",
            )
        ax.set(
            title="one row" if n == 1 else f"a batch of {n} rows",
            xlabel="forward pass (ms, median)",
        )
        ax.set_xlim(left=0)
        ax.grid(axis="x")
    axes[0, 0].set_ylabel(TEST_ACCURACY)
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center")
    return finish(
        fig,
        "Accuracy against latency",
        describe_frame(runs, "lines: 95 % t-interval over the seeds, quartiles of the time"),
        "on this machine, with the run's threads",
    )
