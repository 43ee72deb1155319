"""MNIST-1D: ten digit-like curves of 40 points, moved, stretched, tilted and noisy; it tells architectures apart.

A linear model reaches 32 %, an MLP 68, a GRU 91, a CNN 94, people 96 (Greydanus & Kobak 2024, Figure 2).

- `mnist1d`: each run's seed draws 5,000 new curves, so that no two seeds share a row and differences between seeds are
  those of the whole experiment.
- `mnist1d_published`: the 5,000 curves of the published data set (the generator's own seed, 42), its 4,000 to train on
  and its 1,000 to test. The same for every seed.

Of the 4,000, an eighth is validation. The generator is the authors' (PyPI `mnist1d`), their pickled download is not
used. It standardises all 5,000 curves at once, test rows included, by two numbers.

Source: Greydanus & Kobak (2024), Scaling Down Deep Learning with MNIST-1D, ICML, arXiv:2011.14439.

Map: load_mnist1d, load_mnist1d_published(scale, seed) -> TaskData
"""

from __future__ import annotations

import random
import threading

import numpy as np
import torch

from mambanorm.basics.later import Later
from mambanorm.tasks.base import Shape, Split, TaskData
from mambanorm.tasks.files import cached_table, can_cache, data_folder
from mambanorm.tasks.registry import register_task

pa = Later("pyarrow")

CURVES = {"smoke": 200}
ALL_CURVES = 5_000
PUBLISHED_SEED = 42
LENGTH, CLASSES = 40, 10
SOURCE = "Greydanus & Kobak (2024), arXiv:2011.14439; PyPI mnist1d"
DRAWING = threading.Lock()  # the generator draws from the process's random numbers


def _sizes(scale: str) -> tuple[int, int, int]:
    """Rows of train, validation and test: 3,500 / 500 / 1,000; at smoke 140 / 20 / 40."""
    curves = CURVES.get(scale, ALL_CURVES)
    test, val = curves // 5, curves // 10
    return curves - val - test, val, test


def _shape(scale: str, fresh: bool) -> Shape:
    train, val, test = _sizes(scale)
    rows = dict(held_out=(val, test), train_rows=train)
    return Shape(CLASSES, LENGTH, in_features=1, **rows, reshuffled=fresh, fresh=fresh)


@register_task(
    "mnist1d",
    title="MNIST-1D: digit-like curves of 40 points, new ones for each seed",
    source=SOURCE,
    shape=lambda scale: _shape(scale, fresh=True),
)
def load_mnist1d(scale: str, seed: int) -> TaskData:
    """5,000 curves (smoke: 200) that the seed draws: inputs (n, 40, 1) float32, labels 0…9."""
    return _data(scale, seed)


@register_task(
    "mnist1d_published",
    title="MNIST-1D: digit-like curves of 40 points, the published ones",
    source=SOURCE,
    shape=lambda scale: _shape(scale, fresh=False),
)
def load_mnist1d_published(scale: str, seed: int) -> TaskData:
    """The published 5,000 curves (smoke: 200 of the same seed), the same rows in the same splits for every seed."""
    return _data(scale, PUBLISHED_SEED)


def _data(scale: str, seed: int) -> TaskData:
    sizes = _sizes(scale)
    x, y = _cached(sum(sizes), seed) if can_cache() else _draw(sum(sizes), seed)
    x, y = torch.tensor(x, dtype=torch.float32)[..., None], torch.tensor(y, dtype=torch.int64)
    parts = zip(x.split(sizes), y.split(sizes), strict=True)
    return TaskData(*(Split(*part) for part in parts), n_classes=CLASSES, in_features=1)


def _cached(curves: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """As `_draw`, from the file that an earlier run has written."""

    def table() -> pa.Table:
        x, y = _draw(curves, seed)
        return pa.table({"curve": pa.FixedSizeListArray.from_arrays(x.ravel(), LENGTH), "label": y})

    path = data_folder("mnist1d") / f"{curves}-seed{seed}.parquet"
    found = cached_table(path, ("curve", "label"), curves, table)
    return np.stack(found["curve"].to_numpy()), found["label"].to_numpy()


def _draw(curves: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The authors' generator with this seed, four seconds for 5,000 curves, its test rows last. The process's random
    numbers are left as they were."""
    from mnist1d.data import get_dataset_args, make_dataset  # imported here: it brings requests and pyplot

    args = get_dataset_args()
    args.num_samples, args.seed = curves, seed
    with DRAWING:
        before = np.random.get_state(), random.getstate()
        try:
            made = make_dataset(args)
        finally:
            np.random.set_state(before[0])
            random.setstate(before[1])
    x = np.concatenate([made["x"], made["x_test"]]).astype(np.float32)
    return x, np.concatenate([made["y"], made["y_test"]]).astype(np.int64)
