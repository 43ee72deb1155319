"""Many runs on Dask: trains what the store lacks, skips what it has, survives a dying worker.

The engine is Dask distributed: a local cluster by default, any scheduler by its address, `workers=0` in this process
for debugging. On a laptop each worker has one thread, because two runs side by side beat one run on two threads.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import pandas as pd
import torch
from dask.distributed import Client, LocalCluster, as_completed
from tqdm.auto import tqdm

from mambanorm.config import RunConfig
from mambanorm.extensions import load_imports
from mambanorm.machine import cores
from mambanorm.models import warm_up
from mambanorm.recorded import check_source, describe_recorded, recorded_runs
from mambanorm.runs import COLUMNS, config_row, find_run, load_runs, resume_dir, save_run
from mambanorm.runs import runs_dir as store_dir
from mambanorm.ssm import set_threads
from mambanorm.tasks import check_task
from mambanorm.train import train


def missing_runs(configs: Iterable[RunConfig], directory: str | Path | None = None) -> list[RunConfig]:
    """Those of the configs that the store does not hold, without repeats."""
    unique = {config.run_id: config for config in configs}
    return [config for config in unique.values() if find_run(config, directory) is None]


def sweep(
    configs: Iterable[RunConfig],
    *,
    client: Client | None = None,
    scheduler: str | None = None,
    workers: int | str = "auto",
    runs_dir: str | Path | None = None,
    progress: bool = True,
    source: str | None = "trained",
) -> pd.DataFrame:
    """Trains the runs that the store lacks and returns the run frame of all the configs, in their order.

    `source="recorded"` trains nothing and reads the results that the repository carries (None = the environment's).
    A run that could not be trained has status "failed" and its reason in `error`; it is not stored, so the next sweep
    tries it again. Raises ValueError for an unknown task before anything starts.
    """
    configs = list({config.run_id: config for config in configs}.values())
    for config in configs:
        check_task(config.task)
    if check_source(source) == "recorded":
        frame = recorded_runs(configs)
        print(describe_recorded(frame))
        return frame
    # the longest first, so that none of them is left alone at the end; otherwise in the order given
    todo = sorted(missing_runs(configs, runs_dir), key=relative_cost, reverse=True)
    failed = {}
    if todo:
        with open_client(client, scheduler, workers, len(todo)) as engine:
            for config, error in _progress(_run_all(todo, engine, runs_dir), todo, progress):
                if error is not None:
                    failed[config.run_id] = config_row(config) | {"status": "failed", "error": error}
    for row in failed.values():
        warnings.warn(f"{row['arm']} on {row['task']}, seed {row['seed']}: {row['error']}", stacklevel=2)
    return _frame(configs, failed, runs_dir)


def _frame(configs: list[RunConfig], failed: dict[str, dict], directory: str | Path | None) -> pd.DataFrame:
    done = load_runs(directory, configs=[config for config in configs if config.run_id not in failed])
    frame = done if not failed else pd.concat([done.astype(object), pd.DataFrame(failed.values(), dtype=object)])
    order = {config.run_id: i for i, config in enumerate(configs)}
    return frame.reindex(columns=COLUMNS).sort_values("run_id", key=lambda ids: ids.map(order), ignore_index=True)


def run_one(config_json: str, directory: str, threads: int | None, imports: dict[str, str]) -> str | None:
    """Trains and stores one run, in whatever process it lands; returns the reason if it fails, else None.

    `imports`: what `load_imports` gave where the sweep began.

    A long run that a dying process left behind goes on from its last checkpoint.
    """
    if threads is not None:
        set_threads(threads)
    try:
        load_imports(imports)
        config = RunConfig.from_json(config_json)
        save_run(train(config, checkpoint_dir=resume_dir(config, directory)), directory)
    except Exception as error:  # a run that cannot be trained must not take the others with it
        if os.environ.get("MAMBANORM_DEBUG"):
            traceback.print_exc(file=sys.stderr)
        return f"{type(error).__name__}: {error}"
    return None


def _run_all(
    todo: list[RunConfig], engine: tuple[Client | None, int | None], directory: str | Path | None
) -> Iterator[tuple[RunConfig, str | None]]:
    """Each config with its error or None, as they finish."""
    client, threads = engine
    sent = str(store_dir(directory)), threads, load_imports()
    if client is None:
        for config in todo:
            yield config, run_one(config.to_json(), *sent)
        return
    futures = {
        client.submit(run_one, config.to_json(), *sent, key=f"run-{config.run_id}", pure=False): config
        for config in todo
    }
    for future in as_completed(futures, raise_errors=False):
        error = future.exception() if future.status == "error" else None  # the worker died, again and again
        yield futures[future], future.result() if error is None else f"{type(error).__name__}: {error}"


def count_workers(n_runs: int, workers: int | str = "auto", scheduler: str | None = None) -> int:
    """How many runs train side by side, each in a worker process; 0 = one after another in this process.

    ValueError for `workers` that is neither "auto" nor a whole number from 0 up.
    """
    if workers != "auto" and (not isinstance(workers, int) or workers < 0):
        raise ValueError(f"workers must be 'auto', 0 (in this process) or a whole number, got {workers!r}")
    if scheduler is not None:
        with Client(scheduler) as client:
            return max(1, sum(client.nthreads().values()))
    if workers == "auto":
        return 0 if torch.cuda.is_available() or n_runs == 1 else min(n_runs, cores())
    return min(n_runs, workers)


@contextmanager
def open_client(
    client: Client | None, scheduler: str | None, workers: int | str, n_runs: int
) -> Iterator[tuple[Client | None, int | None]]:
    """The client to submit to (None = in this process) and the threads a run may use (None = as they are)."""
    count = count_workers(n_runs, workers)
    if client is not None or scheduler is not None:
        connected = client or Client(scheduler)
        try:
            yield connected, None
        finally:
            if client is None:
                connected.close()
        return
    if count == 0:
        yield None, None
        return
    threads = max(1, cores() // count)
    warm_up()  # compile once here, not once in every worker
    with local_cluster(count, threads) as local:
        yield local, threads


KEEP_FREED_MEMORY = {"MALLOC_TRIM_THRESHOLD_": 2**30, "MALLOC_MMAP_THRESHOLD_": 2**25, "MALLOC_ARENA_MAX": 1}
"""For glibc. Dask's own setting trims at 64 kB: every tensor then goes back to the kernel and is faulted in again page
by page, which took 40 % of a worker's time."""


@contextmanager
def _environment_kept() -> Iterator[None]:
    """Dask gives its workers their environment through this process's own and leaves it there: one thread for whatever
    is started later."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def local_cluster(workers: int, threads: int) -> Iterator[Client]:
    """A Dask cluster on this machine. Dask limits OMP and MKL itself, but neither Numba nor torch (see run_one).

    RuntimeError if its workers do not start.
    """
    limits = dict.fromkeys(("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), threads)
    environment = {"distributed.nanny.pre-spawn-environ": limits | KEEP_FREED_MEMORY}
    with (
        _environment_kept(),
        dask.config.set(environment),
        _start(n_workers=workers, threads_per_worker=1, memory_limit=0, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        client.run(_settle)
        yield client


def _start(**options: Any) -> LocalCluster:
    """The cluster; RuntimeError with what to do where its workers do not come up."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(1)  # a worker, still importing the script it came from: that one's process tells the reader
    try:
        return LocalCluster(**options, silence_logs="ERROR")
    except RuntimeError as error:
        raise RuntimeError(
            "the worker processes did not start. Each imports your script first: put what runs there under "
            '`if __name__ == "__main__":`, or sweep with workers=0, in this process'
        ) from error


def _settle() -> None:
    """In a worker, once: what it has imported leaves the sight of the garbage collector, which every run calls first.

    That call took a sixth of a second a run.
    """
    gc.collect()
    gc.freeze()


def _progress(
    done: Iterator[tuple[RunConfig, str | None]], todo: list[RunConfig], show: bool
) -> Iterator[tuple[RunConfig, str | None]]:
    """Passes the finished runs on and shows how many there are and the time left, by each run's share of the work."""
    total, finished, start = sum(map(relative_cost, todo)), 0.0, time.monotonic()
    layout = "{desc} |{bar}| {n_fmt}/{total_fmt} runs, {elapsed}{postfix}"
    with tqdm(total=len(todo), desc="training", bar_format=layout, disable=not show) as bar:
        for config, error in done:
            finished += relative_cost(config)
            left = (time.monotonic() - start) * (total / finished - 1)
            bar.set_postfix_str(f"{spell(left)} left", refresh=False)
            bar.update()
            yield config, error


def relative_cost(config: RunConfig) -> float:
    """Work of a run up to a factor: steps × batch × layers × width × (a constant for what does not grow with it)."""
    return config.steps * config.batch_size * config.n_layers * (config.d_model + 16)


def spell(seconds: float) -> str:
    """`35 s`, `4 min`, `2 h 5 min`, `2,300 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 600 else f"{seconds / 3600:,.0f} h"


def plural(n: int, what: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{n} {what}{'' if n == 1 else 's'}"
