"""ImageNet (1,000 classes) and ImageNet-100 (100 of these classes), decoded batch by batch.

Sources: Russakovsky et al. (2015), ImageNet large scale visual recognition challenge,
arXiv:1409.0575. ImageNet-100: the class list of HobbitLong/CMC (Tian et al. 2020,
arXiv:1906.05849), because the paper that this kit repeats gives no list.

    data/imagenet1k/train/<wnid>/*.JPEG and val/<wnid>/*.JPEG
    data/imagenet100/imagenet100.txt, and optionally train and val as above; without train and val,
    the images are read from data/imagenet1k

Glossary: wnid = WordNet number of a class, the letter n and eight digits; edge = height and width
of an image in pixels.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mambanorm_study.basics.settings import Later
from mambanorm_study.tasks.base import LazyInputs, Split, TaskData
from mambanorm_study.tasks.files import data_folder, downloaded_file, fetch, missing_data_error
from mambanorm_study.tasks.images import open_image
from mambanorm_study.tasks.registry import SCALE_SIZES, Shape, check_complete, register_task

Image = Later("PIL.Image")

N_CLASSES = {"imagenet100": 100, "imagenet1k": 1_000}
ROWS = {"imagenet100": (130_000, 5_000), "imagenet1k": (1_281_167, 50_000)}  # rows of train, val
EDGE = {"smoke": 32, "quick": 64, "evening": 64, "lab": 112, "paper": 224}
# Edge of a patch in pixels. Patches of 4×4 pixels, at paper, are those of VMamba, which then halves
# the height and width of the image three times.
PATCH = {"smoke": 8, "quick": 8, "evening": 8, "lab": 8, "paper": 4}
ENDINGS = (".jpeg", ".jpg", ".png")
MARGIN = 256 / 224  # the shorter side is resized to edge · MARGIN before the centre is cut out
HELD_OUT = 0.05  # share of ImageNet's train for validation; ImageNet's val is the test split
LIST_ADDRESS = (
    "https://raw.githubusercontent.com/HobbitLong/CMC/bc687a26de7ae350d98f671d25d164b65336b8c2"
)
LIST_FILE = {
    "imagenet100.txt": "sha256:79f3f1552ccc478ce24bd934b4573625db584ddc1f4643ae23c994a94cb11397"
}
HOW = (
    "Get ILSVRC 2012 from https://image-net.org (free for research, after registration) and sort "
    "its images into class folders"
)


# -------------------------------------------------------------------------------------------- files


def _folder_and_classes(name: str) -> tuple[Path, list[str]]:
    """Return the folder that contains train and val, and the list of the classes' wnids.

    name: the task, "imagenet100" or "imagenet1k".
    """
    folder = data_folder(name)
    if name == "imagenet1k":
        return folder, sorted(path.name for path in folder.glob("train/*/"))
    class_list = downloaded_file(name, "imagenet100.txt", LIST_FILE)
    if not (folder / "train").is_dir():
        folder = data_folder("imagenet1k")
    return folder, sorted(class_list.read_text().split())


@lru_cache(maxsize=4)
def _list_images(
    name: str, folder: Path, classes: tuple[str, ...], split: str
) -> tuple[list[Path], np.ndarray]:
    """Return the paths and the labels (n,) of the n images in `<folder>/<split>/`.

    The images are sorted by class and file name. classes: the wnids, in the order of the labels.
    Raises ValueError if a class has no image.
    """
    files, labels = [], []
    for label, wnid in enumerate(classes):
        paths = sorted((folder / split / wnid).glob("*"))
        images = [path for path in paths if path.suffix.lower() in ENDINGS]
        if not images:
            raise missing_data_error(name, f"image in {folder / split / wnid}", HOW)
        files += images
        labels += [label] * len(images)
    return files, np.array(labels, np.int64)


def read_photograph(path: Path, edge: int) -> np.ndarray:
    """Return the resized centre of the photograph at `path`, (edge, edge, 3) uint8.

    The photograph is resized, its shorter side to edge · 256/224, before the centre is cut out.
    Raises ValueError, with the path, if the file is not an image.
    """
    shorter = round(edge * MARGIN)
    image = open_image(path, path, min_side=shorter)
    width, height = (max(shorter, round(side * shorter / min(image.size))) for side in image.size)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - edge) // 2, (height - edge) // 2
    return np.asarray(image.crop((left, top, left + edge, top + edge)))


def _read_photographs(files: list[Path], edge: int, rows: Tensor) -> Tensor:
    """Return the images `rows` (B,) of `files`, as (B, edge, edge, 3) float32 in [-1, 1]."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        images = list(pool.map(lambda row: read_photograph(files[row], edge), rows.tolist()))
    return torch.from_numpy(np.stack(images)).float().div_(127.5).sub_(1)


# ---------------------------------------------------------------------------------------- the tasks


def load_imagenet(name: str, scale: str, seed: int) -> TaskData:
    """Return colour photographs (n, edge, edge, 3), float32 in [-1, 1], read batch by batch.

    The test split is ImageNet's val; validation is a twentieth of train. The seed decides which
    photographs are used, except at the scales lab and paper, which use all photographs.
    """
    folder, classes = _folder_and_classes(name)
    if not classes:
        raise missing_data_error(name, f"train/<wnid> in {folder}", HOW)
    parts = {part: _list_images(name, folder, tuple(classes), part) for part in ("train", "val")}
    n = len(parts["train"][0]), len(parts["val"][0])
    if name == "imagenet1k":
        check_complete(folder, n, ROWS[name], scale)
    else:  # the exact size of ImageNet-100's train part is not published
        check_complete(folder / "val", n[1:], ROWS[name][1:], scale)
    edge = EDGE[scale]
    splits = []
    row_numbers = SCALE_SIZES[scale].draw_splits(n, seed, name, HELD_OUT)
    for part, rows in zip(("train", "train", "val"), row_numbers, strict=True):
        files, labels = parts[part]
        files = [files[row] for row in rows.tolist()]
        inputs = LazyInputs((len(files), edge, edge, 3), partial(_read_photographs, files, edge))
        splits.append(Split(inputs, torch.from_numpy(labels[rows.numpy()])))
    return TaskData(*splits, n_classes=len(classes), in_channels=3, patch=PATCH[scale])


def _shape(name: str, scale: str) -> Shape:
    sizes = SCALE_SIZES[scale]
    return Shape(
        N_CLASSES[name],
        (EDGE[scale] // PATCH[scale]) ** 2,
        in_channels=3,
        patch=PATCH[scale],
        sizes=sizes.row_counts(ROWS[name], HELD_OUT),
        reshuffled=sizes.reshuffle,
    )


SOURCE = "Russakovsky et al. (2015), arXiv:1409.0575"

register_task(
    "imagenet100",
    title="ImageNet-100: photographs of 100 classes",
    source=f"{SOURCE}; class list of HobbitLong/CMC",
    kind="image",
    prepare=partial(fetch, "imagenet100", LIST_ADDRESS, LIST_FILE),
    shape=partial(_shape, "imagenet100"),
)(partial(load_imagenet, "imagenet100"))
register_task(
    "imagenet1k",
    title="ImageNet: photographs of 1,000 classes",
    source=SOURCE,
    kind="image",
    shape=partial(_shape, "imagenet1k"),
)(partial(load_imagenet, "imagenet1k"))
