"""Small pieces of sentences that several answers share, and whether the reader's own runs are what
the recorded ones let expect."""

from collections.abc import Iterable
from typing import NamedTuple

import pandas as pd

from mambanorm_study.basics.text import plural
from mambanorm_study.tables.intervals import t_interval
from mambanorm_study.tables.run_tables import describe_frame, interval_says, label, points


class Gain(NamedTuple):
    """A mean difference with its interval, as a row of `tables.paired` has them."""

    difference: float
    low: float
    high: float


def over_seeds(differences: pd.Series) -> Gain:
    """The mean of differences seed by seed, with its 95 % t-interval."""
    return Gain(differences.mean(), *t_interval(differences.dropna()))


def gained(row) -> str:
    """The difference of a row of `tables.paired` with its interval: "+2.3 points [−0.4, 5.0]"."""
    return points(row.difference, row.low, row.high)


def told(row, between: str = ", ") -> str:
    """The same, and what the interval says: "+2.3 points [−0.4, 5.0], we cannot tell"."""
    return f"{gained(row)}{between}{clearly(row)}"


def clearly(row) -> str:
    """What the interval of such a row says: "clearly above zero", "clearly below zero", "we cannot
    tell", or "one seed cannot tell"."""
    return interval_says(row.low, row.high)


def listed(words: Iterable[str], nothing: str = "none") -> str:
    """ "a", "a and b", "a, b and c"; `nothing` for no word."""
    words = list(words)
    if not words:
        return nothing
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def numbered(sentences: Iterable[str]) -> str:
    """A numbered list in Markdown, for questions that have numbers."""
    return "\n".join(f"{i}. {text}" for i, text in enumerate(sentences, 1))


def answer(runs: pd.DataFrame, shows: str, lines: Iterable[str], between: str = "\n") -> str:
    """The head of an answer, which says scale, seeds and spread, and its lines."""
    return f"**Answer** ({describe_frame(runs, shows)}).\n\n" + between.join(lines)


APART = {
    "diverged": "Diverged, and counted apart",
    "failed": "Could not be trained",
    "untold": "Too few recorded runs to tell",
}


def replicated(table: pd.DataFrame) -> str:
    """How many fresh runs lie inside the prediction intervals of the recorded ones, and which do
    not (a table of `replication.replication`)."""
    if table.empty:
        return "No run was replicated here."
    seeds = listed(f"{seed:,}" for seed in sorted(set(table.seed)))
    lines = [
        f"**Your machine's own runs**: {plural(len(table), 'run')} on a seed that no one has recorded ({seeds}).",
        "",
    ]
    told = table[~table.lies.isin(APART)]
    if len(told):
        inside = (told.lies == "inside").sum()
        lines.append(
            f"{inside} of {len(told)} lie inside the 95 % prediction interval of the recorded runs. One in twenty is "
            "expected outside. Runs of one seed share their data, so several may miss together."
        )
    for row in told[told.lies != "inside"].itertuples():
        digits, unit = (3, " bits a character") if row.unit == "bits" else (1, " %")
        value, low, high = (f"{number:.{digits}f}" for number in (row.value, row.low, row.high))
        lines.append(
            f"- Outside: {_named(row)}, seed {row.seed:,}, has {value}{unit}; expected was {low} to {high}."
        )
    for lies, said in APART.items():
        if named := [_named(row) for row in table[table.lies == lies].itertuples()]:
            lines.append(f"- {said}: {listed(named)}.")
    return "\n".join(lines)


def _named(row) -> str:
    return f"{label(row.arm)} on {row.task}"
