"""Where a deep model explodes before it has learned anything: the size of the outputs over depth and gain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from mambanorm.checks import check_size
from mambanorm.model.arms import Arm
from mambanorm.model.block import MambaBlock

ROWS, LENGTH = 8, 16


@torch.no_grad()
def growth_map(
    arm: str | Arm,
    gains: Sequence[float],
    *,
    n_layers: int = 24,
    d_model: int = 32,
    training: bool = True,
    seed: int = 0,
) -> np.ndarray:
    """The largest token's ‖y‖₂ after each block of a new stack of Mamba blocks, (gains, n_layers); infinite where a
    token is not finite, and from there on.

    A gain multiplies every block's out_proj as mamba-ssm draws it, and with it what each block adds to the residual
    stream. Input: a batch of unit normal numbers (8, 16, d_model). The seed decides weights and input; the caller's
    random state is left alone. ValueError for a size that is no whole number of at least 1, and for a gain that is not
    above 0.
    """
    check_size("n_layers", n_layers)
    if any(not gain > 0 for gain in gains):
        raise ValueError(f"gains must be above 0, got {list(gains)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        blocks = nn.ModuleList(MambaBlock(d_model, *Arm.parse(arm)) for _ in range(n_layers)).train(training)
        x = torch.randn(ROWS, LENGTH, d_model)
    drawn = [block.out_proj.weight.clone() for block in blocks]
    found = np.full((len(gains), n_layers), np.inf)
    for row, gain in zip(found, gains, strict=True):
        y = x
        for depth, (block, weight) in enumerate(zip(blocks, drawn, strict=True)):
            block.out_proj.weight.copy_(gain * weight)
            y = block(y)
            if not y.isfinite().all():
                break
            row[depth] = y.double().norm(dim=-1).max()
    return found
