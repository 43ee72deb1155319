"""A run frame as verdicts read it: each arm at one learning rate, and its numbers seed by seed.

Seeds below 52 and seeds 100 to 199 tune: among them the learning rate of an arm is chosen by
validation. Seeds 52 to 99 test. A comparison without test runs is read on the tuning seeds, and is
marked "not fresh". Runs are recognised by their run_id, so neither the order of the rows nor runs
of other settings matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from mambanorm_study.basics.checks import check_kind
from mambanorm_study.basics.settings import check_scale, default_scale
from mambanorm_study.claims.claim import NONE, Claim, Comparison
from mambanorm_study.runs.grid import FIRST_TEST_SEED, is_test_seed, is_tuning_seed, setting_id
from mambanorm_study.runs.presets import kind_of
from mambanorm_study.tables.experiments import fixed_ids, inside_task, ladder, lr_grid, model_of
from mambanorm_study.tables.scores import SCORED, scores
from mambanorm_study.tables.summaries import highest_rate_that_trains
from mambanorm_study.tables.tables import check_frame, label

# The version of the protocol.
VERSION = 12

# The tuning seeds of the recorded results, and of arms that are not recorded.
RECORDED_TUNING_SEEDS, NEW_TUNING_SEEDS = tuple(range(40, 52)), (100, 101, 102, 103)


def tasks_of(claim: Claim, tasks: Iterable[str], scale: str) -> list[str]:
    """Return those of the tasks that the claim is about."""
    if claim.runs != "tuned":
        return [task for task in dict.fromkeys(tasks) if task == inside_task(scale)]
    return [task for task in dict.fromkeys(tasks) if kind_of(task) == claim.kind]


@dataclass(frozen=True, eq=False)
class Runs:
    """The runs of some arms on the seeds that all of them have. `missing`: why there are none; ""
    if there are some."""

    arms: tuple[str, ...]
    seeds: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    columns: Mapping[str, np.ndarray] | None = None  # each (arms, seeds), as in `study.scores`
    missing: str = ""

    @property
    def fresh(self) -> bool:
        """True for test runs on which no earlier version of the protocol was read."""
        return all(map(is_test_seed, self.seeds)) and not (self.columns["protocol"] < VERSION).any()

    def failed(self) -> dict[str, tuple[int, int]]:
        """Return arm → how many of its runs diverged, of how many."""
        return {
            arm: (int(of.sum()), len(of))
            for arm, of in zip(self.arms, self.columns["diverged"], strict=True)
        }

    def total(self, comparison: Comparison) -> np.ndarray:
        """Return the comparison's difference, one a seed; NaN on seeds where a run lacks the
        number."""
        if self.missing:
            return np.empty(0)
        if comparison.column == "range":
            return np.ptp(self.columns["score"], axis=0)
        weights = np.array([comparison.weights[arm] for arm in self.arms])
        return comparison.offset + weights @ self.columns[comparison.column]


class Evidence:
    """A run frame as `judge` reads it; an Evidence given as `frame` is not read again.

    tuning: read every comparison on the tuning seeds, as predictions do. changes: fields in which
    the runs differ from those of the scale, such as dict(n_layers=8). None: as the given Evidence.
    ValueError for a frame that mixes scales unless `scale` names one.
    """

    def __init__(
        self,
        frame: pd.DataFrame | Evidence | None,
        scale: str | None = None,
        *,
        tuning: bool | None = None,
        changes: Mapping[str, Any] | None = None,
    ):
        self.tuning, self.changes = False, ()
        if isinstance(frame, Evidence) and scale in (None, frame.scale):
            self.__dict__ |= frame.__dict__
        else:
            self._read(frame, scale)
        self.tuning = self.tuning if tuning is None else tuning
        self.changes = self.changes if changes is None else tuple(sorted(changes.items()))

    def _read(self, frame: pd.DataFrame | None, scale: str | None) -> None:
        check_kind("frame", pd.DataFrame() if frame is None else frame, pd.DataFrame, "load_runs")
        frame = pd.DataFrame(columns=SCORED) if frame is None or len(frame) == 0 else frame
        if len(frame):
            check_frame(frame, SCORED)
        scales = sorted(set(frame.scale))
        if scale is None and len(scales) > 1:
            raise ValueError(
                f"the frame mixes the scales {' and '.join(scales)}: name one with scale="
            )
        self.scale = (
            check_scale(scale) if scale is not None else scales[0] if scales else default_scale()
        )
        self.runs = scores(frame, self.scale)
        self.tasks = sorted(set(self.runs.task))
        self._by_arm = dict(iter(self.runs.groupby(["task", "arm"])))
        self._of_arm: dict[tuple, pd.DataFrame] = {}
        self._tuned: dict[tuple, pd.DataFrame] = {}

    def on_tuning_seeds(self) -> Evidence:
        """Return the same evidence, read on the tuning seeds."""
        return Evidence(self, tuning=True)

    def seeds(self, task: str) -> tuple[int, ...]:
        """Return every seed of a task in the frame."""
        return tuple(sorted(set(self.runs.seed[self.runs.task == task].astype(int))))

    def of_arm(self, arm: str, task: str, changes: tuple = ()) -> pd.DataFrame:
        """Return an arm's runs, at every learning rate, that differ from the scale's setting in
        `changes` alone."""
        if (key := (arm, task, changes)) not in self._of_arm:
            runs = self._by_arm.get((task, arm), self.runs.iloc[:0])
            ids = [
                setting_id(task, self.scale, arm, float(run.lr), int(run.seed), changes)
                for run in runs.itertuples()
            ]
            self._of_arm[key] = runs[runs.run_id == ids]
        return self._of_arm[key]

    # the learning rate of an arm

    def tuned(self, arm: str, task: str) -> pd.DataFrame:
        """Return an arm's validation: one row for each tuning seed that has every rate of the grid,
        one column for each learning rate that all of these seeds have.

        Runs with `changes` that were not tuned themselves take the rate of the scale's own setting.
        """
        if (key := (arm, task, self.changes)) not in self._tuned:
            own = self._validation(arm, task, self.changes)
            self._tuned[key] = own if len(own) else self._validation(arm, task, ())
        return self._tuned[key]

    def _validation(self, arm: str, task: str, changes: tuple) -> pd.DataFrame:
        runs = self.of_arm(arm, task, changes)
        runs = runs[runs.seed.map(is_tuning_seed).astype(bool)]
        table = runs.pivot(index="seed", columns="lr", values="validation")
        grid = table.reindex(columns=list(lr_grid(task, self.scale, model_of([arm]))))
        table = table.loc[grid.dropna().index]
        recorded, old = table.index.isin(RECORDED_TUNING_SEEDS), table.index < FIRST_TEST_SEED
        # a reader's runs do not move the rate that the recorded seeds have chosen
        table = table[recorded if recorded.any() else old if old.any() else ~old]
        return table.dropna(axis=1)

    def rate(self, arm: str, task: str, rank: int = 0) -> float | None:
        """Return the learning rate with the best mean validation accuracy on the tuning seeds
        (`rank` 1: the second best); None without one. A diverged run counts as chance; of equal
        rates the smaller one wins."""
        means = (
            self.tuned(arm, task)
            .mean()
            .dropna()
            .round(9)
            .sort_values(ascending=False, kind="stable")
        )
        return float(means.index[rank]) if len(means) > rank else None

    # the runs of arms at their rates

    def of_arms(self, arms: Iterable[str], task: str, rank: int = 0) -> Runs:
        """Return the runs of these arms on the test seeds, each arm at its rate (`rank` 1: at its
        second best rate)."""
        arms = tuple(arms)
        if task not in self.tasks:
            return Runs(arms, missing="not run")
        rates = [self.rate(arm, task, rank) for arm in arms]
        if untuned := [label(arm) for arm, rate in zip(arms, rates, strict=True) if rate is None]:
            return Runs(arms, missing=f"not tuned: {', '.join(untuned)}")
        return self.at_rates(arms, rates, task)

    def at_rates(self, arms: Iterable[str], rates: Sequence[float], task: str) -> Runs:
        """Return the runs of these arms at these rates: on the test seeds that all of them have, or
        else on the tuning seeds."""
        arms = tuple(arms)
        runs = [self.of_arm(arm, task, self.changes) for arm in arms]
        runs = [of[of.lr == rate] for of, rate in zip(runs, rates, strict=True)]
        seeds = set.intersection(*(set(of.seed) for of in runs))
        test = {seed for seed in seeds if is_test_seed(seed)}
        tuning = {seed for seed in seeds if is_tuning_seed(seed)}
        return self._aligned(arms, runs, test if test and not self.tuning else tuning, rates)

    def of_claim(self, claim: Claim, arms: Iterable[str], task: str) -> Runs:
        """Return the runs of some arms of a claim on a task."""
        arms = tuple(arms)
        if claim.runs == "tuned" or task not in self.tasks:
            return self.of_arms(arms, task)
        known = self.runs[
            self.runs.run_id.isin(fixed_ids(claim.runs, claim.arms, self.scale, self.seeds(task)))
        ]
        if claim.runs == "ladder":
            runs = [self._ladder(known[known.arm == arm], task) for arm in arms]
        else:
            runs = [known[known.arm == arm] for arm in arms]
        seeds = set.intersection(*(set(of.seed) for of in runs))
        if claim.runs in ("growth", "failing"):  # about what precedes the failure of None→None
            failed = set(known.seed[(known.arm == NONE) & (known.diverged == 1)])
            if seeds and not seeds & failed:
                return Runs(arms, missing="the failure did not occur in any seed")
            seeds &= failed
        return self._aligned(arms, runs, seeds)

    def _aligned(
        self,
        arms: tuple[str, ...],
        runs: list[pd.DataFrame],
        seeds: set,
        rates: Sequence[float] = (),
    ) -> Runs:
        if not seeds:
            absent = [label(arm) for arm, of in zip(arms, runs, strict=True) if of.empty]
            return Runs(
                arms,
                missing=f"not run: {', '.join(absent)}"
                if absent
                else "no seed has all of these runs",
            )
        seeds = sorted(map(int, seeds))
        rows = [of.set_index("seed").loc[seeds].drop(columns=["task", "arm"]) for of in runs]
        values = np.stack([of.to_numpy(object) for of in rows])  # (arms, seeds, columns)
        columns = {name: values[..., i] for i, name in enumerate(rows[0])}
        columns = {
            name: of if name == "run_id" else of.astype(float) for name, of in columns.items()
        }
        return Runs(arms, tuple(seeds), tuple(rates), columns)

    def _ladder(self, runs: pd.DataFrame, task: str) -> pd.DataFrame:
        """Return one row a seed: the run at the rate with the best test accuracy, and how high the
        rate can be (`reach`, log₁₀)."""
        rates, rows = ladder(task, self.scale), []
        for _, of in runs.sort_values("lr").groupby("seed"):
            if len(of) == len(rates):
                reach = highest_rate_that_trains(of.score.to_numpy(), of.chance.max(), rates)
                rows.append(of.loc[[of.score.idxmax()]].assign(reach=reach))
        return pd.concat(rows) if rows else runs.iloc[:0].assign(reach=np.nan)
