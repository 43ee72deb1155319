"""Helpers for the tasks' files: where data lie, checked downloads, caches, and which rows a scale takes.

Map
    data_folder, missing        where a task's files lie; the error that says what is missing and what to do
    read_lines, read_list       a text file; a list of distinct entries
    open_array                  an .npy file, mapped
    check_whole                 whether all published rows are there
    Remote, fetch, verify       a file at an address with its checksum: resumed, checked, renamed last
    can_cache, cached_table, write_table   a Parquet file made once, made anew where it is damaged
    Sizes, rows_held_out, rows_trained, pick, pick_splits     how many rows a scale takes, and which

Glossary: digest = "sha256:<hex>" or "md5:<hex>", as the data set's own source states it.
"""

from __future__ import annotations

import hashlib
import http.client
import os
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
from mambanorm.basics.later import Later, has
from mambanorm.basics.settings import KIT, WORK

pa, pq = Later("pyarrow"), Later("pyarrow.parquet")

CHUNK = 1 << 20  # bytes read at a time
TRIES = 3  # of a download that breaks off; each goes on where the last one stopped
TIMEOUT = 30  # seconds without a byte
FIXED_SEED = 42  # of the split where the run's seed does not decide: s4's


def data_folder(task: str) -> Path:
    """Where a task's files lie: `data/<task>` of the working folder, or of the folder in MAMBANORM_DATA_DIR."""
    root = os.environ.get("MAMBANORM_DATA_DIR") or WORK / "data"
    return Path(root).expanduser() / task


def missing(task: str, what: object, how: str) -> ValueError:
    """The error for missing data: what is missing, and how to get it."""
    return ValueError(f"the data of task {task!r} are missing: no {what}. {how} (see {KIT / 'data' / 'README.md'})")


def read_lines(path: Path) -> list[str]:
    """The lines of a text file, without a byte order mark; ValueError with its name where it is no text."""
    try:
        return path.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text ({error}): bring this file again") from error


def read_list(path: Path, parse: Callable[[str], str], what: str, example: str) -> list[str]:
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
        raise ValueError(f"{path} is empty: needed is a line for each {what}, such as {example}")
    return list(rows)


def open_array(path: Path, mode: str = "r") -> np.ndarray:
    """The array of an .npy file, mapped; ValueError with its name for a file that is truncated or holds no array."""
    try:
        return open_memmap(path, mode)
    except (ValueError, EOFError, TypeError, SyntaxError, tokenize.TokenError) as error:
        raise ValueError(f"{path} is truncated or no array ({error}): bring this file again") from error


def check_whole(where: object, found: Sequence[int], published: Sequence[int], scale: str, what: str = "rows") -> None:
    """ValueError at lab and paper where a data set does not have exactly the rows it is published with."""
    if scale in ("lab", "paper") and tuple(found) != tuple(published):
        have, needed = (" + ".join(f"{count:,}" for count in counts) for counts in (found, published))
        raise ValueError(f"{where} holds {have} {what}, {scale} needs {needed}: bring all or take a smaller scale")


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
        raise ValueError(
            f"{remote.url}: {error}. Nothing was kept: run the same command again, or look whether the address still "
            "serves this file"
        ) from error
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
                file.write(chunk)
                bar.update(len(chunk))
    if total is not None and part.stat().st_size < total:
        raise OSError(f"broke off after {part.stat().st_size:,} of {total:,} bytes")


def verify(path: Path, digest: str) -> None:
    """ValueError, with both checksums, where the file's content is not what the digest says."""
    kind, expected = digest.split(":")
    stat = path.stat()
    found = _digest(path, kind, stat.st_size, stat.st_mtime_ns)
    if found != expected:
        raise ValueError(
            f"{path} ({stat.st_size:,} bytes) is truncated or altered: its {kind} should be {expected} and is {found}; "
            "delete it and download it again"
        )


@lru_cache(maxsize=64)
def _digest(path: Path, kind: str, size: int, changed: int) -> str:
    """Checksum of a file; `size` and `changed` are in the cache's key, to notice a changed file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()


# ---------------------------------------------------------------------------------------------- caches


def can_cache() -> bool:
    """Whether there is pyarrow: on a GPU machine with little beside torch, what is generated is not kept."""
    return has("pyarrow")


def cached_table(path: Path, columns: Sequence[str], rows: int | None, make: Callable[[], pa.Table]) -> pa.Table:
    """The table at `path`; made, and written there, where it is missing or damaged."""
    if path.exists():
        try:
            return read_table(path, columns, rows)
        except (OSError, pa.ArrowException, ValueError) as error:
            warnings.warn(f"{path} is damaged and is made anew ({error})", stacklevel=2)
    table = make()
    try:
        write_table(path, table)
    except OSError as error:  # a read-only disk must not stop a run that has its data in hand
        warnings.warn(f"{path} could not be written, so the next run makes the data again ({error})", stacklevel=2)
    return table


def read_table(path: Path, columns: Sequence[str], rows: int | None) -> pa.Table:
    """A cached table; ValueError where it is readable and yet not what was written."""
    table = pq.read_table(path, page_checksum_verification=True)
    if table.column_names != list(columns) or (rows is not None and len(table) != rows):
        needed = f"{' and '.join(columns)}, {rows} rows"
        raise ValueError(f"columns {table.column_names}, {len(table)} rows; needed are {needed}")
    return table


def write_table(path: Path, table: pa.Table) -> None:
    """A Parquet file with checksums of its pages, whole or not there at all."""
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)


# ---------------------------------------------------------------------------------------------- rows of a scale


@dataclass(frozen=True)
class Sizes:
    """Rows that a scale takes of each split, None = all there are (train: less validation's `held_out`).

    `reshuffle`: the run's seed decides which rows; otherwise they are the same for every seed.
    """

    train: int | None
    val: int | None
    test: int | None
    reshuffle: bool

    def seed(self, run_seed: int) -> int:
        return run_seed if self.reshuffle else FIXED_SEED


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


def rows_held_out(n: tuple[int, int], sizes: Sizes, held_out: float = 0.1) -> tuple[int, int]:
    """Rows of validation and test, where a data set's own parts have n."""
    n_val = n[0] - int(n[0] * (1 - held_out)) if sizes.val is None else sizes.val
    return n_val, n[1] if sizes.test is None else sizes.test


def rows_trained(n: tuple[int, int], sizes: Sizes, held_out: float = 0.1) -> int:
    """Rows of the training split, where a data set's own parts have n."""
    return max(n[0] - rows_held_out(n, sizes, held_out)[0], 0) if sizes.train is None else sizes.train


def pick_splits(n: tuple[int, int], sizes: Sizes, seed: int, what: str, held_out: float = 0.1) -> list[Tensor]:
    """Rows of train and validation, both of a data set's own training part, and of test; n = rows of the two parts.

    With all rows and seed 42 this is s4's split of CIFAR: validation is the last tenth of a permutation.
    """
    n_val, n_test = rows_held_out(n, sizes, held_out)
    n_train = rows_trained(n, sizes, held_out)
    seed = sizes.seed(seed)
    return [*pick(n[0], (n_train, n_val), seed, f"{what}'s train"), *pick(n[1], (n_test,), seed, f"{what}'s test")]
