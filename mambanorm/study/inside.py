"""The models of notebook 07 from inside: weights turned up, trained weights, growth over depth, how runs ended.

turned_up, stored_model     a model with larger weights; a model with a stored run's weights
residual_growth, as_shown   what the residual stream does over the blocks, as numbers and as a table to read
scores, called              whether each model beats chance, and what they are called
norms_of_stored             Figure 9's data of stored runs
came_of                     how runs ended
watched                     a run trained once more, its singular values at every step
phases_of, edges            Figure 10's three steps of a run, and where a random matrix's singular values lie
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import numpy as np
import pandas as pd
import torch
from torch import nn

from mambanorm import diagnostics
from mambanorm.arms import Arm
from mambanorm.config import RunConfig
from mambanorm.models.build import build_model
from mambanorm.study.intervals import clopper_pearson
from mambanorm.study.tables import percent
from mambanorm.tasks import load_task
from mambanorm.training.result import RunResult, StoredRun
from mambanorm.training.run import train

ROWS = 32
"""Rows of the training split on which norms over depth are taken."""


def label(arm: str | Arm) -> str:
    return Arm.parse(arm).label


@torch.no_grad()
def turned_up(config: RunConfig, gain: float) -> nn.Module:
    """The untrained model of a config with every `in_proj` and `out_proj` weight multiplied by `gain`."""
    model = build_model(config, load_task(config.task, config.scale, config.seed))
    for _, block in diagnostics.blocks_of(model):
        block.in_proj.weight *= gain
        block.out_proj.weight *= gain
    return model


def stored_model(run: StoredRun) -> nn.Module:
    """The model of a stored run with the weights of its best validation step."""
    config = run.config
    model = build_model(config, load_task(config.task, config.scale, config.seed))
    model.load_state_dict(run.checkpoint)
    return model


# ---------------------------------------------------------------------------------------------------------------------
# growth over depth


def residual_growth(frame: pd.DataFrame) -> pd.DataFrame:
    """`growth_table` of the residual stream alone, one row a model and mode, with arms as they are read."""
    table = diagnostics.growth_table(frame).query("site == 'residual'")
    return table.assign(arm=table.arm.map(label)).reset_index(drop=True)


def first_to_last(table: pd.DataFrame, token: str) -> list[str]:
    """`0.72 → 1.03`: log₁₀ of the norm of the median or the largest token, in the first and in the last block."""
    return [f"{a:.2f} → {b:.2f}" for a, b in zip(table[f"{token}_first"], table[f"{token}_last"], strict=True)]


def as_shown(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of `residual_growth` in train mode, rounded, the norms as text from the first to the last block."""
    table = table[table["mode"] == "train"].reset_index(drop=True)
    ends = {token: first_to_last(table, token) for token in ("median", "largest")}
    named = table[["task", "phase", "n_layers", "arm", "law", "decades_per_8"]].round(3)
    return named.assign(r2=table.r2.round(3).astype(object).fillna("–"), **ends, nonfinite=table.nonfinite.round(3))


def norms_of_stored(runs: Sequence[StoredRun], phase: str) -> pd.DataFrame:
    """`norms_by_depth` of stored runs of one task and seed, with a column task."""
    config = runs[0].config
    x, lengths, _ = load_task(config.task, config.scale, config.seed).train.batch(slice(0, ROWS))
    models = {run.config.arm: stored_model(run) for run in runs}
    return diagnostics.norms_by_depth(models, x, lengths, phase=phase).assign(task=config.task)


# ---------------------------------------------------------------------------------------------------------------------
# have they learned, and how did they end?


def scores(runs: Iterable[StoredRun]) -> pd.DataFrame:
    """One row a stored run: task, blocks, steps, arm, its test accuracy with the exact 95 % interval (low, high, n),
    chance, and beats_chance: all of the interval lies above chance, and the run did not diverge."""
    return pd.DataFrame([_score(run) for run in runs])


def _score(run: StoredRun) -> dict:
    right = run.predictions["label"] == run.predictions["predicted"]
    low, high = clopper_pearson(int(right.sum()), len(right))
    config, chance = run.config, run.facts["chance"]
    facts = {"task": config.task, "blocks": config.n_layers, "steps": config.steps, "arm": label(config.arm)}
    facts |= {"test_accuracy": right.mean(), "low": low, "high": high, "n": len(right), "chance": chance}
    return facts | {"beats_chance": run.facts["status"] == "ok" and low > chance}


def called(scores: pd.DataFrame) -> str:
    """ "trained" if every one of these models beats chance, else "barely trained"."""
    return "trained" if scores.beats_chance.all() else "barely trained"


def came_of(runs: pd.DataFrame) -> pd.DataFrame:
    """One row a learning rate and arm of a run frame: how many ended non-finite, at which step, and how well the others
    learned."""
    found = {(lr, label(arm)): _ends(mine) for (lr, arm), mine in runs.groupby(["lr", "arm"], sort=False)}
    return pd.DataFrame(found).T.rename_axis(["lr", "arm"])


def _ends(runs: pd.DataFrame) -> dict[str, str]:
    ended, rest = runs[runs.status == "diverged"], runs[runs.status == "ok"]
    low, high = (100 * bound for bound in clopper_pearson(len(ended), len(runs)))
    learned = f"{percent(rest.test_accuracy.mean())} (lowest {percent(rest.test_accuracy.min())})" if len(rest) else "–"
    return {
        "ended non-finite": f"{len(ended)} of {len(runs)} [{low:.0f}, {high:.0f} %]",
        "at step (median)": f"{ended.first_nonfinite_step.median():.0f}" if len(ended) else "–",
        "accuracy of the others": learned,
        "chance": percent(runs.chance.mean()),
    }


# ---------------------------------------------------------------------------------------------------------------------
# Figure 10


class _Enough(Exception):
    """Ends a training from within."""


def watched(config: RunConfig, until: int | None = None) -> tuple[RunResult | None, dict[str, np.ndarray]]:
    """Trains a run, stores nothing, and keeps out_proj's singular values at every step, step 0 before the first:
    the run, None if it was ended after step `until`, and step (T,) and singular_values (T, layers, k)."""
    kept = {0: _spectra(build_model(config, load_task(config.task, config.scale, config.seed)))}

    def look(step: int, model: nn.Module, loss: float) -> None:
        kept[step] = _spectra(model)
        if step == until:
            raise _Enough

    run = None
    with suppress(_Enough):
        run = train(config, on_step=look)
    return run, dict(step=np.array(list(kept)), singular_values=np.stack(list(kept.values())))


def _spectra(model: nn.Module) -> np.ndarray:
    return diagnostics.spectra([block.out_proj.weight for _, block in diagnostics.blocks_of(model)])


def phases_of(arrays: Mapping, end: int, last: str) -> tuple[dict[str, int], dict[str, np.ndarray]]:
    """Three kept steps of a run that ended at step `end`: phase → step, and phase → singular values (layers, k). The
    phases are early (step 0), normal (half way) and `last` (the last kept step)."""
    steps, values = diagnostics.sigma_history(arrays)
    at = {"early": 0, "normal": np.abs(steps - end / 2).argmin(), last: -1}
    return {phase: int(steps[t]) for phase, t in at.items()}, {phase: values[t] for phase, t in at.items()}


def edges(config: RunConfig) -> tuple[float, float]:
    """The Marchenko–Pastur edges of an `out_proj` of this model as it is initialised: U(±1/√columns) / √n_layers."""
    rows, columns = config.d_model, config.d_model * config.expand
    return diagnostics.marchenko_pastur((rows, columns), 1 / np.sqrt(3 * columns * config.n_layers))


def settings(config: RunConfig) -> str:
    return f"{config.n_layers} blocks, lr {config.lr:g}, seed {config.seed}"


def caption(config: RunConfig, phases: Mapping[str, int]) -> str:
    """What stands under Figure 10: scale, task, arm, settings and the steps of its phases."""
    when = ", ".join(f"{phase}: step {step}" for phase, step in phases.items())
    return f"{config.scale} scale · {config.task} · {label(config.arm)}, {settings(config)} · {when}"


def evenness(weights: Mapping[str, Mapping]) -> pd.DataFrame:
    """The largest block's weight norm over the smallest's, part by part, first and last kept step of each arm: 1 = all
    blocks alike. `weights`: arm → what its run kept (`part_norms`, (steps, layers, parts))."""
    found = {
        (label(arm), when): arrays["part_norms"][t].max(0) / arrays["part_norms"][t].min(0)
        for arm, arrays in weights.items()
        for t, when in ((0, "first"), (-1, "last"))
    }
    return pd.DataFrame(found, index=list(diagnostics.BLOCK_PARTS)).T
