"""A few numbers on the inside of a stored run, as columns of the run frame: the claims on growth (H10), on singular
values (H11) and on weight norms (H12) rest on them.

Nothing is trained: checkpoints are run forward on one batch, diagnostics are read. A column is NaN for a run that its
claim does not look at.

    growth_train, growth_eval   decades of the median token's ‖y‖₂ in 8 blocks, by mode (depth runs)
    law_train, law_eval         AIC of the best other law minus that of the exponential: above 0 = exponential
    sigma_rise, sigma_trend     log₁₀ of the variance of out_proj's singular values, from half way to the last finite
                                step of the no-norm run of the same seed: the mean over blocks; the slope over depth 0…1
    unevenness                  log₁₀ of the largest over the smallest block, each the L2 norm of all its weights
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from mambanorm.claims.comparisons import NONE
from mambanorm.claims.evidence import Evidence
from mambanorm.claims.hypotheses import CLAIMS
from mambanorm.claims.judged_on import fixed_runs, variants
from mambanorm.diagnostics import blocks_of, growth, norm_quantiles, sigma_history
from mambanorm.tasks import load_task
from mambanorm.training.config import RunConfig
from mambanorm.training.loop import build_model
from mambanorm.training.store import find_run, stored_run
from mambanorm.training.stored_run import DamagedRun, StoredRun

COLUMNS = ("growth_train", "growth_eval", "law_train", "law_eval", "sigma_rise", "sigma_trend", "unevenness")
ROWS = 32  # of the training split, the batch that the checkpoints are run on


def with_summaries(frame: pd.DataFrame, runs_dir: str | Path | None = None) -> pd.DataFrame:
    """The run frame with the columns of this module, read from the store. A run whose checkpoint or diagnostics were
    deleted keeps NaN there, and a warning names it."""
    facts = {run_id: {} for run_id in frame.run_id}
    for scale in frame.scale.unique():
        seeds = Evidence(frame, scale).test_seeds
        for config in _all_variants("H10s", scale, seeds):
            _add(facts, config.run_id, runs_dir, growth_facts)
        for config in _all_variants("H11s", scale, seeds):
            partner = find_run(config.but(arm=NONE), runs_dir)
            _add(facts, config.run_id, runs_dir, lambda run, partner=partner: sigma_facts(run, partner))
    for run_id in frame.run_id[frame.arm.isin(CLAIMS["H12s"].arms)]:
        _add(facts, run_id, runs_dir, weight_facts)
    added = pd.DataFrame.from_dict(facts, orient="index").reindex(columns=COLUMNS).astype(float)
    return frame.drop(columns=[name for name in COLUMNS if name in frame]).join(added, on="run_id")


def _all_variants(claim_id: str, scale: str, seeds: list[int]) -> list[RunConfig]:
    claim = CLAIMS[claim_id]
    return [c for i, _ in enumerate(variants(claim, scale)) for c in fixed_runs(claim, scale, seeds, i)]


def _add(facts: dict[str, dict], run_id: str, directory: str | Path | None, read: Callable[[StoredRun], dict]) -> None:
    """Reads one run of the frame, if the store has it whole."""
    run = stored_run(run_id, directory) if run_id in facts else None
    if run is None:
        return
    try:
        facts[run_id] |= read(run)
    except DamagedRun:  # a verdict without this run would look like any other
        raise
    except ValueError as error:  # its checkpoint or its diagnostics were deleted to save space
        warnings.warn(str(error), stacklevel=3)


def growth_facts(run: StoredRun) -> dict[str, float]:
    """How the outputs of the blocks grow with depth, from the checkpoint, in train and in eval mode."""
    config = run.config
    data = load_task(config.task, config.scale, config.seed)
    inputs, lengths, _ = data.train.batch(slice(0, ROWS))
    model = build_model(config, data)
    model.load_state_dict(run.checkpoint)
    outputs: list[torch.Tensor] = []  # of the blocks, that is, their residual sites; `record` would unfuse them
    for _, block in blocks_of(model):
        block.register_forward_hook(lambda _block, _given, output: outputs.append(output))
    facts = {}
    for mode in ("eval", "train"):  # in this order: train mode moves the running averages
        outputs.clear()
        with torch.no_grad():
            model.train(mode == "train")(inputs, lengths)
        norms = [output.double().norm(dim=-1).flatten().cpu().numpy() for output in outputs]
        tokens = pd.DataFrame({"depth": np.repeat(np.arange(len(norms)) + 1, [len(l2) for l2 in norms])})
        found = growth(norm_quantiles(tokens.assign(l2=np.concatenate(norms)))["median"])
        facts[f"growth_{mode}"], facts[f"law_{mode}"] = found["decades_per_8"], found["margin"]
    return facts


def sigma_facts(run: StoredRun, failing: StoredRun | None) -> dict[str, float]:
    """How far the variance of out_proj's singular values rises in the second half of the failing run's life, in this
    run. Empty if that run did not fail: there is then no failure to look back from."""
    if failing is None or failing.facts["status"] != "diverged":
        return {}
    end = log_variance(failing)[0][-1]
    steps, variance = log_variance(run)
    rise = np.array([np.interp(end, steps, block) - np.interp(end / 2, steps, block) for block in variance.T])
    depth = np.linspace(0, 1, len(rise))
    trend = np.polyfit(depth, rise, 1)[0] if len(rise) > 1 else 0.0
    return dict(sigma_rise=float(rise.mean()), sigma_trend=float(trend))


def log_variance(run: StoredRun) -> tuple[np.ndarray, np.ndarray]:
    """The steps that a run kept with finite weights (T,), and log₁₀ of the variance within each block (T, blocks)."""
    steps, sigma = sigma_history(run.diagnostics)
    finite = np.isfinite(sigma).all(axis=(1, 2))
    return steps[finite], np.log10(sigma[finite].var(axis=2))


def weight_facts(run: StoredRun) -> dict[str, float]:
    """How uneven the blocks' weight norms are at the last snapshot."""
    blocks = np.linalg.norm(run.diagnostics["part_norms"][-1], axis=1)  # (layers,)
    return dict(unevenness=float(np.log10(blocks.max() / blocks.min())))
