"""What the monkey's processes are: `dask scheduler`, `dask worker` or `mambanorm`, with short times, a trace of what is
trained, and a disk that is full when it is to be. Workers load this file with Dask's `--preload`.

    MAMBANORM_CHAOS         a folder: trace (one line an event), and the file `full` while the disk is to be full
    MAMBANORM_CHAOS_SLOT    which worker this is
"""

import errno
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
        trace.write(f"{event} {what} {os.getpid()} {os.getsid(0)} {time.monotonic()}\n")


def install() -> None:
    worker = import_module("mambanorm.training.worker")
    for name in ("worker", "sweep", "cluster"):
        import_module(f"mambanorm.training.{name}").POLL_S = 0.2
    trace_training(worker)
    refuse_when_full(worker, "_locked")
    refuse_when_full(import_module("mambanorm.training.store"), "_write")
    refuse_when_full(import_module("mambanorm.training.observers"), "write_bytes")


def trace_training(worker) -> None:
    train, train_and_store = worker.train, worker._train_and_store

    def traced(config, **options):
        note("start", config.run_id)
        return train(config, checkpoint_every_s=CHECKPOINT_S, **options)

    def told(config, *more, **options):
        try:
            path = train_and_store(config, *more, **options)
        except OSError:
            note("failed", config.run_id)
            raise
        note("stored", config.run_id)
        return path

    worker.train, worker._train_and_store = traced, told


def refuse_when_full(module, name) -> None:
    """Where no small disk can be mounted, writing fails after half of the work while the file `full` is there."""
    write = getattr(module, name)

    def refused(*arguments):
        done = write(*arguments)
        if Path(os.environ[FOLDER], "full").exists():
            if name == "_locked":
                arguments[0].unlink()
                os.close(done)
            raise OSError(errno.ENOSPC, "No space left on device")
        return done

    setattr(module, name, refused)


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
        sys.exit(import_module("mambanorm.cli.main").main(arguments))
    import_module(f"distributed.cli.{command}").main(arguments)
