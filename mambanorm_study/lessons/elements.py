"""Measures the elements of the blocks' outputs on ListOps (Figure 9 of the paper).

The paper's Figure 9 shows the "output tensors from each Mamba layer" of a ListOps model with BN,
and its points "represent the elements in the tensor". The models of this lesson have the settings
of ListOps at scale evening (four blocks, as in the paper) and half of its steps. The four arms are
no norm, BN before the SSM, BN after it, and BN on both sides. The paper ends (§4.6):

    "When normalization is applied both before and after the SSM layer, the scale disparity between
    layers is further reduced, and the distribution of the elements becomes more uniform."

**The last clause as a claim.** Written before any run that it judges. Runs of the four arms with
seed 100 had shown how long a run takes and which accuracy it reaches, and nothing else.

- Quantity: the *tail ratio* of a block's output y (the residual stream), log₁₀ of the 99.9 %
  quantile of |element| over the median of |element|. It is 0.3 for a uniform distribution around
  zero and 0.69 for a normal one. The elements are those of all valid tokens of 256 validation rows,
  in train mode, with the weights of the best evaluation. A model's value is the mean over its
  blocks. Train mode, because the study draws Figure 9 in train mode; the paper does not say.
- Comparisons (both must hold): None→BN minus BN→BN, and BN→None minus BN→BN. A positive difference
  means that norms on both sides are more uniform. None→None is a reference and is not judged.
- Seeds 0 to 7, paired; one learning rate for all arms, the task's own.
- Rule: that of claims/rule.py, with the upper end corrected for two comparisons. The smallest
  effect is log₁₀ 1.1, a ratio that is 10 % larger, as in claim H11s. A seed in which a compared
  model has values that are not finite is left out.
- Also measured, but not judged: the kurtosis (1.8 for a uniform distribution, 3 for a normal one),
  and eval mode.
- Prediction: *opposite*. BN→BN is more uniform than BN→None (supported), but less uniform than
  None→BN (opposite). In the recorded models on MNIST-1D (lessons/outputs.py) the largest token is
  further from the median with BN→BN than with None→BN in the first four of eight blocks, and nearer
  only in the later ones; the models here have four.

Two sentences that the plan left open, added after the results: a run that failed is measured with
its best weights if they are finite (no run failed), and the seeds of ListOps share one pool of
expressions, so that the interval is valid for this pool only.

Results are recorded (runs/measurements.py) until this file changes.

Source: S1 in docs/sources.md, §4.6 and Figure 9. Deviations from the paper: rows of 6 to 21 tokens
instead of 2,000, width 32 instead of 128, 640 steps.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.inside import describe, preserve_state, record_sites
from mambanorm.norms.masked_moments import valid_positions
from mambanorm_study.runs.grid import check_seeds, grid
from mambanorm_study.runs.measurements import digest_of, load_or_measure
from mambanorm_study.tables.diagnostics import train_until
from mambanorm_study.tables.experiments import budget_changes, figure_9_arms
from mambanorm_study.tables.run_tables import label
from mambanorm_study.tasks import load_task

TASK, NORM = "listops", "BN"
SEEDS = {"smoke": 1}  # number of seeds; other scales: 8
STEPS_SHARE = 1 / 2  # of the scale's steps
ROWS = 256
POINTS = 40  # elements and tokens of a block that a figure draws, for each seed
SMALLEST = 0.041  # log₁₀ 1.1, the smallest effect of interest


def elements_by_depth(
    scale: str, seeds: int | None = None, *, runs_dir: str | Path | None = None
) -> pd.DataFrame:
    """Return the distribution of the elements of each block's output, for the arms of Figure 9.

    One row per arm, mode and block. Columns: arm, accuracy (test accuracy in per cent), failed
    (True if the run ended in values that are not finite), mode ("train" or "eval"), depth (from 1),
    those of `distribution`, scale and seed. Scale quick has the models of scale evening. seeds:
    number of seeds; None means SEEDS of the scale.
    """
    listed = check_seeds(SEEDS.get(scale, 8) if seeds is None else seeds, "smoke")
    data_scale = "evening" if scale == "quick" else scale
    measure, name = partial(_measure, data_scale), f"elements-{TASK}-{data_scale}-{NORM}"
    digest = digest_of(Path(__file__))
    frame = load_or_measure(".lessons", name, measure, listed, digest, runs_dir)
    return frame.assign(scale=data_scale)


def _measure(scale: str, seed: int) -> Iterator[dict]:
    changes = budget_changes(TASK, scale, STEPS_SHARE)
    x, lengths, _ = load_task(TASK, scale, seed).val.batch(slice(0, ROWS))
    for config in grid(figure_9_arms(NORM), TASK, scale=scale, seeds=[seed], **changes):
        models: list[nn.Module] = []
        run = train_until(config, lambda _, model, models=models: models.append(model), None)
        model = models[-1].cpu()  # with the weights of the best evaluation
        facts = {
            "arm": config.arm,
            "accuracy": 100 * run.test_accuracy,
            "failed": run.status == "diverged",
        }
        for mode in ("train", "eval"):
            outputs = block_outputs(model.train(mode == "train"), x, lengths)
            for depth, y in enumerate(outputs, start=1):
                yield {**facts, "mode": mode, "depth": depth, **distribution(y, seed)}


@torch.no_grad()
def block_outputs(model: nn.Module, x: Tensor, lengths: Tensor | None) -> list[Tensor]:
    """Return the residual stream after each block, at valid positions only: one tensor (tokens, D)
    per block. The model is called in its present mode, and its buffers are restored.
    """
    with preserve_state(model), record_sites(model, "residual") as sites:
        model(x, lengths)
    outputs = sites.tensors("residual")  # (B, L, D) each
    if lengths is None:
        return [y.flatten(0, 1) for y in outputs]
    return [y[valid_positions(lengths, y.shape[1]).squeeze(-1)] for y in outputs]


def distribution(y: Tensor, seed: int = 0) -> dict:
    """Return the quantiles of |element| and of ‖token‖₂ of a block's output y (tokens, D).

    The keys are median and p999 (50 and 99.9 % quantile of |element|); kurtosis of the elements;
    token_median and token_p999, of ‖token‖₂; elements and tokens, log₁₀ of POINTS random magnitudes
    each, with two decimals. A quantile is NaN or inf if it meets values that are not finite. seed:
    of the random choice.
    """
    elements, tokens = y.double().abs().flatten().numpy(), y.double().norm(dim=-1).numpy()
    generator = np.random.default_rng(seed)
    with np.errstate(divide="ignore", invalid="ignore"):  # elements that are zero or not finite
        return {
            "median": np.quantile(elements, 0.5),
            "p999": np.quantile(elements, 0.999),
            "kurtosis": describe(y)["kurtosis"],
            "token_median": np.quantile(tokens, 0.5),
            "token_p999": np.quantile(tokens, 0.999),
            "elements": np.log10(generator.choice(elements, POINTS)).round(2).tolist(),
            "tokens": np.log10(generator.choice(tokens, POINTS)).round(2).tolist(),
        }


def uniformity_gains(
    frame: pd.DataFrame, quantity: str = "tail", mode: str = "train"
) -> pd.DataFrame:
    """Return the differences that the claim is about, in log₁₀: None→BN and BN→None, each minus
    BN→BN. A positive difference means that BN→BN is more uniform.

    One row per seed and one column per difference. The value of a model is the mean over its blocks
    of log₁₀ of the quantity. Seeds with a value that is not finite are left out. frame: the frame
    of `elements_by_depth`, in any order of its rows. quantity: "tail", the 99.9 % quantile of
    |element| over its median, or "kurtosis". mode: "train" or "eval".
    """
    values = frame.assign(tail=frame.p999 / frame["median"])[frame["mode"] == mode]
    logs = np.log10(values[quantity]).fillna(np.inf)  # a mean would leave NaN out
    means = logs.groupby([values.seed, values.arm]).mean().unstack()
    _, before, after, both = map(str, figure_9_arms(NORM))
    gains = pd.DataFrame(
        {f"{label(arm)} − {label(both)}": means[arm] - means[both] for arm in (after, before)}
    )
    return gains[np.isfinite(gains).all(axis=1)]
