"""The facts about a norm that its norm card shows, and the sentences that state these facts.

An arm is a choice of norms for a block, such as RMSN>SSM>None. The arms of a card contain its norm.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from mambanorm.norms.behaviour import Behaviour
from mambanorm_clinic.card_checks import BAD, lookahead_text
from mambanorm_study.advice.which_arm import NOT_FRESH
from mambanorm_study.basics.text import plural
from mambanorm_study.claims import rule
from mambanorm_study.tables.intervals import shared_data_name
from mambanorm_study.tables.run_tables import label

# Mamba's original arm, with which the arms of a card are compared by default.
REFERENCE = "RMSN>SSM>None"
# Position of the norm in the block → arm, with {0} for the name of the norm.
PLACES = {
    "before the block": "{0}>SSM>None",
    "after the scan": "None>SSM>{0}",
    "on both sides": "{0}>SSM>{0}",
}
WORDS = ("better", "about the same", "worse", rule.CANNOT_TELL, rule.NO_WORD)


@dataclass(frozen=True)
class CardFacts:
    """The facts about a norm that its norm card shows.

    name: the norm. scale, tasks: the scale and the tasks of the runs on the card. seeds: maps each
    task to its test seeds. against: the arm (such as RMSN>SSM>None) with which the arms that
    contain the norm are compared. behaviour: see `card_checks.behaviour_of`; None if the norm
    raised an error. checks: see `card_checks.checks_of`. costs: see `norm_catalog.costs_by_shape`.
    same: the built-in norm that computes the same as this norm, "" if there is none. training,
    verdicts: see `training_table` and `comparison_rows` in card_tables.py. scores: maps each task
    to a `score_table`. untrained: sentences on what could not be trained; () if nothing failed.
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
        """Return a map from each position of the norm to the arm with the norm at this position.

        An example of a position is "after the scan".

        If a built-in norm computes the same as the card's norm, the arms contain the built-in norm
        instead, because runs of arms with built-in norms are recorded.
        """
        places = {"nowhere": "None>SSM>None"} if self.name == "None" else PLACES
        return {place: arm.format(self.same or self.name) for place, arm in places.items()}


def sentences_of(card: CardFacts) -> dict[str, list[str]]:
    """Return a map from topic to a list of sentences on the norm, most important topic first."""
    return {
        "same": list(_twin_sentences(card)),
        "better": list(_comparison_sentences(card)),
        "best": list(_best_arm_sentences(card)),
        "causal": list(_causality_sentences(card)),
        "faults": list(_fault_sentences(card)),
        "training": list(_training_sentences(card)),
        "costs": list(_cost_sentences(card)),
        "notes": list(card.untrained),
    }


def _twin_sentences(card: CardFacts) -> Iterator[str]:
    if card.same:
        yield (
            f"{card.name} computes the same as {card.same} (to 1e-6), so nothing was trained. The "
            f"runs below are the recorded runs of {card.same}."
        )


def _comparison_sentences(card: CardFacts) -> Iterator[str]:
    if card.verdicts.empty:
        yield "We do not know whether this norm is better: it has not been trained on these tasks."
        return
    rows = card.verdicts[card.verdicts.against == card.against]
    for row in rows.itertuples():
        yield f"On {row.task}, {row.place}, {row.brief}."
    tasks = rows.task[~rows.fresh.astype(bool)].unique()
    if len(tasks):
        yield f"On {' and '.join(tasks)} the comparisons are {NOT_FRESH}."
    for task in rows.task.unique():
        shared = shared_data_name(task, card.scale)
        if shared:
            yield f"All seeds on {task} share {shared}: the comparisons hold for these data only."


def _best_arm_sentences(card: CardFacts) -> Iterator[str]:
    if card.verdicts.empty or not card.verdicts.best.any():
        return
    rows = card.verdicts[card.verdicts.best]
    best_arms = rows.groupby("task", sort=False).against.first().items()
    arms = ", ".join(f"{label(arm)} on {task}" for task, arm in best_arms)
    counts = rows.word.value_counts()
    words = ", ".join(f"{word} in {counts[word]}" for word in WORDS if word in counts)
    yield f"Against the best recorded arm ({arms}): {words} of {plural(len(rows), 'comparison')}."


def _causality_sentences(card: CardFacts) -> Iterator[str]:
    if card.behaviour is None:
        return
    if card.behaviour.looks_ahead:
        yield f"A language model cannot use this norm: {lookahead_text(card.behaviour)}."
    elif card.verdicts.empty or (card.verdicts.unit == "pp").all():
        yield (
            "The norm is causal, so a language model can use it; this card compares it on no "
            "language task."
        )


def _fault_sentences(card: CardFacts) -> Iterator[str]:
    if card.checks.empty:
        return
    bad = card.checks[card.checks["mark"] == BAD]
    if len(bad):
        faults = "; ".join(bad.question + ": " + bad.answer)
        yield f"Faults: {faults}."


def _training_sentences(card: CardFacts) -> Iterator[str]:
    table = card.training
    trained = table.dropna(subset=["highest_lr"])
    if len(trained):
        rates = ", ".join(f"{row.highest_lr:.2g} {row.place}" for row in trained.itertuples())
        reference = table.reference_lr.iloc[0]
        against = ""
        if np.isfinite(reference):
            against = f"; for {label(card.against)} it is {reference:.2g}"
        yield f"The highest learning rate that trains a model with this norm is {rates}{against}."
    counts = [count for by_rate in table.diverged for count in by_rate.values()]
    if counts:
        diverged, n = np.sum(counts, axis=0)
        task = table.task.iloc[0]
        yield (
            f"{diverged or 'None'} of the norm's {n} runs on {task} diverged, counted over all "
            "learning rates."
        )


def _cost_sentences(card: CardFacts) -> Iterator[str]:
    if len(card.costs):
        cost = card.costs.iloc[1]
        yield (
            f"Forward and backward pass take {cost.over_rmsn:.2g} times as long as those of RMSN "
            f"({cost.ms:.2g} ms for B × L × D = {cost['shape']})."
        )
