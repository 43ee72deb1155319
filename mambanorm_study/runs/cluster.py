"""Starts Dask workers on this machine, or connects a sweep to a running Dask scheduler."""

import logging
import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import dask
import numba
import torch
from dask.distributed import Client, LocalCluster, Security

from mambanorm.kernels.warm import warm_up
from mambanorm_study.basics.checks import check_whole
from mambanorm_study.basics.settings import KERNEL
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.machine import cores


def count_workers(
    configs: list[RunConfig], workers: int | str = "auto", scheduler: str | None = None
) -> int:
    """Return the number of worker processes; 0 means that this process trains all runs in turn.

    workers: "auto" gives 0 if the runs use a GPU, if all runs are of scale smoke, if there is only
    one run, or in a notebook that a headless study executes on one core. In all other cases,
    "auto" gives as many workers as fit on the cores, at most one per run.
    scheduler: address of a Dask scheduler; if given, the result is the number of threads of the
    scheduler's workers, at least 1.

    Raises ValueError unless `workers` is "auto" or a whole number from 0 to 10,000.
    """
    if scheduler is not None:
        with connect(scheduler) as client:
            return max(1, sum(client.nthreads().values()))
    if workers != "auto":
        return min(len(configs), check_whole("workers", workers, 0, 10_000))
    if torch.cuda.is_available() and any(config.device != "cpu" for config in configs):
        return 0
    available_threads = numba.config.NUMBA_NUM_THREADS
    threads = max(config.threads for config in configs)
    # a headless study executes this notebook on one core
    one_core_kernel = available_threads == 1 and KERNEL in os.environ
    # runs of scale smoke take less time than the start of a worker
    only_smoke = all(config.scale == "smoke" for config in configs)
    if threads <= available_threads and (len(configs) == 1 or one_core_kernel or only_smoke):
        return 0
    return min(len(configs), max(1, cores() // threads))


@contextmanager
def open_client(
    client: Client | None, scheduler: str | None, workers: int | str, configs: list[RunConfig]
) -> Iterator[Client | None]:
    """Yield the Dask client whose workers train the runs, or None if this process trains them.

    A given `client` is yielded unchanged. Raises OSError if no scheduler answers, RuntimeError if
    local workers do not start.
    """
    n_local = 0 if client or scheduler else count_workers(configs, workers)
    if scheduler is not None and client is None:
        with connect(scheduler) as connected:
            if not connected.nthreads():
                print(
                    f"no workers at {scheduler} yet: "
                    f"start some with `dask worker {scheduler} --nthreads 1`",
                    file=sys.stderr,
                )
            yield connected
    elif n_local > 0:
        warm_up()  # compile once here, not once in every worker
        with local_cluster(n_local, max(config.threads for config in configs)) as local:
            yield local
    else:
        yield client


@contextmanager
def connect(scheduler: str) -> Iterator[Client]:
    """Yield a client of the Dask scheduler at an address. Inside the `with`, log messages are off.

    Raises ConnectionError if no scheduler answers or if the key for TLS is missing.
    """
    with ExitStack() as stack:
        stack.callback(logging.disable, logging.NOTSET)
        logging.disable(logging.CRITICAL)  # `sweep` reports a lost connection itself, and only once
        try:
            client = stack.enter_context(Client(scheduler))
        except (OSError, TypeError) as error:  # TypeError if the TLS key is not configured
            raise ConnectionError(
                f"no Dask scheduler answers at {scheduler}: is it running, is that its address, "
                "and does it want a key (docs/clusters.md, Who may connect)?"
            ) from error
        yield client


HOST = "127.0.0.1"


@contextmanager
def local_cluster(workers: int, threads: int) -> Iterator[Client]:
    """Yield a client of a Dask cluster on this machine; each run may use `threads` threads.

    workers: number of worker processes. Dask runs any code that it is sent, so only this process
    may use the cluster. Therefore the cluster's sockets are bound to loopback and use TLS with a
    new key, and the cluster's HTTP server has no routes. Raises RuntimeError if the workers do not
    start.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        # this process is a worker that imports the user's script; the parent reports the error
        raise SystemExit(1)
    settings = {
        "distributed.nanny.pre-spawn-environ": worker_environment(threads),
        "distributed.scheduler.http.routes": [],
        "distributed.worker.http.routes": [],
    }
    # Dask sets the workers' environment variables in this process, too; patch.dict restores the
    # previous values
    with patch.dict(os.environ), dask.config.set(settings):
        try:
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                memory_limit=0,
                host=HOST,
                protocol="tls",
                security=Security.temporary(),
                dashboard_address=None,
                scheduler_kwargs={"dashboard_address": f"{HOST}:0"},
                silence_logs="ERROR" if os.environ.get("MAMBANORM_DEBUG") else "CRITICAL",
            )
        except RuntimeError as error:
            raise RuntimeError(
                "the worker processes did not start. Each of them first imports your script: "
                'put the code that the script runs under `if __name__ == "__main__":`, '
                "or use workers=0 to train in this process"
            ) from error
        with cluster, Client(cluster) as client:
            client.wait_for_workers(workers)
            yield client


def worker_environment(threads: int) -> dict[str, int]:
    """Return the environment variables of a worker, here or on a cluster (docs/clusters.md).

    The variables must be set before the worker starts, because Numba reads the thread limit at its
    import. threads: number of threads that a run may use.
    """
    return {
        "NUMBA_NUM_THREADS": threads,
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        # with these limits glibc keeps freed memory. With Dask's own limit of 64 kB, the system
        # maps the memory of every tensor anew, page by page, which took 40 % of a worker's time
        "MALLOC_TRIM_THRESHOLD_": 2**30,
        "MALLOC_MMAP_THRESHOLD_": 2**25,
        "MALLOC_ARENA_MAX": 1,
    }
