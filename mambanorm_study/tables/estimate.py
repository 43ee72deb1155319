"""The dry run: how many runs the store lacks, and about how long they take, from a few steps timed
without data.
"""

from collections.abc import Iterable
from pathlib import Path

from mambanorm_study.basics.atomic import writable_folder
from mambanorm_study.basics.text import plural, spell
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import relative_cost, unique
from mambanorm_study.runs.store import missing_runs, runs_dir as store_dir

# Kind of model → the arm that is timed for its runs; RMSN>SSM>None for the others.
USUAL_ARM = {"transformer": "LN>MHA>LN"}


def dry_run(
    configs: Iterable[RunConfig],
    *,
    runs_dir: str | Path | None = None,
    workers: int | str = "auto",
    scheduler: str | None = None,
) -> str:
    """Return a text: how many runs are asked for, stored and missing, and about how long the
    missing ones take.

    No run is trained. ValueError for runs that training would refuse, and OSError for a store that
    cannot be written to.
    """
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
    """Return about how many seconds the runs take, and a sentence that says so."""
    # imported here: where nothing is missing, nothing waits for Dask
    from mambanorm_study.runs.cluster import count_workers

    count = max(1, count_workers(missing, workers, scheduler))
    seconds = estimate(missing, count)
    tasks = ", ".join(dict.fromkeys(config.task for config in missing))
    basis = f"judged by a few steps of one run on {tasks}, timed just now"
    workers_text = plural(count, "worker")
    return seconds, f"Training takes about {spell(seconds)} with {workers_text} ({basis})"


def estimate(missing: list[RunConfig], workers: int) -> float:
    """Return the seconds to train the runs, from timing one run of each task, number of threads
    and kind of model.
    """
    seconds_per_cost: dict[tuple, float] = {}
    seconds = 0.0
    for config in missing:
        kind = (config.task, config.threads, config.model)
        if kind not in seconds_per_cost:
            seconds_per_cost[kind] = _seconds_per_cost(config)
        seconds += seconds_per_cost[kind] * relative_cost(config)
    return seconds / workers


def _seconds_per_cost(config: RunConfig) -> float:
    """Return the seconds per unit of `relative_cost` of a usual arm, with the run's threads or, if
    this process has fewer, with all of them.
    """
    import numba

    from mambanorm_study.tables.plan import plan

    threads = min(config.threads, numba.config.NUMBA_NUM_THREADS)
    arm = USUAL_ARM.get(config.model, "RMSN>SSM>None")
    timed = plan(config.but(arm=arm, norm_options={}, threads=threads))
    return timed["hours"] * 3600 / relative_cost(config)
