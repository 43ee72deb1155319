"""A run frame as `judge` reads it: the numbers of a claim's arms, seed by seed.

    Evidence    a run frame, looked up by run_id: the order of its rows makes no difference, nor do other runs in it
                (of notebooks, of other depths)
    Paired      the numbers of some arms with shared seeds
    splits_of   what the splits of a task's seeds share

Every arm starts with the same three learning rates, each with every test seed; tuning.py chooses among them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from mambanorm.basics.errors import check_kind
from mambanorm.basics.settings import check_scale, default_scale
from mambanorm.claims import gaps, tuning
from mambanorm.claims.claim import SMALLEST_BITS, SMALLEST_EFFECT
from mambanorm.claims.comparisons import CHANGES, MEASURED, NONE, TEXT_PARTS
from mambanorm.claims.frames import LOOKED_AT, checked, columns_of
from mambanorm.claims.hypotheses import Claim, find_claim
from mambanorm.claims.judged_on import fixed_runs, kind_of
from mambanorm.study.experiments import all_rates, inside_task, ladder, lr_grid, model_of, scaled_lr
from mambanorm.study.tables import check_frame
from mambanorm.training.grid import base_config
from mambanorm.training.presets import LANGUAGE_TASKS

Setting = tuple[tuple[str, Any], ...]
"""Fields of a config in which the runs of another setting differ from those of the scale."""


@lru_cache(maxsize=20_000)
def _ids(task: str, scale: str, arm: str, lr: float, seeds: tuple[int, ...], setting: Setting) -> tuple[str, ...]:
    config = base_config(task, scale, arm=arm, lr=lr, **dict(setting))
    return tuple(config.with_seed(seed).run_id for seed in seeds)


@lru_cache(maxsize=64)
def _grid_ids(
    task: str, scale: str, arms: tuple[str, ...], rates: tuple[float, ...], seeds: tuple[int, ...], setting: Setting
) -> np.ndarray:
    ids = [_ids(task, scale, arm, lr, seeds, setting) for arm in arms for lr in rates]
    return np.array(ids, dtype=object).ravel()


@lru_cache(maxsize=1_000)
def _fixed_ids(claim_id: str, scale: str, seeds: tuple[int, ...], variant: int) -> list[list[str]]:
    """(arms, seeds) run ids of a claim with one run an arm and seed."""
    claim = find_claim(claim_id)
    ids = {(config.arm, config.seed): config.run_id for config in fixed_runs(claim, scale, seeds, variant)}
    return [[ids[arm, seed] for seed in seeds] for arm in claim.arms]


class Splits(NamedTuple):
    """What the seeds' splits share.

    ratio: test rows / rows to train on, where every seed draws them from one pool (Nadeau & Bengio 2003, Eq. 9); 0
    where each seed makes rows of its own. fixed: every seed has the same rows. test_rows: 0 of a language model, whose
    text is that of the Python that trained it.
    """

    test_rows: int
    ratio: float
    fixed: bool

    @property
    def shared(self) -> str:
        return "one test set, whose noise is added" if self.fixed else "a pool of rows" if self.ratio else "nothing"


@lru_cache(maxsize=64)
def splits_of(task: str, scale: str) -> Splits:
    """As the task's shape tells it, else by looking at two seeds."""
    import torch  # here: what is needed of a claim can be told without it

    from mambanorm.tasks import TASKS, check_task, load_task

    entry = TASKS[check_task(task)]
    if task in LANGUAGE_TASKS:
        return Splits(0, 0.0, fixed=True)
    shape = entry.shape(scale) if entry.shape is not None else None
    if shape is not None and shape.fresh:
        return Splits(shape.held_out[1], 0.0, fixed=False)
    if shape is not None and shape.train_rows:
        test, train, fixed = shape.held_out[1], shape.train_rows, not shape.reshuffled
    else:
        data, other = (load_task(task, scale, seed) for seed in (0, 1))
        test, train, fixed = len(data.test), len(data.train), torch.equal(data.test.labels, other.test.labels)
    return Splits(test, 0.0 if fixed else test / train, fixed)


@dataclass(frozen=True, eq=False)
class Paired:
    """Some arms with shared seeds. Arrays are (arms, seeds) or (arms,).

    `columns`: score, validation, chance (per cent; a diverged run scores chance), diverged, and those of §4.6. Of
    language models validation and chance are in bits a character, with a minus, and so is the column bits.
    `lr` the rate of each run, `chosen` that of all seeds together, `edge` ±1 where the arm still improves at an end of
    its grid.
    `diverged` (arms, 2): how many runs diverged, of how many, at all rates. `failed`, `tried` (arms,): the same of the
    rates that count (tuning.py). `gaps`: what is missing, by name; arms without any run are NaN. `calm`: no seed failed
    where it is asked what precedes a failure.
    """

    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    columns: dict[str, np.ndarray]
    ids: np.ndarray
    gaps: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    lr: np.ndarray | None = None
    chosen: np.ndarray | None = None
    promise: np.ndarray | None = None  # mean validation at the run's rate over the other seeds
    edge: np.ndarray | None = None
    grids: tuple[tuple[float, ...], ...] = ()  # of each arm
    diverged: np.ndarray | None = None
    tried: np.ndarray | None = None
    failed: np.ndarray | None = None
    calm: bool = False


class Evidence:
    """A run frame as `judge` reads it. `variant` is one of `variants`; `changes` are fields in which the runs differ
    from those of the scale, such as dict(d_model=16). In place of the frame an Evidence of it can be given, whose rows
    are not read again.

    ValueError for a frame that mixes scales unless `scale` names one, that holds two results of one run, or runs that
    were recorded under another version of the protocol.
    """

    def __init__(
        self,
        frame: pd.DataFrame | Evidence | None,
        scale: str | None = None,
        variant: int = 0,
        changes: Mapping[str, Any] | None = None,
    ):
        if isinstance(frame, Evidence) and scale in (None, frame.scale):
            self.__dict__ |= frame.__dict__
        else:
            self._read(frame, scale)
        self.variant = variant
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
        self._tuned: dict[tuple, Paired] = {}

    @staticmethod
    def _scale(frame: pd.DataFrame, scale: str | None) -> str:
        if scale is not None:
            return check_scale(scale)
        scales = sorted(set(frame.scale.to_numpy(object)))
        if len(scales) > 1:
            raise ValueError(f"the frame mixes the scales {' and '.join(scales)}: name one with scale=")
        return scales[0] if scales else default_scale()

    @property
    def test_seeds(self) -> tuple[int, ...]:
        return tuple(sorted({seed for seeds in self.seeds.values() for seed in seeds}))

    def _places(self, ids: Sequence[str]) -> np.ndarray:
        """Where these runs stand; the last place, which is NaN in every column, where there is no such run."""
        places = self.index.get_indexer(pd.Index(ids, dtype=object))
        return np.where(places < 0, len(self.index), places)

    def diverged(self, run_ids: Sequence[str]) -> np.ndarray:
        """1 or 0 of each of these runs; NaN where there is no such run."""
        return self.columns["diverged"][self._places(run_ids)]

    def paired(self, claim: Claim, task: str) -> Paired:
        """The numbers of the claim's arms on a task, at their tuned rates if the claim tunes."""
        if claim.runs == "ladder":
            return self._climb(claim.arms, task)
        return self.tuned(claim.arms, task) if claim.runs == "tuned" else self._fixed(claim)

    def further_rates(self, arms: Sequence[str], task: str) -> list[tuple[str, float]]:
        """The rates beyond the three that all have, by which an arm's grid grows; the next one is not trained yet."""
        paired, rates = self.tuned(tuple(arms), task), all_rates(task, self.scale, model_of(arms))
        own, found = lr_grid(task, self.scale, model_of(arms)), []
        if paired.chosen is None:
            return found
        for arm, grid_of_arm, edge in zip(paired.arms, paired.grids, paired.edge, strict=True):
            steps = [rate for rate in grid_of_arm if rate not in own]
            if edge:
                ahead = rates.index(grid_of_arm[-1 if edge > 0 else 0]) + int(edge)
                steps += rates[ahead : ahead + 1] if ahead >= 0 else []
            found += [(arm, rate) for rate in steps]
        return found

    # ------------------------------------------------------------------------------------------------- tuned claims

    def tuned(self, arms: tuple[str, ...], task: str) -> Paired:
        """The arms at their cross-fitted learning rates, on the seeds that have every rate of every arm."""
        if (key := (task, arms, self.setting)) not in self._tuned:
            self._tuned[key] = self._tune(arms, task)
        return self._tuned[key]

    def _tune(self, arms: tuple[str, ...], task: str) -> Paired:
        model = model_of(arms)
        rates, base = all_rates(task, self.scale, model), lr_grid(task, self.scale, model)
        three, kept, missing, named = self._whole(arms, task, base)
        at = np.full((len(arms), len(rates), len(kept)), len(self.index))
        first = rates.index(base[0])
        at[:, first : first + len(base)] = three
        return self._choose(arms, task, kept, at, missing, named)

    def _whole(self, arms: tuple[str, ...], task: str, rates: tuple[float, ...]) -> tuple:
        """Where the runs stand, (arms, rates, seeds), of the seeds that have every rate of every arm; these seeds; what
        is missing of all seeds, and what of the seeds that are left out."""
        seeds = self.seeds.get(task, ())
        shape = len(arms), len(rates), len(seeds)
        at = self._places(_grid_ids(task, self.scale, arms, rates, seeds, self.setting)).reshape(shape)
        there = at < len(self.index)
        tried = there.any(axis=2)
        some, there = there.any(axis=(0, 1)), there | ~tried[..., None]  # what is nowhere is told once, as a gap
        whole = some & there.all(axis=(0, 1))
        left_out = tuple(seed for seed, yes in zip(seeds, some & ~whole, strict=True) if yes)
        named = gaps.missing_seeds(arms, rates, left_out, there[:, :, some & ~whole])
        kept = tuple(seed for seed, yes in zip(seeds, whole, strict=True) if yes)
        return at[:, :, whole], kept, gaps.missing_rates(arms, rates, tried), named

    def _choose(self, arms, task, seeds, at, missing, left_out) -> Paired:
        """The rates of every arm, each seed's by the others. at: (arms, rates, seeds), where the runs stand."""
        model, absent = model_of(arms), len(self.index)
        rates = all_rates(task, self.scale, model)
        names = ("validation", "chance", "diverged", *MEASURED, *CHANGES)
        columns, smallest = self.columns, SMALLEST_EFFECT
        if kind_of(task) == "language":
            columns = columns | {name: columns[f"bits_{name}"] for name in ("validation", "chance")}
            names, smallest = (*names, *TEXT_PARTS), SMALLEST_BITS
        if not seeds:
            empty = {name: np.empty((len(arms), 0)) for name in names}
            none = np.zeros((len(arms), 2))
            return Paired(arms, (), empty, np.empty((len(arms), 0), object), missing, left_out, diverged=none)
        validation, usable = columns["validation"][at], (at < absent).all(axis=2)
        for i, arm in enumerate(arms):

            def look(j: int, i: int = i, arm: str = arm) -> np.ndarray | None:
                at[i, j] = self._places(_ids(task, self.scale, arm, rates[j], seeds, self.setting))
                return None if (at[i, j] == absent).any() else columns["validation"][at[i, j]]

            tuning.grow(validation[i], usable[i], look, smallest)
        chosen = tuning.crossfit(validation, usable, rates.index(scaled_lr(task, self.scale, 1.0, model)))
        found = np.take_along_axis(at, chosen.choice[:, None], axis=1)[:, 0]
        diverged = np.where(usable[..., None], columns["diverged"][at], 0.0).sum(axis=2)  # (arms, rates)
        counted = tuning.rates_that_count(diverged, usable, chosen.choice)
        return Paired(
            arms,
            seeds,
            {name: columns[name][found] for name in names},
            self.ids[found],
            missing,
            left_out,
            lr=np.array(rates)[chosen.choice],
            chosen=np.array(rates)[chosen.chosen],
            promise=chosen.promise,
            edge=np.array([tuning.edge(*one, smallest) for one in zip(validation, usable, strict=True)]),
            grids=tuple(tuple(rates[j] for j in np.flatnonzero(ok)) for ok in usable),
            diverged=np.stack([diverged.sum(axis=1), usable.sum(axis=1) * len(seeds)], axis=1),
            tried=len(seeds) * counted.sum(axis=1),
            failed=np.where(counted, diverged, 0.0).sum(axis=1),
        )

    # ------------------------------------------------------------------------------------------------- ladders of rates

    def _climb(self, arms: tuple[str, ...], task: str) -> Paired:
        """How high each arm's rate can be with each seed (`reach`); score, chance and diverged are those of the rate
        that is best for it."""
        rates = ladder(task, self.scale)
        at, seeds, missing, left_out = self._whole(arms, task, rates)
        columns = {name: self.columns[name][at] for name in ("score", "chance", "diverged")}
        best = np.nan_to_num(columns["score"], nan=-1.0).argmax(axis=1)[:, None]  # (arms, 1, seeds)
        of_best = {name: np.take_along_axis(values, best, axis=1)[:, 0] for name, values in columns.items()}
        ran = np.isfinite(columns["diverged"])
        return Paired(
            arms,
            seeds,
            of_best | dict(reach=tuning.reach(columns["score"], columns["chance"], rates)),
            self.ids[np.take_along_axis(at, best, axis=1)[:, 0]],
            missing,
            left_out,
            diverged=np.stack([np.nansum(columns["diverged"], axis=(1, 2)), ran.sum(axis=(1, 2))], axis=1),
        )

    # ------------------------------------------------------------------------------------------------- claims of §4.6

    def _fixed(self, claim: Claim) -> Paired:
        """One run an arm and seed; where the question is what happens before a failure, of the seeds that failed."""
        seeds = np.array(self.seeds.get(inside_task(self.scale), ()), int)
        ids = np.array(_fixed_ids(claim.id, self.scale, tuple(seeds.tolist()), self.variant), dtype=object)
        at = self._places(ids.ravel()).reshape(len(claim.arms), len(seeds))
        some = (at < len(self.index)).any(axis=0)  # the seeds of this claim, among those of others
        calm = self.columns["diverged"][at[claim.arms.index(NONE)]] == 0
        calm &= some & (claim.runs in ("growth", "failing"))
        calm_text = f"no failure to look back from with seeds {gaps.listed(seeds, calm)}"
        names = ["score", *(c.column for c in claim.comparisons)]
        asked = some & ~calm
        known = {name: np.isfinite(self.columns[name][at[:, asked]]) for name in names}
        missing, lacking = gaps.missing_columns(claim.arms, seeds[asked], known)
        there = [rows | ~rows.any(axis=1, keepdims=True) for rows in known.values()]
        kept = np.flatnonzero(asked)[np.logical_and.reduce(there).all(axis=0)]
        columns = {name: self.columns[name][at[:, kept]] for name in (*names, "chance", "diverged")}
        left_out = (*([calm_text] if calm.any() else []), *lacking)
        alone = bool(calm.any() and not asked.any())  # every seed was run, and none of them failed
        runs = self.columns["diverged"][at]
        counts = np.stack([np.nansum(runs, axis=1), np.isfinite(runs).sum(axis=1)], axis=1)
        return Paired(
            claim.arms,
            tuple(seeds[kept].tolist()),
            columns,
            self.ids[at[:, kept]],
            () if alone else tuple(missing),
            left_out[:1] if alone else left_out,
            diverged=counts,
            calm=alone,
        )
