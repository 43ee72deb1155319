"""Which fresh runs a study has time for: this machine's speed, measured before the training.

The speed on a task is the recorded time of one run divided by the time that this run is expected to
take here, after some of its training steps were timed (the probe). 1 is the speed of the machine
that recorded the results. The run store keeps the speeds and the time that earlier studies used.
"""

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from mambanorm_study.basics.atomic import write_text
from mambanorm_study.basics.text import number_text, plural, spell
from mambanorm_study.config import RunConfig, hash_of
from mambanorm_study.runs import machine, recorded_results
from mambanorm_study.runs.pace import default_seconds
from mambanorm_study.runs.store import check_store
from mambanorm_study.tables.plan import training_seconds

# The name of the file in a store that holds "speeds", machine → task → speed, and "minutes", hash
# of a study's fresh runs → minutes of training that earlier studies have used.
STUDY_FILE = ".study.json"

# Runs with equal values of these fields take about the same time.
SIZE = ["scale", "task", "arm", "n_layers", "d_model"]


@dataclass(frozen=True)
class Budget:
    """Expected times of the fresh runs, and the time in which as many of them as fit are trained.

    seconds: run_id → expected seconds of the run on this machine, in the order of training. limit:
    seconds of the training; None means no limit. spent: the seconds of the limit that earlier
    studies have used.
    """

    speed: float
    seconds: Mapping[str, float]
    workers: int
    limit: float | None
    spent: float = 0.0

    @property
    def ends(self) -> list[float]:
        """The expected seconds of training until each run has ended, earlier studies included."""
        return [self.spent + total / self.workers for total in accumulate(self.seconds.values())]

    @property
    def n_fit(self) -> int:
        """The number of runs that are expected to end within the limit."""
        return sum(end <= (math.inf if self.limit is None else self.limit) for end in self.ends)

    def sentence(self) -> str:
        """Return how fast this machine is, how many runs fit, and which option trains the rest."""
        end, n_runs = self.ends[-1], plural(len(self.seconds), "fresh run")
        speed = f"This machine trains at {number_text(self.speed)} × the recorded speed"
        if self.n_fit == len(self.seconds):
            return f"{speed}: {n_runs} in about {spell(end - self.spent)}"
        used = f", of which earlier studies have used {spell(self.spent)}" if self.spent else ""
        return (
            f"{speed}: about {self.n_fit} of {n_runs} fit in {spell(self.limit)}{used} "
            f"(--minutes {math.ceil(end / 60)} or --fresh all trains the rest, "
            f"about {spell(end - max(self.limit, self.spent))} more)"
        )


def plan_budget(
    configs: list[RunConfig],
    minutes: float | None,
    workers: int,
    runs_dir: str | Path | None,
    spent_minutes: float = 0.0,
) -> Budget:
    """Return the budget of these runs, which are trained in this order. Time the probes if the
    store has none of this machine.

    minutes: the time limit of the training. spent_minutes: the time that earlier studies used.
    """
    recorded = recorded_seconds(configs)
    speeds = _speeds({config.task: config for config in configs}, recorded, runs_dir)
    seconds = {c.run_id: recorded[c.run_id] / speeds[c.task] for c in configs}
    speed = sum(recorded.values()) / sum(seconds.values())
    limit = None if minutes is None else 60 * minutes
    return Budget(speed, seconds, max(1, workers), limit, 60 * spent_minutes)


def earlier_minutes(configs: Iterable[RunConfig], runs_dir: str | Path | None) -> float:
    """Return how many minutes of training earlier studies with these fresh runs have used."""
    return _read(runs_dir)["minutes"].get(_hash(configs), 0.0)


def save_minutes(configs: Iterable[RunConfig], minutes: float, runs_dir: str | Path | None) -> None:
    """Store how many minutes of training the studies with these fresh runs have used."""
    facts, key = _read(runs_dir), _hash(configs)
    facts["minutes"][key] = max(minutes, facts["minutes"].get(key, 0.0))
    _write(facts, runs_dir)


def _hash(configs: Iterable[RunConfig]) -> str:
    return hash_of(" ".join(sorted(config.run_id for config in configs)))


def _read(runs_dir: str | Path | None) -> dict[str, dict]:
    facts = {}
    with suppress(OSError, ValueError):  # no file, or a damaged one: it is written anew
        facts = json.loads((check_store(runs_dir) / STUDY_FILE).read_text("utf-8"))
    return {"speeds": {}, "minutes": {}} | facts


def _write(facts: dict[str, dict], runs_dir: str | Path | None) -> None:
    write_text(check_store(runs_dir) / STUDY_FILE, json.dumps(facts, indent=2))


def recorded_seconds(configs: Iterable[RunConfig]) -> dict[str, float]:
    """Return run_id → median time of the recorded runs of the same size on the same task; where
    none is recorded, a time in proportion to the run's `relative_cost`.
    """
    configs = list(configs)
    known: dict[tuple, float] = {}
    for scale in {config.scale for config in configs}:
        if recorded_results.recorded_path(scale).is_file():
            frame = recorded_results.recorded(scale)
            known |= frame[frame.status == "ok"].groupby(SIZE).wall_s.median().to_dict()
    sizes = {c.run_id: tuple(getattr(c, name) for name in SIZE) for c in configs}
    return {c.run_id: known.get(sizes[c.run_id]) or default_seconds(c) for c in configs}


def _speeds(
    probes: Mapping[str, RunConfig], recorded: Mapping[str, float], runs_dir: str | Path | None
) -> dict[str, float]:
    """Return task → speed of this machine on it. probes: task → run whose steps are timed.

    Speeds that are not in the store are measured and stored.
    """
    known = _read(runs_dir)["speeds"].get(machine.machine(), {})
    speeds = {
        task: known.get(task) or recorded[config.run_id] / training_seconds([config])
        for task, config in probes.items()
    }
    facts = _read(runs_dir)  # another study may have written it meanwhile
    facts["speeds"][machine.machine()] = known | speeds
    _write(facts, runs_dir)
    return speeds
