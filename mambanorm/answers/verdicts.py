"""Notebook 12: how many claims hold, which arm to take, and how well trained the models are. Notebook 15: the card of a
norm in short, and its guesses.

Verdicts are passed in (`mambanorm.claims` stands above this room), as are the words that a verdict may be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from mambanorm.answers.words import label, listed, numbered
from mambanorm.study.tables import points

ABOUT = {"s": "sequences", "v": "images"}
"""The last letter of one of the paper's claims → what the paper says it of."""

NAMED = 6
"""Arms that are not told apart from the best one, the nearest first: what is more is counted."""


def what_holds(
    verdicts: Sequence,
    rankings: Mapping[str, pd.DataFrame],
    lacking: Mapping[str, Mapping[str, str]],
    *,
    words: Sequence[str],
    basis: str,
) -> str:
    """How many claims have which verdict, where tasks disagree, and which arm to take on each task.

    `rankings`: task → `claims.ranking`. `lacking`: task → `claims.not_ranked`. `words`: the words of a verdict in their
    order, of which the last tells nothing.
    """
    lines = [*_counted(verdicts, words), *_disagreeing(verdicts, words[:-1])]
    lines += [_to_take(task, table, lacking[task]) for task, table in rankings.items()]
    lines += [] if rankings else ["- No recommendation: no arm is tuned and tested here."]
    return f"**Answer** ({basis}).\n\n" + "\n".join(lines)


def _counted(verdicts: Sequence, words: Sequence[str]) -> list[str]:
    found = {word: [v for v in verdicts if v.verdict == word] for word in words}
    lines = [f"- {len(mine)} **{word}**: {', '.join(v.claim.id for v in mine)}" for word, mine in found.items() if mine]
    return lines + [f"- {v.claim.id}: {v.said}" for v in verdicts if v.said != v.verdict]


def _disagreeing(verdicts: Sequence, told: Sequence[str]) -> list[str]:
    split = [v for v in verdicts if v.n_seeds and len(set(v.by_task.values()) & set(told)) > 1]
    words = (f"{v.claim.id} ({', '.join(f'{task} {said}' for task, said in v.by_task.items())})" for v in split)
    return [f"- Where the tasks disagree: {'; '.join(words)}."] if split else []


def _to_take(task: str, table: pd.DataFrame, lacking: Mapping[str, str]) -> str:
    """The best arm by validation, the recommended ones beside it, and those that are not told apart from it."""
    if absent := [f"{label(arm)} ({who})" for arm, who in lacking.items() if who]:
        return f"- **On {task}** no arm is recommended yet. Still to be recorded: {', '.join(absent)}."
    best, named = table.iloc[0], table[table.who != ""].set_index("who")
    near = list(table[table.told == "not told apart"].arm.map(label))
    near = near if len(near) <= NAMED else [*near[:NAMED], f"and {len(near) - NAMED} more"]
    against = "; ".join(
        f"to {who} ({label(row.arm)}) {points(row.behind, row.low, row.high, row.unit)}"
        for who, row in named.iterrows()
        if row.arm != best.arm
    )
    mean, sd, unit = best["mean"], best.sd, best.unit
    reached = f"{mean:.1f} % ± {sd:.1f}" if unit == "pp" else f"{-mean:.3f} ± {sd:.3f} {unit}"
    return (
        f"- **To take on {task}**: {label(best.arm)} ({reached}, {best.n:.0f} seeds). "
        f"{f'Its difference: {against}. ' if against else ''}No clear difference from: {', '.join(near) or 'none'}."
    )


def guess_on_claims(verdicts: Sequence) -> str:
    """The guess of notebook 12: how many of the paper's claims come out the same here, about sequences and images."""
    kinds = {name: [v for v in verdicts if v.claim.id[0] == "H" and v.claim.id[-1] == k] for k, name in ABOUT.items()}
    return "\n".join(_came_out(name, mine) for name, mine in kinds.items() if mine)


def _came_out(about: str, mine: Sequence) -> str:
    same, other = ([v.claim.id for v in mine if v.verdict == word] for word in ("reproduced", "contradicted"))
    rest = len(mine) - len(same) - len(other)
    return (
        f"- Of the {len(mine)} claims about **{about}** {len(same)} came out the same ({listed(same)}), "
        f"{len(other)} did not ({listed(other)}), and {rest} cannot be told by these runs, or not yet."
    )


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


def guesses_on_card(said: Mapping[str, Sequence[str]]) -> str:
    """The three guesses of notebook 15, from the sentences of a card: the future, the place, the cost."""
    return numbered([" ".join(said[topic]) for topic in ("causal", "better", "costs")])


def card_in_short(said: Mapping[str, Sequence[str]], basis: str) -> str:
    """The card of a norm: where it is better, against the best recorded arm, and where it must not stand."""
    lines = [line for topic in ("who", "better", "best", "causal", "wrong", "notes") for line in said[topic]]
    return f"**Answer** ({basis}).\n\n" + "\n".join(f"- {line}" for line in lines)
