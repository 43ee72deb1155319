"""What a norm takes no notice of, found by trying: the same input is changed in six ways, and the output compared.

prepared_norm         a norm whose running statistics have settled on a batch
invariance_trials     norm and batch → one row a change, with how far the output moved
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.norms import create_norm

SETTLING = 40
"""Passes after which running statistics have forgotten their start: 0.9⁴⁰ = 1.5 % of it is left."""
UNMOVED = 0.01
"""The most by which an output may move, in its own standard deviations, and still count as unmoved: ε is added to every
variance, so that no norm is exactly blind to a change of scale."""


def prepared_norm(name: str, x: Tensor, *, groups: int = 4, training: bool = True) -> nn.Module:
    """The norm for the channels of x (B, L, D), in x's dtype and in the mode asked for. A norm with running statistics
    has seen SETTLING random halves of the rows in training mode before. The caller's random state is left alone."""
    draw = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        norm = create_norm(name, x.shape[-1], groups=groups).to(x.dtype).train()
        for _ in range(SETTLING if any(True for _ in norm.buffers()) else 0):
            norm(x[torch.randperm(len(x), generator=draw)[: max(1, len(x) // 2)]])
    return norm.train(training)


def invariance_trials(name: str, x: Tensor, *, groups: int = 4, training: bool = True) -> pd.DataFrame:
    """One row a change of x (B, L, D): change (its name), moved (by how many of its standard deviations the first row's
    output moved at most) and unmoved (True up to UNMOVED). Of changed later positions only earlier outputs count, and
    of changed batch-mates only the first row's. ValueError for fewer than two rows or positions, for there is then no
    batch-mate or no future."""
    if x.dim() != 3 or min(x.shape[:2]) < 2:
        raise ValueError(f"trials need x (B, L, D) with at least 2 rows and 2 positions, got {tuple(x.shape)}")
    x, half = x.double(), x.shape[1] // 2
    norm = prepared_norm(name, x, groups=groups, training=training)
    with torch.no_grad():
        y = norm(x)[0]
        rows = []
        for change, (changed, where) in _changes(x, half).items():
            moved = (norm(changed)[0] - y)[where].abs().max() / y.std().clamp(min=1e-12)
            rows.append(dict(change=change, moved=float(moved), unmoved=bool(moved <= UNMOVED)))
    return pd.DataFrame(rows)


def _changes(x: Tensor, half: int) -> dict[str, tuple[Tensor, slice]]:
    """Name → the changed batch, and the positions that are compared."""
    draw = torch.Generator().manual_seed(1)
    channels = torch.rand(x.shape[-1], generator=draw, dtype=x.dtype) + 0.5
    noise = 3 * torch.randn(x.shape, generator=draw, dtype=x.dtype)
    everywhere = slice(None)
    return {
        "all values × 3": (3 * x, everywhere),
        "all values + 5": (x + 5, everywhere),
        "each channel × its own": (x * channels, everywhere),
        "each channel + its own": (x + 10 * channels, everywhere),
        "other rows": (_replaced(x, lambda y: y[1:], noise), everywhere),
        "later positions": (_replaced(x, lambda y: y[:, half:], noise), slice(0, half)),
    }


def _replaced(x: Tensor, part: Callable[[Tensor], Tensor], by: Tensor) -> Tensor:
    """x with one part, a view of it, moved."""
    changed = x.clone()
    part(changed).add_(part(by))
    return changed
