"""Run cases of benchmarks.gpu in processes beside each other, to compile the kernels, which takes
most of the time on a fresh machine, and to check what is not timed.

A case that crashes its process, or that does not end, gives a failed row.
"""

from __future__ import annotations

import gc
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import TypeVar

import torch

from mambanorm_study.runs.machine import cores

MOST_WORKERS = 14  # each of them holds about half a gigabyte of the GPU's memory
CASE_SECONDS = 120  # a case that takes longer is given up; starting its process is not counted

# a case's name, and the function that measures it and returns the columns of its row
Cases = Iterator[tuple[str, Callable[[], dict]]]


# the columns of a case for which no time was left
NO_TIME = {"status": "skipped", "note": "no time was left", "took_s": 0.0}

Key = TypeVar("Key")


@dataclass(frozen=True)
class Setting:
    """Settings of a measurement.

    tiny: with tiny sizes. seconds: measuring time of each timed case; 0 means a single call.
    """

    device: torch.device
    tiny: bool = False
    seconds: float = 0.3


@dataclass(frozen=True)
class Outcome:
    """The columns of one case's row.

    is_fatal: the case ended its process, broke its CUDA context, or did not end.
    """

    columns: dict
    is_fatal: bool = False


class ErrorTooLarge(AssertionError):
    """An error above its limit. `row` holds the numbers."""

    def __init__(self, row: dict):
        super().__init__(f"the error is {row['error']:.2g}, allowed is {row['allowed']:.2g}")
        self.row = row


def attempt(work: Callable[[], dict]) -> dict:
    """Return the columns of `work()`, with status (ok, missing or failed), note and took_s."""
    begin = time.monotonic()
    try:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # of the case before
        columns = {"status": "ok", "note": "", **work()}
    except ErrorTooLarge as error:
        columns = {"status": "failed", "note": str(error), **error.row}
    except ImportError as error:  # a peer
        columns = {"status": "missing", "note": first_line(error)}
    except Exception as error:  # the remaining cases must still run
        columns = {"status": "failed", "note": f"{type(error).__name__}: {first_line(error)}"}
    return {**columns, "took_s": time.monotonic() - begin}


def first_line(error: Exception) -> str:
    """Return the first line of an error's text: a compiler adds a page."""
    return str(error).strip().partition("\n")[0][:300]


def run_in_parallel(
    tasks: dict[Key, tuple[Callable[[Setting], Cases], str]], setting: Setting, deadline: float
) -> Iterator[tuple[Key, Outcome]]:
    """Run cases in several processes, each timed case as a single call. Yield each case's key and
    outcome when it ends.

    tasks: key → the function that yields the cases of a part, and a case's name. deadline: value of
    `time.monotonic()` after which no case starts; a case that still runs then is skipped.
    """
    local, workers = threading.local(), []

    def run(cases: Callable[[Setting], Cases], name: str) -> Outcome:
        if time.monotonic() >= deadline:
            return Outcome(NO_TIME)
        if getattr(local, "worker", None) is None:
            local.worker = Worker(replace(setting, seconds=0))
            workers.append(local.worker)
        outcome = local.worker.run(cases, name, deadline)
        if not outcome.is_fatal:
            return outcome
        local.worker.stop()
        local.worker = None
        return Outcome(NO_TIME) if time.monotonic() >= deadline else outcome

    threads = ThreadPoolExecutor(min(cores(), MOST_WORKERS))
    try:
        futures = {threads.submit(run, *task): key for key, task in tasks.items()}
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.stop()


class Worker:
    """A process that runs one case after another."""

    def __init__(self, setting: Setting):
        context = multiprocessing.get_context("spawn")
        self.pipe, other_end = context.Pipe()
        self.process = context.Process(target=serve, args=(other_end, setting), daemon=True)
        self.process.start()
        other_end.close()  # so that this process notices when the worker ends

    def run(self, cases: Callable[[Setting], Cases], name: str, deadline: float) -> Outcome:
        """Return the outcome of a case that may take CASE_SECONDS, but not beyond the deadline."""
        begin = time.monotonic()
        try:
            self.pipe.send((cases, name))
            if self._has_message(deadline):
                self.pipe.recv()  # the case has started
                begin = time.monotonic()
                if self._has_message(min(deadline, begin + CASE_SECONDS)):
                    return self.pipe.recv()
            note = f"no result after {time.monotonic() - begin:.0f} s"
        except (EOFError, OSError):
            self.process.join(10)
            note = f"the process of the case ended with exit code {self.process.exitcode}"
        took_s = time.monotonic() - begin
        return Outcome({"status": "failed", "note": note, "took_s": took_s}, is_fatal=True)

    def _has_message(self, until: float) -> bool:
        """Wait for a message. Return False if none has come by then."""
        return self.pipe.poll(max(0.0, until - time.monotonic()))

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()


def serve(pipe: Connection, setting: Setting) -> None:
    """Run the cases that come through a pipe, and send their outcomes back."""
    torch.set_num_threads(1)
    while True:
        try:
            cases, name = pipe.recv()
        except EOFError:  # the main process has ended
            return
        pipe.send("started")
        columns = attempt(dict(cases(setting))[name])
        is_fatal = columns["status"] == "failed" and is_broken(setting.device)
        pipe.send(Outcome(columns, is_fatal))


def is_broken(device: torch.device) -> bool:
    """Return True if an earlier kernel has broken this process's CUDA context."""
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False
