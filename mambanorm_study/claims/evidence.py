"""Selects the runs for the verdicts from a run frame (a DataFrame with one row per run): each arm
at one learning rate, with one score for each seed.

An arm is a choice of norms, e.g. RMSN>SSM>GN: RMSN before the SSM, and GN after it. Seeds below 52
and seeds 100 to 199 are tuning seeds: validation on them chooses the learning rate of an arm. Seeds
52 to 99 are test seeds. A comparison without test runs is made on the tuning seeds and is marked
"not fresh". Runs are recognised by their run_id, so the frame may also hold runs with other
settings, in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from mambanorm_study.basics.settings import check_scale, default_scale
from mambanorm_study.claims.claim import NONE, Claim, Comparison
from mambanorm_study.runs.grid import (
    FIRST_TEST_SEED,
    QUESTION_SEEDS,
    Cell,
    is_test_seed,
    is_tuning_seed,
    setting_id,
)
from mambanorm_study.runs.presets import kind_of
from mambanorm_study.tables.experiments import LADDER, fixed_ids, inside_task, lr_grid, model_of
from mambanorm_study.tables.run_tables import check_frame, label
from mambanorm_study.tables.scores import REQUIRED_COLUMNS, scores
from mambanorm_study.tables.summaries import highest_lr_that_trains

# The version of PROTOCOL.md, and the version that fixed the present rule and seeds. Later versions
# only add tasks, so runs recorded since RULE_VERSION are fresh.
VERSION, RULE_VERSION = 13, 12

# The tuning seeds of arms with recorded runs, and the tuning seeds of all other arms.
RECORDED_TUNING_SEEDS, NEW_TUNING_SEEDS = tuple(range(40, 52)), (100, 101, 102, 103)


def tasks_of(claim: Claim, tasks: Iterable[str], scale: str) -> list[str]:
    """Return the given tasks on which a claim can be judged at a scale, each listed once."""
    unique_tasks = dict.fromkeys(tasks)
    if claim.runs == "tuned":
        return [task for task in unique_tasks if kind_of(task) == claim.kind]
    return [task for task in unique_tasks if task == inside_task(scale)]


@dataclass(frozen=True, eq=False)
class Runs:
    """The runs of several arms on the seeds that all of these arms have.

    lrs: the learning rate of each arm; () for claims with fixed learning rates. columns: a map from
    a column of `scores` to an array of the column's values, of shape (arms, seeds). missing: why
    there are no runs; "" if there are runs.
    """

    arms: tuple[str, ...]
    seeds: tuple[int, ...] = ()
    lrs: tuple[float, ...] = ()
    columns: Mapping[str, np.ndarray] | None = None
    missing: str = ""

    @property
    def fresh(self) -> bool:
        """True if all runs are on test seeds, and no earlier rule of the protocol has judged any of
        the runs.
        """
        is_older = self.columns["protocol"] < RULE_VERSION
        return all(map(is_test_seed, self.seeds)) and not is_older.any()

    def failure_counts(self) -> dict[str, tuple[int, int]]:
        """Return a map from each arm to (number of its diverged runs, number of all its runs)."""
        counts = self.columns["diverged"].sum(axis=1).astype(int).tolist()
        return {arm: (count, len(self.seeds)) for arm, count in zip(self.arms, counts, strict=True)}

    def differences(self, comparison: Comparison) -> np.ndarray:
        """Return the value of a comparison for each seed, as an array of shape (seeds,).

        The value is NaN if a run on this seed has no value in the compared column. The array is
        empty if there are no runs.
        """
        if self.missing:
            return np.empty(0)
        if comparison.column == "range":
            return np.ptp(self.columns["score"], axis=0)
        weights = np.array([comparison.weights.get(arm, 0.0) for arm in self.arms])
        return comparison.offset + weights @ self.columns[comparison.column]


class _RunArrays(NamedTuple):
    """Runs as arrays: seeds (n,), values (n, columns), run_ids (n,).

    names: the names of the columns.
    """

    seeds: np.ndarray
    names: tuple[str, ...]
    values: np.ndarray
    run_ids: np.ndarray

    def column(self, name: str) -> np.ndarray:
        """Return the values in one column, of shape (n,)."""
        return self.values[:, self.names.index(name)]

    def take(self, rows: np.ndarray) -> _RunArrays:
        """Return some of the runs. rows: row numbers or a mask."""
        return _RunArrays(self.seeds[rows], self.names, self.values[rows], self.run_ids[rows])


class Evidence:
    """The runs of a run frame, in which `judge` finds the runs of an arm, task and learning rate.

    frame: a run frame (one row per run), or another Evidence of the same scale, whose runs are
    shared and not read again. tuning: True compares arms on the tuning seeds instead of the test
    seeds, as the predictions in PROTOCOL.md do. changes: a map from field to value, such as
    dict(n_layers=8), for runs whose settings differ from the scale's settings in these fields.
    keep_lrs: True means that an arm has the learning rate that it has without `changes`, even if it
    was also tuned with them. Methods take cells (runs/grid.py) where they take arms. Raises
    ValueError for a frame with several scales, unless `scale` names one of them.
    """

    def __init__(
        self,
        frame: pd.DataFrame | Evidence | None,
        scale: str | None = None,
        *,
        tuning: bool = False,
        changes: Mapping[str, Any] | None = None,
        keep_lrs: bool = False,
    ):
        self.tuning, self.changes, self.keep_lrs = False, (), False
        if isinstance(frame, Evidence) and scale in (None, frame.scale):
            vars(self).update(vars(frame))
        else:
            self._read(frame, scale)
        self.tuning, self.keep_lrs = self.tuning or tuning, self.keep_lrs or keep_lrs
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
        self._all_runs = _to_arrays(self.runs)
        self._rows_by_arm = self.runs.groupby(["task", "arm"]).indices
        self._rows: dict[tuple, np.ndarray] = {}
        self._tuned: dict[tuple, pd.DataFrame] = {}
        self._runs_at_lr: dict[tuple, _RunArrays] = {}
        self._best_lrs: dict[tuple, list[float]] = {}

    def seeds(self, task: str) -> tuple[int, ...]:
        """Return all seeds on which the frame has runs of a task."""
        return tuple(sorted(set(self.runs.seed[self.runs.task == task].astype(int))))

    def runs_of_arm(self, arm: str, task: str, changes: tuple = ()) -> pd.DataFrame:
        """Return an arm's runs on a task, on all seeds and at all learning rates, as a DataFrame.
        In all other fields the runs have the scale's settings, except for the fields in `changes`.

        changes: pairs (field, value).
        """
        return self.runs.iloc[self._rows_of_arm(arm, task, changes)]

    def _rows_of_arm(self, arm: str, task: str, changes: tuple) -> np.ndarray:
        """Return the positions in `self.runs` of the runs that `runs_of_arm` returns."""
        key = (arm, task, changes)
        if key not in self._rows:
            plain_arm, runs = Cell.parse(arm).arm, self._all_runs
            rows = self._rows_by_arm.get((task, plain_arm), np.empty(0, int))
            lrs, seeds = runs.column("lr")[rows].tolist(), runs.seeds[rows].tolist()
            ids = [
                setting_id(task, self.scale, arm, lr, seed, changes)
                for lr, seed in zip(lrs, seeds, strict=True)
            ]
            self._rows[key] = rows[runs.run_ids[rows] == np.array(ids, object)]
        return self._rows[key]

    # methods that choose the learning rate of an arm

    def validation_scores(self, arm: str, task: str) -> pd.DataFrame:
        """Return the validation scores by which an arm's learning rate is chosen, as a DataFrame
        with one row for each tuning seed that was run at every learning rate of the grid, and one
        column for each learning rate at which all of these seeds were run.

        If the arm has no tuning runs with the settings in `self.changes`, or if `keep_lrs` is set,
        its tuning runs with the unchanged settings of the scale are used.
        """
        key = (arm, task, self.changes, self.keep_lrs)
        if key not in self._tuned:
            table = self._validation(arm, task, () if self.keep_lrs else self.changes)
            if self.changes and not len(table):
                table = Evidence(self, changes={}).validation_scores(arm, task)
            self._tuned[key] = table
        return self._tuned[key]

    def _validation(self, arm: str, task: str, changes: tuple) -> pd.DataFrame:
        runs = self._all_runs.take(self._rows_of_arm(arm, task, changes))
        runs = runs.take(np.array([is_tuning_seed(seed) for seed in runs.seeds], bool))
        seeds, row_of_run = np.unique(runs.seeds, return_inverse=True)
        lrs, column_of_run = np.unique(runs.column("lr"), return_inverse=True)
        scores_by_seed = np.full((len(seeds), len(lrs)), np.nan)
        scores_by_seed[row_of_run, column_of_run] = runs.column("validation")
        table = pd.DataFrame(scores_by_seed, seeds, lrs)
        grid = table.reindex(columns=lr_grid(task, self.scale, model_of([arm])))
        table = table[grid.notna().all(axis=1)]
        # If the table has recorded tuning seeds, the learning rate is chosen on these seeds alone,
        # because a reader's runs must not change the learning rate of a recorded arm.
        for is_recorded in (table.index.isin(RECORDED_TUNING_SEEDS), table.index < FIRST_TEST_SEED):
            if is_recorded.any():
                return table[is_recorded].dropna(axis=1)
        return table.dropna(axis=1)

    def lr(self, arm: str, task: str, rank: int = 0) -> float | None:
        """Return the learning rate at which an arm has the best (rank 0) or the second-best (rank
        1) mean validation score on the tuning seeds; None if there is no such learning rate.

        A diverged run has the score of chance. Of equally good learning rates the smaller one ranks
        first.
        """
        key = (arm, task, self.changes, self.keep_lrs)
        if key not in self._best_lrs:
            means = self.validation_scores(arm, task).mean().dropna().round(9)
            best_first = means.sort_values(ascending=False, kind="stable").index
            self._best_lrs[key] = best_first.tolist()
        best_lrs = self._best_lrs[key]
        return best_lrs[rank] if len(best_lrs) > rank else None

    # methods that return the runs of several arms

    def runs_of_arms(self, arms: Iterable[str], task: str, rank: int = 0) -> Runs:
        """Return the runs of tuned arms on a task, each arm at its best learning rate (rank 0) or
        at its second-best learning rate (rank 1). The seeds are chosen as in `runs_at_lrs`.
        """
        arms = tuple(arms)
        if task not in self.tasks:
            return Runs(arms, missing="not run")
        lrs = {arm: self.lr(arm, task, rank) for arm in arms}
        untuned = [label(arm) for arm, lr in lrs.items() if lr is None]
        if untuned:
            return Runs(arms, missing=f"not tuned: {', '.join(untuned)}")
        return self.runs_at_lrs(arms, list(lrs.values()), task)

    def runs_at_lrs(self, arms: Iterable[str], lrs: Sequence[float], task: str) -> Runs:
        """Return the runs of these arms on a task, on the test seeds that all of the arms have;
        QUESTION_SEEDS are used only if the arms share no other test seed. If the arms share no test
        seed at all, or if `tuning` is set, their shared tuning seeds are used.

        lrs: one learning rate for each arm.
        """
        arms = tuple(arms)
        runs = [self._arrays_of_arm(arm, lr, task) for arm, lr in zip(arms, lrs, strict=True)]
        seeds = _shared_seeds(runs)
        test_seeds = set(filter(is_test_seed, seeds))
        test_seeds = test_seeds.difference(QUESTION_SEEDS) or test_seeds
        if self.tuning or not test_seeds:
            return _aligned(arms, runs, set(filter(is_tuning_seed, seeds)), lrs)
        return _aligned(arms, runs, test_seeds, lrs)

    def _arrays_of_arm(self, arm: str, lr: float, task: str) -> _RunArrays:
        """Return the runs of an arm at a learning rate, on all seeds."""
        key = (arm, lr, task, self.changes)
        if key not in self._runs_at_lr:
            runs = self._all_runs.take(self._rows_of_arm(arm, task, self.changes))
            runs = runs.take(runs.column("lr") == lr)
            self._runs_at_lr[key] = runs.take(np.argsort(runs.seeds))
        return self._runs_at_lr[key]

    def runs_of_claim(self, claim: Claim, arms: Iterable[str], task: str) -> Runs:
        """Return the runs of the given arms on a task, at the learning rates of the claim."""
        arms = tuple(arms)
        if claim.runs == "tuned" or task not in self.tasks:
            return self.runs_of_arms(arms, task)
        if claim.runs == "ladder":
            runs = [_sorted_arrays(self._best_run_per_seed(arm, task)) for arm in arms]
            return _aligned(arms, runs, _shared_seeds(runs))
        ids = fixed_ids(claim.runs, claim.arms, self.scale, self.seeds(task))
        claim_runs = self.runs[self.runs.run_id.isin(ids)]
        runs = [_sorted_arrays(claim_runs[claim_runs.arm == arm]) for arm in arms]
        seeds = _shared_seeds(runs)
        if claim.runs in ("growth", "failing"):  # claims about what precedes a failure of None→None
            failed = claim_runs[(claim_runs.arm == NONE) & (claim_runs.diverged == 1)]
            if seeds and seeds.isdisjoint(failed.seed):
                return Runs(arms, missing="the failure did not occur in any seed")
            seeds &= set(failed.seed)
        return _aligned(arms, runs, seeds)

    def _best_run_per_seed(self, arm: str, task: str) -> pd.DataFrame:
        """Return a DataFrame with one row for each seed on which an arm was run at every learning
        rate of the grid LADDER: the run with the best test accuracy. The additional column `reach`
        holds log₁₀ of the highest learning rate that trains the model on this seed.
        """
        lrs = lr_grid(task, self.scale, factors=LADDER)
        runs = self.runs_of_arm(arm, task)
        runs, rows = runs[runs.lr.isin(lrs)], []
        for _, runs_of_seed in runs.sort_values("lr").groupby("seed"):
            if len(runs_of_seed) == len(lrs):
                score, chance = runs_of_seed.score, runs_of_seed.chance.max()
                reach = highest_lr_that_trains(score.to_numpy(), chance, lrs)
                rows.append(runs_of_seed.loc[[score.idxmax()]].assign(reach=reach))
        return pd.concat(rows) if rows else runs.iloc[:0].assign(reach=np.nan)


def _to_arrays(runs: pd.DataFrame) -> _RunArrays:
    numeric = runs.columns.drop(["run_id", "task", "arm", "seed"])
    return _RunArrays(
        runs.seed.to_numpy(int),
        tuple(numeric),
        runs[numeric].to_numpy(float),
        runs.run_id.to_numpy(object),
    )


def _sorted_arrays(runs: pd.DataFrame) -> _RunArrays:
    """Return runs as arrays, sorted by seed, as `_aligned` needs them."""
    return _to_arrays(runs.sort_values("seed"))


def _shared_seeds(runs: Sequence[_RunArrays]) -> set[int]:
    return set.intersection(*(set(arrays.seeds.tolist()) for arrays in runs))


def _aligned(
    arms: tuple[str, ...], runs: list[_RunArrays], seeds: set[int], lrs: Sequence[float] = ()
) -> Runs:
    """Return the given runs on these seeds as a `Runs`, whose arrays have the shape (arms, seeds).

    runs: the runs of each arm, sorted by seed. lrs: one learning rate for each arm, or ().
    """
    if not seeds:
        missing_arms = [
            label(arm) for arm, arrays in zip(arms, runs, strict=True) if not len(arrays.seeds)
        ]
        if missing_arms:
            return Runs(arms, missing=f"not run: {', '.join(missing_arms)}")
        return Runs(arms, missing="no seed has all of these runs")
    sorted_seeds = sorted(seeds)
    rows = [np.searchsorted(arrays.seeds, sorted_seeds) for arrays in runs]
    values = np.stack([arrays.values[row] for arrays, row in zip(runs, rows, strict=True)])
    columns = {name: values[..., number] for number, name in enumerate(runs[0].names)}
    columns["run_id"] = np.stack(
        [arrays.run_ids[row] for arrays, row in zip(runs, rows, strict=True)]
    )
    return Runs(arms, tuple(sorted_seeds), tuple(lrs), columns)
