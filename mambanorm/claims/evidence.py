"""A run frame as verdicts read it: each arm at one learning rate, and its numbers seed by seed.

Seeds below 52 and seeds 100 to 199 tune: among them the learning rate of an arm is chosen by validation. Seeds 52 to 99
test. A comparison without test runs is read on the tuning seeds, and is marked "not fresh". `Evidence` finds runs by
their run_id, so neither the order of the rows nor other runs in the frame matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from mambanorm.basics.errors import check_kind
from mambanorm.basics.settings import check_scale, default_scale
from mambanorm.claims.claim import CORRUPTED, NONE, SMALLEST_BITS, Claim, Comparison
from mambanorm.config import RunConfig
from mambanorm.runs.grid import FIRST_TEST_SEED, base_config, is_test_seed, is_tuning_seed
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

VERSION = 12
"""The version of the protocol."""

NEW_TUNING_SEEDS = (100, 101, 102, 103)
"""The tuning seeds of arms that are not recorded."""

COLUMNS_READ = ("run_id", "status", "test_accuracy", "best_val_accuracy", "chance", "task", "scale", "seed", "lr")
LOSSES = ("test_loss", "best_val_loss", "chance_loss")  # of language models, in nats
STORED = ("growth", "law", "sigma_rise", "sigma_trend", "unevenness", "sharpening", "fragility", "headroom")
OF_FINISHED = ("unevenness", "headroom")
"""Columns that are read of runs that did not diverge."""

KINDS = (
    dict.fromkeys(VISION_TASKS, "vision") | dict.fromkeys(TABLES, "table") | dict.fromkeys(LANGUAGE_TASKS, "language")
)


def kind_of(task: str) -> str:
    """Return "vision", "language", "table" (a regression, about which there is no claim) or "sequence"."""
    return KINDS.get(task, "sequence")


def tasks_of(claim: Claim, tasks: Iterable[str], scale: str) -> list[str]:
    """Return those of the tasks that the claim is about."""
    if claim.runs != "tuned":
        return [task for task in dict.fromkeys(tasks) if task == inside_task(scale)]
    return [task for task in dict.fromkeys(tasks) if kind_of(task) == claim.kind]


def fixed_runs(claim: Claim, scale: str, seeds: Iterable[int]) -> list[RunConfig]:
    """Return the configs of a claim whose learning rates are part of the question."""
    seeds = list(seeds)
    if claim.runs == "growth":
        return growth_runs(scale, seeds=seeds)
    if claim.runs == "ladder":
        return ladder_runs(claim.arms, scale, seeds)
    runs = dict(deep=deep_runs, failing=failing_runs, failure=failure_runs)[claim.runs](scale, seeds)
    return [config for config in runs if config.arm in claim.arms]


@lru_cache(maxsize=64)
def shared_rows(task: str, scale: str) -> str:
    """Return "one test text", "one test set" or "one pool of rows" if the seeds of a task share it, so that an interval
    over seeds speaks of that alone; "" if each seed makes new rows."""
    if task in TEXTS:
        return "one test text"
    import torch  # here, because the runs of a claim can be listed without torch

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
def _run_ids(
    task: str, scale: str, arm: str, lr: float, seeds: tuple[int, ...], changes: tuple[tuple[str, Any], ...]
) -> tuple[str, ...]:
    config = base_config(task, scale, arm=arm, lr=lr, **dict(changes))
    return tuple(config.with_seed(seed).run_id for seed in seeds)


# ------------------------------------------------------------------------------------------------- columns of a frame


def readable_runs(frame: pd.DataFrame, scale: str) -> pd.DataFrame:
    """Return the runs of a scale that ended with finite numbers or diverged, each once.

    ValueError for runs of protocol 1, which asked for other runs, and for language models of different texts.
    """
    runs = frame[(frame.scale == scale) & frame.status.isin(("ok", "diverged"))].drop_duplicates("run_id")
    diverged, text = runs.status == "diverged", runs.task.isin(LANGUAGE_TASKS)
    finite = np.isfinite(runs.chance.to_numpy(float))
    for name in ("test_accuracy", "best_val_accuracy"):
        finite &= np.isfinite(runs[name].to_numpy(float)) | diverged
    for name in LOSSES:
        finite &= ~text | np.isfinite(_numbers(runs, name)) | (diverged & (name != "chance_loss"))
    runs = runs[finite]
    if "protocol" in runs and not runs.protocol.dropna().between(2, VERSION).all():
        wrong = ", ".join(f"{version:g}" for version in sorted(runs.protocol.dropna().unique()))
        raise ValueError(f"the frame holds runs of protocol {wrong}, this is protocol {VERSION}: record anew")
    for task in TEXTS if "chance_loss" in runs else ():
        # Python's documentation changes with Python; the loss of guessing by frequency tells texts apart
        losses = runs.chance_loss[runs.task == task].dropna().round(6).unique()
        if len(losses) > 1:
            known = ", ".join(f"{loss:.6f}" for loss in sorted(losses))
            raise ValueError(
                f"the runs of {task} are of different texts (chance_loss {known} nats): judge those of one Python alone"
            )
    return runs


def measured(runs: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return what comparisons are about, by column name; accuracies in per cent, bits with a minus (more is better).

    A diverged run has chance. `late`: 1 where the best step by validation is in the last tenth, of language models
    where that tenth was worth SMALLEST_BITS. The last entry of every column is NaN, for runs that are not there.
    """
    diverged, chance = (runs.status == "diverged").to_numpy(), runs.chance.to_numpy(float)
    text = runs.task.isin(LANGUAGE_TASKS).to_numpy()
    columns = {"diverged": diverged.astype(float), "chance": 100 * chance}
    sources = {"score": "test_accuracy", "validation": "best_val_accuracy", "noise": "noise", "rotation": "rotation"}
    for name, source in sources.items():
        columns[name] = 100 * np.where(diverged, chance, _numbers(runs, source))
    for name in CORRUPTED:
        columns[f"{name}_change"] = columns[name] - columns["score"]
    test_bits, validation_bits, guess_bits = (-_numbers(runs, name) / math.log(2) for name in LOSSES)
    columns["bits"] = np.where(diverged, guess_bits, test_bits)
    columns["validation"] = np.where(text, np.where(diverged, guess_bits, validation_bits), columns["validation"])
    columns["chance"] = np.where(text, guess_bits, columns["chance"])
    late = np.where(
        text,
        _numbers(runs, "late_gain") >= SMALLEST_BITS,
        _numbers(runs, "best_step") > 0.9 * _numbers(runs, "steps"),
    )
    columns["late"] = late & ~diverged
    for name in STORED:
        columns[name] = np.where(diverged & (name in OF_FINISHED), np.nan, _numbers(runs, name))
    columns["steepness"] = np.abs(columns["growth"])
    columns["protocol"] = _numbers(runs, "protocol")
    return {name: np.append(values.astype(float), np.nan) for name, values in columns.items()}


def _numbers(runs: pd.DataFrame, name: str) -> np.ndarray:
    """Return a column that not every frame has; NaN without it."""
    return pd.to_numeric(runs[name]).to_numpy(float) if name in runs else np.full(len(runs), np.nan)


# -------------------------------------------------------------------------------------------------------- the evidence


@dataclass(frozen=True, eq=False)
class Runs:
    """The runs of some arms on the seeds that all of them have. `missing`: why there are none; "" if there are some."""

    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    rates: tuple[float, ...]
    columns: Mapping[str, np.ndarray]  # each (arms, seeds)
    run_ids: np.ndarray  # (arms, seeds)
    fresh: bool = True
    missing: str = ""

    def total(self, comparison: Comparison) -> np.ndarray:
        """Return the comparison's difference, one a seed; seeds without a finite number are left out."""
        if self.missing:
            return np.empty(0)
        if comparison.column == "range":
            return np.ptp(self.columns["score"], axis=0)
        weights = np.array([comparison.weights[arm] for arm in self.arms])
        values = comparison.offset + weights @ self.columns[comparison.column]
        return values[np.isfinite(values)]


class Evidence:
    """A run frame as `judge` reads it; an Evidence given as `frame` is not read again.

    tuning: read every comparison on the tuning seeds, as predictions do. changes: fields in which the runs differ from
    those of the scale, such as dict(n_layers=8). ValueError for a frame that mixes scales unless `scale` names one.
    """

    def __init__(
        self,
        frame: pd.DataFrame | Evidence | None,
        scale: str | None = None,
        *,
        tuning: bool = False,
        changes: Mapping[str, Any] | None = None,
    ):
        if isinstance(frame, Evidence) and scale in (None, frame.scale):
            self.__dict__ |= frame.__dict__
        else:
            self._read(frame, scale)
        self.changes = tuple(sorted((changes or {}).items()))
        self.tuning = tuning

    def _read(self, frame: pd.DataFrame | None, scale: str | None) -> None:
        frame = pd.DataFrame(columns=COLUMNS_READ) if frame is None or len(frame) == 0 else frame
        check_kind("frame", frame, pd.DataFrame, "load_runs")
        if len(frame):
            check_frame(frame, COLUMNS_READ)
        scales = sorted(set(frame.scale))
        if scale is None and len(scales) > 1:
            raise ValueError(f"the frame mixes the scales {' and '.join(scales)}: name one with scale=")
        self.scale = check_scale(scale) if scale is not None else scales[0] if scales else default_scale()
        runs = readable_runs(frame, self.scale)
        self.index = pd.Index(runs.run_id.to_numpy(object), dtype=object)
        self.columns = measured(runs)
        task, seeds = runs.task.to_numpy(object), runs.seed.to_numpy(int)
        self.tasks = sorted(set(task))
        self.seeds = {name: tuple(np.unique(seeds[task == name]).tolist()) for name in self.tasks}

    def places(self, run_ids: Sequence[str]) -> np.ndarray:
        """Return where these runs stand in the columns; the last place, which holds NaN, for a run that is not there."""
        return self.index.get_indexer(pd.Index(run_ids, dtype=object))

    # the learning rate of an arm

    def rate(self, arm: str, task: str, rank: int = 0) -> float | None:
        """Return the learning rate with the best mean validation accuracy on the tuning seeds (`rank` 1: the second
        best); None if the arm was not tuned. A diverged run counts as chance; of equal rates the smaller one wins."""
        rates, validation, _ = self.tuned(arm, task)
        for _ in range(rank):
            if len(rates):
                best = best_rate(validation)
                rates, validation = np.delete(rates, best), np.delete(validation, best, axis=0)
        return float(rates[best_rate(validation)]) if len(rates) else None

    def tuned_anew(self, arm: str, task: str) -> bool:
        """Return whether the tuning seeds of an arm are new ones, which the kit has not recorded."""
        return any(seed >= NEW_TUNING_SEEDS[0] for seed in self.tuned(arm, task)[2])

    def tuned(self, arm: str, task: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the rates that every tuning seed of an arm has, (rates,), their validation, (rates, seeds), and the
        seeds.

        Runs with `changes` that were not tuned themselves take the rate of the scale's own setting.
        """
        for changes in dict.fromkeys((self.changes, ())):
            found = self._tuned(arm, task, changes)
            if len(found[0]):
                break
        return found

    def _tuned(self, arm: str, task: str, changes: tuple) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        model = model_of([arm])
        rates, grid = np.array(all_rates(task, self.scale, model)), lr_grid(task, self.scale, model)
        known = np.array([seed for seed in self.seeds.get(task, ()) if is_tuning_seed(seed)], int)
        ids = [
            run_id
            for lr in rates
            for run_id in _run_ids(task, self.scale, arm, float(lr), tuple(known.tolist()), changes)
        ]
        validation = self.columns["validation"][self.places(ids)].reshape(len(rates), len(known))
        there = np.isfinite(validation)
        seeds = there[np.isin(rates, grid)].all(axis=0)  # the seeds that have every rate of the grid
        if (known[seeds] < FIRST_TEST_SEED).any():
            seeds &= known < FIRST_TEST_SEED  # a reader's new tuning does not move a recorded rate
        whole = there[:, seeds].all(axis=1) & seeds.any()
        return rates[whole], validation[whole][:, seeds], known[seeds]

    # the runs of arms at their rates

    def of_arms(self, arms: Iterable[str], task: str, rank: int = 0) -> Runs:
        """Return the runs of these arms on the test seeds, each arm at its rate (`rank` 1: at its second best rate).

        Without shared test seeds, on the tuning seeds: then `fresh` is False.
        """
        arms = tuple(arms)
        rates = [self.rate(arm, task, rank) for arm in arms]
        if untuned := [label(arm) for arm, rate in zip(arms, rates, strict=True) if rate is None]:
            return self._none(arms, f"not tuned: {', '.join(untuned)}")
        return self.at_rates(arms, rates, task)

    def at_rates(self, arms: Iterable[str], rates: Sequence[float], task: str) -> Runs:
        """Return the runs of these arms at these rates, on the test seeds or else on the tuning seeds."""
        arms, seeds = tuple(arms), self.seeds.get(task, ())
        ids = np.array([_run_ids(task, self.scale, *at, seeds, self.changes) for at in zip(arms, rates, strict=True)])
        if not ids.size:
            return self._none(arms, "not run")
        places = self.places(ids.ravel()).reshape(ids.shape)
        there = (places >= 0).all(axis=0)
        test = there & np.array([is_test_seed(seed) for seed in seeds])
        use = np.flatnonzero(test if test.any() and not self.tuning else there & [is_tuning_seed(s) for s in seeds])
        if not len(use):
            absent = [label(arm) for arm, row in zip(arms, places, strict=True) if not (row >= 0).any()]
            return self._none(arms, f"not run: {', '.join(absent)}" if absent else "no seed has all of these runs")
        fresh = bool(test[use].all())
        return self._runs(arms, [seeds[i] for i in use], rates, places[:, use], ids[:, use], fresh)

    def of_claim(self, claim: Claim, arms: Iterable[str], task: str) -> Runs:
        """Return the runs of some arms of a claim on a task."""
        arms = tuple(arms)
        if claim.runs == "tuned":
            return self.of_arms(arms, task)
        if claim.runs == "ladder":
            return self._ladder(arms, task)
        return self._fixed(claim, arms)

    def _runs(self, arms, seeds, rates, places: np.ndarray, ids: np.ndarray, fresh: bool = True, **added) -> Runs:
        columns = {name: values[places] for name, values in self.columns.items()} | added
        fresh &= not (columns["protocol"] < VERSION).any()
        return Runs(tuple(arms), tuple(seeds), tuple(rates), columns, ids, fresh)

    def _none(self, arms: tuple[str, ...], why: str) -> Runs:
        shape = (len(arms), 0)
        columns = {name: np.empty(shape) for name in self.columns}
        return Runs(arms, (), (), columns, np.empty(shape, object), missing=why)

    def _fixed(self, claim: Claim, arms: tuple[str, ...]) -> Runs:
        """One run an arm and seed. Where the question is what precedes a failure, the seeds on which None→None failed."""
        seeds = self.seeds.get(inside_task(self.scale), ())
        ids = np.array(_fixed_ids(claim.id, self.scale, seeds), dtype=object).reshape(-1, len(seeds))
        failing = self.columns["diverged"][self.places(ids[claim.arms.index(NONE)])] == 1
        ids = ids[[claim.arms.index(arm) for arm in arms]]
        places = self.places(ids.ravel()).reshape(ids.shape)
        there = (places >= 0).all(axis=0)
        use = np.flatnonzero(there & failing if claim.runs in ("growth", "failing") else there)
        if not len(use):
            return self._none(arms, "the failure did not occur in any seed" if there.any() else "not run")
        return self._runs(arms, [seeds[i] for i in use], (), places[:, use], ids[:, use])

    def _ladder(self, arms: tuple[str, ...], task: str) -> Runs:
        """How high the rate of each arm can be with each seed (`reach`); the other columns are those of the rate with
        the best test accuracy."""
        rates, seeds = ladder(task, self.scale), self.seeds.get(task, ())
        ids = np.array([[_run_ids(task, self.scale, arm, lr, seeds, ()) for lr in rates] for arm in arms], dtype=object)
        places = self.places(ids.ravel()).reshape(ids.shape)  # (arms, rates, seeds)
        use = np.flatnonzero((places >= 0).all(axis=(0, 1)))
        if not len(use):
            return self._none(arms, "not run")
        places, ids = places[:, :, use], ids[:, :, use]
        score, chance = self.columns["score"][places], self.columns["chance"][places]
        best = score.argmax(axis=1)[:, None]
        places, ids = (np.take_along_axis(of, best, axis=1)[:, 0] for of in (places, ids))
        return self._runs(arms, [seeds[i] for i in use], rates, places, ids, reach=reach(score, chance, rates))


@lru_cache(maxsize=1_000)
def _fixed_ids(claim_id: str, scale: str, seeds: tuple[int, ...]) -> list[list[str]]:
    """Return the run ids (arms, seeds) of a claim with one run an arm and seed."""
    from mambanorm.claims.hypotheses import find_claim

    claim = find_claim(claim_id)
    ids = {(config.arm, config.seed): config.run_id for config in fixed_runs(claim, scale, seeds)}
    return [[ids[arm, seed] for seed in seeds] for arm in claim.arms]


TRAINS, LEARNS = 0.8, 5.0
"""A rate trains a model that reaches this share of what its best rate reaches above chance; a model has learned if it
lies this many points above chance."""


def reach(score: np.ndarray, chance: np.ndarray, rates: Sequence[float]) -> np.ndarray:
    """Return log₁₀ of the highest rate that trains, (arms, seeds), by linear interpolation between the last rate that
    does and the next. score, chance: (arms, rates, seeds), per cent. The highest rate if that one trains; the lowest if
    no rate does."""
    found = np.empty((score.shape[0], score.shape[2]))
    for i, k in np.ndindex(*found.shape):
        found[i, k] = _last_that_trains(score[i, :, k], chance[i, :, k].max(), np.log10(rates))
    return found


def _last_that_trains(score: np.ndarray, chance: float, log_rates: np.ndarray) -> float:
    if score.max() <= chance + LEARNS:
        return log_rates[0]
    line = chance + TRAINS * (score.max() - chance)
    last = np.flatnonzero(score >= line)[-1]
    return np.interp(-line, -score[last : last + 2], log_rates[last : last + 2])
