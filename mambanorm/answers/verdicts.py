"""Notebook 12: how many claims hold, and how well trained the models are. Notebook 13: which further
site, which norm; what the authors of later models say, and what these runs say of it. Notebook 15: the card of a norm
in short, and its guesses.

Verdicts are passed in (`mambanorm.claims` stands above this room), as are the words that a verdict may be.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from mambanorm.answers.words import answer, label, listed, numbered
from mambanorm.arms import SYMBOLS
from mambanorm.basics.text import plural
from mambanorm.study.tables import points

ABOUT = {"s": "sequences", "v": "images"}
"""The last letter of one of the paper's claims → what the paper says it of."""


def what_holds(verdicts: Sequence, words: Sequence[str], basis: str) -> str:
    """How many claims have which verdict, and where tasks disagree. `words`: the words of a verdict in their order, of
    which the last tells nothing."""
    found = {word: [v.claim.id for v in verdicts if v.verdict == word] for word in words}
    lines = [f"- {len(mine)} **{word}**: {', '.join(mine)}" for word, mine in found.items() if mine]
    lines += [f"- {v.claim.id}: {v.said}" for v in verdicts if v.said != v.verdict]
    split = "; ".join(
        f"{v.claim.id} ({', '.join(f'{task} {said}' for task, said in v.by_task.items())})"
        for v in verdicts
        if v.n_seeds and len(set(v.by_task.values()) & set(words[:-1])) > 1
    )
    lines += [f"- Where the tasks disagree: {split}."] if split else []
    return f"**Answer** ({basis}).\n\n" + "\n".join(lines)


def guess_on_claims(verdicts: Sequence) -> str:
    """The guess of notebook 12: how many of the paper's claims come out the same here, about sequences and images."""
    lines = []
    for kind, about in ABOUT.items():
        mine = [v for v in verdicts if v.claim.id[0] == "H" and v.claim.id[-1] == kind]
        same, other = ([v.claim.id for v in mine if v.verdict == word] for word in ("reproduced", "contradicted"))
        rest = len(mine) - len(same) - len(other)
        said = (
            f"- Of the {len(mine)} claims about **{about}** {len(same)} came out the same ({listed(same)}), "
            f"{len(other)} did not ({listed(other)}), and {rest} cannot be told by these runs, or not yet."
        )
        lines += [said] if mine else []
    return "\n".join(lines)


def how_well_trained(rising: pd.DataFrame) -> str:
    """For each task, how many arms are trained to the end, and which still rise. `rising`: `claims.still_rising`."""
    lines = []
    for task, arms in rising.groupby("task", sort=False):
        late = ", ".join(f"{label(arm.arm)} ({100 * arm.late:.0f} %)" for arm in arms.itertuples() if not arm.trained)
        lines.append(
            f"- **{task}**: of {len(arms)} arms, at the rate that is judged, {arms.trained.sum()} have at most a third "
            f"of their runs best in the last tenth of the steps{f'; still rising: {late}' if late else ''}."
        )
    return "\n".join(lines)


def two_looks_told(table: pd.DataFrame) -> str:
    """What made-up studies say of a second look at the same question. `table`: `two_looks.two_looks`."""
    once, both, alone = (f"{100 * share:.1f} %" for share in table.wrong)
    return (
        f"Of the made-up studies that are judged once, {once} say a wrong word. If each undecided one is judged again "
        f"with its old and new seeds together, {both} end with a wrong word, though every one of them still promises "
        f"2.5 %. New seeds that are judged alone are a study of their own: {alone} of these are wrong. Two studies are "
        "two chances as well, but they stand side by side, and a reader can see that there are two."
    )


# 13

SHOWS = "95 % t-intervals, not corrected; E1 to E4: the bounds of notebook 12"


def guesses_beyond(table: pd.DataFrame, verdicts: Sequence[Any]) -> str:
    """The three guesses of notebook 13: at which site a norm brings most, whether the gain alone does as well, and
    whether norms on B, C and Δ let the rate rise. `table`: `contrasts.site_gains`; it may be empty."""
    said = []
    for task, rows in table.groupby("task", sort=False) if len(table) else ():
        best = rows.loc[rows.gain.idxmax()]
        better, worse = (
            listed(f"{row.norm} at {_name(row.site)}" for row in some.itertuples())
            for some in (rows[rows.low > 0], rows[rows.high < 0])
        )
        said.append(
            f"On {task} the largest mean is that of {best.norm} at {_name(best.site)}, {_amount(best)}; clearly "
            f"better: {better}; clearly worse: {worse}."
        )
    return numbered([" ".join(said) or "No further site was run.", _norm_or_gain(table), _rate(verdicts)])


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


def _rate(verdicts: Sequence[Any]) -> str:
    told = next((v for v in verdicts if v.claim.id == "E2s" and v.n_seeds), None)
    if told is None:
        return "The ladder of rates was not run."
    times = f"{10**told.effect:.2g} times as high" if abs(told.effect) < 2 else told.amount
    best = next((row for row in told.records if row["comparison"] == "best accuracy"), None)
    level = f"; at their best rates the two differ by {points(best['effect'], *best['plain'])}" if best else ""
    return (
        f"With norms on B, C and Δ the highest rate that keeps four fifths of what a model learns at its best one is "
        f"{times}: {told.verdict} ({told.fidelity}){level}."
    )


def authors_and_runs(verdicts: Sequence[Any]) -> str:
    """A paragraph for each question: what is asked, what its authors say and where, and what these runs say."""
    return "\n\n".join(
        f"**{v.claim.id}: {v.said}.** {v.claim.words}  \n"
        f"*A sentence to start from:* “{v.claim.quote}” ({v.claim.where})  \n"
        f"*Measured:* {v.claim.quantity}  \n"
        f"*These runs* ({v.fidelity}): {_found(v)}  \n"
        f"*What this is not:* {v.claim.note}"
        for v in verdicts
    )


def _found(verdict: Any) -> str:
    if not verdict.n_seeds:
        return "not run yet"
    found = f"{verdict.decided_by}: {verdict.amount}, {plural(verdict.n_seeds, 'seed')}"
    texts = [found, verdict.stability, verdict.uneven, verdict.reason]
    return "; ".join(filter(None, texts))


def room_said(frame: pd.DataFrame, arms: Iterable[str]) -> str:
    """Of each arm: in how many of its runs the scan stays within float16, and by how many decades on the median; and
    how many ended non-finite. `frame`: runs with the column `headroom` (claims.with_summaries)."""
    lines = []
    for arm in arms if "headroom" in frame else ():
        runs = frame[(frame.arm == arm) & frame.headroom.notna()]
        ended = runs[runs.status != "diverged"].headroom
        inside = f"{(ended > 0).sum()} of {len(ended)} that ended finite lie within float16"
        room = f"; median {ended.median():+.1f} decades".replace("-", "−") if len(ended) else ""
        if len(runs):
            lines.append(f"- **{label(arm)}**: {plural(len(runs) - len(ended), 'run')} non-finite; {inside}{room}")
    return "\n".join(lines) or "No run of E1 is there."


def what_a_site_brings(
    runs: pd.DataFrame, table: pd.DataFrame, verdicts: Iterable[Any], trained: pd.DataFrame | None = None
) -> str:
    """The answer of notebook 13: of models trained to the end each gain (`trained`, of which `runs` are the runs), of
    all sites those that are clearly above or below zero, task by task, and each question's verdict."""
    lines = []
    for row in [] if trained is None else trained.itertuples():
        side = "clearly better" if row.low > 0 else "clearly worse" if row.high < 0 else "we cannot tell"
        lines.append(f"- **{row.task}**, trained: {row.norm} at {_name(row.site)} {_amount(row)}: {side}")
    for task, rows in table.groupby("task", sort=False) if len(table) else ():
        better, worse = rows[rows.low > 0], rows[rows.high < 0]
        luck = f"of {len(rows)} intervals about {len(rows) / 40:.1f} on each side by luck"
        at = "" if trained is None else f", in the first epochs ({table.n.max()} seeds, one learning rate for all)"
        lines.append(f"- **{task}**{at}, clearly better: {_all(better)}; clearly worse: {_all(worse)}; {luck}")
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
    rows = {name: {"its norms": label(str(presets[name].arm)), "source": presets[name].note} for name in names}
    return pd.DataFrame(rows).T


# 15


def guesses_on_card(said: Mapping[str, Sequence[str]]) -> str:
    """The three guesses of notebook 15, from the sentences of a card: the future, the place, the cost."""
    return numbered([" ".join(said[topic]) for topic in ("causal", "better", "costs")])


def card_in_short(said: Mapping[str, Sequence[str]], basis: str) -> str:
    """The card of a norm: where it is better, against the best recorded arm, and where it must not stand."""
    lines = [line for topic in ("who", "better", "best", "causal", "wrong", "notes") for line in said[topic]]
    return f"**Answer** ({basis}).\n\n" + "\n".join(f"- {line}" for line in lines)
