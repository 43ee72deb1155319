"""The registry of tasks: register a task, which may be your own, and load its data."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from mambanorm.errors import NotRegistered, check_word, shown, unknown
from mambanorm_study.basics.extensions import load_imports
from mambanorm_study.basics.settings import check_scale
from mambanorm_study.basics.torch_defaults import plain_torch
from mambanorm_study.config import check_seed
from mambanorm_study.tasks.base import SPLITS, BadData, TaskData

Load = Callable[[str, int], TaskData]
KINDS = ("sequence", "image")


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


@dataclass(frozen=True)
class Task:
    """A registered task.

    `load(scale, seed)` returns the TaskData. `kind` is the kind of model that the task needs.
    `prepare()` downloads the files that `load` reads. `shape(scale)` returns the Shape of the data
    without loading them.
    """

    name: str
    title: str
    source: str
    load: Load
    kind: str = "sequence"
    prepare: Callable[[], object] | None = None
    shape: Callable[[str], Shape] | None = None

    def __post_init__(self) -> None:
        check_word("a task's name", self.name)
        if self.kind not in KINDS:
            raise unknown("kind of task", self.kind, KINDS)


TASKS: dict[str, Task] = {}


def register_task(name: str, *, title: str, source: str, **options: Any) -> Callable[[Load], Load]:
    """Return a decorator that registers `load(scale, seed) -> TaskData` under `name`.

    `options`: kind, prepare and shape, as in Task. A task of images needs configs with an odd
    d_conv, `grid(…, d_conv=3)`. Raises ValueError for a taken name and an unknown kind.

    @register_task("parity", title="Parity of 32 bits", source="this notebook")
    def load_parity(scale, seed): ...
    """

    def register(load: Load) -> Load:
        task = Task(name, title, source, load, **options)
        if name in TASKS:
            raise ValueError(f"task {name!r} is taken ({TASKS[name].title}): choose another name")
        TASKS[name] = task
        return load

    return register


def check_task(name: str) -> str:
    """Return the name of a task. Raise NotRegistered, a ValueError, if there is no such task."""
    if name not in TASKS:
        load_imports()  # a file of --import may register it
    if name not in TASKS:
        raise NotRegistered("task", name, TASKS)
    return name


def load_task(name: str, scale: str, seed: int) -> TaskData:
    """Return the data of a task; the same arguments give the same data on any machine.

    Raises ValueError for an unknown task or scale, for a seed that is not a whole number ≥ 0, for
    an empty split, and for data that are missing or damaged.
    """
    check_task(name)
    check_scale(scale)
    return _load(TASKS[name], scale, check_seed(seed))


@lru_cache(maxsize=8)  # keyed by the entry, not its name: a task may be replaced under its name
@plain_torch()  # cached data must not depend on the torch settings of the first caller
def _load(task: Task, scale: str, seed: int) -> TaskData:
    where = f"task {task.name!r} at scale {scale!r}"
    try:
        data = task.load(scale, seed)
    except BadData as error:
        raise BadData(f"{where}: {error}") from None
    if not isinstance(data, TaskData):
        raise BadData(f"{where}: its function must return a TaskData, got {shown(data)}")
    for name in SPLITS:
        if len(getattr(data, name)) == 0:
            raise BadData(f"{where}: the {name} split is empty; every split needs rows")
    return data
