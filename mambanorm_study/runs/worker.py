"""Trains and stores one run, in a Dask worker or in this process, unless another process trains it.

    <store>/.lease-<run_id>    locked by the process that trains the run, and removed by it

The lock is the kernel's (filelock, on Linux flock): it ends with its process, however that ends. A
file that nobody has locked is free. A process that is paused keeps its run. So may a machine that
died, on a network disk whose server does not notice: whoever removes the file frees the run. Two
sweeps may then train a run twice, and so they may on a disk without locks. The run that is stored
first stays, and both have the same result.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from mambanorm_study.basics.atomic import is_full
from mambanorm_study.basics.extensions import load_imports
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.run import train
from mambanorm_study.runs.store import LEASE, find_run, resume_dir, save_run

POLL_S = 1.0  # seconds between two looks at what others train
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP)  # what a disk without locks answers


class Outcome(NamedTuple):
    """What became of a run: it is stored, it failed with an `error`, or another process trains it
    (`held`)."""

    error: str = ""
    held: bool = False
    full: bool = False  # the error is a full disk


def run_one(
    config_json: str, directory: str, imports: dict[str, str] | None = None, wait: bool = False
) -> Outcome:
    """Trains and stores one run in this process; never raises an Exception. `wait`: for another
    process that trains it.

    A long run that a killed process left behind continues from its last checkpoint. `imports`: what
    `load_imports` returned in the process that began the sweep.
    """
    try:
        load_imports(imports)
        train_and_store(RunConfig.from_json(config_json), Path(directory), wait=wait)
    except Timeout:
        return Outcome(held=True)
    except Exception as error:  # a run that cannot be trained must not take the others with it
        if debugging():
            traceback.print_exc(file=sys.stderr)
        return Outcome(_reason(error), full=isinstance(error, OSError) and is_full(error))
    return Outcome()


def train_and_store(config: RunConfig, store: Path, *, wait: bool = True, **options: Any) -> None:
    """Trains the run, unless the store has it by then; `options` are train's. Timeout if another
    process trains it and this one is not to `wait`."""
    if not store.is_dir():
        raise FileNotFoundError(
            f"there is no folder {store} here, and every worker must see the run store"
        )
    with lease(config.run_id, store, wait):
        if find_run(config, store) is None:
            save_run(
                train(config, checkpoint_dir=resume_dir(config, store), runs_dir=store, **options),
                store,
            )


@contextmanager
def lease(run_id: str, store: Path, wait: bool = False) -> Iterator[None]:
    """Holds the lease of a run inside the `with`. Timeout if another process has it and this one is
    not to `wait`, OSError if it cannot be written."""
    lock = FileLock(
        store / f"{LEASE}{run_id}", timeout=-1 if wait else 0, mode=0o666
    )  # each user of the store may
    try:
        lock.acquire(poll_interval=POLL_S)
    except OSError as error:  # a Timeout is one
        if error.errno not in NO_LOCKS:
            raise
    try:
        yield
    finally:
        with suppress(PermissionError):  # Windows deletes no open file
            Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def debugging() -> bool:
    """Whether tracebacks and Dask's own errors are shown (`MAMBANORM_DEBUG`), which otherwise
    become one line a run."""
    return bool(os.environ.get("MAMBANORM_DEBUG"))


def _reason(error: BaseException) -> str:
    """The error in one line. If it looks like a mistake in the code, the line also says how to see
    the traceback."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    expected = isinstance(error, ValueError | OSError | MemoryError | RuntimeError)
    return text if expected else f"{text} (MAMBANORM_DEBUG=1 shows where)"
