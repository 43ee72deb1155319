"""The data that a run learns from: the registry of tasks, and how the data of a task are loaded.

    config -> **task** -> model -> train -> run store

| file | contents |
|---|---|
| base.py | Split and TaskData, the checked data of a task |
| registry.py | TASKS, register_task, load_task; Shape and SplitSizes, the sizes of a task's data |
| files.py | checked downloads, Parquet files, cached arrays |
| images.py | decoding of images; SVHN and CIFAR |
| digits.py, … | one task, or a family of tasks; importing the file registers it |

Glossary: n rows of a split, B rows of a batch, L positions, F features of a position; H, W, C =
rows, columns and channels of an image.
"""

from mambanorm_study.tasks import digits, mnist1d, synthetic  # the order of import is that of TASKS

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
from mambanorm_study.tasks.base import BadData, LazyInputs, Split, TaskData
from mambanorm_study.tasks.registry import (
    TASKS,
    Shape,
    Task,
    check_task,
    load_task,
    register_task,
)
