"""The data a run learns from: what a task is, the registry of tasks, and how one is loaded.

    config -> **task** -> model -> train -> run store

    base.py         Split, TaskData, Shape: the data of a task, checked registry.py     TASKS,
    register_task, load_task, prepare_task files.py        downloads that resume and are checked,
    Parquet, arrays that are made once, rows of a scale small.py …      a task, or a family of
    tasks, a file; each registers what it defines images.py       how pictures are read, and MNIST's
    and CIFAR's families pydoc.py        text for the language model

Glossary: n = sequences or images in a split, B = those in a batch, L = positions, F = features a
position; H, W, C = rows, columns and channels of an image.
"""

from mambanorm_study.tasks import small  # importing a task registers it: these first

# isort: split
from mambanorm_study.tasks import (
    breakfast,
    glyphs,
    imagenet,
    images,
    imdb,
    listops,
    pathfinder,
    pydoc,
    tabular,
)
from mambanorm_study.tasks.base import BadData, Lazy, Shape, Split, TaskData
from mambanorm_study.tasks.registry import (
    TASKS,
    Task,
    check_task,
    load_task,
    prepare_task,
    register_task,
)
