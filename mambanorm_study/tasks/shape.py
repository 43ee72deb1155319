"""The shape of a task's data at a scale, known without loading or making the data."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Shape:
    """Sizes of a task's data, from which `mambanorm plan` estimates the cost of a run.

    length: positions of a row, padding included. tokens: mean number of positions without padding,
    0 = all. sizes: rows of the training, validation and test split, 0 = unknown. reshuffled: the
    run's seed decides which rows these are. fresh: each seed draws new rows. per_position: each
    position has a label. The other fields are those of TaskData.
    """

    n_classes: int
    length: int
    vocab_size: int | None = None
    in_features: int | None = None
    in_channels: int | None = None
    patch: int = 1
    tokens: int = 0
    sizes: tuple[int, int, int] = (0, 0, 0)
    reshuffled: bool = False
    fresh: bool = False
    per_position: bool = False
    targets: tuple[str, ...] = ()

    @property
    def train_rows(self) -> int:
        """Rows of the training split."""
        return self.sizes[0]

    @property
    def held_out(self) -> tuple[int, int]:
        """Rows of the validation and the test split."""
        return self.sizes[1:]

    @property
    def positions(self) -> tuple[int, ...]:
        """(L,), or (H, W) in patches for images."""
        return (self.length,) if self.in_channels is None else (math.isqrt(self.length),) * 2

    def batch(self, rows: int) -> Tensor:
        """Return random inputs: ids (rows, L), features (rows, L, F) or images (rows, H, W, C)."""
        if self.vocab_size is not None:
            return torch.randint(0, self.vocab_size, (rows, self.length))
        if self.in_features is not None:
            return torch.randn(rows, self.length, self.in_features)
        side = math.isqrt(self.length) * self.patch
        return torch.randn(rows, side, side, self.in_channels)

    def labels(self, rows: int) -> Tensor:
        """Return random labels: classes (rows,) or (rows, L), or targets (rows, T)."""
        if self.targets:
            return torch.randn(rows, len(self.targets))
        size = (rows, self.length) if self.per_position else (rows,)
        return torch.randint(0, self.n_classes, size)
