"""Where runs go: one after another in this process, or to the workers of a Dask scheduler.

Here, OnDask    the two engines: `submit` configs, then take the `next` run that is done
count_workers   how many runs train side by side
open_engine     the engine that a sweep asks for
connect         a client of a scheduler that somebody else started
local_cluster   Dask on this machine, for this machine alone; on several GPUs by dask-cuda
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
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import numba
from dask.distributed import Client, Future, KilledWorker, LocalCluster, Security
from tqdm.auto import tqdm

from mambanorm.basics.extensions import load_imports
from mambanorm.basics.settings import KERNEL
from mambanorm.basics.text import plural
from mambanorm.config import RunConfig
from mambanorm.kernels.warm import warm_up
from mambanorm.training.gpus import gpus_for, runs_a_gpu, spread
from mambanorm.training.machine import cores
from mambanorm.training.store import missing_runs
from mambanorm.training.worker import POLL_S, Outcome, debugging, run_one

REMIND_S = 30.0  # seconds between two reminders that there are no workers
RESULT_S = 5.0  # a result that takes longer waits its turn: its worker may be paused, and others have theirs
ANSWER_S = 60.0  # a scheduler that has not answered after this time is gone: frozen, or behind a cut network
AGAIN = 2  # so often a run is tried again after Dask has given it up, because worker after worker died with it


def _lost_task(error: BaseException) -> str:
    """Why Dask could not run run_one, which itself raises nothing."""
    if isinstance(error, KilledWorker):
        return "every worker process that trained it died: was there enough memory?"
    return " ".join(f"{type(error).__name__}: {error}".split())


class Here:
    """Runs in this process, one after another."""

    def __init__(self, store: Path):
        self.store = store
        self.queue: deque[tuple[RunConfig, str]] = deque()

    def submit(self, config: RunConfig, stale: str = "") -> None:
        self.queue.append((config, stale))

    def next(self, timeout: float) -> tuple[RunConfig, Outcome] | None:
        """The next run, once it is done; None after `timeout` seconds where none is left."""
        if not self.queue:
            time.sleep(timeout)
            return None
        config, stale = self.queue.popleft()
        return config, run_one(config.to_json(), str(self.store), stale, load_imports())

    def describe(self, outcome: Outcome) -> str:
        return outcome.error


class OnDask:
    """Runs on the workers of a Dask scheduler, as many at a time as there are workers.

    Dask gives a task up when four workers have died with it (its `allowed-failures`), though the run may not be why:
    it is tried again, after all others, so that a run that does kill its workers takes no other with it.
    """

    def __init__(self, client: Client, store: Path, *, local: bool = False):
        self.client, self.store, self.local = client, store, local
        self.address = client.scheduler.address
        self.submitted: dict[str, tuple[Future, RunConfig]] = {}
        self.asked: dict[str, RunConfig] = {}
        self.given_up: Counter[str] = Counter()  # run id → how often Dask gave it up
        self.done: queue.SimpleQueue[Future] = queue.SimpleQueue()
        self.reminded = time.monotonic() - REMIND_S + 2 * POLL_S  # so that the first reminder comes soon

    def submit(self, config: RunConfig, stale: str = "") -> None:
        self.asked[config.run_id] = config
        if self.client.status != "running":
            raise self._gone()
        key = f"run-{config.run_id}-{uuid.uuid4().hex}"  # another sweep may ask this scheduler for the same run
        sent = config.to_json(), str(self.store), stale, load_imports()
        future = self.client.submit(run_one, *sent, key=key, pure=False, priority=-self.given_up[config.run_id])
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
            config, error = self.submitted.pop(future.key)[1], future.exception()
            if isinstance(error, KilledWorker) and self.given_up[config.run_id] < AGAIN:
                self.given_up[config.run_id] += 1
                self.submit(config)
                return None
            return config, Outcome(error=_lost_task(error))
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
            f"the Dask scheduler at {self.address} is gone. {kept(self.asked.values(), self.store)}: start scheduler "
            "and workers anew, and the same sweep goes on from there"
        )

    def describe(self, outcome: Outcome) -> str:
        """The error, with the name of the worker where that is not one of ours."""
        named = outcome.worker and not self.local
        return f"{outcome.error} (worker {outcome.worker} on {outcome.host})" if named else outcome.error


def kept(asked: Collection[RunConfig], store: Path) -> str:
    """How many of the runs of a sweep that ends early are stored."""
    stored = len(asked) - len(missing_runs(asked, store))
    return f"{stored} of {plural(len(asked), 'run')} are in the store ({store}) and stay there"


def most_threads(configs: Iterable[RunConfig]) -> int:
    """The threads that a worker needs for any of these runs."""
    return max(config.threads for config in configs)


def count_workers(todo: list[RunConfig], workers: int | str = "auto", scheduler: str | None = None) -> int:
    """How many runs train side by side, each in a worker process; 0 = one after another in this process.

    On a machine with CUDA a few steps are trained to see how many runs fit on a GPU (training/gpus.py). ValueError for
    `workers` that is neither "auto" nor a whole number from 0 up.
    """
    check_workers(workers)
    if scheduler is not None:
        with connect(scheduler) as client:
            return max(1, sum(client.nthreads().values()))
    return _places(todo, workers)[0]


def _places(todo: list[RunConfig], workers: int | str) -> tuple[int, list[str]]:
    """How many workers of our own there shall be (0 = this process), and the GPUs they are dealt out to."""
    if workers == 0 or any(config.device.startswith("cuda:") for config in todo):  # one GPU, chosen by the user
        return 0 if workers == "auto" else min(len(todo), workers), []
    gpus = gpus_for(todo)
    if workers != "auto":
        return min(len(todo), workers), gpus
    threads = most_threads(todo)
    most = max(1, cores() // threads)
    if not gpus:
        given = numba.config.NUMBA_NUM_THREADS
        alone = len(todo) == 1 or (given == 1 and KERNEL in os.environ)  # a notebook of the study may have one core
        here = alone and threads <= given
        return 0 if here else min(len(todo), most), gpus
    each = 1
    if len(todo) > len(gpus) and most >= 2 * len(gpus):  # otherwise there is no choice
        tqdm.write("trying how many of these runs fit on a GPU, about a minute at most …", file=sys.stderr)
        with local_cluster(2, threads) as client:
            each = runs_a_gpu(client, todo, most // len(gpus))
    count = min(len(todo), each * len(gpus))
    return 0 if count == 1 else count, gpus


def check_workers(workers: int | str) -> None:
    if workers != "auto" and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 0):
        raise ValueError(f"workers must be 'auto', 0 (in this process) or a whole number, got {workers!r}")


@contextmanager
def open_engine(
    client: Client | None, scheduler: str | None, workers: int | str, todo: list[RunConfig], store: Path
) -> Iterator[Here | OnDask]:
    """Where the runs go. OSError if no scheduler answers, RuntimeError if local workers do not start."""
    check_workers(workers)
    if client is not None:
        with _quiet_dask():
            yield OnDask(client, store)
    elif scheduler is not None:
        with connect(scheduler) as connected:
            yield OnDask(connected, store)
    elif (places := _places(todo, workers))[0] == 0:
        yield Here(store)
    else:
        count, gpus = places
        if not gpus:
            warm_up()  # compile once here, not once in every worker
        with local_cluster(count, most_threads(todo), gpus) as local:
            yield OnDask(local, store, local=True)


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
        try:
            yield client
        finally:
            client.close()


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


@contextmanager
def _environment_kept() -> Iterator[None]:
    """Restores this process's environment. Dask sets its workers' variables here and leaves them: whatever is started
    later would have one thread."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)


HOST = "127.0.0.1"
LOOPBACK = dict(host=HOST, dashboard_address=None, scheduler_kwargs={"dashboard_address": f"{HOST}:0"})


@contextmanager
def local_cluster(workers: int, threads: int, gpus: Sequence[str] = ()) -> Iterator[Client]:
    """A Dask cluster that only this process can talk to, without Dask's pages; a run may use up to `threads` threads.

    Dask runs whatever code it is sent, so every socket is bound to loopback, and speaks TLS with a key made for this
    cluster: another user of the machine has none. Dask always serves HTTP, so its list of routes is left empty.
    Several `gpus` are dealt out to the workers by dask-cuda; a single one is every worker's.
    RuntimeError if the workers do not start.
    """
    settings = {"distributed.nanny.pre-spawn-environ": worker_environment(threads)}
    options = LOOPBACK | dict(threads_per_worker=1, memory_limit=0, protocol="tls", security=Security.temporary())
    settings |= {f"distributed.{part}.http.routes": [] for part in ("scheduler", "worker")}
    with (
        _environment_kept(),
        dask.config.set(settings),
        _start(workers, gpus, **options) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(workers)
        client.run(_settle)
        yield client


def worker_environment(threads: int) -> dict[str, int]:
    """The environment that a worker process is started with, here or on a cluster (docs/clusters.md).

    Numba needs its thread limit before it starts; a run then takes as many threads as it asks for.
    """
    return dict.fromkeys(("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), threads) | KEEP_FREED_MEMORY


def _start(workers: int, gpus: Sequence[str], **options: Any) -> LocalCluster:
    """The cluster. If its workers do not start, the RuntimeError says what to do."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(1)  # a worker that is still importing the script: the process that started it tells why
    options |= dict(silence_logs="ERROR" if debugging() else "CRITICAL")
    try:
        if len(gpus) < 2:
            return LocalCluster(n_workers=workers, **options)
        from dask_cuda import LocalCUDACluster  # an extra

        # no limit on the device: dask-cuda would move Dask's results out of it, and ours are not there
        cluster = LocalCUDACluster(CUDA_VISIBLE_DEVICES=list(gpus[:workers]), device_memory_limit=0, **options)
        spread(cluster, workers)
        return cluster
    except RuntimeError as error:
        raise RuntimeError(
            "the worker processes did not start. Each imports your script first: put what runs there under "
            '`if __name__ == "__main__":`, or sweep with workers=0, in this process'
        ) from error


def _settle() -> None:
    """Called once in each worker: hides what it has imported from the garbage collector, which every run calls first.

    Without this, that call took a sixth of a second a run.
    """
    gc.collect()
    gc.freeze()
