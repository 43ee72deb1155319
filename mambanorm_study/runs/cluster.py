"""Where runs go: this process, Dask on this machine, or a Dask scheduler that somebody else
started."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import dask
import numba
import torch
from dask.distributed import Client, LocalCluster, Security

from mambanorm.kernels.warm import warm_up
from mambanorm_study.basics.settings import KERNEL
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.machine import cores
from mambanorm_study.runs.worker import debugging


def count_workers(
    todo: list[RunConfig], workers: int | str = "auto", scheduler: str | None = None
) -> int:
    """How many runs train side by side, each in a worker process; 0 = one after another in this
    process.

    "auto" is this process where there is a GPU, else as many as the cores hold. ValueError for
    `workers` that is neither "auto" nor a whole number from 0 up.
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
    alone = len(todo) == 1 or (
        given == 1 and KERNEL in os.environ
    )  # a notebook of the study may have one core
    alone = alone or all(
        config.scale == "smoke" for config in todo
    )  # over before a worker has started
    return 0 if alone and threads <= given else min(len(todo), max(1, cores() // threads))


def check_workers(workers: int | str) -> None:
    if workers != "auto" and (
        isinstance(workers, bool) or not isinstance(workers, int) or workers < 0
    ):
        raise ValueError(
            f"workers must be 'auto', 0 (in this process) or a whole number, got {workers!r}"
        )


def most_threads(configs: list[RunConfig]) -> int:
    """The threads that a worker needs for any of these runs."""
    return max(config.threads for config in configs)


@contextmanager
def open_client(
    client: Client | None, scheduler: str | None, workers: int | str, todo: list[RunConfig]
) -> Iterator[Client | None]:
    """Where the runs go; None is this process. OSError if no scheduler answers, RuntimeError if
    local workers do not start."""
    if client is not None:
        yield client
    elif scheduler is not None:
        with connect(scheduler) as connected:
            if not connected.nthreads():
                hint = f"start some with `dask worker {scheduler} --nthreads 1`"
                print(f"no workers at {scheduler} yet: {hint}", file=sys.stderr)
            yield connected
    elif (count := count_workers(todo, workers)) == 0:
        yield None
    else:
        warm_up()  # compile once here, not once in every worker
        with local_cluster(count, most_threads(todo)) as local:
            yield local


@contextmanager
def connect(scheduler: str) -> Iterator[Client]:
    """A client of the scheduler at this address. ConnectionError if none answers, or if there is no
    key for TLS."""
    with _quiet_dask():
        try:
            client = Client(scheduler)
        except (
            OSError,
            TypeError,
        ) as error:  # TypeError: TLS, whose key only Dask's configuration can name
            hint = "is it running, is that its address, and does it want a key (docs/clusters.md, Who may connect)?"
            raise ConnectionError(f"no Dask scheduler answers at {scheduler}: {hint}") from error
        with client:
            yield client


@contextmanager
def _quiet_dask() -> Iterator[None]:
    """Silences Dask's own log lines about a lost connection: a sweep reports it once."""
    names = ("distributed", "tornado", "asyncio")
    loggers = [
        logging.getLogger(n) for n in logging.root.manager.loggerDict if n.split(".")[0] in names
    ]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


KEEP_FREED_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": 2**30,
    "MALLOC_MMAP_THRESHOLD_": 2**25,
    "MALLOC_ARENA_MAX": 1,
}
"""For glibc. Dask's own setting trims at 64 kB: every tensor then goes back to the kernel and is
faulted in again page by page, which took 40 % of a worker's time."""

HOST = "127.0.0.1"
LOOPBACK = dict(
    host=HOST, dashboard_address=None, scheduler_kwargs={"dashboard_address": f"{HOST}:0"}
)


@contextmanager
def local_cluster(workers: int, threads: int) -> Iterator[Client]:
    """A Dask cluster that only this process can talk to, without Dask's pages; a run may use up to
    `threads` threads.

    Dask runs whatever code it is sent, so every socket is bound to loopback, and speaks TLS with a
    key made for this cluster: another user of the machine has none. Dask always serves HTTP, so its
    list of routes is left empty. RuntimeError if the workers do not start.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(
            1
        )  # a worker that is still importing the script: the process that started it tells why
    settings = {"distributed.nanny.pre-spawn-environ": worker_environment(threads)}
    settings |= {f"distributed.{part}.http.routes": [] for part in ("scheduler", "worker")}
    options = LOOPBACK | dict(
        threads_per_worker=1, memory_limit=0, protocol="tls", security=Security.temporary()
    )
    options |= dict(n_workers=workers, silence_logs="ERROR" if debugging() else "CRITICAL")
    # Dask sets its workers' variables in our environment, and would leave them to whatever starts
    # later
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
    """The environment that a worker process is started with, here or on a cluster
    (docs/clusters.md).

    Numba needs its thread limit before it starts; a run then takes as many threads as it asks for.
    """
    return (
        dict.fromkeys(("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), threads)
        | KEEP_FREED_MEMORY
    )


def _settle() -> None:
    """Called once in each worker: hides what it has imported from the garbage collector, which
    every run calls first.

    Without this, that call took a sixth of a second a run.
    """
    gc.collect()
    gc.freeze()
