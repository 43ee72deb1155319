"""The dry run: how many runs the store lacks, and about how long they take to train.

The time is measured in a few training steps on random data (plan.py).
"""

from collections.abc import Iterable
from pathlib import Path

from mambanorm_study.basics.atomic import writable_folder
from mambanorm_study.basics.text import plural, spell
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import relative_cost, unique
from mambanorm_study.runs.store import missing_runs, runs_dir as store_dir


def dry_run(
    configs: Iterable[RunConfig],
    *,
    runs_dir: str | Path | None = None,
    workers: int | str = "auto",
    scheduler: str | None = None,
) -> str:
    """Return how many of the runs are stored and missing, and about how long the missing ones take,
    as text. No run is trained.

    Raises ValueError for runs whose model cannot be built or whose batch is larger than the data,
    OSError for a store that cannot be written to.
    """
    configs = unique(configs)
    missing = missing_runs(configs, runs_dir)
    stored = f"{len(configs) - len(missing)} in the store ({store_dir(runs_dir)})"
    text = f"{plural(len(configs), 'run')} asked for, {stored}, {len(missing)} missing"
    if not missing:
        return text
    from mambanorm_study.tables.plan import check_trainable

    writable_folder(store_dir(runs_dir), "the run store")
    check_trainable(missing)
    return f"{text}\n{how_long(missing, workers=workers, scheduler=scheduler)[1]}"


def how_long(
    missing: list[RunConfig], *, workers: int | str, scheduler: str | None
) -> tuple[float, str]:
    """Return about how many seconds the runs take to train, and a sentence that says so."""
    # imported here, so that Dask is not loaded where no run is missing
    from mambanorm_study.runs.cluster import count_workers

    count = max(1, count_workers(missing, workers, scheduler))
    seconds = training_seconds(missing, count)
    tasks = ", ".join(dict.fromkeys(config.task for config in missing))
    basis = f"judged by a few steps of one run on {tasks}, timed just now"
    return (
        seconds,
        f"Training takes about {spell(seconds)} with {plural(count, 'worker')} ({basis})",
    )


def training_seconds(configs: list[RunConfig], workers: int) -> float:
    """Return about how many seconds the workers need to train the runs.

    One run of each task, number of threads and kind of model is timed, with all threads of this
    process if the run has more.
    """
    import numba

    from mambanorm_study.tables.plan import plan

    seconds_per_cost: dict[tuple, float] = {}
    seconds = 0.0
    for config in configs:
        kind = (config.task, config.threads, config.model)
        if kind not in seconds_per_cost:
            threads = min(config.threads, numba.config.NUMBA_NUM_THREADS)
            cost = plan(config.but(threads=threads))
            seconds_per_cost[kind] = 3600 * cost["hours"] / relative_cost(config)
        seconds += seconds_per_cost[kind] * relative_cost(config)
    return seconds / workers
