"""The classic picture sets: MNIST, Fashion-MNIST, SVHN, CIFAR-10 and CIFAR-100, pixel by pixel, CIFAR as pictures too.

Sources: LeCun et al. (1998), MNIST; Xiao et al. (2017), Fashion-MNIST, arXiv:1708.07747; Netzer et al. (2011), SVHN;
Krizhevsky (2009), CIFAR. CIFAR as a sequence follows state-spaces/s4: grey, (x − 122.6/255) / (61/255), row after row,
a tenth of train for validation (seed 42).

Map
    PictureSet, SETS                where each set comes from, what its pictures are, checksums of its files
    AVERAGED, PATCH                 averaging and patches at each scale; rows: files.SCALE_SIZES
    prepare                         downloads the published files into data/<set>
    load_sequence, load_pictures    the registered tasks

Glossary: n pictures of edge×edge pixels; L = positions = (edge / averaging)².
"""

from __future__ import annotations

import http.client
import json
import urllib.request
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from mambanorm.tasks.base import Shape, Split, TaskData
from mambanorm.tasks.files import (
    SCALE_SIZES,
    TIMEOUT,
    Remote,
    check_whole,
    data_folder,
    fetch,
    missing,
    pick_splits,
    rows_held_out,
    rows_trained,
    verify,
)
from mambanorm.tasks.images import (
    as_sequences,
    block_mean,
    check_labels,
    decode,
    parquet_files,
    read_idx,
    read_labels,
    read_parquet,
)
from mambanorm.tasks.registry import register_task

if TYPE_CHECKING:
    import pyarrow as pa

HUB = "https://huggingface.co"
S4_GREY = (1 / 61, -122.6 / 61)  # byte · scale + shift: s4's mean 122.6 and deviation 61 of CIFAR-10's grey values
PLUS_MINUS = (2 / 255, -1.0)  # −1…1, as `digits`
AVERAGED = {"smoke": 4, "quick": 2, "evening": 2, "lab": 1, "paper": 1}
"""Sequences read pictures averaged over blocks: 49 to 64 positions at smoke, 196 to 256 at quick and evening."""

PATCH = {"smoke": 8, "quick": 4, "evening": 4, "lab": 2, "paper": 2}
"""Pictures are cut into squares of patch² pixels: 16, 64 and 256 positions."""


@dataclass(frozen=True)
class PictureSet:
    """A published set. `files`: name -> digest of each file to download; `rows`: of its train and its test part."""

    title: str
    source: str
    edge: int
    rows: tuple[int, int]
    n_classes: int
    address: str  # of the folder with the files
    files: dict[str, str]
    columns: tuple[str, str] = ("image", "label")  # of the Parquet files
    grey: tuple[float, float] = PLUS_MINUS


def _hub(repository: str, revision: str, config: str) -> str:
    """The folder of a configuration's Parquet files in a Hugging Face repository, at one commit."""
    return f"{HUB}/datasets/{repository}/resolve/{revision}/{config}"


TRAIN, TEST = (f"{split}-00000-of-00001.parquet" for split in ("train", "test"))
IDX = {split: (f"{name}-images-idx3-ubyte.gz", f"{name}-labels-idx1-ubyte.gz")
       for split, name in (("train", "train"), ("test", "t10k"))}  # fmt: skip

SETS: dict[str, PictureSet] = {
    "mnist": PictureSet(
        "MNIST: handwritten digits, 28×28",
        "LeCun et al. (1998), Gradient-based learning applied to document recognition",
        edge=28,
        rows=(60_000, 10_000),
        n_classes=10,
        address="https://ossci-datasets.s3.amazonaws.com/mnist",
        files={
            "train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "md5:9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "md5:ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "fashion_mnist": PictureSet(
        "Fashion-MNIST: pieces of clothing, 28×28",
        "Xiao et al. (2017), Fashion-MNIST, arXiv:1708.07747",
        edge=28,
        rows=(60_000, 10_000),
        n_classes=10,
        address="https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/"
        "b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion",
        files={
            "train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    "svhn": PictureSet(
        "SVHN: house numbers, 32×32",
        "Netzer et al. (2011), Reading digits in natural images with unsupervised feature learning",
        edge=32,
        rows=(73_257, 26_032),
        n_classes=10,
        address=_hub("ufldl-stanford/svhn", "f9e1717d73324ebbc1ece84267ccd80d0aca0690", "cropped_digits"),
        files={TRAIN: "", TEST: ""},  # "" = the commit's own record says which: see `_stated_digest`
    ),
    "cifar10": PictureSet(
        "CIFAR-10: ten kinds of things, 32×32",
        "Krizhevsky (2009), Learning multiple layers of features from tiny images",
        edge=32,
        rows=(50_000, 10_000),
        n_classes=10,
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
        edge=32,
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
}


# ---------------------------------------------------------------------------------------------- files


def prepare(name: str, scale: str) -> None:
    """Downloads a set's published files, whatever the scale; does nothing where readable files are there."""
    if all(_find(name, split) for split in ("train", "test")):
        return
    folder, one = data_folder(name), SETS[name]
    for file, digest in one.files.items():
        if not digest and (folder / file).exists():
            continue
        fetch(Remote(f"{one.address}/{file}", file, digest or _stated_digest(f"{one.address}/{file}")), folder)


def _stated_digest(url: str) -> str:
    """The checksum that a Hugging Face repository's own record states for a file at a commit."""
    repository, _, path = url.removeprefix(f"{HUB}/datasets/").partition("/resolve/")
    revision, _, path = path.partition("/")
    listing = f"{HUB}/api/datasets/{repository}/tree/{revision}/{path.rpartition('/')[0]}"
    try:
        with urllib.request.urlopen(listing, timeout=TIMEOUT) as answer:
            entries = json.load(answer)
        stated = {entry["path"]: entry.get("lfs", {}).get("oid") for entry in entries}
    except (OSError, http.client.HTTPException) as error:
        raise OSError(f"{listing} does not answer ({error}): it states the checksum of {path}, try again") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # a login page, say
        raise ValueError(f"{listing} answers something else than a list of files ({error!r}): try again") from error
    if not stated.get(path):
        raise ValueError(f"{listing} states no checksum of {path}: look there for the data set's files")
    return f"sha256:{stated[path]}"


def _find(name: str, split: str) -> list[Path]:
    """The files that hold a split: Parquet or, for MNIST's family, a pair of idx files; [] where there is none."""
    folder, one = data_folder(name), SETS[name]
    published = {file: digest for file, digest in one.files.items() if digest}
    if found := parquet_files(folder, split, published):
        return found
    pair = [folder / file for file in IDX[split] if file in one.files]
    if not pair or not all(file.exists() for file in pair):
        return []
    for file in pair:
        if file.name in published:
            verify(file, published[file.name])
    return pair


@lru_cache(maxsize=4)
def _read(
    name: str, split: str, files: tuple[Path, ...], changed: tuple[int, ...]
) -> tuple[np.ndarray | pa.ChunkedArray, np.ndarray]:
    """A split's pictures, decoded (n, H, W) or still encoded, and its labels (n,). `changed` notices changed files."""
    one = SETS[name]
    if files[0].suffix == ".gz":
        return _read_pair(one, *files)
    table = read_parquet(files, one.columns)
    return table[one.columns[0]], read_labels(table[one.columns[1]], one.n_classes, f"{name}'s {split}")


def _read_pair(one: PictureSet, pictures_file: Path, labels_file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Pictures and labels of a pair of idx files that must fit together."""
    pictures, labels = read_idx(pictures_file), read_idx(labels_file)
    if pictures.shape[1:] != (one.edge, one.edge):
        found = "×".join(map(str, pictures.shape[1:])) or "no"
        raise ValueError(f"{pictures_file} has pictures of {found} pixels, needed are {one.edge}×{one.edge}")
    if labels.shape != pictures.shape[:1]:
        found = f"{len(labels):,} labels for {len(pictures):,} pictures of {pictures_file.name}"
        raise ValueError(f"{labels_file} holds {found}: bring the two files that belong together")
    check_labels(labels.astype(np.int64), one.n_classes, labels_file)
    return pictures, labels.astype(np.int64)


def _load(name: str, mode: str, scale: str, seed: int) -> list[tuple[np.ndarray, torch.Tensor]]:
    """Pictures and labels of train, validation and test at a scale; only the pictures that it takes are decoded."""
    one, parts = SETS[name], {}
    for split in ("train", "test"):
        if not (files := _find(name, split)):
            raise _missing(name, split)
        parts[split] = _read(name, split, tuple(files), tuple(file.stat().st_mtime_ns for file in files))
    counts = tuple(len(labels) for _, labels in parts.values())
    check_whole(data_folder(name), counts, one.rows, scale)
    loaded = []
    rows_of_splits = pick_splits(counts, SCALE_SIZES[scale], seed, name)
    for split, rows in zip(("train", "train", "test"), rows_of_splits, strict=True):
        pictures, labels = parts[split]
        rows = rows.numpy()
        if not isinstance(pictures, np.ndarray):
            pictures = decode(pictures, rows.tolist(), one.edge, mode, f"{name}'s {split}")
        else:
            pictures = pictures[rows]
        loaded.append((pictures, torch.from_numpy(labels[rows])))
    return loaded


def _missing(name: str, split: str) -> ValueError:
    """What a folder lacks of a split, and where to get it."""
    one = SETS[name]
    kinds = [f"{split}*.parquet"] + ([" with ".join(IDX[split])] if IDX[split][0] in one.files else [])
    how = f"Say `mambanorm tasks --prepare {name}`, or put the files of {one.address} into that folder"
    return missing(name, f"{' or '.join(kinds)} in {data_folder(name)}", how)


# ---------------------------------------------------------------------------------------------- the tasks


def load_sequence(name: str, scale: str, seed: int) -> TaskData:
    """Grey values (n, L, 1) float32, row after row. At smoke and quick the seed decides which pictures are taken."""
    splits = [
        Split(as_sequences(block_mean(pictures, AVERAGED[scale]), *SETS[name].grey), labels)
        for pictures, labels in _load(name, "L", scale, seed)
    ]
    return TaskData(*splits, n_classes=SETS[name].n_classes, in_features=1)


def load_pictures(name: str, scale: str, seed: int) -> TaskData:
    """Colour pictures (n, 32, 32, 3), bytes; a batch returns -1…1. At smoke and quick the seed decides which."""
    splits = [Split(torch.from_numpy(pictures), labels) for pictures, labels in _load(name, "RGB", scale, seed)]
    return TaskData(*splits, n_classes=SETS[name].n_classes, in_channels=3, patch=PATCH[scale])


def sequence_shape(name: str, scale: str) -> Shape:
    one = SETS[name]
    length = (one.edge // AVERAGED[scale]) ** 2
    return Shape(one.n_classes, length, in_features=1, **_rows(one, scale))


def pictures_shape(name: str, scale: str) -> Shape:
    one, patch = SETS[name], PATCH[scale]
    return Shape(one.n_classes, (one.edge // patch) ** 2, in_channels=3, patch=patch, **_rows(one, scale))


def _rows(one: PictureSet, scale: str) -> dict:
    sizes = SCALE_SIZES[scale]
    return dict(
        held_out=rows_held_out(one.rows, sizes), train_rows=rows_trained(one.rows, sizes), reshuffled=sizes.reshuffle
    )


for _name, _set in SETS.items():
    register_task(
        _name,
        title=f"{_set.title}, pixel by pixel",
        source=_set.source,
        prepare=partial(prepare, _name),
        shape=partial(sequence_shape, _name),
    )(partial(load_sequence, _name))
for _name in ("cifar10", "cifar100"):
    register_task(
        f"{_name}_images",
        title=f"{SETS[_name].title}, in colour",
        source=SETS[_name].source,
        kind="image",
        prepare=partial(prepare, _name),
        shape=partial(pictures_shape, _name),
    )(partial(load_pictures, _name))
