"""The paper's figures of accuracy (Figures 1 and 5 to 8, Table 2), and a figure of IN's two halves.

Each function takes a run frame (see `load_runs`) and returns a figure with one panel per task.
Small dots are seeds. Bars and large dots are means over the seeds, thin lines
± one standard deviation. White diamonds are the runs in `fresh`, a run frame of the reader's own
runs (see `replicate`). The numbers that the paper prints are in a separate panel. The paper's tasks
differ from ours, so compare the pattern of the bars, not their level.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from mambanorm.arms import NORM_CHOICES, PAPER_NORMS, Arm
from mambanorm_study.figures.colours import (
    COMBINATION,
    GREY,
    INK,
    NO_NORM,
    SINGLE,
    fresh_marker,
    norm_colour,
    norm_marker,
)
from mambanorm_study.figures.panels import (
    AFTER_SSM,
    TEST_ACCURACY,
    arm_panels,
    fresh_in_percent,
    norm_ticks,
    select_runs,
    task_panels,
)
from mambanorm_study.figures.style import (
    StudyFigure,
    finish,
    fresh_note,
    jitter,
    short_label,
    styled,
    write_above,
)
from mambanorm_study.tables.paper import MAIN_TASKS, PATTERN_ONLY, paper_values
from mambanorm_study.tables.run_tables import (
    best_arm,
    check_frame,
    describe_frame,
    paper_kind,
    percent,
    summarize,
)

GROUPS = {"no norm": NO_NORM, "single norm": SINGLE, "combination": COMBINATION}


@styled
def fig_headline(frame: pd.DataFrame, *, fresh: pd.DataFrame | None = None) -> StudyFigure:
    """Return Figure 1: the test accuracy of the arms, grouped by how many types of norm an arm has
    (none, one or two).
    """
    runs = select_runs(frame).dropna(subset="percent")
    types = runs.arm.map(lambda arm: len(set(Arm.parse(arm).norms) - {"None"}))
    runs = runs.assign(x=types.clip(upper=2))
    fresh_runs = fresh_in_percent(fresh, runs)
    fig, panels = task_panels(frame, chance=False, height=4.3)
    for (task, x), of_group in runs.groupby(["task", "x"]):
        _draw_group(panels[task], x, of_group, fresh_runs[fresh_runs.task == task])
    for ax in panels.values():
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


def _draw_group(ax: Axes, x: int, runs: pd.DataFrame, fresh: pd.DataFrame) -> None:
    """Draw one group of Figure 1 around x: a small dot per run and a large dot per arm, the arms in
    the order of their means. Label the best arm.
    """
    colour = list(GROUPS.values())[x]
    means = runs.groupby("arm").percent.mean().sort_values()
    x_of_arm = pd.Series(x + jitter(len(means), 0.62), means.index)
    seed_style, mean_style = (
        dict(markersize=2.4, alpha=0.45, zorder=2),
        dict(markersize=6, zorder=3),
    )
    ax.plot(runs.arm.map(x_of_arm), runs.percent, "o", color=colour, **seed_style)
    ax.plot(x_of_arm, means, "o", color=colour, markeredgecolor="white", **mean_style)
    fresh = fresh[fresh.arm.isin(means.index)]
    ax.plot(fresh.arm.map(x_of_arm), fresh.percent, **fresh_marker(size=3.5))
    ax.hlines(means.mean(), x - 0.4, x + 0.4, color=colour, linewidth=1.4, alpha=0.8)
    best = f"{short_label(means.index[-1])}\n{percent(means.iloc[-1] / 100)}"
    write_above(ax, x, runs.percent.max(), best, 8)


def _paper_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the paper's accuracies for the arms in `runs`, in the form of a run frame with one
    task: the paper's.
    """
    kind = paper_kind(runs)
    values = paper_values(kind).drop_duplicates(["task", "arm"])
    values = values[(values.task == MAIN_TASKS[kind]) & values.arm.isin(runs.arm)]
    task = f"the paper, {MAIN_TASKS[kind]}: not our level"
    return values.assign(task=task, percent=100 * values.accuracy, seed=np.nan, chance=np.nan)


def _bars_beside_paper(
    runs: pd.DataFrame,
    fresh: pd.DataFrame | None,
    norms: Sequence[str],
    groups: Mapping[str, dict],
    *,
    title: str,
    label: str,
    section: str,
) -> StudyFigure:
    """Return bars of the arms' test accuracy; the panel on the right has the paper's numbers.

    norms: the ticks of the x axis. groups: legend entry → style of its bars; the first entry is for
    arms with a norm before the SSM, the last for all other arms. An arm whose norm is not in
    `norms` is drawn as a red line at its mean. section: the section of the paper that prints most
    of the paper's numbers; the caption names the arms whose numbers are from other sections.
    """
    paper = _paper_runs(runs)
    all_runs = pd.concat([runs, paper])
    arms = all_runs.arm.map(Arm.parse)
    norm = [arm.n2 if arm.n1 == "None" else arm.n1 for arm in arms]
    names = list(groups)
    group = [names[-1] if arm.n1 == "None" else names[0] for arm in arms]
    all_runs = all_runs.assign(tick=norm, norm=norm, group=group)
    bar_runs, group_distance = all_runs[all_runs.tick.isin(norms)], 0.4 * (len(groups) - 1)
    fig, panels = arm_panels(
        bar_runs, fresh, norms, groups, label, bar=True, group_distance=group_distance
    )
    for bar in panels[paper.task.iloc[0]].patches:
        x, height = bar.get_x() + bar.get_width() / 2, bar.get_height()
        write_above(bar.axes, x, height, f"{height:.1f}", 6.8, (0, 2), GREY)
    no_norm_runs = all_runs[~all_runs.tick.isin(norms)]
    for task, level in no_norm_runs.groupby("task").percent.mean().items():
        panels[task].axhline(level, color=NO_NORM, linewidth=1, zorder=1)
    other_sections = paper[paper.section != section]
    sources = [f"{short_label(row.arm)} from {row.section}" for row in other_sections.itertuples()]
    return finish(
        fig,
        title,
        describe_frame(runs),
        "red line: no norm" if len(no_norm_runs) else "",
        fresh_note(fresh),
        "dotted: chance",
        f"paper: {', '.join([PATTERN_ONLY, *sources])}",
    )


@styled
def fig_type(frame: pd.DataFrame, *, fresh: pd.DataFrame | None = None) -> StudyFigure:
    """Return Figure 5: the test accuracy of arms with the same norm at both sites, beside the
    paper's.
    """
    return _bars_beside_paper(
        select_runs(frame, [f"{norm}>SSM>{norm}" for norm in PAPER_NORMS]),
        fresh,
        PAPER_NORMS,
        {"both": dict(alpha=0.9)},
        title="Which type of norm?",
        label="norm, before and after the SSM",
        section="§4.2",
    )


@styled
def fig_position(frame: pd.DataFrame, *, fresh: pd.DataFrame | None = None) -> StudyFigure:
    """Return Figure 6 and Table 1: the test accuracy with each norm before or after the SSM, beside
    the paper's numbers.

    A bar is an arm with one norm. The red line is the arm without a norm.
    """
    arms = [arm for norm in NORM_CHOICES for arm in (f"{norm}>SSM>None", f"None>SSM>{norm}")]
    return _bars_beside_paper(
        select_runs(frame, ["None>SSM>None", *arms]),
        fresh,
        NORM_CHOICES,
        {"before the SSM": dict(alpha=0.4), "after the SSM": dict(alpha=0.9)},
        title="Before or after the SSM?",
        label="norm",
        section="§4.3",
    )


@styled
def fig_single_vs_best(frame: pd.DataFrame, *, fresh: pd.DataFrame | None = None) -> StudyFigure:
    """Return Figure 7: for each N2, the arm N2→N2 against the best arm N1→N2 with N1 ≠ N2.

    The best arm ("best combination") is the arm with the highest mean validation accuracy. The
    figure shows test accuracy.
    """
    runs = select_runs(frame, [f"{n1}>SSM>{n2}" for n1 in NORM_CHOICES for n2 in NORM_CHOICES])
    combinations = runs[runs.n1 != runs.n2].groupby(["task", "n2"])
    best = {(task, best_arm(of_n2, task)) for (task, _), of_n2 in combinations}
    is_best = np.array([pair in best for pair in zip(runs.task, runs.arm, strict=True)])
    groups = {"single: N₂→N₂": dict(markerfacecolor="white"), "best combination, its N₁ above": {}}
    single, combination = groups
    group = np.where(is_best, combination, single)
    drawn_runs = runs.assign(tick=runs.n2, norm=runs.n2, group=group)[
        is_best | (runs.n1 == runs.n2)
    ]
    fig, panels = arm_panels(drawn_runs, fresh, NORM_CHOICES, groups, AFTER_SSM, joined_by="tick")
    for (task, n1, n2), rows in runs[is_best].groupby(["task", "n1", "n2"]):
        write_above(panels[task], NORM_CHOICES.index(n2) + 0.2, rows.percent.max(), n1, 7.5)
    for ax in panels.values():
        ax.margins(y=0.1)
    kind = paper_kind(runs)
    values = paper_values(kind).query("source == 'Figure 7'")
    numbers = [f"{short_label(row.arm)} {100 * row.accuracy:.1f} %" for row in values.itertuples()]
    return finish(
        fig,
        "One type, or the best pair?",
        describe_frame(runs, "means and seeds"),
        "large dots: means, small: seeds",
        "N₁ chosen by validation accuracy",
        fresh_note(fresh),
        f"paper, {MAIN_TASKS[kind]}: {', '.join(numbers)} ({PATTERN_ONLY})",
    )


@styled
def fig_n2_box(frame: pd.DataFrame) -> StudyFigure:
    """Return Figure 8: for each N2, a box plot of the mean test accuracies of the arms N1→N2,
    N1≠N2.
    """
    arms = [f"{n1}>SSM>{n2}" for n1 in NORM_CHOICES for n2 in NORM_CHOICES if n1 != n2]
    runs = select_runs(frame, arms)
    fig, panels = task_panels(runs, chance=False)
    means = summarize(runs, ["task", "arm", "n1", "n2"]).sort_values("arm")
    means["percent"] = 100 * means["mean"]
    for task, ax in panels.items():
        _draw_boxes(ax, means[means.task == task])
    fig.legend(
        *fig.axes[0].get_legend_handles_labels(),
        loc="outside right center",
        title="N₁, before the SSM",
        title_fontsize=8.5,
    )
    return finish(
        fig,
        "Which norm after the SSM, whatever stands before?",
        describe_frame(runs, "means over seeds"),
        "box: quartiles over N₁, line: median, cross: mean, whiskers: all",
    )


def _draw_boxes(ax: Axes, means: pd.DataFrame) -> None:
    """Draw one box per N2, and in each box one dot per N1: the mean accuracy of the arm N1→N2."""
    ax.boxplot(
        [means.percent[means.n2 == n2] for n2 in NORM_CHOICES],
        positions=range(len(NORM_CHOICES)),
        widths=0.66,
        whis=(0, 100),
        showmeans=True,
        meanprops=dict(marker="x", markeredgecolor=INK),
        medianprops=dict(color=INK),
    )
    for n1, shift in zip(NORM_CHOICES, jitter(len(NORM_CHOICES), 0.5), strict=True):
        rows = means[means.n1 == n1]
        dots = dict(color=norm_colour(n1), marker=norm_marker(n1), markersize=7, linestyle="")
        x = [NORM_CHOICES.index(n2) + shift for n2 in rows.n2]
        ax.plot(x, rows.percent, label=n1, zorder=5, markeredgecolor="white", **dots)
    norm_ticks(ax, NORM_CHOICES, AFTER_SSM)
    ax.set_ylabel(TEST_ACCURACY)


@styled
def fig_proposal(
    frame: pd.DataFrame,
    n1s: Sequence[str] = ("RMSN", "NormVary"),
    *,
    fresh: pd.DataFrame | None = None,
) -> StudyFigure:
    """Return a plot of the test accuracy of Table 2's arms: N2 on the x axis, one line per N1.

    n1s: the norms before the SSM. The lines are parallel if the effect of N1 does not depend on N2.
    """
    n2s = [n2 for n2 in ("None", "GN", "LN") if frame.arm.str.endswith(f">{n2}").any()]
    runs = select_runs(frame, [f"{n1}>SSM>{n2}" for n1 in n1s for n2 in n2s])
    drawn_runs = runs.assign(tick=runs.n2, group=runs.n1, norm=runs.n1)
    groups = {n1: {} for n1 in n1s}
    fig, _ = arm_panels(
        drawn_runs, fresh, n2s, groups, AFTER_SSM, joined_by="group", group_distance=0.24
    )
    return finish(
        fig,
        "Whose gain is it: N₁'s or N₂'s?",
        describe_frame(runs, "means and seeds"),
        "colours: N₁, before the SSM",
        "small dots: seeds",
        fresh_note(fresh),
    )


@styled
def fig_halves(frame: pd.DataFrame) -> StudyFigure:
    """Return bars of the test accuracy of IN, of each half of IN, and of three other arms.

    One half subtracts the mean, the other divides by the standard deviation. frame: the run frame
    that `instance_norm_parts.with_parts` returns, with the column `part`.
    """
    check_frame(frame, ("part", "task", "arm", "seed", "test_accuracy"))
    whole, half = "a whole norm", "one half of IN alone"
    runs = frame.assign(
        percent=100 * frame.test_accuracy,
        tick=frame.part.str.replace(" ", "\n"),
        group=np.where(frame.part.str.startswith(("mean", "divided")), half, whole),
        norm=[Arm.parse(arm).n1 for arm in frame.arm],
        arm=frame.part,
    )
    groups = {whole: dict(alpha=0.9), half: dict(alpha=0.4, hatch="//")}
    label = "norm before and after the SSM"
    fig, _ = arm_panels(
        runs, None, list(runs.tick.unique()), groups, label, bar=True, group_distance=0
    )
    return finish(fig, "What does IN take away?", describe_frame(frame), "dotted: chance")
