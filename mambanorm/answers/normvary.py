"""Notebook 06: Table 2's step from RMSN→None to NormVary→GN taken apart. What does N1 bring, N2, mixing, learning?"""

from __future__ import annotations

import pandas as pd

from mambanorm.answers.words import answer, clearly, gained, numbered
from mambanorm.study.tables import markdown_table, sketch_note


def learned_norm(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    *,
    against: tuple[pd.DataFrame, pd.DataFrame],
    moved: pd.DataFrame,
    printed: float,
) -> str:
    """A table of the steps and a paragraph for each task.

    `steps`: `tables.paired_steps` of Table 2's step taken apart. `against`: NormVary→N2 against the original, and
    against RMSN→N2, for every N2. `moved`: `diagnostics.mixture_moves`. `printed`: the paper's gain on ListOps, in
    points.
    """
    lines = [markdown_table(steps_table(steps))]
    for task, here in steps.groupby("task", sort=False):
        original, equal = (_above(table[table.task == task]) for table in against)
        lines.append(
            f"{_task_line(task, here, moved[moved.task == task])} Intervals above zero, NormVary→N2 against the "
            f"original: {original}; against RMSN→N2: {equal}."
        )
    lines.append(f"The paper's row (Table 2): {printed:+.1f} points on ListOps, for both steps at once.")
    return answer(runs, "95 % t-intervals, not corrected for several comparisons", lines, "\n\n")


def steps_table(steps: pd.DataFrame) -> pd.DataFrame:
    """One row a step, one column a task, each cell in words; "not run" where a task lacks an arm of the step."""
    worded = steps.assign(points=[gained(row) for row in steps.itertuples()])
    order = list(dict.fromkeys(steps.step))
    return worded.pivot(index="step", columns="task", values="points").reindex(order).fillna("not run")


def _task_line(task: str, here: pd.DataFrame, moved: pd.DataFrame) -> str:
    row = here.set_index("step")
    far = (
        f"The weights moved by at most {moved.largest.max():.3f} from 0.2 (possible: about {moved.reach.max():.3f})."
        if len(moved)
        else "How far the weights moved is not known here: no run of NormVary→GN is stored."
    )
    return (
        f"- **{task}**: {_compared(row.difference['N1 alone'], row.difference['N2 alone'])}. {sketch_note(row.n)}"
        f"What NormVary adds to GN: {clearly(row.loc['N1 after N2'])}. What learning its weights adds: "
        f"{clearly(row.loc['by learning'])}. {far}"
    )


def _compared(n1: float, n2: float) -> str:
    """N2's effect beside N1's, in points. Where both are below zero, each costs something."""
    verb = "costs" if max(n1, n2) < 0 else "brings"
    order = "as much as" if n1 == n2 else "more than" if (n2 > n1) == (verb == "brings") else "less than"
    return f"N2 alone {verb} {order} N1 alone ({n2:+.1f} and {n1:+.1f} points)".replace("-", "−")


def _above(table: pd.DataFrame) -> str:
    """In how many rows the interval lies above zero."""
    return "one seed cannot tell" if table.low.isna().all() else f"{(table.low > 0).sum()} of {len(table)}"


def guesses_on_learning(steps: pd.DataFrame, moved: pd.DataFrame) -> str:
    """The three guesses of notebook 06: how far the weights move, whose gain it is, what is lost without learning."""
    far = [f"{here.largest.max():.3f} on {task}" for task, here in moved.groupby("task", sort=False)]
    weights = f"The weights move by at most {' and '.join(far)}." if far else "No run of NormVary→GN is stored here."
    tables = {task: here.set_index("step") for task, here in steps.groupby("task", sort=False)}
    return numbered([weights, _each(tables, _share), _each(tables, _lost)])


def _each(tables: dict[str, pd.DataFrame], sentence) -> str:
    return " ".join(f"On {task} {sentence(row)}" for task, row in tables.items())


def _share(row: pd.DataFrame) -> str:
    both, n1, n2, after = (gained(row.loc[step]) for step in ("both", "N1 alone", "N2 alone", "N1 after N2"))
    return f"both steps bring {both}. N1 alone brings {n1}, N2 alone {n2}. Once N2 is there, N1 adds {after}."


LOST = {
    "clearly above zero": "So something would be lost.",
    "clearly below zero": "So nothing would be lost, and something gained.",
    "we cannot tell": "Whether anything would be lost, we cannot tell.",
    "one seed cannot tell": "One seed cannot tell.",
}


def _lost(row: pd.DataFrame) -> str:
    learning = row.loc["by learning"]
    return f"learning the weights brings {gained(learning)}. {LOST[clearly(learning)]}"
