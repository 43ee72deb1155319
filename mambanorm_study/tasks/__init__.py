"""Register tasks, and load the data from which a run learns.

    config -> **task** -> model -> train -> run store

| file | contents |
|---|---|
| base.py | Split and TaskData, which hold and check the data of a task |
| registry.py | TASKS, register_task, load_task; Shape and SplitSizes, the sizes of a task's data |
| files.py | checked downloads, Parquet files, cached arrays |
| images.py | decoding of images; the tasks of MNIST, Fashion-MNIST, SVHN and CIFAR |
| digits.py, … | one task or several related tasks per file; importing the file registers them |

Glossary: n rows of a split, B rows of a batch, L positions of a row, F features of a position;
H, W, C = rows, columns and channels of an image.
"""

from mambanorm_study.tasks import digits, mnist1d, synthetic  # these come first in TASKS

# isort: split
from mambanorm_study.tasks import (
    breakfast,
    glyphs,
    imagenet,
    images,
    imdb,
    listops,
    pathfinder,
    paths,
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
