"""Claims of the guide (S4) that are counts of statistics, or words: what torch computes, and what the runs here say.

Each function returns rows (claim, claimed, here, setting) for the table of claimed.py. Where no run bears on a claim,
the row says so.
"""

from __future__ import annotations

import pandas as pd
import torch
from torch import nn

from mambanorm.advice.evidence import paired_by_seed
from mambanorm.study.intervals import t_interval
from mambanorm.study.tables import interval_says, points

TORCH = "counted in torch"


def counts() -> list[tuple]:
    """How many statistics there are, over how many values each; the shapes are the guide's."""
    image, text, hidden = torch.Size((32, 64, 28, 28)), torch.Size((32, 128, 512)), torch.Size((32, 100, 256))
    step_values = hidden[0] * hidden[1]
    layer = nn.LayerNorm(hidden[-1])
    return [
        ("BatchNorm of (32, 64, 28, 28)", "64 means", f"{len(nn.BatchNorm2d(image[1]).running_mean)} means", TORCH),
        ("LayerNorm of (32, 128, 512)", "32 × 128 means", f"{text[:-1].numel():,} means", "arithmetic"),
        ("BatchNorm of (32, 100, 256): values a statistic", "3,200", f"{step_values:,}", "arithmetic"),
        ("LayerNorm of (32, 100, 256): values a statistic", "256", f"{layer.normalized_shape[0]}", TORCH),
        ("GroupNorm(16, 64)", "4 channels a group", f"{64 // nn.GroupNorm(16, 64).num_groups}", TORCH),
        ("GroupNorm(30, 64)", "not possible", _refused(lambda: nn.GroupNorm(30, 64)), TORCH),
        (
            "BatchNorm at batch 1, no positions",
            "undefined",
            _refused(lambda: nn.BatchNorm1d(8)(torch.ones(1, 8))),
            TORCH,
        ),
        ("BatchNorm at batch 1, 4 × 4 positions", "undefined", _batch_of_one(), TORCH),
        ("RMSNorm is numerically stable: it subtracts nothing", "yes", _rounding(), "float32 against float64, d = 512"),
    ]


def _refused(make) -> str:
    try:
        make()
    except ValueError as error:
        return f"refused: {str(error).splitlines()[0]}"
    return "accepted"


def _batch_of_one() -> str:
    x = torch.randn(1, 8, 4, 4, generator=torch.Generator().manual_seed(0))
    same = torch.allclose(nn.BatchNorm2d(8)(x), nn.InstanceNorm2d(8)(x), atol=1e-5)
    return "defined: the values of InstanceNorm" if same else "defined: other values than InstanceNorm's"


def _rounding() -> str:
    """Largest relative error of float32 where the mean of a token is 1,000 times its spread."""
    x = 1000 + torch.randn(64, 512, generator=torch.Generator().manual_seed(0))
    error = {}
    for name, norm in (("LN", nn.LayerNorm(512)), ("RMSN", nn.RMSNorm(512, eps=1e-5))):
        exact = norm.double()(x.double())
        error[name] = ((norm.float()(x) - exact).abs().max() / exact.abs().max()).item()
    return f"largest relative error at mean 1,000 and spread 1: LN {error['LN']:.0e}, RMSN {error['RMSN']:.0e}"


def words(batch: pd.DataFrame, depth: pd.DataFrame, counting: pd.DataFrame, where: str) -> list[tuple]:
    """Claims in words, beside what the runs reach. where: scale and seeds, in words."""
    none = "no run of this notebook measures it"
    return [
        ("BatchNorm is for batches", "≥ 16 in one place, ≥ 8 in another", _thresholds(batch), f"small CNN, {where}"),
        ("norms enable", "50+ layers", _deepest(depth), f"Transformer, LN, pre-norm, {where}"),
        ("better generalization", "regularization", f"{none}: no training accuracy stands beside the test's", "–"),
        ("less sensitive to initialization", "yes", f"{none}: see the two starts of notebook 01, section 7", "–"),
        ("covariate shift is why", "yes", f"{none}: accuracies and losses tell no cause", "–"),
        ("normalization is mandatory", "yes", _without(counting), f"LSTM that counts, RMSE in pulses, {where}"),
    ]


def _thresholds(frame: pd.DataFrame) -> str:
    told = []
    for batch in (8, 16):
        gap = paired_by_seed(frame[frame.batch == batch], "norm", "BN", "GN", "accuracy")
        told.append(f"{batch} rows: BN − GN {points(gap.mean(), *t_interval(gap))}")
    return "; ".join(told)


def _deepest(frame: pd.DataFrame) -> str:
    mine = frame[(frame.norm == "LN") & (frame.place == "pre")]
    deepest = mine[mine.depth == mine.depth.max()]
    steps = deepest.losses.map(len).max()
    return (
        f"at most {deepest.depth.iloc[0]} layers are tried, {deepest.accuracy.mean():.0f} % after {steps} steps; none "
        "without a norm"
    )


def _without(frame: pd.DataFrame) -> str:
    """No norm against LN, at one length and at four."""
    told = []
    for lengths, mine in frame[frame["mode"] == "eval"].groupby("lengths"):
        gap = paired_by_seed(mine, "norm", "LN", "None", "error")
        low, high = t_interval(gap)
        says = {"above zero": "no norm is better", "below zero": "LN is better"}.get(
            interval_says(low, high), "not told"
        )
        told.append(
            f"{lengths} length{'s' * (lengths == 'four')}: LN − none {gap.mean():+.2f} [{low:.2f}, {high:.2f}], {says}"
        )
    return "; ".join(told).replace("-", "−")
