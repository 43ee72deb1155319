"""How long a whole run of a task takes, estimated from two short ones.

One process a core trains with one thread, all at the same time, as a sweep's workers do. Each
trains a run of one period (the steps up to and including the first evaluation) and one of three.
The time of the two further periods gives the time of a period. The fixed part of the short run
(model and optimizer, the test split, the diagnostics) is added once. Data are loaded before and
nothing is stored: a sweep does the first once for many runs, and the second in a moment.
"""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Callable

from benchmarks.cases import Case, config_of
from mambanorm_study import train
from mambanorm_study.config import RunConfig
from mambanorm_study.tasks import load_task

SHORT, LONGER = 1, 3  # periods
_barrier = None  # in a child process: the processes start each round together


def whole_runs(case: Case, rounds: int) -> list[float]:
    """Return the seconds of a whole run, one number for each round of each process."""
    config = config_of(case.name, case.scale)
    load_task(config.task, config.scale, config.seed)  # drawn or downloaded once, for all processes
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(case.processes)
    with context.Pool(case.processes, _set_barrier, (barrier,)) as pool:
        times = pool.starmap(_time_rounds, [(config, rounds)] * case.processes, chunksize=1)
    return [seconds for process_times in times for seconds in process_times]


def _set_barrier(barrier: multiprocessing.Barrier) -> None:
    global _barrier
    _barrier = barrier


def _time_rounds(config: RunConfig, rounds: int) -> list[float]:
    """Return the estimated seconds of a whole run in each round."""
    short, longer = (
        config.but(steps=periods * config.eval_every, warmup_steps=1) for periods in (SHORT, LONGER)
    )
    train(short)  # not counted: it loads kernels and data
    gc.freeze()  # as a sweep's workers do
    times = []
    for _ in range(rounds):
        _barrier.wait()
        short_s, longer_s = seconds_of(lambda: train(short)), seconds_of(lambda: train(longer))
        period_s = (longer_s - short_s) / (LONGER - SHORT)
        times.append(short_s + period_s * (config.steps / config.eval_every - SHORT))
    return times


def seconds_of(call: Callable[[], object]) -> float:
    """Return the wall time of a call in seconds."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
