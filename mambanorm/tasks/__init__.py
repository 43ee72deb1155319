"""The data a run learns from: what a task is, the registry of tasks, and how one is loaded.

    config -> **task** -> model -> train -> run store

    base.py         Split, TaskData, Shape: the data of a task, checked
    registry.py     TASKS, register_task, load_task, prepare_task
    files.py        downloads that resume and are checked, tables that are made once; images.py: pictures
    digits.py …     one file a task, or a family of tasks; each registers what it defines
    expressions.py  the notation of listops.py;   snakes.py: how pathfinder.py's pictures are drawn
    pydoc.py        text for the language model

Glossary: n = sequences or images in a split, B = those in a batch, L = positions, F = features a position; H, W, C =
rows, columns and channels of an image.
"""

from mambanorm.basics.settings import SCALES
from mambanorm.tasks import digits, listops  # importing a task registers it: these two first

# isort: split
from mambanorm.tasks import breakfast, imagenet, imdb, level, mnist1d, pathfinder, pixels, pydoc, tabular
from mambanorm.tasks.base import BadData, Shape, Split, TaskData
from mambanorm.tasks.registry import TASKS, Task, check_task, load_task, prepare_task, register_task

__all__ = [
    "SCALES",
    "TASKS",
    "BadData",
    "Shape",
    "Split",
    "Task",
    "TaskData",
    "breakfast",
    "check_task",
    "digits",
    "imagenet",
    "imdb",
    "level",
    "listops",
    "load_task",
    "mnist1d",
    "pathfinder",
    "pixels",
    "prepare_task",
    "pydoc",
    "register_task",
    "tabular",
]
