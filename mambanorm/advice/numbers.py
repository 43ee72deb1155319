"""Every number that the guide (S4) claims, beside the one that is measured or computed here. No number is agreed with
by hand: each of ours comes from the rows of an experiment, from a clock or from arithmetic.

    claimed_and_measured    all of them: claim, claimed, here, setting
    overhead_table          what a norm costs in time, on this CPU

Our models, data and machine are others than the guide's (which names none for most of its numbers), so the table shows
a pattern beside a pattern. `setting` says where ours is made. Where no run bears on a claim, the row says so.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable

import numpy as np
import pandas as pd
import torch
from torch import nn

from mambanorm.advice.blocks import ConvBlock, TransformerLayer
from mambanorm.advice.evidence import Gap
from mambanorm.advice.experiments import REACHED, measure
from mambanorm.advice.mistakes import counted
from mambanorm.basics.settings import check_scale, default_scale
from mambanorm.basics.text import digits
from mambanorm.kernels.threads import exactly_threads
from mambanorm.study.tables import seeds_text

IMAGENET = {32: (76.5, 76.3), 8: (75.8, 76.1), 2: (72.1, 75.3)}
"""Batch → accuracy of BN and of GN that the guide prints (ResNet-50, ImageNet), as of “He et al.”."""
OVERHEAD = {
    ("CNN", "BN"): "+2 %", ("CNN", "GN"): "+5–8 %", ("CNN", "IN"): "+3–5 %", ("Transformer layer", "LN"): "+3–5 %",
    ("Transformer layer", "RMSN"): "+2–3 %",
}  # fmt: skip
"""Model and norm → what the guide says it adds to inference."""
TORCH, ARITHMETIC = "counted in torch", "arithmetic"
NO_RUN = "no run of this notebook measures it"
ROUNDS = {"smoke": 2, "quick": 30}


def claimed_and_measured(scale: str | None = None, seeds=None, runs_dir=None) -> pd.DataFrame:
    """One row a number: claim, claimed, here, setting."""
    scale = default_scale() if scale is None else check_scale(scale)
    names = ("batch_size", "dense", "rates", "depth", "counting")
    found = {name: measure(name, scale, seeds, runs_dir) for name in names}
    batch = found["batch_size"]
    where = f"{batch.scale.iloc[0]} scale, {seeds_text([batch.seed.nunique()])}"
    rows = [*_batch_rows(batch, found["dense"], where), *_rate_rows(found["rates"], where)]
    rows += [*_depth_rows(found["depth"], where), *_cost_rows(scale), *_memory_rows(), *_sums()]
    rows += _words(batch, found["depth"], found["counting"], where)
    return pd.DataFrame(rows, columns=["claim", "claimed", "here", "setting"])


# ---------------------------------------------------------------------------------------------------------------------
# what the experiments say


def _batch_rows(batch: pd.DataFrame, dense: pd.DataFrame, where: str) -> list[tuple]:
    rows = []
    for n in sorted(batch.batch.unique(), reverse=True):
        here = batch[batch.batch == n]
        means, gap = here.groupby("norm").accuracy.mean(), Gap(here, "norm", "BN", "GN")
        claimed = "{:.1f} / {:.1f} %".format(*IMAGENET[n]) if n in IMAGENET else "–"
        ours = f"{means.BN:.1f} / {means.GN:.1f} % (BN − GN: {gap})"
        rows.append((f"BN / GN at batch {n}", claimed, ours, f"small CNN, digits, {where}"))
    for what, frame in (("small CNN", batch), ("net of linear layers", dense)):
        gaps = {n: Gap(frame[frame.batch == n], "norm", "BN", "GN") for n in sorted(frame.batch.unique())}
        told = ", ".join(f"{n} ({gap})" for n, gap in gaps.items() if gap.says == "clearly below zero")
        ours = f"BN is told to be behind GN at batch {told}" if told else "BN is nowhere told to be behind GN"
        rows.append((f"BatchNorm fails below batch ({what})", "8", ours, f"{what}, {where}"))
    return rows


def _rate_rows(frame: pd.DataFrame, where: str) -> list[tuple]:
    best = frame.groupby(["norm", "lr"]).accuracy.mean().groupby("norm").idxmax().map(lambda pair: pair[1])
    soon = {norm: frame[(frame.norm == norm) & (frame.lr == lr)].reached.fillna(math.inf).median()
            for norm, lr in best.items()}  # fmt: skip
    limit = int(frame.limit.iloc[0])
    steps = {norm: f"{value:.0f}" if value < math.inf else f"more than {limit}" for norm, value in soon.items()}
    ours = f"steps to {REACHED:.0f} %: none {steps['None']}, BN {steps['BN']}, GN {steps['GN']}"
    if soon["BN"] < math.inf:
        least = min(soon["None"], limit) / soon["BN"]
        ours += f"; BN {'more than ' if soon['None'] == math.inf else ''}{least:.1f} times as fast"
    fast = f"the same CNN, SGD, each norm at the rate of its best test accuracy, {where}"
    trains = f"the same CNN, SGD, a rate trains that brings at least half of the best rate's test accuracy, {where}"
    return [
        ("a norm converges faster", "10 × (100 → 10 epochs)", ours, fast),
        ("a norm allows larger rates", "10 × (0.001 → 0.01)", _larger_rates(frame), trains),
    ]


def _larger_rates(frame: pd.DataFrame) -> str:
    """The largest rate of each norm that trains, and how much larger than none's: "at least" at the edge."""
    largest = {norm: _largest_rate(frame[frame.norm == norm]) for norm in ("None", "BN", "GN")}
    edge, bare = frame.lr.max(), largest.pop("None")
    least = {norm: "at least " if lr == edge else "" for norm, lr in largest.items()}
    rates = ", ".join([f"none {bare:g}", *(f"{norm} {least[norm]}{lr:g}" for norm, lr in largest.items())])
    ours = [f"largest of the rates tried that trains (up to {edge:g}): {rates}"]
    for norm, lr in largest.items() if 0 < bare < edge else ():
        larger = f"{norm}'s is {least[norm]}{lr / bare:.0f} times as large"
        ours.append(larger if lr > bare else f"{norm} allows no larger one")
    return "; ".join(ours)


def _largest_rate(frame: pd.DataFrame) -> float:
    """The largest rate at which the mean accuracy is at least half of that at the best rate; 0 for none above 20 %."""
    mean = frame.groupby("lr").accuracy.mean()
    trains = mean[(mean >= mean.max() / 2) & (mean > 20)]
    return float(trains.index.max()) if len(trains) else 0.0


def _depth_rows(frame: pd.DataFrame, where: str) -> list[tuple]:
    setting = f"Transformer, d = 32, digits by rows, no warm-up, {where}"
    ln, rms = frame[frame.norm == "LN"], frame[frame.norm == "RMSN"]
    gaps = {n: Gap(ln[ln.depth == n], "place", "pre", "post") for n in sorted(ln.depth.unique())}
    told = "; ".join(f"{n} layers: pre − post {gap}" for n, gap in gaps.items())
    pre = frame[(frame.depth == rms.depth.iloc[0]) & (frame.place == "pre")]
    return [
        ("post-norm is hard to train above", "12 layers", told, setting),
        ("RMSN in place of LN, accuracy", "the same", f"RMSN − LN {Gap(pre, 'norm', 'RMSN', 'LN')}", setting),
    ]


def _words(batch: pd.DataFrame, depth: pd.DataFrame, counting: pd.DataFrame, where: str) -> list[tuple]:
    """Claims in words, beside what the runs reach."""
    thresholds = "; ".join(f"{n} rows: BN − GN {Gap(batch[batch.batch == n], 'norm', 'BN', 'GN')}" for n in (8, 16))
    mine = depth[(depth.norm == "LN") & (depth.place == "pre") & (depth.depth == depth.depth.max())]
    deepest = f"at most {mine.depth.iloc[0]} layers are tried, {mine.accuracy.mean():.0f} % after "
    deepest += f"{mine.losses.map(len).max()} steps; none without a norm"
    return [
        ("BatchNorm is for batches", "≥ 16 in one place, ≥ 8 in another", thresholds, f"small CNN, {where}"),
        ("norms enable", "50+ layers", deepest, f"Transformer, LN, pre-norm, {where}"),
        ("better generalization", "regularization", f"{NO_RUN}: no training accuracy stands beside the test's", "–"),
        ("less sensitive to initialization", "yes", f"{NO_RUN}: see the two starts of notebook 01, section 7", "–"),
        ("covariate shift is why", "yes", f"{NO_RUN}: accuracies and losses tell no cause", "–"),
        ("normalization is mandatory", "yes", _without(counting), f"LSTM that counts, RMSE in pulses, {where}"),
    ]


def _without(frame: pd.DataFrame) -> str:
    """No norm against LN, at one length and at four."""
    told = []
    for lengths in sorted(frame.lengths.unique()):
        gap = Gap(counted(frame, lengths), "norm", "LN", "None", "error")
        says = {"clearly above zero": "no norm is better", "clearly below zero": "LN is better"}.get(
            gap.says, "not told"
        )
        told.append(f"{lengths} length{'s' * (lengths == 'four')}: LN − none {gap}, {says}")
    return "; ".join(told)


# ---------------------------------------------------------------------------------------------------------------------
# time and memory


def _memory_rows(channels: int = 512) -> list[tuple]:
    """What a norm learns and keeps over that many channels, beside the guide's count of parameters."""
    rows = []
    for norm, claimed in ((nn.BatchNorm1d, 4), (nn.LayerNorm, 2), (nn.RMSNorm, 1)):
        made, name = norm(channels), norm.__name__.removesuffix("1d")
        learned, held = (sum(v.numel() for v in values) for values in (made.parameters(), made.buffers()))
        ours = f"{learned:,} learned + {held:,} kept"
        rows.append((f"{name} of {channels} channels holds", f"{claimed * channels:,} parameters", ours, TORCH))
    return rows


def overhead_table(scale: str) -> pd.DataFrame:
    """One row a norm and model, in eval mode: model, norm, rounds: CPU time of one thread (ms) in each round.

    All variants take turns in a round, and norms are compared within it: what slows a whole round, such as a clock
    that falls, slows both. The times are of this CPU, in float32, and say nothing of a GPU.
    """
    rounds, small = ROUNDS.get(scale, 60), scale == "smoke"
    image, tokens = (x[:1] if small else x for x in (torch.randn(4, 32, 16, 16), torch.randn(4, 64, 128)))
    convs = {name: nn.Sequential(*(ConvBlock(32, 32, name) for _ in range(3))) for name in ("None", "BN", "GN", "IN")}
    layers = {name: TransformerLayer(128, norm=name) for name in ("None", "LN", "RMSN")}
    alone = {"None": nn.Identity(), "LN": nn.LayerNorm(128), "RMSN": nn.RMSNorm(128)}
    with exactly_threads(1):
        frames = [_timed("CNN", convs, image, rounds), _timed("Transformer layer", layers, tokens, rounds)]
        frames.append(_timed("the norm alone", alone, tokens, 4 * rounds))
    return pd.concat(frames, ignore_index=True)


@torch.no_grad()
def _timed(model: str, variants: dict[str, nn.Module], x: torch.Tensor, rounds: int) -> pd.DataFrame:
    times = {name: [] for name in variants}
    for i in range(rounds + 2):  # the first two warm up
        for name, variant in variants.items():
            variant.eval()
            start = time.thread_time()
            variant(x)
            if i > 1:
                times[name].append(1e3 * (time.thread_time() - start))
    return pd.DataFrame([dict(model=model, norm=name, rounds=found) for name, found in times.items()])


def _cost(table: pd.DataFrame, model: str, norm: str, base: str) -> str:
    """How much longer one takes than the other, round by round: median and quartiles; and that the rounds do not agree
    where the quartiles do not."""
    rounds = table[table.model == model].set_index("norm").rounds
    fractions = np.array(rounds[norm]) / np.array(rounds[base]) - 1
    low, middle, high = 100 * np.quantile(fractions, (0.25, 0.5, 0.75))
    told = "" if low > 0 or high < 0 else ", the rounds do not agree on the sign"
    return f"{middle:+.0f} % [{low:z.0f}, {high:z.0f}]{told}".replace("-", "−")


def _cost_rows(scale: str) -> list[tuple]:
    table, machine = overhead_table(scale), f"CPU time of one of {os.cpu_count()} cores, median and quartiles of rounds"
    rows = [
        (f"inference with {norm}", claimed, _cost(table, model, norm, "None"), f"{model}, {machine}")
        for (model, norm), claimed in OVERHEAD.items()
    ]
    for model, claimed in (("the norm alone", "–"), ("Transformer layer", "15–20 % (text), 18 % (LLaMA-7B, A100)")):
        what = f"RMSNorm is faster than LayerNorm: {model}"
        rows.append((what, claimed, _cost(table, model, "LN", "RMSN"), f"forward, {machine}"))
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# counts and arithmetic


def _sums() -> list[tuple]:
    """Numbers of the guide that follow from others of it, and counts of statistics; the shapes are the guide's."""
    saved, most = 1e6 / 1000 - 1e6 / 1180, 1 - 1 / 1.05
    told = f"LN costs at most {100 * most:.1f} % of the time, so that is the most that leaving it out can save"
    x = torch.randn(1, 8, 4, 4, generator=torch.Generator().manual_seed(0))
    same = torch.allclose(nn.BatchNorm2d(8)(x), nn.InstanceNorm2d(8)(x), atol=1e-5)
    alone = "defined: the values of InstanceNorm" if same else "defined: other values than InstanceNorm's"
    return [
        ("seconds saved over 1 million tokens, 1,000 → 1,180 a second", "180 s", f"{digits(saved)} s", ARITHMETIC),
        ("RMSNorm saves, where LayerNorm adds 3–5 %", "15–20 %", told, "arithmetic on the guide's own table"),
        ("GroupNorm(32, 64)", "2 channels a group", f"{64 // 32}", ARITHMETIC),
        ("GroupNorm(16, 64)", "4 channels a group", f"{64 // 16}", ARITHMETIC),
        ("GroupNorm(30, 64)", "not possible", _refused(lambda: nn.GroupNorm(30, 64)), TORCH),
        ("BatchNorm of (32, 64, 28, 28)", "64 means", f"{len(nn.BatchNorm2d(64).running_mean)} means", TORCH),
        ("LayerNorm of (32, 128, 512)", "32 × 128 means", f"{32 * 128:,} means", ARITHMETIC),
        ("BatchNorm of (32, 100, 256): values a statistic", "3,200", f"{32 * 100:,}", ARITHMETIC),
        ("LayerNorm of (32, 100, 256): values a statistic", "256", "256", ARITHMETIC),
        ("BatchNorm at batch 1, no positions", "undefined",
         _refused(lambda: nn.BatchNorm1d(8)(torch.ones(1, 8))), TORCH),
        ("BatchNorm at batch 1, 4 × 4 positions", "undefined", alone, TORCH),
        ("RMSNorm is numerically stable: it subtracts nothing", "yes", _rounding(), "float32 against float64, d = 512"),
    ]  # fmt: skip


def _refused(make: Callable[[], object]) -> str:
    try:
        make()
    except ValueError as error:
        return f"refused: {str(error).splitlines()[0]}"
    return "accepted"


def _rounding() -> str:
    """Largest relative error of float32 where the mean of a token is 1,000 times its spread."""
    x = 1000 + torch.randn(64, 512, generator=torch.Generator().manual_seed(0))
    error = {}
    for name, norm in (("LN", nn.LayerNorm(512)), ("RMSN", nn.RMSNorm(512, eps=1e-5))):
        exact = norm.double()(x.double())
        error[name] = ((norm.float()(x) - exact).abs().max() / exact.abs().max()).item()
    return f"largest relative error at mean 1,000 and spread 1: LN {error['LN']:.0e}, RMSN {error['RMSN']:.0e}"
