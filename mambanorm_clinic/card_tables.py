"""The tables of a norm card, made from known runs: comparisons, scores, and learning rates.

An arm is a choice of norms for a block, such as RMSN>SSM>None. The arms of a card contain its norm.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from mambanorm.arms import Arm
from mambanorm_clinic.card_text import CardFacts
from mambanorm_study.advice.which_arm import accuracy, comparison_row, ranking, tuned_arms
from mambanorm_study.claims.claim import Claim, Comparison
from mambanorm_study.claims.evidence import Evidence
from mambanorm_study.runs.presets import kind_of
from mambanorm_study.tables.experiments import inside_task
from mambanorm_study.tables.summaries import MIN_POINTS_ABOVE_CHANCE


def comparison_rows(card: CardFacts, task: str, evidence: Evidence) -> list[dict[str, Any]]:
    """Compare each arm of the card with the arm `card.against` and with the best recorded arm.

    Returns a list of dicts, one per comparison that has runs. Keys: the columns of
    `which_arm.compare`; place (the position of the norm, such as "after the scan"); arm; against
    (the other arm); and best (True if `against` is the best recorded arm).
    """
    best = best_arm(card, task, evidence)
    rows = []
    for place, arm in card.arms.items():
        for against in dict.fromkeys([card.against, best or card.against]):
            if against == arm:
                continue
            facts = comparison_row(arm, against, task, evidence, card.scale)
            if facts["n"]:
                place_facts = {"place": place, "arm": arm, "against": against}
                rows.append({**place_facts, "best": against == best, **facts})
    return rows


def best_arm(card: CardFacts, task: str, evidence: Evidence) -> str | None:
    """Return the arm with the best validation score among the tuned arms that do not contain the
    card's norm, None if there is no such arm.
    """
    for arm in _ranked_arms(evidence, task):
        if (card.same or card.name) not in Arm.parse(arm).norms:
            return arm
    return None


# cached, because the cards of all built-in norms share their evidence
@lru_cache(maxsize=8)
def _ranked_arms(evidence: Evidence, task: str) -> list[str]:
    """Return the tuned arms, that with the best validation score first; [] if there are none."""
    try:
        return ranking(evidence, task).arm.tolist()
    except ValueError:
        return []


def score_table(arms: Iterable[str], task: str, evidence: Evidence) -> pd.DataFrame:
    """Return a DataFrame of scores, with one row per arm, the best first.

    The arms are the given arms and all arms that are tuned for claims. Arms without tuning runs or
    without test runs are left out. Columns: arm; mean (over seeds, of the test accuracy in per cent
    or, on a language task, of minus the test loss in bits per character).
    """
    names = dict.fromkeys([*tuned_arms(kind_of(task)), *arms])
    rows = [(arm, _mean_accuracy(evidence, task, arm)) for arm in names]
    table = pd.DataFrame(rows, columns=["arm", "mean"]).dropna()
    return table.sort_values("mean", ascending=False, ignore_index=True)


@lru_cache(maxsize=512)  # cached as `_ranked_arms` is
def _mean_accuracy(evidence: Evidence, task: str, arm: str) -> float:
    return accuracy(arm, task, evidence)["mean"]


def training_table(card: CardFacts, evidence: Evidence) -> pd.DataFrame:
    """Return a DataFrame that shows at which learning rates the card's arms train.

    It has one row per arm. Columns: place (the position of the norm, such as "after the scan");
    task (on which the runs for §4.6 of the paper are made, see `inside_task`); highest_lr (the
    highest learning rate at which the arm trains); reference_lr (the highest learning rate at which
    the arm `card.against` trains); diverged (a map from each learning rate, as text, to the tuple
    (number of diverged runs, number of runs)).

    evidence: the known runs on the task of the measurements inside models (`inside_task`).
    """
    task = inside_task(card.scale)
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


@lru_cache(maxsize=512)  # cached as `_ranked_arms` is
def _highest_lr(arm: str, evidence: Evidence, task: str) -> float:
    """Return the highest learning rate at which an arm trains, averaged over seeds.

    For each seed, the highest rate at which the arm trains is chosen from five rates, as for the
    study's claim E2. The average is the geometric mean over the seeds that were run at all five
    rates and that learn, NaN if there are none. A seed learns if its score at the best of the five
    rates exceeds chance by more than MIN_POINTS_ABOVE_CHANCE.
    """
    comparison = Comparison(arm, {arm: 1.0}, column="reach")
    texts = dict.fromkeys(("words", "quote", "where", "quantity"), "")
    claim = Claim(id="cards", comparisons=(comparison,), runs="ladder", **texts)
    runs = evidence.runs_of_claim(claim, [arm], task)
    if runs.missing:
        return np.nan
    columns = runs.columns  # "score" is each seed's score at its best learning rate
    learned = columns["score"] > columns["chance"] + MIN_POINTS_ABOVE_CHANCE
    return 10 ** columns["reach"][learned].mean() if learned.any() else np.nan
