"""How many runs of the study a machine trains in an hour, task by task; a whole run is judged by
two short ones.

One process a core trains with one thread, all at the same time, as a sweep's workers do. Each
trains a run of one period (its steps up to and with the first evaluation) and one of three. What
the two further periods took is taken as often as a whole run has periods. What is left of the short
run is added once: model and optimizer, the test split, what a run keeps. Data are loaded before and
nothing is stored: a sweep does both for many runs, or in a moment.
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
_start = None  # in a child: where the processes wait for one another


def whole_runs(case: Case, rounds: int) -> list[float]:
    """Seconds of a whole run of the case's task and scale: of each round of each process."""
    config = config_of(case.name, case.scale)
    load_task(
        config.task, config.scale, config.seed
    )  # what has to be drawn or downloaded is there for all processes
    context = multiprocessing.get_context("spawn")
    with context.Pool(case.processes, _begin, (context.Barrier(case.processes),)) as pool:
        found = pool.starmap(_time, [(config, rounds)] * case.processes, chunksize=1)
    return [seconds for one in found for seconds in one]


def of_a_whole_run(short_s: float, longer_s: float, periods: float) -> float:
    """Seconds of a run of so many periods, from those of a run with SHORT and of one with
    LONGER."""
    period = (longer_s - short_s) / (LONGER - SHORT)
    return short_s + period * (periods - SHORT)


def _begin(start: multiprocessing.Barrier) -> None:
    global _start
    _start = start


def _time(config: RunConfig, rounds: int) -> list[float]:
    periods = config.steps / config.eval_every
    parts = [config.but(steps=n * config.eval_every, warmup_steps=1) for n in (SHORT, LONGER)]
    train(parts[0])  # not counted: it loads kernels and data
    gc.freeze()  # as in a sweep's workers
    found = []
    for _ in range(rounds):
        _start.wait()
        found.append(
            of_a_whole_run(*(seconds_of(lambda part=part: train(part)) for part in parts), periods)
        )
    return found


def seconds_of(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
