"""Handwritten digits, as sequences of pixels and as images: the smallest real data set, and it needs no download.

- `digits`: 1,797 images of 8×8 pixels become sequences of L = 64 positions with F = 1 feature, row after row: a
  small "sequential MNIST". Real data beside the synthetic ListOps: no padding, real-valued, ten balanced classes.
- `digits_images`: the same images in the same splits, left as images of one channel.

Source: Alpaydin & Kaynak (1998), Optical Recognition of Handwritten Digits, UCI Machine Learning Repository,
doi:10.24432/C50P49; the 1,797 images of its test part come with scikit-learn (`load_digits`).

Map: load_digits_task, load_digits_images(scale, seed) -> TaskData;  split_rows(labels, seed) -> the three stratified
sets of rows.
"""

from __future__ import annotations

import numpy as np
import torch

from mambanorm.tasks.base import Split, TaskData
from mambanorm.tasks.registry import register_task

SMOKE_ROWS = 200  # enough for 20 images a class over all splits, few enough for a test to take moments
HELD_OUT = 0.2  # validation 20 %, test 20 %, train the rest
WHITE = 16  # a pixel counts the dark points of a 4×4 cell: 0…16
PATCH = 2  # pixels a side of a patch: 4×4 positions (VMamba has 4 on images of 224)


@register_task(
    "digits",
    title="Handwritten digits, 8×8, pixel by pixel",
    source="Alpaydin & Kaynak (1998), UCI, doi:10.24432/C50P49; scikit-learn load_digits",
)
def load_digits_task(scale: str, seed: int) -> TaskData:
    """All 1,797 images (smoke: 200): inputs (n, 64, 1) float32 in [-1, 1], labels 0…9; the seed decides the split."""
    return TaskData(*_splits(scale, seed, (64, 1)), n_classes=10, in_features=1)


@register_task(
    "digits_images",
    title="Handwritten digits, 8×8, as images",
    source="Alpaydin & Kaynak (1998), UCI, doi:10.24432/C50P49; scikit-learn load_digits",
    kind="image",
)
def load_digits_images(scale: str, seed: int) -> TaskData:
    """The images of `digits` in the very same splits: inputs (n, 8, 8, 1) float32 in [-1, 1], labels 0…9; patches of
    2×2 pixels."""
    return TaskData(*_splits(scale, seed, (8, 8, 1)), n_classes=10, in_channels=1, patch=PATCH)


def _splits(scale: str, seed: int, shape: tuple[int, ...]) -> list[Split]:
    """Train, validation and test, each image in this shape."""
    # Imported here: scikit-learn takes a second, and only these tasks need it.
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    rows = np.arange(len(labels))
    if scale == "smoke":
        rows, _ = _stratified(rows, labels, len(rows) - SMOKE_ROWS, seed)
    x = torch.tensor(images[rows] / (WHITE / 2) - 1, dtype=torch.float32).view(-1, *shape)
    y = torch.tensor(labels[rows], dtype=torch.int64)
    return [Split(x[part], y[part]) for part in split_rows(labels[rows], seed)]


def split_rows(labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of train (60 %), validation (20 %) and test (20 %), each with every class in proportion."""
    held_out = round(HELD_OUT * len(labels))
    rest, test = _stratified(np.arange(len(labels)), labels, held_out, seed)
    train, val = _stratified(rest, labels, held_out, seed)
    return train, val, test


def _stratified(rows: np.ndarray, labels: np.ndarray, n_second: int, seed: int) -> list[np.ndarray]:
    """`rows` in two parts, the second of `n_second` rows, with the classes of `labels[rows]` in proportion."""
    from sklearn.model_selection import train_test_split

    return train_test_split(rows, test_size=n_second, stratify=labels[rows], random_state=seed)
