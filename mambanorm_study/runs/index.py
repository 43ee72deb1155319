"""The index of a store: the row of every run, kept in one file, so that 50,000 folders need not be
read again.

    <store>/.index-<user>   a line with the SHA-256 of the rest in hexadecimal, then in JSON: run_id
                            → an Entry changed     when its folder last changed: a run is written
                            once, under another name names       what must be registered to read its
                            config: its arm, its other norms, … row         its row of the run frame

The folders stay the truth: a run whose folder has changed, or that is not in the index, is read.
What was altered inside a file is found when that file is read (runs/result.py). An index that is
lost, torn, edited or written by other code is made again by the next look at the whole store, and
where it cannot be written (a full disk, another user's store) all goes on without. What is damaged
never enters it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from mambanorm.arms import __file__ as arms_file
from mambanorm_study.basics.atomic import write_bytes
from mambanorm_study.basics.fields import __file__ as fields_file
from mambanorm_study.config import ADDABLE, SCHEMA, RunConfig
from mambanorm_study.runs.result import StoredRun, read_run

INDEX = f".index-{os.getuid() if hasattr(os, 'getuid') else ''}"
LEAST = 64  # so many new runs, or one in a hundred, before the index is written again

NAMES = ("model", *ADDABLE)  # fields that name what may be unknown here
SOURCES = [Path(arms_file), Path(arms_file).with_name("config.py"), Path(fields_file)]
SOURCES += [Path(__file__), Path(__file__).with_name("result.py")]
"""The code that decides what the row of a run is, and which runs are whole."""


class Entry(NamedTuple):
    """What the index knows of a run."""

    changed: int
    names: str
    row: dict[str, Any]


class Index:
    """What is known of the runs of a store, and what is learned while some of them are read."""

    def __init__(self, store: Path, names: Sequence[str]):
        """`names`: the runs that are asked for. Few of them are read faster than the index."""
        self.store = store
        self.kept = _load(store / INDEX) if len(names) >= LEAST else {}
        self.found: dict[str, Entry] = {}  # read this time

    def sound(self, names: Iterable[str]) -> set[str]:
        """Those of the runs whose folders are as they were when their rows were written."""
        known = {name: self.kept[name] for name in names if name in self.kept}
        here = {
            text for text in {entry.names for entry in known.values()} if _registered_here(text)
        }
        return {
            n
            for n, entry in known.items()
            if entry.names in here and self._changed(n) == entry.changed
        }

    def _changed(self, name: str) -> int:
        with suppress(OSError):
            return os.stat(f"{self.store}/{name}").st_mtime_ns
        return 0

    def read(self, name: str) -> StoredRun | None:
        """`read_run` of a folder of the store, with its errors."""
        changed, run = self._changed(name), read_run(self.store / name)
        if run is not None:
            own = {field: getattr(run.config, field) for field in NAMES}
            self.found[name] = Entry(changed, json.dumps(own), run.row())
        return run

    def frame(self, names: Sequence[str]) -> pd.DataFrame:
        """The rows of these runs, in this order."""
        return pd.DataFrame([(self.found.get(name) or self.kept[name]).row for name in names])

    def save(self) -> None:
        """Writes the index again if enough is new."""
        if len(self.found) >= max(LEAST, len(self.kept) // 100):
            content = json.dumps(self.kept | self.found).encode()
            with suppress(OSError):  # else all goes on without
                write_bytes(self.store / INDEX, _checksum(content) + b"\n" + content)


def is_one_of(column: pd.Series, values: list) -> pd.Series:
    """Which rows have one of the values. None and NaN are the same: no value."""
    none = any(pd.api.types.is_scalar(value) and pd.isna(value) for value in values)
    return column.isin(values) | (column.isna() & none)


def _registered_here(names: str) -> bool:
    """Whether all of them are registered in this process. If not, the run is read again, and the
    reader tells."""
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
    code = [source.read_bytes() for source in SOURCES]
    return hashlib.sha256(b"".join([str(SCHEMA).encode(), *code, content])).hexdigest().encode()
