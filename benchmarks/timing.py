"""How a group is timed: its cases in turn, several times over, slow cases as often as the budget
allows.

A peer, and the reference loop, first runs at an eighth and at a quarter of its length; the time at
full length is estimated from these. A case above the budget is skipped, with that as its reason;
under `--full` it runs once. A child process measures the memory before anything is timed here: if a
case needs more memory than the machine has, only the child dies.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from benchmarks.cases import Case, Group
from benchmarks.peers import Bind, Missing, Run, prepare
from benchmarks.runs import seconds_of, whole_runs
from mambanorm.kernels.threads import set_threads
from mambanorm_study.basics.settings import ROOT

SHORTEST = 16  # shorter lengths give no useful estimate
MAX_ROUNDS = 3  # of whole runs: a round is several seconds a task
START_S = 60  # a child process may take this long to import and to compile


@dataclass(frozen=True)
class Limits:
    """How much is measured."""

    repeats: int = 11
    budget: float = 25.0  # seconds of a case that may be slow
    full: bool = False  # skip nothing
    memory: bool = True

    def exceeded_by(self, seconds: float) -> bool:
        """Return True if a case of so many seconds is skipped."""
        return seconds > self.budget and not self.full


@dataclass
class Row:
    """The measurement of one case: `shape` is (B, L, D, N), None is what was not measured."""

    section: str
    group: str
    name: str
    shape: tuple[int, int, int, int]
    threads: int
    status: str = "ok"  # or skipped, missing, failed, with the reason in `note`
    note: str = ""
    repeats: int = 0
    median_ms: float | None = None
    low_ms: float | None = None  # quartiles
    high_ms: float | None = None
    times_ms: list[float] = field(default_factory=list)
    peak_mb: float | None = None
    us_per_token: float | None = None
    kb_per_token: float | None = None
    ratios: dict[str, float] = field(default_factory=dict)  # its median over that of another case
    runs_per_hour: float | None = None

    def set_times(self, seconds: Sequence[float]) -> None:
        """Fill in median, quartiles and the cost per token. A single time has no quartiles."""
        self.times_ms = [1e3 * value for value in seconds]
        self.repeats, self.median_ms = len(seconds), statistics.median(self.times_ms)
        if self.repeats > 1:
            quartiles = statistics.quantiles(self.times_ms, n=4, method="inclusive")
            self.low_ms, _, self.high_ms = quartiles
        tokens = self.shape[0] * self.shape[1]
        self.us_per_token = 1e3 * self.median_ms / tokens
        if self.peak_mb is not None:
            self.kb_per_token = 1e3 * self.peak_mb / tokens


class TooSlow(Exception):
    """A case that does not fit into the budget."""

    def __init__(self, duration: str, limits: Limits):
        super().__init__(f"{duration} a run, the budget is {limits.budget:g} s: --full measures it")


@dataclass(frozen=True)
class Plan:
    """A case that is ready to be timed: what to run, how often, and whether to run it once before,
    uncounted.
    """

    run: Run
    count: int
    warm: bool


def measure(group: Group, limits: Limits) -> list[Row]:
    """Return one row for each case of the group."""
    set_threads(group.cases[0].threads)
    rows = [
        Row(group.section, group.title, case.name, case.shape, case.threads) for case in group.cases
    ]
    if group.section == "runs":
        for row, case in zip(rows, group.cases, strict=True):
            row.set_times(whole_runs(case, min(limits.repeats, MAX_ROUNDS)))
            row.runs_per_hour = case.processes * 3.6e6 / row.median_ms
        return rows
    plans = [make_plan(case, row, limits) for case, row in zip(group.cases, rows, strict=True)]
    timed_rows = [row for row, plan in zip(rows, plans, strict=True) if plan]
    times = in_turn([plan for plan in plans if plan])
    for row, seconds in zip(timed_rows, times, strict=True):
        row.set_times(seconds)
    for row in timed_rows:
        comparable = [r for r in timed_rows if r is not row and r.shape == row.shape]
        row.ratios = {other.name: row.median_ms / other.median_ms for other in comparable}
    return rows


def make_plan(case: Case, row: Row, limits: Limits) -> Plan | None:
    """Return how to time a case, or None if it is not timed. Fill in the row's memory, or why the
    case is not timed.
    """
    try:
        bind = prepare(case)
        seconds = estimate(bind, case.batch, case.length, limits) if case.may_be_slow else 0.0
        if limits.exceeded_by(seconds):  # perhaps only because the machine was busy
            seconds = min(seconds, estimate(bind, case.batch, case.length, limits))
        if limits.memory and case.has_memory and not limits.exceeded_by(seconds):
            row.peak_mb, child_seconds = memory_in_child(case, limits)
            seconds = max(seconds, child_seconds) if case.may_be_slow else seconds
        if limits.exceeded_by(seconds):
            raise TooSlow(f"about {seconds:,.0f} s", limits)
        affordable = limits.budget / seconds if seconds else math.inf
        warm = affordable >= 2
        count = max(1, int(min(limits.repeats, affordable - warm)))
        return Plan(bind(case.batch, case.length), count, warm)
    except TooSlow as error:
        row.status, row.note = "skipped", str(error)
    except Missing as error:
        row.status, row.note = "missing", str(error)
    except Exception as error:
        if not case.is_peer:
            raise
        row.status, row.note = "failed", f"{type(error).__name__}: {error}"
    return None


def estimate(bind: Bind, batch: int, length: int, limits: Limits) -> float:
    """Return the seconds that one run will take, estimated from two shorter ones: time ~ length^p,
    where p is between 1 and 2.

    Two lengths show whether the time grows with the square of the length, as it does for a loop
    whose backward pass copies the whole sequence at each position.
    """
    bind(max(2, min(batch, 4)), SHORTEST)()  # what is built only once is not counted
    lengths = [length // 8, length // 4]
    if lengths[0] < SHORTEST:
        return seconds_of(bind(batch, length))
    first = seconds_of(bind(batch, lengths[0]))
    if limits.exceeded_by(8 * first):
        return 8 * first  # even with p = 1
    second = seconds_of(bind(batch, lengths[1]))
    power = min(max(math.log(second / first, lengths[1] / lengths[0]), 1.0), 2.0)
    return second * (length / lengths[1]) ** power


def in_turn(plans: Sequence[Plan]) -> list[list[float]]:
    """Return the seconds of each plan's runs. The plans take turns; those with fewer runs leave the
    later rounds.
    """
    for plan in plans:
        if plan.warm:
            plan.run()
    times: list[list[float]] = [[] for _ in plans]
    for turn in range(max((plan.count for plan in plans), default=0)):
        for plan, seconds in zip(plans, times, strict=True):
            if turn < plan.count:
                seconds.append(seconds_of(plan.run))
    return times


def memory_in_child(case: Case, limits: Limits) -> tuple[float | None, float]:
    """Return the peak memory of one run in MB and its seconds, measured in a child process.

    Raises TooSlow if the child is far above the budget, ChildProcessError if it fails.
    """
    timeout = START_S + 2 * limits.budget if case.may_be_slow and not limits.full else None
    command = [sys.executable, "-m", "benchmarks.memory", json.dumps(asdict(case))]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise TooSlow(f"more than {2 * limits.budget:g} s", limits) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        process = f"the process that measures the memory of {case.name} at {case.shape}"
        raise ChildProcessError(f"{process} failed: {last}")
    peak_mb, seconds = json.loads(done.stdout.strip().splitlines()[-1])
    return peak_mb, seconds
