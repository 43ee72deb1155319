"""Notebooks 13 and 15: what authors claim and runs show, gains at further sites, a norm's card.

The word of a verdict is its outcome, such as "supported". The card of a norm is a summary of this
norm, see `mambanorm card`. A further site is a site of a norm other than before and after the SSM.
Verdicts and their words are arguments, because `mambanorm_study.claims` may import this folder and
this folder must not import `mambanorm_study.claims`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from mambanorm.arms import SYMBOLS
from mambanorm_study.answers.phrases import answer_text, join_words, numbered_list
from mambanorm_study.basics.text import plural
from mambanorm_study.tables.run_tables import difference_with_interval, interval_in_words, label


def authors_and_runs(verdicts: Sequence[Any]) -> str:
    """Return one paragraph of Markdown per claim of notebook 13: the sentence of the claim's
    authors, what was measured, and the verdict.
    """
    paragraphs = []
    for v in verdicts:
        notes = [text for text in (v.brief, v.reason, *v.main_row.footnotes) if text]
        paragraphs.append(
            f"**{v.claim.id}: {v.as_text}.** {v.claim.words}  \n"
            f"*The source says:* “{v.claim.quote}” ({v.claim.where})  \n"
            f"*Measured:* {v.claim.quantity}  \n"
            f"*These runs* ({v.basis}, {plural(v.n, 'seed')}): {'; '.join(notes)}  \n"
            f"*Limits:* {v.claim.note}"
        )
    return "\n\n".join(paragraphs)


def float16_headroom(frame: pd.DataFrame, arms: Sequence[str]) -> pd.DataFrame:
    """Return how far the scan's values stay below the largest float16, one row per arm.

    Columns: "non-finite", the number of runs that ended non-finite; "finite", the number of the
    other runs; "within float16", the number of finite runs whose values stay in the range of
    float16; "median decades", the median headroom of the finite runs.

    frame: runs with the column `headroom`, the decades between the largest value of the scan and
    the largest float16 (`tables.summaries`).
    """
    runs = frame.reindex(columns=["arm", "status", "headroom"])
    runs = runs[runs.arm.isin(arms) & runs.headroom.notna()]
    finite = runs[runs.status != "diverged"].groupby("arm").headroom
    table = pd.DataFrame(
        {
            "non-finite": (runs.status == "diverged").groupby(runs.arm).sum(),
            "finite": finite.size(),
            "within float16": finite.agg(lambda headroom: (headroom > 0).sum()),
            "median decades": finite.median().round(1),
        }
    )
    return table.reindex([arm for arm in arms if arm in table.index]).rename(index=label)


def what_a_site_brings(
    runs: pd.DataFrame,
    table: pd.DataFrame,
    trained: pd.DataFrame | None = None,
) -> str:
    """Return the answer of notebook 13: the gains of norms at further sites.

    For each task the answer names the largest mean gain and the gains that are clearly above or
    below zero. table: the frame of `contrasts.site_gains`; it may be empty. trained: None if
    `table` has the gains in `runs`; else the gains in `runs`, whose models are fully trained, while
    `table` has the gains of models in their first epochs.
    """
    lines, basis = [], ""
    if trained is not None:
        lines += [
            f"- **{row.task}**, trained: {_gain_text(row)}: {interval_in_words(row.low, row.high)}"
            for row in trained.itertuples()
        ]
        basis = ", in the first epochs, one learning rate for all"
    for task, rows in table.groupby("task", sort=False) if len(table) else ():
        lines.append(
            f"- **{task}**{basis} ({rows.n.max()} seeds), the largest mean: "
            f"{_gains_text(rows.nlargest(1, 'gain'))}; clearly above zero: "
            f"{_gains_text(rows[rows.low > 0])}; clearly below zero: "
            f"{_gains_text(rows[rows.high < 0])}; "
            f"by chance alone about {len(rows) / 40:.1f} of {len(rows)} intervals would lie above "
            "zero, and as many below"
        )
    lines += [f"- {_comparison_with_scale(table)}"]
    return answer_text(runs, "95 % t-intervals", lines)


def _comparison_with_scale(table: pd.DataFrame) -> str:
    if table.empty or "Scale" not in set(table.norm):
        return "Scale, the learned gain alone, was not run."
    wide = table.pivot(index=["task", "site"], columns="norm", values="gain").dropna()
    counts = join_words(
        f"{norm} at {(wide[norm] > wide.Scale).sum()} of {len(wide)} sites"
        for norm in wide.columns.drop("Scale")
    )
    return f"Norms with a larger mean gain than Scale, the learned gain alone: {counts}."


def _gains_text(rows: pd.DataFrame) -> str:
    return join_words(_gain_text(row) for row in rows.itertuples())


def _gain_text(row: Any) -> str:
    unit = "pp" if row.unit == "points" else row.unit
    site = SYMBOLS.get(row.site, row.site)
    return f"{row.norm} at {site} ({difference_with_interval(row.gain, row.low, row.high, unit)})"


def guesses_on_card(sentences: Mapping[str, Sequence[str]]) -> str:
    """Return the answers to the three guesses of notebook 15: whether a norm uses later positions,
    on which tasks and at which sites it is better than the norm it is compared with, and what it
    costs.

    sentences: topic → sentences of the norm's card.
    """
    return numbered_list(" ".join(sentences[topic]) for topic in ("causal", "better", "costs"))
