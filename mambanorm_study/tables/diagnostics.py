"""Tables on the inside of models: the gate, both modes, growth over depth, endings, Figure 10."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import nn

from mambanorm.arms import Arm
from mambanorm.block import MambaBlock
from mambanorm.inside import blocks_of, record_sites
from mambanorm_study.basics.settings import STUDY_SCALE
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.build import build_model
from mambanorm_study.runs.recorded_results import recorded, recorded_inside, recorded_path
from mambanorm_study.runs.result import RunResult, StoredRun
from mambanorm_study.runs.run import train
from mambanorm_study.runs.store import find_run
from mambanorm_study.runs.weight_log import marchenko_pastur, sigma_history, spectra
from mambanorm_study.tables.experiments import failing_runs, failure_runs, growth_runs
from mambanorm_study.tables.growth import growth_table, norms_by_depth
from mambanorm_study.tables.intervals import clopper_pearson
from mambanorm_study.tables.robustness import stored_model
from mambanorm_study.tables.run_tables import label, percent
from mambanorm_study.tasks import load_task

# --------------------------------------------------------------------------------------------------
# The gate. In Eq. 1–2 of the paper a norm before the SSM feeds both branches of the block, the
# scan's and the gate's; a norm after the SSM stands on the scan's branch alone.

GATE_SITES = ["n2", "z", "branch"]
SIZE = (8, 64, 32)


def sizes_inside(
    arms: Iterable[str], factors: Sequence[float] = (1, 10, 100), seed: int = 0
) -> pd.DataFrame:
    """Return root mean squares inside one untrained block whose input, (8, 64, 32) normal numbers,
    is multiplied by a factor.

    One row an arm and factor (the index), one column a site: `n2`, the output of the norm after the
    SSM; `z`, the gate's input, before SiLU; `branch`, what the block adds to the residual stream.
    ValueError for an unknown arm.
    """
    rows = []
    for arm in map(Arm.parse, arms):
        for factor in factors:
            torch.manual_seed(seed)  # every arm gets the same weights and the same input
            block, x = MambaBlock(SIZE[-1], *arm), torch.randn(SIZE)
            with torch.no_grad(), record_sites(block, GATE_SITES) as sites:
                block(factor * x)
            sizes = {row["site"]: row["rms"] for row in sites.rows()}
            rows.append({"arm": str(arm), "factor": factor, **sizes})
    return pd.DataFrame(rows).set_index(["arm", "factor"])[GATE_SITES]


# --------------------------------------------------------------------------------------------------
# both modes: what BN's running averages cost in evaluation


def both_modes(configs: Iterable[RunConfig], runs_dir: str | Path | None = None) -> pd.DataFrame:
    """Return the accuracy on the validation split in train and in eval mode, one row for each of
    these runs that is stored.

    rows: of the split, which is one batch in train mode; eval, train: fractions; points_lost: train
    − eval.
    """
    rows = []
    for config in configs:
        run = find_run(config, runs_dir)
        if run is None:
            continue
        model, val = stored_model(run), load_task(config.task, config.scale, config.seed).val
        eval_accuracy = _accuracy(model.eval(), val)
        train_accuracy = _accuracy(model.train(), val)  # last, because it moves running averages
        lost = 100 * (train_accuracy - eval_accuracy)
        facts = (config.task, config.arm, config.seed, len(val))
        rows.append((*facts, eval_accuracy, train_accuracy, lost))
    columns = ["task", "arm", "seed", "rows", "eval", "train", "points_lost"]
    return pd.DataFrame(rows, columns=columns)


@torch.no_grad()
def _accuracy(model: nn.Module, split) -> float:
    inputs, lengths, labels = split.batch(slice(None))
    return (model(inputs, lengths).argmax(-1) == labels).float().mean().item()


# --------------------------------------------------------------------------------------------------
# growth over depth

# Rows of the training split on which norms over depth are measured.
ROWS = 32


@torch.no_grad()
def amplified_model(config: RunConfig, gain: float) -> nn.Module:
    """Return the untrained model of a config with every `in_proj` and `out_proj` weight multiplied
    by `gain`.
    """
    model = build_model(config, load_task(config.task, config.scale, config.seed))
    for _, block in blocks_of(model):
        block.in_proj.weight *= gain
        block.out_proj.weight *= gain
    return model


def residual_growth(frame: pd.DataFrame) -> pd.DataFrame:
    """Return `growth_table` of the residual stream alone, with arms as labels."""
    table = growth_table(frame).query("site == 'residual'")
    return table.assign(arm=table.arm.map(label)).reset_index(drop=True)


def norms_of_stored(runs: Sequence[StoredRun], phase: str) -> pd.DataFrame:
    """Return `norms_by_depth` of stored runs of one task and seed, with a column task."""
    config = runs[0].config
    x, lengths, _ = load_task(config.task, config.scale, config.seed).train.batch(slice(0, ROWS))
    models = {run.config.arm: stored_model(run) for run in runs}
    return norms_by_depth(models, x, lengths, phase=phase).assign(task=config.task)


# --------------------------------------------------------------------------------------------------
# accuracies and endings of stored runs


def stored_accuracies(runs: Iterable[StoredRun]) -> pd.DataFrame:
    """Return one row a stored run: task, blocks, steps, arm, test_accuracy with its exact 95 %
    interval (low, high, n), chance, and beats_chance.

    beats_chance: the run did not diverge, and the whole interval lies above chance.
    """
    rows = []
    for run in runs:
        correct = run.predictions["label"] == run.predictions["predicted"]
        low, high = clopper_pearson(int(correct.sum()), len(correct))
        chance = run.facts["chance"]
        rows.append(
            {
                "task": run.config.task,
                "blocks": run.config.n_layers,
                "steps": run.config.steps,
                "arm": label(run.config.arm),
                "test_accuracy": correct.mean(),
                "low": low,
                "high": high,
                "n": len(correct),
                "chance": chance,
                "beats_chance": run.facts["status"] == "ok" and low > chance,
            }
        )
    return pd.DataFrame(rows)


def training_word(accuracies: pd.DataFrame) -> str:
    """Return "trained" if every run of `stored_accuracies` beats chance, else "barely trained"."""
    return "trained" if accuracies.beats_chance.all() else "barely trained"


def run_endings(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row a learning rate and arm of a run frame: how many runs ended non-finite, at
    which step, and the accuracy of the others.
    """
    rows = []
    for (lr, arm), group in runs.groupby(["lr", "arm"], sort=False):
        diverged = group[group.status == "diverged"]
        accuracy = group.test_accuracy[group.status == "ok"]
        low, high = clopper_pearson(len(diverged), len(group))
        share = f"{len(diverged)} of {len(group)} [{100 * low:.0f}, {100 * high:.0f} %]"
        step = others = "–"
        if len(diverged):
            step = f"{diverged.first_nonfinite_step.median():.0f}"
        if len(accuracy):
            others = f"{percent(accuracy.mean())} (lowest {percent(accuracy.min())})"
        rows.append((lr, label(arm), share, step, others, percent(group.chance.mean())))
    columns = [
        "lr", "arm", "ended non-finite", "at step (median)", "accuracy of the others", "chance",
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=columns).set_index(["lr", "arm"])


# --------------------------------------------------------------------------------------------------
# Figure 10


class _StopTraining(Exception):
    """Ends a training from a callback."""


def train_watched(
    config: RunConfig, until: int | None = None
) -> tuple[RunResult | None, dict[str, np.ndarray]]:
    """Train a run without storing it, and return it with out_proj's singular values at every step.

    The run is None if it was ended after step `until`. The arrays are step (T,), from 0 = before
    the first, and singular_values (T, layers, k).
    """
    model = build_model(config, load_task(config.task, config.scale, config.seed))
    values_of_step = {0: _singular_values(model)}

    def record(step: int, model: nn.Module, loss: float) -> None:
        values_of_step[step] = _singular_values(model)
        if step == until:
            raise _StopTraining

    run = None
    with suppress(_StopTraining):
        run = train(config, on_step=record)
    steps, values = list(values_of_step), list(values_of_step.values())
    return run, {"step": np.array(steps), "singular_values": np.stack(values)}


def _singular_values(model: nn.Module) -> np.ndarray:
    return spectra([block.out_proj.weight for _, block in blocks_of(model)])


def singular_value_phases(
    arrays: Mapping, end: int, last: str
) -> tuple[dict[str, int], dict[str, np.ndarray]]:
    """Return phase → step and phase → singular values (layers, k) of a run that ended at step
    `end`.

    The phases are early (step 0), normal (half way) and `last` (the last recorded step).
    """
    steps, values = sigma_history(arrays)
    index = {"early": 0, "normal": np.abs(steps - end / 2).argmin(), last: -1}
    step_of_phase = {phase: int(steps[t]) for phase, t in index.items()}
    return step_of_phase, {phase: values[t] for phase, t in index.items()}


def out_proj_edges(config: RunConfig) -> tuple[float, float]:
    """Return the Marchenko–Pastur edges of an `out_proj` as it is initialised: U(±1/√columns) /
    √n_layers.
    """
    rows, columns = config.d_model, config.d_model * config.expand
    return marchenko_pastur((rows, columns), 1 / np.sqrt(3 * columns * config.n_layers))


# --------------------------------------------------------------------------------------------------
# the recorded runs of §4.6


class RecordedInside(NamedTuple):
    """The recorded runs of §4.6, and run_id → the arrays of their inside."""

    frame: pd.DataFrame
    arrays: dict[str, dict[str, np.ndarray]]


def recorded_runs_inside(norm: str = "BN") -> RecordedInside:
    """Return the recorded runs of `failure_runs`, `growth_runs` and `failing_runs`; both parts are
    empty if nothing is recorded.
    """
    path = recorded_path(STUDY_SCALE)
    if not path.is_file():
        columns = ["run_id", "arm", "seed", "status", "n_layers", "lr"]
        return RecordedInside(pd.DataFrame(columns=columns), {})
    frame = recorded(STUDY_SCALE)
    seeds = sorted({int(seed) for seed in frame.seed})
    configs = [
        *failure_runs(STUDY_SCALE, seeds),
        *growth_runs(STUDY_SCALE, norm, seeds),
        *failing_runs(STUDY_SCALE, seeds),
    ]
    run_ids = {config.run_id for config in configs}
    inside_runs = frame[frame.run_id.isin(run_ids)].reset_index(drop=True)
    return RecordedInside(inside_runs, recorded_inside(path))
