"""ImageNet's photographs of 1,000 classes, and of 100 of them, read from their files when a batch
asks for them.

Source: Russakovsky et al. (2015), ImageNet large scale visual recognition challenge,
arXiv:1409.0575. ImageNet-100: the class list of HobbitLong/CMC (Tian et al. 2020,
arXiv:1906.05849); the paper gives no list.

    data/imagenet1k/train/<wnid>/*.JPEG, val/<wnid>/*.JPEG data/imagenet100/imagenet100.txt, and
    train and val like that; else the classes are taken from data/imagenet1k

Glossary: wnid = WordNet number of a class, n and eight digits; edge = height and width of a picture
in pixels.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mambanorm_study.basics.settings import Later
from mambanorm_study.tasks.base import Lazy, Shape, Split, TaskData
from mambanorm_study.tasks.files import (
    ALL,
    SMALL,
    Sizes,
    check_whole,
    data_folder,
    fetch,
    missing,
    read_text,
    verify,
)
from mambanorm_study.tasks.images import open_picture
from mambanorm_study.tasks.registry import register_task

Image = Later("PIL.Image")

ROWS = {
    "imagenet100": (100, 130_000, 5_000),
    "imagenet1k": (1_000, 1_281_167, 50_000),
}  # classes, train, val
ENDINGS = (".jpeg", ".jpg", ".png")
MARGIN = 256 / 224  # the shorter side is resized to so many edges before the centre is cut out
HELD_OUT = (
    0.05  # of train for validation: ImageNet's own val serves as test, which nothing may select on
)
CLASS_LIST = "https://raw.githubusercontent.com/HobbitLong/CMC/bc687a26de7ae350d98f671d25d164b65336b8c2/imagenet100.txt"
LIST_DIGEST = "sha256:79f3f1552ccc478ce24bd934b4573625db584ddc1f4643ae23c994a94cb11397"
HOW = "Get ILSVRC 2012 from https://image-net.org (free for research, after registration) and sort it into class folders"


@dataclass(frozen=True)
class Scale:
    """Rows, the pictures' edge in pixels, and the edge of the squares that a model takes as one
    position."""

    sizes: Sizes
    edge: int
    patch: int


SETTINGS: dict[str, Scale] = {
    "smoke": Scale(SMALL["smoke"], 32, 8),
    "quick": Scale(SMALL["quick"], 64, 8),
    "evening": Scale(SMALL["evening"], 64, 8),
    "lab": Scale(ALL, 112, 8),
    "paper": Scale(ALL, 224, 4),  # VMamba's patches; its model halves the image three times besides
}


# -------------------------------------------------------------------------------------------- files


def prepare(scale: str) -> None:
    """Downloads ImageNet-100's class list; the photographs themselves need a registration."""
    print(f"the class list is there: {fetch(CLASS_LIST, LIST_DIGEST, data_folder('imagenet100'))}")


def _layout(name: str, scale: str) -> tuple[Path, list[str]]:
    """The folder with train and val, and the classes to take from it."""
    folder = data_folder(name)
    if name == "imagenet1k":
        return folder, sorted(place.name for place in folder.glob("train/*/"))
    if not (listed := folder / "imagenet100.txt").exists():
        raise missing(name, listed, f"Say `mambanorm tasks --prepare {name}`. {HOW}")
    if scale in ("lab", "paper"):  # below, a list of one's own will do
        verify(listed, LIST_DIGEST)
    return (folder if (folder / "train").is_dir() else data_folder("imagenet1k")), sorted(
        read_text(listed).split()
    )


@lru_cache(maxsize=4)
def _files(
    name: str, folder: Path, classes: tuple[str, ...], split: str
) -> tuple[list[Path], np.ndarray]:
    """Every picture of a split, by class and name, and the labels; ValueError where a class has
    none."""
    files, labels = [], []
    for label, wnid in enumerate(classes):
        place = folder / split / wnid
        found = sorted(entry.name for entry in os.scandir(place)) if place.is_dir() else []
        pictures = [file for file in found if file.lower().endswith(ENDINGS)]
        if not pictures:
            raise missing(name, f"picture in {place}", HOW)
        files += [place / file for file in pictures]
        labels += [label] * len(pictures)
    return files, np.array(labels, np.int64)


def photograph(path: Path, edge: int) -> np.ndarray:
    """(edge, edge, 3) uint8: the shorter side resized to edge · 256/224, the centre cut out, any
    mode made RGB.

    ValueError with the file's name for a file that is no picture.
    """
    shorter = round(edge * MARGIN)
    image = open_picture(path, path, least=shorter)
    width, height = (max(shorter, round(side * shorter / min(image.size))) for side in image.size)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - edge) // 2, (height - edge) // 2
    return np.asarray(image.crop((left, top, left + edge, top + edge)))


def _read(files: list[Path], edge: int, rows: Tensor) -> Tensor:
    """The picked pictures (B, edge, edge, 3) float32 in [-1, 1], read side by side."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        pictures = list(pool.map(lambda row: photograph(files[row], edge), rows.tolist()))
    return torch.from_numpy(np.stack(pictures)).float().div_(127.5).sub_(1)


# ---------------------------------------------------------------------------------------- the tasks


def load_imagenet(name: str, scale: str, seed: int) -> TaskData:
    """Colour photographs (n, edge, edge, 3) float32 in [-1, 1], which stay in their files until a
    batch picks them.

    Test is ImageNet's own val, validation a twentieth of train. At smoke and quick the seed decides
    which are taken.
    """
    settings, (folder, classes) = SETTINGS[scale], _layout(name, scale)
    if not classes:
        raise missing(name, f"train/<wnid> in {folder}", HOW)
    n_classes, *rows = ROWS[name]
    check_whole(folder, [len(classes)], [n_classes], scale, "classes")
    (train, train_labels), (test, test_labels) = (
        _files(name, folder, tuple(classes), s) for s in ("train", "val")
    )
    if name == "imagenet1k":
        check_whole(folder, [len(train), len(test)], rows, scale)
    else:  # of train no exact count is published
        check_whole(folder / "val", [len(test)], rows[1:], scale)
    splits = []
    for i, rows in enumerate(
        settings.sizes.pick_splits((len(train), len(test)), seed, name, HELD_OUT)
    ):
        files, labels = (train, train_labels) if i < 2 else (test, test_labels)
        picked = [files[row] for row in rows.tolist()]
        shape = (len(picked), settings.edge, settings.edge, 3)
        splits.append(
            Split(
                Lazy(shape, partial(_read, picked, settings.edge)),
                torch.from_numpy(labels[rows.numpy()]),
            )
        )
    return TaskData(*splits, n_classes=len(classes), in_channels=3, patch=settings.patch)


def shape(name: str, scale: str) -> Shape:
    settings, (n_classes, *rows) = SETTINGS[scale], ROWS[name]
    length, told = (settings.edge // settings.patch) ** 2, settings.sizes.told(rows, HELD_OUT)
    return Shape(n_classes, length, in_channels=3, patch=settings.patch, **told)


for _name, _title, _source, _prepare in (
    (
        "imagenet100",
        "ImageNet-100: photographs of 100 classes",
        "; class list of HobbitLong/CMC",
        prepare,
    ),
    ("imagenet1k", "ImageNet: photographs of 1,000 classes", "", None),
):
    register_task(
        _name,
        title=_title,
        source=f"Russakovsky et al. (2015), arXiv:1409.0575{_source}",
        kind="image",
        prepare=_prepare,
        shape=partial(shape, _name),
    )(partial(load_imagenet, _name))
