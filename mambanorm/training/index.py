"""The index of a store: the row of every run, kept in one file, so that 50,000 folders need not be read again.

    <store>/.index-<user>  the SHA-256 of the rest in hexadecimal, then a Parquet table: a row a run, and two columns
                           signature   size, modification and change time of each of its files
                           names       what must be registered to read its config: its arm, its other norms, …

The folders stay the truth. A row counts only while its run's files have the signature that they had before they were
read; every other run is read from its folder, as if there were no index. Nobody can set a change time (ctime), so a
file that was altered and given its old time back is noticed too. On Windows, which has none, it is not.

An index that is lost, torn, edited or written by other code is rebuilt by the next look at the whole store. Two
processes may write it at once: the last one stays, and both are right. Nothing waits for it, and where it cannot be
written (a full disk, another user's store) all goes on without. What is damaged never enters it, nor a run whose files
changed a moment ago, because a clock's tick would hide a further change.

Each user of a store has an index of their own, which nobody else can read: they may read other runs.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from mambanorm.arms import __file__ as arms_file
from mambanorm.basics.atomic import replacing
from mambanorm.basics.fields import __file__ as fields_file
from mambanorm.config import ADDABLE, SCHEMA, RunConfig
from mambanorm.training.result import FILES, OPTIONAL, StoredRun, read_run

INDEX = f".index-{os.getuid() if hasattr(os, 'getuid') else ''}"
LEAST = 64  # so many new runs, or one in a hundred, before the index is written again
SETTLED_S = 2.0  # after this time a further change gives a file another time, on every file system in use

NAMES = ("model", *ADDABLE)  # fields that name what may be unknown here

SIGNATURE = struct.Struct(f"{3 * len(FILES)}q")
ABSENT = (-1, 0, 0)
SOURCES = [Path(arms_file), Path(arms_file).with_name("config.py"), Path(fields_file)]
SOURCES += [Path(__file__), Path(__file__).with_name("result.py")]
"""The code that decides what the row of a run is, and which runs are whole."""


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
        self.table = _load(store / INDEX) if len(names) >= LEAST else pa.table({})
        self.place = {run_id: i for i, run_id in enumerate(_column(self.table, "run_id"))}
        self.found: dict[str, tuple[StoredRun, bytes | None]] = {}  # read this time, with the signature before

    def unlike(self, where: dict[str, Any]) -> set[str]:
        """The indexed runs that a filter by columns leaves out. Columns of the config only: a run_id fixes them."""
        if not where or not len(self.table):
            return set()
        frame = self.table.select(["run_id", *where]).to_pandas()
        out = ~pd.concat([is_one_of(frame[name], values) for name, values in where.items()], axis=1).all(axis=1)
        return set(frame["run_id"][out])

    def sound(self, names: Iterable[str]) -> set[str]:
        """Those of the runs whose files are as they were when their rows were written."""
        known = [name for name in dict.fromkeys(names) if name in self.place]
        if not known:
            return set()
        signatures, norms = _column(self.table, "signature"), _column(self.table, "names")
        here = {text for text in set(norms) if _registered_here(text)}
        store, place = str(self.store), self.place  # one thread: several wait for the interpreter, not for the disk
        return {
            name
            for name in known
            if signature(f"{store}/{name}") == signatures[place[name]] and norms[place[name]] in here
        }

    def read(self, name: str) -> StoredRun | None:
        """`read_run` of a folder of the store, with its errors."""
        before = signature(f"{self.store}/{name}")
        run = read_run(self.store / name)
        if run is not None:
            self.found[name] = run, before
        return run

    def frame(self, names: Sequence[str]) -> pd.DataFrame:
        """The rows of these runs, in this order, as they would be without an index: with the same types."""
        rows = {name: run.row() for name, (run, _) in self.found.items()}
        if not names or not self.place.keys() - rows.keys():
            return pd.DataFrame([rows[name] for name in names])
        kept = self.table.drop_columns(["signature", "names"])
        table, place = _joined(kept, list(rows.values())), self.place | {n: len(kept) + i for i, n in enumerate(rows)}
        table = table.take([place[name] for name in names])
        # a column without any value holds None, as pandas infers it from rows
        empty = {name: None for name in table.column_names if table[name].null_count == len(table)}
        return table.to_pandas().assign(**empty)

    def save(self, there: Collection[str] | None = None) -> None:
        """Writes the index again if enough is new. `there`: the runs that the store has, None if that was not asked."""
        new = {
            name: run.row() | {"signature": sign, "names": _names_of(run.config)}
            for name, (run, sign) in self.found.items()
            if _settled(sign)
        }
        if len(new) < max(LEAST, len(self.table) // 100):
            return
        kept = [i for name, i in self.place.items() if name not in new and (there is None or name in there)]
        old = self.table.take(kept) if kept else pa.table({})
        with suppress(OSError):  # where it cannot be written, all goes on without
            _write(_joined(old, list(new.values())).sort_by("run_id"), self.store / INDEX)


def signature(folder: str) -> bytes | None:
    """Size, modification and change time of every file of a run; None where one that it needs is missing, or where
    this user may not look."""
    found: list[int] = []
    for name in FILES:
        try:
            status = os.stat(f"{folder}/{name}")
            found += (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        except OSError as error:
            if name not in OPTIONAL or not isinstance(error, FileNotFoundError):
                return None
            found += ABSENT
    return SIGNATURE.pack(*found)


def is_one_of(column: pd.Series, values: list) -> pd.Series:
    """Which rows have one of the values. None and NaN are the same: no value."""
    none = any(pd.api.types.is_scalar(value) and pd.isna(value) for value in values)
    return column.isin(values) | (column.isna() & none)


def _settled(sign: bytes | None) -> bool:
    """Whether no file of the run has been changed for a while. Times are in nanoseconds, and above any size."""
    return sign is not None and max(SIGNATURE.unpack(sign)) < time.time_ns() - SETTLED_S * 1e9


def _names_of(config: RunConfig) -> str:
    return json.dumps({name: getattr(config, name) for name in NAMES})


def _registered_here(names: str) -> bool:
    """Whether all of them are registered in this process. If not, the run is read again, and the reader tells."""
    try:
        RunConfig(**json.loads(names), down_sample=(1,))
    except ValueError:
        return False
    return True


# ---------------------------------------------------------------------------------------------------------------------
# the table and its file


def _column(table: pa.Table, name: str) -> list:
    return table[name].to_pylist() if len(table) else []


def _joined(table: pa.Table, rows: list[dict]) -> pa.Table:
    """The rows behind those of the table."""
    if not rows:
        return table
    more = pa.Table.from_pylist(rows)
    return pa.concat_tables([table, more], promote_options="permissive") if len(table) else more


def _load(path: Path) -> pa.Table:
    """The table of an index; one without rows if there is none, or if it is not what this code wrote."""
    with suppress(OSError):
        checksum, _, content = path.read_bytes().partition(b"\n")
        if checksum == _checksum(content):
            return parquet.read_table(io.BytesIO(content))
    return pa.table({})


def _write(table: pa.Table, path: Path) -> None:
    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    content = buffer.getvalue()
    with replacing(path) as temporary:
        temporary.touch(0o600)
        temporary.write_bytes(_checksum(content) + b"\n" + content)


def _checksum(content: bytes) -> bytes:
    """Of the content and of the code that makes it: an index of other code has another one."""
    digest = hashlib.sha256(f"{SCHEMA} {pa.__version__} {pd.__version__}".encode())
    for source in SOURCES:
        digest.update(source.read_bytes())
    digest.update(content)
    return digest.hexdigest().encode()
