"""The small tasks, which need no download: handwritten digits, MNIST-1D's curves, and a task made
up for teaching.

- `digits`: 1,797 images of 8×8 pixels become sequences of L = 64 positions with F = 1 feature, row
  after row: a small "sequential MNIST". Real data beside the synthetic ListOps: no padding,
  real-valued, ten balanced classes. `digits_images`: the same images in the same splits, left as
  images of one channel.
- `mnist1d`: ten digit-like curves of 40 points, moved, stretched, tilted and noisy; they tell
  architectures apart: a linear model reaches 32 %, an MLP 68, a GRU 91, a CNN 94, people 96
  (Greydanus & Kobak 2024, Figure 2). Each run's seed draws 5,000 new curves, so that no two seeds
  share a row and differences between seeds are those of the whole experiment. `mnist1d_published`:
  the 5,000 curves of the published data set (the generator's own seed, 42), the same for every
  seed. Of the 4,000 to train on, an eighth is validation. `curves`: as `mnist1d`, with 2,000 more
  rows for validation and test each seed, so that the noise of the test rows is small beside that of
  training. The generator is the authors' (PyPI `mnist1d`). It standardises all curves at once, test
  rows included, by two numbers.
- `level`: is the mean of a sequence far from zero? A row is noise around a level m, drawn evenly
  from −1…1; its mean is m exactly. It belongs to class 1 where |m| > ½, half of all rows. Nothing
  but the mean tells the classes apart, and no straight line through it does: a norm that subtracts
  each channel's mean over the sequence must lose (notebook 03).
- `mqar`: associative recall with many queries a row, as the field tests what a state can hold. A
  row shows PAIRS keys, each followed by its value, then QUERIES of these keys in a random order;
  the label at a query is the value of its key, and nothing else has a label. Pairs are drawn anew
  in every row, so nothing but the row tells the answer.

Sources: Alpaydin & Kaynak (1998), Optical Recognition of Handwritten Digits, UCI Machine Learning
Repository, doi:10.24432/C50P49; the 1,797 images of its test part come with scikit-learn. Greydanus
& Kobak (2024), Scaling Down Deep Learning with MNIST-1D, ICML, arXiv:2011.14439. Arora et al.
(2024), Zoology, ICLR, arXiv:2312.04927 (MQAR). `level` is ours.
"""

from __future__ import annotations

import random
import threading
from functools import partial

import numpy as np
import torch

from mambanorm_study.tasks.base import IGNORED, Shape, Split, TaskData
from mambanorm_study.tasks.files import data_folder, kept
from mambanorm_study.tasks.registry import register_task

# ------------------------------------------------------------------------------------------- digits

SMOKE_ROWS = (
    200  # enough for 20 images a class over all splits, few enough for a test to take moments
)
HELD_OUT = 0.2  # validation 20 %, test 20 %, train the rest
WHITE = 16  # a pixel counts the dark points of a 4×4 cell: 0…16
PATCH = 2  # pixels a side of a patch: 4×4 positions (VMamba has 4 on images of 224)
DIGITS = "Alpaydin & Kaynak (1998), UCI, doi:10.24432/C50P49; scikit-learn load_digits"


@register_task("digits", title="Handwritten digits, 8×8, pixel by pixel", source=DIGITS)
def load_digits_task(scale: str, seed: int) -> TaskData:
    """All 1,797 images (smoke: 200): inputs (n, 64, 1) float32 in [-1, 1], labels 0…9; the seed
    decides the split."""
    return TaskData(*_digits(scale, seed, (64, 1)), n_classes=10, in_features=1)


@register_task(
    "digits_images", title="Handwritten digits, 8×8, as images", source=DIGITS, kind="image"
)
def load_digits_images(scale: str, seed: int) -> TaskData:
    """The images of `digits` in the very same splits: inputs (n, 8, 8, 1) float32 in [-1, 1],
    labels 0…9; patches of 2×2 pixels."""
    return TaskData(*_digits(scale, seed, (8, 8, 1)), n_classes=10, in_channels=1, patch=PATCH)


def _digits(scale: str, seed: int, shape: tuple[int, ...]) -> list[Split]:
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
    """Rows of train (60 %), validation (20 %) and test (20 %), each with every class in
    proportion."""
    held_out = round(HELD_OUT * len(labels))
    rest, test = _stratified(np.arange(len(labels)), labels, held_out, seed)
    train, val = _stratified(rest, labels, held_out, seed)
    return train, val, test


def _stratified(rows: np.ndarray, labels: np.ndarray, n_second: int, seed: int) -> list[np.ndarray]:
    """`rows` in two parts, the second of `n_second` rows, with the classes of `labels[rows]` in
    proportion."""
    from sklearn.model_selection import train_test_split

    return train_test_split(rows, test_size=n_second, stratify=labels[rows], random_state=seed)


# -------------------------------------------------------------------------------- curves and levels


def _sizes(task: str, scale: str) -> tuple[int, int, int]:
    """Rows of train, validation and test."""
    small, large = ROWS[task]
    return small if scale == "smoke" else large


ROWS = {
    "mnist1d": ((140, 20, 40), (3_500, 500, 1_000)),
    "curves": ((140, 20, 40), (3_500, 2_000, 4_000)),
    "level": ((40, 20, 20), (1_200, 300, 600)),
    "mqar": ((64, 16, 32), (20_000, 1_000, 2_000)),
}
PAIRS, QUERIES = 4, 16  # of a row of mqar, which has 2 · PAIRS + QUERIES positions
KEYS, VALUES = 8, 8  # from which each row draws its own
LENGTH = {"mnist1d": 40, "curves": 40, "level": 32, "mqar": 2 * PAIRS + QUERIES}
CLASSES = {"mnist1d": 10, "curves": 10, "level": 2, "mqar": KEYS + VALUES}
PUBLISHED_SEED = 42
DRAWING = threading.Lock()  # the generator of MNIST-1D draws from the process's random numbers


def _shape(task: str, fresh: bool, scale: str, **form: int) -> Shape:
    train, val, test = _sizes(task, scale)
    rows = dict(held_out=(val, test), train_rows=train, reshuffled=fresh, fresh=fresh)
    return Shape(CLASSES[task], LENGTH[task], **form, **rows)


def _data(task: str, scale: str, x: torch.Tensor, y: torch.Tensor) -> TaskData:
    sizes = _sizes(task, scale)
    parts = zip(x[..., None].split(sizes), y.split(sizes), strict=True)
    return TaskData(*(Split(*part) for part in parts), n_classes=CLASSES[task], in_features=1)


def _mnist1d(name: str, title: str, fresh: bool, rows: str = "mnist1d") -> None:
    @register_task(
        name,
        title=f"MNIST-1D: digit-like curves of 40 points, {title}",
        source="Greydanus & Kobak (2024), arXiv:2011.14439; PyPI mnist1d",
        shape=partial(_shape, rows, fresh, in_features=1),
    )
    def load_mnist1d(scale: str, seed: int) -> TaskData:
        """5,000 or 9,500 curves (smoke: 200) that the seed draws, or the published seed: inputs (n,
        40, 1) float32, labels 0…9, the authors' test rows last."""
        x, y = curves(sum(_sizes(rows, scale)), seed if fresh else PUBLISHED_SEED)
        return _data(
            rows, scale, torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.int64)
        )


_mnist1d("mnist1d", "new ones for each seed", fresh=True)
_mnist1d("curves", "new ones for each seed, 4,000 to test", fresh=True, rows="curves")
_mnist1d("mnist1d_published", "the published ones", fresh=False)


def curves(n: int, seed: int) -> list[np.ndarray]:
    """n curves (n, 40) and labels (n,) of the authors' generator with this seed; made once, for it
    takes four seconds for 5,000 curves."""
    return kept(data_folder("mnist1d") / f"{n}-seed{seed}.npz", lambda: draw_curves(n, seed))


def draw_curves(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The same from the generator. The process's random numbers are left as they were."""
    from mnist1d.data import (
        get_dataset_args,
        make_dataset,
    )  # imported here: it brings requests and pyplot

    args = get_dataset_args()
    args.num_samples, args.seed = n, seed
    with DRAWING:
        before = np.random.get_state(), random.getstate()
        try:
            made = make_dataset(args)
        finally:
            np.random.set_state(before[0])
            random.setstate(before[1])
    x = np.concatenate([made["x"], made["x_test"]]).astype(np.float32)
    return x, np.concatenate([made["y"], made["y_test"]]).astype(np.int64)


@register_task(
    "level",
    title="Level: is a sequence's mean far from zero?",
    source="ours, made up for notebook 03",
    shape=partial(_shape, "level", True, in_features=1),
)
def load_level(scale: str, seed: int) -> TaskData:
    """1,200 / 300 / 600 rows (smoke: 40 / 20 / 20) that the seed draws: inputs (n, 32, 1) float32,
    labels 0 and 1."""
    n, generator = sum(_sizes("level", scale)), torch.Generator().manual_seed(seed)
    level = 2 * torch.rand(n, 1, generator=generator) - 1
    noise = torch.randn(n, LENGTH["level"], generator=generator)
    return _data(
        "level",
        scale,
        level + noise - noise.mean(1, keepdim=True),
        (level[:, 0].abs() > 0.5).long(),
    )


# ------------------------------------------------------------------------------- associative recall


@register_task(
    "mqar",
    title="MQAR: which value went with this key? (associative recall, a label at each query)",
    source="after Arora et al. (2024), Zoology, ICLR, arXiv:2312.04927",
    shape=partial(_shape, "mqar", True, vocab_size=KEYS + VALUES, per_position=True),
)
def load_mqar(scale: str, seed: int) -> TaskData:
    """20,000 / 1,000 / 2,000 rows (smoke: 64 / 16 / 32) that the seed draws: ids (n, L), a key
    below KEYS; labels (n, L), IGNORED but at the queries."""
    sizes, generator = _sizes("mqar", scale), torch.Generator().manual_seed(seed)
    n, vocabulary = sum(sizes), CLASSES["mqar"]
    keys = torch.rand(n, KEYS, generator=generator).argsort(1)[:, :PAIRS]
    values = torch.randint(KEYS, vocabulary, (n, PAIRS), generator=generator)
    asked = torch.randint(PAIRS, (n, QUERIES), generator=generator)
    shown = torch.stack([keys, values], 2).flatten(1)
    inputs = torch.cat([shown, keys.gather(1, asked)], 1).to(torch.uint8)
    labels = torch.cat([torch.full_like(shown, IGNORED), values.gather(1, asked)], 1)
    parts = zip(inputs.split(sizes), labels.split(sizes), strict=True)
    return TaskData(*(Split(*part) for part in parts), n_classes=vocabulary, vocab_size=vocabulary)
