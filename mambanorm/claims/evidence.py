"""A run frame as `judge` reads it: the runs of a claim's arms, at every learning rate and with every seed.

`Evidence` looks them up by run_id: the order of the rows makes no difference, nor do other runs in the frame (of
notebooks, of other depths). `Runs` are the numbers of some arms, and the rate of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from mambanorm.basics.errors import check_kind
from mambanorm.basics.settings import check_scale, default_scale
from mambanorm.claims import rule
from mambanorm.claims.claim import NONE, SMALLEST_BITS, SMALLEST_EFFECT, Claim
from mambanorm.claims.frames import LOOKED_AT, checked, columns_of
from mambanorm.claims.hypotheses import find_claim
from mambanorm.config import RunConfig
from mambanorm.runs.grid import base_config
from mambanorm.runs.presets import LANGUAGE_TASKS, TABLES, TEXTS, VISION_TASKS
from mambanorm.runs.recorded_results import best_rate
from mambanorm.study.experiments import (
    all_rates,
    deep_runs,
    failing_runs,
    failure_runs,
    growth_runs,
    inside_task,
    ladder,
    ladder_runs,
    lr_grid,
    model_of,
)
from mambanorm.study.tables import check_frame, label

Setting = tuple[tuple[str, Any], ...]
"""Fields of a config in which the runs of another setting differ from those of the scale."""

KINDS = (
    dict.fromkeys(VISION_TASKS, "vision") | dict.fromkeys(TABLES, "table") | dict.fromkeys(LANGUAGE_TASKS, "language")
)


def kind_of(task: str) -> str:
    """ "vision", "language", "table" (a regression, of which no claim speaks) or "sequence"."""
    return KINDS.get(task, "sequence")


def tasks_of(claim: Claim, tasks: Iterable[str], scale: str) -> list[str]:
    """Those of the tasks that the claim is about."""
    if claim.runs != "tuned":
        return [task for task in dict.fromkeys(tasks) if task == inside_task(scale)]
    return [task for task in dict.fromkeys(tasks) if kind_of(task) == claim.kind]


def check_changes(claim: Claim, changes: Mapping[str, Any] | None) -> None:
    """ValueError for changes of a claim of §4.6."""
    if changes and claim.runs != "tuned":
        raise ValueError(f"{claim.id} is about runs of its own, whose settings are part of the question: no changes")


def fixed_runs(claim: Claim, scale: str, seeds: Iterable[int]) -> list[RunConfig]:
    """The configs of a claim of §4.6: their learning rate is part of the question."""
    seeds = list(seeds)
    if claim.runs == "growth":
        return growth_runs(scale, seeds=seeds)
    if claim.runs == "ladder":
        return ladder_runs(claim.arms, scale, seeds)
    runs = dict(deep=deep_runs, failing=failing_runs, failure=failure_runs)[claim.runs](scale, seeds)
    return [config for config in runs if config.arm in claim.arms]


@lru_cache(maxsize=64)
def shared_rows(task: str, scale: str) -> str:
    """ "one test text", "one test set" or "one pool of rows", of which alone an interval over seeds then speaks; ""
    where each seed makes rows of its own. As the task's shape tells it, else by looking at two seeds."""
    if task in TEXTS:
        return "one test text"
    import torch  # here: what is needed of a claim can be told without it

    from mambanorm.tasks import TASKS, check_task, load_task

    entry = TASKS[check_task(task)]
    shape = entry.shape(scale) if entry.shape is not None else None
    if shape is not None and shape.fresh:
        return ""
    if shape is not None and shape.train_rows:
        return "one pool of rows" if shape.reshuffled else "one test set"
    data, other = (load_task(task, scale, seed) for seed in (0, 1))
    return "one test set" if torch.equal(data.test.labels, other.test.labels) else "one pool of rows"


@lru_cache(maxsize=20_000)
def _ids(task: str, scale: str, arm: str, lr: float, seeds: tuple[int, ...], setting: Setting) -> tuple[str, ...]:
    config = base_config(task, scale, arm=arm, lr=lr, **dict(setting))
    return tuple(config.with_seed(seed).run_id for seed in seeds)


@lru_cache(maxsize=1_000)
def _fixed_ids(claim_id: str, scale: str, seeds: tuple[int, ...]) -> list[list[str]]:
    """(arms, seeds) run ids of a claim with one run an arm and seed."""
    claim = find_claim(claim_id)
    ids = {(config.arm, config.seed): config.run_id for config in fixed_runs(claim, scale, seeds)}
    return [[ids[arm, seed] for seed in seeds] for arm in claim.arms]


@dataclass(frozen=True, eq=False)
class Runs:
    """Some arms at every rate of theirs. Arrays are (arms, rates, seeds), (arms, rates) or (arms,).

    `columns`: as frames.columns_of has them, NaN where there is no run; of seeds that lack a rate of the grid no run
    counts. `best`: the index of each arm's rate. `edge`: ±1 where an arm still improves at an end of its grid. `gaps`:
    arm → why it has no rate. `calm`: which seeds did not fail where it is asked what precedes a failure.
    """

    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    rates: tuple[float, ...]
    columns: dict[str, np.ndarray]
    ids: np.ndarray
    best: np.ndarray
    edge: np.ndarray
    gaps: dict[str, str]
    calm: str = ""

    def at(self, name: str) -> np.ndarray:
        """(arms, seeds) a column at each arm's rate."""
        return rule.at_rate(self.columns[name], self.best)

    def finished(self, name: str) -> np.ndarray:
        """(arms, seeds) the same, NaN where the run diverged."""
        return np.where(self.at("diverged") == 0, self.at(name), np.nan)

    @property
    def lr(self) -> np.ndarray:
        """(arms,) the rate of each arm."""
        return np.array(self.rates)[self.best]

    @property
    def late(self) -> np.ndarray:
        """(arms,) share of the finished runs at an arm's rate that are best in their last tenth; NaN if not known."""
        late = self.at("late")
        known = np.isfinite(late)
        return np.where(known, late, 0).sum(axis=1) / np.where(known.any(axis=1), known.sum(axis=1), np.nan)

    @property
    def whole_seeds(self) -> tuple[int, ...]:
        """The seeds that every arm has, at its rate."""
        there = np.isfinite(self.at("diverged")).all(axis=0)
        return tuple(seed for seed, yes in zip(self.seeds, there, strict=True) if yes)

    def usable(self, arm: int) -> list[float]:
        """The rates that all seeds of an arm have."""
        runs = np.isfinite(self.columns["validation"][arm]).sum(axis=1)
        return [lr for lr, n in zip(self.rates, runs, strict=True) if n and n == runs.max()]


class Evidence:
    """A run frame as `judge` reads it; an Evidence in its place is not read again. `changes`: fields in which the runs
    differ from those of the scale, such as dict(d_model=16). ValueError for a frame that mixes scales unless `scale`
    names one, and for runs of another protocol."""

    def __init__(
        self, frame: pd.DataFrame | Evidence | None, scale: str | None = None, changes: Mapping[str, Any] | None = None
    ):
        if isinstance(frame, Evidence) and scale in (None, frame.scale):
            self.__dict__ |= frame.__dict__
        else:
            self._read(frame, scale)
        self.setting: Setting = tuple(sorted((changes or {}).items()))

    def _read(self, frame: pd.DataFrame | None, scale: str | None) -> None:
        frame = pd.DataFrame() if frame is None else frame
        check_kind("frame", frame, pd.DataFrame, "load_runs")
        frame = pd.DataFrame(columns=LOOKED_AT) if frame.empty else frame
        if len(frame):
            check_frame(frame, LOOKED_AT)
        self.scale = self._scale(frame, scale)
        runs = checked(frame, self.scale)
        self.index = pd.Index(runs.run_id.to_numpy(object), dtype=object)  # pandas' own text is slower
        self.columns = columns_of(runs)
        task = runs.task.to_numpy(object)
        self.tasks = sorted(set(task))
        self.ids = np.append(self.index.to_numpy(), None)
        tests, seeds = runs.role.to_numpy(object) == "test", runs.seed.to_numpy()
        self.seeds = {name: tuple(map(int, np.unique(seeds[tests & (task == name)]))) for name in self.tasks}
        self._tuned: dict[tuple, Runs] = {}

    @staticmethod
    def _scale(frame: pd.DataFrame, scale: str | None) -> str:
        if scale is not None:
            return check_scale(scale)
        scales = sorted(set(frame.scale.to_numpy(object)))
        if len(scales) > 1:
            raise ValueError(f"the frame mixes the scales {' and '.join(scales)}: name one with scale=")
        return scales[0] if scales else default_scale()

    def _places(self, ids: Sequence[str]) -> np.ndarray:
        """Where these runs stand; the last place, which is NaN in every column, where there is no such run."""
        places = self.index.get_indexer(pd.Index(ids, dtype=object))
        return np.where(places < 0, len(self.index), places)

    def diverged(self, run_ids: Sequence[str]) -> np.ndarray:
        """1 or 0 of each of these runs; NaN where there is no such run."""
        return self.columns["diverged"][self._places(run_ids)]

    def runs(self, claim: Claim, task: str) -> Runs:
        """The runs of the claim's arms on a task."""
        if claim.runs == "ladder":
            return self._climb(claim.arms, task)
        return self.tuned(claim.arms, task) if claim.runs == "tuned" else self._fixed(claim)

    def tuned(self, arms: tuple[str, ...], task: str) -> Runs:
        """The arms at the rates of the grid and those by which it has grown."""
        if (key := (task, arms, self.setting)) not in self._tuned:
            model = model_of(arms)
            rates = all_rates(task, self.scale, model), lr_grid(task, self.scale, model)
            self._tuned[key] = self.at_rates(arms, task, *rates)
        return self._tuned[key]

    def at_rates(
        self, arms: tuple[str, ...], task: str, rates: Sequence[float], grid: Sequence[float] | None = None
    ) -> Runs:
        """The arms at these rates. `grid`: those without which a seed does not count; None = all."""
        grid = rates if grid is None else grid
        seeds = self.seeds.get(task, ())
        ids = [
            run_id for arm in arms for lr in rates for run_id in _ids(task, self.scale, arm, lr, seeds, self.setting)
        ]
        at = self._places(ids).reshape(len(arms), len(rates), len(seeds))
        there = at < len(self.index)
        asked = there[:, np.isin(rates, grid)]  # (arms, rates of the grid, seeds)
        whole = asked.all(axis=1)
        at = np.where(whole[:, None], at, len(self.index))
        gaps = {}
        for arm, mine in zip(arms, asked, strict=True):
            if not mine.any():
                gaps[arm] = f"not run: {label(arm)}"
            elif lacks := [f"{lr:g}" for lr, row in zip(grid, mine, strict=True) if not row.any()]:
                gaps[arm] = f"not tuned: {label(arm)} lacks learning rate {', '.join(lacks)}"
        columns = {name: values[at] for name, values in self.columns.items()}
        validation = columns["validation"]
        smallest = SMALLEST_BITS if kind_of(task) == "language" else SMALLEST_EFFECT
        edges = [rule.edge(mine, smallest) if len(seeds) else 0 for mine in validation]
        best = best_rate(validation) if len(seeds) else np.zeros(len(arms), int)
        return Runs(arms, seeds, rates, columns, self.ids[at], best, np.array(edges), gaps)

    def further_rates(self, arms: Sequence[str], task: str) -> list[tuple[str, float]]:
        """The rates beyond the three that all have, by which an arm's grid grows while its best is an end of it; the
        next one is not trained yet."""
        runs, found = self.tuned(tuple(arms), task), []
        own = lr_grid(task, self.scale, model_of(arms))
        for i, arm in enumerate(runs.arms):
            known = runs.usable(i)
            found += [(arm, lr) for lr in known if lr not in own]
            ahead = runs.rates.index(known[-1 if runs.edge[i] > 0 else 0]) + int(runs.edge[i]) if known else -1
            if runs.edge[i] and 0 <= ahead < len(runs.rates):
                found.append((arm, runs.rates[ahead]))
        return found

    def _climb(self, arms: tuple[str, ...], task: str) -> Runs:
        """How high each arm's rate can be with each seed (`reach`); the other columns are those of the rate that is
        best for that seed."""
        rates = ladder(task, self.scale)
        runs = self.at_rates(arms, task, rates)
        best = np.nan_to_num(runs.columns["score"], nan=-1.0).argmax(axis=1)[:, None]  # (arms, 1, seeds)
        of_best = {name: np.take_along_axis(values, best, axis=1) for name, values in runs.columns.items()}
        of_best["reach"] = reach(runs.columns["score"], runs.columns["chance"], rates)[:, None]
        none = np.zeros(len(arms), int)
        ids = np.take_along_axis(runs.ids, best, axis=1)
        return Runs(arms, runs.seeds, rates, of_best, ids, none, none, runs.gaps)

    def _fixed(self, claim: Claim) -> Runs:
        """One run an arm and seed; where the question is what happens before a failure, of the seeds that failed."""
        seeds = np.array(self.seeds.get(inside_task(self.scale), ()), int)
        ids = np.array(_fixed_ids(claim.id, self.scale, tuple(seeds.tolist())), dtype=object)
        at = self._places(ids.ravel()).reshape(len(claim.arms), len(seeds))
        others = np.array([arm != NONE for arm in claim.arms])  # None→None has further seeds, for the claim on failures
        some = (at < len(self.index))[others].any(axis=0)
        calm = self.columns["diverged"][at[claim.arms.index(NONE)]] == 0
        calm &= some & (claim.runs in ("growth", "failing"))
        kept = np.flatnonzero(some & ~calm)
        columns = {name: values[at[:, None, kept]] for name, values in self.columns.items()}
        absent = (at[:, kept] == len(self.index)).all(axis=1) & bool(len(kept))
        gaps = {arm: f"not run: {label(arm)}" for arm, no in zip(claim.arms, absent, strict=True) if no}
        told = f"no failure to look back from with seeds {', '.join(map(str, seeds[calm]))}" if calm.any() else ""
        if told and not len(kept):
            told = "the failure did not occur in any seed"
        none = np.zeros(len(claim.arms), int)
        at = self.ids[at[:, None, kept]]
        return Runs(claim.arms, tuple(seeds[kept].tolist()), (0.0,), columns, at, none, none, gaps, told)


TRAINS, LEARNS = 0.8, 5.0
"""A rate trains a model that has this share of what its best rate brings above chance, and a model has learned that
lies so many points above chance."""


def reach(score: np.ndarray, chance: np.ndarray, rates: Sequence[float]) -> np.ndarray:
    """log₁₀ of the highest rate that trains, (arms, seeds), by linear interpolation between the last that does and the
    next. score, chance: (arms, rates, seeds), per cent; NaN where a rate was not run. Where the highest rate trains, it
    is that one; a seed that learns at no rate has the lowest."""
    found = np.full((score.shape[0], score.shape[2]), np.nan)
    for i, k in np.ndindex(*found.shape):
        if np.isfinite(score[i, :, k]).all():
            found[i, k] = _last_that_trains(score[i, :, k], chance[i, :, k].max(), np.log10(rates))
    return found


def _last_that_trains(score: np.ndarray, chance: float, log_rates: np.ndarray) -> float:
    if score.max() <= chance + LEARNS:
        return log_rates[0]
    line = chance + TRAINS * (score.max() - chance)
    last = np.flatnonzero(score >= line)[-1]
    return np.interp(-line, -score[last : last + 2], log_rates[last : last + 2])
