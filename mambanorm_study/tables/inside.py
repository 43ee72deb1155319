"""Inside a block and inside trained models: the gate, a scan by hand, both modes, growth over
depth, how runs end."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.arms import Arm
from mambanorm.block import MambaBlock
from mambanorm.inside import blocks_of, record_sites, spectra
from mambanorm.operations import selective_scan
from mambanorm_study.basics.settings import STUDY_SCALE
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.build import build_model
from mambanorm_study.runs.recorded_results import recorded, recorded_inside, recorded_path
from mambanorm_study.runs.result import RunResult, StoredRun
from mambanorm_study.runs.run import train
from mambanorm_study.runs.store import find_run
from mambanorm_study.runs.weight_log import marchenko_pastur, sigma_history
from mambanorm_study.tables.experiments import failing_runs, failure_runs, growth_runs
from mambanorm_study.tables.growth import growth_table, norms_by_depth
from mambanorm_study.tables.intervals import clopper_pearson
from mambanorm_study.tables.robustness import stored_model
from mambanorm_study.tables.run_tables import label, percent
from mambanorm_study.tasks import load_task

# --------------------------------------------------------------------------------------------------
# the gate: in Eq. 1–2 of the paper a norm before the SSM feeds both branches of the block, the
# scan's and the gate's; a norm after the SSM stands on the scan's branch alone

GATE_SITES = ["n2", "z", "branch"]
SIZE = (8, 64, 32)


def sizes_inside(
    arms: Iterable[str], factors: Sequence[float] = (1, 10, 100), seed: int = 0
) -> pd.DataFrame:
    """Root mean squares inside one untrained block whose input, (8, 64, 32) normal numbers, is
    multiplied by a factor.

    One row an arm and factor (the index), one column a site: `n2`, the output of the norm after the
    SSM; `z`, the gate's input, before SiLU; `branch`, what the block adds to the residual stream.
    ValueError for an unknown arm.
    """
    rows = {}
    for arm, factor in product(map(Arm.parse, arms), factors):
        torch.manual_seed(seed)  # every arm gets the same weights and the same input
        block, x = MambaBlock(SIZE[-1], *arm), torch.randn(SIZE)
        with torch.no_grad(), record_sites(block, GATE_SITES) as seen:
            block(factor * x)
        rows[str(arm), factor] = [
            next(row["rms"] for row in seen.rows() if row["site"] == site) for site in GATE_SITES
        ]
    return pd.DataFrame(
        list(rows.values()), pd.MultiIndex.from_tuples(rows, names=["arm", "factor"]), GATE_SITES
    )


# --------------------------------------------------------------------------------------------------
# a scan by hand

LENGTH, STATES = 32, 4
INPUTS: dict[str, list[float]] = {
    "one impulse": [0.0] * 4 + [1.0] + [0.0] * 27,
    "two impulses": [0.0] * 4 + [1.0] + [0.0] * 11 + [-1.0] + [0.0] * 15,
    "a step": [0.0] * 8 + [1.0] * 16 + [0.0] * 8,
    "a wave": [math.sin(2 * math.pi * t / 16) for t in range(LENGTH)],
    "a word, then noise": [1.0] * 2 + [0.25 * (-1) ** (t * t // 3) for t in range(30)],
}
"""Name → the numbers of a ready-made input."""


class HandScan(NamedTuple):
    """u and delta (L,), states (N, L), y (L,): the mean of the states. half_life (N,): steps until
    a state has decayed to half at the largest Δ, log 2 / (Δ·n·a)."""

    u: Tensor
    delta: Tensor
    states: Tensor
    y: Tensor
    half_life: Tensor


def scan_by_hand(
    u: list[float], delta: float, a: float, *, selective: bool = False, n: int = STATES
) -> HandScan:
    """Equation 2 of Gu & Dao 2023 for one channel, B = C = 1: h_t = exp(−Δ_t·n·a)·h_(t−1) +
    Δ_t·u_t. State n decays at the rate n·a, as the states of a new Mamba block do (S4D-real).

    `selective`: Δ_t = Δ·|u_t| / max|u| instead of Δ everywhere, so that the state holds still where
    nothing comes in. It stands for the linear layer by which a Mamba block makes Δ from its input.
    """
    x = torch.tensor(u, dtype=torch.float64)
    size = x.abs() / x.abs().max().clamp(min=1e-12)
    steps = delta * (size if selective else torch.ones_like(x))  # (L,)
    rates = a * torch.arange(1.0, n + 1, dtype=torch.float64)[:, None]  # (N, 1)
    one = torch.ones_like(rates)
    wide = (
        x.expand(1, n, -1),
        steps.expand(1, n, -1),
    )  # a channel a state, so that the scan's outputs are the states
    states = selective_scan(*wide, -rates, one, one, backend="reference")[0]  # (N, L)
    half_life = math.log(2) / (float(steps.max().clamp(min=1e-12)) * rates[:, 0])
    return HandScan(x, steps, states, states.mean(0), half_life)


# --------------------------------------------------------------------------------------------------
# both modes: what BN's running averages cost it in evaluation


def both_modes(configs: Iterable[RunConfig], runs_dir: str | Path | None = None) -> pd.DataFrame:
    """Accuracy on the validation split in either mode, one row for each of these runs that the
    store holds.

    rows: of the split, which is one batch in train mode; eval, train: fractions; points_lost: train
    − eval.
    """
    found = []
    for config in configs:
        if (run := find_run(config, runs_dir)) is None:
            continue
        model, val = stored_model(run), load_task(config.task, config.scale, config.seed).val
        inputs, lengths, labels = val.batch(slice(None))
        row = dict(task=config.task, arm=config.arm, seed=config.seed, rows=len(labels))
        for mode in ("eval", "train"):  # in this order: train mode moves the running averages
            with torch.no_grad():
                guess = model.train(mode == "train")(inputs, lengths).argmax(-1)
            row[mode] = (guess == labels).float().mean().item()
        found.append(row | dict(points_lost=100 * (row["train"] - row["eval"])))
    return pd.DataFrame(
        found, columns=["task", "arm", "seed", "rows", "eval", "train", "points_lost"]
    )


# --------------------------------------------------------------------------------------------------
# growth over depth

ROWS = 32
"""Rows of the training split on which norms over depth are taken."""


@torch.no_grad()
def turned_up(config: RunConfig, gain: float) -> nn.Module:
    """The untrained model of a config with every `in_proj` and `out_proj` weight multiplied by
    `gain`."""
    model = build_model(config, load_task(config.task, config.scale, config.seed))
    for _, block in blocks_of(model):
        block.in_proj.weight *= gain
        block.out_proj.weight *= gain
    return model


def residual_growth(frame: pd.DataFrame) -> pd.DataFrame:
    """`growth_table` of the residual stream alone, one row a model and mode, with arms as they are
    read."""
    table = growth_table(frame).query("site == 'residual'")
    return table.assign(arm=table.arm.map(label)).reset_index(drop=True)


def norms_of_stored(runs: Sequence[StoredRun], phase: str) -> pd.DataFrame:
    """`norms_by_depth` of stored runs of one task and seed, with a column task."""
    config = runs[0].config
    x, lengths, _ = load_task(config.task, config.scale, config.seed).train.batch(slice(0, ROWS))
    models = {run.config.arm: stored_model(run) for run in runs}
    return norms_by_depth(models, x, lengths, phase=phase).assign(task=config.task)


# --------------------------------------------------------------------------------------------------
# have they learned, and how did they end?


def scores(runs: Iterable[StoredRun]) -> pd.DataFrame:
    """One row a stored run: task, blocks, steps, arm, its test accuracy with the exact 95 %
    interval (low, high, n), chance, and beats_chance: all of the interval lies above chance, and
    the run did not diverge."""
    rows = []
    for run in runs:
        config, chance = run.config, run.facts["chance"]
        right = run.predictions["label"] == run.predictions["predicted"]
        low, high = clopper_pearson(int(right.sum()), len(right))
        facts = {
            "task": config.task,
            "blocks": config.n_layers,
            "steps": config.steps,
            "arm": label(config.arm),
        }
        facts |= {
            "test_accuracy": right.mean(),
            "low": low,
            "high": high,
            "n": len(right),
            "chance": chance,
        }
        rows.append(facts | {"beats_chance": run.facts["status"] == "ok" and low > chance})
    return pd.DataFrame(rows)


def called(scores: pd.DataFrame) -> str:
    """ "trained" if every one of these models beats chance, else "barely trained"."""
    return "trained" if scores.beats_chance.all() else "barely trained"


def came_of(runs: pd.DataFrame) -> pd.DataFrame:
    """One row a learning rate and arm of a run frame: how many ended non-finite, at which step, and
    how well the others learned."""
    rows = {}
    for (lr, arm), mine in runs.groupby(["lr", "arm"], sort=False):
        ended, rest = mine[mine.status == "diverged"], mine[mine.status == "ok"]
        low, high = (100 * bound for bound in clopper_pearson(len(ended), len(mine)))
        rate = rest.test_accuracy
        rows[lr, label(arm)] = {
            "ended non-finite": f"{len(ended)} of {len(mine)} [{low:.0f}, {high:.0f} %]",
            "at step (median)": f"{ended.first_nonfinite_step.median():.0f}" if len(ended) else "–",
            "accuracy of the others": f"{percent(rate.mean())} (lowest {percent(rate.min())})"
            if len(rest)
            else "–",
            "chance": percent(mine.chance.mean()),
        }
    return pd.DataFrame(rows).T.rename_axis(["lr", "arm"])


# --------------------------------------------------------------------------------------------------
# Figure 10


class _Enough(Exception):
    """Ends a training from within."""


def watched(
    config: RunConfig, until: int | None = None
) -> tuple[RunResult | None, dict[str, np.ndarray]]:
    """Trains a run, stores nothing, and keeps out_proj's singular values at every step, 0 before
    the first: the run, None if it was ended after step `until`, and step (T,) and singular_values
    (T, layers, k)."""
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
    return spectra([block.out_proj.weight for _, block in blocks_of(model)])


def phases_of(arrays: Mapping, end: int, last: str) -> tuple[dict[str, int], dict[str, np.ndarray]]:
    """Three kept steps of a run that ended at step `end`: phase → step, and phase → singular values
    (layers, k). The phases are early (step 0), normal (half way) and `last` (the last kept
    step)."""
    steps, values = sigma_history(arrays)
    at = {"early": 0, "normal": np.abs(steps - end / 2).argmin(), last: -1}
    return {phase: int(steps[t]) for phase, t in at.items()}, {
        phase: values[t] for phase, t in at.items()
    }


def edges(config: RunConfig) -> tuple[float, float]:
    """The Marchenko–Pastur edges of an `out_proj` of this model as it is initialised:
    U(±1/√columns) / √n_layers."""
    rows, columns = config.d_model, config.d_model * config.expand
    return marchenko_pastur((rows, columns), 1 / np.sqrt(3 * columns * config.n_layers))


# --------------------------------------------------------------------------------------------------
# the recorded runs of §4.6


def recorded_runs_inside(norm: str = "BN") -> tuple[pd.DataFrame, dict[str, dict[str, np.ndarray]]]:
    """Return the recorded trained runs of §4.6 (`failure_runs`, `growth_runs`, `failing_runs`), and
    what they kept of their inside, by run id; both empty if nothing is recorded."""
    if not (path := recorded_path(STUDY_SCALE)).is_file():
        return pd.DataFrame(columns=["run_id", "arm", "seed", "status", "n_layers", "lr"]), {}
    frame = recorded(STUDY_SCALE)
    seeds = sorted({int(seed) for seed in frame.seed})
    lists = (
        failure_runs(STUDY_SCALE, seeds),
        growth_runs(STUDY_SCALE, norm, seeds),
        failing_runs(STUDY_SCALE, seeds),
    )
    asked = {config.run_id for configs in lists for config in configs}
    return frame[frame.run_id.isin(asked)].reset_index(drop=True), recorded_inside(path)
