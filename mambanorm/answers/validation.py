"""Notebook 08: the paper's proposal against the original Mamba, and which of its two norms brings the gain."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from mambanorm.answers.words import answer, gained, numbered
from mambanorm.study.tables import interval_says, recorded_too, sketch_note

HEADS = {
    "NormVary→GN": "against the original: NormVary→GN",
    "NormVary→LN": "NormVary→LN",
    "GN alone": "Which norm brings the gain? GN alone brings",
    "NormVary alone": "NormVary alone",
    "NormVary, given GN": "NormVary added to GN",
}
"""Step of the notebook → how its part of the sentence begins."""


def proposal_or_original(
    runs: pd.DataFrame, steps: pd.DataFrame, *, recorded: pd.DataFrame, printed: pd.Series, not_run: Sequence[str]
) -> str:
    """A line for each task: both proposals against the original, and the gain of each norm.

    `steps`: `tables.paired_steps` of Table 2's step taken apart. `recorded`: run frame of more seeds, to stand beside
    (or no row). `printed`: the paper's gain by task, in points. `not_run`: tasks of Table 2 that were not trained.
    """
    lines = [_task_line(task, here.set_index("step"), recorded) for task, here in steps.groupby("task", sort=False)]
    theirs = ", ".join(f"{task} {points:+.1f}" for task, points in printed.items())
    lines.append(f"- Not run: {', '.join(not_run) or 'nothing'}. The paper, in points: {theirs}.")
    lines.append(
        "- One learning rate for every arm here. In notebook 12 each arm is tuned, over eight seeds (H8): trust that "
        "one."
    )
    return answer(runs, "95 % t-intervals", lines)


def _task_line(task: str, row: pd.DataFrame, recorded: pd.DataFrame) -> str:
    said = [f"{head} {_says(row, step, recorded)}" for step, head in HEADS.items()]
    against, whose = "; ".join(said[:2]), "; ".join(said[2:])
    return f"- **{task}**, {against}. {whose}. {sketch_note(row.n)}".rstrip()


def _says(row: pd.DataFrame, step: str, recorded: pd.DataFrame) -> str:
    if step not in row.index:
        return "not run"
    found = row.loc[step]
    return f"{gained(found)}, {interval_says(found.low, found.high)}{recorded_too(found, recorded)}"


def guesses_on_steps(steps: pd.DataFrame, beyond: pd.DataFrame) -> str:
    """The three guesses of notebook 08, task by task: which single step brings more, whether the gains add up, and what
    LN does. `beyond`: `contrasts.difference_of_differences` of `contrasts.interaction`."""
    texts = []
    for task, here in steps.groupby("task", sort=False):
        row, more = here.set_index("step"), beyond[beyond.task == task].set_index("step")
        texts.append(f"**{task}**\n\n{numbered([_single(row), _sum(more), _layer_norm(row)])}")
    return "\n\n".join(texts)


def _single(row: pd.DataFrame) -> str:
    gn, learned = row.loc["GN alone"], row.loc["NormVary alone"]
    more = "GN after the SSM" if gn.difference > learned.difference else "NormVary before it"
    least = "costs less" if max(gn.difference, learned.difference) < 0 else "brings more"
    return f"{more} {least}: GN alone {gained(gn)}, NormVary alone {gained(learned)}."


def _sum(more: pd.DataFrame) -> str:
    row = more.loc["GN"]
    means = {
        "above zero": "together they bring more than the sum of both",
        "below zero": "together they bring less than the sum of both",
        "not told from zero": "whether the gains add up is not told from these seeds",
    }
    told = means.get(interval_says(row.low, row.high), "one seed cannot tell whether the gains add up")
    return f"Both steps together minus the sum of the two is {gained(row)}: {told}."


def _layer_norm(row: pd.DataFrame) -> str:
    found = row.loc["NormVary→LN"]
    return (
        f"With LN in place of GN the gain over the original is {gained(found)}, {interval_says(found.low, found.high)}."
    )
