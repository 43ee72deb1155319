"""Notebooks 03 and 04: one norm, at both sites and at one. Which type leads, which half of IN does it, and where it
should stand."""

import pandas as pd

from mambanorm.answers.words import answer, gained, label, listed, numbered, over_seeds, told
from mambanorm.arms import Arm
from mambanorm.study.halves import with_halves
from mambanorm.study.tables import interval_says, mean_sd, paired, percent, summarize

NONE = "None>SSM>None"
HALF_NAMES = {"mean taken out": "taking out the mean", "divided by spread": "dividing by the spread"}


def type_of_norm(runs: pd.DataFrame) -> str:
    """A line for each task: the arm that leads, no norm and chance beside it, its gain. `runs`: the run frame of
    notebook 03, no norm among them."""
    lines = []
    for task, here in runs.groupby("task", sort=False):
        means, best, second, gap = _first_two(here)
        none, chance = mean_sd(means.loc[NONE]), f"chance {percent(means.chance[NONE])}"
        start = f"- **{task}**: {label(best)} is ahead with {mean_sd(means.loc[best])}"
        if best == NONE:
            lines.append(f"{start}, without any norm ({chance}).")
            continue
        gain = told(paired(here, best, NONE).iloc[0], ": ")
        lead = "" if second == NONE else f" Over the next, {label(second)}, it is {told(gap, ': ')}."
        lines.append(f"{start} (no norm {none}, {chance}). The gain is {gain}.{lead}")
    paper = "\nThe paper, on Breakfast (§4.2): GN→GN 68.8 % against 7.0 %."
    return answer(runs, "mean ± sd, differences with 95 % t-interval", [*lines, paper])


def _first_two(here: pd.DataFrame) -> tuple[pd.DataFrame, str, str, pd.Series]:
    """The means of the arms of one task, the first and the second arm, and the difference of the two."""
    means = summarize(here).set_index("arm").sort_values("mean", ascending=False, kind="stable")
    best, second = means.index[:2]
    return means, best, second, paired(here, best, second).iloc[0]


def guesses_on_type(runs: pd.DataFrame) -> str:
    """The three guesses of notebook 03, task by task: which arm leads, by how much it leads the next, and how far a
    model without a norm gets."""
    ahead, leads, none = [], [], []
    for task, here in runs.groupby("task", sort=False):
        means, best, second, gap = _first_two(here)
        ahead.append(f"On {task}, {label(best)} is ahead with {mean_sd(means.loc[best])}.")
        leads.append(f"On {task} it leads the next, {label(second)}, by {told(gap, ': ')}.")
        none.append(f"{mean_sd(means.loc[NONE])} on {task} (chance {percent(means.chance.iloc[0])})")
    return numbered([" ".join(ahead), " ".join(leads), f"Without any norm a model reaches {listed(none)}."])


def order_beside_paper(beside: pd.DataFrame) -> str:
    """The order of the arms in the paper and here, task by task. `beside`: the frame of `tables.beside_paper`."""

    def order(rows: pd.DataFrame, column: str) -> str:
        names = rows.sort_values(column, ascending=False, kind="stable").arm
        return " > ".join("no norm" if arm == NONE else label(arm) for arm in names)

    ours = [f"- **{task}**: {order(rows, 'ours')}" for task, rows in beside.groupby("task", sort=False)]
    return "\n".join([f"- **The paper**: {order(beside.drop_duplicates('arm'), 'paper')}", *ours])


def told_from_none(gains: pd.DataFrame) -> str:
    """Which differences are clearly above or below zero, task by task. `gains`: a frame of `tables.paired`."""
    lines = []
    for task, here in gains.groupby("task", sort=False):
        says = [interval_says(row.low, row.high) for row in here.itertuples()]
        of = {say: listed(map(label, here.a[[one == say for one in says]])) for say in says}
        lines.append(f"- **{task}**: {'; '.join(f'{say}: {arms}' for say, arms in of.items())}.")
    return "\n".join(lines)


def difference(frame: pd.DataFrame) -> str:
    """Each difference of a frame of `tables.paired`, and what its interval says."""
    return "\n".join(
        f"- {label(row.a)} − {label(row.b)} on {row.task}: {told(row, ': ')}." for row in frame.itertuples()
    )


def guesses_on_halves(parts: pd.DataFrame) -> str:
    """Which half of IN does the work on the first task: what each brings, what both bring at once beyond the sum of the
    two, and which brings more; and which norms are lost on `level`, nearer to chance than to the best part. `parts`:
    the runs of `halves.halves_runs`."""
    frame = with_halves(parts)
    first, level = frame.task.iloc[0], frame[frame.task == "level"]
    table = 100 * frame[frame.task == first].pivot(index="seed", columns="part", values="test_accuracy")
    gain = {part: table[part] - table["no norm"] for part in (*HALF_NAMES, "both: IN")}
    alone = [f"{name} alone brings {gained(over_seeds(gain[part]))}" for part, name in HALF_NAMES.items()]
    mean, spread = HALF_NAMES
    added, both = gain[mean] + gain[spread], gain["both: IN"]
    added_up = f"{added.mean():+.1f}".replace("-", "−")
    means = summarize(level, ["part"]).set_index("part")
    middle = (means["mean"].max() + means.chance.iloc[0]) / 2
    lost = [f"{part} ({mean_sd(row)})" for part, row in means.iterrows() if row["mean"] < middle]
    return (
        f"- **{first}**: {listed(alone)}, added {added_up}. Both at once bring {gained(over_seeds(both))}. What goes "
        f"beyond the sum is {told(over_seeds(both - added))}. {HALF_NAMES[spread].capitalize()} leads "
        f"{HALF_NAMES[mean]} by {told(over_seeds(gain[spread] - gain[mean]))}.\n"
        f"- **level**: nearer to chance ({percent(means.chance.iloc[0])}) than to the best part: {listed(lost)}."
    )


# 04: for how many norms is after better, and for which does the place matter most?


def before_or_after(runs: pd.DataFrame, pairs: pd.DataFrame, rivals: pd.DataFrame, *, printed: pd.DataFrame) -> str:
    """A line for each task: how often after is ahead, which norm gains most there, and than how many others GN gains
    more.

    `pairs`: after − before as `tables.paired` has it. `rivals`: `contrasts.difference_of_differences` of GN against the
    others. `printed`: the paper's own differences, a column a task.
    """
    lines = []
    for task, here in pairs.groupby("task", sort=False):
        best, others = here.loc[here.difference.idxmax()], rivals[rivals.task == task]
        most, clear, sure = "gains most" if best.difference > 0 else "loses least", "", ""
        if best.n > 1:
            clear = f", clearly for {(here.low > 0).sum()}, clearly behind for {(here.high < 0).sum()}"
            sure = f" (clearly: {(others.low > 0).sum()})"
        name, rest = Arm.parse(best.a).n2, here.difference.drop(best.name)
        means = [f"{mean:+.1f}".replace("-", "−") for mean in (here.difference.mean(), rest.mean())]
        lines.append(
            f"- **{task}**: after is ahead for {(here.difference > 0).sum()} of {len(here)} norms{clear}. After {most} "
            f"with {name}: {gained(best)}. The mean of the {len(here)} norms is {means[0]} points; without {name} it "
            f"is {means[1]}. GN's gain is larger than that of {(others.difference > 0).sum()} of the other "
            f"{len(others)}{sure}."
        )
    theirs = ", ".join(f"{(column > 0).sum()} of {len(column)} on {task}" for task, column in printed.items())
    lines.append(f"- The paper's own Table 1: after is ahead for {theirs}.")
    return answer(runs, "after − before, 95 % t-intervals", lines)


def guesses_on_place(pairs: pd.DataFrame, sizes: pd.DataFrame) -> str:
    """The three guesses of notebook 04: for how many norms after is better, for which the place matters most, and what
    a norm after the SSM does for the gate. `sizes`: the frame of `inside.sizes_inside`."""
    by_task = list(pairs.groupby("task", sort=False))
    better = [f"{(here.difference > 0).sum()} of {len(here)} norms on {task}" for task, here in by_task]
    most = [here.loc[here.difference.abs().idxmax()] for _, here in by_task]
    matters = [f"{Arm.parse(row.a).n2} on {row.task} ({gained(row)}, after − before)" for row in most]
    factors = sizes.index.get_level_values("factor")
    least, largest = factors.min(), factors.max()
    after, before = (sizes.z[arm, largest] / sizes.z[arm, least] for arm in ("None>SSM>RMSN", "RMSN>SSM>None"))
    does = "does nothing for the gate" if after > 2 else "holds the gate's input too"
    gate = (
        f"An input {largest / least:g} times as large multiplies the gate's input by {after:.3g} where RMSN stands "
        f"after the SSM, and by {before:.3g} where it stands before. So a norm after the SSM {does}."
    )
    return numbered([f"After is better for {listed(better)}.", f"The place matters most for {listed(matters)}.", gate])
