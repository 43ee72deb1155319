"""Handwritten digits that come with scikit-learn, as sequences of pixels and as images.

- `digits`: 1,797 images of 8×8 pixels as sequences of L = 64 positions with F = 1 feature. The task
  is a small version of sequential MNIST, without padding, with ten balanced classes.
- `digits_images`: the same images in the same splits, as images of one channel.

Source: Alpaydin & Kaynak (1998), Optical Recognition of Handwritten Digits, UCI Machine Learning
Repository, doi:10.24432/C50P49; scikit-learn contains the 1,797 images of the test part.
"""

import numpy as np
import torch

from mambanorm_study.basics.settings import Later
from mambanorm_study.tasks.base import Split, TaskData
from mambanorm_study.tasks.registry import register_task

datasets, model_selection = Later("sklearn.datasets"), Later("sklearn.model_selection")

SMOKE_ROWS = 200  # 20 images per class
HELD_OUT = 0.2  # validation and test each have this share of the rows
MAX_PIXEL = 16  # a pixel is the number of dark points in a cell of 4×4 points
PATCH = 2  # edge of a patch in pixels, so an image has 4×4 positions
SOURCE = "Alpaydin & Kaynak (1998), UCI, doi:10.24432/C50P49; scikit-learn load_digits"


@register_task("digits", title="Handwritten digits, 8×8, pixel by pixel", source=SOURCE)
def load_digits_task(scale: str, seed: int) -> TaskData:
    """Return all 1,797 images (smoke: 200) as sequences, float32 (n, 64, 1) in [-1, 1].

    The seed decides which images are train, validation and test.
    """
    return TaskData(*_digit_splits(scale, seed, (64, 1)), n_classes=10, in_features=1)


@register_task(
    "digits_images", title="Handwritten digits, 8×8, as images", source=SOURCE, kind="image"
)
def load_digits_images(scale: str, seed: int) -> TaskData:
    """Return the images of `digits` in the same splits as float32 (n, 8, 8, 1) in [-1, 1]."""
    splits = _digit_splits(scale, seed, (8, 8, 1))
    return TaskData(*splits, n_classes=10, in_channels=1, patch=PATCH)


def _digit_splits(scale: str, seed: int, shape: tuple[int, ...]) -> list[Split]:
    """Return the splits train, validation and test; `shape` is the shape of the inputs of a row."""
    images, labels = datasets.load_digits(return_X_y=True)
    if scale == "smoke":
        images, _, labels, _ = model_selection.train_test_split(
            images, labels, train_size=SMOKE_ROWS, stratify=labels, random_state=seed
        )
    x = torch.tensor(images / (MAX_PIXEL / 2) - 1, dtype=torch.float32).view(-1, *shape)
    y = torch.tensor(labels, dtype=torch.int64)
    return [Split(x[rows], y[rows]) for rows in stratified_splits(labels, seed)]


def stratified_splits(labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return row numbers of train (60 %), validation (20 %), test (20 %), stratified by label."""
    options = dict(test_size=round(HELD_OUT * len(labels)), random_state=seed)
    rows, test = model_selection.train_test_split(
        np.arange(len(labels)), stratify=labels, **options
    )
    train, val = model_selection.train_test_split(rows, stratify=labels[rows], **options)
    return train, val, test
