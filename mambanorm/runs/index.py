"""The index of a store: the row of every run, kept in one file, so that 50,000 folders need not be read again.

    <store>/.index-<user>   a line with the SHA-256 of the rest in hexadecimal, then in JSON: run_id → an Entry
                            signature   size, modification and change time of each of its files
                            names       what must be registered to read its config: its arm, its other norms, …
                            row         its row of the run frame

The folders stay the truth. A row counts only while its run's files have the signature that they had before they were
read; every other run is read from its folder, as if there were no index. Nobody can set a change time (ctime), so a
file that was altered and given its old time back is noticed too.

An index that is lost, torn, edited or written by other code is rebuilt by the next look at the whole store. Two
processes may write it at once: the last one stays, and both are right. Nothing waits for it, and where it cannot be
written (a full disk, another user's store) all goes on without. What is damaged never enters it, nor a run whose files
changed a moment ago, because a clock's tick would hide a further change.

Each user of a store has an index of their own, which nobody else can read: they may read other runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from mambanorm.arms import __file__ as arms_file
from mambanorm.basics.atomic import replacing
from mambanorm.basics.fields import __file__ as fields_file
from mambanorm.config import ADDABLE, SCHEMA, RunConfig
from mambanorm.runs.result import FILES, OPTIONAL, StoredRun, read_run

INDEX = f".index-{os.getuid() if hasattr(os, 'getuid') else ''}"
LEAST = 64  # so many new runs, or one in a hundred, before the index is written again
SETTLED_S = 2.0  # after this time a further change gives a file another time, on every file system in use

NAMES = ("model", *ADDABLE)  # fields that name what may be unknown here
SOURCES = [Path(arms_file), Path(arms_file).with_name("config.py"), Path(fields_file)]
SOURCES += [Path(__file__), Path(__file__).with_name("result.py")]
"""The code that decides what the row of a run is, and which runs are whole."""


class Entry(NamedTuple):
    """What the index knows of a run."""

    signature: str
    names: str
    row: dict[str, Any]


class Index:
    """What is known of the runs of a store, and what is learned while some of them are read.

    sound   the runs whose rows still hold
    read    reads another one from its folder
    frame   the rows of all of them
    save    writes the index again if enough is new
    """

    def __init__(self, store: Path, names: Sequence[str]):
        """`names`: the runs that are asked for. Few of them are read faster than the index."""
        self.store = store
        self.kept = _load(store / INDEX) if len(names) >= LEAST else {}
        self.found: dict[str, Entry] = {}  # read this time, with the signature before

    def sound(self, names: Iterable[str]) -> set[str]:
        """Those of the runs whose files are as they were when their rows were written."""
        known = {name: self.kept[name] for name in names if name in self.kept}
        here = {text for text in {entry.names for entry in known.values()} if _registered_here(text)}
        return {
            name
            for name, entry in known.items()  # one thread: several wait for the interpreter, not for the disk
            if entry.names in here and signature(f"{self.store}/{name}") == entry.signature
        }

    def read(self, name: str) -> StoredRun | None:
        """`read_run` of a folder of the store, with its errors."""
        before = signature(f"{self.store}/{name}")
        run = read_run(self.store / name)
        if run is not None:
            own = {field: getattr(run.config, field) for field in NAMES}
            self.found[name] = Entry(before, json.dumps(own), run.row())
        return run

    def frame(self, names: Sequence[str]) -> pd.DataFrame:
        """The rows of these runs, in this order."""
        return pd.DataFrame([(self.found.get(name) or self.kept[name]).row for name in names])

    def save(self, there: Collection[str] | None = None) -> None:
        """Writes the index again if enough is new. `there`: the runs that the store has, None if that was not asked."""
        new = {name: entry for name, entry in self.found.items() if _settled(entry.signature)}
        if len(new) < max(LEAST, len(self.kept) // 100):
            return
        kept = {name: entry for name, entry in self.kept.items() if there is None or name in there}
        content = json.dumps(kept | new).encode()
        with suppress(OSError), replacing(self.store / INDEX) as temporary:  # else all goes on without
            temporary.touch(0o600)
            temporary.write_bytes(_checksum(content) + b"\n" + content)


def signature(folder: str) -> str:
    """Size, modification and change time of every file of a run; "" where one that it needs is missing, or where this
    user may not look."""
    found: list[int] = []
    for name in FILES:
        try:
            status = os.stat(f"{folder}/{name}")
            found += (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        except OSError as error:
            if name not in OPTIONAL or not isinstance(error, FileNotFoundError):
                return ""
            found += (-1, 0, 0)
    return " ".join(map(str, found))


def is_one_of(column: pd.Series, values: list) -> pd.Series:
    """Which rows have one of the values. None and NaN are the same: no value."""
    none = any(pd.api.types.is_scalar(value) and pd.isna(value) for value in values)
    return column.isin(values) | (column.isna() & none)


def _settled(sign: str) -> bool:
    """Whether no file of the run has been changed for a while. Times are in nanoseconds, and above any size."""
    return sign != "" and max(map(int, sign.split())) < time.time_ns() - SETTLED_S * 1e9


def _registered_here(names: str) -> bool:
    """Whether all of them are registered in this process. If not, the run is read again, and the reader tells."""
    try:
        RunConfig(**json.loads(names), down_sample=(1,))
    except ValueError:
        return False
    return True


def _load(path: Path) -> dict[str, Entry]:
    """The entries of an index; none if there is none, or if it is not what this code wrote."""
    with suppress(OSError):
        checksum, _, content = path.read_bytes().partition(b"\n")
        if checksum == _checksum(content):
            return {name: Entry(*entry) for name, entry in json.loads(content).items()}
    return {}


def _checksum(content: bytes) -> bytes:
    """Of the content and of the code that makes it: an index of other code has another one."""
    digest = hashlib.sha256(str(SCHEMA).encode())
    for source in SOURCES:
        digest.update(source.read_bytes())
    digest.update(content)
    return digest.hexdigest().encode()
