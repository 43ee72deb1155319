"""A few numbers on the inside of a stored run, as columns of the run frame. The claims on growth
(H10), singular values (H11), weight norms (H12), failures (H16) and the scan's headroom (E1) use
them.

They are read from the arrays that every run stores (runs/weight_log.py), and from its tested
weights. A column is NaN for a run that its claim does not look at.

    growth, law         of the largest token's ‖y‖₂ over the blocks in the last finite training step
                        of `growth_runs`: decades in 8 blocks; AIC of the best other law minus that
                        of the exponential
    sigma_rise          log₁₀ of the variance over the blocks of out_proj's singular value of each
                        rank, mean over ranks
    sigma_trend         log₁₀ of each block's root-mean-square singular value: the slope of its
                        growth over relative depth 0…1. Both of `failing_runs`: their growth from
                        half way to the last finite step of the no-norm run of the same seed
    unevenness          log₁₀ of the largest over the smallest block of `deep_runs`, each the L2
                        norm of all its weights relative to its norm before training
    sharpening          by how many nats the entropy of the class probabilities falls, mean over
                        those of the first ROWS validation rows that have finite outputs
    fragility           log₁₀ of the change of such a row's loss when the two deepest blocks are
                        disturbed: its growth minus that of the two first blocks. Both from half way
                        to the last finite loss of the no-norm run of the same seed. The store keeps
                        the weights of the best step only, so `again` trains the run up to there
    headroom            of `deep_runs`: decades between the largest |y| of the scan and float16's
                        largest number, over the blocks and the first ROWS test rows; 0 where the
                        run ended non-finite
    late_gain           of language models: by how many bits a character the last tenth of the steps
                        lowered the best validation loss
    noise, rotation     accuracy on corrupted test rows, mean over the severities of robustness.py
                        (A3)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mambanorm.arms import Arm
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.presets import LANGUAGE_TASKS, VISION_TASKS
from mambanorm_study.runs.result import StoredRun
from mambanorm_study.runs.store import find_run
from mambanorm_study.tables.experiments import CORRUPTED_ARMS, deep_runs, failing_runs, growth_runs

if TYPE_CHECKING:
    from torch import Tensor, nn

NONE, BOTH = str(Arm("None", "None")), str(Arm("RMSN", "RMSN"))
CORRUPTED = ("noise", "rotation")
NEAR_FAILURE = ("sharpening", "fragility")
COLUMNS = (
    "growth", "law", "sigma_rise", "sigma_trend", "unevenness", "headroom", "late_gain",
    *CORRUPTED, *NEAR_FAILURE,
)  # fmt: skip

# The number of rows that are looked at: of the test for the headroom, of validation near a failure.
ROWS = 256
# The relative size of a disturbance of weights, the number of draws, and the smallest change of a
# loss that is reported; the largest is its inverse.
DISTURBANCE, DRAWS, LEAST = 0.05, 8, 1e-6

Reader = Callable[[StoredRun], dict[str, float]]


def with_summaries(
    frame: pd.DataFrame, runs_dir: str | Path | None = None, *, again: bool = False
) -> pd.DataFrame:
    """Return the run frame with the columns of this module, read from the store.

    CORRUPTED and NEAR_FAILURE take seconds a run and are filled only if `again` allows models to be
    evaluated or trained once more. A damaged run has NaN there, and a warning names it.
    """
    if frame.empty:
        return frame.assign(**dict.fromkeys(COLUMNS, np.nan))
    facts: dict[str, dict[str, float]] = {run_id: {} for run_id in frame.run_id}
    for run_id, read in _readers(frame[frame.role == "test"], runs_dir, again):
        run = find_run(run_id, runs_dir) if run_id in facts else None
        if run is not None:
            facts[run_id].update(read(run))
    added = pd.DataFrame(list(facts.values()), index=list(facts), columns=COLUMNS, dtype=float)
    return frame.drop(columns=[name for name in COLUMNS if name in frame]).join(added, on="run_id")


def _readers(
    tests: pd.DataFrame, runs_dir: str | Path | None, again: bool
) -> Iterator[tuple[str, Reader]]:
    """Yield the id of every run that a claim looks at, with the function that reads it."""
    for scale, runs in tests.groupby("scale"):
        seeds = sorted({int(seed) for seed in runs.seed})
        for config in growth_runs(str(scale), seeds=seeds):
            yield config.run_id, growth_facts
        for config in failing_runs(str(scale), seeds):
            yield config.run_id, partial(_beside_failing, sigma_facts, runs_dir)
            if again and config.arm in (NONE, BOTH):
                yield config.run_id, partial(_beside_failing, failing_facts, runs_dir)
        for config in deep_runs(str(scale), seeds):
            yield config.run_id, weight_facts
            yield config.run_id, headroom_facts
    finished = tests[tests.status == "ok"]
    if again:
        images = finished[finished.arm.isin(CORRUPTED_ARMS) & finished.task.isin(VISION_TASKS)]
        for run_id in images.run_id:
            yield run_id, corrupted_facts
    for run_id in finished.run_id[finished.task.isin(LANGUAGE_TASKS)]:
        yield run_id, text_facts


def _beside_failing(read: Callable, runs_dir: str | Path | None, run: StoredRun) -> dict:
    """Read a run beside the no-norm run with its settings and seed."""
    return read(run, find_run(run.config.but(arm=NONE), runs_dir))


def growth_facts(run: StoredRun) -> dict[str, float]:
    """Return the growth of the blocks' outputs with depth in the run's last finite step; {} if its
    first step failed.
    """
    arrays = run.diagnostics
    if "ring_step" not in arrays:
        return {}
    from mambanorm_study.tables.growth import growth

    outputs = arrays["ring_outputs"][-1]  # (layers,)
    law = growth(pd.Series(outputs, index=np.arange(len(outputs)) + 1))
    return {"growth": law["decades_per_8"], "law": law["margin"]}


def sigma_facts(run: StoredRun, failing: StoredRun | None) -> dict[str, float]:
    """Return the change of out_proj's singular values of this run in the second half of the failing
    run's life; {} if that run did not fail, or had no finite step.
    """
    if failing is None or failing.facts["status"] != "diverged":
        return {}
    end = finite_sigma(failing)[0][-1]
    if end == 0:
        return {}
    steps, sigma = finite_sigma(run)
    variance = np.log10(sigma.var(axis=1).mean(axis=1))  # (T,): over the blocks, mean over ranks
    sizes = np.log10(np.sqrt((sigma**2).mean(axis=2)))  # (T, layers)

    def change(values: np.ndarray) -> float:
        return float(np.interp(end, steps, values) - np.interp(end / 2, steps, values))

    growth = [change(sizes_of_block) for sizes_of_block in sizes.T]
    trend, _ = np.polyfit(np.linspace(0, 1, len(growth)), growth, 1)
    return {"sigma_rise": change(variance), "sigma_trend": float(trend)}


class _StopTraining(Exception):
    """Ends a training from a callback."""


def failing_facts(run: StoredRun, failing: StoredRun | None) -> dict[str, float]:
    """Return how the run's outputs sharpen and its deep blocks gain weight in the second half of
    the failing run's life, up to the weights of its last finite loss; {} as in `sigma_facts`.
    """
    if failing is None or failing.facts["status"] != "diverged" or failing.facts["steps"] < 3:
        return {}
    from mambanorm_study.runs.run import train

    end = failing.facts["steps"] - 1  # the next step's loss is the last finite one
    measured: dict[int, tuple[float, float]] = {}

    def measure(step: int, model: nn.Module, _: float) -> None:
        if step in (end // 2, end):
            measured[step] = near_failure(model, run.config)
        if step == end:
            raise _StopTraining

    with suppress(_StopTraining):
        train(run.config, on_step=measure, runs_dir=run.path.parent)
    if len(measured) < 2:  # it failed sooner than the other
        return {}
    entropy_before, fragility_before = measured[end // 2]
    entropy, fragility = measured[end]
    return {"sharpening": entropy_before - entropy, "fragility": fragility - fragility_before}


def near_failure(model: nn.Module, config: RunConfig) -> tuple[float, float]:
    """Return the entropy of the class probabilities in nats, over rows with finite outputs, and
    log₁₀ of the change of a row's loss with the two deepest blocks disturbed minus that with the
    two first.

    The change is a median, because single rows reach outputs of 10¹⁵. The noise is the same at
    every step.
    """
    import torch
    import torch.nn.functional as F

    from mambanorm_study.tasks import load_task

    data = load_task(config.task, config.scale, config.seed)
    inputs, lengths, labels = data.val.batch(slice(0, ROWS))

    def losses() -> Tensor:
        return F.cross_entropy(model(inputs, lengths).double(), labels, reduction="none")

    def log_change(blocks: nn.ModuleList) -> float:
        generator = torch.Generator().manual_seed(config.seed)
        undisturbed = losses()
        weights = [(p, p.clone()) for p in blocks.parameters()]
        changes = []
        for _ in range(DRAWS):
            for p, weight in weights:
                noise = torch.randn(weight.shape, generator=generator)
                p.copy_(weight * (1 + DISTURBANCE * noise))
            changes.append((losses() - undisturbed).abs().nan_to_num(nan=math.inf))
        for p, weight in weights:
            p.copy_(weight)
        return math.log10(np.clip(float(torch.cat(changes).median()), LEAST, 1 / LEAST))

    model.eval()
    with torch.no_grad():
        logits = model(inputs, lengths).double()
        probabilities = logits[logits.isfinite().all(-1)].softmax(-1)
        entropy = float(torch.special.entr(probabilities).sum(-1).mean())
        return entropy, log_change(model.blocks[-2:]) - log_change(model.blocks[:2])


def finite_sigma(run: StoredRun) -> tuple[np.ndarray, np.ndarray]:
    """Return the recorded steps of a run with finite weights (T,), and their singular values (T,
    layers, k).
    """
    from mambanorm_study.runs.weight_log import sigma_history

    steps, sigma = sigma_history(run.diagnostics)
    finite = np.isfinite(sigma).all(axis=(1, 2))
    return steps[finite], sigma[finite]


def text_facts(run: StoredRun) -> dict[str, float]:
    """Return what the last tenth of the steps was worth to a language model."""
    losses = run.curves.dropna(subset=["val_loss"])
    before = losses.val_loss[losses.step <= 0.9 * run.config.steps].min()
    return {"late_gain": float(before - losses.val_loss.min()) / math.log(2)}


def corrupted_facts(run: StoredRun) -> dict[str, float]:
    """Return the accuracy with noise and with rotation, each the mean over its severities; every
    arm sees the same rows.
    """
    from mambanorm_study.tables.robustness import robustness_table

    table = robustness_table([run.config], run.path.parent)
    return table[table.severity > 0].groupby("kind").accuracy.mean().to_dict()


def weight_facts(run: StoredRun) -> dict[str, float]:
    """Return how unevenly the blocks' weight norms grew, from initialisation to the last snapshot
    with finite weights.
    """
    blocks = np.linalg.norm(run.diagnostics["part_norms"], axis=2)  # (T, layers)
    growth = blocks[np.isfinite(blocks).all(axis=1)][-1] / blocks[0]
    return {"unevenness": float(np.log10(growth.max() / growth.min()))}


def headroom_facts(run: StoredRun) -> dict[str, float]:
    """Return the decades from the scan's largest output to float16's largest number, with the
    tested weights; 0 for a run that ended non-finite.
    """
    if run.facts["status"] == "diverged":
        return {"headroom": 0.0}
    import torch

    from mambanorm.inside import record_sites
    from mambanorm_study.tables.robustness import trained_model
    from mambanorm_study.tasks import load_task

    model = trained_model(run.config, run.path.parent)
    data = load_task(run.config.task, run.config.scale, run.config.seed)
    inputs, lengths, _ = data.test.batch(slice(0, ROWS))
    with torch.no_grad(), record_sites(model, "scan") as sites:
        model(inputs, lengths)
    largest = max(float(value.abs().amax()) for *_, value in sites.seen)
    largest = max(largest, torch.finfo(torch.float32).tiny)
    return {"headroom": math.log10(torch.finfo(torch.float16).max) - math.log10(largest)}


# A learning rate trains a model that reaches this share of its best accuracy above chance. A model
# has learned if it lies this many points above chance.
TRAINS, LEARNS = 0.8, 5.0


def highest_lr_that_trains(scores: np.ndarray, chance: float, lrs: Sequence[float]) -> float:
    """Return log₁₀ of the highest learning rate that trains, from one score for each (per cent,
    smallest learning rate first), interpolated between the last one that does and the next.

    The highest learning rate if that one trains; the lowest if the model learns at none.
    """
    logs = np.log10(lrs)
    if scores.max() <= chance + LEARNS:
        return float(logs[0])
    line = chance + TRAINS * (scores.max() - chance)
    last = np.flatnonzero(scores >= line)[-1]
    return float(np.interp(-line, -scores[last : last + 2], logs[last : last + 2]))
