"""Notebooks 03 and 04: one norm, at both sites and at one. Which type leads, which half of IN does it, and where it
should stand."""

from __future__ import annotations

import pandas as pd

from mambanorm.answers.words import answer, gained, label, listed, numbered, over_seeds, told
from mambanorm.arms import Arm
from mambanorm.study.halves import with_halves
from mambanorm.study.tables import interval_says, mean_sd, paired, percent, summarize

NONE = "None>SSM>None"
HALF_NAMES = {"mean taken out": "taking out the mean", "divided by spread": "dividing by the spread"}


def type_of_norm(runs: pd.DataFrame) -> str:
    """A line for each task: the arm that leads, no norm and chance beside it, its gain. `runs`: the run frame of
    notebook 03. ValueError if no norm was not run."""
    lines = [_leader(task, here) for task, here in runs.groupby("task", sort=False)]
    paper = "\nThe paper, on Breakfast (§4.2): GN→GN 68.8 % against 7.0 %."
    return answer(runs, "mean ± sd, differences with 95 % t-interval", [*lines, paper])


def _leader(task: str, here: pd.DataFrame) -> str:
    means, best, second, gap = _first_two(here)
    none = _no_norm(means)
    start = f"- **{task}**: {label(best)} is ahead with {mean_sd(means.loc[best])}"
    if best == NONE:
        return f"{start}, without any norm (chance {percent(none.chance)})."
    gain = paired(here, best, NONE).iloc[0]
    lead = "" if second == NONE else f" Over the next, {label(second)}, it is {told(gap, ': ')}."
    return f"{start} (no norm {mean_sd(none)}, chance {percent(none.chance)}). The gain is {told(gain, ': ')}.{lead}"


def _first_two(here: pd.DataFrame) -> tuple[pd.DataFrame, str, str, pd.Series]:
    """The means of the arms of one task, the first and the second arm, and the difference of the two."""
    means = summarize(here).set_index("arm").sort_values("mean", ascending=False, kind="stable")
    best, second = means.index[:2]
    return means, best, second, paired(here, best, second).iloc[0]


def _no_norm(means: pd.DataFrame) -> pd.Series:
    if NONE not in means.index:
        raise ValueError(f"the arm {NONE} was not run: the answer compares with it")
    return means.loc[NONE]


def guesses_on_type(runs: pd.DataFrame) -> str:
    """The three guesses of notebook 03, task by task: which arm leads, by how much it leads the next, and how far a
    model without a norm gets."""
    ahead, leads, none = [], [], []
    for task, here in runs.groupby("task", sort=False):
        means, best, second, gap = _first_two(here)
        ahead.append(f"On {task}, {label(best)} is ahead with {mean_sd(means.loc[best])}.")
        leads.append(f"On {task} it leads the next, {label(second)}, by {told(gap, ': ')}.")
        none.append(f"{mean_sd(_no_norm(means))} on {task} (chance {percent(means.chance.iloc[0])})")
    return numbered([" ".join(ahead), " ".join(leads), f"Without any norm a model reaches {listed(none)}."])


def order_beside_paper(beside: pd.DataFrame) -> str:
    """The order of the arms in the paper and here, task by task. `beside`: the frame of `tables.beside_paper`."""

    def order(rows: pd.DataFrame, column: str) -> str:
        names = rows.sort_values(column, ascending=False, kind="stable").arm
        return " > ".join("no norm" if arm == NONE else label(arm) for arm in names)

    ours = [f"- **{task}**: {order(rows, 'ours')}" for task, rows in beside.groupby("task", sort=False)]
    paper = order(beside.drop_duplicates("arm"), "paper")
    return "\n".join([f"- **The paper**: {paper}", *ours])


def told_from_none(gains: pd.DataFrame) -> str:
    """Which differences are clearly above or below zero, task by task. `gains`: a frame of `tables.paired`."""
    lines = []
    for task, here in gains.groupby("task", sort=False):
        says = [interval_says(row.low, row.high) for row in here.itertuples()]
        of = {say: [label(row.a) for row, s in zip(here.itertuples(), says, strict=True) if s == say] for say in says}
        lines.append(f"- **{task}**: {'; '.join(f'{say}: {listed(arms)}' for say, arms in of.items())}.")
    return "\n".join(lines)


def difference(frame: pd.DataFrame) -> str:
    """Each difference of a frame of `tables.paired`, and what its interval says."""
    return "\n".join(
        f"- {label(row.a)} − {label(row.b)} on {row.task}: {told(row, ': ')}." for row in frame.itertuples()
    )


def guesses_on_halves(parts: pd.DataFrame) -> str:
    """Which half of IN does the work on the first task, and which norms are lost on `level`. `parts`: the runs of
    `halves.halves_runs`. ValueError if a half was not run."""
    frame = with_halves(parts)
    table = 100 * frame.pivot(index=["task", "seed"], columns="part", values="test_accuracy")
    if missing := [part for part in ("no norm", *HALF_NAMES, "both: IN") if part not in table]:
        raise ValueError(f"these parts of IN were not run: {', '.join(missing)}")
    first = frame.task.iloc[0]
    return f"- **{first}**: {_halves(table.loc[first])}\n- **level**: {_lost(frame[frame.task == 'level'])}"


def _halves(table: pd.DataFrame) -> str:
    """What each half brings, what both bring at once beyond the sum of the two, and which half brings more. `table`:
    points, one row a seed, one column a part."""
    gain = {part: table[part] - table["no norm"] for part in (*HALF_NAMES, "both: IN")}
    alone = [f"{name} alone brings {gained(over_seeds(gain[part]))}" for part, name in HALF_NAMES.items()]
    mean, spread = HALF_NAMES
    added = gain[mean] + gain[spread]
    added_up = f"{added.mean():+.1f}".replace("-", "−")
    both, beyond, lead = gain["both: IN"], gain["both: IN"] - added, gain[spread] - gain[mean]
    return (
        f"{listed(alone)}, added {added_up}. Both at once bring {gained(over_seeds(both))}. What goes beyond the "
        f"sum is {told(over_seeds(beyond))}. {HALF_NAMES[spread].capitalize()} leads "
        f"{HALF_NAMES[mean]} by {told(over_seeds(lead))}."
    )


def _lost(level: pd.DataFrame) -> str:
    """Which parts end nearer to chance than to the best part."""
    if level.empty:
        return "not run."
    means = summarize(level, ["part"]).set_index("part")
    middle = (means["mean"].max() + means.chance.iloc[0]) / 2
    lost = [f"{part} ({mean_sd(row)})" for part, row in means.iterrows() if row["mean"] < middle]
    return f"nearer to chance ({percent(means.chance.iloc[0])}) than to the best part: {listed(lost)}."


# ---------------------------------------------------------------------------------------------------------------------
# 04: for how many norms is after better, and for which does the place matter most?
# ---------------------------------------------------------------------------------------------------------------------

GATE = {"None>SSM>RMSN": "after", "RMSN>SSM>None": "before"}


def before_or_after(runs: pd.DataFrame, pairs: pd.DataFrame, rivals: pd.DataFrame, *, printed: pd.DataFrame) -> str:
    """A line for each task: how often after is ahead, which norm gains most there, and than how many others GN gains
    more.

    `pairs`: after − before as `tables.paired` has it. `rivals`: `contrasts.difference_of_differences` of GN against the
    others. `printed`: the paper's own differences, a column a task.
    """
    lines = [_line(task, here, rivals[rivals.task == task]) for task, here in pairs.groupby("task", sort=False)]
    theirs = ", ".join(f"{(column > 0).sum()} of {len(column)} on {task}" for task, column in printed.items())
    lines.append(f"- The paper's own Table 1: after is ahead for {theirs}.")
    return answer(runs, "after − before, 95 % t-intervals", lines)


def _line(task: str, here: pd.DataFrame, rivals: pd.DataFrame) -> str:
    best = here.loc[here.difference.idxmax()]
    most = "gains most" if best.difference > 0 else "loses least"
    several = best.n > 1
    sure = f" (clearly: {(rivals.low > 0).sum()})" if several else ""
    others = here.difference.drop(best.name)
    means = [f"{mean:+.1f}".replace("-", "−") for mean in (here.difference.mean(), others.mean())]
    return (
        f"- **{task}**: {_count(here)}{f', {_clear(here)}' if several else ''}. After {most} with "
        f"{Arm.parse(best.a).n2}: {gained(best)}. The mean of the {len(here)} norms is {means[0]} points; without "
        f"{Arm.parse(best.a).n2} it is {means[1]}. GN's gain is larger than that of {(rivals.difference > 0).sum()} of "
        f"the other {len(rivals)}{sure}."
    )


def _count(here: pd.DataFrame) -> str:
    return f"after is ahead for {(here.difference > 0).sum()} of {len(here)} norms"


def _clear(here: pd.DataFrame) -> str:
    return f"clearly for {(here.low > 0).sum()}, clearly behind for {(here.high < 0).sum()}"


def guesses_on_place(pairs: pd.DataFrame, sizes: pd.DataFrame) -> str:
    """The three guesses of notebook 04: for how many norms after is better, for which the place matters most, and what
    a norm after the SSM does for the gate. `sizes`: the frame of `gate.sizes_inside`."""
    by_task = list(pairs.groupby("task", sort=False))
    better = [f"{(here.difference > 0).sum()} of {len(here)} norms on {task}" for task, here in by_task]
    most = [here.loc[here.difference.abs().idxmax()] for _, here in by_task]
    matters = [f"{Arm.parse(row.a).n2} on {row.task} ({gained(row)}, after − before)" for row in most]
    first = f"After is better for {listed(better)}."
    return numbered([first, f"The place matters most for {listed(matters)}.", _gate(sizes)])


def _gate(sizes: pd.DataFrame) -> str:
    """By how much the gate's input grows with the block's, for a norm after and a norm before."""
    factors = sizes.index.get_level_values("factor")
    most, least = factors.max(), factors.min()
    grows = {place: sizes.z[arm, most] / sizes.z[arm, least] for arm, place in GATE.items()}
    says = "does nothing for the gate" if grows["after"] > 2 else "holds the gate's input too"
    return (
        f"An input {most / least:g} times as large multiplies the gate's input by {grows['after']:.3g} where RMSN "
        f"stands after the SSM, and by {grows['before']:.3g} where it stands before. So a norm after the SSM {says}."
    )
