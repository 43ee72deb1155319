"""Where a deep model explodes before it has learned anything: the size of the outputs over depth and gain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from mambanorm.arms import Arm
from mambanorm.basics.checks import check_size
from mambanorm.block import MambaBlock
from mambanorm.norms import NORMS

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
    arm = Arm.parse(arm)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        blocks = nn.ModuleList(MambaBlock(d_model, *arm) for _ in range(n_layers)).train(training)
        x = torch.randn(ROWS, LENGTH, d_model)
    if training:
        for block in blocks:
            _take_apart(block, len(gains))
    return _sizes(blocks, x, list(gains))


class _EachGain(nn.Module):
    """A norm that takes statistics over the batch, on the rows of each gain alone: they must not see another's."""

    def __init__(self, norm: nn.Module, gains: int):
        super().__init__()
        self.norm, self.gains = norm, gains

    def forward(self, x: Tensor, lengths: None = None) -> Tensor:
        return torch.cat([self.norm(rows) for rows in x.chunk(self.gains)])


def _take_apart(block: MambaBlock, gains: int) -> None:
    """The block goes over all gains at once, its norms over the batch do not."""
    over_batch = {site for site, name in block.arm.sites.items() if "B" in NORMS[name].axes}
    if "n1" in over_batch:
        block.n1, block.n1_forks = _EachGain(block.n1, gains), False
    if "n2" in over_batch:
        block.n2, block.n2_gates = _EachGain(block.n2, gains), False
    for site in over_batch - {"n1", "n2"}:
        block.more[site] = _EachGain(block.more[site], gains)


def _sizes(blocks: nn.ModuleList, x: Tensor, gains: list[float]) -> np.ndarray:
    """The rows of `growth_map` for these gains."""
    y, factors = x.repeat(len(gains), 1, 1), torch.tensor(gains).repeat_interleave(len(x)).view(-1, 1, 1)
    found = np.empty((len(gains), len(blocks)))
    for depth, block in enumerate(blocks):
        y = y + factors * (block(y) - y)  # out_proj is linear: a gain on it is one on what the block adds
        sizes = y.double().norm(dim=-1).view(len(gains), -1).amax(1)  # what is not finite stays so in the residual sum
        found[:, depth] = torch.where(sizes.isfinite(), sizes, torch.inf).numpy()
    return found
