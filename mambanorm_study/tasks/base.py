"""The data of a task: three splits, what a model must know about them, and their shape without
loading them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mambanorm.checks import WHOLE, check_size
from mambanorm.errors import shown

IGNORED = -100
"""The label of a position that has none, where others of its row have one: torch's cross_entropy
leaves it out."""


class BadData(ValueError):
    """Data that no model can learn from, or that do not fit together; `load_task` adds the task's
    name."""


class Lazy:
    """Inputs that stay what they are (bytes, a mapped file, a folder of pictures) until rows of
    them are asked for.

    It takes the place of a Split's inputs: `read(rows)` takes indices (B,) and returns float32 (B,
    …).
    """

    dtype = torch.float32

    def __init__(self, shape: Sequence[int], read: Callable[[Tensor], Tensor]) -> None:
        self.shape, self.read = torch.Size(shape), read

    def dim(self) -> int:
        return len(self.shape)

    def is_floating_point(self) -> bool:
        return True

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows) -> Tensor:
        picked = torch.arange(len(self))[rows]
        return self.read(picked.reshape(-1)).reshape(*picked.shape, *self.shape[1:])


@dataclass(frozen=True, eq=False)
class Split:
    """One split, whole in memory.

    inputs: (n, L) token ids, stored as uint8, 0 = padding; or (n, L, F) float32; or images (n, H,
    W, C), float32 or bytes 0…255, which `batch` returns as -1…1. A `Lazy` stands for a tensor that
    would be too large. labels: (n,) int64; or one for each position of token ids, (n, L) int64,
    IGNORED where there is none to be told; or real-valued targets (n, T) float32. lengths: (n,)
    int64, or None where every row has all L positions, as images always have. Smaller whole numbers
    become int64. BadData where the three do not fit together or are no tensors of numbers.
    """

    inputs: Tensor
    labels: Tensor
    lengths: Tensor | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, Tensor | Lazy) and (name, value) != ("lengths", None):
                raise BadData(
                    f"{name} are {shown(value)}: a tensor is needed, use torch.as_tensor(…)"
                )
        shape = tuple(self.inputs.shape)
        if self.inputs.dtype not in (torch.float32, *WHOLE):
            raise BadData(f"inputs are {self.inputs.dtype}: allowed are float32 and whole numbers")
        if len(shape) not in (2, 3, 4):
            raise BadData(
                f"inputs have shape {shape}: allowed are (n, L), (n, L, F) and (n, H, W, C)"
            )
        if self.is_regression:
            self._check_targets()
        else:
            self._keep_whole("labels", shape[:2] if self.per_position else shape[:1])
        if self.lengths is not None:
            if len(shape) == 4 or self.per_position:
                raise BadData(
                    f"lengths are given for inputs {shape}, whose rows have no padding: give None"
                )
            self._keep_whole("lengths", shape[:1])
            if len(self):
                check_range("lengths", self.lengths, 1, shape[1])

    def _keep_whole(self, name: str, shape: tuple[int, ...]) -> None:
        tensor = getattr(self, name)
        if tensor.shape != shape or tensor.dtype not in WHOLE:
            given = f"{name} are {tensor.dtype} of shape {tuple(tensor.shape)}"
            raise BadData(f"{given}: {shape[0]} rows of inputs need whole numbers {shape}")
        object.__setattr__(self, name, tensor.long())

    def _check_targets(self) -> None:
        if self.labels.dim() != 2 or len(self.labels) != len(self.inputs):
            given = f"labels are {self.labels.dtype} of shape {tuple(self.labels.shape)}"
            raise BadData(
                f"{given}: {len(self.inputs)} rows need classes (n,), int64, or real-valued targets (n, T)"
            )
        if len(wrong := (~self.labels.isfinite()).nonzero()):
            row, column = wrong[0].tolist()
            raise BadData(
                f"target {column} of row {row} is {float(self.labels[row, column])}: mend the data"
            )

    @property
    def is_regression(self) -> bool:
        return self.labels.dtype == torch.float32

    @property
    def per_position(self) -> bool:
        """Whether each position of a row has a label of its own, such as the next token."""
        whole = self.labels.dtype in WHOLE
        return whole and self.labels.dim() == 2 and self.labels.shape == self.inputs.shape

    @property
    def told(self) -> Tensor:
        """The labels that there are: (n,), of positions all those that are not IGNORED."""
        return self.labels[self.labels != IGNORED] if self.per_position else self.labels

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows) -> tuple[Tensor, Tensor | None, Tensor]:
        """The picked rows, cut to the longest: inputs (B, L) int64, (B, L, F) or (B, H, W, C),
        lengths (B,) or None, labels (B,), (B, L) or (B, T).

        `rows`: a slice, or indices or a mask over the n rows (tensor, array or list). No row at
        all: ValueError.
        """
        if not isinstance(
            rows, slice
        ):  # torch makes an empty list a float tensor, which cannot index
            rows = torch.as_tensor(rows, dtype=None if len(rows) else torch.int64)
        if len(labels := self.labels[rows]) == 0:
            raise ValueError("rows picks no row: a batch needs at least one")
        inputs, lengths = self.inputs[rows], None
        if self.lengths is not None:
            lengths = self.lengths[rows]
            inputs = inputs[:, : int(lengths.max())]
        if not inputs.is_floating_point():
            inputs = inputs.float() / 127.5 - 1 if inputs.dim() == 4 else inputs.long()
        return inputs, lengths, labels


class Units(NamedTuple):
    """Mean and standard deviation of each target over the training rows, (T,): a model learns what
    is left."""

    mean: Tensor
    std: Tensor

    def scaled(self, targets: Tensor) -> Tensor:
        return (targets - self.mean.to(targets)) / self.std.to(targets)

    def back(self, values: Tensor) -> Tensor:
        return values * self.std.to(values) + self.mean.to(values)


SPLITS = ("train", "val", "test")


@dataclass(frozen=True, eq=False)
class TaskData:
    """Three splits and what a model must know: `vocab_size` for token ids, `in_features` for
    real-valued positions, `in_channels` for images; an image is cut into squares of `patch`²
    pixels.

    `targets`: for a regression, the name of each target with its unit; n_classes is then their
    number. Where every position has a label, it is the next token: a language model learns it, and
    n_classes is vocab_size.

    BadData for labels outside 0…n_classes − 1, token ids outside 0…vocab_size − 1, inputs of
    another kind than said, and inputs that are not finite: a run would only be counted as diverged.
    """

    train: Split
    val: Split
    test: Split
    n_classes: int
    vocab_size: int | None = None
    in_features: int | None = None
    in_channels: int | None = None
    patch: int = 1
    targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        ways = {name: getattr(self, name) for name in ("vocab_size", "in_features", "in_channels")}
        given = {name: way for name, way in ways.items() if way is not None}
        if len(given) != 1:
            raise BadData(f"given are {given}: give exactly one of {', '.join(ways)}")
        for name, size in {"n_classes": self.n_classes, "patch": self.patch, **given}.items():
            check_size(name, size)
        if self.targets and self.n_classes != len(self.targets):
            raise BadData(
                f"n_classes={self.n_classes} and {len(self.targets)} targets: of a regression both are one"
            )
        ((way, size),) = given.items()
        for name in SPLITS:
            if not isinstance(split := getattr(self, name), Split):
                raise BadData(f"the {name} split is {shown(split)}: a Split is needed")
            if len(split):  # load_task says so
                self._check_labels(name, split)
                self._check_inputs(name, split.inputs, way, size)

    def _check_inputs(self, name: str, inputs: Tensor | Lazy, way: str, size: int) -> None:
        dims = dict(vocab_size=2, in_features=3, in_channels=4)[way]
        whole = inputs.is_floating_point() == (dims > 2) or dims == 4
        if inputs.dim() != dims or (dims > 2 and inputs.shape[-1] != size) or not whole:
            given = f"{inputs.dtype} of shape {tuple(inputs.shape)}"
            raise BadData(f"inputs of the {name} split are {given}, which is not {way}={size}")
        if dims == 2:
            check_range(f"token ids of the {name} split", inputs, 0, size - 1)
        elif isinstance(inputs, Tensor) and not (
            inputs.sum().isfinite() or inputs.isfinite().all()
        ):  # the sum is fast
            row = int((~inputs.flatten(1).isfinite()).any(1).nonzero()[0])
            raise BadData(
                f"inputs of the {name} split hold NaN or infinite values, first in row {row}: mend the data"
            )

    def _check_labels(self, name: str, split: Split) -> None:
        if split.is_regression != bool(self.targets) or (
            self.targets and split.labels.shape[1] != len(self.targets)
        ):
            found = f"labels of the {name} split are {split.labels.dtype} of shape {tuple(split.labels.shape)}"
            names = "targets=('load in kWh/m²', …) names real-valued ones, and only these"
            raise BadData(f"{found}, and {len(self.targets)} targets are named: {names}")
        if self.targets:
            return
        check_range(f"labels of the {name} split", split.told, 0, self.n_classes - 1)
        if split.per_position != self.per_position or (
            self.per_position and self.n_classes != self.vocab_size
        ):
            sizes = f"n_classes={self.n_classes} and vocab_size={self.vocab_size}"
            raise BadData(f"labels of the {name} split, {sizes}: one label at each position is the next token, in all "
                          "splits, and both are one number")  # fmt: skip

    @property
    def positions(self) -> tuple[int, ...]:
        """The longest sequence of the three splits, (L,), or the largest image in patches, (H,
        W)."""
        splits = [getattr(self, name).inputs.shape for name in SPLITS]
        if self.in_channels is None:
            return (max(shape[1] for shape in splits),)
        return tuple(max(shape[axis] for shape in splits) // self.patch for axis in (1, 2))

    @property
    def per_position(self) -> bool:
        """Whether the next token is to be predicted at each position."""
        return self.train.per_position

    @property
    def units(self) -> Units | None:
        """How a regression's targets are scaled; None for classes."""
        if not self.targets:
            return None
        return Units(self.train.labels.mean(0), self.train.labels.std(0, correction=0))

    @property
    def chance(self) -> float:
        """Accuracy on test (a fraction) of always guessing the training split's most common class;
        of a regression 0, which is what predicting the training mean explains.

        The guess is made without the test labels. So this is what a model would get that learned
        only the class counts. Of equally common classes the smallest label is guessed.
        """
        if self.targets:
            return 0.0
        guess = torch.bincount(self.train.told).argmax()
        return float((self.test.told == guess).double().mean())

    @property
    def chance_loss(self) -> float | None:
        """Where each position has a label: loss on test, in nats a position, of always giving each
        label its share of the training labels; None elsewhere. It is to the loss what `chance` is
        to the accuracy.

        Each label is counted once more than it occurs, so that none has the probability 0.
        """
        if not self.per_position:
            return None
        counts = torch.bincount(self.train.told, minlength=self.n_classes).double() + 1
        return float(-(counts / counts.sum()).log()[self.test.told].mean())


def check_range(what: str, values: Tensor, least: int, most: int) -> None:
    """BadData unless all are in least…most."""
    low, high = (int(value) for value in values.aminmax())
    if low < least or high > most:
        raise BadData(f"{what} run from {low} to {high}: allowed are {least} to {most}")


@dataclass(frozen=True)
class Shape:
    """What a task's data look like at a scale, told without loading them; `mambanorm plan` counts
    with it.

    length: positions of a row of a batch, padding included (what is computed); tokens: without it,
    on average, 0 = all. held_out: rows of the validation and the test split; train_rows: of the
    training split, 0 = not told. reshuffled: the run's seed decides which rows these are. fresh: it
    draws new ones, which no other seed has. per_position: each position has a label. The other
    fields are those of TaskData.
    """

    n_classes: int
    length: int
    vocab_size: int | None = None
    in_features: int | None = None
    in_channels: int | None = None
    patch: int = 1
    tokens: int = 0
    held_out: tuple[int, int] = (0, 0)
    train_rows: int = 0
    reshuffled: bool = False
    fresh: bool = False
    per_position: bool = False
    targets: tuple[str, ...] = ()

    @property
    def positions(self) -> tuple[int, ...]:
        """As TaskData's."""
        return (self.length,) if self.in_channels is None else (math.isqrt(self.length),) * 2

    def batch(self, rows: int) -> Tensor:
        """Random inputs: (rows, L) ids, (rows, L, F) or (rows, H, W, C)."""
        if self.vocab_size is not None:
            return torch.randint(0, self.vocab_size, (rows, self.length))
        if self.in_features is not None:
            return torch.randn(rows, self.length, self.in_features)
        side = math.isqrt(self.length) * self.patch
        return torch.randn(rows, side, side, self.in_channels)

    def labels(self, rows: int) -> Tensor:
        """Random labels: (rows,) classes, (rows, L) of them, or (rows, targets) values."""
        if self.targets:
            return torch.randn(rows, len(self.targets))
        return torch.randint(
            0, self.n_classes, (rows, self.length) if self.per_position else (rows,)
        )
