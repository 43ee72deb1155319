"""What a norm costs on this machine: time beside the same model without it, and numbers kept.

Times are CPU times of one thread, medians over rounds in which all variants take turns: other processes do not enter.
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
from mambanorm.kernels.threads import exactly_threads
from mambanorm.settings import check_scale, default_scale

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
    model, norm, ms, overhead, low, high (quartiles over rounds)."""
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
    base = np.array(times["None"])
    rows = []
    for name, values in times.items():
        ratio = np.array(values) / np.median(base) - 1
        low, high = np.quantile(ratio, (0.25, 0.75))
        facts = dict(model=model, norm=name, ms=1e3 * np.median(values), overhead=float(np.median(ratio)))
        rows.append(facts | dict(low=low, high=high))
    return pd.DataFrame(rows)
