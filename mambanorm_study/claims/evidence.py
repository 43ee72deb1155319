"""Selection of runs from a run frame for the verdicts: each arm at one learning rate, with its
scores by seed.

Seeds below 52 and seeds 100 to 199 are tuning seeds: validation on them chooses the learning rate
of an arm. Seeds 52 to 99 are test seeds. A comparison without test runs is made on the tuning seeds
and is marked "not fresh". Runs are recognised by their run_id, so the frame may also hold runs with
other settings, in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from mambanorm_study.basics.settings import check_scale, default_scale
from mambanorm_study.claims.claim import NONE, Claim, Comparison
from mambanorm_study.runs.grid import FIRST_TEST_SEED, is_test_seed, is_tuning_seed, setting_id
from mambanorm_study.runs.presets import kind_of
from mambanorm_study.tables.experiments import LADDER, fixed_ids, inside_task, lr_grid, model_of
from mambanorm_study.tables.run_tables import check_frame, label
from mambanorm_study.tables.scores import REQUIRED_COLUMNS, scores
from mambanorm_study.tables.summaries import highest_lr_that_trains

# The version of PROTOCOL.md.
VERSION = 12

# The tuning seeds of recorded arms, and the tuning seeds of arms that are not recorded.
RECORDED_TUNING_SEEDS, NEW_TUNING_SEEDS = tuple(range(40, 52)), (100, 101, 102, 103)


def tasks_of(claim: Claim, tasks: Iterable[str], scale: str) -> list[str]:
    """Return those of the given tasks that the claim is about, each listed once."""
    unique_tasks = dict.fromkeys(tasks)
    if claim.runs == "tuned":
        return [task for task in unique_tasks if kind_of(task) == claim.kind]
    return [task for task in unique_tasks if task == inside_task(scale)]


@dataclass(frozen=True, eq=False)
class Runs:
    """The runs of several arms on the seeds that all of these arms have.

    lrs: the learning rate of each arm; () for claims with fixed learning rates. columns: column of
    `scores` → its values (arms, seeds). missing: why there are no runs; "" if there are runs.
    """

    arms: tuple[str, ...]
    seeds: tuple[int, ...] = ()
    lrs: tuple[float, ...] = ()
    columns: Mapping[str, np.ndarray] | None = None
    missing: str = ""

    @property
    def fresh(self) -> bool:
        """True if all runs are on test seeds and no earlier version of the protocol has judged
        them.
        """
        return all(map(is_test_seed, self.seeds)) and not (self.columns["protocol"] < VERSION).any()

    def failure_counts(self) -> dict[str, tuple[int, int]]:
        """Return for each arm a pair: how many of its runs diverged, and how many it has."""
        counts = self.columns["diverged"].sum(axis=1).astype(int).tolist()
        return {arm: (count, len(self.seeds)) for arm, count in zip(self.arms, counts, strict=True)}

    def differences(self, comparison: Comparison) -> np.ndarray:
        """Return a comparison's difference for each seed; NaN where a run has no value in the
        compared column, and an empty array if there are no runs.
        """
        if self.missing:
            return np.empty(0)
        if comparison.column == "range":
            return np.ptp(self.columns["score"], axis=0)
        weights = np.array([comparison.weights.get(arm, 0.0) for arm in self.arms])
        return comparison.offset + weights @ self.columns[comparison.column]


class Evidence:
    """The runs of a run frame that `judge` uses, by arm, task and learning rate.

    frame: a run frame, or an Evidence of the same scale, whose runs are then shared instead of read
    again. tuning: compare arms on the tuning seeds, as the protocol's predictions do. changes: use
    runs whose settings differ from the scale's in these fields, such as dict(n_layers=8). Raises
    ValueError for a frame with several scales, unless `scale` names one of them.
    """

    def __init__(
        self,
        frame: pd.DataFrame | Evidence | None,
        scale: str | None = None,
        *,
        tuning: bool = False,
        changes: Mapping[str, Any] | None = None,
    ):
        self.tuning, self.changes = False, ()
        if isinstance(frame, Evidence) and scale in (None, frame.scale):
            vars(self).update(vars(frame))
        else:
            self._read(frame, scale)
        self.tuning = self.tuning or tuning
        if changes is not None:
            self.changes = tuple(sorted(changes.items()))

    def _read(self, frame: pd.DataFrame | None, scale: str | None) -> None:
        if frame is None or getattr(frame, "empty", False):
            frame = pd.DataFrame(columns=REQUIRED_COLUMNS)
        else:
            check_frame(frame, REQUIRED_COLUMNS)
        scales = sorted(set(frame.scale)) or [default_scale()]
        if scale is not None:
            scales = [check_scale(scale)]
        if len(scales) > 1:
            raise ValueError(
                f"the frame mixes the scales {' and '.join(scales)}: name one with scale="
            )
        self.scale = scales[0]
        self.runs = scores(frame, self.scale)
        self.tasks = sorted(set(self.runs.task))
        self._runs_of_arm: dict[tuple, pd.DataFrame] = {}
        self._tuned: dict[tuple, pd.DataFrame] = {}

    def seeds(self, task: str) -> tuple[int, ...]:
        """Return all seeds on which the frame has runs of a task."""
        return tuple(sorted(set(self.runs.seed[self.runs.task == task].astype(int))))

    def of_arm(self, arm: str, task: str, changes: tuple = ()) -> pd.DataFrame:
        """Return an arm's runs at all learning rates. In all other fields the runs have the scale's
        settings with `changes`.
        """
        key = (arm, task, changes)
        if key not in self._runs_of_arm:
            runs = self.runs[(self.runs.task == task) & (self.runs.arm == arm)]
            ids = [
                setting_id(task, self.scale, arm, float(run.lr), int(run.seed), changes)
                for run in runs.itertuples()
            ]
            self._runs_of_arm[key] = runs[runs.run_id == ids]
        return self._runs_of_arm[key]

    # the learning rate of an arm

    def validation_scores(self, arm: str, task: str) -> pd.DataFrame:
        """Return the validation scores that choose an arm's learning rate: one row for each tuning
        seed that was run at every learning rate of the grid, one column for each learning rate at
        which all of these seeds were run.

        If no tuning runs with `changes` exist, tuning runs with the scale's own settings are used.
        """
        key = (arm, task, self.changes)
        if key not in self._tuned:
            table = self._validation(arm, task, self.changes)
            self._tuned[key] = table if len(table) else self._validation(arm, task, ())
        return self._tuned[key]

    def _validation(self, arm: str, task: str, changes: tuple) -> pd.DataFrame:
        runs = self.of_arm(arm, task, changes)
        runs = runs[runs.seed.map(is_tuning_seed).astype(bool)]
        table = runs.pivot(index="seed", columns="lr", values="validation")
        grid = table.reindex(columns=list(lr_grid(task, self.scale, model_of([arm]))))
        table = table.loc[grid.dropna().index]
        # If the table has recorded tuning seeds, the learning rate is chosen on these alone: a
        # reader's runs must not change the learning rate of a recorded arm.
        for is_recorded in (table.index.isin(RECORDED_TUNING_SEEDS), table.index < FIRST_TEST_SEED):
            if is_recorded.any():
                return table[is_recorded].dropna(axis=1)
        return table.dropna(axis=1)

    def lr(self, arm: str, task: str, rank: int = 0) -> float | None:
        """Return the learning rate of an arm with the best mean validation score on the tuning
        seeds (rank 0), or with the second-best mean (rank 1); None if the arm has no such rate.

        A diverged run counts as chance. Of equally good learning rates the smaller one is returned.
        """
        means = self.validation_scores(arm, task).mean().dropna().round(9)
        best_first = means.sort_values(ascending=False, kind="stable").index
        return float(best_first[rank]) if len(best_first) > rank else None

    # the runs of several arms

    def of_arms(self, arms: Iterable[str], task: str, rank: int = 0) -> Runs:
        """Return the runs of these tuned arms, each arm at its best learning rate (rank 0) or at
        its second-best learning rate (rank 1). The seeds are those of `at_lrs`.
        """
        arms = tuple(arms)
        if task not in self.tasks:
            return Runs(arms, missing="not run")
        lrs = {arm: self.lr(arm, task, rank) for arm in arms}
        untuned = [label(arm) for arm, lr in lrs.items() if lr is None]
        if untuned:
            return Runs(arms, missing=f"not tuned: {', '.join(untuned)}")
        return self.at_lrs(arms, list(lrs.values()), task)

    def at_lrs(self, arms: Iterable[str], lrs: Sequence[float], task: str) -> Runs:
        """Return the runs of these arms, each at its learning rate in `lrs`, on the test seeds that
        all of the arms have. If the arms share no test seed, their shared tuning seeds are used.
        """
        arms = tuple(arms)
        of_arms = [self.of_arm(arm, task, self.changes) for arm in arms]
        runs = [of_arm[of_arm.lr == lr] for of_arm, lr in zip(of_arms, lrs, strict=True)]
        seeds = _shared_seeds(runs)
        test_seeds = set(filter(is_test_seed, seeds))
        if self.tuning or not test_seeds:
            return _aligned(arms, runs, set(filter(is_tuning_seed, seeds)), lrs)
        return _aligned(arms, runs, test_seeds, lrs)

    def of_claim(self, claim: Claim, arms: Iterable[str], task: str) -> Runs:
        """Return the runs of the given arms of a claim on a task."""
        arms = tuple(arms)
        if claim.runs == "tuned" or task not in self.tasks:
            return self.of_arms(arms, task)
        ids = fixed_ids(claim.runs, claim.arms, self.scale, self.seeds(task))
        claim_runs = self.runs[self.runs.run_id.isin(ids)]
        runs = [claim_runs[claim_runs.arm == arm] for arm in arms]
        if claim.runs == "ladder":
            runs = [self._best_runs_on_ladder(runs_of_arm, task) for runs_of_arm in runs]
        seeds = _shared_seeds(runs)
        if claim.runs in ("growth", "failing"):  # claims about what precedes failures of None→None
            failed = claim_runs[(claim_runs.arm == NONE) & (claim_runs.diverged == 1)]
            if seeds and seeds.isdisjoint(failed.seed):
                return Runs(arms, missing="the failure did not occur in any seed")
            seeds &= set(failed.seed)
        return _aligned(arms, runs, seeds)

    def _best_runs_on_ladder(self, runs: pd.DataFrame, task: str) -> pd.DataFrame:
        """Return, for each seed that was run at every learning rate of LADDER, the run with the
        best test accuracy. The additional column `reach` has log₁₀ of the highest learning rate
        that trains the model on this seed.
        """
        lrs = lr_grid(task, self.scale, factors=LADDER)
        rows = []
        for _, runs_of_seed in runs.sort_values("lr").groupby("seed"):
            if len(runs_of_seed) == len(lrs):
                score, chance = runs_of_seed.score, runs_of_seed.chance.max()
                reach = highest_lr_that_trains(score.to_numpy(), chance, lrs)
                rows.append(runs_of_seed.loc[[score.idxmax()]].assign(reach=reach))
        return pd.concat(rows) if rows else runs.iloc[:0].assign(reach=np.nan)


def _shared_seeds(runs: Sequence[pd.DataFrame]) -> set[int]:
    return set.intersection(*(set(runs_of_arm.seed) for runs_of_arm in runs))


def _aligned(
    arms: tuple[str, ...], runs: list[pd.DataFrame], seeds: set[int], lrs: Sequence[float] = ()
) -> Runs:
    """Return the given runs, one frame per arm, as a `Runs` object on these seeds, with arrays of
    shape (arms, seeds).
    """
    if not seeds:
        missing_arms = [label(arm) for arm, of_arm in zip(arms, runs, strict=True) if of_arm.empty]
        if missing_arms:
            return Runs(arms, missing=f"not run: {', '.join(missing_arms)}")
        return Runs(arms, missing="no seed has all of these runs")
    sorted_seeds = sorted(map(int, seeds))
    rows = [of_arm.set_index("seed").loc[sorted_seeds] for of_arm in runs]
    columns = {}
    for name in rows[0].columns.drop(["task", "arm"]):
        dtype = object if name == "run_id" else float
        columns[name] = np.stack([of_arm[name].to_numpy(dtype) for of_arm in rows])
    return Runs(arms, tuple(sorted_seeds), tuple(lrs), columns)
