"""Many runs on Dask: trains what the store lacks, skips what it has, survives a dying worker.

The engine is Dask distributed: a local cluster by default, any scheduler by its address, `workers=0` in this process
for debugging. A run trains on as many threads as its config says, on any machine. Any number of sweeps share one store:
each run is claimed before it is trained (runs/worker.py). A sweep waits last for the runs that others train.

    sweep           configs → run frame, a row each
    waves           runs that learn from other runs come after them

Where runs go is in runs/cluster.py, what happens to one there in runs/worker.py.
"""

from __future__ import annotations

import errno
import time
import warnings
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import pandas as pd
from dask.distributed import Client
from tqdm.auto import tqdm

from mambanorm.basics.settings import check_source
from mambanorm.basics.text import spell
from mambanorm.config import RunConfig
from mambanorm.runs.cluster import Here, OnDask, check_workers, open_engine, so_far
from mambanorm.runs.grid import relative_cost, unique
from mambanorm.runs.recorded_results import describe_recorded, recorded_ids, recorded_runs
from mambanorm.runs.result import config_row
from mambanorm.runs.store import COLUMNS, check_store, find_run, load_runs, missing_runs, tidy
from mambanorm.runs.worker import POLL_S, is_free
from mambanorm.tasks import check_task

APPEARS_S = 60.0  # a network disk may show only after this time what another machine wrote


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

    `source="recorded"` trains nothing and reads the results that the repository carries, "auto" reads those that are
    recorded and trains the rest (None = the environment's, else auto).
    A run that could not be trained, or that is not in the store after its training, has status "failed" and its
    reason in `error`; it is not stored, so the next sweep tries it again.

    Before anything starts it raises TypeError for what is no config, ValueError for no config at all, an unknown task
    or wrong `workers`, and OSError for a store that cannot be written or a scheduler that does not answer; later
    ConnectionError if the scheduler goes away, and OSError if the store's disk is full. What is stored stays, and the
    same sweep goes on from there.
    """
    if not (configs := unique(configs)):
        raise ValueError("configs is empty, there is nothing to train: grid makes a list of them")
    for config in configs:
        check_task(config.task)
    check_workers(workers)
    read = []
    if (source := check_source(source)) != "trained":
        held = set() if source == "recorded" else recorded_ids(config.scale for config in configs)
        read = [config for config in configs if source == "recorded" or config.run_id in held]
    there = {config.run_id for config in read}
    rest = [config for config in configs if config.run_id not in there]
    frames = []
    if read:
        frames.append(recorded_runs(read))
        print(describe_recorded(frames[0]))
    if rest:
        frames.append(_trained(rest, client, scheduler, workers, runs_dir, progress))
    return frames[0] if len(frames) == 1 else _ordered(pd.concat(frames), configs)


def _ordered(frame: pd.DataFrame, configs: list[RunConfig]) -> pd.DataFrame:
    order = {config.run_id: i for i, config in enumerate(configs)}
    return frame.sort_values("run_id", key=lambda ids: ids.map(order), ignore_index=True)


def _trained(configs: list[RunConfig], client, scheduler, workers, runs_dir, progress: bool) -> pd.DataFrame:
    """The run frame of the configs, after those are trained that the store lacks."""
    # the longest first, so that none of them is left alone at the end; otherwise in the order given
    todo = sorted(missing_runs(configs, runs_dir), key=relative_cost, reverse=True)
    failed = {}
    if todo:
        store = check_store(runs_dir)
        with open_engine(client, scheduler, workers, todo, store) as engine:
            done = chain.from_iterable(_run_all(wave, engine, store) for wave in waves(todo))
            for config, error in _progress(done, todo, progress):
                if error is not None:
                    failed[config.run_id] = _failed(config, error)
    tidy(runs_dir)
    for row in failed.values():
        warnings.warn(f"{row['arm']} on {row['task']}, seed {row['seed']}: {row['error']}", stacklevel=2)
    done = load_runs(runs_dir, configs=[config for config in configs if config.run_id not in failed])
    there = {*done.run_id, *failed}
    for config in configs:
        if config.run_id not in there:
            failed[config.run_id] = _failed(config, "it is not in the store any more")
    if failed:
        done = pd.concat([done.astype(object), pd.DataFrame(failed.values(), dtype=object)])
    return _ordered(done.reindex(columns=COLUMNS), configs)


def _failed(config: RunConfig, error: str) -> dict:
    return config_row(config) | {"status": "failed", "error": error}


def waves(todo: list[RunConfig]) -> list[list[RunConfig]]:
    """The runs in groups: one that learns from another of them (teacher, start) comes in a later group."""
    left, found = list(todo), []
    while left:
        ids = {config.run_id for config in left}
        found.append([config for config in left if not ids & {config.teacher, config.start}])
        left = [config for config in left if ids & {config.teacher, config.start}]
    return found


def _run_all(
    todo: list[RunConfig], engine: Here | OnDask, store: Path
) -> Iterator[tuple[RunConfig | None, str | None, int]]:
    """Yields (config, error or None, elsewhere) for each run that is done. `elsewhere` is how many of the others are
    trained by another process just now; config is None where only this number may have changed.

    A run counts as done when this process finds it in the store.
    """
    left = len(todo)
    waiting: dict[RunConfig, tuple[bool, float]] = {}  # trained elsewhere, or not yet visible here; since when
    for config in todo:
        engine.submit(config)
    while left:
        settled = []
        if (found := engine.next(POLL_S)) is not None:
            config, outcome = found
            if outcome.full:  # any other run would be trained for nothing
                what_to_do = "free some space, and the same sweep goes on from there"
                raise OSError(errno.ENOSPC, f"the disk of the run store is full. {so_far(todo, store)}: {what_to_do}")
            if not outcome.error:
                waiting[config] = outcome.held, time.monotonic()
            else:
                settled.append((config, outcome.error))
        for config, (held, since) in list(waiting.items()):
            if find_run(config, store) is not None:
                settled.append((config, None))
            elif held:
                if not is_free(config.run_id, store):
                    continue
                engine.submit(config)
            elif time.monotonic() - since < (0.0 if isinstance(engine, Here) else APPEARS_S):
                continue
            else:
                settled.append((config, f"it is not in {store} after its training: do all see one store?"))
            del waiting[config]
        left -= len(settled)
        elsewhere = sum(held for held, _ in waiting.values())
        yield from [(config, error, elsewhere) for config, error in settled] or [(None, None, elsewhere)]


def _progress(
    done: Iterator[tuple[RunConfig | None, str | None, int]], todo: list[RunConfig], show: bool
) -> Iterator[tuple[RunConfig, str | None]]:
    """Passes the finished runs on. The bar shows how many there are, how many another process trains, and the time
    left, estimated from each run's share of the work."""
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
