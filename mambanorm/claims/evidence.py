"""The runs that a claim rests on: which they are, which of them a run frame lacks, and their numbers seed by seed.

    needed      claim, seeds, tasks, scale → the configs: tune, select and test runs
    missing     those of them that a frame does not hold
    chosen_lr   the learning rate of an arm: the best validation accuracy over the two tune seeds
    Evidence    a run frame, looked up by run_id: the order of its rows makes no difference, nor do other runs in it
                (of notebooks, of other depths)

Every arm of a claim gets the same grid of learning rates. Tune, select and test seeds do not overlap (RunConfig.role).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
import pandas as pd

from mambanorm.claims.hypotheses import Claim, find_claim
from mambanorm.settings import check_scale, default_scale
from mambanorm.study.experiments import DEPTHS, FEW_ROWS, depth_runs, failing_runs, failure_runs, lr_grid, tune_runs
from mambanorm.study.tables import check_frame
from mambanorm.training.config import (
    SELECT_SEEDS,
    TUNE_SEEDS,
    RunConfig,
    base_config,
    check_names,
    check_seeds,
    grid,
    unique,
)
from mambanorm.training.presets import VISION_TASKS

FIXED_TASK = "digits"  # the task of depth_runs, failing_runs and failure_runs (study/experiments.py)
LOOKED_AT = ("run_id", "status", "test_accuracy", "best_val_accuracy", "chance", "task", "scale", "seed", "role")


def tasks_of(claim: Claim, tasks: Iterable[str]) -> list[str]:
    """Those of the tasks that the claim is about."""
    if claim.runs != "tuned":
        return [task for task in dict.fromkeys(tasks) if task == FIXED_TASK]
    return [task for task in dict.fromkeys(tasks) if (task in VISION_TASKS) == (claim.kind == "vision")]


def variants(claim: Claim, scale: str) -> tuple[str, ...]:
    """The settings at which a claim of §4.6 is judged. The first decides; the others are reported beside it."""
    few = f"with {FEW_ROWS[scale]} training rows"
    shallow, deep = (f"with {n} blocks" for n in DEPTHS[scale][-2:])
    depth = (deep, shallow, f"{shallow} and {few[5:]}")
    return {"tuned": ("",), "depth": depth}.get(claim.runs, ("with all rows", few))


def fixed_runs(claim: Claim, scale: str, seeds: Iterable[int], variant: int = 0) -> list[RunConfig]:
    """The configs of a claim whose learning rate is part of the question: depth, failing or failure runs."""
    seeds, few = list(seeds), FEW_ROWS[scale]
    if claim.runs == "depth":
        depth, rows = ((-1, 0), (-2, 0), (-2, few))[variant]
        return depth_runs(scale, "BN", seeds, [DEPTHS[scale][depth]], train_rows=rows)
    if claim.runs == "failing":
        return [c for c in failing_runs(scale, seeds, (0, few)[variant]) if c.arm in claim.arms]
    both = failure_runs(scale, seeds, (0, few)[variant]) + failing_runs(scale, seeds)
    return unique(both)  # they share a cell


def needed(
    claim_id: str | Claim,
    seeds: int | Iterable[int] | None = 8,
    tasks: Iterable[str] | None = None,
    scale: str | None = None,
    frame: pd.DataFrame | None = None,
) -> list[RunConfig]:
    """The configs of all runs that a claim rests on; an empty list where no task of it is asked for.

    Test and select runs use the learning rate that the tune runs of `frame` choose. Without a frame, or before an arm
    is tuned, they use the scale's own: the number of runs is then right, but their ids may change. Tune first, then ask
    again. ValueError for test seeds from 100 on, which tune or select.
    """
    claim, scale = find_claim(claim_id), default_scale() if scale is None else check_scale(scale)
    tasks = [FIXED_TASK] if tasks is None else check_names("tasks", tasks)
    seeds, tasks = check_seeds(seeds, scale), tasks_of(claim, tasks)
    if taken := [seed for seed in seeds if base_config(seed=seed).role != "test"]:
        raise ValueError(f"test seeds are 0 to 99, got {taken}: those from 100 on tune and select")
    if claim.runs != "tuned":
        asked = range(len(variants(claim, scale)) if tasks else 0)
        found = [config for variant in asked for config in fixed_runs(claim, scale, seeds, variant)]
        return unique(found)  # every variant of the claim on failures (H9) has the same controls
    evidence = Evidence(frame, scale)
    configs = []
    for task in tasks:
        configs += tune_runs(claim.arms, task, scale)
        later = [*seeds, *(SELECT_SEEDS if claim.select else ())]
        for arm in claim.arms:
            configs += grid([arm], [task], scale=scale, seeds=later, lr=evidence.lr(task, arm))
    return configs


def missing(
    claim_id: str | Claim,
    frame: pd.DataFrame,
    seeds: int | Iterable[int] | None = 8,
    tasks: Iterable[str] | None = None,
    scale: str | None = None,
) -> list[RunConfig]:
    """Those of `needed` that the frame does not hold; a failed run counts as missing."""
    held = set(Evidence(frame, scale).runs.index)
    return [config for config in needed(claim_id, seeds, tasks, scale, frame) if config.run_id not in held]


def chosen_lr(frame: pd.DataFrame, arm: str, task: str, *, scale: str | None = None) -> float:
    """The learning rate of the grid with the best mean validation accuracy over the tune seeds; the smaller of equals.

    A diverged run counts as chance. ValueError if a tune run is missing: a choice among only some would be unfair.
    """
    evidence = Evidence(frame, scale)
    by_lr = evidence.tuning(task, arm)
    if by_lr.isna().any():
        absent = ", ".join(f"{lr:g}" for lr in by_lr.index[by_lr.isna()])
        raise ValueError(
            f"arm {arm} is not tuned on task {task!r} at scale {evidence.scale}: learning rates {absent} need the "
            f"seeds {', '.join(map(str, TUNE_SEEDS))} (see mambanorm.needed)"
        )
    return float(by_lr.idxmax())


@lru_cache(maxsize=100_000)
def _run_id(task: str, scale: str, arm: str, seed: int, lr: float) -> str:
    return base_config(task, scale, arm=arm, seed=seed, lr=lr).run_id


@lru_cache(maxsize=100_000)
def _tune_ids(task: str, scale: str, arm: str) -> dict[float, list[str]]:
    """Learning rate → the ids of its tune runs."""
    runs = tune_runs([arm], task, scale)
    return {lr: [config.run_id for config in runs if config.lr == lr] for lr in lr_grid(task, scale)}


@lru_cache(maxsize=1_000)
def _fixed_ids(claim_id: str, scale: str, seed: int, variant: int) -> dict[str, str]:
    return {config.arm: config.run_id for config in fixed_runs(find_claim(claim_id), scale, [seed], variant)}


class Evidence:
    """A run frame as `judge` reads it: `runs` by run_id, with the columns

    diverged            1 or 0
    chance              100 × the accuracy of guessing the commonest class
    score, validation   100 × accuracy, of a diverged run chance (validation: of its best step)
    growth, law         decades in 8 blocks and AIC margin of the exponential; steepness = |growth|
    sigma_rise, sigma_trend, unevenness

    The last two lines come from summaries.with_summaries; NaN where the frame lacks them. `variant` is one of
    `variants`, `mode` the mode of growth, `own_rate` the scale's learning rate for every arm, tuned or not. ValueError
    for a frame that mixes scales unless `scale` names one, or that holds two results of one run.
    """

    def __init__(
        self,
        frame: pd.DataFrame | None,
        scale: str | None = None,
        variant: int = 0,
        mode: str = "train",
        own_rate: bool = False,
    ):
        frame = pd.DataFrame(columns=LOOKED_AT) if frame is None or frame.empty else frame
        if len(frame):
            check_frame(frame, LOOKED_AT)
        self.scale, self.variant, self.own_rate = self._scale(frame, scale), variant, own_rate
        self.families = 1  # how many tasks share one verdict, and its 5 %
        runs = frame[(frame.scale == self.scale) & frame.status.isin(["ok", "diverged"])]
        if runs.run_id.duplicated().any():
            runs = runs.drop_duplicates(["run_id", "status", "test_accuracy", "best_val_accuracy"])
            if (twice := runs.run_id.duplicated()).any():
                raise ValueError(f"the frame holds two different results of run {runs.run_id[twice].iloc[0]}: keep one")
        self.runs = self._columns(runs.set_index("run_id"), mode)
        self.tasks = sorted(set(runs.task))
        self.test_seeds = sorted({int(seed) for seed in runs.seed[runs.role == "test"]})
        self._rates: dict[tuple[str, str], pd.Series] = {}

    @staticmethod
    def _scale(frame: pd.DataFrame, scale: str | None) -> str:
        if scale is not None:
            return check_scale(scale)
        scales = sorted(set(frame.scale))
        if len(scales) > 1:
            raise ValueError(f"the frame mixes the scales {' and '.join(scales)}: name one with scale=")
        return scales[0] if scales else default_scale()

    @staticmethod
    def _columns(runs: pd.DataFrame, mode: str) -> pd.DataFrame:
        diverged = (runs.status == "diverged").to_numpy()
        chance = runs.chance.to_numpy(float)
        facts = {
            "diverged": diverged.astype(float),
            "chance": 100 * chance,
            "score": 100 * np.where(diverged, chance, runs.test_accuracy.to_numpy(float)),
            "validation": 100 * np.where(diverged, chance, runs.best_val_accuracy.to_numpy(float)),
        }
        stored = {"growth": f"growth_{mode}", "law": f"law_{mode}"}
        for name in ("growth", "law", "sigma_rise", "sigma_trend", "unevenness"):
            column = stored.get(name, name)
            facts[name] = runs[column].to_numpy(float) if column in runs else np.full(len(runs), np.nan)
        facts["steepness"] = np.abs(facts["growth"])
        return pd.DataFrame(facts, index=runs.index)

    def _at(self, ids: Sequence[Sequence[str]], column: str) -> np.ndarray:
        """That column of the runs with these ids, in the shape of `ids`; NaN where there is no such run."""
        places = self.runs.index.get_indexer(np.ravel(ids))
        values = np.append(self.runs[column].to_numpy(), np.nan)  # index −1, no such run, picks this NaN
        return values[places].reshape(np.shape(ids))

    def tuning(self, task: str, arm: str) -> pd.Series:
        """Validation accuracy by learning rate, mean over the tune seeds; NaN where one of them is missing."""
        if (task, arm) not in self._rates:
            ids = _tune_ids(task, self.scale, arm)
            self._rates[task, arm] = pd.Series(self._at(list(ids.values()), "validation").mean(axis=1), index=list(ids))
        return self._rates[task, arm]

    def lr(self, task: str, arm: str) -> float:
        """The chosen learning rate, or the scale's own while the arm is not tuned and where `own_rate` asks for it."""
        by_lr = self.tuning(task, arm)
        own = self.own_rate or by_lr.isna().any()
        return base_config(task, self.scale).lr if own else float(by_lr.idxmax())

    def untuned(self, task: str, arms: Iterable[str]) -> list[str]:
        return [arm for arm in arms if self.tuning(task, arm).isna().any()]

    def run_ids(self, claim: Claim, task: str, seeds: Sequence[int]) -> list[list[str]]:
        """For each seed, the run ids of the claim's arms, at their chosen learning rates if the claim tunes."""
        if claim.runs == "tuned":
            return self._tuned_ids(claim.arms, task, seeds)
        by_arm = [_fixed_ids(claim.id, self.scale, seed, self.variant) for seed in seeds]
        return [[ids[arm] for arm in claim.arms] for ids in by_arm]

    def _tuned_ids(self, arms: Sequence[str], task: str, seeds: Sequence[int]) -> list[list[str]]:
        rates = {arm: self.lr(task, arm) for arm in arms}
        return [[_run_id(task, self.scale, arm, seed, lr) for arm, lr in rates.items()] for seed in seeds]

    def table(self, claim: Claim, task: str, column: str = "score", seeds: Sequence[int] | None = None) -> pd.DataFrame:
        """seed × arm of the claim's runs, test seeds unless told otherwise; NaN where there is no such run."""
        seeds = self.test_seeds if seeds is None else list(seeds)
        return self._table(self.run_ids(claim, task, seeds), column, seeds, claim.arms)

    def tuned_table(
        self, arms: Sequence[str], task: str, column: str = "score", seeds: Sequence[int] | None = None
    ) -> pd.DataFrame:
        """seed × arm of the runs at each arm's chosen learning rate."""
        seeds = self.test_seeds if seeds is None else list(seeds)
        return self._table(self._tuned_ids(arms, task, seeds), column, seeds, arms)

    def _table(self, ids: list[list[str]], column: str, seeds: list[int], arms: Sequence[str]) -> pd.DataFrame:
        values = self._at(ids, column) if seeds else np.empty((0, len(arms)))
        return pd.DataFrame(values, index=seeds, columns=list(arms))

    def tune_table(self, claim: Claim, task: str, lr: float) -> pd.DataFrame:
        """seed × arm of the validation accuracy at one learning rate for all arms, on the tune seeds."""
        ids = [_tune_ids(task, self.scale, arm)[lr] for arm in claim.arms]
        return pd.DataFrame(self._at(ids, "validation").T, index=list(TUNE_SEEDS), columns=list(claim.arms))

    def counts(self, configs: Iterable[RunConfig]) -> tuple[int, int]:
        """How many of these runs diverged, and how many of them there are."""
        found = self._at([config.run_id for config in configs], "diverged")
        found = found[np.isfinite(found)]
        return int(found.sum()), len(found)
