"""Notebook 06: Table 2's step from RMSN→None to NormVary→GN taken apart. What does N1 bring, N2, mixing, learning?"""

from __future__ import annotations

import pandas as pd

from mambanorm.answers.words import answer, gained, numbered
from mambanorm.study.tables import (
    interval_says,
    markdown_table,
    paired_steps,
    recorded_too,
    seeds_text,
    sketch_note,
)

TRAINED = {
    "both": "Both steps together",
    "N1 after N2": "what NormVary adds to GN",
    "by learning": "what learning its weights adds",
}


def learned_norm(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    *,
    against: tuple[pd.DataFrame, pd.DataFrame],
    moved: pd.DataFrame,
    trained: pd.DataFrame,
    recorded: pd.DataFrame,
    printed: float,
) -> str:
    """A table of the steps and a paragraph for each task.

    `steps` and `trained`: `tables.paired_steps` of Table 2's step taken apart, of the runs here and of trained models
    (or no row). `against`: NormVary→N2 against the original, and against RMSN→N2, for every N2. `moved`:
    `diagnostics.mixture_moves`. `recorded`: run frame of more seeds, to stand beside (or no row). `printed`: the
    paper's gain on ListOps, in points.
    """
    lines = [markdown_table(steps_table(steps, recorded))]
    for task, here in steps.groupby("task", sort=False):
        original, equal = (_clearly(table[table.task == task], recorded) for table in against)
        lines.append(
            f"{_task_line(task, here, moved[moved.task == task], recorded)} Intervals above zero, NormVary→N2 against "
            f"the original: {original}; against RMSN→N2: {equal}."
        )
    lines += [_trained_line(task, here) for task, here in trained.groupby("task", sort=False)]
    lines.append(f"The paper's row (Table 2): {printed:+.1f} points on ListOps, for both steps at once.")
    return answer(runs, "95 % t-intervals, not corrected for several comparisons", lines, "\n\n")


def steps_table(steps: pd.DataFrame, recorded: pd.DataFrame) -> pd.DataFrame:
    """One row a step, one column a task, each cell in words; "not run" where a task lacks an arm of the step."""
    worded = steps.assign(points=[gained(row) + recorded_too(row, recorded) for row in steps.itertuples()])
    order = list(dict.fromkeys(steps.step))
    return worded.pivot(index="step", columns="task", values="points").reindex(order).fillna("not run")


def _task_line(task: str, here: pd.DataFrame, moved: pd.DataFrame, recorded: pd.DataFrame) -> str:
    row = here.set_index("step")
    adds = {step: _says(row.loc[step], recorded) for step in ("N1 after N2", "by learning")}
    far = (
        f"The weights moved by at most {moved.largest.max():.3f} from 0.2 (possible: about {moved.reach.max():.3f})."
        if len(moved)
        else "How far the weights moved is not known here: no run of NormVary→GN is stored."
    )
    return (
        f"- **{task}**: {_compared(row.difference['N1 alone'], row.difference['N2 alone'])}. {sketch_note(row.n)}"
        f"What NormVary adds to GN: {adds['N1 after N2']}; what learning its weights adds: {adds['by learning']}. {far}"
    )


def _trained_line(task: str, here: pd.DataFrame) -> str:
    row = here.set_index("step")
    told = "; ".join(f"{name}: {gained(row.loc[step])}" for step, name in TRAINED.items() if step in row.index)
    return f"- **{task}, trained to the end** ({seeds_text(here.n)}). {told}."


def _says(row: pd.Series, recorded: pd.DataFrame) -> str:
    """Where the interval lies, and the same difference over the recorded seeds."""
    return interval_says(row.low, row.high) + recorded_too(row, recorded)


def _compared(n1: float, n2: float) -> str:
    """N2's effect beside N1's, in points. Where both are below zero, each costs something."""
    verb = "costs" if max(n1, n2) < 0 else "brings"
    order = "as much as" if n1 == n2 else "more than" if (n2 > n1) == (verb == "brings") else "less than"
    return f"N2 alone {verb} {order} N1 alone ({n2:+.1f} and {n1:+.1f} points)".replace("-", "−")


def _clearly(table: pd.DataFrame, recorded: pd.DataFrame) -> str:
    """In how many rows the interval lies above zero, and in how many over the recorded seeds."""
    if table.low.isna().all():
        return "one seed cannot tell"
    pairs = {row.step: (row.a, row.b) for row in table.itertuples()}
    more = paired_steps(recorded[recorded.task.isin(table.task)], pairs)
    beside = f" ({more.n.iloc[0]} recorded seeds: {(more.low > 0).sum()} of {len(more)})" if len(more) else ""
    return f"{(table.low > 0).sum()} of {len(table)}{beside}"


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


def _lost(row: pd.DataFrame) -> str:
    learning = row.loc["by learning"]
    says = {
        "above zero": "so something would be lost",
        "below zero": "so nothing would be lost, and something gained",
        "not told from zero": "which is not told from zero",
    }
    told = says.get(interval_says(learning.low, learning.high), "and one seed cannot tell")
    return f"learning the weights brings {gained(learning)}, {told}."
