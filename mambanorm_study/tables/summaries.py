"""Summaries of measurements inside stored runs, as columns of the run frame. The claims on growth
(H10), singular values (H11), weight norms (H12), failures (H16) and the scan's headroom (E1) use
them.

The measurements are read from the arrays that every run stores (runs/weight_log.py), and from the
run's tested weights. Each entry of this list begins with the runs for which the claims use the
column; for all other runs the column is NaN.

    growth              runs of `growth_runs`, and runs on QUESTION_SEEDS: the growth over the
                        blocks of the largest ‖y‖₂ of a token in the last finite training step, in
                        decades per 8 blocks
    law                 runs of `growth_runs`: for the same ‖y‖₂, the AIC of the best other law
                        minus the AIC of the exponential law
    sigma_rise          runs of `failing_runs`: the increase of log₁₀ v. For each k, the variance
                        of the k-th singular value of out_proj over the blocks is computed; v is the
                        mean of these variances
    sigma_trend         runs of `failing_runs`: the slope, over relative depth 0…1, of the increase
                        of log₁₀ of a block's root-mean-square singular value
    sharpening          runs of `failing_runs`: by how many nats the entropy of the class
                        probabilities falls; mean over rows with finite outputs among the first 256
                        validation rows
    fragility           runs of `failing_runs`: the increase of d, where d is log₁₀ of the change of
                        a row's loss when the last two blocks are disturbed, minus log₁₀ of its
                        change when the first two blocks are disturbed
    unevenness          runs of `deep_runs`: log₁₀ of the largest growth of a block divided by the
                        smallest growth of a block, where growth is the L2 norm of all weights of a
                        block divided by the L2 norm of these weights before training
    headroom            runs of `deep_runs`: log₁₀ of float16's largest number minus log₁₀ of the
                        largest |y| of the scan, over the blocks and the first 256 test rows; 0 if
                        the run ended non-finite
    late_gain           language models: by how many bits per character the last tenth of the steps
                        lowered the best validation loss
    smallest_a, largest_a, mean_d
                        runs on QUESTION_SEEDS: the smallest and the largest |A| and the mean D
                        over all blocks of the tested weights
    steps_to_loss       runs on QUESTION_SEEDS: the step at which the validation loss first falls
                        to 1 nat, interpolated between two evaluations; the number of steps if it
                        never does, or if the run diverged
    noise, rotation     arms of CORRUPTED_ARMS on images: the accuracy on corrupted test images,
                        mean over the severities of robustness.py (for the claims A3 and H15)

For `failing_runs`, increases and falls are measured from step t/2 to step t, where t is the last
finite step of the run without norms that has the same seed. The store has only the weights of the
step that was best on validation, so for sharpening and fragility the run is trained again up to
step t (diagnostics.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from mambanorm.arms import Arm
from mambanorm_study.runs.grid import QUESTION_SEEDS
from mambanorm_study.runs.presets import LANGUAGE_TASKS, VISION_TASKS
from mambanorm_study.runs.result import StoredRun
from mambanorm_study.runs.store import find_run
from mambanorm_study.tables.experiments import CORRUPTED_ARMS, deep_runs, failing_runs, growth_runs

NONE, BOTH = str(Arm("None", "None")), str(Arm("RMSN", "RMSN"))
CORRUPTED = ("noise", "rotation")
NEAR_FAILURE = ("sharpening", "fragility")
OF_QUESTIONS = ("smallest_a", "largest_a", "mean_d", "steps_to_loss")
LOSS_TO_REACH = 1.0  # nats
COLUMNS = (
    "growth", "law", "sigma_rise", "sigma_trend", "unevenness", "headroom", "late_gain",
    *CORRUPTED, *NEAR_FAILURE, *OF_QUESTIONS,
)  # fmt: skip

Reader = Callable[[StoredRun], dict[str, float]]


def with_summaries(
    frame: pd.DataFrame, runs_dir: str | Path | None = None, *, rerun_models: bool = False
) -> pd.DataFrame:
    """Return the run frame (one row per run) with the additional columns COLUMNS, which are
    computed from the stored runs.

    The columns in CORRUPTED and NEAR_FAILURE take seconds per run, because models are evaluated or
    trained again. They are filled only if `rerun_models` is True. For a damaged run all COLUMNS are
    NaN, and a warning names the run.
    """
    if frame.empty:
        return frame.assign(**dict.fromkeys(COLUMNS, np.nan))
    facts: dict[str, dict[str, float]] = {run_id: {} for run_id in frame.run_id}
    for run_id, read in _readers(frame[frame.role == "test"], runs_dir, rerun_models):
        run = find_run(run_id, runs_dir) if run_id in facts else None
        if run is not None:
            facts[run_id].update(read(run))
    added = pd.DataFrame(list(facts.values()), index=list(facts), columns=COLUMNS, dtype=float)
    return frame.drop(columns=[name for name in COLUMNS if name in frame]).join(added, on="run_id")


def _readers(
    tests: pd.DataFrame, runs_dir: str | Path | None, rerun_models: bool
) -> Iterator[tuple[str, Reader]]:
    """Yield pairs (run_id, reader) for the runs that the claims use, at the scales and on the seeds
    of `tests`. A reader is a function that computes some of the COLUMNS from the stored run, as a
    map from column to value.

    tests: the rows of a run frame with the role "test".
    """
    from mambanorm_study.tables import diagnostics, growth, robustness  # these import torch

    for scale, runs in tests.groupby("scale"):
        seeds = sorted({int(seed) for seed in runs.seed})
        failing, deep = failing_runs(scale, seeds), deep_runs(scale, seeds)
        readers = [
            (growth_runs(scale, seeds=seeds), growth.growth_facts),
            (failing, partial(_read_with_failing, sigma_facts, runs_dir)),
            (deep, weight_facts),
            (deep, diagnostics.headroom_facts),
        ]
        if rerun_models:
            both_arms = [config for config in failing if config.arm in (NONE, BOTH)]
            readers.append(
                (both_arms, partial(_read_with_failing, diagnostics.failing_facts, runs_dir))
            )
        for configs, read in readers:
            yield from ((config.run_id, read) for config in configs)
    for run_id in tests.run_id[tests.seed.isin(QUESTION_SEEDS)]:
        yield run_id, growth.growth_facts
        yield run_id, question_facts
    finished = tests[tests.status == "ok"]
    if rerun_models:
        images = finished[finished.arm.isin(CORRUPTED_ARMS) & finished.task.isin(VISION_TASKS)]
        yield from ((run_id, robustness.corrupted_facts) for run_id in images.run_id)
    texts = finished[finished.task.isin(LANGUAGE_TASKS)]
    yield from ((run_id, text_facts) for run_id in texts.run_id)


def _read_with_failing(read: Callable, runs_dir: str | Path | None, run: StoredRun) -> dict:
    """Return `read(run, failing)`, a map from column to value. `failing` is the stored run without
    norms that has the settings and the seed of `run`, or None if there is no such run.
    """
    return read(run, find_run(run.config.but(arm=NONE), runs_dir))


def sigma_facts(run: StoredRun, failing: StoredRun | None) -> dict[str, float]:
    """Return {"sigma_rise": r, "sigma_trend": t}: how the singular values of out_proj in `run`
    change from half way to the last finite step of `failing`. r and t are defined at the top of
    summaries.py.

    failing: the run without norms that has the settings and the seed of `run`. Returns {} if
    `failing` is None, did not fail, or had no finite step.
    """
    if failing is None or failing.facts["status"] != "diverged":
        return {}
    end = finite_sigma(failing)[0][-1]
    if end == 0:
        return {}
    steps, sigma = finite_sigma(run)
    # variance over blocks, mean over ranks
    variance = np.log10(sigma.var(axis=1).mean(axis=1))  # (T,)
    sizes = np.log10(np.sqrt((sigma**2).mean(axis=2)))  # (T, layers)

    def change(values: np.ndarray) -> float:
        return float(np.interp(end, steps, values) - np.interp(end / 2, steps, values))

    growth = [change(sizes_of_block) for sizes_of_block in sizes.T]
    trend, _ = np.polyfit(np.linspace(0, 1, len(growth)), growth, 1)
    return {"sigma_rise": change(variance), "sigma_trend": float(trend)}


def finite_sigma(run: StoredRun) -> tuple[np.ndarray, np.ndarray]:
    """Return (steps, sigma): the recorded steps (T,) at which all singular values of a run's
    out_proj were finite, and these singular values (T, layers, k).
    """
    from mambanorm_study.runs.weight_log import sigma_history  # this imports torch

    steps, sigma = sigma_history(run.diagnostics)
    finite = np.isfinite(sigma).all(axis=(1, 2))
    return steps[finite], sigma[finite]


def question_facts(run: StoredRun) -> dict[str, float]:
    """Return the columns OF_QUESTIONS of a run; without an SSM, only steps_to_loss."""
    from mambanorm_study.runs.ssm_parameters import (  # this imports torch
        A_LOG_NAMES,
        D_NAMES,
        parameters_named,
    )

    steps, losses = float(run.config.steps), run.curves.dropna(subset=["val_loss"])
    reached = np.flatnonzero(losses.val_loss <= LOSS_TO_REACH)
    if len(reached) and run.facts["status"] == "ok":
        around = losses.iloc[max(reached[0] - 1, 0) : reached[0] + 1]
        # the loss falls between these two evaluations, and np.interp needs increasing values
        steps = float(np.interp(-LOSS_TO_REACH, -around.val_loss, around.step))
    facts = {"steps_to_loss": steps}
    weights = run.checkpoint.items()
    A_log = [value.flatten() for value in parameters_named(weights, A_LOG_NAMES)]
    D = [value.flatten() for value in parameters_named(weights, D_NAMES)]
    if A_log:
        A, D = np.exp(np.concatenate(A_log)), np.concatenate(D)
        facts |= {"smallest_a": A.min(), "largest_a": A.max(), "mean_d": D.mean()}
    return {name: float(value) for name, value in facts.items()}


def text_facts(run: StoredRun) -> dict[str, float]:
    """Return {"late_gain": g}: the last tenth of the steps lowered the best validation loss of a
    language model by g bits per character.
    """
    losses = run.curves.dropna(subset=["val_loss"])
    before = losses.val_loss[losses.step <= 0.9 * run.config.steps].min()
    return {"late_gain": float(before - losses.val_loss.min()) / math.log(2)}


def weight_facts(run: StoredRun) -> dict[str, float]:
    """Return {"unevenness": u}. u is log₁₀ of the largest growth of a block divided by the smallest
    growth of a block. The growth of a block is the L2 norm of its weights in the last snapshot with
    finite weights, divided by this norm at initialization.
    """
    blocks = np.linalg.norm(run.diagnostics["part_norms"], axis=2)  # (T, layers)
    growth = blocks[np.isfinite(blocks).all(axis=1)][-1] / blocks[0]
    return {"unevenness": float(np.log10(growth.max() / growth.min()))}


# A model learns at a learning rate if its accuracy is more than MIN_POINTS_ABOVE_CHANCE percentage
# points above chance. The learning rate "trains" the model if the accuracy minus chance is at least
# MIN_SHARE_OF_BEST times the highest accuracy minus chance over all learning rates.
MIN_SHARE_OF_BEST, MIN_POINTS_ABOVE_CHANCE = 0.8, 5.0


def highest_lr_that_trains(scores: np.ndarray, chance: float, lrs: Sequence[float]) -> float:
    """Return log₁₀ of the highest learning rate that trains a model. A learning rate trains the
    model if the accuracy minus chance at this rate is at least MIN_SHARE_OF_BEST times the highest
    accuracy minus chance over all rates.

    lrs: the learning rates, the smallest first. scores: the accuracy in per cent at each of them.
    chance: the accuracy of chance in per cent. The result is interpolated between the highest of
    `lrs` that trains the model and the next higher one. It is log₁₀ of the highest of `lrs` if that
    one trains the model, and log₁₀ of the lowest if no accuracy is more than
    MIN_POINTS_ABOVE_CHANCE percentage points above chance.
    """
    logs = np.log10(lrs)
    if scores.max() <= chance + MIN_POINTS_ABOVE_CHANCE:
        return float(logs[0])
    needed_score = chance + MIN_SHARE_OF_BEST * (scores.max() - chance)
    last = np.flatnonzero(scores >= needed_score)[-1]
    return float(np.interp(-needed_score, -scores[last : last + 2], logs[last : last + 2]))
