"""The rows of a card (card.py), from the runs that are known: its comparisons, its strip of all
arms, how it trains."""

from __future__ import annotations

from collections.abc import Sequence
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
from mambanorm_study.runs.recorded_lr import recorded_lr
from mambanorm_study.runs.recorded_results import recorded, recorded_path
from mambanorm_study.runs.store import stored_run
from mambanorm_study.tables.experiments import deep_runs, inside_task
from mambanorm_study.tables.growth import growth, norm_quantiles
from mambanorm_study.tables.summaries import LEARNS, growth_facts, headroom_facts


def verdicts_of(card: NormCard, task: str, evidence: Evidence) -> list[dict[str, Any]]:
    """Return a row for each place and each of two arms to compare with, `card.against` and the best
    recorded arm; none for a place that was not run."""
    rows, best = [], best_arm(card, task)
    for place, arm in card.arms.items():
        for against in dict.fromkeys(filter(None, (card.against, best))):
            if against == arm:
                continue
            compared = answer(arm, against, task, evidence, card.scale)
            if compared["n"]:
                rows.append(
                    dict(place=place, arm=arm, against=against, best=against == best, **compared)
                )
    return rows


def sketch_of(card: NormCard, task: str, evidence: Evidence) -> list[dict[str, Any]]:
    """Return a row for each place that was run, with the columns of `verdicts_of`: the mean
    difference at one learning rate with its t-interval, and no word."""
    rows, lr, (column, smallest) = [], sketch_rate(card, task), compared_on(task)
    for place, arm in card.arms.items():
        runs = evidence.at_lrs((arm, card.against), [lr, lr], task)
        if arm == card.against or runs.missing:
            continue
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
        compared = row_of_answer(row, arm, card.against, card.scale)
        rows.append(dict(place=place, arm=arm, against=card.against, best=False, **compared))
    return rows


def sketch_rate(card: NormCard, task: str) -> float:
    """Return the learning rate of a sketch: the recorded rate of the arm that the norm is compared
    with."""
    known = recorded_lr(task, card.against, card.scale)
    return known.lr if known else base_config(task, card.scale).lr


def strip_of(
    evidence: Evidence, task: str, mine: Sequence[str], lr: float | None = None
) -> pd.DataFrame:
    """Return every tuned arm of a task with its mean test accuracy in per cent (language models:
    minus the loss, in bits), best first: arm, mean, n, own. lr: the one learning rate at which
    `mine` were run, in a sketch."""
    rows, (column, _) = [], compared_on(task)
    for arm in dict.fromkeys((*tuned_arms(kind_of(task)), *mine)):
        at_one_rate = arm in mine and lr is not None
        runs = (
            evidence.at_lrs([arm], [lr], task) if at_one_rate else evidence.of_arms([arm], task)
        )
        if not runs.missing:
            score = runs.columns[column][0]
            rows.append(dict(arm=arm, mean=score.mean(), n=len(score), own=arm in mine))
    table = pd.DataFrame(rows, columns=["arm", "mean", "n", "own"])
    return table.sort_values("mean", ascending=False, ignore_index=True)


def training_of(card: NormCard, known: pd.DataFrame, runs_dir: str | Path | None) -> pd.DataFrame:
    """Return one row a place: arm; task; rate and rate_reference, the highest rate at which this
    arm and `card.against` train (means of the seeds that have the whole ladder); diverged, by rate;
    start, decades in 8 blocks by which the median output grows before training; trained, the growth
    of the largest token in the last step; headroom in decades.
    """
    task, evidence, rows = inside_task(card.scale), Evidence(known, card.scale), []
    highest = _highest_rates([*card.arms.values(), card.against], evidence, task)
    by_id = known.drop_duplicates("run_id").set_index("run_id") if len(known) else known
    for place, arm in card.arms.items():
        by_rate = evidence.of_arm(arm, task).groupby("lr").diverged
        deep = [
            _deep_facts(c, by_id, runs_dir) for c in deep_runs(card.scale, card.seeds[task], [arm])
        ]
        deep = pd.DataFrame(deep, columns=["growth", "headroom"]).astype(float)
        row = dict(
            place=place,
            arm=arm,
            task=task,
            rate=highest[arm],
            rate_reference=highest[card.against],
            diverged={f"{lr:g}": (int(diverged.sum()), len(diverged)) for lr, diverged in by_rate},
            start=growth_at_start(arm),
            trained=deep.growth.mean(),
            headroom=deep.headroom.mean(),
        )
        rows.append(row)
    return pd.DataFrame(rows)


def _highest_rates(arms: Sequence[str], evidence: Evidence, task: str) -> dict[str, float]:
    """Return arm → the highest rate of the ladder at which it trains, as in claim E2; NaN if no
    seed that learns has the whole ladder."""
    facts = dict.fromkeys(("words", "quote", "where", "quantity"), "")
    found = {}
    for arm in dict.fromkeys(arms):
        climb = Claim(
            id="cards",
            comparisons=(Comparison(arm, {arm: 1.0}, column="reach"),),
            runs="ladder",
            **facts,
        )
        runs, found[arm] = evidence.of_claim(climb, [arm], task), np.nan
        if not runs.missing:
            best = runs.columns  # at the best rate of each seed
            learned = best["score"] > best["chance"] + LEARNS
            found[arm] = 10 ** best["reach"][learned].mean() if learned.any() else np.nan
    return found


def _deep_facts(
    config: RunConfig, by_id: pd.DataFrame, runs_dir: str | Path | None
) -> dict[str, float]:
    """Return growth and head-room of a run of eight blocks, as recorded or from the store."""
    if (
        config.run_id in by_id.index
        and "headroom" in by_id
        and np.isfinite(by_id.headroom[config.run_id])
    ):
        return dict(growth=by_id.growth[config.run_id], headroom=by_id.headroom[config.run_id])
    run = stored_run(config.run_id, runs_dir)
    return (
        {}
        if run is None
        else dict(growth=growth_facts(run).get("growth", np.nan), **headroom_facts(run))
    )


def growth_at_start(arm: str) -> float:
    """Return the decades in 8 blocks by which the median token grows in an untrained model; NaN if
    it fails."""
    with torch.random.fork_rng(devices=[]), suppress(Exception):
        torch.manual_seed(0)
        model = SequenceClassifier(
            10, in_features=1, d_model=32, n_layers=8, d_state=8, arm=arm
        ).train()
        tokens = pd.DataFrame(token_norms(model, torch.randn(8, 32, 1)))
        return float(
            growth(norm_quantiles(tokens[tokens.site == "residual"])["median"])["decades_per_8"]
        )
    return np.nan


def best_arm(card: NormCard, task: str) -> str | None:
    """Return the recorded arm without this norm that is best on validation; None if nothing is
    recorded."""
    path, name = recorded_path(card.scale), card.same or card.name
    ranked = _ranked(card.scale, task, path.stat().st_mtime_ns) if path.is_file() else ()
    return next((arm for arm in ranked if name not in Arm.parse(arm).norms), None)


@lru_cache(maxsize=32)
def _ranked(scale: str, task: str, mtime_ns: int) -> tuple[str, ...]:
    """Return the recorded arms of a task, the best on validation first."""
    frame = recorded(scale)
    with suppress(ValueError):
        return tuple(ranking(frame[frame.task == task], task, scale=scale).arm)
    return ()
