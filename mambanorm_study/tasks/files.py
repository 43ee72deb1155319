"""The files of tasks: where they are, checked downloads, published Parquet files, cached arrays.

Glossary: digest = "sha256:<hex>" or "md5:<hex>", as the source of the data set states it.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

from mambanorm_study.basics.atomic import replacing
from mambanorm_study.basics.settings import KIT, WORK, Later

pa, pq, requests = Later("pyarrow"), Later("pyarrow.parquet"), Later("requests")

CHUNK = 1 << 16  # bytes read at a time, and the most that is lost if a download breaks off
TIMEOUT = 30  # seconds without a byte
AGAIN = "replace this file"


def data_folder(task: str) -> Path:
    """Return the folder with a task's files, `data/<task>` or `$MAMBANORM_DATA_DIR/<task>`."""
    root = os.environ.get("MAMBANORM_DATA_DIR") or WORK / "data"
    return Path(root).expanduser() / task


def missing_data(task: str, what: object, how: str) -> ValueError:
    """Return the error for missing data; `how` says how to get them."""
    return ValueError(
        f"the data of task {task!r} are missing: no {what}. {how} "
        f"(see {KIT / 'data' / 'README.md'})"
    )


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file without its byte order mark.

    Raises ValueError with the file's name if it is not UTF-8.
    """
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text ({error}): save it as UTF-8, or {AGAIN}"
        ) from error


# ---------------------------------------------------------------------------------------- downloads


def fetch(url: str, digest: str, folder: Path) -> Path:
    """Download a file into `folder` unless it is there, check it, and return its path.

    An incomplete download is kept as `<name>.part`, and the next call continues it. Raises OSError
    if the address does not answer or the download breaks off, ValueError if the checksum is wrong.
    """
    path = folder / url.rpartition("/")[2]
    part = path.with_name(f"{path.name}.part")
    if path.exists():
        verify(path, digest)
        return path
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _download(url, part)
    except OSError as error:  # the base class of the errors of requests
        raise OSError(
            f"{url} could not be downloaded ({error}): the partial file is kept, and the same "
            f"command continues it; or put the file into {folder} yourself, as {path.name}"
        ) from error
    try:
        verify(part, digest)
    except ValueError as error:
        part.unlink()
        raise ValueError(f"{url}: {error}. Nothing was kept: run the same command again") from error
    os.replace(part, path)
    return path


def fetch_all(task: str, address: str, digests: dict[str, str]) -> None:
    """Download a task's files (name -> digest; "" = the digest that Hugging Face states)."""
    folder = data_folder(task)
    for name, digest in digests.items():
        url = f"{address}/{name}"
        if digest or not (folder / name).exists():
            fetch(url, digest or _stated_digest(url), folder)


def _stated_digest(url: str) -> str:
    """Return the SHA-256 that a Hugging Face repository states for a large file."""
    answer = requests.head(url, timeout=TIMEOUT)
    digest = answer.headers.get("X-Linked-ETag", "").strip('"')
    if not digest:
        raise OSError(
            f"{url} states no checksum ({answer.status_code} {answer.reason}): "
            "look there, or try again"
        )
    return f"sha256:{digest}"


def _download(url: str, part: Path) -> None:
    """Append to `part` the bytes of the content at `url` that it lacks."""
    size = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"}
    if size:
        headers["Range"] = f"bytes={size}-"
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as answer:
        if size and answer.status_code == 416:  # nothing is left to download
            return
        answer.raise_for_status()
        if answer.status_code != 206:  # the server ignores the range and sends the whole file
            size = 0
        total = size + int(answer.headers.get("Content-Length", 0)) or None
        bar = tqdm(total=total, initial=size, desc=part.stem, unit="B", unit_scale=True, delay=1)
        with open(part, "ab" if size else "wb") as file, bar:
            for chunk in answer.iter_content(CHUNK):
                bar.update(file.write(chunk))


def verify(path: Path, digest: str) -> None:
    """Raise ValueError, with both checksums, if a file does not have this digest ("" = any)."""
    if not digest:
        return
    kind, expected = digest.split(":")
    with open(path, "rb") as file:
        actual = hashlib.file_digest(file, kind).hexdigest()
    if actual != expected:
        raise ValueError(
            f"{path} ({path.stat().st_size:,} bytes) is truncated or altered: its {kind} should be "
            f"{expected} and is {actual}; delete it and download it again"
        )


# ------------------------------------------------------------------------------------------- tables


def parquet_files(folder: Path, split: str, digests: dict[str, str]) -> list[Path]:
    """Return a split's Parquet files: `<split>.parquet`, else all `<split>-…-of-…`, else [].

    Raises ValueError if a file with a published name has another checksum (`digests`: name ->
    digest).
    """
    single = folder / f"{split}.parquet"
    files = [single] if single.exists() else sorted(folder.glob(f"{split}-*.parquet"))
    for file in files:
        verify(file, digests.get(file.name, ""))
    return files


def read_columns(
    task: str, split: str, columns: Sequence[str], address: str, digests: dict[str, str]
) -> list[pa.ChunkedArray]:
    """Return the named columns of a split's Parquet files, one after the other.

    Raises ValueError if there is no file, if a file cannot be read or lacks a column, or if the
    columns of the files have different types.
    """
    folder = data_folder(task)
    files = parquet_files(folder, split, digests)
    if not files:
        raise missing_data(
            task,
            f"{split}*.parquet in {folder}",
            f"Run `mambanorm tasks --prepare {task}`, or put the files of {address} into that "
            "folder",
        )
    try:
        return pq.read_table(files, columns=list(columns)).columns
    except (OSError, pa.ArrowException) as error:
        raise ValueError(
            f"{task}'s {split} in {folder}: {error}; {AGAIN}, whole, with {', '.join(columns)}"
        ) from error


def check_labels(labels: np.ndarray, n_classes: int, where: object) -> np.ndarray:
    """Return the labels as int64 (n,).

    Raises ValueError, with the first such row, for a label that is missing or not in
    0…n_classes − 1.
    """
    invalid = np.flatnonzero(~np.isin(labels, np.arange(n_classes)))
    if len(invalid):
        row = invalid[0]
        raise ValueError(
            f"{where}, row {row + 1}: label {labels[row]}, allowed are 0 to {n_classes - 1}"
        )
    return labels.astype(np.int64)


# ------------------------------------------------------------------------------------------- caches


def cache_file(folder: Path, label: str, key: object, ending: str = "npz") -> Path:
    """Return a file name that depends on `key`: everything that determines the content."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return folder / f"{label}-{digest[:12]}.{ending}"


def cached_arrays(path: Path, make: Callable[[], Sequence[np.ndarray]]) -> list[np.ndarray]:
    """Return the arrays of an .npz file, or make and store them if it is missing or damaged."""
    if path.exists():
        try:
            with np.load(path) as file:
                return list(file.values())
        except Exception as error:  # NumPy and zipfile raise a dozen types for a damaged file
            warnings.warn(f"{path} is damaged and is made anew ({error})", stacklevel=2)
    arrays = make()
    try:
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.savez_compressed(file, *arrays)
    except OSError as error:  # the data are in memory, so the run can go on
        warnings.warn(
            f"{path} could not be written, so the next run makes the data again ({error})",
            stacklevel=2,
        )
    return list(arrays)
