"""Notebook 03: the same norm before and after the SSM. Which type leads, by how much, and which half of IN does it?"""

from __future__ import annotations

import pandas as pd

from mambanorm.answers.words import answer, gained, label, listed, numbered
from mambanorm.study.halves import with_halves
from mambanorm.study.intervals import t_interval
from mambanorm.study.tables import interval_says, mean_sd, paired, percent, points, summarize

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
    lead = "" if second == NONE else f" Over the next, {label(second)}, it is {_told(gap)}."
    return f"{start} (no norm {mean_sd(none)}, chance {percent(none.chance)}). The gain is {_told(gain)}.{lead}"


def _first_two(here: pd.DataFrame) -> tuple[pd.DataFrame, str, str, pd.Series]:
    """The means of the arms of one task, the first and the second arm, and the difference of the two."""
    means = summarize(here).set_index("arm").sort_values("mean", ascending=False, kind="stable")
    best, second = means.index[:2]
    return means, best, second, paired(here, best, second).iloc[0]


def _told(row) -> str:
    return f"{gained(row)}: {interval_says(row.low, row.high)}"


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
        leads.append(f"On {task} it leads the next, {label(second)}, by {_told(gap)}.")
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
    """Which differences are told from zero, task by task. `gains`: a frame of `tables.paired`."""
    lines = []
    for task, here in gains.groupby("task", sort=False):
        says = [interval_says(row.low, row.high) for row in here.itertuples()]
        of = {say: [label(row.a) for row, s in zip(here.itertuples(), says, strict=True) if s == say] for say in says}
        lines.append(f"- **{task}**: {'; '.join(f'{say}: {listed(arms)}' for say, arms in of.items())}.")
    return "\n".join(lines)


def difference(frame: pd.DataFrame) -> str:
    """Each difference of a frame of `tables.paired`, and whether it is told from zero."""
    return "\n".join(f"- {label(row.a)} − {label(row.b)} on {row.task}: {_told(row)}." for row in frame.itertuples())


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
    alone = [f"{name} alone brings {_spread(gain[part])}" for part, name in HALF_NAMES.items()]
    mean, spread = HALF_NAMES
    added = gain[mean] + gain[spread]
    added_up = f"{added.mean():+.1f}".replace("-", "−")
    beyond, lead = gain["both: IN"] - added, gain[spread] - gain[mean]
    return (
        f"{listed(alone)}, added {added_up}. Both at once bring {_spread(gain['both: IN'])}. What goes beyond the "
        f"sum is {_spread(beyond)}, {interval_says(*t_interval(beyond))}. {HALF_NAMES[spread].capitalize()} leads "
        f"{HALF_NAMES[mean]} by {_spread(lead)}, {interval_says(*t_interval(lead))}."
    )


def _spread(differences: pd.Series) -> str:
    return points(differences.mean(), *t_interval(differences))


def _lost(level: pd.DataFrame) -> str:
    """Which parts end nearer to chance than to the best part."""
    if level.empty:
        return "not run."
    means = summarize(level, ["part"]).set_index("part")
    middle = (means["mean"].max() + means.chance.iloc[0]) / 2
    lost = [f"{part} ({mean_sd(row)})" for part, row in means.iterrows() if row["mean"] < middle]
    return f"nearer to chance ({percent(means.chance.iloc[0])}) than to the best part: {listed(lost)}."
