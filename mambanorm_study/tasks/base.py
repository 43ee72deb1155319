"""Hold and check the data of a task: three splits, and the sizes that a model needs.

Glossary: n rows of a split, B rows of a batch, L positions of a row, F features of a position, T
targets; H, W, C = rows, columns and channels of an image.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mambanorm.checks import WHOLE, check_size
from mambanorm.errors import shown

SPLITS = ("train", "val", "test")
# For each field of TaskData that gives the size of the inputs: the number of axes that the inputs
# have, and their allowed dtypes
INPUTS = {
    "vocab_size": (2, WHOLE),
    "in_features": (3, (torch.float32,)),
    "in_channels": (4, (torch.float32, *WHOLE)),
}


class BadData(ValueError):
    """Raised for data that no model can learn from, such as labels that do not fit the inputs."""


class LazyInputs:
    """Inputs of a Split. A row is read or converted only when a batch needs this row.

    shape: (n, …), the shape of all inputs. read(rows) takes row indices (B,) and returns a float32
    tensor (B, …).
    """

    dtype = torch.float32

    def __init__(self, shape: Sequence[int], read: Callable[[Tensor], Tensor]) -> None:
        self.shape, self.read = torch.Size(shape), read

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows) -> Tensor:
        indices = torch.arange(len(self))[rows]
        return self.read(indices.reshape(-1)).reshape(*indices.shape, *self.shape[1:])


@dataclass(frozen=True, eq=False)
class Split:
    """One split of a task: n rows of inputs with their labels.

    inputs: token ids (n, L) of any integer type, where 0 is padding; or float32 features
    (n, L, F); or images (n, H, W, C) as float32, or as bytes 0…255 that `batch` converts to −1…1.
    Use LazyInputs for inputs that do not fit into memory.
    labels: classes (n,) int64; or, for token ids, one label per position, (n, L) int64; or
    real-valued targets (n, T) float32.
    lengths: number of positions of each row without padding, (n,) int64; None means that no row is
    padded.

    Labels and lengths of smaller integer types are converted to int64. Raises BadData if a field
    has another type, if the shapes of the fields do not fit together, or if targets are not finite.
    """

    inputs: Tensor | LazyInputs
    labels: Tensor
    lengths: Tensor | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            is_omitted = name == "lengths" and value is None
            if not is_omitted and not isinstance(value, Tensor | LazyInputs):
                raise BadData(
                    f"{name} are {shown(value)}: a tensor is needed, use torch.as_tensor(…)"
                )
        n = len(self.inputs)
        if self.is_regression:
            labels_fit = self.labels.dim() == 2 and len(self.labels) == n
        else:
            labels_fit = self.labels.dtype in WHOLE and (
                self.per_position or self.labels.shape == (n,)
            )
        if not labels_fit:
            raise BadData(
                f"labels are {self.labels.dtype} of shape {tuple(self.labels.shape)}: {n} rows of "
                "inputs need classes (n,) or one label for each position (n, L) as whole numbers, "
                "or targets (n, T) as float32"
            )
        if self.is_regression:
            _check_finite("targets", self.labels)
        else:
            object.__setattr__(self, "labels", self.labels.long())
        if self.lengths is not None:
            self._check_lengths(n)
            object.__setattr__(self, "lengths", self.lengths.long())

    def _check_lengths(self, n: int) -> None:
        shape = tuple(self.inputs.shape)
        if len(shape) == 4 or self.per_position:
            raise BadData(
                f"lengths are given for inputs {shape}, whose rows have no padding: "
                "give lengths=None"
            )
        if self.lengths.shape != (n,) or self.lengths.dtype not in WHOLE:
            raise BadData(
                f"lengths are {self.lengths.dtype} of shape {tuple(self.lengths.shape)}: "
                f"{n} rows of inputs need whole numbers ({n},)"
            )
        _check_range("lengths", self.lengths, 1, shape[1])

    @property
    def is_regression(self) -> bool:
        """True if the labels are real-valued targets."""
        return self.labels.dtype == torch.float32

    @property
    def per_position(self) -> bool:
        """True if each position of a row has a label, such as the next token."""
        return (
            self.labels.dtype in WHOLE
            and self.labels.dim() == 2
            and self.labels.shape == self.inputs.shape
        )

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows, *, cut: bool = True) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return the inputs, the lengths and the labels of some rows.

        inputs: (B, L) int64, (B, L, F) or (B, H, W, C), where L is the length of the longest of
        these rows, or of all rows of the split if `cut` is False; lengths: (B,) or None; labels:
        (B,), (B, L) or (B, T). rows: a slice, row indices, or a mask over the n rows; indices and
        masks as a tensor, an array or a list. Raises ValueError if no row is selected.
        """
        labels = self.labels[rows]
        if len(labels) == 0:
            raise ValueError("rows selects no row: a batch needs at least one row")
        inputs, lengths = self.inputs[rows], None
        if self.lengths is not None:
            lengths = self.lengths[rows]
            inputs = inputs[:, : int(lengths.max())] if cut else inputs
        if not inputs.dtype.is_floating_point:
            inputs = inputs.float() / 127.5 - 1 if len(inputs.shape) == 4 else inputs.long()
        return inputs, lengths, labels


def consecutive_splits(inputs: Tensor, labels: Tensor, sizes: Sequence[int]) -> list[Split]:
    """Return a list of Splits: the first sizes[0] rows, the next sizes[1] rows, and so on."""
    return list(map(Split, inputs.split(sizes), labels.split(sizes)))


class Units(NamedTuple):
    """Mean (T,) and standard deviation (T,) of the T targets over the training rows.

    A model learns the standardized targets.
    """

    mean: Tensor
    std: Tensor

    def standardize(self, targets: Tensor) -> Tensor:
        """Return the standardized targets."""
        return (targets - self.mean.to(targets)) / self.std.to(targets)

    def restore(self, values: Tensor) -> Tensor:
        """Return standardized values in the units of the targets (inverse of `standardize`)."""
        return values * self.std.to(values) + self.mean.to(values)


@dataclass(frozen=True, eq=False)
class TaskData:
    """The three splits of a task and the sizes that a model needs.

    Give exactly one of three sizes: `vocab_size` for token ids, `in_features` for sequences of
    features, `in_channels` for images. An image is cut into squares of patch × patch pixels.

    targets: for a regression, the name of each target with its unit; n_classes is then the number
    of targets. If every position has a label, this label is the next token, as for a language
    model, and n_classes must equal vocab_size.

    Raises BadData for labels outside 0…n_classes − 1, for token ids outside 0…vocab_size − 1, and
    for inputs that do not fit the given size or are not finite.
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
        sizes = {name: getattr(self, name) for name in INPUTS if getattr(self, name) is not None}
        if len(sizes) != 1:
            raise BadData(f"got {sizes}: give exactly one of {', '.join(INPUTS)}")
        for name in ("n_classes", "patch", *sizes):
            check_size(name, getattr(self, name))
        if self.targets and self.n_classes != len(self.targets):
            raise BadData(
                f"n_classes={self.n_classes} and {len(self.targets)} targets: "
                "for a regression these two numbers must be equal"
            )
        ((size_name, size),) = sizes.items()
        for name in SPLITS:
            split = getattr(self, name)
            self._check_labels(name, split)
            _check_inputs(name, split.inputs, size_name, size)

    def _check_labels(self, split_name: str, split: Split) -> None:
        n_targets = split.labels.shape[1] if split.is_regression else 0
        if n_targets != len(self.targets):
            raise BadData(
                f"labels of the {split_name} split are {split.labels.dtype} of shape "
                f"{tuple(split.labels.shape)}, and {len(self.targets)} targets are named: "
                "targets=('load in kWh/m²', …) must name each real-valued target, not classes"
            )
        if self.targets:
            return
        _check_range(f"labels of the {split_name} split", split.labels, 0, self.n_classes - 1)
        sizes_differ = self.per_position and self.n_classes != self.vocab_size
        if split.per_position != self.per_position or sizes_differ:
            raise BadData(
                f"labels of the {split_name} split, n_classes={self.n_classes} and "
                f"vocab_size={self.vocab_size}: if each position has a label, the label is the "
                "next token in all splits, and n_classes must equal vocab_size"
            )

    @property
    def positions(self) -> tuple[int, ...]:
        """Return the size of the largest inputs: (L,), or (rows, columns) of patches for images."""
        shapes = [getattr(self, name).inputs.shape for name in SPLITS]
        if self.in_channels is None:
            return (max(shape[1] for shape in shapes),)
        return tuple(max(shape[axis] for shape in shapes) // self.patch for axis in (1, 2))

    @property
    def per_position(self) -> bool:
        """True if a model predicts the next token at each position."""
        return self.train.per_position

    @property
    def units(self) -> Units | None:
        """Mean and standard deviation of a regression's training targets; None for classes."""
        if not self.targets:
            return None
        return Units(self.train.labels.mean(0), self.train.labels.std(0, correction=0))

    @property
    def chance(self) -> float:
        """Test accuracy (0…1) of always guessing the most common class of the training rows.

        A model that has learned only the class counts reaches this accuracy. If several classes are
        equally common, the smallest label is guessed. For a regression, the value is 0, because
        predicting the training mean explains no variance.
        """
        if self.targets:
            return 0.0
        guess = torch.bincount(self.train.labels.flatten()).argmax()
        return float((self.test.labels == guess).double().mean())

    @property
    def chance_loss(self) -> float | None:
        """Test loss, in nats per position, of predicting each label with its training frequency.

        This is the counterpart of `chance` for the loss. The value is None unless each position has
        a label. One is added to the count of each label, so that no label has probability 0.
        """
        if not self.per_position:
            return None
        counts = torch.bincount(self.train.labels.flatten(), minlength=self.n_classes).double() + 1
        return float(-(counts / counts.sum()).log()[self.test.labels].mean())


def _check_inputs(split_name: str, inputs: Tensor | LazyInputs, size_name: str, size: int) -> None:
    """Raise BadData unless the inputs of a split are finite and fit the size of the task.

    size_name: a key of INPUTS, such as "vocab_size". size: the value of this field of TaskData.
    """
    n_axes, dtypes = INPUTS[size_name]
    size_fits = size_name == "vocab_size" or inputs.shape[-1] == size
    if len(inputs.shape) != n_axes or not size_fits or inputs.dtype not in dtypes:
        raise BadData(
            f"inputs of the {split_name} split are {inputs.dtype} of shape {tuple(inputs.shape)}, "
            f"which does not fit {size_name}={size}: {n_axes} axes of {dtypes[0]} are needed"
        )
    if size_name == "vocab_size":
        _check_range(f"token ids of the {split_name} split", inputs, 0, size - 1)
    elif isinstance(inputs, Tensor):
        _check_finite(f"inputs of the {split_name} split", inputs)


def _check_finite(description: str, values: Tensor) -> None:
    invalid = (~values.isfinite()).nonzero()
    if len(invalid):
        raise BadData(
            f"{description} hold NaN or infinite values, first in row {int(invalid[0, 0])}: "
            "fix the data"
        )


def _check_range(description: str, values: Tensor, minimum: int, maximum: int) -> None:
    """Raise BadData unless all values are in minimum…maximum; `description` names the values."""
    if values.numel():
        low, high = map(int, values.aminmax())
        if low < minimum or high > maximum:
            raise BadData(
                f"{description} range from {low} to {high}: allowed are {minimum} to {maximum}"
            )
