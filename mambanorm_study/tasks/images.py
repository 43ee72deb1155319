"""Pictures: how they are read and kept, and the classic sets MNIST, Fashion-MNIST, SVHN, CIFAR-10
and CIFAR-100.

The sets are tasks pixel by pixel, CIFAR as pictures too. Sources: LeCun et al. (1998), MNIST; Xiao
et al. (2017), Fashion-MNIST, arXiv:1708.07747; Netzer et al. (2011), SVHN; Krizhevsky (2009),
CIFAR. CIFAR as a sequence follows state-spaces/s4: grey, (x − 122.6/255) / (61/255), row after row,
a tenth of train for validation (seed 42).

Glossary: n pictures of edge×edge pixels, H×W and C colours; L = positions = (edge / averaging)².
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from tqdm.auto import tqdm

from mambanorm_study.basics.settings import Later
from mambanorm_study.tasks.base import Lazy, Shape, Split, TaskData
from mambanorm_study.tasks.files import (
    AGAIN,
    SCALE_SIZES,
    TIMEOUT,
    check_labels,
    check_whole,
    data_folder,
    fetch,
    parquet_files,
    read_split,
    verify,
)
from mambanorm_study.tasks.registry import register_task

if TYPE_CHECKING:
    import pyarrow as pa
    from PIL import Image as Pillow

Image, requests = Later("PIL.Image"), Later("requests")

HUB = "https://huggingface.co"
S4_GREY = (
    1 / 61,
    -122.6 / 61,
)  # byte · scale + shift: s4's mean 122.6 and deviation 61 of CIFAR-10's grey values
PLUS_MINUS = (2 / 255, -1.0)  # −1…1, as `digits`
AVERAGED = {"smoke": 4, "quick": 2, "evening": 2, "lab": 1, "paper": 1}
"""Sequences read pictures averaged over blocks: 49 to 64 positions at smoke, 196 to 256 at quick
and evening."""

PATCH = {"smoke": 8, "quick": 4, "evening": 4, "lab": 2, "paper": 2}
"""Pictures are cut into squares of patch² pixels: 16, 64 and 256 positions."""


# ----------------------------------------------------------------------------------------- pictures


def open_picture(
    source, where: object, mode: str = "RGB", edge: int | None = None, least: int = 0
) -> Pillow.Image:
    """The picture of a path or a file, in a mode: "L" (a colour picture turns grey as Pillow does
    it, ITU-R 601) or "RGB".

    ValueError that says where for one that cannot be read; with an `edge` also for one that has
    other than edge×edge pixels. `least`: so many pixels a side will do, so that JPEG decodes at a
    half or a quarter, several times faster.
    """
    try:
        with Image.open(source) as image:
            if least:
                image.draft(mode, (least, least))
            size, picture = image.size, image.convert(mode)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{where} is no picture that can be read ({error}): {AGAIN}") from error
    if edge and size != (edge, edge):
        raise ValueError(
            f"{where}: a picture of {size[0]}×{size[1]} pixels, needed are {edge}×{edge}"
        )
    return picture


def decode(
    encoded: pa.ChunkedArray, rows: Sequence[int], edge: int, mode: str, where: object
) -> np.ndarray:
    """(n, H, W) uint8 for mode "L", (n, H, W, 3) for "RGB": the picked rows of a column of encoded
    pictures, each as bytes or as a struct {bytes, path}. ValueError with the row, as of
    `open_picture`."""
    pictures = np.zeros(
        (len(rows), edge, edge) if mode == "L" else (len(rows), edge, edge, 3), np.uint8
    )
    for i, row in enumerate(tqdm(rows, desc=f"decoding {where}", unit=" pictures", delay=2)):
        one = encoded[row].as_py()
        content = io.BytesIO(one["bytes"] if isinstance(one, dict) else one)
        pictures[i] = np.asarray(open_picture(content, f"{where}, row {row + 1}", mode, edge))
    return pictures


def read_idx(path: Path) -> np.ndarray:
    """The array of a gzipped idx file of bytes: labels (n,) or pictures (n, H, W), uint8 (Y.
    LeCun's format).

    gzip's own checksum is checked. ValueError with the file's name where it is truncated, altered
    or no such file.
    """
    try:
        content = gzip.decompress(path.read_bytes())
        start = 4 + 4 * content[3]  # of the numbers, behind the sizes of the axes
        return np.frombuffer(content, np.uint8, offset=start).reshape(
            np.frombuffer(content[4:start], ">u4")
        )
    except (OSError, EOFError, zlib.error, IndexError, ValueError) as error:
        raise ValueError(f"{path} is no whole idx file of bytes ({error}): {AGAIN}") from error


def as_sequences(pictures: np.ndarray, scale: float = 1 / 255, shift: float = 0.0) -> Lazy:
    """(n, H, W) grey pictures as sequences (n, H·W, 1), row after row: kept as bytes, a quarter of
    the memory, and byte · scale + shift when read."""
    kept = torch.tensor(pictures.reshape(len(pictures), -1, 1))
    return Lazy(kept.shape, lambda rows: kept[rows].float().mul_(scale).add_(shift))


def block_mean(pictures: np.ndarray, factor: int) -> np.ndarray:
    """(n, H, W) grey pictures with every factor×factor block averaged (rounded to a byte)."""
    if factor == 1:
        return pictures
    n, height, width = pictures.shape
    blocks = pictures.reshape(n, height // factor, factor, width // factor, factor)
    return np.rint(blocks.mean((2, 4), dtype=np.float32)).astype(np.uint8)


# ----------------------------------------------------------------------------------------- the sets


@dataclass(frozen=True)
class PictureSet:
    """A published set. `files`: name -> digest of each file to download; `rows`: of its train and
    its test part."""

    title: str
    source: str
    rows: tuple[int, int]
    address: str  # of the folder with the files
    files: dict[str, str]
    edge: int = 32
    n_classes: int = 10
    columns: tuple[str, str] = ("image", "label")  # of the Parquet files
    grey: tuple[float, float] = PLUS_MINUS


def _hub(repository: str, revision: str, config: str) -> str:
    """The folder of a configuration's Parquet files in a Hugging Face repository, at one commit."""
    return f"{HUB}/datasets/{repository}/resolve/{revision}/{config}"


TRAIN, TEST = (f"{split}-00000-of-00001.parquet" for split in ("train", "test"))
IDX = {split: (f"{name}-images-idx3-ubyte.gz", f"{name}-labels-idx1-ubyte.gz")
       for split, name in (("train", "train"), ("test", "t10k"))}  # fmt: skip


def _idx(*digests: str) -> dict[str, str]:
    return {
        name: f"md5:{digest}"
        for name, digest in zip((*IDX["train"], *IDX["test"]), digests, strict=True)
    }


SETS: dict[str, PictureSet] = {
    "mnist": PictureSet(
        "MNIST: handwritten digits, 28×28",
        "LeCun et al. (1998), Gradient-based learning applied to document recognition",
        edge=28,
        rows=(60_000, 10_000),
        address="https://ossci-datasets.s3.amazonaws.com/mnist",
        files=_idx("f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432",
                   "9fb629c4189551a2d022fa330f9573f3", "ec29112dd5afa0611ce80d1b7f02629c"),
    ),
    "fashion_mnist": PictureSet(
        "Fashion-MNIST: pieces of clothing, 28×28",
        "Xiao et al. (2017), Fashion-MNIST, arXiv:1708.07747",
        edge=28,
        rows=(60_000, 10_000),
        address="https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/"
        "b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion",
        files=_idx("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "25c81989df183df01b3e8a0aad5dffbe",
                   "bef4ecab320f06d8554ea6380940ec79", "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
    "svhn": PictureSet(
        "SVHN: house numbers, 32×32",
        "Netzer et al. (2011), Reading digits in natural images with unsupervised feature learning",
        rows=(73_257, 26_032),
        address=_hub("ufldl-stanford/svhn", "f9e1717d73324ebbc1ece84267ccd80d0aca0690", "cropped_digits"),
        files={TRAIN: "", TEST: ""},  # "" = the Hub states which: see `_stated_digest`
    ),
    "cifar10": PictureSet(
        "CIFAR-10: ten kinds of things, 32×32",
        "Krizhevsky (2009), Learning multiple layers of features from tiny images",
        rows=(50_000, 10_000),
        address=_hub("uoft-cs/cifar10", "0b2714987fa478483af9968de7c934580d0bb9a2", "plain_text"),
        files={
            TRAIN: "sha256:8428b53a88a11ac374111006708df51469e315a22ac6d66470afd9c78d2ae883",
            TEST: "sha256:841389e6f2d64f28bf17310e430aebac20ec3ba611a3c5e231dc93c645ce84de",
        },
        columns=("img", "label"),
        grey=S4_GREY,
    ),
    "cifar100": PictureSet(
        "CIFAR-100: a hundred kinds of things, 32×32",
        "Krizhevsky (2009), Learning multiple layers of features from tiny images",
        rows=(50_000, 10_000),
        n_classes=100,
        address=_hub("uoft-cs/cifar100", "aadb3af77e9048adbea6b47c21a81e47dd092ae5", "cifar100"),
        files={
            TRAIN: "sha256:694865d6b990e234804f01268586c41e88bcbbb75e20858432c05ad4081aca23",
            TEST: "sha256:98776c529bb146a9c791229df74a5cf076be9b43d82dbbd334b6a7788d73dc68",
        },
        columns=("img", "fine_label"),
        grey=S4_GREY,
    ),
}  # fmt: skip


def prepare(name: str, scale: str) -> None:
    """Downloads a set's published files, whatever the scale; does nothing where readable files are
    there."""
    folder, one = data_folder(name), SETS[name]
    if all(
        _pair(name, split) or parquet_files(folder, split, one.files) for split in ("train", "test")
    ):
        return
    for file, digest in one.files.items():
        if digest or not (folder / file).exists():
            url = f"{one.address}/{file}"
            fetch(url, digest or _stated_digest(url), folder)


def _stated_digest(url: str) -> str:
    """The SHA-256 that a Hugging Face repository states for a large file at a commit."""
    answer = requests.head(url, timeout=TIMEOUT)
    if not (digest := answer.headers.get("X-Linked-ETag", "").strip('"')):
        raise OSError(
            f"{url} states no checksum ({answer.status_code} {answer.reason}): look there, or try again"
        )
    return f"sha256:{digest}"


def _pair(name: str, split: str) -> list[Path]:
    """A split's idx files of pictures and labels, [] where there is no such pair."""
    folder, one = data_folder(name), SETS[name]
    pair = [folder / file for file in IDX[split] if file in one.files]
    if not all(file.exists() for file in pair):
        return []
    for file in pair:
        verify(file, one.files[file.name])
    return pair


def _read(name: str, split: str) -> tuple[np.ndarray | pa.ChunkedArray, np.ndarray]:
    """A split's pictures, decoded (n, H, W) or a column of encoded ones, and its labels (n,)."""
    one, where = SETS[name], f"{name}'s {split}"
    if pair := _pair(name, split):
        pictures, labels = map(read_idx, pair)
        if pictures.shape != (*labels.shape, one.edge, one.edge):
            needed = f"needed is one label for each picture of {one.edge}×{one.edge} pixels"
            raise ValueError(
                f"{pair[0]} holds {pictures.shape}, {pair[1].name} {labels.shape}: {needed}"
            )
    else:
        pictures, labels = read_split(name, split, one.columns, one.address, one.files).columns
    return pictures, check_labels(np.asarray(labels), one.n_classes, where)


def _load(name: str, mode: str, scale: str, seed: int) -> list[tuple[np.ndarray, torch.Tensor]]:
    """Pictures and labels of train, validation and test at a scale; only the pictures that it takes
    are decoded."""
    one, parts = SETS[name], {split: _read(name, split) for split in ("train", "test")}
    counts = tuple(len(labels) for _, labels in parts.values())
    check_whole(data_folder(name), counts, one.rows, scale)
    loaded = []
    picked = SCALE_SIZES[scale].pick_splits(counts, seed, name)
    for split, rows in zip(("train", "train", "test"), map(np.asarray, picked), strict=True):
        pictures, labels = parts[split]
        if isinstance(pictures, np.ndarray):
            pictures = pictures[rows]
        else:
            pictures = decode(pictures, rows.tolist(), one.edge, mode, f"{name}'s {split}")
        loaded.append((pictures, torch.from_numpy(labels[rows])))
    return loaded


def load_sequence(name: str, scale: str, seed: int) -> TaskData:
    """Grey values (n, L, 1) float32, row after row. At smoke and quick the seed decides which
    pictures are taken."""
    splits = [
        Split(as_sequences(block_mean(pictures, AVERAGED[scale]), *SETS[name].grey), labels)
        for pictures, labels in _load(name, "L", scale, seed)
    ]
    return TaskData(*splits, n_classes=SETS[name].n_classes, in_features=1)


def load_pictures(name: str, scale: str, seed: int) -> TaskData:
    """Colour pictures (n, 32, 32, 3), bytes; a batch returns -1…1. At smoke and quick the seed
    decides which."""
    splits = [
        Split(torch.from_numpy(pictures), labels)
        for pictures, labels in _load(name, "RGB", scale, seed)
    ]
    return TaskData(*splits, n_classes=SETS[name].n_classes, in_channels=3, patch=PATCH[scale])


def _shape(name: str, colour: bool, scale: str) -> Shape:
    one, side = SETS[name], PATCH[scale] if colour else AVERAGED[scale]
    inputs = dict(in_channels=3, patch=side) if colour else dict(in_features=1)
    return Shape(
        one.n_classes, (one.edge // side) ** 2, **inputs, **SCALE_SIZES[scale].told(one.rows)
    )


def _register(name: str, colour: bool) -> None:
    one, load = SETS[name], load_pictures if colour else load_sequence
    register_task(
        f"{name}_images" if colour else name,
        title=f"{one.title}, {'in colour' if colour else 'pixel by pixel'}",
        source=one.source,
        kind="image" if colour else "sequence",
        prepare=partial(prepare, name),
        shape=partial(_shape, name, colour),
    )(partial(load, name))


for _name in SETS:
    _register(_name, colour=False)
for _name in ("cifar10", "cifar100"):
    _register(_name, colour=True)
