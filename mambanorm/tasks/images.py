"""Pictures as tasks hold them: read from idx or Parquet, checked, kept as bytes, handed out as float32.

Map
    read_idx                    an idx file of MNIST's family, gzipped
    parquet_files, read_parquet the Parquet files of a split, as they lie in a Hugging Face repository
    decode, bad_picture         encoded pictures -> (n, H, W) or (n, H, W, C) uint8, each one checked
    Lazy, from_bytes            inputs that become float32 when a batch asks for them
    as_sequences, block_mean    pictures row after row; smaller ones

Source of the idx format: Y. LeCun, the MNIST database. Glossary: n pictures of H×W pixels and C colours; L = H·W.
"""

from __future__ import annotations

import gzip
import io
import math
import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from mambanorm.basics.later import Later
from mambanorm.tasks.files import verify

pa, pq, Image = Later("pyarrow"), Later("pyarrow.parquet"), Later("PIL.Image")
AGAIN = "it is truncated or altered: delete it and bring it again"


# ---------------------------------------------------------------------------------------------- files


def read_idx(path: Path) -> np.ndarray:
    """The array of a gzipped idx file of bytes: labels (n,) or pictures (n, H, W), uint8.

    gzip's own checksum is checked. ValueError with the file's name where it is truncated, altered or no such file.
    """
    try:
        content = gzip.decompress(path.read_bytes())
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: {error}; {AGAIN}") from error
    dimensions = content[3] if len(content) >= 4 else 0
    if content[:3] != b"\x00\x00\x08" or not 1 <= dimensions <= 3 or len(content) < 4 + 4 * dimensions:
        raise ValueError(f"{path} starts with {content[:4]!r}: no idx file of bytes in one to three dimensions")
    shape = tuple(np.frombuffer(content, ">u4", dimensions, offset=4).tolist())
    found, needed = len(content) - 4 - 4 * dimensions, math.prod(shape)
    if found != needed:
        raise ValueError(f"{path} says shape {shape}, which is {needed:,} bytes, and holds {found:,}; {AGAIN}")
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def parquet_files(folder: Path, split: str, digests: dict[str, str]) -> list[Path]:
    """The Parquet files of a split in `folder`, [] where there is none: `train.parquet`, or all of `train-…-of-…`.

    ValueError where a file with a published name has another checksum (`digests`: name -> digest), or where one of the
    numbered files is missing.
    """
    files = sorted(folder.glob(f"{split}*.parquet"))
    for file in files:
        if file.name in digests:
            verify(file, digests[file.name])
    forms = {re.sub(r"-\d{5}-of-", "-…-of-", file.name) for file in files}
    if len(forms) > 1:
        raise ValueError(f"{folder} holds {split} more than once, as {' and '.join(sorted(forms))}: leave one of them")
    numbered = [match for file in files if (match := re.fullmatch(r"(.+)-(\d{5})-of-(\d{5})", file.stem))]
    for name, _, count in (match.groups() for match in numbered):
        lack = [f"{name}-{i:05d}-of-{count}.parquet" for i in range(int(count))]
        if lack := [one for one in lack if not (folder / one).exists()]:
            raise ValueError(f"{folder}: {', '.join(lack)} missing; bring all {int(count)} files of {split}")
    return files


def read_parquet(files: Sequence[Path], columns: Sequence[str]) -> pa.Table:
    """The named columns of the files, one after the other; ValueError with the file's name where one cannot be read or
    has columns of another type than the first."""
    tables = []
    for file in files:
        try:
            have = pq.read_schema(file).names
            if lack := [column for column in columns if column not in have]:
                raise ValueError(f"{file} has no column {lack[0]!r}: needed are {', '.join(columns)}, it has {have}")
            tables.append(pq.read_table(file, columns=list(columns)))
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise ValueError(f"{file}: {error}; {AGAIN}") from error
    for file, table in zip(files, tables, strict=True):
        if table.schema.types != tables[0].schema.types:
            these, first = (", ".join(map(str, one.schema.types)) for one in (table, tables[0]))
            names = ", ".join(columns)
            raise ValueError(f"{file}: its columns {names} are {these}; those of {files[0].name} are {first}")
    return pa.concat_tables([table.cast(tables[0].schema) for table in tables])


def read_labels(column: pa.ChunkedArray, n_classes: int, where: object) -> np.ndarray:
    """(n,) int64; ValueError with the row for a label that is missing or no class, and for labels that are no whole
    numbers."""
    if not pa.types.is_integer(column.type):
        raise ValueError(f"{where}: labels are of type {column.type}, needed are whole numbers 0 to {n_classes - 1}")
    labels = np.array([-1 if label is None else label for label in column.to_pylist()], object)
    check_labels(labels, n_classes, where)
    return labels.astype(np.int64)


def check_labels(labels: np.ndarray, n_classes: int, where: object) -> None:
    """ValueError with the first row whose label is none of 0…n_classes − 1 (−1 stands for a missing one)."""
    if len(wrong := np.flatnonzero((labels < 0) | (labels >= n_classes))):
        raise ValueError(f"{where}, row {wrong[0] + 1}: label {labels[wrong[0]]}, allowed are 0 to {n_classes - 1}")


def bad_picture() -> tuple[type[Exception], ...]:
    """What Pillow raises for broken bytes."""
    return OSError, SyntaxError, ValueError, Image.DecompressionBombError


def decode(encoded: pa.ChunkedArray, rows: Sequence[int], edge: int, mode: str, where: object) -> np.ndarray:
    """(n, H, W) uint8 for mode "L", (n, H, W, 3) for "RGB": the picked rows of a column of encoded pictures, each as
    bytes or as a struct {bytes, path}.

    A colour picture turns grey as Pillow does it (ITU-R 601). ValueError with the row for one that cannot be read, has
    other than edge×edge pixels, or a mode that is neither grey nor colour (transparent or with a palette).
    """
    pictures = np.zeros((len(rows), edge, edge) if mode == "L" else (len(rows), edge, edge, 3), np.uint8)
    for i, row in enumerate(tqdm(rows, desc=f"decoding {where}", unit=" pictures", delay=2)):
        one, place = encoded[row].as_py(), f"{where}, row {row + 1}"
        try:
            with Image.open(io.BytesIO(one["bytes"] if isinstance(one, dict) else one)) as image:
                if image.size != (edge, edge):
                    found = f"{image.size[0]}×{image.size[1]}"
                    raise _WrongPicture(f"{place}: a picture of {found} pixels, needed are {edge}×{edge}")
                if image.mode not in ("L", "RGB"):
                    raise _WrongPicture(f"{place}: a picture of mode {image.mode}, allowed are L (grey) and RGB")
                pictures[i] = np.asarray(image.convert(mode))
        except _WrongPicture:
            raise
        except (*bad_picture(), TypeError, KeyError) as error:
            raise ValueError(f"{place}: no picture that can be read ({error}); {AGAIN}") from error
    return pictures


class _WrongPicture(ValueError):
    """A picture that can be read and is not the one needed."""


# ---------------------------------------------------------------------------------------------- what a split holds


class Lazy:
    """Inputs that stay what they are (bytes, a mapped file, a folder of pictures) until rows of them are asked for.

    It takes the place of a Split's inputs: `read(rows)` takes indices (B,) and returns float32 (B, …).
    """

    dtype = torch.float32

    def __init__(self, shape: Sequence[int], read: Callable[[Tensor], Tensor]) -> None:
        self.shape, self.read = torch.Size(shape), read

    def dim(self) -> int:
        return len(self.shape)

    def is_floating_point(self) -> bool:
        return True

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows) -> Tensor:
        picked = torch.arange(len(self))[rows]
        return self.read(picked.reshape(-1)).reshape(*picked.shape, *self.shape[1:])


def from_bytes(stored: np.ndarray, scale: float = 1 / 255, shift: float = 0.0) -> Lazy:
    """Keeps (n, …) uint8 and returns byte · scale + shift when read: a quarter of the memory."""
    kept = torch.tensor(stored)
    return Lazy(kept.shape, lambda rows: kept[rows].float().mul_(scale).add_(shift))


def as_sequences(pictures: np.ndarray, scale: float = 1 / 255, shift: float = 0.0) -> Lazy:
    """(n, H, W) grey pictures as sequences (n, H·W, 1), row after row."""
    return from_bytes(pictures.reshape(len(pictures), -1, 1), scale, shift)


def block_mean(pictures: np.ndarray, factor: int) -> np.ndarray:
    """(n, H, W) grey pictures with every factor×factor block averaged (rounded to a byte)."""
    if factor == 1:
        return pictures
    n, height, width = pictures.shape
    if height % factor or width % factor:
        raise ValueError(f"pictures of {height}×{width} do not divide into blocks of {factor}×{factor}")
    blocks = pictures.reshape(n, height // factor, factor, width // factor, factor)
    return np.rint(blocks.mean((2, 4), dtype=np.float32)).astype(np.uint8)
