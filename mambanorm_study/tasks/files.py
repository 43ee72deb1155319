"""The tasks' files: where they lie, checked downloads, published Parquet files, what is kept, and
which rows a scale takes.

Glossary: digest = "sha256:<hex>" or "md5:<hex>", as the data set's own source states it.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from mambanorm_study.basics.atomic import replacing
from mambanorm_study.basics.settings import KIT, WORK, Later

pa, pq, requests = Later("pyarrow"), Later("pyarrow.parquet"), Later("requests")

CHUNK = 1 << 16  # bytes read at a time, and at most lost where a download breaks off
TIMEOUT = 30  # seconds without a byte
FIXED_SEED = 42  # of the split where the run's seed does not decide: s4's
AGAIN = "bring this file again"


def data_folder(task: str) -> Path:
    """Where a task's files lie: `data/<task>` of the working folder, or of the folder in
    MAMBANORM_DATA_DIR."""
    root = os.environ.get("MAMBANORM_DATA_DIR") or WORK / "data"
    return Path(root).expanduser() / task


def missing(task: str, what: object, how: str) -> ValueError:
    """The error for missing data: what is missing, and how to get it."""
    return ValueError(
        f"the data of task {task!r} are missing: no {what}. {how} (see {KIT / 'data' / 'README.md'})"
    )


def read_text(path: Path) -> str:
    """Return a text in UTF-8, without a byte order mark. ValueError with the file's name for one
    that is none."""
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is no text in UTF-8 ({error}): save it as one, or {AGAIN}"
        ) from error


# ---------------------------------------------------------------------------------------- downloads


def fetch(url: str, digest: str, folder: Path) -> Path:
    """The file of an address in `folder`, downloaded if missing; it gets its name only once its
    checksum is right.

    What has arrived is kept as `<name>.part`: the next call asks for the rest. OSError where the
    address does not answer or breaks off, ValueError where the content is not what it should be.
    """
    path = folder / url.rpartition("/")[2]
    part = path.with_name(f"{path.name}.part")
    if path.exists():
        verify(path, digest)
        return path
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _receive(url, part)
    except OSError as error:  # those of requests, too
        raise OSError(
            f"{url} could not be downloaded ({error}): what has arrived is kept, so the same command "
            f"goes on from there; or put the file into {folder} yourself, as {path.name}"
        ) from error
    try:
        verify(part, digest)
    except ValueError as error:
        part.unlink()
        raise ValueError(f"{url}: {error}. Nothing was kept: run the same command again") from error
    os.replace(part, path)
    return path


def _receive(url: str, part: Path) -> None:
    """Appends to `part` what it lacks of the content at `url`."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as answer:
        if (
            have and answer.status_code == 416
        ):  # nothing beyond what is here: the checksum says whether it is right
            return
        answer.raise_for_status()
        if answer.status_code != 206:  # the server ignores the range and sends all of it
            have = 0
        total = have + int(answer.headers.get("Content-Length", 0)) or None
        bar = tqdm(total=total, initial=have, desc=part.stem, unit="B", unit_scale=True, delay=1)
        with open(part, "ab" if have else "wb") as file, bar:
            for chunk in answer.iter_content(CHUNK):
                bar.update(file.write(chunk))


def verify(path: Path, digest: str) -> None:
    """ValueError, with both checksums, where the file's content is not what the digest says ("" =
    anything)."""
    if not digest:
        return
    kind, expected = digest.split(":")
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, kind).hexdigest()
    if found != expected:
        raise ValueError(
            f"{path} ({path.stat().st_size:,} bytes) is truncated or altered: its {kind} should be {expected} and is "
            f"{found}; delete it and download it again"
        )


# ---------------------------------------------------------------------------------------------- Par


def parquet_files(folder: Path, split: str, digests: dict[str, str]) -> list[Path]:
    """The Parquet files of a split in `folder`, [] where there is none: `train.parquet`, else all
    of `train-…-of-…`.

    ValueError where a file with a published name has another checksum (`digests`: name -> digest).
    """
    own = folder / f"{split}.parquet"
    files = [own] if own.exists() else sorted(folder.glob(f"{split}-*.parquet"))
    for file in files:
        verify(file, digests.get(file.name, ""))
    return files


def read_split(
    task: str, split: str, columns: Sequence[str], address: str, digests: dict[str, str]
) -> pa.Table:
    """The named columns of a split's Parquet files, one after the other; ValueError where there is
    none, or where they cannot be read, lack a column or have columns of different types."""
    folder = data_folder(task)
    if not (files := parquet_files(folder, split, digests)):
        how = f"Say `mambanorm tasks --prepare {task}`, or put the files of {address} into that folder"
        raise missing(task, f"{split}*.parquet in {folder}", how)
    try:
        return pq.read_table(files, columns=list(columns))
    except (OSError, pa.ArrowException) as error:
        raise ValueError(
            f"{task}'s {split} in {folder}: {error}; {AGAIN}, whole, with {', '.join(columns)}"
        ) from error


def check_labels(labels: np.ndarray, n_classes: int, where: object) -> np.ndarray:
    """(n,) int64. ValueError with the first row whose label is missing or none of 0…n_classes −
    1."""
    if len(wrong := np.flatnonzero(~np.isin(labels, np.arange(n_classes)))):
        raise ValueError(
            f"{where}, row {wrong[0] + 1}: label {labels[wrong[0]]}, allowed are 0 to {n_classes - 1}"
        )
    return labels.astype(np.int64)


# ------------------------------------------------------------------------------------- what is kept


def cache_file(folder: Path, label: str, key: object, ending: str = "npz") -> Path:
    """A name that changes with everything its content depends on (`key`), so that a stale cache is
    never read."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return folder / f"{label}-{digest[:12]}.{ending}"


def kept(path: Path, make: Callable[[], Sequence[np.ndarray]]) -> list[np.ndarray]:
    """The arrays in an .npz file, which has a checksum of each; made, and written, where it is
    missing or damaged."""
    if path.exists():
        try:
            with np.load(path) as file:
                return list(file.values())
        except Exception as error:  # of a damaged file NumPy and zipfile raise a dozen kinds
            warnings.warn(f"{path} is damaged and is made anew ({error})", stacklevel=2)
    arrays = make()
    try:
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.savez_compressed(file, *arrays)
    except OSError as error:  # a read-only disk must not stop a run that has its data in hand
        warnings.warn(
            f"{path} could not be written, so the next run makes the data again ({error})",
            stacklevel=2,
        )
    return list(arrays)


# ---------------------------------------------------------------------------------- rows of a scale


@dataclass(frozen=True)
class Sizes:
    """Rows that a scale takes of each split, None = all there are (train: less validation's
    `held_out`).

    `reshuffle`: the run's seed decides which rows; otherwise they are the same for every seed. In
    the methods, n = rows of a data set's own two parts, train (which gives validation too) and
    test.
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

    def pick_splits(
        self, n: tuple[int, int], seed: int, what: str, held_out: float = 0.1
    ) -> list[Tensor]:
        """Which rows train, validation and test are. With all rows and seed 42 this is s4's split
        of CIFAR: validation is the last tenth of a permutation."""
        told, seed = self.told(n, held_out), self.seed(seed)
        train, (val, test) = told["train_rows"], told["held_out"]
        return [
            *pick(n[0], (train, val), seed, f"{what}'s train"),
            *pick(n[1], (test,), seed, f"{what}'s test"),
        ]


SMALL = {
    "smoke": Sizes(64, 32, 32, reshuffle=True),
    **dict.fromkeys(("quick", "evening"), Sizes(4_000, 1_000, 2_000, reshuffle=True)),
}
ALL = Sizes(None, None, None, reshuffle=False)
SCALE_SIZES = {**SMALL, "lab": ALL, "paper": ALL}
"""The usual sizes: a draw of the rows at smoke, quick and evening, the data set as it is at lab and
paper."""


def pick(n: int, sizes: Sequence[int], seed: int, what: str) -> list[Tensor]:
    """Disjoint random draws of these sizes from n rows; ValueError where there are fewer rows than
    asked for."""
    if n < sum(sizes):
        wanted = " + ".join(f"{size:,}" for size in sizes)
        raise ValueError(
            f"{what} has {n:,} rows, needed are {wanted}: bring all of it or take a smaller scale"
        )
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return list(order[: sum(sizes)].split(list(sizes)))


def check_whole(
    where: object, found: Sequence[int], published: Sequence[int], scale: str, what: str = "rows"
) -> None:
    """ValueError at lab and paper where a data set does not have exactly the rows it is published
    with."""
    if scale in ("lab", "paper") and tuple(found) != tuple(published):
        have, needed = (
            " + ".join(f"{count:,}" for count in counts) for counts in (found, published)
        )
        raise ValueError(
            f"{where} holds {have} {what}, {scale} needs {needed}: bring all or take a smaller scale"
        )
