"""The dry run: how many runs the store lacks, and about how long they take, by a few steps timed
without data."""

from collections.abc import Iterable
from pathlib import Path

from mambanorm_study.basics.atomic import writable_folder
from mambanorm_study.basics.text import plural, spell
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import relative_cost, unique
from mambanorm_study.runs.store import missing_runs
from mambanorm_study.runs.store import runs_dir as store_dir


def dry_run(
    configs: Iterable[RunConfig],
    *,
    runs_dir: str | Path | None = None,
    workers: int | str = "auto",
    scheduler: str | None = None,
) -> str:
    """How many runs are asked for, stored and missing, and about how long the missing ones take;
    trains none of them, and refuses what training would refuse (ValueError, OSError for the
    store)."""
    configs = unique(configs)
    missing = missing_runs(configs, runs_dir)
    stored = f"{len(configs) - len(missing)} in the store ({store_dir(runs_dir)})"
    text = f"{plural(len(configs), 'run')} asked for, {stored}, {len(missing)} missing"
    if not missing:
        return text
    from mambanorm_study.tables.plan import check_trainable

    writable_folder(store_dir(runs_dir), "the run store")
    check_trainable(missing, runs_dir)
    return f"{text}\n{how_long(missing, workers=workers, scheduler=scheduler)[1]}"


def how_long(
    missing: list[RunConfig], *, workers: int | str, scheduler: str | None
) -> tuple[float, str]:
    """About how many seconds the runs take, and a sentence that says so."""
    from mambanorm_study.runs.cluster import (
        count_workers,
    )  # here: where nothing is missing, nothing waits for Dask

    count = max(1, count_workers(missing, workers, scheduler))
    seconds = estimate(missing, count)
    tasks = ", ".join(dict.fromkeys(config.task for config in missing))
    basis = f"judged by a few steps of one run on {tasks}, timed just now"
    return (
        seconds,
        f"Training takes about {spell(seconds)} with {plural(count, 'worker')} ({basis})",
    )


def estimate(missing: list[RunConfig], workers: int) -> float:
    """Seconds to train the runs, by one run of each task, number of threads and kind of model."""
    rates = {}
    for config in missing:
        kind = (config.task, config.threads, config.model)
        rates[kind] = rates.get(kind) or measured_rate(config)
    work = sum(
        rates[config.task, config.threads, config.model] * relative_cost(config)
        for config in missing
    )
    return work / workers


def measured_rate(config: RunConfig) -> float:
    """Seconds per unit of `relative_cost`, from a few steps of a usual arm on random data of the
    task's shape, with the run's threads, or as many of them as this process was started with."""
    import numba

    from mambanorm_study.tables.plan import plan

    threads = min(config.threads, numba.config.NUMBA_NUM_THREADS)
    usual = {"transformer": "LN>MHA>LN"}.get(config.model, "RMSN>SSM>None")
    return (
        plan(config.but(arm=usual, norm_options={}, threads=threads))["hours"]
        * 3600
        / relative_cost(config)
    )
