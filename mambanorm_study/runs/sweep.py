"""Many runs on Dask: trains what the store lacks, skips what it has, survives a dying worker.

The engine is Dask distributed: a local cluster by default, any scheduler by its address,
`workers=0` in this process for debugging. A run trains on as many threads as its config says, on
any machine. Any number of sweeps share one store: each run is claimed before it is trained
(runs/worker.py). A sweep waits last for the runs that others train.

Where runs go is in runs/cluster.py, what happens to one there in runs/worker.py.
"""

from __future__ import annotations

import errno
import sys
import time
import uuid
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pandas as pd
from dask.distributed import Client, KilledWorker, as_completed
from tqdm.auto import tqdm

from mambanorm_study.basics.extensions import load_imports
from mambanorm_study.basics.settings import check_source
from mambanorm_study.basics.text import plural
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.cluster import check_workers, open_client
from mambanorm_study.runs.grid import relative_cost, unique
from mambanorm_study.runs.recorded_results import describe_recorded, recorded_ids, recorded_runs
from mambanorm_study.runs.result import config_row
from mambanorm_study.runs.store import COLUMNS, check_store, load_runs, missing_runs, tidy
from mambanorm_study.runs.worker import Outcome, run_one
from mambanorm_study.tasks import check_task

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
    """Trains the runs that the store lacks and returns the run frame of all the configs, a row
    each, in their order.

    `source="recorded"` trains nothing and reads the results that the repository carries, "auto"
    reads those that are recorded and trains the rest (None = the environment's, else auto). A run
    that could not be trained, or that is not in the store after its training, has status "failed"
    and its reason in `error`; it is not stored, so the next sweep tries it again.

    Before anything starts it raises TypeError for what is no config, ValueError for no config at
    all, an unknown task or wrong `workers`, and OSError for a store that cannot be written or a
    scheduler that does not answer; later ConnectionError if the scheduler goes away, and OSError if
    the store's disk is full. What is stored stays, and the same sweep goes on from there.
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


def _trained(
    configs: list[RunConfig], client, scheduler, workers, runs_dir, progress: bool
) -> pd.DataFrame:
    """The run frame of the configs, after those are trained that the store lacks."""
    # the longest first, so that none of them is left alone at the end; otherwise in the order given
    todo = sorted(missing_runs(configs, runs_dir), key=relative_cost, reverse=True)
    errors: dict[str, str] = {}
    if todo:
        store = check_store(runs_dir)
        layout = "{desc} |{bar}| {elapsed}, {remaining} left{postfix}"  # told by each run's share of the work
        shown = dict(desc="training", bar_format=layout, smoothing=0, disable=not progress)
        total = sum(map(relative_cost, todo))
        with (
            open_client(client, scheduler, workers, todo) as engine,
            tqdm(total=total, **shown) as bar,
        ):
            for n, (config, outcome) in enumerate(_run_waves(todo, engine, store), 1):
                if outcome.full:  # any other run would be trained for nothing
                    hint = "free some space, and the same sweep goes on from there"
                    raise OSError(
                        errno.ENOSPC,
                        f"the disk of the run store is full. {_so_far(todo, store)}: {hint}",
                    )
                if outcome.error:
                    errors[config.run_id] = outcome.error
                bar.set_postfix_str(f"{n}/{len(todo)} runs", refresh=False)
                bar.update(relative_cost(config))
    tidy(runs_dir)
    done = load_runs(
        runs_dir, configs=[config for config in configs if config.run_id not in errors]
    )
    there = {*done.run_id, *errors}
    absent = "it is not in the store after its training: do all see one store?"
    errors |= {config.run_id: absent for config in configs if config.run_id not in there}
    failed = [
        config_row(c) | {"status": "failed", "error": errors[c.run_id]}
        for c in configs
        if c.run_id in errors
    ]
    for row in failed:
        warnings.warn(
            f"{row['arm']} on {row['task']}, seed {row['seed']}: {row['error']}", stacklevel=2
        )
    if failed:
        done = pd.concat([done.astype(object), pd.DataFrame(failed, dtype=object)])
    return _ordered(done.reindex(columns=COLUMNS), configs)


def waves(todo: list[RunConfig]) -> list[list[RunConfig]]:
    """The runs in groups: one that learns from another of them (teacher, start) comes in a later
    group."""
    left, found = list(todo), []
    while left:
        ids = {config.run_id for config in left}
        found.append([config for config in left if not ids & {config.teacher, config.start}])
        left = [config for config in left if ids & {config.teacher, config.start}]
    return found


def _run_waves(
    todo: list[RunConfig], client: Client | None, store: Path
) -> Iterator[tuple[RunConfig, Outcome]]:
    """Each run when it has ended, and what became of it; of each wave those that other processes
    train come last."""
    for wave in waves(todo):
        held, stored = [], []
        for config, outcome in _run_all(wave, client, store, wait=False):
            if outcome.held:
                held.append(config)
                continue
            stored += [] if outcome.error else [config]
            yield config, outcome
        if held:
            tqdm.write(f"waiting for {plural(len(held), 'run')} that others train", file=sys.stderr)
            yield from _run_all(held, client, store, wait=True)
        deadline = time.monotonic() + APPEARS_S
        while client is not None and missing_runs(stored, store) and time.monotonic() < deadline:
            time.sleep(1.0)


def _run_all(
    todo: list[RunConfig], client: Client | None, store: Path, *, wait: bool
) -> Iterator[tuple[RunConfig, Outcome]]:
    """In this process, or on the workers of a scheduler. Dask tries a run again whose worker died
    with it, three times (its `allowed-failures`). ConnectionError if the scheduler goes away."""
    sent = {config: (config.to_json(), str(store), load_imports(), wait) for config in todo}
    if client is None:
        yield from ((config, run_one(*given)) for config, given in sent.items())
        return
    try:
        if client.status != "running":
            raise CancelledError
        # keys of its own: another sweep may ask this scheduler for the same run
        futures = {
            client.submit(run_one, *given, key=f"run-{uuid.uuid4().hex}"): c
            for c, given in sent.items()
        }
        for future in as_completed(futures):
            lost = future.status == "error"
            yield (
                futures[future],
                Outcome(_why_lost(future.exception())) if lost else future.result(),
            )
    except (CancelledError, OSError) as error:  # never cancelled by us: a lost connection does it
        hint = "start scheduler and workers anew, and the same sweep goes on from there"
        gone = f"the Dask scheduler at {client.scheduler.address} is gone. {_so_far(todo, store)}: {hint}"
        raise ConnectionError(gone) from error


def _why_lost(error: BaseException) -> str:
    """Why Dask could not run run_one, which itself raises nothing."""
    died = isinstance(error, KilledWorker)
    return (
        "every worker process that trained it died: was there enough memory?"
        if died
        else repr(error)
    )


def _so_far(asked: list[RunConfig], store: Path) -> str:
    """How many of the runs of a sweep that ends early are stored."""
    stored = len(asked) - len(missing_runs(asked, store))
    return f"{stored} of {plural(len(asked), 'run')} are in the store ({store}) and stay there"
