"""How a norm trains, for its card, from recorded and stored runs: the highest rate, divergence, growth over depth."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from mambanorm.claims.claim import Claim, Comparison
from mambanorm.claims.evidence import LEARNS, Evidence
from mambanorm.claims.summaries import growth_facts, headroom_facts
from mambanorm.config import RunConfig
from mambanorm.look import growth, norm_quantiles, token_norms
from mambanorm.models.classifier import SequenceClassifier
from mambanorm.runs.grid import base_config
from mambanorm.runs.store import stored_run
from mambanorm.study.experiments import all_rates, deep_runs, inside_task, ladder


def training_of(card: Any, known: pd.DataFrame, runs_dir: str | Path | None) -> pd.DataFrame:
    """One row a place: arm; task; rate and rate_reference, the highest rate that trains and that of the arm beside it,
    means of the seeds that have the whole ladder; diverged, by rate; start, decades in 8 blocks by which the median
    output grows before training, and trained, the largest token's in the last step; headroom in decades."""
    task, seeds = inside_task(card.scale), card.seeds[inside_task(card.scale)]
    rows, mine = [], known[(known.task == task) & known.seed.isin(seeds)] if len(known) else known
    by_id = mine.drop_duplicates("run_id").set_index("run_id") if len(mine) else mine
    high = _highest_rates([*card.arms.values(), card.against], Evidence(mine, card.scale), task)
    for place, arm in card.arms.items():
        row = dict(place=place, arm=arm, task=task, rate=high[arm], rate_reference=high[card.against])
        row |= dict(diverged=_by_rate(arm, task, card.scale, seeds, by_id), start=growth_at_start(arm))
        deep = [_deep_facts(c, by_id, runs_dir) for c in deep_runs(card.scale, seeds, [arm])]
        deep = pd.DataFrame(deep, columns=["growth", "headroom"]).astype(float)
        rows.append(row | dict(trained=deep.growth.mean(), headroom=deep.headroom.mean()))
    return pd.DataFrame(rows)


def _highest_rates(arms: Sequence[str], evidence: Evidence, task: str) -> dict[str, float]:
    """Arm → the highest rate of the ladder that trains, as E2 has it; NaN where no seed that learns has the whole
    ladder."""
    facts = dict.fromkeys(("words", "quote", "where", "quantity", "direction", "paper"), "")
    found = {}
    for arm in dict.fromkeys(arms):
        climb = Claim(id="cards", comparisons=(Comparison(arm, {arm: 1.0}, column="reach"),), runs="ladder", **facts)
        best = evidence.runs(climb, task).columns  # at each seed's best rate
        reach = np.where(best["score"] > best["chance"] + LEARNS, best["reach"], np.nan)
        found[arm] = 10 ** float(np.nanmean(reach)) if np.isfinite(reach).any() else np.nan
    return found


def _by_rate(arm: str, task: str, scale: str, seeds: Sequence[int], by_id: pd.DataFrame) -> dict[str, tuple[int, int]]:
    """Rate → (diverged, runs)."""
    found = {}
    for lr in sorted({*all_rates(task, scale), *ladder(task, scale)}):
        config = base_config(task, scale, arm=arm, lr=lr)
        ids = [run_id for seed in seeds if (run_id := config.with_seed(seed).run_id) in by_id.index]
        if ids:
            found[f"{lr:g}"] = int((by_id.status[ids] == "diverged").sum()), len(ids)
    return found


def _deep_facts(config: RunConfig, by_id: pd.DataFrame, runs_dir: str | Path | None) -> dict[str, float]:
    """Growth and head-room of a run of eight blocks, as recorded or from the store."""
    if config.run_id in by_id.index and "headroom" in by_id and np.isfinite(by_id.headroom[config.run_id]):
        return dict(growth=by_id.growth[config.run_id], headroom=by_id.headroom[config.run_id])
    run = stored_run(config.run_id, runs_dir)
    return {} if run is None else dict(growth=growth_facts(run).get("growth", np.nan), **headroom_facts(run))


def growth_at_start(arm: str) -> float:
    """Decades in 8 blocks by which the median token's sum grows in a model that is not trained; NaN if it fails."""
    with torch.random.fork_rng(devices=[]), suppress(Exception):
        torch.manual_seed(0)
        model = SequenceClassifier(10, in_features=1, d_model=32, n_layers=8, d_state=8, arm=arm).train()
        tokens = token_norms(model, torch.randn(8, 32, 1))
        return float(growth(norm_quantiles(tokens[tokens.site == "residual"])["median"])["decades_per_8"])
    return np.nan
