"""How a group is timed: its cases in turn, several times over, the slow ones as often as the budget
allows.

A peer, and the reference loop, first runs at an eighth and at a quarter of its length; what it
would take at its own is judged from these. One that would take longer than the budget is skipped,
with that as its reason, unless everything is asked for; then it runs once. What the memory of a
case is, a child process finds out before anything is timed here: if a case needs more than there
is, only the child dies, and if it takes longer than was judged, that is known in time.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmarks.cases import Case, Group
from benchmarks.peers import Bind, Missing, Run, prepare
from benchmarks.runs import seconds_of, whole_runs
from mambanorm.kernels.threads import set_threads
from mambanorm_study.basics.settings import ROOT

SHORTEST = 16  # lengths below this are not worth judging by
ROUNDS = 3  # of whole runs at most: a round is several seconds a task
START_S = 60  # a child process may take this long to import and to compile


@dataclass(frozen=True)
class Limits:
    """How much is measured: repeats of a case, seconds of a slow case at most, skipping nothing,
    memory too."""

    repeats: int = 11
    budget: float = 25.0
    full: bool = False
    weigh: bool = True

    def forbid(self, seconds: float) -> bool:
        return seconds > self.budget and not self.full


class TooSlow(Exception):
    """A case that does not fit into the budget."""

    def __init__(self, takes: str, limits: Limits):
        super().__init__(f"{takes} a run, the budget is {limits.budget:g} s: --full measures it")


@dataclass(frozen=True)
class Plan:
    """One case made ready: what to run, how often, and whether a first, uncounted round is within
    the budget."""

    run: Run
    count: int
    warm: bool


def measure(group: Group, limits: Limits) -> list[dict]:
    """One row per case: its size, status, times, ratios to every other case of the group, peak
    memory."""
    set_threads(group.cases[0].threads)
    if group.section == "runs":
        return [_runs_row(group, case, limits) for case in group.cases]
    rows, plans = [], []
    for case in group.cases:
        row, plan = _ready(case, limits)
        rows.append({"section": group.section, "group": group.title} | row)
        plans.append(plan)
    taken = in_turn([plan for plan in plans if plan])
    for row, plan in zip(rows, plans, strict=True):
        if plan:
            row |= summary(taken.pop(0))
    return with_ratios(rows)


def _ready(case: Case, limits: Limits) -> tuple[dict, Plan | None]:
    """A case's row without times, and its plan unless it cannot or shall not be timed."""
    row = {
        "name": case.name,
        "shape": list(case.shape),
        "threads": case.threads,
        "status": "ok",
        "note": "",
    }
    row |= summary([]) | {"peak_mb": None}
    try:
        bind = prepare(case)
        seconds = judge(bind, case.batch, case.length, limits) if case.may_be_slow else 0.0
        if limits.forbid(seconds):  # it may only have been a busy moment
            seconds = min(seconds, judge(bind, case.batch, case.length, limits))
        if limits.weigh and case.has_weight and not limits.forbid(seconds):
            row["peak_mb"], alone = weigh(case, limits)
            seconds = max(seconds, alone) if case.may_be_slow else seconds
        if limits.forbid(seconds):
            raise TooSlow(f"about {seconds:,.0f} s", limits)
        return row, Plan(bind(case.batch, case.length), *repeats(seconds, limits))
    except TooSlow as slow:
        return row | {"status": "skipped", "note": str(slow)}, None
    except Missing as missing:
        return row | {"status": "missing", "note": str(missing)}, None
    except Exception as error:
        if not case.is_peer:
            raise
        return row | {"status": "failed", "note": f"{type(error).__name__}: {error}"}, None


def _runs_row(group: Group, case: Case, limits: Limits) -> dict:
    """The row of a whole run, judged by short ones, and how many of them all processes train in an
    hour."""
    found = summary(whole_runs(case, min(limits.repeats, ROUNDS)))
    row = {
        "section": group.section,
        "group": group.title,
        "name": case.name,
        "shape": list(case.shape),
    }
    row |= {"threads": case.threads, "status": "ok", "note": "", "ratios": {}} | found
    return row | {"peak_mb": None, "runs_per_hour": case.processes * 3.6e6 / found["median_ms"]}


def judge(bind: Bind, batch: int, length: int, limits: Limits) -> float:
    """Seconds that one run will take, judged by shorter ones: time ~ length^p, where p is 1 to 2 as
    the two show.

    Two shorter runs are enough to see that a loop whose backward pass copies the whole sequence at
    each position grows with the square of the length.
    """
    bind(max(2, min(batch, 4)), SHORTEST)()  # what is built only once is not judged
    lengths = [length // 8, length // 4]
    if lengths[0] < SHORTEST:
        return seconds_of(bind(batch, length))
    first = seconds_of(bind(batch, lengths[0]))
    if limits.forbid(8 * first):
        return 8 * first  # even if it only grew with the length
    second = seconds_of(bind(batch, lengths[1]))
    power = min(max(math.log(second / first, lengths[1] / lengths[0]), 1.0), 2.0)
    return second * (length / lengths[1]) ** power


def repeats(seconds: float, limits: Limits) -> tuple[int, bool]:
    """How often a case is timed, at least once, and whether it is warmed up before: within the
    budget."""
    affordable = limits.budget / seconds if seconds else math.inf
    warm = affordable >= 2
    return max(1, int(min(limits.repeats, affordable - warm))), warm


def in_turn(plans: Sequence[Plan]) -> list[list[float]]:
    """Seconds of each run, the plans taken in turn; those with fewer runs drop out of the later
    rounds."""
    for plan in plans:
        if plan.warm:
            plan.run()
    times: list[list[float]] = [[] for _ in plans]
    for turn in range(max((plan.count for plan in plans), default=0)):
        for plan, taken in zip(plans, times, strict=True):
            if turn < plan.count:
                taken.append(seconds_of(plan.run))
    return times


def summary(seconds: Sequence[float]) -> dict:
    """Median and quartiles in ms, and every time; None where there is none. One time has no
    spread."""
    ms = [1e3 * value for value in seconds]
    low, high = (
        statistics.quantiles(ms, n=4, method="inclusive")[::2] if len(ms) > 1 else (None, None)
    )
    median = statistics.median(ms) if ms else None
    return {"repeats": len(ms), "median_ms": median, "low_ms": low, "high_ms": high, "times_ms": ms}


def with_ratios(rows: list[dict]) -> list[dict]:
    """Adds `ratios` (its median by that of each other name of the group) and the cost per token to
    every row."""
    for row in rows:
        others = [
            other for other in rows if other is not row and row["median_ms"] and other["median_ms"]
        ]
        alike = [other for other in others if other["shape"] == row["shape"]]
        row["ratios"] = {other["name"]: row["median_ms"] / other["median_ms"] for other in alike}
        tokens = row["shape"][0] * row["shape"][1]
        row["us_per_token"] = 1e3 * row["median_ms"] / tokens if row["median_ms"] else None
        row["kb_per_token"] = 1e3 * row["peak_mb"] / tokens if row["peak_mb"] is not None else None
    return rows


def weigh(case: Case, limits: Limits) -> tuple[float, float]:
    """Peak memory of one run in MB and its seconds, from a child process.

    Raises TooSlow if the child is far above the budget, ChildProcessError if it did not come
    through.
    """
    patience = START_S + 2 * limits.budget if case.may_be_slow and not limits.full else None
    command = [sys.executable, "-m", "benchmarks.memory", json.dumps(asdict(case))]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patience)
    except subprocess.TimeoutExpired:
        raise TooSlow(f"more than {2 * limits.budget:g} s", limits) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ChildProcessError(
            f"the process that weighs {case.name} at {case.shape} did not come through: {last}"
        )
    return tuple(json.loads(done.stdout.strip().splitlines()[-1]))
