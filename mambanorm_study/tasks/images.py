"""Decode images, and load the image sets MNIST, Fashion-MNIST, SVHN, CIFAR-10 and CIFAR-100.

Each set has a task of sequences of grey pixels and a task of images, which read the same files. The
images of SVHN and CIFAR have three colours.
The CIFAR sequences follow state-spaces/s4: grey values x in 0…1 become (x − 122.6/255) / (61/255),
row after row, and at lab and paper a tenth of train, drawn with seed 42, is for validation.

Sources: LeCun et al. (1998), MNIST; Xiao et al. (2017), Fashion-MNIST; Netzer et al. (2011), SVHN;
Krizhevsky (2009), CIFAR.

Glossary: n images of H×W = edge×edge pixels; L = positions = (edge / AVERAGED)².
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from tqdm.auto import tqdm

from mambanorm_study.basics.settings import Later
from mambanorm_study.tasks.base import LazyInputs, Split, TaskData
from mambanorm_study.tasks.files import (
    check_labels,
    data_folder,
    downloaded_file,
    fetch,
    read_part,
)
from mambanorm_study.tasks.registry import SCALE_SIZES, TASKS, Shape, check_complete, register_task

Image, pa = Later("PIL.Image"), Later("pyarrow")

# The mean of a square of AVERAGED × AVERAGED pixels is one position of a sequence. A CIFAR image
# has 64 positions at smoke, 256 at quick and evening, 1,024 at lab and paper.
AVERAGED = {"smoke": 4, "quick": 2, "evening": 2, "lab": 1, "paper": 1}
# Edge of a patch in pixels; at smoke it is a quarter of the image's edge. A CIFAR image has 16
# positions at smoke, 64 at quick and evening, 256 at lab and paper.
PATCH = {"quick": 4, "evening": 4, "lab": 2, "paper": 2}


# ---------------------------------------------------------------------------------- reading images


def open_image(
    source, where: object, mode: str = "RGB", edge: int | None = None, min_side: int = 0
) -> Image.Image:
    """Return the image at a path or in a file object, in mode "L" (grey as in ITU-R 601) or "RGB".

    min_side: if not 0, a JPEG may be decoded at a reduced size, with at least `min_side` pixels per
    side, which is several times faster. Raises ValueError, with `where` (the name of the image), if
    the image cannot be read, or, if `edge` is given, does not have edge×edge pixels.
    """
    try:
        with Image.open(source) as image:
            if min_side:
                image.draft(mode, (min_side, min_side))
            size, converted = image.size, image.convert(mode)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{where} is not a readable image ({error}): replace this file") from error
    if edge and size != (edge, edge):
        raise ValueError(
            f"{where}: an image of {size[0]}×{size[1]} pixels, needed are {edge}×{edge} pixels"
        )
    return converted


def decode(
    encoded: pa.ChunkedArray, rows: Sequence[int], edge: int, mode: str, where: object
) -> np.ndarray:
    """Return the n images of `rows` as uint8, (n, H, W) in mode "L" or (n, H, W, 3) in mode "RGB".

    encoded: a column of structs {bytes, path}, one per image, as on Hugging Face. where: names the
    data in messages. Raises ValueError, with `where` and the row's number, if an image cannot be
    read or does not have edge×edge pixels.
    """
    shape = (edge, edge) if mode == "L" else (edge, edge, 3)
    images = np.zeros((len(rows), *shape), np.uint8)
    for i, row in enumerate(tqdm(rows, desc=f"decoding {where}", unit=" images", delay=2)):
        content = io.BytesIO(encoded[row].as_py()["bytes"])
        images[i] = open_image(content, f"{where}, row {row + 1}", mode, edge)
    return images


def read_idx(task: str, name: str) -> np.ndarray:
    """Return the uint8 array in the gzipped idx file `data/<task>/<name>` (the format of MNIST)."""
    content = gzip.decompress(downloaded_file(task, name, SETS[task].files).read_bytes())
    # The header is a magic number, whose last byte is the number of axes, then each axis's size.
    header = 4 + 4 * content[3]
    return np.frombuffer(content, np.uint8, offset=header).reshape(
        np.frombuffer(content[4:header], ">u4")
    )


def as_sequences(images: np.ndarray, scale: float = 1 / 255, shift: float = 0.0) -> LazyInputs:
    """Return grey images (n, H, W) uint8 as sequences (n, H·W, 1) float32.

    A pixel p becomes p · scale + shift. The images are kept as bytes, which take a quarter of the
    memory of float32. A row is converted when a batch needs the row.
    """
    pixels = torch.tensor(images.reshape(len(images), -1, 1))
    return LazyInputs(pixels.shape, lambda rows: pixels[rows].float().mul_(scale).add_(shift))


def average_blocks(images: np.ndarray, factor: int) -> np.ndarray:
    """Return the means of grey images (n, H, W) over squares of factor×factor pixels, as bytes.

    The shape is (n, H/factor, W/factor).
    """
    if factor == 1:
        return images
    means = F.avg_pool2d(torch.from_numpy(images)[:, None].float(), factor)
    return means[:, 0].round().byte().numpy()


# ----------------------------------------------------------------------------------------- the sets


# Two pairs (scale, shift) for `as_sequences`. The first pair maps 0…255 to −1…1, as in `digits`.
# The second pair standardizes by the mean 122.6 and the standard deviation 61 of CIFAR-10's grey
# values, as in s4.
MINUS_ONE_TO_ONE = (2 / 255, -1.0)
S4_GREY = (1 / 61, -122.6 / 61)
HUB = "https://huggingface.co/datasets"
TRAIN, TEST = "train-00000-of-00001.parquet", "test-00000-of-00001.parquet"
# Part of the data set -> name of a file of MNIST and Fashion-MNIST; {} is IMAGES or LABELS
IDX = {"train": "train-{}-ubyte.gz", "test": "t10k-{}-ubyte.gz"}
IMAGES, LABELS = "images-idx3", "labels-idx1"


@dataclass(frozen=True)
class ImageSet:
    """A published set of images.

    rows: number of rows of the train and the test part. address: URL of the folder with the files.
    files: file name -> digest. edge: height and width of an image in pixels. columns: names of the
    column with images and of the column with labels, or () for idx files. grey: scale and shift of
    `as_sequences`.
    """

    title: str
    source: str
    rows: tuple[int, int]
    address: str
    files: dict[str, str]
    edge: int = 32
    n_classes: int = 10
    columns: tuple[str, ...] = ("image", "label")
    grey: tuple[float, float] = MINUS_ONE_TO_ONE

    @property
    def channels(self) -> int:
        """Number of channels of an image: 1 in idx files, 3 in Parquet files."""
        return 3 if self.columns else 1

    def patch(self, scale: str) -> int:
        """Return the edge of a patch in pixels."""
        return PATCH.get(scale, self.edge // 4)


SETS: dict[str, ImageSet] = {
    "mnist": ImageSet(
        "MNIST: handwritten digits, 28×28",
        "LeCun et al. (1998), Gradient-based learning applied to document recognition",
        edge=28,
        rows=(60_000, 10_000),
        address="https://ossci-datasets.s3.amazonaws.com/mnist",
        files={
            IDX["train"].format(IMAGES): "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
            IDX["train"].format(LABELS): "md5:d53e105ee54ea40749a09fcbcd1e9432",
            IDX["test"].format(IMAGES): "md5:9fb629c4189551a2d022fa330f9573f3",
            IDX["test"].format(LABELS): "md5:ec29112dd5afa0611ce80d1b7f02629c",
        },
        columns=(),
    ),
    "fashion_mnist": ImageSet(
        "Fashion-MNIST: pieces of clothing, 28×28",
        "Xiao et al. (2017), Fashion-MNIST, arXiv:1708.07747",
        edge=28,
        rows=(60_000, 10_000),
        address="https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/"
        "b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion",
        files={
            IDX["train"].format(IMAGES): "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            IDX["train"].format(LABELS): "md5:25c81989df183df01b3e8a0aad5dffbe",
            IDX["test"].format(IMAGES): "md5:bef4ecab320f06d8554ea6380940ec79",
            IDX["test"].format(LABELS): "md5:bb300cfdad3c16e7a12a480ee83cd310",
        },
        columns=(),
    ),
    "svhn": ImageSet(
        "SVHN: house numbers, 32×32",
        "Netzer et al. (2011), Reading digits in natural images with unsupervised feature learning",
        rows=(73_257, 26_032),
        address=f"{HUB}/ufldl-stanford/svhn/resolve/f9e1717d73324ebbc1ece84267ccd80d0aca0690/"
        "cropped_digits",
        files={TRAIN: "", TEST: ""},  # "" means the digest that Hugging Face states
    ),
    "cifar10": ImageSet(
        "CIFAR-10: ten kinds of things, 32×32",
        "Krizhevsky (2009), Learning multiple layers of features from tiny images",
        rows=(50_000, 10_000),
        address=f"{HUB}/uoft-cs/cifar10/resolve/0b2714987fa478483af9968de7c934580d0bb9a2/plain_text",
        files={
            TRAIN: "sha256:8428b53a88a11ac374111006708df51469e315a22ac6d66470afd9c78d2ae883",
            TEST: "sha256:841389e6f2d64f28bf17310e430aebac20ec3ba611a3c5e231dc93c645ce84de",
        },
        columns=("img", "label"),
        grey=S4_GREY,
    ),
    "cifar100": ImageSet(
        "CIFAR-100: a hundred kinds of things, 32×32",
        "Krizhevsky (2009), Learning multiple layers of features from tiny images",
        rows=(50_000, 10_000),
        n_classes=100,
        address=f"{HUB}/uoft-cs/cifar100/resolve/aadb3af77e9048adbea6b47c21a81e47dd092ae5/cifar100",
        files={
            TRAIN: "sha256:694865d6b990e234804f01268586c41e88bcbbb75e20858432c05ad4081aca23",
            TEST: "sha256:98776c529bb146a9c791229df74a5cf076be9b43d82dbbd334b6a7788d73dc68",
        },
        columns=("img", "fine_label"),
        grey=S4_GREY,
    ),
}  # fmt: skip


def _read_images(name: str, part: str) -> tuple[np.ndarray | pa.ChunkedArray, np.ndarray]:
    """Return the n images and the labels (n,) of a part, "train" or "test", of the set `name`.

    The images are a uint8 array (n, H, W), or a column of encoded images for `decode`.
    """
    image_set = SETS[name]
    if image_set.columns:
        source = image_set.n_classes, image_set.address, image_set.files
        return read_part(name, part, image_set.columns, *source)
    images, labels = (read_idx(name, IDX[part].format(kind)) for kind in (IMAGES, LABELS))
    return images, check_labels(labels, image_set.n_classes, f"{name}'s {part}")


def _load_splits(
    name: str, mode: str, scale: str, seed: int
) -> list[tuple[np.ndarray, torch.Tensor]]:
    """Return the pairs (images, labels) of train, validation and test, with the rows of the scale.

    images: uint8, (n, H, W) in mode "L", (n, H, W, 3) in mode "RGB". labels: (n,).
    """
    image_set = SETS[name]
    parts = {part: _read_images(name, part) for part in ("train", "test")}
    counts = tuple(len(labels) for _, labels in parts.values())
    check_complete(data_folder(name), counts, image_set.rows, scale)
    loaded = []
    row_numbers = SCALE_SIZES[scale].draw_splits(counts, seed, name)
    for part, rows in zip(("train", "train", "test"), row_numbers, strict=True):
        images, labels = parts[part]
        if isinstance(images, np.ndarray):
            pixels = images[rows]
        else:
            pixels = decode(images, rows.tolist(), image_set.edge, mode, f"{name}'s {part}")
        loaded.append((pixels, torch.from_numpy(labels)[rows]))
    return loaded


def load_sequences(name: str, scale: str, seed: int) -> TaskData:
    """Return the images as sequences of grey values (n, L, 1) float32, row after row.

    The seed decides which images are used, except at the scales lab and paper.
    """
    splits = [
        Split(as_sequences(average_blocks(images, AVERAGED[scale]), *SETS[name].grey), labels)
        for images, labels in _load_splits(name, "L", scale, seed)
    ]
    return TaskData(*splits, n_classes=SETS[name].n_classes, in_features=1)


def load_images(name: str, scale: str, seed: int) -> TaskData:
    """Return images (n, H, W, C) as bytes, which `Split.batch` converts to −1…1.

    The seed decides which images are used, except at the scales lab and paper.
    """
    image_set = SETS[name]
    sizes = (image_set.edge, image_set.edge, image_set.channels)
    splits = [
        Split(torch.from_numpy(images).view(-1, *sizes), labels)
        for images, labels in _load_splits(name, "RGB", scale, seed)
    ]
    return TaskData(
        *splits,
        n_classes=image_set.n_classes,
        in_channels=image_set.channels,
        patch=image_set.patch(scale),
    )


def _shape(name: str, as_images: bool, scale: str) -> Shape:
    image_set, sizes = SETS[name], SCALE_SIZES[scale]
    position_edge = image_set.patch(scale) if as_images else AVERAGED[scale]
    return Shape(
        image_set.n_classes,
        (image_set.edge // position_edge) ** 2,
        in_features=None if as_images else 1,
        in_channels=image_set.channels if as_images else None,
        patch=position_edge if as_images else 1,
        sizes=sizes.row_counts(image_set.rows),
        reshuffled=sizes.reshuffle,
    )


for _name, _set in SETS.items():
    register_task(
        _name,
        title=f"{_set.title}, pixel by pixel",
        source=_set.source,
        prepare=partial(fetch, _name, _set.address, _set.files),
        shape=partial(_shape, _name, False),
    )(partial(load_sequences, _name))
    register_task(
        f"{_name}_images",
        title=f"{_set.title}, {'in colour' if _set.channels == 3 else 'as images'}",
        source=_set.source,
        kind="image",
        prepare=TASKS[_name].prepare,
        shape=partial(_shape, _name, True),
    )(partial(load_images, _name))
