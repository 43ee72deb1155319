"""Many runs on Dask: trains what the store lacks, skips what it has, survives a dying worker.

The engine is Dask distributed: a local cluster by default, any scheduler by its address, `workers=0` in this process
for debugging. A run trains on the threads that its config names, wherever it lands. Any number of sweeps share one
store: each run is claimed before it is trained (see `leases`), and what another process trains is waited for last.

Map
    sweep           configs → run frame, a row each
    run_one         one run, in the process it lands in → Outcome; train_one: in this process, for the command line
    Here, OnDask    where runs go: `submit`, then `next` as they are done
    local_cluster   Dask on this machine, for this machine alone
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import queue
import socket
import sys
import time
import traceback
import uuid
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import dask
import numba
import pandas as pd
import torch
from dask.distributed import Client, Future, KilledWorker, LocalCluster, get_worker
from tqdm.auto import tqdm

from mambanorm.extensions import load_imports
from mambanorm.model.classifier import warm_up
from mambanorm.tasks import check_task
from mambanorm.training.config import RunConfig
from mambanorm.training.leases import Held, Holder, Watch, lease, remove_dead
from mambanorm.training.loop import train
from mambanorm.training.machine import cores
from mambanorm.training.recorded import check_source, describe_recorded, recorded_runs
from mambanorm.training.store import (
    COLUMNS,
    check_store,
    config_row,
    find_run,
    load_runs,
    remove_leftovers,
    resume_dir,
    save_run,
)

POLL_S = 1.0  # between looks at what others train, while nothing of ours is done
APPEARS_S = 60.0  # a network disk may show what another machine wrote that much later
REMIND_S = 30.0  # between two lines that say what is missing


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
    """Trains the runs that the store lacks and returns the run frame of all the configs, a row each, in their order.

    `source="recorded"` trains nothing and reads the results that the repository carries (None = the environment's).
    A run that could not be trained, or that the store has not got after its training, has status "failed" and its
    reason in `error`; it is not stored, so the next sweep tries it again.

    Before anything starts it raises ValueError for an unknown task or wrong `workers`, and OSError for a store that
    cannot be written or a scheduler that does not answer; later ConnectionError if the scheduler goes away.
    """
    configs = list({config.run_id: config for config in configs}.values())
    for config in configs:
        check_task(config.task)
    _check_workers(workers)
    if check_source(source) == "recorded":
        frame = recorded_runs(configs)
        print(describe_recorded(frame))
        return frame
    # the longest first, so that none of them is left alone at the end; otherwise in the order given
    todo = sorted(missing_runs(configs, runs_dir), key=relative_cost, reverse=True)
    failed = {}
    if todo:
        store = _ready_store(runs_dir)
        with open_engine(client, scheduler, workers, todo, store) as engine:
            for config, error in _progress(_run_all(todo, engine, store), todo, progress):
                if error is not None:
                    failed[config.run_id] = _failed(config, error)
    for row in failed.values():
        warnings.warn(f"{row['arm']} on {row['task']}, seed {row['seed']}: {row['error']}", stacklevel=2)
    return _frame(configs, failed, runs_dir)


def _ready_store(directory: str | Path | None) -> Path:
    """The store, writable and without what dead processes left in it. OSError otherwise."""
    store = check_store(directory)
    remove_leftovers(directory)
    remove_dead(store)
    return store


def _failed(config: RunConfig, error: str) -> dict:
    return config_row(config) | {"status": "failed", "error": error}


def _frame(configs: list[RunConfig], failed: dict[str, dict], directory: str | Path | None) -> pd.DataFrame:
    done = load_runs(directory, configs=[config for config in configs if config.run_id not in failed])
    there = {*done.run_id, *failed}
    gone = [_failed(config, "it is not in the store any more") for config in configs if config.run_id not in there]
    rows = [*failed.values(), *gone]
    frame = done if not rows else pd.concat([done.astype(object), pd.DataFrame(rows, dtype=object)])
    order = {config.run_id: i for i, config in enumerate(configs)}
    return frame.reindex(columns=COLUMNS).sort_values("run_id", key=lambda ids: ids.map(order), ignore_index=True)


# ------------------------------------------------------------------------------------------------ one run


class Outcome(NamedTuple):
    """What became of a run where it landed: it lies at `path`, or failed with an `error`, or its `holder` trains it."""

    path: str = ""
    error: str | None = None
    holder: Holder | None = None
    host: str = ""
    worker: str = ""  # the address of the Dask worker


def run_one(config_json: str, directory: str, stale: str = "", imports: dict[str, str] | None = None) -> Outcome:
    """Trains and stores one run, in whatever process it lands, unless another one does; never raises an Exception.

    A long run that a dying process left behind goes on from its last checkpoint. `stale`: see `lease`. `imports`: what
    `load_imports` gave where the sweep began.
    """
    where = dict(host=socket.gethostname(), worker=_worker_address())
    try:
        load_imports(imports)
        config = RunConfig.from_json(config_json)
        return Outcome(str(_train_and_store(config, Path(directory), stale)), **where)
    except Held as held:
        return Outcome(holder=held.holder, **where)
    except Exception as error:  # a run that cannot be trained must not take the others with it
        if _debugging():
            traceback.print_exc(file=sys.stderr)
        return Outcome(error=_reason(error), **where)


def train_one(config: RunConfig, directory: str | Path | None = None, **options: Any) -> None:
    """Trains and stores one run in this process, or waits for the process that trains it; `options` are train's.

    Raises what train and save_run raise, and OSError at once for a store that cannot be written.
    """
    store, stale = _ready_store(directory), ""
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
    with lease(config.run_id, store, stale):
        stored = find_run(config, store)
        if stored is not None:
            return stored.path
        return save_run(train(config, checkpoint_dir=resume_dir(config, store), **options), store)


def _worker_address() -> str:
    try:
        return get_worker().address
    except ValueError:  # in no worker
        return ""


def _debugging() -> bool:
    """Whether tracebacks and Dask's own errors are shown (`MAMBANORM_DEBUG`), which otherwise become one line a run."""
    return bool(os.environ.get("MAMBANORM_DEBUG"))


def _lost_task(error: BaseException) -> str:
    """Why Dask could not run run_one, which itself raises nothing."""
    if isinstance(error, KilledWorker):
        return "every worker process that trained it died: was there enough memory?"
    return " ".join(f"{type(error).__name__}: {error}".split())


def _reason(error: BaseException) -> str:
    """One line; a mistake in someone's code is told apart from a value that does not fit."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    expected = isinstance(error, ValueError | OSError | MemoryError | RuntimeError)
    return text if expected else f"{text} (MAMBANORM_DEBUG=1 shows where)"


# ------------------------------------------------------------------------------------------------ all of them


def _run_all(
    todo: list[RunConfig], engine: Here | OnDask, store: Path
) -> Iterator[tuple[RunConfig | None, str | None, int]]:
    """Each config with its error or None as they are done, and how many of the others another process trains just now;
    no config where only that number may have changed.

    A run counts as done when this process finds it in the store.
    """
    watch, left = Watch(store), len(todo)
    waiting: dict[RunConfig, tuple[Outcome, float]] = {}  # trained elsewhere, or not to be seen here yet: since when
    for config in todo:
        engine.submit(config)
    while left:
        settled = []
        if (found := engine.next(POLL_S)) is not None:
            config, outcome = found
            if outcome.error is None:
                waiting[config] = outcome, time.monotonic()
            else:
                settled.append((config, engine.describe(outcome)))
        for config, (outcome, since) in list(waiting.items()):
            if find_run(config, store) is not None:
                settled.append((config, None))
            elif outcome.holder is None and time.monotonic() - since >= _patience(outcome):
                settled.append((config, _not_there(config, outcome, store)))
            elif outcome.holder and (stale := watch.freed(config.run_id, outcome.holder)) is not None:
                engine.submit(config, stale)
            else:
                continue
            del waiting[config]
        left -= len(settled)
        elsewhere = sum(outcome.holder is not None for outcome, _ in waiting.values())
        yield from [(config, error, elsewhere) for config, error in settled] or [(None, None, elsewhere)]


def _patience(outcome: Outcome) -> float:
    return 0.0 if outcome.host == socket.gethostname() else APPEARS_S


def _not_there(config: RunConfig, outcome: Outcome, store: Path) -> str:
    who = f"worker {outcome.worker} on {outcome.host}" if outcome.worker else "this process"
    return f"{who} stored this run at {outcome.path}, but {store / config.run_id} is not there: do both see one store?"


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
    """Runs on the workers of a Dask scheduler, as many at a time as there are."""

    def __init__(self, client: Client, store: Path, *, local: bool = False):
        self.client, self.store, self.local = client, store, local
        self.address = client.scheduler.address
        self.submitted: dict[str, tuple[Future, RunConfig]] = {}
        self.asked: dict[str, RunConfig] = {}
        self.done: queue.SimpleQueue[Future] = queue.SimpleQueue()
        self.reminded = time.monotonic() - REMIND_S + 2 * POLL_S  # the first time soon

    def submit(self, config: RunConfig, stale: str = "") -> None:
        self.asked[config.run_id] = config
        key = f"run-{config.run_id}-{uuid.uuid4().hex}"  # another sweep may ask this scheduler for the same run
        sent = config.to_json(), str(self.store), stale, load_imports()
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
        if future.cancelled():  # which we never ask for: it is what a lost connection does
            raise self._gone()
        if future.status == "error":
            outcome = Outcome(error=_lost_task(future.exception()))
        else:
            try:
                outcome = future.result(timeout=REMIND_S)
            except Exception:  # the scheduler is gone, or the worker with the result, and then it is made again
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
            workers = self.client.nthreads()
        except OSError as error:
            raise self._gone() from error
        self.reminded = time.monotonic()
        if not workers:
            hint = f"start some with `dask worker {self.address} --nthreads 1`"
            tqdm.write(f"no workers at {self.address} yet: {hint}", file=sys.stderr)

    def _gone(self) -> ConnectionError:
        kept = len(self.asked) - len(missing_runs(self.asked.values(), self.store))
        return ConnectionError(
            f"the Dask scheduler at {self.address} is gone. {kept} of {plural(len(self.asked), 'run')} are in the "
            f"store ({self.store}) and stay there: start scheduler and workers anew, and the same sweep goes on from "
            "there"
        )

    def describe(self, outcome: Outcome) -> str:
        """The error, with the name of the worker where that is not one of ours."""
        named = outcome.worker and not self.local
        return f"{outcome.error} (worker {outcome.worker} on {outcome.host})" if named else outcome.error


def most_threads(configs: Iterable[RunConfig]) -> int:
    """The threads that a worker needs for any of these runs."""
    return max(config.threads for config in configs)


def count_workers(todo: list[RunConfig], workers: int | str = "auto", scheduler: str | None = None) -> int:
    """How many runs train side by side, each in a worker process; 0 = one after another in this process.

    ValueError for `workers` that is neither "auto" nor a whole number from 0 up.
    """
    _check_workers(workers)
    if scheduler is not None:
        with connect(scheduler) as client:
            return max(1, sum(client.nthreads().values()))
    if workers != "auto":
        return min(len(todo), workers)
    threads = most_threads(todo)
    if torch.cuda.is_available() or (len(todo) == 1 and threads <= numba.config.NUMBA_NUM_THREADS):
        return 0
    return min(len(todo), max(1, cores() // threads))


def _check_workers(workers: int | str) -> None:
    if workers != "auto" and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 0):
        raise ValueError(f"workers must be 'auto', 0 (in this process) or a whole number, got {workers!r}")


@contextmanager
def open_engine(
    client: Client | None, scheduler: str | None, workers: int | str, todo: list[RunConfig], store: Path
) -> Iterator[Here | OnDask]:
    """Where the runs go. OSError if no scheduler answers, RuntimeError if local workers do not start."""
    count = count_workers(todo, workers)
    if client is not None:
        with _quiet_dask():
            yield OnDask(client, store)
    elif scheduler is not None:
        with connect(scheduler) as connected:
            yield OnDask(connected, store)
    elif count == 0:
        yield Here(store)
    else:
        warm_up()  # compile once here, not once in every worker
        with local_cluster(count, most_threads(todo)) as local:
            yield OnDask(local, store, local=True)


@contextmanager
def connect(scheduler: str) -> Iterator[Client]:
    """A client of the scheduler at this address. ConnectionError if none answers."""
    with _quiet_dask():
        try:
            client = Client(scheduler)
        except OSError as error:
            raise ConnectionError(
                f"no Dask scheduler answers at {scheduler}: is it running, and is that its address?"
            ) from error
        try:
            yield client
        finally:
            client.close()


@contextmanager
def _quiet_dask() -> Iterator[None]:
    """What Dask logs about a lost connection is told once, by `OnDask`."""
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
    """Dask gives its workers their environment through this process's own and leaves it there: one thread for whatever
    is started later."""
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
def local_cluster(workers: int, threads: int) -> Iterator[Client]:
    """A Dask cluster that only this machine can reach, without Dask's pages; a run of it may use so many threads.

    Dask runs whatever code it is sent, so every socket is bound to loopback. It serves HTTP in any case: without routes
    it knows no page. Numba needs its limit before it starts; a run then takes as many as it asks for.
    RuntimeError if its workers do not start.
    """
    limits = dict.fromkeys(("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), threads)
    settings = {"distributed.nanny.pre-spawn-environ": limits | KEEP_FREED_MEMORY}
    settings |= {f"distributed.{part}.http.routes": [] for part in ("scheduler", "worker")}
    with (
        _environment_kept(),
        dask.config.set(settings),
        _start(n_workers=workers, threads_per_worker=1, memory_limit=0, **LOOPBACK) as cluster,
        Client(cluster) as client,
    ):
        client.run(_settle)
        yield client


def _start(**options: Any) -> LocalCluster:
    """The cluster; RuntimeError with what to do where its workers do not come up."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(1)  # a worker, still importing the script it came from: that one's process tells the reader
    try:
        return LocalCluster(**options, silence_logs="ERROR" if _debugging() else "CRITICAL")
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
    done: Iterator[tuple[RunConfig | None, str | None, int]], todo: list[RunConfig], show: bool
) -> Iterator[tuple[RunConfig, str | None]]:
    """Passes the finished runs on and shows how many there are, how many another process trains, and the time left, by
    each run's share of the work."""
    total, finished, start = sum(map(relative_cost, todo)), 0.0, time.monotonic()
    layout = "{desc} |{bar}| {n_fmt}/{total_fmt} runs, {elapsed}{postfix}"
    with tqdm(total=len(todo), desc="training", bar_format=layout, disable=not show) as bar:
        for config, error, elsewhere in done:
            finished += relative_cost(config) if config else 0.0
            left = [f"{spell((time.monotonic() - start) * (total / finished - 1))} left"] if finished else []
            others = [f"{elsewhere} elsewhere"] if elsewhere else []
            bar.set_postfix_str(", ".join(left + others), refresh=config is None and elsewhere > 0)
            if config is not None:
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
