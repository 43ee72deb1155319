"""Estimates how long a sweep still takes, from the times of the runs that have ended."""

import time
from collections.abc import Iterable, Mapping

from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import relative_cost

# Seconds per unit of `relative_cost` on the machine that recorded the results.
SECONDS_PER_COST = 3.5e-6


def default_seconds(config: RunConfig) -> float:
    """Return about how long a run takes on the machine that recorded the results."""
    return SECONDS_PER_COST * relative_cost(config)


class Pace:
    """The expected time of each run, corrected by the measured times of the runs that have ended.

    expected: run_id → seconds that the run is expected to take; where it is missing,
    `default_seconds`. limit: seconds from now after which no run may end; None means no limit.
    """

    def __init__(
        self,
        configs: Iterable[RunConfig],
        expected: Mapping[str, float] | None = None,
        limit: float | None = None,
    ):
        default = {c.run_id: default_seconds(c) for c in configs}
        self.expected = {**default, **(expected or {})}
        self.limit, self.start = limit, time.monotonic()
        self._ended: dict[str, tuple[float, float]] = {}  # task → seconds: measured, expected

    def ended(self, config: RunConfig, seconds: float) -> None:
        """Take the time of a run that has ended into account. 0 means that it was not trained."""
        if seconds > 0:
            measured, expected = self._ended.get(config.task, (0.0, 0.0))
            self._ended[config.task] = measured + seconds, expected + self.expected[config.run_id]

    def seconds(self, config: RunConfig) -> float:
        """Return how long a run is expected to take on this machine, as busy as it is now."""
        times = [self._ended[config.task]] if config.task in self._ended else self._ended.values()
        measured, expected = (sum(time[n] for time in times) for n in (0, 1))
        return self.expected[config.run_id] * (measured / expected if expected else 1.0)

    def seconds_left(self, configs: Iterable[RunConfig], workers: int) -> float:
        """Return in how many seconds the sweep is expected to end: all of these runs have ended
        with this number of workers, or the limit is reached.
        """
        seconds = sum(map(self.seconds, configs)) / max(1, workers)
        return seconds if self.limit is None else max(0.0, min(seconds, self.limit - self._elapsed))

    def admits(self, config: RunConfig) -> bool:
        """Return True if a run that starts now is expected to end within the limit."""
        return self.limit is None or self._elapsed + self.seconds(config) <= self.limit

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self.start
