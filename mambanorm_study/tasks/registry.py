"""Register tasks, load their data, and decide which rows of a data set a scale uses.

Glossary: n rows of a split, L positions of a row, F features of a position, T targets.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from mambanorm.errors import NotRegistered, check_name, shown, unknown
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

    length: positions of a row, including padding. tokens: mean number of positions without padding;
    0 if there is no padding. sizes: rows of train, validation and test; 0 if unknown. reshuffled:
    True if the run's seed decides which rows are train, validation and test. new_rows: True if each
    seed draws new rows. per_position: True if each position has a label. The other fields are as in
    TaskData.
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
    new_rows: bool = False
    per_position: bool = False
    targets: tuple[str, ...] = ()

    @property
    def positions(self) -> tuple[int, ...]:
        """Number of positions of a row, (L,), or rows and columns of patches of an image."""
        return (self.length,) if self.in_channels is None else (math.isqrt(self.length),) * 2

    def random_inputs(self, rows: int) -> Tensor:
        """Return random inputs: ids (rows, L), features (rows, L, F) or images (rows, H, W, C)."""
        if self.vocab_size is not None:
            return torch.randint(0, self.vocab_size, (rows, self.length))
        if self.in_features is not None:
            return torch.randn(rows, self.length, self.in_features)
        side = math.isqrt(self.length) * self.patch
        return torch.randn(rows, side, side, self.in_channels)

    def random_labels(self, rows: int) -> Tensor:
        """Return random labels: classes (rows,) or (rows, L), or targets (rows, T)."""
        if self.targets:
            return torch.randn(rows, len(self.targets))
        size = (rows, self.length) if self.per_position else (rows,)
        return torch.randint(0, self.n_classes, size)


@dataclass(frozen=True)
class Task:
    """A registered task.

    title, source: texts that `mambanorm tasks` prints. load(scale, seed) returns the data. kind:
    "sequence" or "image", the kind of model that the task needs. prepare() downloads the files that
    `load` reads. shape(scale) returns the Shape of the data without loading them.
    """

    name: str
    title: str
    source: str
    load: Load
    kind: str = "sequence"
    prepare: Callable[[], object] | None = None
    shape: Callable[[str], Shape] | None = None

    def __post_init__(self) -> None:
        check_name("a task's name", self.name)
        if self.kind not in KINDS:
            raise unknown("kind of task", self.kind, KINDS)


TASKS: dict[str, Task] = {}


def register_task(name: str, *, title: str, source: str, **options: Any) -> Callable[[Load], Load]:
    """Return a decorator that registers `load(scale, seed) -> TaskData` under `name`.

    `options`: kind, prepare and shape, as in Task. Runs on a task of kind "image" need an odd
    d_conv: `grid(…, d_conv=3)`. Raises ValueError if the name is registered already or the kind is
    unknown.

    @register_task("parity", title="Parity of 32 bits", source="this notebook")
    def load_parity(scale, seed): ...
    """

    def register(load: Load) -> Load:
        task = Task(name, title, source, load, **options)
        if name in TASKS:
            raise ValueError(
                f"task {name!r} is registered already ({TASKS[name].title}): choose another name"
            )
        TASKS[name] = task
        return load

    return register


def check_task(name: str) -> str:
    """Return `name` if it is a registered task; otherwise raise NotRegistered, a ValueError."""
    if name not in TASKS:
        load_imports()  # a file given with --import may register the task
    if name not in TASKS:
        raise NotRegistered("task", name, TASKS)
    return name


def load_task(name: str, scale: str, seed: int) -> TaskData:
    """Return the data of a task. The same arguments give the same data on any machine.

    Raises ValueError for an unknown task or scale, for a seed that is not a whole number ≥ 0, for
    an empty split, and for data that are missing or damaged.
    """
    check_task(name)
    check_scale(scale)
    return _load(TASKS[name], scale, check_seed(seed))


@lru_cache(maxsize=8)  # keyed by the Task, because its name may be registered again
@plain_torch()  # cached data must not depend on the torch settings of the first caller
def _load(task: Task, scale: str, seed: int) -> TaskData:
    where = f"task {task.name!r} at scale {scale!r}"
    try:
        data = task.load(scale, seed)
    except BadData as error:
        raise BadData(f"{where}: {error}") from None
    if not isinstance(data, TaskData):
        raise BadData(f"{where}: the registered function must return a TaskData, got {shown(data)}")
    for name in SPLITS:
        if len(getattr(data, name)) == 0:
            raise BadData(f"{where}: the {name} split is empty; every split needs rows")
    return data


# --------------------------------------------------------------------------------------------------
# The rest of this file decides which rows of a data set a scale uses.
#
# A data set is published in two parts, train and test. `published` is the pair (number of rows of
# train, number of rows of test). Validation rows are rows of the published train part.

FIXED_SEED = 42  # seed of splits that do not depend on the run's seed; as in state-spaces/s4


@dataclass(frozen=True)
class SplitSizes:
    """Number of rows that a scale uses.

    sizes: rows of train, validation and test, or None for all rows. reshuffle: if True, the run's
    seed decides which rows are used; otherwise every seed uses the same rows.
    """

    sizes: tuple[int, int, int] | None
    reshuffle: bool

    def split_seed(self, run_seed: int) -> int:
        """Return the seed that decides which rows are used: `run_seed` or FIXED_SEED."""
        return run_seed if self.reshuffle else FIXED_SEED

    def row_counts(self, published: tuple[int, int], held_out: float = 0.1) -> tuple[int, int, int]:
        """Return the number of rows of train, validation and test.

        published: number of rows of the published parts, train and test. held_out: share of the
        train part that is used for validation if all rows are used.
        """
        if self.sizes is not None:
            return self.sizes
        train = int(published[0] * (1 - held_out))
        return train, published[0] - train, published[1]

    def draw_splits(
        self, published: tuple[int, int], seed: int, name: str, held_out: float = 0.1
    ) -> list[Tensor]:
        """Return the row numbers of train, validation and test, as three tensors.

        The numbers of train and validation index the rows of the published train part; the numbers
        of test index the rows of the published test part. published, held_out: as in `row_counts`.
        seed: the run's seed. name: names the data set in messages. If all rows are used, the split
        is made as s4 splits CIFAR: validation is the last part of a random permutation of the train
        part.
        """
        train, val, test = self.row_counts(published, held_out)
        seed = self.split_seed(seed)
        return [
            *draw_rows(published[0], (train, val), seed, f"{name}'s train part"),
            *draw_rows(published[1], (test,), seed, f"{name}'s test part"),
        ]


SMALL_SCALES = {
    "smoke": SplitSizes((64, 32, 32), reshuffle=True),
    **dict.fromkeys(("quick", "evening"), SplitSizes((4_000, 1_000, 2_000), reshuffle=True)),
}
# Scale -> sizes of most tasks: a random part of the rows at smoke, quick and evening; all rows at
# lab and paper
SCALE_SIZES = {**SMALL_SCALES, **dict.fromkeys(("lab", "paper"), SplitSizes(None, reshuffle=False))}


def draw_rows(n: int, sizes: Sequence[int], seed: int, name: str) -> list[Tensor]:
    """Return a list of tensors of random row numbers 0…n − 1; no number occurs twice.

    The first tensor has sizes[0] numbers, the second sizes[1] numbers, and so on.

    Raises ValueError, with the `name` of the data, if n is smaller than the sum of the sizes.
    """
    if n < sum(sizes):
        needed = " + ".join(f"{size:,}" for size in sizes)
        raise ValueError(
            f"{name} has {n:,} rows, needed are {needed}: provide all rows or use a smaller scale"
        )
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return list(order[: sum(sizes)].split(list(sizes)))


def check_complete(
    where: object, counts: Sequence[int], published: Sequence[int], scale: str
) -> None:
    """At lab and paper, raise ValueError unless all published rows are there.

    counts, published: number of rows of each part, as found and as published. where: names the
    data in the message.
    """
    if scale in ("lab", "paper") and tuple(counts) != tuple(published):
        have = " + ".join(f"{count:,}" for count in counts)
        needed = " + ".join(f"{count:,}" for count in published)
        raise ValueError(
            f"{where} holds {have} rows, scale {scale} needs {needed}: provide all rows or use a "
            "smaller scale"
        )
