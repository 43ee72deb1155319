"""The tables of a norm's card, from known runs: comparisons, all arms by score, and training."""

from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from mambanorm.arms import Arm
from mambanorm.inside import token_norms
from mambanorm.models.classifier import SequenceClassifier
from mambanorm_clinic.card_page import NormCard
from mambanorm_study.advice.which_arm import (
    SKETCH,
    answer,
    compared_on,
    ranking,
    row_of_answer,
    tuned_arms,
)
from mambanorm_study.claims import rule
from mambanorm_study.claims.claim import Claim, Comparison, minus
from mambanorm_study.claims.evidence import Evidence
from mambanorm_study.claims.verdict import Row
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import base_config
from mambanorm_study.runs.presets import kind_of
from mambanorm_study.runs.recorded_results import recorded, recorded_lr, recorded_path
from mambanorm_study.runs.store import find_run
from mambanorm_study.tables.experiments import deep_runs, inside_task
from mambanorm_study.tables.growth import growth, norm_quantiles
from mambanorm_study.tables.summaries import LEARNS, growth_facts, headroom_facts


def comparison_rows(card: NormCard, task: str, evidence: Evidence) -> list[dict[str, Any]]:
    """Return a row for each place that was run and each of two other arms: `card.against` and the
    best recorded arm; in a sketch `card.against` alone.
    """
    best = None if card.sketch else best_arm(card, task)
    rows = []
    for place, arm in card.arms.items():
        for against in dict.fromkeys([card.against, best or card.against]):
            if against == arm:
                continue
            if card.sketch:
                facts = _sketch_row(card, arm, task, evidence)
            else:
                facts = answer(arm, against, task, evidence, card.scale)
            if facts["n"]:
                place_facts = {"place": place, "arm": arm, "against": against}
                rows.append({**place_facts, "best": against == best, **facts})
    return rows


def _sketch_row(card: NormCard, arm: str, task: str, evidence: Evidence) -> dict[str, Any]:
    """Return the mean difference of an arm and `card.against` at one learning rate, with its
    t-interval and without a word; n is 0 if they were not run.
    """
    column, smallest = compared_on(task)
    runs = evidence.at_lrs((arm, card.against), [sketch_lr(card, task)] * 2, task)
    if runs.missing:
        return {"n": 0}
    comparison = minus(arm, card.against, column=column)
    difference = runs.differences(comparison)
    low, high = rule.interval(difference)
    row = Row(
        comparison.name,
        task,
        comparison.unit,
        smallest,
        word=SKETCH,
        effect=difference.mean(),
        low=low,
        high=high,
        n=len(difference),
        fresh=runs.fresh,
        failed=runs.failed(),
    )
    return row_of_answer(row, arm, card.against, card.scale)


def sketch_lr(card: NormCard, task: str) -> float:
    """Return the learning rate of a sketch: the recorded one of `card.against`, else the task's."""
    known = recorded_lr(task, card.against, card.scale)
    return known[0] if known else base_config(task, card.scale).lr


def score_table(card: NormCard, task: str, evidence: Evidence) -> pd.DataFrame:
    """Return arm, mean, n and own (an arm of the card) of every tuned arm, best first.

    The mean is the test accuracy in per cent, or minus the test loss in bits. In a sketch the arms
    of the card have one learning rate.
    """
    rows, column, own_arms = [], compared_on(task)[0], set(card.arms.values())
    for arm in dict.fromkeys([*tuned_arms(kind_of(task)), *card.arms.values()]):
        if card.sketch and arm in own_arms:
            runs = evidence.at_lrs([arm], [sketch_lr(card, task)], task)
        else:
            runs = evidence.of_arms([arm], task)
        if not runs.missing:
            score = runs.columns[column][0]
            rows.append((arm, score.mean(), len(score), arm in own_arms))
    table = pd.DataFrame(rows, columns=["arm", "mean", "n", "own"])
    return table.sort_values("mean", ascending=False, ignore_index=True)


def training_table(
    card: NormCard, known: pd.DataFrame, runs_dir: str | Path | None
) -> pd.DataFrame:
    """Return one row a place: how its arm trains.

    arm; task; highest_lr and reference_lr, the highest learning rate at which this arm and
    `card.against` train (means of the seeds that have the whole ladder); diverged, by learning
    rate; start, decades in 8 blocks by which the median output grows before training; trained, the
    growth of the largest token in the last step; headroom in decades.
    """
    task, evidence = inside_task(card.scale), Evidence(known, card.scale)
    known_by_id = known.drop_duplicates("run_id").set_index("run_id") if len(known) else known
    reference_lr = _highest_lr(card.against, evidence, task)
    rows = []
    for place, arm in card.arms.items():
        diverged = evidence.of_arm(arm, task).groupby("lr").diverged
        deep = [
            _deep_facts(config, known_by_id, runs_dir)
            for config in deep_runs(card.scale, card.seeds[task], [arm])
        ]
        deep = pd.DataFrame(deep, columns=["growth", "headroom"]).astype(float)
        rows.append(
            {
                "place": place,
                "arm": arm,
                "task": task,
                "highest_lr": _highest_lr(arm, evidence, task),
                "reference_lr": reference_lr,
                "diverged": {f"{lr:g}": (int(runs.sum()), len(runs)) for lr, runs in diverged},
                "start": growth_at_start(arm),
                "trained": deep.growth.mean(),
                "headroom": deep.headroom.mean(),
            }
        )
    return pd.DataFrame(rows)


def _highest_lr(arm: str, evidence: Evidence, task: str) -> float:
    """Return the highest learning rate of the ladder at which an arm trains, as in claim E2; NaN
    if no seed that learns has the whole ladder.
    """
    comparison = Comparison(arm, {arm: 1.0}, column="reach")
    texts = dict.fromkeys(("words", "quote", "where", "quantity"), "")
    claim = Claim(id="cards", comparisons=(comparison,), runs="ladder", **texts)
    runs = evidence.of_claim(claim, [arm], task)
    if runs.missing:
        return np.nan
    best = runs.columns  # at the best learning rate of each seed
    learned = best["score"] > best["chance"] + LEARNS
    return 10 ** best["reach"][learned].mean() if learned.any() else np.nan


def _deep_facts(
    config: RunConfig, known_by_id: pd.DataFrame, runs_dir: str | Path | None
) -> dict[str, float]:
    """Return growth and headroom of a run of eight blocks, as recorded or from the store."""
    if config.run_id in known_by_id.index and "headroom" in known_by_id:
        row = known_by_id.loc[config.run_id]
        if np.isfinite(row.headroom):
            return {"growth": row.growth, "headroom": row.headroom}
    run = find_run(config, runs_dir)
    if run is None:
        return {}
    return {"growth": growth_facts(run).get("growth", np.nan), **headroom_facts(run)}


def growth_at_start(arm: str) -> float:
    """Return how many decades the median token's norm grows over 8 blocks of an untrained model.

    NaN if the model fails.
    """
    with torch.random.fork_rng(devices=[]), suppress(Exception):
        torch.manual_seed(0)
        sizes = {"in_features": 1, "d_model": 32, "n_layers": 8, "d_state": 8}
        model = SequenceClassifier(10, arm=arm, **sizes).train()
        tokens = pd.DataFrame(token_norms(model, torch.randn(8, 32, 1)))
        medians = norm_quantiles(tokens[tokens.site == "residual"])["median"]
        return float(growth(medians)["decades_per_8"])
    return np.nan


def best_arm(card: NormCard, task: str) -> str | None:
    """Return the recorded arm without this norm that is best on validation, None if there is
    none.
    """
    path, name = recorded_path(card.scale), card.same or card.name
    ranked = _ranked_arms(card.scale, task, path.stat().st_mtime_ns) if path.is_file() else ()
    return next((arm for arm in ranked if name not in Arm.parse(arm).norms), None)


@lru_cache(maxsize=32)
def _ranked_arms(scale: str, task: str, mtime_ns: int) -> tuple[str, ...]:
    """Return the recorded arms of a task, the best on validation first; the file's time is part of
    the key, because a notebook asks for a dozen cards.
    """
    frame = recorded(scale)
    with suppress(ValueError):
        return tuple(ranking(frame[frame.task == task], task, scale=scale).arm)
    return ()
