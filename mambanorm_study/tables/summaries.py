"""Numbers on the inside of stored runs, as columns of the run frame. The claims on growth (H10),
singular values (H11), weight norms (H12), failures (H16) and the scan's headroom (E1) use them.

They are read from the arrays that every run stores (runs/weight_log.py), and from its tested
weights. A column is NaN for a run that its claim does not use.

    growth, law         runs of `growth_runs`: the growth of the largest token's ‖y‖₂ over the
                        blocks in the last finite training step, in decades per 8 blocks; the AIC of
                        the best other law minus the AIC of the exponential law
    sigma_rise          runs of `failing_runs`: the variance over the blocks of out_proj's singular
                        value of each rank, log₁₀ of the mean over ranks; its increase
    sigma_trend         runs of `failing_runs`: the increase of log₁₀ of a block's
                        root-mean-square singular value, and of this the slope over relative depth
                        0…1
    sharpening          runs of `failing_runs`: by how many nats the entropy of the class
                        probabilities falls, mean over rows with finite outputs among the first ROWS
                        validation rows
    fragility           runs of `failing_runs`: log₁₀ of the change of a row's loss when the two
                        last blocks are disturbed, minus the same for the first two blocks; its
                        increase
    unevenness          runs of `deep_runs`: log₁₀ of the largest over the smallest block, each the
                        L2 norm of all its weights divided by the norm before training
    headroom            runs of `deep_runs`: decades between the largest |y| of the scan and
                        float16's largest number, over the blocks and the first ROWS test rows; 0 if
                        the run ended non-finite
    late_gain           language models: by how many bits per character the last tenth of the steps
                        lowered the best validation loss
    noise, rotation     accuracy on corrupted test rows, mean over the severities of robustness.py
                        (A3)

The increases of `failing_runs` are measured from half way to the last finite step of the run
without norms that has the same seed. The store has only the weights of the best step, so for
sharpening and fragility the run is trained again up to that step (diagnostics.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from mambanorm.arms import Arm
from mambanorm_study.runs.presets import LANGUAGE_TASKS, VISION_TASKS
from mambanorm_study.runs.result import StoredRun
from mambanorm_study.runs.store import find_run, stored_run
from mambanorm_study.tables.experiments import CORRUPTED_ARMS, deep_runs, failing_runs, growth_runs

NONE, BOTH = str(Arm("None", "None")), str(Arm("RMSN", "RMSN"))
CORRUPTED = ("noise", "rotation")
NEAR_FAILURE = ("sharpening", "fragility")
COLUMNS = (
    "growth", "law", "sigma_rise", "sigma_trend", "unevenness", "headroom", "late_gain",
    *CORRUPTED, *NEAR_FAILURE,
)  # fmt: skip

# The number of test rows for the headroom, and of validation rows near a failure.
ROWS = 256

Reader = Callable[[StoredRun], dict[str, float]]


def with_summaries(
    frame: pd.DataFrame, runs_dir: str | Path | None = None, *, again: bool = False
) -> pd.DataFrame:
    """Return the run frame with the columns of this module, read from the store.

    CORRUPTED and NEAR_FAILURE take seconds per run. They are filled only if `again` is True, which
    allows models to be evaluated or trained again. A damaged run has NaN, and a warning names it.
    """
    if frame.empty:
        return frame.assign(**dict.fromkeys(COLUMNS, np.nan))
    facts: dict[str, dict[str, float]] = {run_id: {} for run_id in frame.run_id}
    for run_id, read in _readers(frame[frame.role == "test"], runs_dir, again):
        run = stored_run(run_id, runs_dir) if run_id in facts else None
        if run is not None:
            facts[run_id].update(read(run))
    added = pd.DataFrame(list(facts.values()), index=list(facts), columns=COLUMNS, dtype=float)
    return frame.drop(columns=[name for name in COLUMNS if name in frame]).join(added, on="run_id")


def _readers(
    tests: pd.DataFrame, runs_dir: str | Path | None, again: bool
) -> Iterator[tuple[str, Reader]]:
    """Yield the id of each run that a claim uses, with the function that reads it."""
    from mambanorm_study.tables import diagnostics, growth, robustness  # these import torch

    for scale, runs in tests.groupby("scale"):
        seeds = sorted({int(seed) for seed in runs.seed})
        failing, deep = failing_runs(scale, seeds), deep_runs(scale, seeds)
        readers = [
            (growth_runs(scale, seeds=seeds), growth.growth_facts),
            (failing, partial(_beside_failing, sigma_facts, runs_dir)),
            (deep, weight_facts),
            (deep, diagnostics.headroom_facts),
        ]
        if again:
            both_arms = [config for config in failing if config.arm in (NONE, BOTH)]
            readers.append(
                (both_arms, partial(_beside_failing, diagnostics.failing_facts, runs_dir))
            )
        for configs, read in readers:
            yield from ((config.run_id, read) for config in configs)
    finished = tests[tests.status == "ok"]
    if again:
        images = finished[finished.arm.isin(CORRUPTED_ARMS) & finished.task.isin(VISION_TASKS)]
        yield from ((run_id, robustness.corrupted_facts) for run_id in images.run_id)
    texts = finished[finished.task.isin(LANGUAGE_TASKS)]
    yield from ((run_id, text_facts) for run_id in texts.run_id)


def _beside_failing(read: Callable, runs_dir: str | Path | None, run: StoredRun) -> dict:
    """Read a run together with the run without norms that has its settings and seed."""
    return read(run, find_run(run.config.but(arm=NONE), runs_dir))


def sigma_facts(run: StoredRun, failing: StoredRun | None) -> dict[str, float]:
    """Return how out_proj's singular values of a run change, from half way to the last finite step
    of the failing run; {} if that run did not fail, or had no finite step.
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


def finite_sigma(run: StoredRun) -> tuple[np.ndarray, np.ndarray]:
    """Return the recorded steps of a run with finite weights, (T,), and the singular values at
    these steps, (T, layers, k).
    """
    from mambanorm_study.runs.weight_log import sigma_history  # imports torch

    steps, sigma = sigma_history(run.diagnostics)
    finite = np.isfinite(sigma).all(axis=(1, 2))
    return steps[finite], sigma[finite]


def text_facts(run: StoredRun) -> dict[str, float]:
    """Return by how much the last tenth of the steps lowered a language model's validation loss."""
    losses = run.curves.dropna(subset=["val_loss"])
    before = losses.val_loss[losses.step <= 0.9 * run.config.steps].min()
    return {"late_gain": float(before - losses.val_loss.min()) / math.log(2)}


def weight_facts(run: StoredRun) -> dict[str, float]:
    """Return how unevenly the weight norms of the blocks grew, from initialization to the last
    snapshot with finite weights.
    """
    blocks = np.linalg.norm(run.diagnostics["part_norms"], axis=2)  # (T, layers)
    growth = blocks[np.isfinite(blocks).all(axis=1)][-1] / blocks[0]
    return {"unevenness": float(np.log10(growth.max() / growth.min()))}


# A model has learned if its accuracy is at least LEARNS points above chance. A learning rate trains
# it if it reaches this share (TRAINS) of the best accuracy above chance.
TRAINS, LEARNS = 0.8, 5.0


def highest_lr_that_trains(scores: np.ndarray, chance: float, lrs: Sequence[float]) -> float:
    """Return log₁₀ of the highest learning rate that trains a model, interpolated between the last
    rate that trains it and the next one.

    scores: per cent, one for each learning rate, the smallest rate first. Returns the highest rate
    if it trains the model, and the lowest if the model learns at no rate.
    """
    logs = np.log10(lrs)
    if scores.max() <= chance + LEARNS:
        return float(logs[0])
    line = chance + TRAINS * (scores.max() - chance)
    last = np.flatnonzero(scores >= line)[-1]
    return float(np.interp(-line, -scores[last : last + 2], logs[last : last + 2]))
