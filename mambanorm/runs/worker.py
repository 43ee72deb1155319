"""Trains and stores one run, in a Dask worker or in this process, unless another process trains it.

run_one         for workers: never raises an Exception, returns an Outcome
train_one       in this process, for the command line; waits for another process that trains the same run
lease           who trains a run, so that any number of sweeps, on any number of machines, share one store

    <store>/.lease-<run_id>    says who; locked by the process that trains the run, and removed by it

The lock is the kernel's (flock): it ends with its process, however that ends. A file that nobody has locked is free. A
process that is paused keeps its run. So may a machine that died, on a network disk whose server does not notice:
whoever removes the file frees the run. Two sweeps may then train a run twice, and so they may on a disk without locks
and on Windows. The run that is stored first stays, and both have the same result.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

from dask.distributed import get_worker
from tqdm.auto import tqdm

from mambanorm.basics.atomic import is_full
from mambanorm.basics.extensions import load_imports
from mambanorm.config import RunConfig
from mambanorm.runs.run import train
from mambanorm.runs.store import LEASE, check_store, find_run, resume_dir, save_run

POLL_S = 1.0  # seconds between two looks at what others train


class Outcome(NamedTuple):
    """What became of a run: it is stored at `path`, it failed with an `error`, or its `holder` trains it."""

    path: str = ""
    error: str | None = None
    holder: str = ""
    host: str = ""
    worker: str = ""  # the address of the Dask worker
    full: bool = False  # the error is a full disk


def run_one(config_json: str, directory: str, imports: dict[str, str] | None = None) -> Outcome:
    """Trains and stores one run in this process, unless another one trains it; never raises an Exception.

    A long run that a killed process left behind continues from its last checkpoint. `imports`: what `load_imports`
    returned in the process that began the sweep.
    """
    where = dict(host=socket.gethostname(), worker=_worker_address())
    try:
        load_imports(imports)
        return Outcome(str(_train_and_store(RunConfig.from_json(config_json), Path(directory))), **where)
    except Held as held:
        return Outcome(holder=held.holder, **where)
    except Exception as error:  # a run that cannot be trained must not take the others with it
        if debugging():
            traceback.print_exc(file=sys.stderr)
        return Outcome(error=_reason(error), full=isinstance(error, OSError) and is_full(error), **where)


def train_one(config: RunConfig, directory: str | Path | None = None, **options: Any) -> None:
    """Trains and stores one run in this process, or waits for the process that trains it; `options` are train's.

    Raises what train and save_run raise, and OSError at once for a store that cannot be written.
    """
    store, told = check_store(directory), False
    while find_run(config, store) is None:
        try:
            _train_and_store(config, store, **options)
            return
        except Held as held:
            if not told:
                tqdm.write(f"{held}: waiting for it", file=sys.stderr)
            told = True
            time.sleep(POLL_S)


def _train_and_store(config: RunConfig, store: Path, **options: Any) -> Path:
    """The folder of the run, trained here unless the store has it by now. Raises Held if another process trains it."""
    if not store.is_dir():
        raise FileNotFoundError(f"there is no folder {store} here, and every worker must see the run store")
    with lease(config.run_id, store):
        if (stored := find_run(config, store)) is not None:
            return stored.path
        return save_run(train(config, checkpoint_dir=resume_dir(config, store), runs_dir=store, **options), store)


def _worker_address() -> str:
    try:
        return get_worker().address
    except ValueError:  # in no worker
        return ""


def debugging() -> bool:
    """Whether tracebacks and Dask's own errors are shown (`MAMBANORM_DEBUG`), which otherwise become one line a run."""
    return bool(os.environ.get("MAMBANORM_DEBUG"))


def _reason(error: BaseException) -> str:
    """The error in one line. If it looks like a mistake in the code, the line also says how to see the traceback."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    expected = isinstance(error, ValueError | OSError | MemoryError | RuntimeError)
    return text if expected else f"{text} (MAMBANORM_DEBUG=1 shows where)"


# ---------------------------------------------------------------------------------------------------------------------
# leases


class Held(Exception):
    """Another process trains this run; `holder` says which."""

    def __init__(self, holder: str):
        super().__init__(f"{holder} trains this run")
        self.holder = holder


@contextmanager
def lease(run_id: str, store: Path) -> Iterator[None]:
    """Holds the lease of a run inside the `with`. Held if another process has it, OSError if it cannot be written."""
    path = store / f"{LEASE}{run_id}"
    with path.open("a+") as file:
        with suppress(PermissionError):
            path.chmod(0o666)  # whatever the umask: each user of the store may lock it
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise Held(file.read() or "another process") from None
        except OSError:  # a disk that has no locks
            pass
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def is_free(run_id: str, store: Path) -> bool:
    """Whether nobody trains a run; its lease, if it was left behind, is removed."""
    try:
        with lease(run_id, store):
            return True
    except Held:
        return False
    except OSError:  # a full disk: whoever trains it will say so
        return True
