"""Trains and stores one run, in a Dask worker or in this process, unless another process trains it.

run_one         for workers: never raises an Exception, returns an Outcome
train_one       in this process, for the command line; waits for another process that trains the same run

A trained run is not thrown away because the disk is full just then: it is kept in memory for up to FULL_S seconds and
stored when there is space again.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from dask.distributed import get_worker
from tqdm.auto import tqdm

from mambanorm.basics.atomic import is_full
from mambanorm.basics.extensions import load_imports
from mambanorm.basics.text import spell
from mambanorm.config import RunConfig
from mambanorm.training.leases import Held, Holder, Watch, lease
from mambanorm.training.run import train
from mambanorm.training.store import find_run, ready_store, resume_dir, save_run

POLL_S = 1.0  # seconds between two looks at what others train, or at a full disk
FULL_S = 300.0  # so long a run waits for space on a full disk
Returned = TypeVar("Returned")


class Outcome(NamedTuple):
    """What became of a run: it is stored at `path`, it failed with an `error`, or its `holder` trains it."""

    path: str = ""
    error: str | None = None
    holder: Holder | None = None
    host: str = ""
    worker: str = ""  # the address of the Dask worker
    full: bool = False  # the error is a disk that stayed full


def run_one(config_json: str, directory: str, stale: str = "", imports: dict[str, str] | None = None) -> Outcome:
    """Trains and stores one run in this process, unless another one trains it; never raises an Exception.

    A long run that a killed process left behind continues from its last checkpoint. `stale`: see `lease`. `imports`:
    what `load_imports` returned in the process that began the sweep.
    """
    where = dict(host=socket.gethostname(), worker=_worker_address())
    try:
        load_imports(imports)
        config = RunConfig.from_json(config_json)
        return Outcome(str(_train_and_store(config, Path(directory), stale)), **where)
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
    store, stale = ready_store(directory), ""
    watch, told = Watch(store), False
    while True:
        try:
            _train_and_store(config, store, stale, **options)
            return
        except Held as held:
            holder = held.holder
        if not told:
            tqdm.write(f"{holder} trains this run: waiting for it", file=sys.stderr)
        told = True
        while (stale := watch.freed(config.run_id, holder)) is None:
            if find_run(config, store) is not None:
                return
            time.sleep(POLL_S)


def _train_and_store(config: RunConfig, store: Path, stale: str, **options: Any) -> Path:
    """The folder of the run, trained here unless the store has it by now. Raises Held if another process trains it."""
    if not store.is_dir():
        raise FileNotFoundError(f"there is no folder {store} here, and every worker must see the run store")
    with ExitStack() as held:
        _with_space(lambda: held.enter_context(lease(config.run_id, store, stale)), store)
        stored = find_run(config, store)
        if stored is not None:
            return stored.path
        result = train(config, checkpoint_dir=resume_dir(config, store), runs_dir=store, **options)
        return _with_space(lambda: save_run(result, store), store)


def _with_space(write: Callable[[], Returned], store: Path) -> Returned:
    """What `write` returns. While the disk is full it is tried again, for up to FULL_S seconds; then raises OSError."""
    started, told = time.monotonic(), False
    while True:
        try:
            return write()
        except OSError as error:
            if not is_full(error) or time.monotonic() - started > FULL_S:
                raise
        if not told:
            tqdm.write(f"the disk of {store} is full: waiting for space, for {spell(FULL_S)} at most", file=sys.stderr)
        told = True
        time.sleep(POLL_S)


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
