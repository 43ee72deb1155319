"""Notebook 04: one norm, one place. For how many norms is after better, and for which does the place matter most?"""

from __future__ import annotations

import pandas as pd

from mambanorm.answers.words import answer, gained, listed, numbered
from mambanorm.arms import Arm

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
    sure = f" (interval above zero: {(rivals.low > 0).sum()})" if several else ""
    return (
        f"- **{task}**: {_count(here)}{f'; {_clear(here)}' if several else ''}. After {most} with "
        f"{Arm.parse(best.a).n2}: {gained(best)}. GN's gain is larger than that of {(rivals.difference > 0).sum()} of "
        f"the other {len(rivals)}{sure}."
    )


def _count(here: pd.DataFrame) -> str:
    return f"after is ahead for {(here.difference > 0).sum()} of {len(here)} norms"


def _clear(here: pd.DataFrame) -> str:
    return f"the interval is above zero for {(here.low > 0).sum()}, below it for {(here.high < 0).sum()}"


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
