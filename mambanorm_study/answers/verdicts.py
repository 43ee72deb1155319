"""Notebooks 12, 13 and 15: how many claims hold, what a further site brings, the card of a norm.

Verdicts are arguments, because `mambanorm_study.claims` imports this folder's neighbours and not
the other way round. So are the words that a verdict may have.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from mambanorm.arms import SYMBOLS
from mambanorm_study.answers.phrases import answer_text, join_words, numbered_list
from mambanorm_study.basics.text import plural
from mambanorm_study.tables.run_tables import label, points

# 12


def what_holds(verdicts: Sequence[Any], words: Sequence[str], basis: str) -> str:
    """Return how many claims have each word. words: every word of a verdict, in reading order."""
    lines = []
    for word in words:
        claims = [_claim_name(verdict, verdicts) for verdict in verdicts if verdict.word == word]
        if claims:
            lines.append(f"- {len(claims)} **{word}**: {', '.join(claims)}")
    return f"**Answer** ({basis}).\n\n" + "\n".join(lines)


def _claim_name(verdict: Any, verdicts: Sequence[Any]) -> str:
    claim = verdict.claim.id
    several = sum(other.claim.id == claim for other in verdicts) > 1
    return f"{claim} ({verdict.task})" if several else claim


# 13


def _norm_or_gain(table: pd.DataFrame) -> str:
    if table.empty or "Scale" not in set(table.norm):
        return "The gain alone was not run."
    rows = table[table.task == table.task[table.norm == "Scale"].iloc[0]]
    wide = rows.pivot(index="site", columns="norm", values="gain")
    counts = join_words(
        f"{norm}'s mean is above it at {(wide[norm] > wide.Scale).sum()} of {len(wide)} sites"
        for norm in wide.columns.drop("Scale")
    )
    return f"Beside the gain alone, Scale, {counts}."


def authors_and_runs(verdicts: Sequence[Any]) -> str:
    """Return a paragraph for each question: the authors' sentence, and what these runs show."""
    return "\n\n".join(
        f"**{v.claim.id}: {v.said}.** {v.claim.words}  \n"
        f"*A sentence to start from:* “{v.claim.quote}” ({v.claim.where})  \n"
        f"*Measured:* {v.claim.quantity}  \n"
        f"*These runs* ({v.basis}): {_result(v)}  \n"
        f"*What this is not:* {v.claim.note}"
        for v in verdicts
    )


def _result(verdict: Any) -> str:
    if not verdict.n:
        return "not run yet"
    row = verdict.turns_on
    effect = f"{row.comparison}: {row.amount}, {plural(row.n, 'seed')}"
    return "; ".join(text for text in (effect, verdict.reason, *row.footnotes) if text)


def float16_headroom(frame: pd.DataFrame, arms: Iterable[str]) -> str:
    """Return for each arm how many runs stay within float16, the median headroom, and failures.

    frame: runs with the column `headroom` in decades (`tables.summaries`).
    """
    lines = []
    for arm in arms if "headroom" in frame else ():
        runs = frame[(frame.arm == arm) & frame.headroom.notna()]
        finite = runs[runs.status != "diverged"].headroom
        if runs.empty:
            continue
        line = (
            f"- **{label(arm)}**: {plural(len(runs) - len(finite), 'run')} non-finite; "
            f"{(finite > 0).sum()} of {len(finite)} that ended finite lie within float16"
        )
        if len(finite):
            line += f"; median {finite.median():+.1f} decades".replace("-", "−")
        lines.append(line)
    return "\n".join(lines) or "No run of E1 is there."


def what_a_site_brings(
    runs: pd.DataFrame,
    table: pd.DataFrame,
    verdicts: Iterable[Any],
    trained: pd.DataFrame | None = None,
) -> str:
    """Return the answer of notebook 13: the gains of further sites, and each question's verdict.

    For each task it names the largest mean gain and those that are clearly above or below zero.
    table: `contrasts.site_gains`; it may be empty. trained: the gains of trained models, whose runs
    are `runs`.
    """
    lines, basis = [], ""
    if trained is not None and len(table):
        basis = f", in the first epochs ({table.n.max()} seeds, one learning rate for all)"
    for row in [] if trained is None else trained.itertuples():
        side = "we cannot tell"
        if row.low > 0:
            side = "clearly better"
        elif row.high < 0:
            side = "clearly worse"
        gain = f"{row.norm} at {_site(row)} {_amount(row)}"
        lines.append(f"- **{row.task}**, trained: {gain}: {side}")
    for task, rows in table.groupby("task", sort=False) if len(table) else ():
        lines.append(
            f"- **{task}**{basis}, the largest mean: {_gains(rows.nlargest(1, 'gain'))}; "
            f"clearly better: {_gains(rows[rows.low > 0])}; "
            f"clearly worse: {_gains(rows[rows.high < 0])}; "
            f"of {len(rows)} intervals about {len(rows) / 40:.1f} on each side by luck"
        )
    lines.append(f"- {_norm_or_gain(table)}")
    lines += [f"- **{v.claim.id}** {v.claim.words} {v.brief}" for v in verdicts]
    return answer_text(runs, "95 % t-intervals", lines)


def _gains(rows: pd.DataFrame) -> str:
    return join_words(f"{row.norm} at {_site(row)} ({_amount(row)})" for row in rows.itertuples())


def _site(row: Any) -> str:
    return SYMBOLS.get(row.site, row.site)


def _amount(row: Any) -> str:
    return points(row.gain, row.low, row.high, "pp" if row.unit == "points" else row.unit)


def model_norms(presets: dict[str, Any], names: Iterable[str]) -> pd.DataFrame:
    """Return the norms of published models with their sites and sources, one row a model."""
    rows = {
        name: {"its norms": label(str(presets[name].arm)), "source": presets[name].note}
        for name in names
    }
    return pd.DataFrame.from_dict(rows, orient="index")


# 15


def guesses_on_card(said: Mapping[str, Sequence[str]]) -> str:
    """Return the three guesses of notebook 15: the future, the place, the cost.

    said: topic → sentences of a card.
    """
    return numbered_list(" ".join(said[topic]) for topic in ("causal", "better", "costs"))


def card_in_short(said: Mapping[str, Sequence[str]], basis: str) -> str:
    """Return the card of a norm in short: where it is better, and where it must not stand.

    said: topic → sentences of a card.
    """
    topics = ("same", "better", "best", "causal", "faults", "notes")
    lines = [f"- {sentence}" for topic in topics for sentence in said[topic]]
    return f"**Answer** ({basis}).\n\n" + "\n".join(lines)
