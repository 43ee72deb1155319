"""Notebook 12: how many claims hold. Notebook 13: which further site, which norm; what the authors
of later models say, and what these runs say of it. Notebook 15: the card of a norm in short, and
its guesses.

Verdicts are passed in (`mambanorm_study.claims` stands above this room), as are the words that a
verdict may be.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from mambanorm.arms import SYMBOLS
from mambanorm_study.answers.words import answer, label, listed, numbered
from mambanorm_study.basics.text import plural
from mambanorm_study.tables.tables import points


def what_holds(verdicts: Sequence[Any], words: Sequence[str], basis: str) -> str:
    """Return how many claims have which word. words: every word that a verdict may be, in the order
    of reading."""
    named = {word: [_claim_on(v, verdicts) for v in verdicts if v.word == word] for word in words}
    lines = [
        f"- {len(claims)} **{word}**: {', '.join(claims)}"
        for word, claims in named.items()
        if claims
    ]
    return f"**Answer** ({basis}).\n\n" + "\n".join(lines)


def _claim_on(verdict: Any, verdicts: Sequence[Any]) -> str:
    """Return the claim's code, with its task where it has several."""
    several = sum(other.claim.id == verdict.claim.id for other in verdicts) > 1
    return f"{verdict.claim.id} ({verdict.task})" if several else verdict.claim.id


# 13

SHOWS = "95 % t-intervals"


def _norm_or_gain(table: pd.DataFrame) -> str:
    if not len(table) or "Scale" not in set(table.norm):
        return "The gain alone was not run."
    rows = table[table.task == table.task[table.norm == "Scale"].iloc[0]]
    wide = rows.pivot(index="site", columns="norm", values="gain")
    said = listed(
        f"{norm}'s mean is above it at {(wide[norm] > wide.Scale).sum()} of {len(wide)} sites"
        for norm in wide
        if norm != "Scale"
    )
    return f"Beside the gain alone, Scale, {said}."


def authors_and_runs(verdicts: Sequence[Any]) -> str:
    """A paragraph for each question: what is asked, what its authors say and where, and what these
    runs say."""
    return "\n\n".join(
        f"**{v.claim.id}: {v.said}.** {v.claim.words}  \n"
        f"*A sentence to start from:* “{v.claim.quote}” ({v.claim.where})  \n"
        f"*Measured:* {v.claim.quantity}  \n"
        f"*These runs* ({v.basis}): {_found(v)}  \n"
        f"*What this is not:* {v.claim.note}"
        for v in verdicts
    )


def _found(verdict: Any) -> str:
    if not verdict.n:
        return "not run yet"
    row = verdict.turns_on
    texts = [
        f"{row.comparison}: {row.amount}, {plural(row.n, 'seed')}",
        verdict.reason,
        *row.footnotes,
    ]
    return "; ".join(filter(None, texts))


def room_said(frame: pd.DataFrame, arms: Iterable[str]) -> str:
    """Of each arm: in how many of its runs the scan stays within float16, and by how many decades
    on the median; and how many ended non-finite. `frame`: runs with the column `headroom`
    (study/summaries.py)."""
    lines = []
    for arm in arms if "headroom" in frame else ():
        runs = frame[(frame.arm == arm) & frame.headroom.notna()]
        ended = runs[runs.status != "diverged"].headroom
        inside = f"{(ended > 0).sum()} of {len(ended)} that ended finite lie within float16"
        room = f"; median {ended.median():+.1f} decades".replace("-", "−") if len(ended) else ""
        if len(runs):
            lines.append(
                f"- **{label(arm)}**: {plural(len(runs) - len(ended), 'run')} non-finite; {inside}{room}"
            )
    return "\n".join(lines) or "No run of E1 is there."


def what_a_site_brings(
    runs: pd.DataFrame,
    table: pd.DataFrame,
    verdicts: Iterable[Any],
    trained: pd.DataFrame | None = None,
) -> str:
    """The answer of notebook 13: of trained models each gain (`trained`, of which `runs` are the
    runs); of all sites, task by task, the largest gain and those that are clearly above or below
    zero; whether the gain alone does as well; and each question's verdict. `table`:
    `contrasts.site_gains`; it may be empty."""
    lines = []
    for row in [] if trained is None else trained.itertuples():
        side = (
            "clearly better"
            if row.low > 0
            else "clearly worse"
            if row.high < 0
            else "we cannot tell"
        )
        lines.append(
            f"- **{row.task}**, trained: {row.norm} at {_name(row.site)} {_amount(row)}: {side}"
        )
    for task, rows in table.groupby("task", sort=False) if len(table) else ():
        best, better, worse = (
            rows.loc[[rows.gain.idxmax()]],
            rows[rows.low > 0],
            rows[rows.high < 0],
        )
        luck = f"of {len(rows)} intervals about {len(rows) / 40:.1f} on each side by luck"
        at = (
            ""
            if trained is None
            else f", in the first epochs ({table.n.max()} seeds, one learning rate for all)"
        )
        sides = f"clearly better: {_all(better)}; clearly worse: {_all(worse)}"
        lines.append(f"- **{task}**{at}, the largest mean: {_all(best)}; {sides}; {luck}")
    lines.append(f"- {_norm_or_gain(table)}")
    lines += [f"- **{v.claim.id}** {v.claim.words} {v.brief}" for v in verdicts]
    return answer(runs, SHOWS, lines)


def _all(rows: pd.DataFrame) -> str:
    return listed(f"{row.norm} at {_name(row.site)} ({_amount(row)})" for row in rows.itertuples())


def _name(site: str) -> str:
    return SYMBOLS.get(site, site)


def _amount(row: Any) -> str:
    return points(row.gain, row.low, row.high, "pp" if row.unit == "points" else row.unit)


def of_models(presets: dict[str, Any], names: Iterable[str]) -> pd.DataFrame:
    """The arms of later models: their norms, where these stand, and the notes of the registry."""
    rows = {
        name: {"its norms": label(str(presets[name].arm)), "source": presets[name].note}
        for name in names
    }
    return pd.DataFrame(rows).T


# 15


def guesses_on_card(said: Mapping[str, Sequence[str]]) -> str:
    """The three guesses of notebook 15, from the sentences of a card: the future, the place, the
    cost."""
    return numbered([" ".join(said[topic]) for topic in ("causal", "better", "costs")])


def card_in_short(said: Mapping[str, Sequence[str]], basis: str) -> str:
    """The card of a norm: where it is better, against the best recorded arm, and where it must not
    stand."""
    lines = [
        line
        for topic in ("same", "better", "best", "causal", "faults", "notes")
        for line in said[topic]
    ]
    return f"**Answer** ({basis}).\n\n" + "\n".join(f"- {line}" for line in lines)
