"""Find, download, check, read and cache the files of tasks.

Glossary: digest = a checksum that the source of a data set states, "sha256:<hex>" or "md5:<hex>".
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from torch.hub import download_url_to_file

from mambanorm_study.basics.atomic import replacing
from mambanorm_study.basics.settings import KIT, WORK, Later

pa, pq, requests = Later("pyarrow"), Later("pyarrow.parquet"), Later("requests")


def data_folder(task: str) -> Path:
    """Return the folder with a task's files, `data/<task>` or `$MAMBANORM_DATA_DIR/<task>`."""
    root = os.environ.get("MAMBANORM_DATA_DIR") or WORK / "data"
    return Path(root).expanduser() / task


def missing_data_error(task: str, missing: object, how: str) -> ValueError:
    """Return the error to raise if a task's data are missing.

    missing: what is missing, such as a path, as the message names it. how: a sentence of the
    message that says how to get the data.
    """
    return ValueError(
        f"the data of task {task!r} are missing: no {missing}. {how} "
        f"(see {KIT / 'data' / 'README.md'})"
    )


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file. Raise ValueError, with the path, if it is not UTF-8."""
    try:
        return path.read_text("utf-8-sig")  # drops the byte order mark of Windows programs
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}): save it as UTF-8") from error


# ---------------------------------------------------------------------------------------- downloads


def fetch(task: str, address: str, digests: dict[str, str]) -> None:
    """Download the missing files of a task into `data/<task>`, and check the digest of each file.

    address: URL of the folder with the files. digests: file name -> digest. For the digest "", a
    file is compared with the digest that Hugging Face states, but only after a download. Raises
    OSError if a download fails, and ValueError if a checksum is wrong.
    """
    folder = data_folder(task)
    folder.mkdir(parents=True, exist_ok=True)
    for name, digest in digests.items():
        if not (folder / name).exists():
            try:
                digest = digest or _stated_digest(f"{address}/{name}")
                download_url_to_file(f"{address}/{name}", str(folder / name))
            except OSError as error:  # the errors of `requests` are OSErrors, too
                raise OSError(
                    f"{address}/{name} could not be downloaded ({error}): run the same command "
                    f"again, or put the file into {folder} yourself"
                ) from error
        verify(folder / name, digest)


def _stated_digest(url: str) -> str:
    """Return the digest that Hugging Face states for the file `url`; raise OSError without one."""
    response = requests.head(url, timeout=30)
    if "X-Linked-ETag" not in response.headers:
        raise OSError(f"{response.status_code} {response.reason}: no checksum is stated")
    return "sha256:" + response.headers["X-Linked-ETag"].strip('"')


def verify(path: Path, digest: str) -> None:
    """Raise ValueError unless the file has this digest; "" means no check.

    The message has the checksum of the file and the expected one.
    """
    if not digest:
        return
    algorithm, expected = digest.split(":")
    with open(path, "rb") as file:
        actual = hashlib.file_digest(file, algorithm).hexdigest()
    if actual != expected:
        raise ValueError(
            f"{path} ({path.stat().st_size:,} bytes) is truncated or altered: its {algorithm} "
            f"should be {expected} and is {actual}; delete the file and download it again"
        )


def downloaded_file(task: str, name: str, digests: dict[str, str]) -> Path:
    """Return the path of the file `name` in `data/<task>`.

    digests: file name -> digest. Raises ValueError if the file is missing or has another digest.
    """
    path = data_folder(task) / name
    if not path.exists():
        raise missing_data_error(task, path, f"Run `mambanorm tasks --prepare {task}`")
    verify(path, digests[name])
    return path


# ------------------------------------------------------------------------------------------- tables


def read_part(
    task: str,
    part: str,
    columns: tuple[str, str],
    n_classes: int,
    address: str,
    digests: dict[str, str],
) -> tuple[pa.ChunkedArray, np.ndarray]:
    """Return the inputs and the labels (n,) of a part of a data set, "train" or "test".

    The rows are read from `data/<task>/<part>.parquet`, or from all `<part>-….parquet` there.
    columns: names of the column with inputs and of the column with labels. address: URL of the
    files, for the message if they are missing. digests: file name -> digest. Raises ValueError if
    there is no file, if a file has a wrong checksum, cannot be read or lacks a column, if the type
    of a column differs between files, or if a label is not in 0…n_classes − 1.
    """
    folder = data_folder(task)
    files = sorted(folder.glob(f"{part}.parquet")) or sorted(folder.glob(f"{part}-*.parquet"))
    for file in files:
        verify(file, digests.get(file.name, ""))
    if not files:
        raise missing_data_error(
            task,
            f"{part}*.parquet in {folder}",
            f"Run `mambanorm tasks --prepare {task}`, or put the files of {address} into that "
            "folder",
        )
    try:
        inputs, labels = pq.read_table(files, columns=list(columns)).columns
    except (OSError, pa.ArrowException) as error:
        raise ValueError(
            f"{task}'s {part} in {folder}: {error}; replace the file by a complete one with the "
            f"columns {', '.join(columns)}"
        ) from error
    return inputs, check_labels(np.asarray(labels), n_classes, f"{task}'s {part}")


def check_labels(labels: np.ndarray, n_classes: int, where: object) -> np.ndarray:
    """Return the labels as int64 (n,).

    Raises ValueError if a label is missing or not in 0…n_classes − 1. The message names the data
    (`where`) and the row.
    """
    invalid = np.flatnonzero(~np.isin(labels, np.arange(n_classes)))
    if len(invalid):
        row = invalid[0]
        raise ValueError(
            f"{where}, row {row + 1}: label {labels[row]}, allowed are 0 to {n_classes - 1}"
        )
    return labels.astype(np.int64)


# ------------------------------------------------------------------------------------------- caches


def cache_file(folder: Path, label: str, key: object) -> Path:
    """Return the path `<folder>/<label>-<hash of key>.npz` of a cache file.

    label: a readable part of the name. key: all settings on which the content of the file depends.
    """
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return folder / f"{label}-{digest[:12]}.npz"


def cached_arrays(path: Path, make_arrays: Callable[[], Sequence[np.ndarray]]) -> list[np.ndarray]:
    """Return the arrays of an .npz file.

    If the file is missing or damaged, the results of make_arrays() are stored and returned.
    """
    if path.exists():
        try:
            with np.load(path) as file:
                return list(file.values())
        except Exception as error:  # a damaged file can raise many types of errors
            warnings.warn(f"{path} is damaged and is written again ({error})", stacklevel=2)
    arrays = make_arrays()
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, *arrays)
    return list(arrays)
