"""Trains many runs on Dask: skips stored runs and survives a worker that dies.

The engine is Dask distributed: a local cluster by default, any scheduler by its address, and this
process with `workers=0` for debugging. Several sweeps may share one store: each run is locked
before it is trained (runs/worker.py), and a sweep ends when the runs that other processes train
have ended, too.

runs/cluster.py starts the workers, runs/worker.py is what each of them does.
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

APPEARS_S = 60.0  # a network disk may take this long to show what another machine wrote


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
    """Train the runs that the store lacks. Return the run frame of all configs, in their order.

    source: "trained" trains; "recorded" only reads the recorded results; "auto" reads the recorded
    runs and trains the others; None = the environment's, else "auto".

    A run that could not be trained, or is not in the store after its training, has status "failed"
    and the reason in `error`. It is not stored, so the next sweep tries it again.

    Before training, raises TypeError for an item that is not a RunConfig, ValueError for no config,
    an unknown task or wrong `workers`, and OSError for a store that cannot be written or a
    scheduler that does not answer. During training, raises ConnectionError if the scheduler is lost
    and OSError if the disk is full. Stored runs stay, and the same sweep continues from there.
    """
    configs = grid.unique(configs)
    if not configs:
        raise ValueError("configs is empty, there is nothing to train: grid makes a list of them")
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
    """Train the runs that the store lacks. Return run_id → error of those that failed."""
    # the longest first, so that none of them runs alone at the end
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
            if outcome.full:
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
    """Return the run frame of the configs, failed runs last.

    Warns of each run that failed or is not in the store.
    """
    done = load_runs(runs_dir, configs=[c for c in configs if c.run_id not in errors])
    stored_ids = set(done.run_id)
    failed = []
    for config in configs:
        if config.run_id not in stored_ids:
            error = errors.get(
                config.run_id, "it is not in the store after its training: do all see one store?"
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
    """Yield each run and its outcome when the run has ended.

    A run comes after the runs of the list that it names as `teacher` or `start`. Of runs that do
    not depend on each other, those that other processes train come last.
    """
    while todo:
        ids = {config.run_id for config in todo}
        wave = [config for config in todo if not ids & {config.teacher, config.start}]
        todo = [config for config in todo if ids & {config.teacher, config.start}]
        held, stored = [], []
        for config, outcome in _run_all(wave, client, store, wait=False):
            if outcome.held:
                held.append(config)
            else:
                if not outcome.error:
                    stored.append(config)
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
    """Yield the outcome of each run, trained in this process or on a scheduler's workers.

    Dask retries a run whose worker died three times (`allowed-failures`). Raises ConnectionError if
    the scheduler is lost.
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
            key = f"run-{uuid.uuid4().hex}"  # another sweep may send the same run to the scheduler
            future = client.submit(run_one, config.to_json(), str(store), imports, wait, key=key)
            futures[future] = config
        for future in as_completed(futures):
            is_lost = future.status == "error"  # such as KilledWorker
            outcome = Outcome(str(future.exception())) if is_lost else future.result()
            yield futures[future], outcome
    except (CancelledError, OSError) as error:  # a lost connection cancels the futures
        raise ConnectionError(
            f"the Dask scheduler at {client.scheduler.address} is gone: start scheduler and "
            "workers anew, and the same sweep trains the runs that are missing"
        ) from error
