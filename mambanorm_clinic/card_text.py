"""The sentences of a norm's card, by topic."""

from collections.abc import Iterator
from enum import StrEnum

import numpy as np

from mambanorm_clinic.card_checks import Mark, position_seen
from mambanorm_clinic.card_estimates import run_seconds
from mambanorm_clinic.card_facts import CardFacts
from mambanorm_study.advice.which_arm import NOT_FRESH
from mambanorm_study.basics.text import plural, spell
from mambanorm_study.claims import rule
from mambanorm_study.runs.grid import FIRST_TEST_SEED, LAST_TEST_SEED, base_config
from mambanorm_study.runs.recorded_results import recorded_lr
from mambanorm_study.tables.intervals import shared_rows
from mambanorm_study.tables.run_tables import label

WORDS = ("better", "about the same", "worse", rule.CANNOT_TELL, rule.NO_WORD)


class Topic(StrEnum):
    """What a sentence of a card is about."""

    SAME = "same"  # the norm of the kit that it equals
    BETTER = "better"  # than the arm that it is compared with
    BEST = "best"  # compared with the best recorded arm
    CAUSAL = "causal"  # whether a language model can have it
    FAULTS = "faults"
    TRAINING = "training"
    COSTS = "costs"
    SEEDS = "seeds"  # that would settle a comparison
    NOTES = "notes"  # what could not be measured or trained


def sentences_of(card: CardFacts) -> dict[Topic, list[str]]:
    """Return topic → sentences, the most important topic first."""
    return {
        Topic.SAME: list(_same(card)),
        Topic.BETTER: list(_better(card)),
        Topic.BEST: list(_best(card)),
        Topic.CAUSAL: list(_causal(card)),
        Topic.FAULTS: list(_faults(card)),
        Topic.TRAINING: list(_training(card)),
        Topic.COSTS: list(_costs(card)),
        Topic.SEEDS: list(_seeds(card)),
        Topic.NOTES: [*card.notes, *card.untrained],
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
    if card.sketch:
        yield (
            f"A sketch, at the learning rate of {label(card.against)} and with few seeds: "
            "`--seeds 8` compares by the rule."
        )
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
    behaviour = card.trial.result
    if behaviour is None:
        return
    if behaviour.looks_ahead:
        yield f"In a language model it must not stand: {position_seen(behaviour)}."
    elif card.verdicts.empty or (card.verdicts.unit == "pp").all():
        yield "It is causal: it may stand in a language model, where it has not been tried here."


def _faults(card: CardFacts) -> Iterator[str]:
    bad = card.checks[card.checks["mark"] == Mark.BAD]
    if len(bad):
        faults = "; ".join(f"{row.question}: {row.answer}" for row in bad.itertuples())
        yield f"What is wrong: {faults}."


def _training(card: CardFacts) -> Iterator[str]:
    table = card.training
    if table.empty:
        return
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
        rates = "at its one rate" if card.sketch else "at all rates"
        task = table.task.iloc[0]
        yield f"{diverged or 'None'} of its {n} runs on {task}, {rates}, diverged."
    deep = table.dropna(subset=["headroom"])
    if len(deep):
        decades = ", ".join(f"{row.headroom:+.1f} {row.place}" for row in deep.itertuples())
        yield (
            "Head-room of the scan in float16, decades in a trained model of eight blocks: "
            f"{decades.replace('-', '−')}."
        )


def _costs(card: CardFacts) -> Iterator[str]:
    if len(card.costs):
        cost = card.costs.iloc[1]
        yield (
            f"Forward and backward take {cost.over_rmsn:.2g} times as long as RMSN "
            f"({cost['shape']}; {cost.ms:.2g} ms)."
        )


def _seeds(card: CardFacts) -> Iterator[str]:
    """Say how many new seeds would settle the two cheapest open comparisons, and how long they
    take.
    """
    if card.verdicts.empty:
        return
    rows = card.verdicts[(card.verdicts.against == card.against) & card.verdicts.new_seeds.notna()]
    for row in rows.sort_values("new_seeds").head(2).itertuples():
        recorded = recorded_lr(row.task, card.against, card.scale)
        used = [*card.seeds[row.task], *(recorded[1] if recorded else ())]
        n = int(row.new_seeds)
        first = max(FIRST_TEST_SEED, max(used) + 1)
        last = first + n - 1
        pair = [base_config(row.task, card.scale, arm=arm) for arm in (row.arm, card.against)]
        takes = spell(n * run_seconds(pair) / 2)
        how = ", more than there are seeds for"
        if last <= LAST_TEST_SEED:
            how = f": `{card.command(row.task)} --seeds {first}-{last}`"
        yield (
            f"To settle {label(row.arm)} on {row.task}: about {plural(n, 'new seed')}, {takes} on "
            f"two cores{how}."
        )
