"""The tasks' files: where they lie, checked downloads, published Parquet files, caches, and which rows a scale takes.

Map
    data_folder, missing        where a task's files lie; the error that says what is missing and what to do
    read_list, open_array       a list of distinct entries, a line each; an .npy file, mapped
    Remote, fetch, verify       a file at an address with its checksum: resumed, checked, renamed last
    parquet_files, read_parquet, read_labels    a split's Parquet files, as they lie in a Hugging Face repository
    cache_file, cached_table    a file whose name tells what it is made of; a table made once, anew where it is damaged
    Sizes, pick, check_whole    how many rows a scale takes, and which

Glossary: digest = "sha256:<hex>" or "md5:<hex>", as the data set's own source states it.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import time
import tokenize
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import open_memmap
from torch import Tensor
from tqdm.auto import tqdm

from mambanorm.basics.atomic import replacing
from mambanorm.basics.settings import KIT, WORK, Later

pa, pq = Later("pyarrow"), Later("pyarrow.parquet")

CHUNK = 1 << 20  # bytes read at a time
TRIES = 3  # of a download that breaks off; each goes on where the last one stopped
TIMEOUT = 30  # seconds without a byte
FIXED_SEED = 42  # of the split where the run's seed does not decide: s4's
AGAIN = "bring this file again"


def data_folder(task: str) -> Path:
    """Where a task's files lie: `data/<task>` of the working folder, or of the folder in MAMBANORM_DATA_DIR."""
    root = os.environ.get("MAMBANORM_DATA_DIR") or WORK / "data"
    return Path(root).expanduser() / task


def missing(task: str, what: object, how: str) -> ValueError:
    """The error for missing data: what is missing, and how to get it."""
    return ValueError(f"the data of task {task!r} are missing: no {what}. {how} (see {KIT / 'data' / 'README.md'})")


def stamps(files: Sequence[Path]) -> tuple[tuple[int, int], ...]:
    """Size and time of change of each file: part of a cache's key, to notice files that were changed."""
    return tuple((stat.st_size, stat.st_mtime_ns) for stat in (file.stat() for file in files))


def read_lines(path: Path) -> list[str]:
    """The lines of a text file, without a byte order mark; ValueError with its name where it is no text."""
    try:
        return path.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text ({error}): {AGAIN}") from error


def read_list(path: Path, parse: Callable[[str], str], what: str) -> list[str]:
    """The entries of a list, a line each, in its order; `parse` refuses a line by a ValueError.

    ValueError with file, row and text for a line that is refused or occurs twice, and for a file without lines.
    """
    rows: dict[str, int] = {}
    for place, line in enumerate(read_lines(path), 1):
        where = f"{path}, row {place} {line[:80]!r}"
        try:
            entry = parse(line.strip())
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        if entry in rows:
            raise ValueError(f"{where}: the same {what} as in row {rows[entry]}")
        rows[entry] = place
    if not rows:
        raise ValueError(f"{path} is empty: needed is a line for each {what}")
    return list(rows)


def open_array(path: Path, mode: str = "r") -> np.ndarray:
    """The array of an .npy file, mapped; ValueError with its name for a file that is truncated or holds no array."""
    try:
        return open_memmap(path, mode)
    except (ValueError, EOFError, TypeError, SyntaxError, tokenize.TokenError) as error:
        raise ValueError(f"{path} is truncated or no array ({error}): {AGAIN}") from error


# ---------------------------------------------------------------------------------------------- downloads


@dataclass(frozen=True)
class Remote:
    """A file at an address; `digest` is what its content must have."""

    url: str
    name: str
    digest: str


def fetch(remote: Remote, folder: Path) -> Path:
    """The file in `folder`, downloaded if it is missing; it gets its name only once its checksum is right.

    What has arrived is kept as `<name>.part`: the next call asks for the rest. OSError where the address does not
    answer or breaks off three times, ValueError where the content is not what it should be.
    """
    path, part = folder / remote.name, folder / f"{remote.name}.part"
    if path.exists():
        verify(path, remote.digest)
        return path
    folder.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, TRIES + 1):
        try:
            _receive(remote.url, part)
            break
        except (OSError, http.client.HTTPException) as error:
            if attempt == TRIES:
                raise OSError(
                    f"{remote.url} could not be downloaded ({error}): what has arrived is kept, so the same command "
                    f"goes on from there; or put the file into {folder} yourself, as {remote.name}"
                ) from error
            time.sleep(attempt)
    try:
        verify(part, remote.digest)
    except ValueError as error:
        part.unlink()
        raise ValueError(f"{remote.url}: {error}. Nothing was kept: run the same command again") from error
    os.replace(part, path)
    return path


def _receive(url: str, part: Path) -> None:
    """Appends to `part` what it lacks of the content at `url`."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if have and error.code == 416:  # nothing beyond what is here: whole, and the checksum says whether it is right
            return
        raise
    with answer:
        if answer.status != 206:  # the server ignores the range and sends all of it
            have = 0
        left = answer.headers.get("Content-Length")
        total = have + int(left) if left else None
        bar = tqdm(total=total, initial=have, desc=part.stem, unit="B", unit_scale=True, delay=1)
        with open(part, "ab" if have else "wb") as file, bar:
            while chunk := answer.read(CHUNK):
                bar.update(file.write(chunk))
    if total is not None and part.stat().st_size < total:
        raise OSError(f"broke off after {part.stat().st_size:,} of {total:,} bytes")


def verify(path: Path, digest: str) -> None:
    """ValueError, with both checksums, where the file's content is not what the digest says."""
    kind, expected = digest.split(":")
    ((size, changed),) = stamps([path])
    if (found := _digest(path, kind, size, changed)) != expected:
        raise ValueError(
            f"{path} ({size:,} bytes) is truncated or altered: its {kind} should be {expected} and is {found}; "
            "delete it and download it again"
        )


@lru_cache(maxsize=64)
def _digest(path: Path, kind: str, size: int, changed: int) -> str:
    """Checksum of a file; `size` and `changed` are in the cache's key, to notice a changed file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()


# ---------------------------------------------------------------------------------------------- Parquet


def parquet_files(folder: Path, split: str, digests: dict[str, str]) -> list[Path]:
    """The Parquet files of a split in `folder`, [] where there is none: `train.parquet`, or all of `train-…-of-…`.

    ValueError where a file with a published name has another checksum (`digests`: name -> digest), or where one of the
    numbered files is missing.
    """
    files = sorted(folder.glob(f"{split}*.parquet"))
    for file in files:
        if digests.get(file.name):
            verify(file, digests[file.name])
    forms = {re.sub(r"-\d{5}-of-", "-…-of-", file.name) for file in files}
    if len(forms) > 1:
        raise ValueError(f"{folder} holds {split} more than once, as {' and '.join(sorted(forms))}: leave one of them")
    if files and (numbered := re.fullmatch(r".+-\d{5}-of-(\d{5})", files[0].stem)) and len(files) < int(numbered[1]):
        raise ValueError(f"{folder} holds {len(files)} of the {int(numbered[1])} files of {split}: bring all")
    return files


def read_parquet(files: Sequence[Path], columns: Sequence[str], where: str) -> pa.Table:
    """The named columns of the files, one after the other; ValueError where they cannot be read, lack a column or have
    columns of different types."""
    try:
        return pq.read_table(list(files), columns=list(columns))
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"{where} in {files[0].parent}: {error}; {AGAIN}, whole, with {', '.join(columns)}") from error


def read_labels(column: pa.ChunkedArray, n_classes: int, where: object) -> np.ndarray:
    """(n,) int64; ValueError with the row for a label that is missing or no class, and for labels that are no whole
    numbers."""
    if not pa.types.is_integer(column.type):
        raise ValueError(f"{where}: labels are of type {column.type}, needed are whole numbers 0 to {n_classes - 1}")
    labels = np.array([-1 if label is None else label for label in column.to_pylist()], object)
    return check_labels(labels, n_classes, where)


def check_labels(labels: np.ndarray, n_classes: int, where: object) -> np.ndarray:
    """(n,) int64. ValueError with the first row whose label is none of 0…n_classes − 1 (−1 = a missing one)."""
    if len(wrong := np.flatnonzero((labels < 0) | (labels >= n_classes))):
        raise ValueError(f"{where}, row {wrong[0] + 1}: label {labels[wrong[0]]}, allowed are 0 to {n_classes - 1}")
    return labels.astype(np.int64)


def cache_file(folder: Path, label: str, key: object, ending: str = "parquet") -> Path:
    """A name that changes with everything its content depends on (`key`), so that a stale cache is never read."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return folder / f"{label}-{digest[:12]}.{ending}"


def cached_table(path: Path, columns: Sequence[str], rows: int | None, make: Callable[[], pa.Table]) -> pa.Table:
    """The table at `path`; made, and written there, where it is missing or damaged."""
    if path.exists():
        try:
            table = pq.read_table(path, page_checksum_verification=True)
            if table.column_names == list(columns) and rows in (None, len(table)):
                return table
            error: object = f"columns {table.column_names}, {len(table)} rows; needed are {columns}, {rows} rows"
        except (OSError, pa.ArrowException) as problem:
            error = problem
        warnings.warn(f"{path} is damaged and is made anew ({error})", stacklevel=2)
    table = make()
    try:
        with replacing(path) as temporary:
            pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)
    except OSError as error:  # a read-only disk must not stop a run that has its data in hand
        warnings.warn(f"{path} could not be written, so the next run makes the data again ({error})", stacklevel=2)
    return table


# ---------------------------------------------------------------------------------------------- rows of a scale


@dataclass(frozen=True)
class Sizes:
    """Rows that a scale takes of each split, None = all there are (train: less validation's `held_out`).

    `reshuffle`: the run's seed decides which rows; otherwise they are the same for every seed.
    In the methods, n = rows of a data set's own two parts, train (which gives validation too) and test.
    """

    train: int | None
    val: int | None
    test: int | None
    reshuffle: bool

    def seed(self, run_seed: int) -> int:
        return run_seed if self.reshuffle else FIXED_SEED

    def told(self, n: tuple[int, int], held_out: float = 0.1) -> dict:
        """The fields of a Shape that say how many rows there are."""
        val = n[0] - int(n[0] * (1 - held_out)) if self.val is None else self.val
        train = max(n[0] - val, 0) if self.train is None else self.train
        test = n[1] if self.test is None else self.test
        return dict(train_rows=train, held_out=(val, test), reshuffled=self.reshuffle)

    def pick_splits(self, n: tuple[int, int], seed: int, what: str, held_out: float = 0.1) -> list[Tensor]:
        """Which rows train, validation and test are. With all rows and seed 42 this is s4's split of CIFAR: validation
        is the last tenth of a permutation."""
        told, seed = self.told(n, held_out), self.seed(seed)
        train, (val, test) = told["train_rows"], told["held_out"]
        return [*pick(n[0], (train, val), seed, f"{what}'s train"), *pick(n[1], (test,), seed, f"{what}'s test")]


SMALL = {
    "smoke": Sizes(64, 32, 32, reshuffle=True),
    **dict.fromkeys(("quick", "evening"), Sizes(4_000, 1_000, 2_000, reshuffle=True)),
}
ALL = Sizes(None, None, None, reshuffle=False)
SCALE_SIZES = {**SMALL, "lab": ALL, "paper": ALL}
"""The usual sizes: a draw of the rows at smoke, quick and evening, the data set as it is at lab and paper."""


def pick(n: int, sizes: Sequence[int], seed: int, what: str) -> list[Tensor]:
    """Disjoint random draws of these sizes from n rows; ValueError where there are fewer rows than asked for."""
    if n < sum(sizes):
        wanted = " + ".join(f"{size:,}" for size in sizes)
        raise ValueError(f"{what} has {n:,} rows, needed are {wanted}: bring all of it or take a smaller scale")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return list(order[: sum(sizes)].split(list(sizes)))


def check_whole(where: object, found: Sequence[int], published: Sequence[int], scale: str, what: str = "rows") -> None:
    """ValueError at lab and paper where a data set does not have exactly the rows it is published with."""
    if scale in ("lab", "paper") and tuple(found) != tuple(published):
        have, needed = (" + ".join(f"{count:,}" for count in counts) for counts in (found, published))
        raise ValueError(f"{where} holds {have} {what}, {scale} needs {needed}: bring all or take a smaller scale")
