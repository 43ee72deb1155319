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
    """Return the results of comparing each arm of the card with `card.against` and with the best
    recorded arm: one row per comparison that has runs.

    Columns: those of `which_arm.compare`; place (of the norm, such as "after the scan"), arm,
    against (the other arm), and best (True if `against` is the best recorded arm).
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
    """Return the best arm in validation among the tuned arms without the card's norm; None if there
    is no such arm.
    """
    with suppress(ValueError):
        for arm in ranking(evidence, task).arm:
            if (card.same or card.name) not in Arm.parse(arm).norms:
                return arm
    return None


def score_table(arms: Iterable[str], task: str, evidence: Evidence) -> pd.DataFrame:
    """Return a frame of the scores of the given arms and of all tuned arms, the best first.

    Columns: arm; mean, the test accuracy in per cent or, on a language task, the negative test loss
    in bits, averaged over seeds. Arms without tuning or without test runs are left out.
    """
    column, rows = compared_column(task)[0], []
    for arm in dict.fromkeys([*tuned_arms(kind_of(task)), *arms]):
        runs = evidence.runs_of_arms([arm], task)
        if not runs.missing:
            rows.append((arm, runs.columns[column].mean()))
    table = pd.DataFrame(rows, columns=["arm", "mean"])
    return table.sort_values("mean", ascending=False, ignore_index=True)


def training_table(card: CardFacts, known: pd.DataFrame) -> pd.DataFrame:
    """Return a frame that shows at which learning rates the card's arms train, one row per arm.

    Columns: place (of the norm, such as "after the scan"); task (the task of the paper's §4.6);
    highest_lr, the highest learning rate at which the arm trains; reference_lr, the highest
    learning rate at which `card.against` trains; diverged, a map from each learning rate to
    (number of diverged runs, number of runs).
    """
    task, evidence = inside_task(card.scale), Evidence(known, card.scale)
    reference_lr = _highest_lr(card.against, evidence, task)
    rows = []
    for place, arm in card.arms.items():
        diverged_by_lr = evidence.runs_of_arm(arm, task).groupby("lr").diverged
        rows.append(
            {
                "place": place,
                "task": task,
                "highest_lr": _highest_lr(arm, evidence, task),
                "reference_lr": reference_lr,
                "diverged": {
                    f"{lr:g}": (int(runs.sum()), len(runs)) for lr, runs in diverged_by_lr
                },
            }
        )
    return pd.DataFrame(rows)


def _highest_lr(arm: str, evidence: Evidence, task: str) -> float:
    """Return the highest learning rate at which an arm trains, averaged over seeds.

    For each seed, the highest rate at which the arm trains is chosen from five rates, as in claim
    E2. The average is the geometric mean over the seeds that were run at all five rates and that
    learn, NaN if there are none. A seed learns if its score at its best learning rate exceeds
    chance by MIN_POINTS_ABOVE_CHANCE.
    """
    comparison = Comparison(arm, {arm: 1.0}, column="reach")
    texts = dict.fromkeys(("words", "quote", "where", "quantity"), "")
    claim = Claim(id="cards", comparisons=(comparison,), runs="ladder", **texts)
    runs = evidence.runs_of_claim(claim, [arm], task)
    if runs.missing:
        return np.nan
    columns = runs.columns  # score: a seed's score at its best learning rate
    learned = columns["score"] > columns["chance"] + MIN_POINTS_ABOVE_CHANCE
    return 10 ** columns["reach"][learned].mean() if learned.any() else np.nan
