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
# Where the norm is in the block → the arm.
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
    behaviour: see `card_checks.behaviour_of`; None if the norm fails. checks: see
    `card_checks.checks_of`. costs: see `norm_catalog.costs_of`. same: the norm of the kit that
    computes the same, or "". training, verdicts, scores (task → table): see `training_table`,
    `comparison_rows` and `score_table` in card_tables.py. untrained: sentences on what could not be
    trained; () if nothing failed.
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
        """Place → arm. If a norm of the kit computes the same, the arms have that norm, because
        its runs are recorded.
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
            f"{card.name} computes the same as {card.same} (to 1e-6), so nothing was trained. The "
            f"runs below are the recorded runs of {card.same}."
        )


def _better(card: CardFacts) -> Iterator[str]:
    if card.verdicts.empty:
        yield "We do not know whether it is better: it has not been trained on these tasks."
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
            yield f"All seeds on {task} share {shared}: the comparisons hold for these data only."


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
        yield f"A language model cannot use it: {position_seen(card.behaviour)}."
    elif card.verdicts.empty or (card.verdicts.unit == "pp").all():
        yield "It is causal, so a language model can use it; this card has not tried it in one."


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
            against = f"; for {label(card.against)} it is {reference:.2g}"
        yield f"The highest learning rate at which it trains is {rates}{against}."
    counts = [count for by_rate in table.diverged for count in by_rate.values()]
    if counts:
        diverged, n = np.sum(counts, axis=0)
        task = table.task.iloc[0]
        yield f"{diverged or 'None'} of its {n} runs on {task} diverged, over all learning rates."


def _costs(card: CardFacts) -> Iterator[str]:
    if len(card.costs):
        cost = card.costs.iloc[1]
        yield (
            f"Forward and backward pass take {cost.over_rmsn:.2g} times as long as those of RMSN "
            f"(B × L × D = {cost['shape']}: {cost.ms:.2g} ms)."
        )
