"""MNIST-1D: curves of 40 points that look like the ten digits, moved, stretched, tilted and noisy.

Accuracy differs between architectures: a linear model reaches 32 %, an MLP 68 %, a GRU 91 %, a CNN
94 %, people 96 % (Greydanus & Kobak 2024, Figure 2).

- `mnist1d`: each seed draws 5,000 new curves. No two seeds share a row, so results vary between
  seeds as much as between repeated experiments with new data.
- `curves`: as `mnist1d`, but with four times as many rows for validation and test, so that the
  choice of test rows adds little to the variation between seeds.

Seed 42 of `mnist1d` draws the curves of the published data set.

The authors' generator (PyPI `mnist1d`) draws the curves and standardizes all of them, including the
test rows, by one mean and one standard deviation.

Source: Greydanus & Kobak (2024), Scaling Down Deep Learning with MNIST-1D, ICML, arXiv:2011.14439.
"""

import random
import threading
from functools import partial

import numpy as np
import torch

from mambanorm_study.tasks.base import TaskData, consecutive_splits
from mambanorm_study.tasks.files import cached_arrays, data_folder
from mambanorm_study.tasks.registry import Shape, register_task

LENGTH, N_CLASSES = 40, 10
SMOKE_SIZES = (140, 20, 40)
SIZES = {
    "mnist1d": (3_500, 500, 1_000),
    "curves": (3_500, 2_000, 4_000),
}
GENERATOR_LOCK = threading.Lock()  # the generator uses NumPy's and Python's global random state


def load_curves(name: str, scale: str, seed: int) -> TaskData:
    """Return the curves of a seed, (n, 40, 1) float32, and 10 classes.

    name: the task, "mnist1d" or "curves". The rows that the authors' generator marks as test rows
    come last.
    """
    sizes = _shape(name, scale).sizes
    cache = data_folder("mnist1d") / f"{sum(sizes)}-seed{seed}.npz"
    # cached because 5,000 curves take four seconds to draw
    x, y = cached_arrays(cache, lambda: draw_curves(sum(sizes), seed))
    splits = consecutive_splits(torch.from_numpy(x)[..., None], torch.from_numpy(y), sizes)
    return TaskData(*splits, n_classes=N_CLASSES, in_features=1)


def _shape(name: str, scale: str) -> Shape:
    sizes = SMOKE_SIZES if scale == "smoke" else SIZES[name]
    return Shape(N_CLASSES, LENGTH, in_features=1, sizes=sizes, reshuffled=True, new_rows=True)


def draw_curves(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return n curves (n, 40) float32 and labels (n,) int64, drawn by the authors' generator.

    The global random states of NumPy and Python are restored afterwards.
    """
    from mnist1d.data import get_dataset_args, make_dataset  # slow, because it imports pyplot

    args = get_dataset_args()
    args.num_samples, args.seed = n, seed
    with GENERATOR_LOCK:
        numpy_state, python_state = np.random.get_state(), random.getstate()
        try:
            data = make_dataset(args)
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)
    x = np.concatenate([data["x"], data["x_test"]]).astype(np.float32)
    return x, np.concatenate([data["y"], data["y_test"]]).astype(np.int64)


for _name, _title in {
    "mnist1d": "new ones for each seed",
    "curves": "new ones for each seed, 4,000 to test",
}.items():
    register_task(
        _name,
        title=f"MNIST-1D: digit-like curves of 40 points, {_title}",
        source="Greydanus & Kobak (2024), arXiv:2011.14439; PyPI mnist1d",
        shape=partial(_shape, _name),
    )(partial(load_curves, _name))
