"""What more seeds change (the solutions of 03, 04, 06 and 08), and whether the reader's own runs are what the recorded
ones let expect."""

from __future__ import annotations

import pandas as pd

from mambanorm.answers.words import label, listed
from mambanorm.basics.text import plural
from mambanorm.study.tables import interval_says, seeds_text

TOLD = ("clearly above zero", "clearly below zero")


def decided(few: pd.DataFrame, more: pd.DataFrame) -> str:
    """Which differences are clear with more seeds and were not with few, and on which side they lie. Both are
    frames of `tables.paired`; a difference is known by its task and its two arms."""
    before = {(row.task, row.a, row.b): interval_says(row.low, row.high) for row in few.itertuples()}
    lines = [f"With {seeds_text(more.n)}:"]
    for task, here in more.groupby("task", sort=False):
        says = {(row.a, row.b): interval_says(row.low, row.high) for row in here.itertuples()}
        new = {pair: say for pair, say in says.items() if say in TOLD and say != before.get((task, *pair))}
        named = "; ".join(f"{label(a)} − {label(b)} is {say}" for (a, b), say in new.items())
        lines.append(f"- **{task}**: {named or 'none is clear that was not before'}.")
    return "\n".join(lines)


APART = {
    "diverged": "Diverged, and counted apart",
    "failed": "Could not be trained",
    "untold": "Too few recorded runs to tell",
}


def replicated(table: pd.DataFrame) -> str:
    """How many fresh runs lie inside the prediction intervals of the recorded ones, and which do not (a table of
    `replication.replication`)."""
    if table.empty:
        return "No run was replicated here."
    seeds = listed(f"{seed:,}" for seed in sorted(set(table.seed)))
    head = f"**Your machine's own runs**: {plural(len(table), 'run')} on a seed that no one has recorded ({seeds})."
    told = table[table.lies.isin(("inside", "below", "above"))]
    inside = int((told.lies == "inside").sum())
    lines = [
        f"{inside} of {len(told)} lie inside the 95 % prediction interval of the recorded runs. One in twenty is "
        "expected outside. Runs of one seed share their data, so several may miss together."
    ] * bool(len(told))
    lines += [f"- Outside: {_where(row)}." for row in told[told.lies != "inside"].itertuples()]
    for lies, said in APART.items():
        if named := [_named(row) for row in table[table.lies == lies].itertuples()]:
            lines.append(f"- {said}: {listed(named)}.")
    return "\n".join([head, "", *lines])


def _named(row) -> str:
    return f"{label(row.arm)} on {row.task}"


def _where(row) -> str:
    digits, unit = (3, " bits a character") if row.unit == "bits" else (1, " %")
    value, low, high = (f"{number:.{digits}f}" for number in (row.value, row.low, row.high))
    return f"{_named(row)}, seed {row.seed:,}, has {value}{unit}; expected was {low} to {high}"
