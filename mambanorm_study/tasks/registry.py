"""The registry of tasks: how a task is registered, also one of your own, and how it is loaded."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral
from typing import Any

from mambanorm.errors import NotRegistered, check_word, shown, unknown
from mambanorm_study.basics.extensions import load_imports
from mambanorm_study.basics.settings import check_scale
from mambanorm_study.basics.torch_defaults import plain_torch
from mambanorm_study.tasks.base import SPLITS, BadData, TaskData
from mambanorm_study.tasks.shape import Shape

Load = Callable[[str, int], TaskData]
KINDS = ("sequence", "image")


@dataclass(frozen=True)
class Task:
    """A registered task.

    `load(scale, seed)` returns the TaskData. `kind` is the model family that the task needs.
    `prepare()` downloads what `load` cannot make itself. `shape(scale)` returns the Shape of
    the data without loading them.
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
    """Return the name if a task has it, else raise ValueError (NotRegistered)."""
    if not isinstance(name, str):
        raise unknown("task", name, TASKS)
    if name not in TASKS:
        load_imports()  # a file of --import may register it
    if name not in TASKS:
        raise NotRegistered("task", name, TASKS)
    return name


def prepare_task(name: str, scale: str) -> TaskData:
    """Download or make what a task needs at a scale, and load it with seed 0.

    Raises ValueError as `load_task` does, and OSError if a download fails; the same call then
    continues the download.
    """
    check_task(name)
    check_scale(scale)
    if TASKS[name].prepare is not None:
        TASKS[name].prepare()
    return load_task(name, scale, 0)


def load_task(name: str, scale: str, seed: int) -> TaskData:
    """Return the data of a task; the same arguments give the same data on any machine.

    Raises ValueError for an unknown task or scale, a seed that is not a whole number ≥ 0, an empty
    split, and data that are missing or damaged.
    """
    check_task(name)
    check_scale(scale)
    if not isinstance(seed, Integral) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"seed {seed!r}: allowed are whole numbers from 0 up")
    return _load(TASKS[name], scale, int(seed))


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
