"""What the monkey's processes are: `dask scheduler`, `dask worker` or `mambanorm`, with short times
and a trace of the runs. Workers load this file with Dask's `--preload`.

    MAMBANORM_CHAOS         a folder: trace (one line an event)
    MAMBANORM_CHAOS_SLOT    which worker this is
"""

import os
import sys
import time
from importlib import import_module
from pathlib import Path

FOLDER, SLOT = "MAMBANORM_CHAOS", "MAMBANORM_CHAOS_SLOT"
CHECKPOINT_S = 0.1


def note(event: str, what: str) -> None:
    """One line, in one write: lines of processes that write at the same time are not mixed."""
    with open(Path(os.environ[FOLDER], "trace"), "a") as trace:
        trace.write(f"{event} {what} {os.getpid()} {time.monotonic()}\n")


def install() -> None:
    worker = import_module("mambanorm_study.runs.worker")
    worker.POLL_S = 0.2
    trace_training(worker)


def trace_training(worker) -> None:
    train, train_and_store = worker.train, worker.train_and_store

    def traced(config, **options):
        note("start", config.run_id)
        return train(config, checkpoint_every_s=CHECKPOINT_S, **options)

    def told(config, *more, **options):
        seconds = train_and_store(config, *more, **options)
        note("stored", config.run_id)
        return seconds

    worker.train, worker.train_and_store = traced, told


def dask_setup(_worker) -> None:
    install()
    note("worker", os.environ[SLOT])


def run(command: str, arguments: list[str], log: Path, environment: dict[str, str]) -> None:
    """The whole life of a process that has just been forked."""
    os.setsid()
    os.environ.update(environment)
    with open(log, "wb") as file:
        for handle in (1, 2):
            os.dup2(file.fileno(), handle)
    if command == "mambanorm":
        install()
        sys.exit(import_module("mambanorm_study.cli.main").main(arguments))
    import_module(f"distributed.cli.{command}").main(arguments)
