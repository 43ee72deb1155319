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
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from itertools import islice
from pathlib import Path

import pandas as pd
from dask.distributed import Client, as_completed
from tqdm.auto import tqdm

from mambanorm_study.basics.extensions import load_imports
from mambanorm_study.basics.settings import check_source
from mambanorm_study.basics.text import plural, spell
from mambanorm_study.config import RunConfig
from mambanorm_study.runs import cluster, grid, recorded_results, result
from mambanorm_study.runs.pace import Pace
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
    expected: Mapping[str, float] | None = None,
    seconds: float | None = None,
) -> pd.DataFrame:
    """Train the runs that are not in the store. Return the run frame of all configs.

    The run frame has one row per config, in the order of `configs`.

    source: "trained" trains all runs; "recorded" only reads recorded results; "auto" reads the runs
    that are recorded and trains the other runs; None means the environment variable
    `MAMBANORM_SOURCE`, or "auto" if it is not set.

    expected: run_id → seconds that a run is expected to take, for the progress bar and `seconds`.
    seconds: train in the order of `configs`, and leave out every run that is not expected to end
    within so many seconds from now; the run frame has no rows for the runs that were left out.

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
        pace = Pace(to_train, expected, seconds)
        engine = (client, scheduler, workers)
        errors, left_out = _train_missing(to_train, engine, runs_dir, pace, progress)
        tidy(runs_dir)
        tried = [config for config in to_train if config.run_id not in left_out]
        frames.append(_frame_with_failures(tried, errors, runs_dir))
    frame = pd.concat(frames).set_index("run_id", drop=False)
    ids = [config.run_id for config in configs if config.run_id in frame.index]
    return frame.loc[ids].reset_index(drop=True)


def _train_missing(
    configs: list[RunConfig],
    engine: tuple[Client | None, str | None, int | str],
    runs_dir: str | Path | None,
    pace: Pace,
    progress: bool,
) -> tuple[dict[str, str], set[str]]:
    """Train the runs that are not in the store, as far as `pace` admits them.

    Return a map from failed run_ids to errors, and the run_ids that were left out. engine: client,
    scheduler and workers, see `sweep`.
    """
    todo = missing_runs(configs, runs_dir)
    if pace.limit is None:
        # the longest runs first, so that no long run is left to train alone at the end
        todo = sorted(todo, key=pace.seconds, reverse=True)
    if not todo:
        return {}, set()
    store = check_store(runs_dir)
    errors: dict[str, str] = {}
    left = {config.run_id: config for config in todo}
    with (
        cluster.open_client(*engine, todo) as opened,
        tqdm(
            total=sum(pace.expected[config.run_id] for config in todo),
            desc="training",
            bar_format="{desc} |{bar}| {elapsed}{postfix}",
            disable=not progress,
        ) as bar,
    ):
        for config, outcome in _run_waves(todo, opened, store, pace):
            if outcome.disk_full:
                raise OSError(
                    errno.ENOSPC,
                    f"the disk of the run store {store} is full: "
                    "free some space, and the same sweep trains the runs that are missing",
                )
            if outcome.error:
                errors[config.run_id] = outcome.error
            pace.ended(config, outcome.seconds)
            del left[config.run_id]
            workers = 1 if opened is None else sum(opened.nthreads().values())
            seconds = pace.seconds_left(left.values(), workers)
            bar.set_postfix_str(
                f"about {spell(seconds)} left, {len(todo) - len(left)}/{len(todo)} runs",
                refresh=False,
            )
            bar.update(pace.expected[config.run_id])
    return errors, set(left)


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
    todo: list[RunConfig], client: Client | None, store: Path, pace: Pace
) -> Iterator[tuple[RunConfig, Outcome]]:
    """Train the runs in waves. Yield each config and its `Outcome` when the run has ended.

    Runs that `pace` does not admit are left out.

    A run whose `teacher` or `start` is in `todo` is trained in a wave after that run. In each wave,
    the runs that other processes train come last.
    """
    while todo:
        ids = {config.run_id for config in todo}
        wave = [config for config in todo if not ids & {config.teacher, config.start}]
        todo = [config for config in todo if ids & {config.teacher, config.start}]
        held_configs, stored_configs = [], []
        for config, outcome in _run_all(wave, client, store, pace):
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
            yield from _run_all(held_configs, client, store, pace, wait=True)
        deadline = time.monotonic() + NETWORK_DISK_DELAY_S
        while (
            client is not None
            and missing_runs(stored_configs, store)
            and time.monotonic() < deadline
        ):
            time.sleep(1.0)


def _run_all(
    todo: list[RunConfig], client: Client | None, store: Path, pace: Pace, *, wait: bool = False
) -> Iterator[tuple[RunConfig, Outcome]]:
    """Train the runs in this process or on Dask's workers. Yield each config and its `Outcome`.

    client: None means this process. wait: wait for runs that other processes train. If a worker
    dies, Dask starts the worker's run again, up to three times (`allowed-failures`). Raises
    ConnectionError if the scheduler is lost.
    """
    imports = load_imports()
    admitted = filter(pace.admits, todo)
    if client is None:
        for config in admitted:
            yield config, run_one(config.to_json(), str(store), imports, wait)
        return
    configs, futures = {}, as_completed(loop=client.loop)

    def submit() -> None:
        """Send runs to the workers: all without a limit, so that workers that join later find runs,
        else one per thread, so that each run is judged when it could start.
        """
        free = None
        if pace.limit is not None:
            free = max(0, max(1, sum(client.nthreads().values())) - futures.count())
        for config in islice(admitted, free):
            key = f"run-{uuid.uuid4().hex}"  # unique: another sweep may send the same run
            future = client.submit(run_one, config.to_json(), str(store), imports, wait, key=key)
            configs[future] = config
            futures.add(future)

    try:
        if client.status != "running":
            raise CancelledError
        submit()
        for future in futures:
            has_failed = future.status == "error"  # the exception may be KilledWorker
            outcome = Outcome(str(future.exception())) if has_failed else future.result()
            yield configs[future], outcome
            submit()
    except (CancelledError, OSError) as error:  # a lost connection cancels the futures
        raise ConnectionError(
            f"the Dask scheduler at {client.scheduler.address} is gone: start scheduler and "
            "workers anew, and the same sweep trains the runs that are missing"
        ) from error
