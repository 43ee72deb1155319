"""Trains many runs with Dask: skips stored runs and goes on if a worker dies.

The runs are trained by workers on this machine (the default), by the workers of a Dask scheduler,
or for debugging in this process (`workers=0`). Several sweeps may share one store: each run is
locked before it is trained (runs/worker.py), and a sweep also waits for those of its runs that
other processes train.

runs/cluster.py starts the workers; runs/worker.py has the function that each worker calls.
"""

import errno
import sys
import time
import uuid
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pandas as pd
from dask.distributed import Client, as_completed
from tqdm.auto import tqdm

from mambanorm_study.basics.extensions import load_imports
from mambanorm_study.basics.settings import check_source
from mambanorm_study.basics.text import plural
from mambanorm_study.config import RunConfig
from mambanorm_study.runs import cluster, grid, recorded_results, result
from mambanorm_study.runs.store import COLUMNS, check_store, load_runs, missing_runs, tidy
from mambanorm_study.runs.worker import Outcome, run_one
from mambanorm_study.tasks import check_task

# Seconds that a network disk may take to show a run that another machine wrote.
NETWORK_DISK_DELAY_S = 60.0


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
    """Train the runs that are not in the store. Return the run frame of all configs.

    The run frame has one row per config, in the order of `configs`.

    source: "trained" trains all runs; "recorded" only reads recorded results; "auto" reads the runs
    that are recorded and trains the other runs; None means the environment variable
    `MAMBANORM_SOURCE`, or "auto" if it is not set.

    A run that could not be trained, or is not in the store after its training, has status "failed"
    and the reason in the column `error`. A failed run is not stored, so the next sweep trains
    the run again.

    Before training, raises TypeError for an item that is not a RunConfig, ValueError for no config,
    an unknown task or wrong `workers`, and OSError for a store that cannot be written or a
    scheduler that does not answer. During training, raises ConnectionError if the connection to the
    scheduler is lost and OSError if the disk is full. The runs stored by then are kept; sweep again
    to train the missing runs.
    """
    configs = grid.unique(configs)
    if not configs:
        raise ValueError(
            "configs is empty, there is nothing to train: `grid` makes a list of configs"
        )
    for config in configs:
        check_task(config.task)
    source = check_source(source)
    recorded = (
        set()
        if source == "trained"
        else recorded_results.recorded_ids(config.scale for config in configs)
    )
    to_read = [c for c in configs if source == "recorded" or c.run_id in recorded]
    to_train = [c for c in configs if source != "recorded" and c.run_id not in recorded]
    frames = []
    if to_read:
        frames.append(recorded_results.recorded_runs(to_read))
        print(recorded_results.describe_recorded(frames[0]))
    if to_train:
        errors = _train_missing(to_train, client, scheduler, workers, runs_dir, progress)
        tidy(runs_dir)
        frames.append(_frame_with_failures(to_train, errors, runs_dir))
    frame = pd.concat(frames).set_index("run_id", drop=False)
    return frame.loc[[config.run_id for config in configs]].reset_index(drop=True)


def _train_missing(
    configs: list[RunConfig],
    client: Client | None,
    scheduler: str | None,
    workers: int | str,
    runs_dir: str | Path | None,
    progress: bool,
) -> dict[str, str]:
    """Train the runs missing in the store. Return a map from failed run_id to error message."""
    # the longest runs first, so that no long run is left to train alone at the end
    todo = sorted(missing_runs(configs, runs_dir), key=grid.relative_cost, reverse=True)
    if not todo:
        return {}
    store = check_store(runs_dir)
    errors: dict[str, str] = {}
    options = {
        "total": sum(map(grid.relative_cost, todo)),
        "desc": "training",
        "bar_format": "{desc} |{bar}| {elapsed}, {remaining} left{postfix}",
        "smoothing": 0,
        "disable": not progress,
    }
    with cluster.open_client(client, scheduler, workers, todo) as engine, tqdm(**options) as bar:
        for n, (config, outcome) in enumerate(_run_waves(todo, engine, store), 1):
            if outcome.disk_full:
                raise OSError(
                    errno.ENOSPC,
                    f"the disk of the run store {store} is full: "
                    "free some space, and the same sweep trains the runs that are missing",
                )
            if outcome.error:
                errors[config.run_id] = outcome.error
            bar.set_postfix_str(f"{n}/{len(todo)} runs", refresh=False)
            bar.update(grid.relative_cost(config))
    return errors


def _frame_with_failures(
    configs: list[RunConfig], errors: dict[str, str], runs_dir: str | Path | None
) -> pd.DataFrame:
    """Return the run frame of the configs, with the failed runs last.

    errors: a map from run_id to message. A run that is neither in `errors` nor in the store counts
    as failed, too. Warns about each failed run.
    """
    done = load_runs(runs_dir, configs=[c for c in configs if c.run_id not in errors])
    stored_ids = set(done.run_id)
    failed = []
    for config in configs:
        if config.run_id not in stored_ids:
            error = errors.get(
                config.run_id,
                "the run is not in the store after its training: do all workers see one store?",
            )
            failed.append({**result.config_row(config), "status": "failed", "error": error})
            warnings.warn(
                f"{config.arm} on {config.task}, seed {config.seed}: {error}", stacklevel=3
            )
    if not failed:
        return done
    return pd.concat([done.astype(object), pd.DataFrame(failed, dtype=object)]).reindex(
        columns=COLUMNS
    )


def _run_waves(
    todo: list[RunConfig], client: Client | None, store: Path
) -> Iterator[tuple[RunConfig, Outcome]]:
    """Train the runs in waves. Yield each config and its `Outcome` when the run has ended.

    A run whose `teacher` or `start` is in `todo` is trained in a wave after that run. In each wave,
    the runs that other processes train come last.
    """
    while todo:
        ids = {config.run_id for config in todo}
        wave = [config for config in todo if not ids & {config.teacher, config.start}]
        todo = [config for config in todo if ids & {config.teacher, config.start}]
        held_configs, stored_configs = [], []
        for config, outcome in _run_all(wave, client, store, wait=False):
            if outcome.held:
                held_configs.append(config)
            else:
                if not outcome.error:
                    stored_configs.append(config)
                yield config, outcome
        if held_configs:
            tqdm.write(
                f"waiting for {plural(len(held_configs), 'run')} that other processes train",
                file=sys.stderr,
            )
            yield from _run_all(held_configs, client, store, wait=True)
        deadline = time.monotonic() + NETWORK_DISK_DELAY_S
        while (
            client is not None
            and missing_runs(stored_configs, store)
            and time.monotonic() < deadline
        ):
            time.sleep(1.0)


def _run_all(
    todo: list[RunConfig], client: Client | None, store: Path, *, wait: bool
) -> Iterator[tuple[RunConfig, Outcome]]:
    """Train the runs in this process or on Dask's workers. Yield each config and its `Outcome`.

    client: None means this process. wait: wait for runs that other processes train. If a worker
    dies, Dask starts the worker's run again, up to three times (`allowed-failures`). Raises
    ConnectionError if the scheduler is lost.
    """
    imports = load_imports()
    if client is None:
        for config in todo:
            yield config, run_one(config.to_json(), str(store), imports, wait)
        return
    try:
        if client.status != "running":
            raise CancelledError
        futures = {}
        for config in todo:
            key = f"run-{uuid.uuid4().hex}"  # unique: another sweep may send the same run
            future = client.submit(run_one, config.to_json(), str(store), imports, wait, key=key)
            futures[future] = config
        for future in as_completed(futures):
            has_failed = future.status == "error"  # the exception may be KilledWorker
            outcome = Outcome(str(future.exception())) if has_failed else future.result()
            yield futures[future], outcome
    except (CancelledError, OSError) as error:  # a lost connection cancels the futures
        raise ConnectionError(
            f"the Dask scheduler at {client.scheduler.address} is gone: start scheduler and "
            "workers anew, and the same sweep trains the runs that are missing"
        ) from error
