"""Stochastic depth: a residual branch is left out at random, row by row (Huang et al. 2016)."""

from __future__ import annotations

from torch import Tensor, nn


def check_drop_path(rate: object) -> None:
    """ValueError unless it is a rate from 0 to below 1."""
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
        raise ValueError(f"drop_path must be a number from 0 to below 1, got {rate!r}")


def drop_rates(rate: float, n_layers: int) -> list[float]:
    """Of each block: from 0 at the first to the whole rate at the last. A single block has all of it."""
    check_drop_path(rate)
    return [rate * (i / (n_layers - 1) if n_layers > 1 else 1.0) for i in range(n_layers)]


class DropPath(nn.Module):
    """In training a branch (B, …) is zero for a share `rate` of the rows, and larger by 1/(1 − rate) for the others, so
    that its expectation is the branch. The draws are torch's."""

    def __init__(self, rate: float = 0.0):
        super().__init__()
        check_drop_path(rate)
        self.rate = float(rate)

    def forward(self, branch: Tensor) -> Tensor:
        if not self.training or self.rate == 0.0:
            return branch
        kept = branch.new_empty(len(branch), *[1] * (branch.dim() - 1)).bernoulli_(1 - self.rate)
        return branch * (kept / (1 - self.rate))

    def around(self, y: Tensor, x: Tensor) -> Tensor:
        """The same for a block that adds its residual itself, y = x + branch."""
        return x + self(y - x) if self.training and self.rate else y

    def extra_repr(self) -> str:
        return f"{self.rate}"
