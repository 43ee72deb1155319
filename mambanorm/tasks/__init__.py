"""The data a run learns from: what a task is, the registry of tasks, and how one is loaded.

    config -> **task** -> model -> train -> run store

Map
    Split           inputs, labels and lengths of one split, whole in memory; `batch` hands out padded batches
    TaskData        three splits and what a model must know about them (classes, vocabulary or features, chance)
    Task, TASKS     a name, a title, a source and a load function; one file a task, registered where it is defined
    register_task   how a task enters the registry, one of yours too
    load_task       name, scale, seed -> TaskData; the last few are kept, so that many arms share them
    prepare_task    name, scale: downloads or makes the data first

Glossary: n = sequences or images in a split, B = those in a batch, L = positions, F = features a position; H, W, C =
rows, columns and channels of an image.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from mambanorm.config import SCALES
from mambanorm.errors import NotRegistered, unknown
from mambanorm.extensions import load_imports


@dataclass(frozen=True, eq=False)
class Split:
    """One split, whole in memory.

    inputs: (n, L) token ids, stored as uint8, 0 = padding; or (n, L, F) float32; or images (n, H, W, C), float32 or
    bytes 0…255, which a batch has as -1…1. `tasks.images.Lazy` stands for a tensor that would be too large.
    labels: (n,) int64.  lengths: (n,) int64, or None where every row has all L positions, as images always have.
    ValueError where the three do not fit together.
    """

    inputs: Tensor
    labels: Tensor
    lengths: Tensor | None = None

    def __post_init__(self) -> None:
        if self.inputs.dim() not in (2, 3, 4):
            allowed = "(n, L), (n, L, F) and (n, H, W, C)"
            raise ValueError(f"inputs have shape {tuple(self.inputs.shape)}: allowed are {allowed}")
        if self.inputs.dim() == 4 and self.lengths is not None:
            raise ValueError(f"lengths are given for images {tuple(self.inputs.shape)}: images have none, give None")
        n, positions = self.inputs.shape[:2]
        for name in ("labels", "lengths"):
            tensor = getattr(self, name)
            if tensor is not None and tensor.shape != (n,):
                raise ValueError(f"{name} have shape {tuple(tensor.shape)}: {n} rows of inputs need ({n},)")
        if self.lengths is not None and n and not 1 <= self.lengths.min() <= self.lengths.max() <= positions:
            low, high = int(self.lengths.min()), int(self.lengths.max())
            raise ValueError(f"lengths run from {low} to {high}: allowed are 1 to {positions}")

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows) -> tuple[Tensor, Tensor | None, Tensor]:
        """The picked rows, cut to the longest: inputs (B, L) int64, (B, L, F) or (B, H, W, C), lengths (B,) or None,
        labels (B,).

        `rows`: a slice, or indices or a mask over the n rows (tensor, array or list). No row at all: ValueError.
        """
        if not isinstance(rows, slice):  # torch makes an empty list one of floats, which index nothing
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


@dataclass(frozen=True, eq=False)
class TaskData:
    """Three splits and what a model must know: `vocab_size` for token ids, `in_features` for real-valued positions,
    `in_channels` for images; an image is cut into squares of `patch`² pixels."""

    train: Split
    val: Split
    test: Split
    n_classes: int
    vocab_size: int | None = None
    in_features: int | None = None
    in_channels: int | None = None
    patch: int = 1

    def __post_init__(self) -> None:
        ways = {name: getattr(self, name) for name in ("vocab_size", "in_features", "in_channels")}
        if sum(way is not None for way in ways.values()) != 1:
            given = ", ".join(f"{name}={way}" for name, way in ways.items())
            raise ValueError(
                f"{given}: give exactly one, vocab_size for token ids, in_features for real values or in_channels for "
                "images"
            )

    @property
    def chance(self) -> float:
        """Accuracy on test (a fraction) of always guessing the training split's most common class.

        It needs no look at the test labels, so it is what a model that learned nothing but the class counts would get.
        Of equally common classes the smallest label counts.
        """
        guess = torch.bincount(self.train.labels).argmax()
        return float((self.test.labels == guess).double().mean())


@dataclass(frozen=True)
class Shape:
    """What a task's data look like at a scale, told without the data; `mambanorm plan` counts with it.

    length: positions of a row of a batch, padding included (what is computed); tokens: without it, on average, 0 = all.
    held_out: rows of the validation and the test split. The others are those of TaskData.
    """

    n_classes: int
    length: int
    vocab_size: int | None = None
    in_features: int | None = None
    in_channels: int | None = None
    patch: int = 1
    tokens: int = 0
    held_out: tuple[int, int] = (0, 0)

    def batch(self, rows: int) -> Tensor:
        """Random inputs: (rows, L) ids, (rows, L, F) or (rows, H, W, C)."""
        if self.vocab_size is not None:
            return torch.randint(0, self.vocab_size, (rows, self.length))
        if self.in_features is not None:
            return torch.randn(rows, self.length, self.in_features)
        side = math.isqrt(self.length) * self.patch
        return torch.randn(rows, side, side, self.in_channels)


@dataclass(frozen=True)
class Task:
    """A registry entry; `load(scale, seed)` returns the TaskData, `kind` says which model family it is for: "sequence"
    or "image". `prepare(scale)` brings what `load` needs, where that is more than `load` does by itself: a download.
    `shape(scale)` tells what the data look like where they are not there, or slow to make."""

    name: str
    title: str
    source: str
    load: Callable[[str, int], TaskData]
    kind: str = "sequence"
    prepare: Callable[[str], None] | None = None
    shape: Callable[[str], Shape] | None = None


TASKS: dict[str, Task] = {}


def register_task(
    name: str,
    *,
    title: str,
    source: str,
    kind: str = "sequence",
    prepare: Callable[[str], None] | None = None,
    shape: Callable[[str], Shape] | None = None,
) -> Callable:
    """Decorator that enters `load(scale, seed) -> TaskData` under `name`; a taken name is a ValueError.

    A task of images needs configs with an odd d_conv, `grid(…, d_conv=3)`; the study's own are in presets.VISION_TASKS.

    @register_task("parity", title="Parity of 32 bits", source="this notebook")
    def load_parity(scale, seed): ...
    """

    def enter(load: Callable[[str, int], TaskData]) -> Callable[[str, int], TaskData]:
        if name in TASKS:
            raise ValueError(
                f"task {name!r} is taken ({TASKS[name].title}): taken are {', '.join(TASKS)}; choose another"
            )
        TASKS[name] = Task(name, title, source, load, kind, prepare, shape)
        return load

    return enter


def check_task(name: str) -> str:
    """The name of a registered task. ValueError for an unknown one: NotRegistered."""
    if not isinstance(name, str):
        raise unknown("task", name, TASKS)
    if name not in TASKS:
        load_imports()  # it may be one of yours
    if name not in TASKS:
        raise NotRegistered("task", name, TASKS)
    return name


def prepare_task(name: str, scale: str) -> TaskData:
    """Downloads or makes what a task needs at a scale, as far as it is not there yet, and loads it with seed 0.

    ValueError as for `load_task`; OSError where a download fails: what has arrived is kept, the same call goes on.
    """
    check_task(name)
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    if TASKS[name].prepare is not None:
        TASKS[name].prepare(scale)
    return load_task(name, scale, 0)


def load_task(name: str, scale: str, seed: int) -> TaskData:
    """The data of one task at one scale; the same arguments give the same data, on any machine.

    ValueError: an unknown task or scale (with the valid ones and the nearest), a seed that is no whole number ≥ 0,
    an empty split, data that are missing or damaged (with what to do).
    """
    check_task(name)
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    return _load(TASKS[name], scale, _whole(seed))


def _whole(seed: object) -> int:
    """The seed as an int, whichever integer type it came in."""
    try:
        number = operator.index(seed)
    except TypeError:
        number = -1
    if isinstance(seed, bool) or number < 0:
        raise ValueError(f"seed {seed!r}: allowed are whole numbers from 0 up")
    return number


@lru_cache(maxsize=8)
def _load(task: Task, scale: str, seed: int) -> TaskData:
    """Keyed by the entry and not by its name: a task that was replaced must not answer with its predecessor's data."""
    data = task.load(scale, seed)
    for name in ("train", "val", "test"):
        if len(getattr(data, name)) == 0:
            raise ValueError(
                f"task {task.name!r} at scale {scale!r}: the {name} split is empty; every split needs rows"
            )
    return data


# Last, because each of them registers itself in the TASKS above.
from mambanorm.tasks import digits, listops  # noqa: E402

# isort: split
from mambanorm.tasks import breakfast, imagenet, imdb, pathfinder, pixels  # noqa: E402

__all__ = [
    "SCALES",
    "TASKS",
    "Split",
    "Task",
    "TaskData",
    "breakfast",
    "check_task",
    "digits",
    "imagenet",
    "imdb",
    "listops",
    "load_task",
    "pathfinder",
    "pixels",
    "prepare_task",
    "register_task",
]
