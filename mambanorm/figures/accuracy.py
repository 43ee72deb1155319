"""The paper's accuracy figures: run frame in, figure out (Figures 1 and 5–7, IN taken apart).

Each is one function of a frame (see `load_runs`) and draws a panel a task. Dots are seeds, bars and large dots are
means, thin lines ± one standard deviation. Diamonds are the runs of `fresh`, a run frame of the reader's own (see
`replicate`). Numbers that the paper prints stand in a panel of their own: its tasks differ from ours, so the pattern,
not the level, is comparable.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mambanorm.arms import NORM_CHOICES, PAPER_NORMS, Arm
from mambanorm.figures.colours import COMBINATION, GREY, INK, NO_NORM, SINGLE, norm_colour, norm_marker, own_run
from mambanorm.figures.style import above, finish, jitter, own_runs, panel_grid, short, styled
from mambanorm.study.paper import FIGURE_7, MAIN_TASKS, PATTERN_ONLY, SECTIONS, paper_values
from mambanorm.study.tables import check_frame, choose, describe_frame, paper_kind, percent

TEST_ACCURACY = "test accuracy (%)"


def scored(frame: pd.DataFrame, arms: Sequence[str] | None = None) -> pd.DataFrame:
    """The runs that a figure draws (None = of all arms), so that its caption counts no others, with the test accuracy
    as `percent`. ValueError if there are none, or several of one seed."""
    check_frame(frame)
    kept = frame if arms is None else frame[frame.arm.isin(arms)]
    if kept.empty:
        raise ValueError(f"none of the arms drawn here has been run: {', '.join(arms)}")
    if kept.duplicated(["task", "arm", "seed"]).any():
        raise ValueError("an arm has several runs of one seed on a task: keep one scale, depth and lr")
    return kept.assign(percent=100 * kept.test_accuracy)


def own_of(fresh: pd.DataFrame | None, runs: pd.DataFrame) -> pd.DataFrame:
    """The reader's own runs as `scored` has them: no row where there are none."""
    return runs.iloc[:0] if fresh is None or fresh.empty else fresh.assign(percent=100 * fresh.test_accuracy)


def task_panels(frame: pd.DataFrame, *, paper: bool = False, chance: bool = True, height: float = 4.0):
    """A figure with one titled panel a task, chance as a dotted line, and one more panel for the paper if asked."""
    tasks = list(frame.task.unique())
    fig, axes = panel_grid(len(tasks) + paper, 3, row=height)
    for ax in axes:
        ax.set_ylabel(TEST_ACCURACY)
    for ax, task in zip(axes, tasks, strict=False):
        ax.set_title(task, color=INK)
        if chance:
            ax.axhline(100 * frame.chance[frame.task == task].mean(), color=GREY, linewidth=0.9, linestyle=(0, (2, 2)))
    if paper:
        axes[-1].set_title(f"the paper, {MAIN_TASKS[paper_kind(frame)]}: not our level", color=GREY, fontsize=9.5)
        axes[-1].set_facecolor("#FAFAF8")
    return fig, dict(zip(tasks, axes, strict=False)), axes[-1]


def norm_ticks(ax: Axes, names: Sequence[str], label: str) -> None:
    """Norm names under an axis that counts them from 0."""
    ax.set_xticks(range(len(names)), ["none" if name == "None" else name for name in names])
    ax.set(xlabel=label, xlim=(-0.6, len(names) - 0.4))
    ax.tick_params(axis="x", length=0)


def headroom(ax: Axes) -> None:
    """Room above the highest bar; bars start at zero."""
    ax.set_ylim(0, max(ax.dataLim.ymax, 1) * 1.12)


ONE, TWO = {"": dict(alpha=0.9)}, {"before": dict(alpha=0.4), "after": dict(alpha=0.9)}
"""The sides of a place → how their bars look: one bar a place, or two."""
SEEDS = dict(markersize=3.2, color=INK, markeredgecolor="white", markeredgewidth=0.5, zorder=4)


def bars(
    ax: Axes,
    runs: pd.DataFrame,
    own: pd.DataFrame,
    at: Mapping[str, tuple[str, str]],
    looks: Mapping[str, dict] = ONE,
    *,
    colours: Mapping[str, str] | None = None,
    joined: bool = False,
) -> None:
    """A bar for each arm of `at` (arm → place, side of it): mean, ± sd, a dot a seed, a diamond a run of `own`.

    `joined`: lines join the two runs of a seed, in place of the sd. Colours are those of the places as norms.
    """
    places, width = list(dict.fromkeys(place for place, _ in at.values())), 0.4 if len(looks) > 1 else 0.62
    shift = dict(zip(looks, jitter(len(looks), width), strict=True))
    where = {arm: places.index(place) + shift[side] for arm, (place, side) in at.items()}
    for arm, (place, side) in at.items():
        values, x = runs.percent[runs.arm == arm].dropna(), where[arm]
        if values.empty:
            continue
        mean, colour = values.mean(), norm_colour(place) if colours is None else colours[place]
        ax.bar(x, mean, width, color=colour, edgecolor="white", linewidth=0.8, **looks[side])
        if not joined:
            ax.plot([x, x], mean + values.std() * np.array([-1, 1]), color=INK, linewidth=1)
        ax.plot(x + jitter(len(values), 0 if joined else width / 2), values, "o", **SEEDS)
    if joined:
        seeds = runs.pivot(index="seed", columns="arm", values="percent")
        for place in places:
            both = [arm for arm in at if at[arm][0] == place]
            ends = seeds.reindex(columns=both).dropna().to_numpy().T
            ax.plot([where[arm] for arm in both], ends, color=INK, linewidth=0.7, alpha=0.7, zorder=3)
    own = own[own.arm.isin(at)]
    beside = {arm: x + 0.4 * width * (1 if shift[at[arm][1]] >= 0 else -1) for arm, x in where.items()}
    ax.plot([beside[arm] for arm in own.arm], own.percent, **own_run())


GROUPS = {"no norm": NO_NORM, "single norm": SINGLE, "combination": COMBINATION}


def group_of(arm: str) -> str:
    """no norm | single norm (one type, wherever it stands) | combination (two types or more)."""
    return list(GROUPS)[min(len(set(Arm.parse(arm).norms) - {"None"}), 2)]


@styled
def fig_headline(frame: pd.DataFrame, *, fresh: pd.DataFrame | None = None) -> Figure:
    """Figure 1: every arm's mean and seeds, in three groups: no norm, a single type, two types combined."""
    runs = scored(frame)
    own = own_of(fresh, runs)
    fig, panels, _ = task_panels(frame, chance=False, height=4.3)
    for task, ax in panels.items():
        here = runs[runs.task == task]
        for x, (group, colour) in enumerate(GROUPS.items()):
            means = here[here.arm.map(group_of) == group].groupby("arm").percent.mean().dropna().sort_values()
            if means.empty:
                ax.text(x, 0.02, "not run", transform=ax.get_xaxis_transform(), ha="center", color=GREY, fontsize=8)
                continue
            places = dict(zip(means.index, x + jitter(len(means), 0.62), strict=True))
            mine, ours = here[here.arm.isin(places)], own[(own.task == task) & own.arm.isin(places)]
            ax.plot(mine.arm.map(places), mine.percent, "o", markersize=2.4, color=colour, alpha=0.45, zorder=2)
            ax.plot(list(places.values()), means, "o", markersize=6, color=colour, markeredgecolor="white", zorder=3)
            ax.plot([places[arm] for arm in ours.arm], ours.percent, **own_run(size=3.5))
            ax.hlines(means.mean(), x - 0.4, x + 0.4, color=colour, linewidth=1.4, alpha=0.8)
            best = means.index[-1]
            above(ax, x, mine.percent.max(), f"{short(best)}\n{percent(means[best] / 100)}", 8)
        ax.set_xticks(range(len(GROUPS)), GROUPS)
        ax.set(xlim=(-0.5, 2.6), xlabel="normalization strategy")
        ax.margins(y=0.15)
    marks = "large dots: means of arms, small: seeds, line: mean of the group"
    return finish(fig, "No norm, one norm, two norms", describe_frame(frame, "means and seeds"), marks, own_runs(fresh))


def printed(frame: pd.DataFrame, arm: str) -> pd.DataFrame:
    """The paper's value of an arm on its own task, one row or none."""
    values = paper_values(kind := paper_kind(frame))
    return values[(values.arm == arm) & (values.task == MAIN_TASKS[kind])]


def _paper_bar(ax: Axes, frame: pd.DataFrame, arm: str, x: float, norm: str, home: str, *, shift: float = 0, **look):
    """What the paper prints for an arm on its own task, as a bar with its number (moved sideways by `shift` points), or
    "not printed". A value from another section than `home` names that section."""
    found = printed(frame, arm)
    value, section = (100 * found.accuracy.iloc[0], found.section.iloc[0]) if len(found) else (0.0, home)
    text = f"{value:.1f}" if len(found) else "not\nprinted"
    ax.bar(x, value, color=norm_colour(norm), edgecolor="white", linewidth=0.8, **look)
    above(ax, x, value, text + (f"\nfrom {section}" if section != home else ""), 6.8, (shift, 2), GREY)


@styled
def fig_type(frame: pd.DataFrame, norms: Sequence[str] = PAPER_NORMS, *, fresh: pd.DataFrame | None = None) -> Figure:
    """Figure 5: the same norm before and after the SSM; the paper's printed values in a panel of their own."""
    at = {f"{norm}>SSM>{norm}": (norm, "") for norm in norms}
    runs = scored(frame, list(at))
    own = own_of(fresh, runs)
    fig, panels, paper = task_panels(runs, paper=True)
    for task, ax in panels.items():
        bars(ax, runs[runs.task == task], own[own.task == task], at)
    for x, (arm, (norm, _)) in enumerate(at.items()):
        _paper_bar(paper, runs, arm, x, norm, SECTIONS["Figure 5"], width=0.62, alpha=0.9)
    for ax in (*panels.values(), paper):
        norm_ticks(ax, norms, "norm, before and after the SSM")
        headroom(ax)
    notes = (own_runs(fresh), "dotted: chance", f"paper: {PATTERN_ONLY}")
    return finish(fig, "Which type of norm?", describe_frame(runs), *notes)


NONE = "None>SSM>None"


@styled
def fig_position(
    frame: pd.DataFrame, norms: Sequence[str] = NORM_CHOICES, *, fresh: pd.DataFrame | None = None
) -> Figure:
    """Figure 6 and Table 1: each norm before the SSM and after it, seeds joined by lines; the paper's values beside."""
    at = {f"{norm}>SSM>None": (norm, "before") for norm in norms} | {f"None>SSM>{n}": (n, "after") for n in norms}
    runs = scored(frame, [NONE, *at])
    own = own_of(fresh, runs)
    fig, panels, paper = task_panels(runs, paper=True)
    for task, ax in panels.items():
        here, ours = runs[runs.task == task], own[own.task == task]
        bars(ax, here, ours, at, TWO, joined=True)
        none, ours = (some.percent[some.arm == NONE].dropna() for some in (here, ours))
        if len(none):
            ax.axhline(none.mean(), color=NO_NORM, linewidth=1, zorder=1)
        ax.plot(np.full(len(ours), -0.5), ours, **own_run(NO_NORM))
    for arm, (norm, side) in at.items():
        sign = 1 if side == "after" else -1
        place, look = norms.index(norm) + 0.2 * sign, dict(width=0.4, shift=2.5 * sign, **TWO[side])
        _paper_bar(paper, runs, arm, place, norm, SECTIONS["Table 1"], **look)
    none = printed(runs, NONE).iloc[0]
    paper.axhline(100 * none.accuracy, color=NO_NORM, linewidth=1, zorder=1)
    for ax in (*panels.values(), paper):
        norm_ticks(ax, norms, "norm")
        headroom(ax)
    handles = [Patch(color=GREY, alpha=look["alpha"], label=f"{side} the SSM") for side, look in TWO.items()]
    handles.append(Line2D([], [], color=NO_NORM, linewidth=1, label="no norm"))
    fig.legend(handles=handles, loc="outside upper right", ncols=3)
    paper_says = f"paper: {PATTERN_ONLY}, its no-norm line is from {none.section}"
    notes = ("lines join the runs of one seed", own_runs(fresh), "dotted: chance", paper_says)
    return finish(fig, "Before or after the SSM?", describe_frame(runs, "means and seeds"), *notes)


def partners(n2: str, norms: Sequence[str] = NORM_CHOICES) -> list[str]:
    """The combinations that end in N2: N1 over the other norms, neither None nor N2 itself (Figures 7, 8)."""
    return [f"{n1}>SSM>{n2}" for n1 in norms if n1 not in {n2, "None"}]


def best_combination(frame: pd.DataFrame, task: str, n2: str, norms: Sequence[str] = NORM_CHOICES) -> str | None:
    """The combination before N2 chosen on validation; None if none was run."""
    run = ((frame.task == task) & frame.arm.isin(partners(n2, norms))).any()
    return choose(frame, task, partners(n2, norms)) if run else None


@styled
def fig_single_vs_best(
    frame: pd.DataFrame, norms: Sequence[str] = NORM_CHOICES, *, fresh: pd.DataFrame | None = None
) -> Figure:
    """Figure 7: for each N2, the type N2→N2 against the best combination, chosen on validation, shown on test."""
    runs = scored(frame, [arm for n2 in norms for arm in (f"{n2}>SSM>{n2}", *partners(n2, norms))])
    own = own_of(fresh, runs)
    fig, panels, _ = task_panels(runs, chance=False)
    for task, ax in panels.items():
        here, fresh_here = runs[runs.task == task], own[own.task == task]
        for x, n2 in enumerate(norms):
            best, colour, ends = best_combination(runs, task, n2, norms), norm_colour(n2), []
            for arm, side, face in ((f"{n2}>SSM>{n2}", -0.2, "white"), (best, 0.2, colour)):
                mine, ours = (some.percent[some.arm == arm].dropna() for some in (here, fresh_here))
                if mine.empty:
                    continue
                ends.append((x + side, mine.mean()))
                ax.plot(x + side + jitter(len(mine)), mine, "o", markersize=2.6, color=colour, alpha=0.6)
                ax.plot(*ends[-1], norm_marker(n2), markersize=8, color=colour, markerfacecolor=face, zorder=4)
                ax.plot(np.full(len(ours), x + 1.6 * side), ours, **own_run(size=5))
            ax.plot(*zip(*ends, strict=True), color=colour, linewidth=1.4)
            if best:
                above(ax, x + 0.2, here.percent[here.arm == best].max(), Arm.parse(best).n1, 7.5)
        norm_ticks(ax, norms, "N₂, the norm after the SSM")
        ax.margins(y=0.1)
    look = dict(color=GREY, marker="o", markersize=8, linestyle="")
    handles = [Line2D([], [], markerfacecolor="white", label="single: N₂→N₂", **look)]
    handles.append(Line2D([], [], label="best combination, its N₁ above", **look))
    fig.legend(handles=handles, loc="outside upper right", ncols=2)
    kind = paper_kind(runs)
    numbers = ", ".join(f"{short(arm)} {value:.1f} %" for arm, value in FIGURE_7[kind].items())
    paper = f"paper, {MAIN_TASKS[kind]}: {numbers} ({PATTERN_ONLY})"
    notes = ("large dots: means, small: seeds", "N₁ chosen on validation, shown on test", own_runs(fresh), paper)
    return finish(fig, "One type, or the best pair?", describe_frame(runs, "means and seeds"), *notes)


@styled
def fig_halves(frame: pd.DataFrame) -> Figure:
    """IN taken apart: a bar for each part of it (column `part` of `with_halves`), a panel a task."""
    check_frame(frame, ("part", "task", "arm", "seed", "test_accuracy"))
    runs = frame.assign(percent=100 * frame.test_accuracy, arm=frame.part)
    at = {part: (part.replace(" ", "\n"), "") for part in runs.arm.unique()}
    colours = {at[part][0]: norm_colour(Arm.parse(arm).n1) for part, arm in zip(frame.part, frame.arm, strict=True)}
    fig, panels, _ = task_panels(frame)
    for task, ax in panels.items():
        bars(ax, runs[runs.task == task], runs.iloc[:0], at, colours=colours)
        for bar in ax.patches:
            if list(at)[round(bar.get_x() + bar.get_width() / 2)].startswith(("mean", "divided")):
                bar.set(alpha=0.4, hatch="//")
        ax.set_xticks(range(len(colours)), colours, fontsize=8)
        ax.set(xlabel="norm before and after the SSM")
        headroom(ax)
    notes = describe_frame(frame), "dotted: chance", "hatched: one half of IN alone"
    return finish(fig, "What does IN take away?", *notes)
