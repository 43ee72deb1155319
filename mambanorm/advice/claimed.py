"""Every number that the guide (S4) claims, beside the one that is measured or computed here. No number is agreed with
by hand: each of ours comes from the rows of an experiment, from costs.py or from arithmetic.

Our models, data and machine are others than the guide's (which names none for most of its numbers), so the table shows
a pattern beside a pattern. `setting` says where ours is made.
"""

from __future__ import annotations

import math
import os

import pandas as pd
from torch import nn

from mambanorm.advice.claimed_words import counts, words
from mambanorm.advice.costs import memory_table, overhead_table, ratio
from mambanorm.advice.evidence import paired_by_seed
from mambanorm.advice.experiments import REACHED, measure
from mambanorm.basics.text import digits
from mambanorm.study.intervals import t_interval
from mambanorm.study.tables import points, seeds_text

IMAGENET = {32: (76.5, 76.3), 8: (75.8, 76.1), 2: (72.1, 75.3)}
"""Batch → accuracy of BN and of GN that the guide prints (ResNet-50, ImageNet), as of “He et al.”."""
OVERHEAD = {
    ("CNN", "BN"): "+2 %", ("CNN", "GN"): "+5–8 %", ("CNN", "IN"): "+3–5 %", ("Transformer layer", "LN"): "+3–5 %",
    ("Transformer layer", "RMSN"): "+2–3 %",
}  # fmt: skip
"""Model and norm → what the guide says it adds to inference."""
COLUMNS = ["claim", "claimed", "here", "setting"]


def claimed_and_measured(scale: str | None = None, seeds=None, runs_dir=None) -> pd.DataFrame:
    """One row a number: claim, claimed, here, setting."""
    given = (scale, seeds, runs_dir)
    rows = [*_batch_rows(*given), *_rate_rows(*given), *_depth_rows(*given), *_cost_rows(scale), *_sums()]
    batch, depth, counting = (measure(name, *given) for name in ("batch_size", "depth", "counting"))
    rows += [*counts(), *words(batch, depth, counting, _setting(batch, "").removeprefix(", "))]
    return pd.DataFrame(rows, columns=COLUMNS)


def _setting(frame: pd.DataFrame, what: str) -> str:
    return f"{what}, {frame.scale.iloc[0]} scale, {seeds_text([frame.seed.nunique()])}"


def _batch_rows(scale, seeds, runs_dir) -> list[tuple]:
    frame, rows = measure("batch_size", scale, seeds, runs_dir), []
    for batch in sorted(frame.batch.unique(), reverse=True):
        here = frame[frame.batch == batch]
        means = here.groupby("norm").accuracy.mean()
        gap = paired_by_seed(here, "norm", "BN", "GN", "accuracy")
        ours = f"{means.BN:.1f} / {means.GN:.1f} % (BN − GN: {points(gap.mean(), *t_interval(gap))})"
        claimed = "{:.1f} / {:.1f} %".format(*IMAGENET[batch]) if batch in IMAGENET else "–"
        rows.append((f"BN / GN at batch {batch}", claimed, ours, _setting(frame, "small CNN, digits")))
    dense = measure("dense", scale, seeds, runs_dir)
    for what, measured in (("small CNN", frame), ("net of linear layers", dense)):
        rows.append((f"BatchNorm fails below batch ({what})", "8", _fails_below(measured), _setting(measured, what)))
    return rows


def _fails_below(frame: pd.DataFrame) -> str:
    gaps = {b: paired_by_seed(frame[frame.batch == b], "norm", "BN", "GN", "accuracy") for b in frame.batch.unique()}
    behind = {b: gap.mean() for b, gap in sorted(gaps.items()) if t_interval(gap)[1] < 0}
    told = ", ".join(f"{b} ({points(gap).split(' (')[0]})" for b, gap in behind.items())
    return f"BN is told to be behind GN at batch {told}" if behind else "BN is nowhere told to be behind GN"


def _rate_rows(scale, seeds, runs_dir) -> list[tuple]:
    frame = measure("rates", scale, seeds, runs_dir)
    setting = _setting(frame, "the same CNN, SGD, each norm at the rate of its best test accuracy")
    best = frame.groupby(["norm", "lr"]).accuracy.mean().groupby("norm").idxmax().map(lambda pair: pair[1])
    at_best = {norm: frame[(frame.norm == norm) & (frame.lr == best[norm])] for norm in best.index}
    limit = int(frame.limit.iloc[0])
    soon = {norm: rows.reached.fillna(math.inf).median() for norm, rows in at_best.items()}
    steps = {norm: f"{value:.0f}" if value < math.inf else f"more than {limit}" for norm, value in soon.items()}
    ours = f"steps to {REACHED:.0f} %: none {steps['None']}, BN {steps['BN']}, GN {steps['GN']}"
    if soon["BN"] < math.inf:
        least = min(soon["None"], limit) / soon["BN"]
        ours += f"; BN {'more than ' if soon['None'] == math.inf else ''}{least:.1f} times as fast"
    trains = _setting(
        frame, "the same CNN, SGD, a rate trains that brings at least half of the best rate's test accuracy"
    )
    return [
        ("a norm converges faster", "10 × (100 → 10 epochs)", ours, setting),
        ("a norm allows larger rates", "10 × (0.001 → 0.01)", _larger_rates(frame), trains),
    ]


def _larger_rates(frame: pd.DataFrame) -> str:
    """The largest rate of each norm that trains, and how much larger than none's: "at least" at the edge."""
    largest = {norm: _largest_rate(frame[frame.norm == norm]) for norm in ("None", "BN", "GN")}
    edge, bare = frame.lr.max(), largest.pop("None")
    least = {norm: "at least " if lr == edge else "" for norm, lr in largest.items()}
    rates = ", ".join([f"none {bare:g}", *(f"{norm} {least[norm]}{lr:g}" for norm, lr in largest.items())])
    ours = f"largest of the rates tried that trains (up to {edge:g}): {rates}"
    if not bare or bare == edge:
        return ours
    larger = [f"{norm}'s is {least[norm]}{lr / bare:.0f} times as large" for norm, lr in largest.items() if lr > bare]
    same = [f"{norm} allows no larger one" for norm, lr in largest.items() if lr <= bare]
    return "; ".join([ours, *larger, *same])


def _largest_rate(frame: pd.DataFrame) -> float:
    """The largest rate at which the mean accuracy is at least half of that at the best rate; 0 for none above 20 %."""
    mean = frame.groupby("lr").accuracy.mean()
    trains = mean[(mean >= mean.max() / 2) & (mean > 20)]
    return float(trains.index.max()) if len(trains) else 0.0


def _depth_rows(scale, seeds, runs_dir) -> list[tuple]:
    frame = measure("depth", scale, seeds, runs_dir)
    frame, rms = frame[frame.norm == "LN"], frame[frame.norm == "RMSN"]
    setting = _setting(frame, "Transformer, d = 32, digits by rows, no warm-up")
    gaps = []
    for n in sorted(frame.depth.unique()):
        gap = paired_by_seed(frame[frame.depth == n], "place", "pre", "post", "accuracy")
        gaps.append(f"{n} layers: pre − post {points(gap.mean(), *t_interval(gap))}")
    rows = [("post-norm is hard to train above", "12 layers", "; ".join(gaps), setting)]
    if len(rms):
        same = frame[(frame.depth == rms.depth.iloc[0]) & (frame.place == "pre")].set_index("seed").accuracy
        gap = (rms.set_index("seed").accuracy - same).dropna()
        ours = f"RMSN − LN {points(gap.mean(), *t_interval(gap))}"
        rows.append(("RMSN in place of LN, accuracy", "the same", ours, setting))
    return rows


def _cost_rows(scale) -> list[tuple]:
    table, machine = overhead_table(scale), f"CPU time of one of {os.cpu_count()} cores, median and quartiles of rounds"
    rows = [
        (f"inference with {norm}", claimed, _cost(table, model, norm, "None"), f"{model}, {machine}")
        for (model, norm), claimed in OVERHEAD.items()
    ]
    for model, claimed in (("the norm alone", "–"), ("Transformer layer", "15–20 % (text), 18 % (LLaMA-7B, A100)")):
        what = f"RMSNorm is faster than LayerNorm: {model}"
        rows.append((what, claimed, _cost(table, model, "LN", "RMSN"), f"forward, {machine}"))
    for row in memory_table().itertuples():
        ours = f"{row.parameters:,} learned + {row.buffers:,} kept"
        rows.append((f"{row.norm} of 512 channels holds", f"{row.claimed:,} parameters", ours, "counted in torch"))
    return rows


def _cost(table: pd.DataFrame, model: str, norm: str, base: str) -> str:
    """How much longer one takes than the other, and that the rounds do not agree where their quartiles do not."""
    middle, low, high = (100 * value for value in ratio(table, model, norm, base))
    told = "" if low > 0 or high < 0 else ", the rounds do not agree on the sign"
    return f"{middle:+.0f} % [{low:z.0f}, {high:z.0f}]{told}".replace("-", "−")


def _sums() -> list[tuple]:
    """Numbers of the guide that follow from others of it."""
    saved = 1e6 / 1000 - 1e6 / 1180
    most = 1 - 1 / 1.05
    told = f"LN costs at most {100 * most:.1f} % of the time, so that is the most that leaving it out can save"
    one = nn.GroupNorm(32, 64)
    return [
        ("seconds saved over 1 million tokens, 1,000 → 1,180 a second", "180 s", f"{digits(saved)} s", "arithmetic"),
        ("RMSNorm saves, where LayerNorm adds 3–5 %", "15–20 %", told, "arithmetic on the guide's own table"),
        ("GroupNorm(32, 64)", "2 channels a group", f"{one.num_channels // one.num_groups}", "counted in torch"),
    ]
