"""Whether the reader's own runs are what the recorded ones let expect."""

from __future__ import annotations

import pandas as pd

from mambanorm.answers.words import label, listed
from mambanorm.basics.text import plural

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
