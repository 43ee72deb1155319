"""The paper's accuracy figures: run frame in, figure out (Figures 1, 5–8).

Each is one function of a frame (see `load_runs`) and draws a panel a task. Dots are seeds, bars and large dots are
means, thin lines ± one standard deviation. Diamonds are the runs of `fresh`, a run frame of the reader's own (see
`replicate`). Numbers that the paper prints stand in a panel of their own: its tasks differ from ours, so the pattern,
not the level, is comparable.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mambanorm.arms import NORM_CHOICES, PAPER_NORMS, Arm
from mambanorm.figures.style import (
    COMBINATION,
    GREY,
    INK,
    NO_NORM,
    SINGLE,
    empty_axes,
    finish,
    jitter,
    new_figure,
    norm_colour,
    norm_marker,
    own_run,
    own_runs,
    short,
    styled,
)
from mambanorm.study.paper import FIGURE_7, MAIN_TASKS, PATTERN_ONLY, SECTIONS, paper_values
from mambanorm.study.tables import (
    by_seed,
    check_frame,
    choose,
    describe_frame,
    paper_kind,
    percent,
    summarize,
)

TEST_ACCURACY = "test accuracy (%)"
CHANCE = dict(color=GREY, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)


def seeds_of(frame: pd.DataFrame | None, task: str, arm: str) -> np.ndarray:
    """An arm's test accuracies in per cent, by seed; empty where it was not run, and of no frame."""
    if frame is None or not ((frame.task == task) & (frame.arm == arm)).any():
        return np.array([])
    return 100 * by_seed(frame, task, arm).dropna().sort_index().to_numpy()


def task_panels(frame: pd.DataFrame, *, paper: bool = False, chance: bool = True, height: float = 4.0):
    """A figure with one titled panel a task, chance as a dotted line, and one more panel for the paper if asked."""
    check_frame(frame)
    tasks = list(frame.task.unique())
    panels = len(tasks) + paper
    columns = min(panels, 3)
    rows = -(-panels // columns)
    fig, axes = new_figure(rows, columns, height=height * rows)
    axes = axes.ravel()
    for unused in axes[panels:]:
        empty_axes(unused)
    for ax, task in zip(axes, tasks, strict=False):
        ax.set_title(task, color=INK)
        ax.set_ylabel(TEST_ACCURACY)
        if chance:
            ax.axhline(100 * frame.chance[frame.task == task].mean(), **CHANCE)
    if paper:
        _paper_panel(axes[panels - 1], paper_kind(frame))
    return fig, dict(zip(tasks, axes, strict=False)), axes[panels - 1] if paper else None


def _paper_panel(ax: Axes, kind: str) -> None:
    ax.set_title(f"the paper, {MAIN_TASKS[kind]}: not our level", color=GREY, fontsize=9.5)
    ax.set_ylabel(TEST_ACCURACY)
    ax.set_facecolor("#FAFAF8")


def keep_arms(frame: pd.DataFrame, arms: Sequence[str]) -> pd.DataFrame:
    """The runs that a figure draws, so that its caption counts no others. ValueError if there are none."""
    check_frame(frame)
    kept = frame[frame.arm.isin(arms)]
    if kept.empty:
        raise ValueError(f"none of the arms drawn here has been run: {', '.join(arms)}")
    return kept


def bar(
    ax: Axes,
    x: float,
    values: np.ndarray,
    colour: str,
    *,
    width: float = 0.62,
    light: bool = False,
    hatch: str = "",
    fresh: Sequence[float] = (),
) -> None:
    """One bar: mean, ± sd, a dot a seed, a diamond a fresh run. Nothing where there are no values."""
    diamonds(ax, x + 0.4 * width, fresh)
    if not len(values):
        return
    style = dict(alpha=0.4 if light else 0.9, hatch=hatch, edgecolor="white", linewidth=0.8)
    ax.bar(x, values.mean(), width, color=colour, **style)
    if len(values) > 1:
        ax.errorbar(x, values.mean(), values.std(ddof=1), color=INK, linewidth=1, capsize=0, zorder=3)
        ax.plot(x + jitter(len(values), width / 2), values, "o", **seed_dots())


def diamonds(ax: Axes, x: float, fresh: Sequence[float], **look) -> None:
    """Fresh runs in per cent, one below the other."""
    if len(fresh):
        ax.plot(np.full(len(fresh), x), fresh, **own_run(**look))


def seed_dots(colour: str = INK) -> dict:
    return dict(markersize=3.2, color=colour, markeredgecolor="white", markeredgewidth=0.5, zorder=4, linestyle="")


def above(
    ax: Axes, x: float, y: float, text: str, size: float, points: tuple[float, float] = (0, 5), colour: str = INK
) -> None:
    """Words above a data point, moved right and up by so many typographic points."""
    ax.annotate(text, (x, y), points, textcoords="offset points", ha="center", va="bottom", fontsize=size, color=colour)


def norm_ticks(ax: Axes, names: Sequence[str], label: str) -> None:
    """Norm names under an axis that counts them from 0."""
    ax.set_xticks(range(len(names)), ["none" if name == "None" else name for name in names])
    ax.set(xlabel=label, xlim=(-0.6, len(names) - 0.4))
    ax.tick_params(axis="x", length=0)


def headroom(ax: Axes, share: float = 0.12) -> None:
    """Room above the highest bar; bars start at zero."""
    ax.set_ylim(0, max(ax.dataLim.ymax, 1) * (1 + share))


# ---------------------------------------------------------------------------------------------------------------------
# Figure 1
# ---------------------------------------------------------------------------------------------------------------------

GROUPS = {"no norm": NO_NORM, "single norm": SINGLE, "combination": COMBINATION}


def group_of(arm: str | Arm) -> str:
    """no norm | single norm (one type, wherever it stands) | combination (two types or more)."""
    kinds = set(Arm.parse(arm).norms) - {"None"}
    return ("no norm", "single norm", "combination")[min(len(kinds), 2)]


@styled
def fig_headline(frame: pd.DataFrame, *, fresh: pd.DataFrame | None = None) -> Figure:
    """Figure 1: every arm's mean and seeds, in three groups: no norm, a single type, two types combined."""
    fig, panels, _ = task_panels(frame, height=4.3)
    for task, ax in panels.items():
        for x, group in enumerate(GROUPS):
            arms = [arm for arm in frame.arm[frame.task == task].unique() if group_of(arm) == group]
            own = {arm: seeds_of(fresh, task, arm) for arm in arms}
            _strip(ax, x, {arm: seeds_of(frame, task, arm) for arm in arms}, own, GROUPS[group])
        ax.set_xticks(range(len(GROUPS)), GROUPS)
        ax.set(xlim=(-0.5, 2.6), xlabel="normalization strategy")
        headroom(ax, 0.17)
    marks = "large dots: means of arms, small: seeds, line: mean of the group, dotted: chance"
    return finish(fig, "No norm, one norm, two norms", describe_frame(frame, "means and seeds"), marks, own_runs(fresh))


def _strip(ax: Axes, x: float, arms: dict[str, np.ndarray], own: dict[str, np.ndarray], colour: str) -> None:
    """One group: arms side by side in order of their mean, the best one named."""
    arms = {arm: values for arm, values in arms.items() if len(values)}
    if not arms:
        ax.text(x, 0.02, "not run", transform=ax.get_xaxis_transform(), ha="center", color=GREY, fontsize=8)
        return
    order = sorted(arms, key=lambda arm: arms[arm].mean())
    at = x + jitter(len(order), 0.62)
    for place, arm in zip(at, order, strict=True):
        ax.plot(np.full(len(arms[arm]), place), arms[arm], "o", markersize=2.4, color=colour, alpha=0.45, zorder=2)
        ax.plot(place, arms[arm].mean(), "o", markersize=6, color=colour, markeredgecolor="white", zorder=3)
        diamonds(ax, place, own[arm], size=3.5)
    ax.hlines(np.mean([v.mean() for v in arms.values()]), x - 0.4, x + 0.4, color=colour, linewidth=1.4, alpha=0.8)
    best, top = order[-1], max(values.max() for values in arms.values())
    above(ax, x, top, f"{short(best)}\n{percent(arms[best].mean() / 100)}", 8)


# ---------------------------------------------------------------------------------------------------------------------
# Figures 5 and 6: type and position
# ---------------------------------------------------------------------------------------------------------------------


def printed_at(arm: str, kind: str) -> tuple[float, str]:
    """What the paper prints for an arm on its own task, in per cent, and in which section; NaN and "" if nothing."""
    values = paper_values(kind)
    match = values[(values.arm == arm) & (values.task == MAIN_TASKS[kind])]
    return (100 * match.accuracy.iloc[0], match.section.iloc[0]) if len(match) else (np.nan, "")


def _paper_bar(
    ax: Axes,
    x: float,
    arm: str,
    kind: str,
    *,
    norm: str,
    home: str,
    width: float = 0.62,
    light: bool = False,
    shift: float = 0,
) -> None:
    """A printed value as a bar, with its number (moved sideways by `shift` points), or "not printed". A value from
    another section than `home` names that section."""
    value, section = printed_at(arm, kind)
    text, height = (f"{value:.1f}", value) if np.isfinite(value) else ("not\nprinted", 0)
    text += f"\nfrom {section}" if section not in ("", home) else ""
    bar(ax, x, np.array([height]), norm_colour(norm), width=width, light=light)
    above(ax, x, height, text, 6.8, (shift, 2), GREY)


@styled
def fig_type(frame: pd.DataFrame, norms: Sequence[str] = PAPER_NORMS, *, fresh: pd.DataFrame | None = None) -> Figure:
    """Figure 5: the same norm before and after the SSM; the paper's printed values in a panel of their own."""
    frame = keep_arms(frame, [f"{norm}>SSM>{norm}" for norm in norms])
    fig, panels, paper = task_panels(frame, paper=True)
    for x, norm in enumerate(norms):
        arm = f"{norm}>SSM>{norm}"
        for task, ax in panels.items():
            bar(ax, x, seeds_of(frame, task, arm), norm_colour(norm), fresh=seeds_of(fresh, task, arm))
        _paper_bar(paper, x, arm, paper_kind(frame), norm=norm, home=SECTIONS["Figure 5"])
    for ax in (*panels.values(), paper):
        norm_ticks(ax, norms, "norm, before and after the SSM")
        headroom(ax)
    notes = (own_runs(fresh), "dotted: chance", f"paper: {PATTERN_ONLY}")
    return finish(fig, "Which type of norm?", describe_frame(frame), *notes)


@styled
def fig_position(
    frame: pd.DataFrame, norms: Sequence[str] = NORM_CHOICES, *, fresh: pd.DataFrame | None = None
) -> Figure:
    """Figure 6 and Table 1: each norm before the SSM and after it, seeds joined by lines; the paper's values beside."""
    sites = [arm for norm in norms for arm in (f"{norm}>SSM>None", f"None>SSM>{norm}")]
    frame = keep_arms(frame, ["None>SSM>None", *sites])
    fig, panels, paper = task_panels(frame, paper=True)
    for task, ax in panels.items():
        for x, norm in enumerate(norms):
            _before_after(ax, x, norm, frame, task)
            for side, arm in ((-1, f"{norm}>SSM>None"), (1, f"None>SSM>{norm}")):
                diamonds(ax, x + 0.34 * side, seeds_of(fresh, task, arm))
        none = seeds_of(frame, task, "None>SSM>None")
        if len(none):
            ax.axhline(none.mean(), color=NO_NORM, linewidth=1, zorder=1)
        diamonds(ax, -0.5, seeds_of(fresh, task, "None>SSM>None"), colour=NO_NORM)
    kind, narrow = paper_kind(frame), dict(width=0.4, home=SECTIONS["Table 1"])
    for x, norm in enumerate(norms):
        _paper_bar(paper, x - 0.21, f"{norm}>SSM>None", kind, norm=norm, light=True, shift=-2.5, **narrow)
        _paper_bar(paper, x + 0.21, f"None>SSM>{norm}", kind, norm=norm, shift=2.5, **narrow)
    none, section = printed_at("None>SSM>None", kind)
    paper.axhline(none, color=NO_NORM, linewidth=1, zorder=1)
    for ax in (*panels.values(), paper):
        norm_ticks(ax, norms, "norm")
        headroom(ax)
    handles = [Patch(color=GREY, alpha=0.4, label="before the SSM"), Patch(color=GREY, label="after the SSM")]
    handles.append(Line2D([], [], color=NO_NORM, linewidth=1, label="no norm"))
    fig.legend(handles=handles, loc="outside upper right", ncols=3)
    paper_says = f"paper: {PATTERN_ONLY}, its no-norm line is from {section}"
    notes = ("lines join the runs of one seed", own_runs(fresh), "dotted: chance", paper_says)
    return finish(fig, "Before or after the SSM?", describe_frame(frame, "means and seeds"), *notes)


def _before_after(ax: Axes, x: float, norm: str, frame: pd.DataFrame, task: str) -> None:
    before, after = f"{norm}>SSM>None", f"None>SSM>{norm}"
    for place, arm, light in ((x - 0.21, before, True), (x + 0.21, after, False)):
        values = seeds_of(frame, task, arm)
        if len(values):
            ax.bar(place, values.mean(), 0.4, color=norm_colour(norm), alpha=0.4 if light else 0.9)
            ax.plot(np.full(len(values), place), values, "o", **seed_dots())
    if len(seeds_of(frame, task, before)) and len(seeds_of(frame, task, after)):
        both = pd.concat([by_seed(frame, task, before), by_seed(frame, task, after)], axis=1, join="inner").dropna()
        ax.plot([x - 0.21, x + 0.21], 100 * both.T.to_numpy(), color=INK, linewidth=0.7, alpha=0.7, zorder=3)


# ---------------------------------------------------------------------------------------------------------------------
# Figures 7 and 8: combinations
# ---------------------------------------------------------------------------------------------------------------------


def partners(n2: str, norms: Sequence[str] = NORM_CHOICES) -> list[str]:
    """The combinations that end in N2: N1 over the other norms, neither None nor N2 itself (Figures 7, 8)."""
    return [f"{n1}>SSM>{n2}" for n1 in norms if n1 not in {n2, "None"}]


def best_combination(frame: pd.DataFrame, task: str, n2: str, norms: Sequence[str] = NORM_CHOICES) -> str | None:
    """The combination before N2 chosen on validation, on the select seeds where there are any; None if none was run."""
    selects = frame[frame.role == "select"] if "role" in frame else frame.iloc[:0]
    for runs in (selects, frame):
        if ((runs.task == task) & runs.arm.isin(partners(n2, norms))).any():
            return choose(runs, task, partners(n2, norms))
    return None


def tested(frame: pd.DataFrame) -> pd.DataFrame:
    """The runs to report: those of the test seeds, if the frame has any."""
    return frame[frame.role == "test"] if "role" in frame and (frame.role == "test").any() else frame


@styled
def fig_single_vs_best(
    frame: pd.DataFrame, norms: Sequence[str] = NORM_CHOICES, *, fresh: pd.DataFrame | None = None
) -> Figure:
    """Figure 7: for each N2, the type N2→N2 against the best combination, chosen on validation, shown on test."""
    pairs = [arm for n2 in norms for arm in (f"{n2}>SSM>{n2}", *partners(n2, norms))]
    shown = tested(frame := keep_arms(frame, pairs))
    fig, panels, _ = task_panels(shown)
    for task, ax in panels.items():
        for x, n2 in enumerate(norms):
            chosen = best_combination(frame, task, n2, norms) or ""
            for side, arm, look in ((-1, f"{n2}>SSM>{n2}", dict(light=True)), (1, chosen, dict(hatch="///"))):
                values, own = seeds_of(shown, task, arm), seeds_of(fresh, task, arm)
                bar(ax, x + 0.21 * side, values, norm_colour(n2), width=0.4, fresh=own, **look)
            if len(values):
                above(ax, x + 0.21, values.max(), Arm.parse(chosen).n1, 7.5)
        norm_ticks(ax, norms, "N₂, the norm after the SSM")
        headroom(ax)
    handles = [Patch(color=GREY, alpha=0.4, label="single: N₂→N₂")]
    handles.append(Patch(facecolor=GREY, hatch="///", edgecolor="white", label="best combination, its N₁ above"))
    fig.legend(handles=handles, loc="outside upper right", ncols=2)
    kind = paper_kind(frame)
    numbers = ", ".join(f"{short(arm)} {value:.1f} %" for arm, value in FIGURE_7[kind].items())
    paper = f"paper, {MAIN_TASKS[kind]}: {numbers} ({PATTERN_ONLY})"
    notes = ("N₁ chosen on validation, shown on test", own_runs(fresh), "dotted: chance", paper)
    return finish(fig, "One type, or the best pair?", describe_frame(shown), *notes)


@styled
def fig_n2_box(frame: pd.DataFrame, norms: Sequence[str] = NORM_CHOICES) -> Figure:
    """Figure 8: for each N2, the spread over the other N1 (without None and N2 itself); a point is an arm's mean."""
    frame = keep_arms(frame, [arm for n2 in norms for arm in partners(n2, norms)])
    fig, panels, _ = task_panels(frame, chance=False)
    for task, ax in panels.items():
        means = summarize(frame[frame.task == task]).set_index("arm")["mean"] * 100
        for x, n2 in enumerate(norms):
            _box(ax, x, means.reindex(partners(n2, norms)).dropna())
        norm_ticks(ax, norms, "N₂, the norm after the SSM")
    handles = [Line2D([], [], label=n1, **n1_dot(n1)) for n1 in norms]
    fig.legend(handles=handles, title="N₁, before the SSM", loc="outside right center", title_fontsize=8.5)
    notes = (
        describe_frame(frame, "means over seeds"),
        "box: quartiles over N₁, line: median, cross: mean, whiskers: all",
    )
    return finish(fig, "Which norm after the SSM, whatever stands before?", *notes)


def n1_dot(n1: str) -> dict:
    """The dot of an arm with this N1: told by its shape as well as by its colour."""
    shape = dict(marker=norm_marker(n1), markersize=7 if norm_marker(n1) in ("^", "v", "P") else 6)
    return dict(color=norm_colour(n1), linestyle="", markeredgecolor="white", **shape)


def _box(ax: Axes, x: float, means: pd.Series) -> None:
    if means.empty:
        return
    n2 = Arm.parse(means.index[0]).n2
    style = dict(facecolor=norm_colour(n2), alpha=0.28, edgecolor=INK, linewidth=0.8)
    lines = dict(color=INK, linewidth=0.9)
    ax.boxplot(
        [means],
        positions=[x],
        widths=0.66,
        whis=(0, 100),
        patch_artist=True,
        boxprops=style,
        medianprops=dict(color=INK, linewidth=1.6),
        whiskerprops=lines,
        capprops=lines,
        manage_ticks=False,
    )
    for place, (arm, mean) in zip(x + jitter(len(means), 0.5), means.items(), strict=True):
        ax.plot(place, mean, zorder=4, **n1_dot(Arm.parse(arm).n1))
    ax.plot(x, means.mean(), "x", markersize=6, color=INK, zorder=5)
