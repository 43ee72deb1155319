"""What a norm costs on this machine: time beside the same model without it, and numbers kept.

Times are CPU times of one thread, over rounds in which all variants take turns: norms are compared within a round.
They are of this CPU, in float32, and say nothing of a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pandas as pd
import torch
from torch import nn

from mambanorm.advice.blocks import TransformerLayer, norm_2d
from mambanorm.basics.settings import check_scale, default_scale
from mambanorm.kernels.threads import exactly_threads

ROUNDS = {"smoke": 2, "quick": 30}


def memory_table(channels: int = 512) -> pd.DataFrame:
    """One row a norm: parameters (learned), buffers (kept), the guide's count, over that many channels."""
    made = {"BatchNorm": nn.BatchNorm1d(channels), "LayerNorm": nn.LayerNorm(channels), "RMSNorm": nn.RMSNorm(channels)}
    rows = []
    for (name, norm), claimed in zip(made.items(), (4, 2, 1), strict=True):
        facts = dict(norm=name, parameters=sum(p.numel() for p in norm.parameters()))
        rows.append(facts | dict(buffers=sum(b.numel() for b in norm.buffers()), claimed=claimed * channels))
    return pd.DataFrame(rows)


def overhead_table(scale: str | None = None) -> pd.DataFrame:
    """One row a norm and model: forward time in eval mode against the model without a norm, as a fraction above 1:
    model, norm, ms (median), overhead, low, high (median and quartiles of `ratio`), rounds (ms of each)."""
    scale = default_scale() if scale is None else check_scale(scale)
    rounds, small = ROUNDS.get(scale, 60), scale == "smoke"
    image, tokens = torch.randn(4, 32, 16, 16), torch.randn(4, 64, 128)
    if small:
        image, tokens = image[:1], tokens[:1]
    convs = {name: nn.Sequential(*_conv(name)).eval() for name in ("None", "BN", "LN", "GN", "IN")}
    layers = {name: TransformerLayer(128, norm=name).eval() for name in ("None", "LN", "RMSN")}
    alone = {"None": nn.Identity(), "LN": nn.LayerNorm(128), "RMSN": nn.RMSNorm(128)}
    with exactly_threads(1):
        frames = [_timed("CNN", convs, image, rounds), _timed("Transformer layer", layers, tokens, rounds)]
        frames.append(_timed("the norm alone", alone, tokens, 4 * rounds))
    return pd.concat(frames, ignore_index=True)


def _conv(norm: str) -> list[nn.Module]:
    return [layer for _ in range(3) for layer in (nn.Conv2d(32, 32, 3, padding=1), norm_2d(norm, 32), nn.ReLU())]


@torch.no_grad()
def _timed(model: str, variants: dict[str, Callable], x: torch.Tensor, rounds: int) -> pd.DataFrame:
    times = {name: [] for name in variants}
    for i in range(rounds + 2):  # the first two warm up
        for name, variant in variants.items():
            start = time.thread_time()
            variant(x)
            if i > 1:
                times[name].append(time.thread_time() - start)
    rounds_ms = {name: 1e3 * np.array(values) for name, values in times.items()}
    table = pd.DataFrame([dict(model=model, norm=n, ms=np.median(v), rounds=v.tolist()) for n, v in rounds_ms.items()])
    found = [ratio(table, model, norm) for norm in table.norm]
    return table.assign(**dict(zip(("overhead", "low", "high"), zip(*found, strict=True), strict=True)))


def ratio(table: pd.DataFrame, model: str, norm: str, base: str = "None") -> tuple[float, float, float]:
    """Time of one norm above another's as a fraction, round by round: median and quartiles. What slows a whole round,
    such as a clock that falls, slows both."""
    rounds = table[table.model == model].set_index("norm").rounds
    fractions = np.array(rounds[norm]) / np.array(rounds[base]) - 1
    low, middle, high = np.quantile(fractions, (0.25, 0.5, 0.75))
    return float(middle), float(low), float(high)
