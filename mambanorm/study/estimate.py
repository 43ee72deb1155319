"""The dry run: how many runs the store lacks, and about how long they take to train.

The time is estimated from similar stored runs of this machine. Where there is none, a few steps are timed now, which
needs no data.
"""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from mambanorm.basics.atomic import writable_folder
from mambanorm.basics.text import plural, spell
from mambanorm.config import RunConfig
from mambanorm.runs import machine
from mambanorm.runs.grid import base_config, relative_cost, unique
from mambanorm.runs.store import load_runs, missing_runs
from mambanorm.runs.store import runs_dir as store_dir


def dry_run(
    configs: Iterable[RunConfig],
    *,
    runs_dir: str | Path | None = None,
    workers: int | str = "auto",
    scheduler: str | None = None,
) -> str:
    """How many runs are asked for, stored and missing, and about how long the missing ones take; trains none of them.

    What training would refuse is refused: ValueError for `workers` that makes no sense and for a run that cannot be
    trained, OSError for a store that cannot be written to.
    """
    configs = unique(configs)
    missing = missing_runs(configs, runs_dir)
    stored = f"{len(configs) - len(missing)} in the store ({store_dir(runs_dir)})"
    text = f"{plural(len(configs), 'run')} asked for, {stored}, {len(missing)} missing"
    if not missing:
        return text
    from mambanorm.study.plan import check_trainable

    writable_folder(store_dir(runs_dir), "the run store")
    check_trainable(missing, runs_dir)
    return f"{text}\n{how_long(missing, runs_dir=runs_dir, workers=workers, scheduler=scheduler)[1]}"


def how_long(
    missing: list[RunConfig], *, runs_dir: str | Path | None, workers: int | str, scheduler: str | None
) -> tuple[float, str]:
    """About how many seconds the runs take, and a sentence that says so."""
    from mambanorm.runs.cluster import count_workers  # here: where nothing is missing, nothing waits for Dask

    count = max(1, count_workers(missing, workers, scheduler))
    seconds, source = estimate(missing, count, runs_dir=runs_dir, anywhere=scheduler is not None)
    return seconds, f"Training takes about {spell(seconds)} with {plural(count, 'worker')} ({source})"


def estimate(
    missing: list[RunConfig], workers: int, *, runs_dir: str | Path | None = None, anywhere: bool = False
) -> tuple[float, str]:
    """Seconds to train the runs, and what that is based on: similar stored runs, else a few steps timed now.

    `anywhere`: stored runs of other machines count too.
    """
    frame, seconds, like, tried = load_runs(runs_dir, status="ok"), 0.0, 0, {}
    for kind in dict.fromkeys((config.task, config.threads, config.model) for config in missing):
        mine = [config for config in missing if (config.task, config.threads, config.model) == kind]
        rate, n = _stored_rate(frame, mine[0], anywhere=anywhere)
        like += n
        if rate is None:
            rate = tried[kind[0]] = measured_rate(mine[0])
        seconds += rate * sum(map(relative_cost, mine))
    sources = [f"the times of {plural(like, 'like run')} in the store"] if like else []
    if tried:
        sources.append(f"a few steps of one run on {', '.join(tried)}, timed just now")
    return seconds / workers, f"judged by {' and by '.join(sources)}"


def _stored_rate(frame: pd.DataFrame, config: RunConfig, *, anywhere: bool) -> tuple[float | None, int]:
    """Seconds per unit of `relative_cost`, the median over the stored runs of such a model with this task, scale and
    number of threads; and the number of these runs."""
    like = frame
    for name in ("model", "task", "scale", "threads"):
        like = like[like[name] == getattr(config, name)]
    if not anywhere:
        like = like[like["machine"] == machine.machine()]
    if not len(like):
        return None, 0
    own = base_config(config.task, config.scale, model=config.model)  # the frame has no batch_size: the scale's own
    work = like["steps"] * like["n_layers"] * (like["d_model"] + 16) * own.batch_size
    return float((like["wall_s"] / work).median()), len(like)


def measured_rate(config: RunConfig) -> float:
    """Seconds per unit of `relative_cost`, from a few steps of a usual arm on random data of the task's shape,
    with the run's threads, or as many of them as this process was started with."""
    import numba

    from mambanorm.study.plan import plan

    threads = min(config.threads, numba.config.NUMBA_NUM_THREADS)
    usual = {"transformer": "LN>MHA>LN"}.get(config.model, "RMSN>SSM>None")
    return plan(config.but(arm=usual, norm_options={}, threads=threads))["hours"] * 3600 / relative_cost(config)
