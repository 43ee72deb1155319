"""The tables of a norm's card, made from known runs: comparisons, scores and training."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd

from mambanorm.arms import Arm
from mambanorm_clinic.card_text import CardFacts
from mambanorm_study.advice.which_arm import answer, compared_column, ranking, tuned_arms
from mambanorm_study.claims.claim import Claim, Comparison
from mambanorm_study.claims.evidence import Evidence
from mambanorm_study.runs.presets import kind_of
from mambanorm_study.tables.experiments import inside_task
from mambanorm_study.tables.summaries import MIN_POINTS_ABOVE_CHANCE


def comparison_rows(card: CardFacts, task: str, evidence: Evidence) -> list[dict[str, Any]]:
    """Return the comparisons of each arm of the card with `card.against` and with the best recorded
    arm, one row per comparison that has runs.

    Columns: those of `which_arm.compare`, and place, arm, against, best (True if `against` is the
    best recorded arm).
    """
    best = best_arm(card, task, evidence)
    rows = []
    for place, arm in card.arms.items():
        for against in dict.fromkeys([card.against, best or card.against]):
            if against == arm:
                continue
            facts = answer(arm, against, task, evidence, card.scale)
            if facts["n"]:
                place_facts = {"place": place, "arm": arm, "against": against}
                rows.append({**place_facts, "best": against == best, **facts})
    return rows


def best_arm(card: CardFacts, task: str, evidence: Evidence) -> str | None:
    """Return the arm that is best on validation among the arms without this norm; None if none of
    them is tuned.
    """
    with suppress(ValueError):
        for arm in ranking(evidence, task).arm:
            if (card.same or card.name) not in Arm.parse(arm).norms:
                return arm
    return None


def score_table(arms: Iterable[str], task: str, evidence: Evidence) -> pd.DataFrame:
    """Return the columns arm and mean (test score) of these arms and all tuned arms, best first.

    The score is the test accuracy in per cent, or minus the test loss in bits.
    """
    column, rows = compared_column(task)[0], []
    for arm in dict.fromkeys([*tuned_arms(kind_of(task)), *arms]):
        runs = evidence.of_arms([arm], task)
        if not runs.missing:
            rows.append((arm, runs.columns[column].mean()))
    table = pd.DataFrame(rows, columns=["arm", "mean"])
    return table.sort_values("mean", ascending=False, ignore_index=True)


def training_table(card: CardFacts, known: pd.DataFrame) -> pd.DataFrame:
    """Return how each arm of the card trains on the task of the paper's §4.6, one row per place.

    Columns: place; task; highest_lr, the highest learning rate at which the arm trains;
    reference_lr, the same for `card.against`; diverged, learning rate → (diverged runs, all runs).
    """
    task, evidence = inside_task(card.scale), Evidence(known, card.scale)
    reference_lr = _highest_lr(card.against, evidence, task)
    rows = []
    for place, arm in card.arms.items():
        diverged = evidence.of_arm(arm, task).groupby("lr").diverged
        rows.append(
            {
                "place": place,
                "task": task,
                "highest_lr": _highest_lr(arm, evidence, task),
                "reference_lr": reference_lr,
                "diverged": {f"{lr:g}": (int(runs.sum()), len(runs)) for lr, runs in diverged},
            }
        )
    return pd.DataFrame(rows)


def _highest_lr(arm: str, evidence: Evidence, task: str) -> float:
    """Return the highest of the five learning rates at which an arm trains, as in claim E2.

    It is the geometric mean over the seeds that learn; NaN if no such seed has runs at all rates.
    """
    comparison = Comparison(arm, {arm: 1.0}, column="reach")
    texts = dict.fromkeys(("words", "quote", "where", "quantity"), "")
    claim = Claim(id="cards", comparisons=(comparison,), runs="ladder", **texts)
    runs = evidence.of_claim(claim, [arm], task)
    if runs.missing:
        return np.nan
    best = runs.columns  # at the best learning rate of each seed
    learned = best["score"] > best["chance"] + MIN_POINTS_ABOVE_CHANCE
    return 10 ** best["reach"][learned].mean() if learned.any() else np.nan
