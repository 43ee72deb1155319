"""Where runs go: one after another in this process, or to the workers of a Dask scheduler.

Here, OnDask    the two engines: `submit` configs, then take the `next` run that is done
count_workers   how many runs train side by side
open_engine     the engine that a sweep asks for
connect         a client of a scheduler that somebody else started
local_cluster   Dask on this machine, for this machine alone
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import queue
import sys
import time
import uuid
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import dask
import numba
import torch
from dask.distributed import Client, Future, KilledWorker, LocalCluster, Security
from tqdm.auto import tqdm

from mambanorm.basics.extensions import load_imports
from mambanorm.basics.settings import KERNEL
from mambanorm.basics.text import plural
from mambanorm.config import RunConfig
from mambanorm.kernels.warm import warm_up
from mambanorm.runs.machine import cores
from mambanorm.runs.store import missing_runs
from mambanorm.runs.worker import POLL_S, Outcome, debugging, run_one

REMIND_S = 30.0  # seconds between two reminders that there are no workers
RESULT_S = 5.0  # a result that takes longer waits its turn: its worker may be paused, and others have theirs
ANSWER_S = 60.0  # a scheduler that has not answered after this time is gone: frozen, or behind a cut network


class Here:
    """Runs in this process, one after another."""

    def __init__(self, store: Path):
        self.store = store
        self.queue: deque[RunConfig] = deque()

    def submit(self, config: RunConfig) -> None:
        self.queue.append(config)

    def next(self, timeout: float) -> tuple[RunConfig, Outcome] | None:
        """The next run, once it is done; None after `timeout` seconds where none is left."""
        if not self.queue:
            time.sleep(timeout)
            return None
        config = self.queue.popleft()
        return config, run_one(config.to_json(), str(self.store), load_imports())


class OnDask:
    """Runs on the workers of a Dask scheduler, as many at a time as there are workers. Dask tries a run again whose
    worker died with it, three times (its `allowed-failures`)."""

    def __init__(self, client: Client, store: Path):
        self.client, self.store = client, store
        self.address = client.scheduler.address
        self.submitted: dict[str, tuple[Future, RunConfig]] = {}
        self.asked: dict[str, RunConfig] = {}
        self.done: queue.SimpleQueue[Future] = queue.SimpleQueue()
        self.reminded = time.monotonic() - REMIND_S + 2 * POLL_S  # so that the first reminder comes soon

    def submit(self, config: RunConfig) -> None:
        self.asked[config.run_id] = config
        if self.client.status != "running":
            raise self._gone()
        key = f"run-{config.run_id}-{uuid.uuid4().hex}"  # another sweep may ask this scheduler for the same run
        sent = config.to_json(), str(self.store), load_imports()
        future = self.client.submit(run_one, *sent, key=key, pure=False)
        self.submitted[key] = future, config
        future.add_done_callback(self.done.put)

    def next(self, timeout: float) -> tuple[RunConfig, Outcome] | None:
        """A run that is done, or None after `timeout` seconds; ConnectionError if the scheduler is gone."""
        try:
            future = self.done.get(timeout=timeout)
        except queue.Empty:
            self._check()
            return None
        if future.cancelled():  # never by us: a lost connection cancels futures
            raise self._gone()
        if future.status == "error":
            return self.submitted.pop(future.key)[1], Outcome(_lost_task(future.exception()))
        try:
            outcome = future.result(timeout=RESULT_S)
        except Exception:  # the scheduler is gone, or the worker with the result is gone (Dask runs it again) or paused
            self._check()
            self.done.put(future)
            return None
        return self.submitted.pop(future.key)[1], outcome

    def _check(self) -> None:
        """Raises ConnectionError if the scheduler is gone; says now and then that there are no workers."""
        if self.client.status != "running":
            raise self._gone()
        if time.monotonic() - self.reminded < REMIND_S:
            return
        try:
            workers = self.client.nthreads(callback_timeout=ANSWER_S)
        except OSError as error:  # a timeout, too
            raise self._gone() from error
        self.reminded = time.monotonic()
        if not workers:
            hint = f"start some with `dask worker {self.address} --nthreads 1`"
            tqdm.write(f"no workers at {self.address} yet: {hint}", file=sys.stderr)

    def _gone(self) -> ConnectionError:
        return ConnectionError(
            f"the Dask scheduler at {self.address} is gone. {so_far(self.asked.values(), self.store)}: start scheduler "
            "and workers anew, and the same sweep goes on from there"
        )


def _lost_task(error: BaseException) -> str:
    """Why Dask could not run run_one, which itself raises nothing."""
    if isinstance(error, KilledWorker):
        return "every worker process that trained it died: was there enough memory?"
    return " ".join(f"{type(error).__name__}: {error}".split())


def so_far(asked: Collection[RunConfig], store: Path) -> str:
    """How many of the runs of a sweep that ends early are stored."""
    stored = len(asked) - len(missing_runs(asked, store))
    return f"{stored} of {plural(len(asked), 'run')} are in the store ({store}) and stay there"


# ------------------------------------------------------------------------------------------------------------ how many


def count_workers(todo: list[RunConfig], workers: int | str = "auto", scheduler: str | None = None) -> int:
    """How many runs train side by side, each in a worker process; 0 = one after another in this process.

    "auto" is this process where there is a GPU, else as many as the cores hold. ValueError for `workers` that is
    neither "auto" nor a whole number from 0 up.
    """
    check_workers(workers)
    if scheduler is not None:
        with connect(scheduler) as client:
            return max(1, sum(client.nthreads().values()))
    if workers != "auto":
        return min(len(todo), workers)
    if torch.cuda.is_available() and any(config.device != "cpu" for config in todo):
        return 0
    given, threads = numba.config.NUMBA_NUM_THREADS, most_threads(todo)
    alone = len(todo) == 1 or (given == 1 and KERNEL in os.environ)  # a notebook of the study may have one core
    return 0 if alone and threads <= given else min(len(todo), max(1, cores() // threads))


def check_workers(workers: int | str) -> None:
    if workers != "auto" and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 0):
        raise ValueError(f"workers must be 'auto', 0 (in this process) or a whole number, got {workers!r}")


def most_threads(configs: Iterable[RunConfig]) -> int:
    """The threads that a worker needs for any of these runs."""
    return max(config.threads for config in configs)


@contextmanager
def open_engine(
    client: Client | None, scheduler: str | None, workers: int | str, todo: list[RunConfig], store: Path
) -> Iterator[Here | OnDask]:
    """Where the runs go. OSError if no scheduler answers, RuntimeError if local workers do not start."""
    if client is not None:
        with _quiet_dask():
            yield OnDask(client, store)
    elif scheduler is not None:
        with connect(scheduler) as connected:
            yield OnDask(connected, store)
    elif (count := count_workers(todo, workers)) == 0:
        yield Here(store)
    else:
        warm_up()  # compile once here, not once in every worker
        with local_cluster(count, most_threads(todo)) as local:
            yield OnDask(local, store)


@contextmanager
def connect(scheduler: str) -> Iterator[Client]:
    """A client of the scheduler at this address. ConnectionError if none answers, or if there is no key for TLS."""
    with _quiet_dask():
        try:
            client = Client(scheduler)
        except OSError as error:
            raise ConnectionError(
                f"no Dask scheduler answers at {scheduler}: is it running, and is that its address?"
            ) from error
        except TypeError as error:  # Dask's, for a connection with TLS that lacks what only its configuration can name
            if not scheduler.startswith("tls://"):
                raise
            raise ConnectionError(
                f"{scheduler} wants a key, and Dask's configuration names none: see docs/clusters.md, Who may connect"
            ) from error
        with client:
            yield client


@contextmanager
def _quiet_dask() -> Iterator[None]:
    """Silences Dask's own log lines about a lost connection: `OnDask` reports it once."""
    names = ("distributed", "tornado", "asyncio")
    loggers = [logging.getLogger(n) for n in logging.root.manager.loggerDict if n.split(".")[0] in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


# ------------------------------------------------------------------------------------------------ a cluster of our own


KEEP_FREED_MEMORY = {"MALLOC_TRIM_THRESHOLD_": 2**30, "MALLOC_MMAP_THRESHOLD_": 2**25, "MALLOC_ARENA_MAX": 1}
"""For glibc. Dask's own setting trims at 64 kB: every tensor then goes back to the kernel and is faulted in again page
by page, which took 40 % of a worker's time."""

HOST = "127.0.0.1"
LOOPBACK = dict(host=HOST, dashboard_address=None, scheduler_kwargs={"dashboard_address": f"{HOST}:0"})


@contextmanager
def local_cluster(workers: int, threads: int) -> Iterator[Client]:
    """A Dask cluster that only this process can talk to, without Dask's pages; a run may use up to `threads` threads.

    Dask runs whatever code it is sent, so every socket is bound to loopback, and speaks TLS with a key made for this
    cluster: another user of the machine has none. Dask always serves HTTP, so its list of routes is left empty.
    RuntimeError if the workers do not start.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(1)  # a worker that is still importing the script: the process that started it tells why
    settings = {"distributed.nanny.pre-spawn-environ": worker_environment(threads)}
    settings |= {f"distributed.{part}.http.routes": [] for part in ("scheduler", "worker")}
    options = LOOPBACK | dict(threads_per_worker=1, memory_limit=0, protocol="tls", security=Security.temporary())
    options |= dict(n_workers=workers, silence_logs="ERROR" if debugging() else "CRITICAL")
    # Dask sets its workers' variables in our environment, and would leave them to whatever starts later
    with patch.dict(os.environ), dask.config.set(settings):
        try:
            cluster = LocalCluster(**options)
        except RuntimeError as error:
            raise RuntimeError(
                "the worker processes did not start. Each imports your script first: put what runs there under "
                '`if __name__ == "__main__":`, or sweep with workers=0, in this process'
            ) from error
        with cluster, Client(cluster) as client:
            client.wait_for_workers(workers)
            client.run(_settle)
            yield client


def worker_environment(threads: int) -> dict[str, int]:
    """The environment that a worker process is started with, here or on a cluster (docs/clusters.md).

    Numba needs its thread limit before it starts; a run then takes as many threads as it asks for.
    """
    return dict.fromkeys(("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), threads) | KEEP_FREED_MEMORY


def _settle() -> None:
    """Called once in each worker: hides what it has imported from the garbage collector, which every run calls first.

    Without this, that call took a sixth of a second a run.
    """
    gc.collect()
    gc.freeze()
