"""The registry of tasks: register a task, which may be your own, and load its data."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mambanorm.errors import NotRegistered, check_word, shown, unknown
from mambanorm_study.basics.extensions import load_imports
from mambanorm_study.basics.settings import check_scale
from mambanorm_study.basics.torch_defaults import plain_torch
from mambanorm_study.config import check_seed
from mambanorm_study.tasks.base import SPLITS, BadData, TaskData
from mambanorm_study.tasks.shape import Shape

Load = Callable[[str, int], TaskData]
KINDS = ("sequence", "image")


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


def prepare_task(name: str, scale: str) -> TaskData:
    """Download what a task needs, and return its data at a scale and seed 0.

    Raises ValueError as `load_task` does, and OSError if a download fails.
    """
    check_task(name)
    check_scale(scale)
    if TASKS[name].prepare is not None:
        TASKS[name].prepare()
    return load_task(name, scale, 0)


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
