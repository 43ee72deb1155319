"""A few numbers on the inside of a stored run, as columns of the run frame: the claims on growth
(H10), on singular values (H11), on weight norms (H12), on what precedes a failure (H16) and on the
scan's head-room (E1) rest on them.

The arrays that every run keeps are read (`look.WeightLog`), and its tested weights. A column is NaN
for a run that its claim does not look at.

    growth, law         of the largest token's ‖y‖₂ over the blocks in the last finite training step
                        of `growth_runs`: decades in 8 blocks; AIC of the best other law minus that
                        of the exponential
    sigma_rise          log₁₀ of the variance over the blocks of out_proj's singular value of each
                        rank, mean over ranks
    sigma_trend         log₁₀ of each block's root-mean-square singular value: the slope of its
                        growth over relative depth 0…1. Both of `failing_runs`, and both how much it
                        grows from half way to the last finite step of the no-norm run of the same
                        seed
    unevenness          log₁₀ of the largest over the smallest block of `deep_runs`, each the L2
                        norm of all its weights relative to what it was before training
    sharpening          by how many nats the entropy of the class probabilities falls, mean over
                        those of the first ROWS validation rows that have finite outputs
    fragility           log₁₀ of how much the loss of such a row changes when the two deepest blocks
                        are disturbed: its growth minus that of the two first blocks. Both from half
                        way to the last finite loss of the no-norm run of the same seed. Where
                        `again`, the run is trained once more up to there: the store keeps the
                        weights of the best step alone
    headroom            of `deep_runs`: decades between the largest |y| of the scan and float16's
                        largest number, over the blocks and the first ROWS test rows; 0 where the
                        run ended non-finite
    late_gain           of language models: by how many bits a character the last tenth of the steps
                        lowered the best validation loss
    noise, rotation     accuracy on corrupted test rows, mean over the severities of
                        study/robustness.py (A3)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mambanorm.arms import Arm
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.presets import LANGUAGE_TASKS, VISION_TASKS
from mambanorm_study.runs.result import StoredRun
from mambanorm_study.runs.store import find_run, stored_run
from mambanorm_study.tables.experiments import CORRUPTED_ARMS, deep_runs, failing_runs, growth_runs

if TYPE_CHECKING:
    from torch import nn

NONE, BOTH = str(Arm("None", "None")), str(Arm("RMSN", "RMSN"))
CORRUPTED = ("noise", "rotation")
NEAR_FAILURE = ("sharpening", "fragility")
COLUMNS = (
    "growth",
    "law",
    "sigma_rise",
    "sigma_trend",
    "unevenness",
    "headroom",
    "late_gain",
    *CORRUPTED,
)
COLUMNS += NEAR_FAILURE
ROWS = 256
"""Rows that are looked at: of the test where the scan's head-room is asked, of validation near a
failure."""
DISTURBANCE, DRAWS, LEAST = 0.05, 8, 1e-6
"""By how much weights are disturbed near a failure, how often, and the smallest change of a loss
that is told; the largest is its inverse."""
Reader = Callable[[StoredRun], dict[str, float]]


def with_summaries(
    frame: pd.DataFrame, runs_dir: str | Path | None = None, *, again: bool = False
) -> pd.DataFrame:
    """The run frame with the columns of this module, read from the store; CORRUPTED and
    NEAR_FAILURE, seconds a run, only where models may be asked or trained `again`. A damaged run
    has NaN there, and a warning names it."""
    if frame.empty:
        return frame.assign(**dict.fromkeys(COLUMNS, np.nan))
    facts = {run_id: {} for run_id in frame.run_id}
    for run_id, read in _readers(frame[frame.role == "test"], runs_dir, again):
        if run_id in facts and (run := stored_run(run_id, runs_dir)) is not None:
            facts[run_id] |= read(run)
    added = pd.DataFrame(list(facts.values()), index=list(facts), columns=COLUMNS, dtype=float)
    return frame.drop(columns=[name for name in COLUMNS if name in frame]).join(added, on="run_id")


def _readers(
    tests: pd.DataFrame, runs_dir: str | Path | None, again: bool
) -> Iterable[tuple[str, Reader]]:
    """The id of every run that a claim looks at, and what is read of it."""
    for scale, runs in tests.groupby("scale"):
        seeds = sorted({int(seed) for seed in runs.seed})
        for config in growth_runs(str(scale), seeds=seeds):
            yield config.run_id, growth_facts
        for config in failing_runs(str(scale), seeds):
            yield (
                config.run_id,
                lambda run: sigma_facts(run, find_run(run.config.but(arm=NONE), runs_dir)),
            )
            if again and config.arm in (NONE, BOTH):
                yield (
                    config.run_id,
                    lambda run: failing_facts(run, find_run(run.config.but(arm=NONE), runs_dir)),
                )
        for config in deep_runs(str(scale), seeds):
            yield config.run_id, weight_facts
            yield config.run_id, headroom_facts
    ended = tests[tests.status == "ok"]
    for run_id in ended.run_id[
        again & ended.arm.isin(CORRUPTED_ARMS) & ended.task.isin(VISION_TASKS)
    ]:
        yield run_id, corrupted_facts
    for run_id in ended.run_id[ended.task.isin(LANGUAGE_TASKS)]:
        yield run_id, text_facts


def growth_facts(run: StoredRun) -> dict[str, float]:
    """How the outputs of the blocks grow with depth in the run's last finite step. Empty if its
    first step failed."""
    arrays = run.diagnostics
    if "ring_step" not in arrays:
        return {}
    from mambanorm_study.tables.growth import growth

    outputs = arrays["ring_outputs"][-1]  # (layers,)
    found = growth(pd.Series(outputs, index=np.arange(len(outputs)) + 1))
    return dict(growth=found["decades_per_8"], law=found["margin"])


def sigma_facts(run: StoredRun, failing: StoredRun | None) -> dict[str, float]:
    """How out_proj's singular values of this run change in the second half of the failing run's
    life. Empty if that run did not fail, or had no finite step: there is then nothing to look back
    on."""
    if failing is None or failing.facts["status"] != "diverged":
        return {}
    end = finite_sigma(failing)[0][-1]
    if end == 0:
        return {}
    steps, sigma = finite_sigma(run)
    across = np.log10(sigma.var(axis=1).mean(axis=1))  # (T,): over the blocks, mean over ranks
    sizes = np.log10(np.sqrt((sigma**2).mean(axis=2)))  # (T, layers)
    rise, *grown = (
        np.interp(end, steps, y) - np.interp(end / 2, steps, y) for y in (across, *sizes.T)
    )
    trend, _ = np.polyfit(np.linspace(0, 1, len(grown)), grown, 1)
    return dict(sigma_rise=float(rise), sigma_trend=float(trend))


def failing_facts(run: StoredRun, failing: StoredRun | None) -> dict[str, float]:
    """How the run's outputs sharpen and its deep blocks gain weight in the second half of the
    failing run's life, up to the weights of its last finite loss. Empty as in `sigma_facts`."""
    if failing is None or failing.facts["status"] != "diverged" or failing.facts["steps"] < 3:
        return {}
    from mambanorm_study.runs.run import train

    class Enough(Exception):
        pass

    end, seen = failing.facts["steps"] - 1, {}  # the next step's loss is the last finite one

    def look(step: int, model: nn.Module, _: float) -> None:
        if step in (end // 2, end):
            seen[step] = near_failure(model, run.config)
        if step == end:
            raise Enough

    with suppress(Enough):
        train(run.config, on_step=look, runs_dir=run.path.parent)
    if len(seen) < 2:  # it failed sooner than the other
        return {}
    (entropy, weight), (entropy_then, weight_then) = seen[end], seen[end // 2]
    return dict(zip(NEAR_FAILURE, (entropy_then - entropy, weight - weight_then), strict=True))


def near_failure(model: nn.Module, config: RunConfig) -> tuple[float, float]:
    """The entropy of the class probabilities in nats, of rows with finite outputs, and log₁₀ of the
    change of a row's loss with the two deepest blocks disturbed minus that with the two first.
    Medians, because single rows reach outputs of 10¹⁵; the same noise at every step."""
    import torch
    import torch.nn.functional as F

    from mambanorm_study.tasks import load_task

    inputs, lengths, labels = load_task(config.task, config.scale, config.seed).val.batch(
        slice(0, ROWS)
    )

    def losses() -> torch.Tensor:
        return F.cross_entropy(model(inputs, lengths).double(), labels, reduction="none")

    def change(blocks: nn.ModuleList) -> float:
        draw, found, before = torch.Generator().manual_seed(config.seed), [], losses()
        kept = [(p, p.clone()) for p in blocks.parameters()]
        for _ in range(DRAWS):
            for p, own in kept:
                p.copy_(own * (1 + DISTURBANCE * torch.randn(own.shape, generator=draw)))
            found.append((losses() - before).abs().nan_to_num(nan=math.inf))
        for p, own in kept:
            p.copy_(own)
        return math.log10(min(max(float(torch.cat(found).median()), LEAST), 1 / LEAST))

    model.eval()
    with torch.no_grad():
        logits = model(inputs, lengths).double()
        probabilities = logits[logits.isfinite().all(-1)].softmax(-1)
        entropy = float(torch.special.entr(probabilities).sum(-1).mean())
        return entropy, change(model.blocks[-2:]) - change(model.blocks[:2])


def finite_sigma(run: StoredRun) -> tuple[np.ndarray, np.ndarray]:
    """The steps that a run kept with finite weights (T,), and their singular values (T, layers,
    k)."""
    from mambanorm_study.runs.weight_log import sigma_history

    steps, sigma = sigma_history(run.diagnostics)
    finite = np.isfinite(sigma).all(axis=(1, 2))
    return steps[finite], sigma[finite]


def text_facts(run: StoredRun) -> dict[str, float]:
    """What the last tenth of the steps was worth to a language model."""
    losses = run.curves.dropna(subset=["val_loss"])
    before = losses.val_loss[losses.step <= 0.9 * run.config.steps].min()
    return dict(late_gain=float(before - losses.val_loss.min()) / math.log(2))


def corrupted_facts(run: StoredRun) -> dict[str, float]:
    """Accuracy with noise and with rotation, each the mean over its severities; the same rows for
    every arm."""
    from mambanorm_study.tables.robustness import robustness_table

    table = robustness_table([run.config], run.path.parent)
    return table[table.severity > 0].groupby("kind").accuracy.mean().to_dict()


def weight_facts(run: StoredRun) -> dict[str, float]:
    """How unevenly the blocks' weight norms grew, from initialisation to the last snapshot with
    finite weights."""
    blocks = np.linalg.norm(run.diagnostics["part_norms"], axis=2)  # (T, layers)
    grown = blocks[np.isfinite(blocks).all(axis=1)][-1] / blocks[0]
    return dict(unevenness=float(np.log10(grown.max() / grown.min())))


def headroom_facts(run: StoredRun) -> dict[str, float]:
    """Decades from the scan's largest output to float16's largest number, with the weights that
    were tested. A run that ended non-finite has none left."""
    if run.facts["status"] == "diverged":
        return dict(headroom=0.0)
    import torch

    from mambanorm.inside import record_sites
    from mambanorm_study.tables.robustness import trained_model
    from mambanorm_study.tasks import load_task

    model = trained_model(run.config, run.path.parent)
    data = load_task(run.config.task, run.config.scale, run.config.seed)
    inputs, lengths, _ = data.test.batch(slice(0, ROWS))
    with torch.no_grad(), record_sites(model, "scan") as seen:
        model(inputs, lengths)
    largest = max(float(value.abs().amax()) for *_, value in seen.seen)
    tiny = torch.finfo(torch.float32).tiny
    return dict(
        headroom=math.log10(torch.finfo(torch.float16).max) - math.log10(max(largest, tiny))
    )


TRAINS, LEARNS = 0.8, 5.0
"""A rate trains a model that reaches this share of what its best rate reaches above chance; a model
has learned if it lies this many points above chance."""


def highest_lr_that_trains(scores: np.ndarray, chance: float, rates: Sequence[float]) -> float:
    """Return log₁₀ of the highest learning rate that trains, from one score a rate (per cent,
    smallest rate first), by linear interpolation between the last rate that does and the next.

    The highest rate if that one trains; the lowest if the model learns at no rate.
    """
    logs = np.log10(rates)
    if scores.max() <= chance + LEARNS:
        return float(logs[0])
    line = chance + TRAINS * (scores.max() - chance)
    last = np.flatnonzero(scores >= line)[-1]
    return float(np.interp(-line, -scores[last : last + 2], logs[last : last + 2]))
