"""The registry of tasks: how a task enters it, also your own, and how its data are loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral
from typing import Any

from mambanorm.errors import NotRegistered, check_word, shown, unknown
from mambanorm_study.basics.extensions import load_imports
from mambanorm_study.basics.settings import check_scale
from mambanorm_study.basics.torch_defaults import plain_torch
from mambanorm_study.tasks.base import SPLITS, BadData, Shape, TaskData

Load = Callable[[str, int], TaskData]


@dataclass(frozen=True)
class Task:
    """A registry entry; `load(scale, seed)` returns the TaskData, `kind` says which model family it
    is for: "sequence" or "image". `prepare(scale)` downloads what `load` needs and does not fetch
    by itself. `shape(scale)` tells what the data look like without loading or making them."""

    name: str
    title: str
    source: str
    load: Load
    kind: str = "sequence"
    prepare: Callable[[str], None] | None = None
    shape: Callable[[str], Shape] | None = None


TASKS: dict[str, Task] = {}
KINDS = ("sequence", "image")


def register_task(name: str, *, title: str, source: str, **rest: Any) -> Callable[[Load], Load]:
    """Decorator that enters `load(scale, seed) -> TaskData` under `name`; `rest`: kind, prepare and
    shape, as in Task. ValueError for a taken name and an unknown kind.

    A task of images needs configs with an odd d_conv, `grid(…, d_conv=3)`. The study's own image
    tasks are VISION_TASKS in runs/presets.py.

    @register_task("parity", title="Parity of 32 bits", source="this notebook")
    def load_parity(scale, seed): ...
    """
    check_word("a task's name", name)

    def enter(load: Load) -> Load:
        task = Task(name, title, source, load, **rest)
        if task.kind not in KINDS:
            raise unknown("kind of task", task.kind, KINDS)
        if name in TASKS:
            raise ValueError(f"task {name!r} is taken ({TASKS[name].title}): choose another name")
        TASKS[name] = task
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
    """Downloads or makes what a task needs at a scale, as far as it is not there yet, and loads it
    with seed 0.

    ValueError as for `load_task`; OSError where a download fails: what has arrived is kept, the
    same call continues.
    """
    check_task(name)
    check_scale(scale)
    if TASKS[name].prepare is not None:
        TASKS[name].prepare(scale)
    return load_task(name, scale, 0)


def load_task(name: str, scale: str, seed: int) -> TaskData:
    """The data of one task at one scale; the same arguments give the same data, on any machine.

    ValueError: an unknown task or scale (with the valid ones and the nearest), a seed that is no
    whole number ≥ 0, an empty split, data that are missing or damaged (with what to do).
    """
    check_task(name)
    check_scale(scale)
    if not isinstance(seed, Integral) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"seed {seed!r}: allowed are whole numbers from 0 up")
    return _load(TASKS[name], scale, int(seed))


@lru_cache(maxsize=8)
@plain_torch()  # what is kept for later must not depend on what the first to ask for it has set
def _load(task: Task, scale: str, seed: int) -> TaskData:
    """The cache key is the entry, not its name: a task that was replaced must not return its
    predecessor's data."""
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
