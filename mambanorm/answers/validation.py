"""Notebook 08: the paper's proposal against the original Mamba, and which of its two norms brings the gain."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from mambanorm.answers.words import answer, clearly, gained, numbered
from mambanorm.study.tables import sketch_note

PROPOSED = ("NormVary→GN", "NormVary→LN")
SINGLE = {"GN alone": "GN after the SSM", "LN alone": "LN after the SSM", "NormVary alone": "NormVary before it"}
ADDED = {"NormVary, given GN": "NormVary added to GN", "NormVary, given LN": "NormVary added to LN"}


def proposal_or_original(runs: pd.DataFrame, steps: pd.DataFrame, *, printed: pd.Series, not_run: Sequence[str]) -> str:
    """A line for each task: the proposals against the original, and the gain of each norm, of the arms that were run.

    `steps`: `tables.paired_steps` of Table 2's step taken apart. `printed`: the paper's gain by task, in points.
    `not_run`: tasks of Table 2 that were not trained.
    """
    lines = [_task_line(task, here.set_index("step")) for task, here in steps.groupby("task", sort=False)]
    theirs = ", ".join(f"{task} {points:+.1f}" for task, points in printed.items())
    lines.append(f"- Of Table 2 not run: {', '.join(not_run) or 'nothing'}. The paper, in points: {theirs}.")
    lines.append("- Notebook 12 has the verdict on the proposal (H8), at the same learning rates.")
    return answer(runs, "95 % t-intervals", lines)


def _task_line(task: str, row: pd.DataFrame) -> str:
    against = _said(row, {step: f"{step} brings" for step in PROPOSED})
    whose = _said(row, {step: f"{step} brings" for step in SINGLE} | {step: f"{ADDED[step]} brings" for step in ADDED})
    text = f"- **{task}**, against the original: {against or 'no proposal was run'}. Whose gain is it? {whose}."
    return f"{text} {sketch_note(row.n)}".rstrip()


def _said(row: pd.DataFrame, heads: dict[str, str]) -> str:
    """Each of these steps that was run: head, gain, and whether it is clear."""
    there = [(head, row.loc[step]) for step, head in heads.items() if step in row.index]
    return ". ".join(f"{head} {gained(found)}: {clearly(found)}" for head, found in there)


def guesses_on_steps(steps: pd.DataFrame, beyond: pd.DataFrame) -> str:
    """The three guesses of notebook 08, task by task: which single step brings more, whether the gains add up, and what
    LN does. `beyond`: `contrasts.difference_of_differences` of `contrasts.interaction`."""
    texts = []
    for task, here in steps.groupby("task", sort=False):
        row, more = here.set_index("step"), beyond[beyond.task == task].set_index("step")
        layer_norm = (
            _said(row, {"LN alone": "LN alone brings", "NormVary→LN": "NormVary→LN brings"}) or "LN was not run"
        )
        texts.append(f"**{task}**\n\n{numbered([_single(row), _sum(more), f'{layer_norm}.'])}")
    return "\n\n".join(texts)


def _single(row: pd.DataFrame) -> str:
    there = row.loc[[step for step in ("GN alone", "NormVary alone") if step in row.index]]
    told = ", ".join(f"{step} {gained(found)}" for step, found in there.iterrows())
    if len(there) < 2:
        return f"One of the two steps was not run: {told or 'nor was the other'}."
    verb = "costs less" if there.difference.max() < 0 else "brings more"
    return f"{SINGLE[there.difference.idxmax()]} {verb}: {told}."


SUM = {
    "clearly above zero": "together they bring more than the sum of both",
    "clearly below zero": "together they bring less than the sum of both",
    "we cannot tell": "whether the gains add up, we cannot tell",
    "one seed cannot tell": "one seed cannot tell whether the gains add up",
}


def _sum(more: pd.DataFrame) -> str:
    if "GN" not in more.index:
        return "The four arms that this needs were not all run."
    row = more.loc["GN"]
    return f"Both steps together minus the sum of the two is {gained(row)}: {SUM[clearly(row)]}."
