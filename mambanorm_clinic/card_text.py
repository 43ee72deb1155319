"""The facts about a norm that its card shows, and the sentences about them."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from mambanorm.norms.behaviour import Behaviour
from mambanorm_clinic.card_checks import BAD, position_seen
from mambanorm_study.advice.which_arm import NOT_FRESH
from mambanorm_study.basics.text import plural
from mambanorm_study.claims import rule
from mambanorm_study.tables.intervals import shared_rows
from mambanorm_study.tables.run_tables import label

# Mamba's original arm, with which a norm's arms are compared by default.
REFERENCE = "RMSN>SSM>None"
PLACES = {
    "before the block": "{0}>SSM>None",
    "after the scan": "None>SSM>{0}",
    "on both sides": "{0}>SSM>{0}",
}
WORDS = ("better", "about the same", "worse", rule.CANNOT_TELL, rule.NO_WORD)


@dataclass(frozen=True)
class CardFacts:
    """The facts about a norm.

    seeds: task → the test seeds. against: the arm that the norm's arms are compared with.
    behaviour: `card_checks.behaviour_of`, None if the norm fails. checks: the table of
    `card_checks.checks_of`. costs: the table of `norm_catalog.costs_of`. same: the norm of the kit
    that computes the same, or "". training: `training_table`. verdicts: `comparison_rows`. scores:
    task → `score_table`. untrained: sentences on what could not be trained; () if all was.
    """

    name: str
    scale: str
    tasks: tuple[str, ...]
    seeds: dict[str, list[int]]
    against: str = REFERENCE
    behaviour: Behaviour | None = None
    checks: pd.DataFrame = field(default_factory=pd.DataFrame)
    costs: pd.DataFrame = field(default_factory=pd.DataFrame)
    same: str = ""
    training: pd.DataFrame = field(default_factory=pd.DataFrame)
    verdicts: pd.DataFrame = field(default_factory=pd.DataFrame)
    scores: dict[str, pd.DataFrame] = field(default_factory=dict)
    untrained: tuple[str, ...] = ()

    @property
    def arms(self) -> dict[str, str]:
        """Place → arm. If a norm of the kit computes the same, its arms, whose runs are
        recorded.
        """
        places = {"nowhere": "None>SSM>None"} if self.name == "None" else PLACES
        return {place: arm.format(self.same or self.name) for place, arm in places.items()}


def sentences_of(card: CardFacts) -> dict[str, list[str]]:
    """Return topic → sentences, the most important topic first."""
    return {
        "same": list(_same(card)),
        "better": list(_better(card)),
        "best": list(_best(card)),
        "causal": list(_causal(card)),
        "faults": list(_faults(card)),
        "training": list(_training(card)),
        "costs": list(_costs(card)),
        "notes": list(card.untrained),
    }


def _same(card: CardFacts) -> Iterator[str]:
    if card.same:
        yield (
            f"{card.name} is the same as {card.same} to 1e-6: nothing was trained. The runs below "
            f"are those recorded of {card.same}."
        )


def _better(card: CardFacts) -> Iterator[str]:
    if card.verdicts.empty:
        yield "Whether it is better is not known: it has not been trained on these tasks."
        return
    rows = card.verdicts[card.verdicts.against == card.against]
    for row in rows.itertuples():
        yield f"On {row.task}, {row.place}, {row.brief}."
    stale = rows.task[~rows.fresh.astype(bool)].unique()
    if len(stale):
        yield f"On {' and '.join(stale)} the comparisons are {NOT_FRESH}."
    for task in rows.task.unique():
        shared = shared_rows(task, card.scale)
        if shared:
            yield f"The seeds on {task} share {shared}: the comparisons speak about it alone."


def _best(card: CardFacts) -> Iterator[str]:
    if card.verdicts.empty or not card.verdicts.best.any():
        return
    rows = card.verdicts[card.verdicts.best]
    best_arms = rows.groupby("task", sort=False).against.first().items()
    arms = ", ".join(f"{label(arm)} on {task}" for task, arm in best_arms)
    counts = rows.word.value_counts()
    words = ", ".join(f"{word} in {counts[word]}" for word in WORDS if word in counts)
    yield f"Against the best recorded arm ({arms}): {words} of {plural(len(rows), 'comparison')}."


def _causal(card: CardFacts) -> Iterator[str]:
    if card.behaviour is None:
        return
    if card.behaviour.looks_ahead:
        yield f"In a language model it must not stand: {position_seen(card.behaviour)}."
    elif card.verdicts.empty or (card.verdicts.unit == "pp").all():
        yield "It is causal: it may stand in a language model, where it has not been tried here."


def _faults(card: CardFacts) -> Iterator[str]:
    if card.checks.empty:
        return
    bad = card.checks[card.checks["mark"] == BAD]
    if len(bad):
        faults = "; ".join(bad.question + ": " + bad.answer)
        yield f"What is wrong: {faults}."


def _training(card: CardFacts) -> Iterator[str]:
    table = card.training
    known = table.dropna(subset=["highest_lr"])
    if len(known):
        rates = ", ".join(f"{row.highest_lr:.2g} {row.place}" for row in known.itertuples())
        reference = table.reference_lr.iloc[0]
        against = ""
        if np.isfinite(reference):
            against = f"; of {label(card.against)} it is {reference:.2g}"
        yield f"The highest learning rate that trains it is {rates}{against}."
    counts = [count for by_rate in table.diverged for count in by_rate.values()]
    if counts:
        diverged, n = np.sum(counts, axis=0)
        task = table.task.iloc[0]
        yield f"{diverged or 'None'} of its {n} runs on {task}, at all rates, diverged."


def _costs(card: CardFacts) -> Iterator[str]:
    if len(card.costs):
        cost = card.costs.iloc[1]
        yield (
            f"Forward and backward take {cost.over_rmsn:.2g} times as long as RMSN "
            f"({cost['shape']}; {cost.ms:.2g} ms)."
        )
