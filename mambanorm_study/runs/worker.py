"""Trains and stores one run, in a Dask worker or in this process.

    <store>/.lease-<run_id>    the lease: a file that the process locks while it trains the run, and
                               then deletes

The lock is held by the operating system (filelock; flock on Linux), so it ends when its process
ends, for whatever reason. A lease file that no process has locked is free. A paused process keeps
its lease. A dead machine may keep its lease if the server of the network disk does not notice that
the machine died. Deleting the lease file frees the run. Two processes may then train the same run,
as on a disk without locks; both get the same result, and the one that is stored first is kept.
"""

import errno
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from mambanorm_study.basics.extensions import load_imports
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.run import train
from mambanorm_study.runs.store import LEASE, find_run, resume_dir, save_run

POLL_S = 1.0  # seconds between two attempts to lock a lease
NO_LOCK_ERRORS = (errno.ENOLCK, errno.ENOTSUP)  # error numbers of a disk without locks
DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)  # EDQUOT: the quota is exhausted


class Outcome(NamedTuple):
    """Outcome of one run: stored, failed (see `error`), or held by another process.

    held: another process trains the run. disk_full: the run failed because the disk is full.
    seconds: how long the training took; 0 if the run failed, was stored already or is held.
    """

    error: str = ""
    held: bool = False
    disk_full: bool = False
    seconds: float = 0.0


def run_one(
    config_json: str, directory: str, imports: dict[str, str] | None = None, wait: bool = False
) -> Outcome:
    """Train and store one run in this process, and return its outcome; never raise an Exception.

    A run that was killed continues from its last checkpoint. imports: the result of `load_imports`
    in the process that began the sweep. wait: if another process trains the run, wait for its end;
    False returns an outcome with held=True instead.
    """
    try:
        load_imports(imports)
        seconds = train_and_store(RunConfig.from_json(config_json), Path(directory), wait=wait)
    except Timeout:
        return Outcome(held=True)
    except Exception as error:  # the other runs of the sweep go on
        if os.environ.get("MAMBANORM_DEBUG"):
            traceback.print_exc(file=sys.stderr)
        one_line = " ".join(f"{type(error).__name__}: {error}".split())
        return Outcome(one_line, disk_full=getattr(error, "errno", None) in DISK_FULL_ERRORS)
    return Outcome(seconds=seconds)


def train_and_store(config: RunConfig, store: Path, *, wait: bool = True, **options: Any) -> float:
    """Train a run and store it, unless it is stored already. options: further options of `train`.

    Return the seconds that this took from the start of the training; 0 if the run is stored
    already. Raises Timeout if another process trains the run and `wait` is False.
    """
    if not store.is_dir():
        raise FileNotFoundError(
            f"this worker sees no folder {store}, and every worker must see the run store"
        )
    with lease(config.run_id, store, wait):
        if find_run(config, store) is not None:
            return 0.0
        start, folder = time.monotonic(), resume_dir(config, store)
        save_run(train(config, checkpoint_dir=folder, runs_dir=store, **options), store)
        return time.monotonic() - start


@contextmanager
def lease(run_id: str, store: Path, wait: bool = False) -> Iterator[None]:
    """Hold the lease of a run inside the `with`.

    Raises Timeout if another process holds the lease and `wait` is False, OSError if the lease file
    cannot be written.
    """
    # mode=0o666, so that every user of a shared store may lock the file
    path = store / f"{LEASE}{run_id}"
    lock = FileLock(path, timeout=-1 if wait else 0, mode=0o666)
    try:
        lock.acquire(poll_interval=POLL_S)
    except OSError as error:  # Timeout is a subclass of OSError
        if error.errno not in NO_LOCK_ERRORS:
            raise
    try:
        yield
    finally:
        with suppress(PermissionError):  # Windows does not delete open files
            path.unlink(missing_ok=True)
        lock.release()
