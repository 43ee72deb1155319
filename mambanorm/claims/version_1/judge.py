"""The rule of version 1: a hypothesis and a run frame → a FirstVerdict. Frozen: see `__init__.py`.

Each comparison gives one number a seed, and these numbers a mean with an interval.

    reproduced     every interval lies wholly above its threshold; of H8, that of the main comparison
    contradicted   one lies wholly below it; of H2 and H6, the one against the rival that the select seeds name
    inconclusive   anything else
    sketch         fewer than 6 seeds, an untuned arm, an arm or a rival missing: no verdict
    not run        nothing to compare

Each arm is tuned on the validation of two seeds that no test uses. A diverged run is scored as chance. Intervals are
paired t at 95 %, by Bonferroni simultaneous over the comparisons of all tasks that have a verdict; of a rate they are
exact. On several tasks a claim is reproduced if it is on each, and contradicted if it is on one and reproduced on none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import numpy as np
import pandas as pd

from mambanorm.basics.errors import unknown
from mambanorm.basics.settings import check_scale, default_scale
from mambanorm.claims.version_1.hypotheses import (
    FEWEST_SEEDS,
    HYPOTHESES,
    NONE,
    SELECT_SEEDS,
    TUNE_SEEDS,
    UNITS,
    Comparison,
    Hypothesis,
    depth_setting,
    failure_settings,
    learning_rates,
)
from mambanorm.study.intervals import clopper_pearson, deviations, simultaneous, t_interval
from mambanorm.study.tables import check_frame
from mambanorm.training.grid import base_config
from mambanorm.training.presets import VISION_TASKS

VERDICTS = ("reproduced", "contradicted", "inconclusive")
STATES = ("fails", "open", "holds")
FIXED_TASK = "digits"  # of the runs whose settings are part of the question
LOOKED_AT = ("run_id", "status", "test_accuracy", "best_val_accuracy", "chance", "task", "scale", "seed", "role")
STORED = {"growth": "growth_train", "law": "law_train"} | {
    name: name for name in ("sigma_rise", "sigma_trend", "unevenness")
}
"""What a comparison is about → the column of the frame, where the two are not computed from each other."""

Row = dict[str, object]


@dataclass(frozen=True)
class FirstVerdict:
    """What version 1 says of a claim: reproduced | contradicted | inconclusive | sketch | not run.

    `effect`, `ci` and `threshold` are those of the comparison that decides, in `unit`; NaN where nothing was run.
    by_task: task → its own verdict.
    """

    claim: str
    verdict: str
    effect: float
    ci: tuple[float, float]
    n_seeds: int
    decided_by: str  # the comparison, and its task where there are several
    unit: str
    threshold: float
    by_task: dict[str, str]


def judge_version_1(
    claim_id: str, frame: pd.DataFrame, *, scale: str | None = None, tasks: Iterable[str] | None = None
) -> FirstVerdict:
    """The verdict of version 1 on a run frame; `tasks` None = those of the frame that the claim is about.

    The frame may hold any other runs as well. H10 to H12 read its columns growth_train, law_train, sigma_rise,
    sigma_trend and unevenness. ValueError for an unknown claim, for two results of one run, and for a frame that mixes
    scales unless `scale` names one.
    """
    if claim_id not in HYPOTHESES:
        raise unknown("claim of version 1", claim_id, HYPOTHESES)
    claim, runs = HYPOTHESES[claim_id], _Runs(frame, scale)
    asked = [task for task in dict.fromkeys(runs.tasks if tasks is None else tasks) if _is_about(claim, task)]
    findings = [_judge_task(claim, runs, task, families=1) for task in asked]
    families = sum(finding.verdict in VERDICTS for finding in findings)
    if families > 1:  # they share one verdict, and its 5 %
        findings = [_judge_task(claim, runs, task, families) for task in asked]
    return _combine(claim, findings)


def _is_about(claim: Hypothesis, task: str) -> bool:
    if claim.runs != "tuned":
        return task == FIXED_TASK
    return (task in VISION_TASKS) == claim.id.endswith("v")


# ---------------------------------------------------------------------------------------------------------------------
# the runs


@lru_cache(maxsize=100_000)
def _tuned_id(task: str, scale: str, arm: str, seed: int, lr: float) -> str:
    return base_config(task, scale, arm=arm, seed=seed, lr=lr).run_id


@lru_cache(maxsize=10_000)
def _fixed_id(scale: str, arm: str, seed: int, depth_or_cell: str | int) -> str:
    """A run of "depth", or of one cell of `failure_settings`."""
    setting = depth_setting(scale) if depth_or_cell == "depth" else failure_settings(scale)[depth_or_cell]
    return base_config(FIXED_TASK, scale, arm=arm, seed=seed, **setting).run_id


class _Runs:
    """The runs of one scale that ended or diverged, looked up by run_id; accuracies in points."""

    def __init__(self, frame: pd.DataFrame, scale: str | None):
        frame = frame if len(frame) else pd.DataFrame(columns=LOOKED_AT)
        if len(frame):
            check_frame(frame, LOOKED_AT)
        self.scale = _scale(frame, scale)
        runs = frame[(frame.scale == self.scale) & frame.status.isin(["ok", "diverged"])]
        runs = runs.drop_duplicates(["run_id", "status", "test_accuracy", "best_val_accuracy"])
        if (twice := runs.run_id.duplicated()).any():
            raise ValueError(f"the frame holds two different results of run {runs.run_id[twice].iloc[0]}: keep one")
        self.tasks = sorted(set(runs.task))
        self.test_seeds = sorted({int(seed) for seed in runs.seed[runs.role == "test"]})
        self._places = pd.Index(runs.run_id)
        self._columns = {name: np.append(values, np.nan) for name, values in _facts(runs).items()}
        self._rates: dict[tuple[str, str], np.ndarray] = {}

    def at(self, ids: Sequence[Sequence[str]], column: str) -> np.ndarray:
        """That column of the runs with these ids, in the shape of `ids`; NaN where there is no such run."""
        return self._columns[column][self._places.get_indexer(np.ravel(ids))].reshape(np.shape(ids))  # −1 is the NaN

    def tuning(self, task: str, arm: str) -> np.ndarray:
        """Validation at each rate of the grid, mean over the tune seeds; NaN where one of them is missing."""
        if (task, arm) not in self._rates:
            rates = learning_rates(task, self.scale)
            ids = [[_tuned_id(task, self.scale, arm, seed, lr) for seed in TUNE_SEEDS] for lr in rates]
            self._rates[task, arm] = self.at(ids, "validation").mean(axis=1)
        return self._rates[task, arm]

    def is_tuned(self, task: str, arm: str) -> bool:
        return bool(np.isfinite(self.tuning(task, arm)).all())

    def lr(self, task: str, arm: str) -> float:
        """The best rate by validation, the smaller of equals; the scale's own while the arm is not tuned."""
        if not self.is_tuned(task, arm):
            return base_config(task, self.scale).lr
        return learning_rates(task, self.scale)[int(self.tuning(task, arm).argmax())]

    def table(self, claim: Hypothesis, task: str, column: str, seeds: Sequence[int]) -> pd.DataFrame:
        """seed × arm of the claim's runs; NaN where there is no such run."""
        arms, place = claim.arms, {"depth": "depth", "failing": -1}.get(claim.runs)
        if claim.runs == "tuned":
            rates = {arm: self.lr(task, arm) for arm in arms}
            ids = [[_tuned_id(task, self.scale, arm, seed, rates[arm]) for arm in arms] for seed in seeds]
        else:
            ids = [[_fixed_id(self.scale, arm, seed, place) for arm in arms] for seed in seeds]
        values = self.at(ids, column) if len(seeds) else np.empty((0, len(arms)))
        return pd.DataFrame(values, index=list(seeds), columns=list(arms))


def _scale(frame: pd.DataFrame, scale: str | None) -> str:
    if scale is not None:
        return check_scale(scale)
    scales = sorted(set(frame.scale))
    if len(scales) > 1:
        raise ValueError(f"the frame mixes the scales {' and '.join(scales)}: name one with scale=")
    return scales[0] if scales else default_scale()


def _facts(runs: pd.DataFrame) -> dict[str, np.ndarray]:
    """What comparisons are about, by name. A diverged run is scored as chance, whatever it had reached."""
    diverged, chance = (runs.status == "diverged").to_numpy(), runs.chance.to_numpy(float)
    facts = {"diverged": diverged.astype(float)}
    for name, column in (("score", "test_accuracy"), ("validation", "best_val_accuracy")):
        facts[name] = 100 * np.where(diverged, chance, runs[column].to_numpy(float))
    for name, column in STORED.items():
        facts[name] = runs[column].to_numpy(float) if column in runs else np.full(len(runs), np.nan)
    return facts | {"steepness": np.abs(facts["growth"])}


# ---------------------------------------------------------------------------------------------------------------------
# one task: comparisons as rows


@dataclass(frozen=True)
class _Finding:
    task: str
    verdict: str
    rows: list[Row]
    decisive: Row | None = None


def _judge_task(claim: Hypothesis, runs: _Runs, task: str, families: int) -> _Finding:
    """What one task says. `families`: how many tasks the intervals are simultaneous over."""
    made, rival = _selected(claim, runs, task)
    rows = _failure_rows(claim, runs) if claim.measure == "failure" else _rows(claim, runs, task, made, families)
    found = [row for row in rows if row["n"]]
    if not found:
        return _Finding(task, "not run", [])
    whole = len(found) == len(rows) and (rival or claim.select != "rival")
    tuned = claim.runs != "tuned" or all(runs.is_tuned(task, arm) for arm in claim.arms)
    enough = min(row["n"] for row in found) >= FEWEST_SEEDS
    verdict = _decide(found, rival) if whole and tuned and enough else "sketch"
    return _Finding(task, verdict, found, _decisive(found, rival))


def _selected(claim: Hypothesis, runs: _Runs, task: str) -> tuple[list[Comparison], str]:
    """The comparisons that are made, and the name of the hardest rival, both by validation on the select seeds. A group
    that lacks a select run becomes a comparison of nothing."""
    if not claim.select:
        return list(claim.comparisons), ""
    table = runs.table(claim, task, "validation", SELECT_SEEDS)
    means = {c.name: _contrast(table, c).mean() for c in claim.comparisons}
    if claim.select == "rival":
        known = all(np.isfinite(mean) for mean in means.values())
        return list(claim.comparisons), min(means, key=means.get) if known else ""
    made = []
    for group, members in groupby(claim.comparisons, key=lambda c: c.group):
        members = list(members)
        known = all(np.isfinite(means[c.name]) for c in members)
        made.append(max(members, key=lambda c: means[c.name]) if known else Comparison(group, {}))
    return made, ""


def _rows(claim: Hypothesis, runs: _Runs, task: str, made: list[Comparison], families: int) -> list[Row]:
    tables = {column: runs.table(claim, task, column, runs.test_seeds) for column in {c.column for c in made}}
    measure = _spread if claim.measure == "spread" else _contrast
    rows = []
    for comparison in made:
        values = measure(tables[comparison.column], comparison)
        values = values[np.isfinite(values)]
        facts = dict(task=task, comparison=comparison.name, n=len(values), unit=UNITS[comparison.column])
        facts |= dict(effect=float(values.mean()) if len(values) else np.nan, each=t_interval(values))
        facts |= dict(interval=t_interval(values, simultaneous(claim.m * families)))
        threshold = claim.threshold if comparison.threshold is None else comparison.threshold
        rows.append(_judged(claim, facts | dict(threshold=threshold)))
    return rows


def _contrast(table: pd.DataFrame, comparison: Comparison) -> np.ndarray:
    """The weighted sum of the arms by seed; NaN where one of them has no run with that seed."""
    weights = comparison.weights
    if not weights:
        return np.full(len(table), np.nan)
    return table[list(weights)].to_numpy() @ np.array(list(weights.values()))


def _spread(table: pd.DataFrame, comparison: Comparison) -> np.ndarray:
    """Mean |y − median| over the arms with a positive weight minus the same over those with a negative one, by seed."""
    wide = [arm for arm, weight in comparison.weights.items() if weight > 0]
    narrow = [arm for arm, weight in comparison.weights.items() if weight < 0]
    return deviations(table[wide].to_numpy(), axis=1) - deviations(table[narrow].to_numpy(), axis=1)


def _failure_rows(claim: Hypothesis, runs: _Runs) -> list[Row]:
    """The share of non-finite ends in each cell of depth × learning rate, in per cent; one family whatever the task."""
    rows, cells = [], failure_settings(runs.scale)
    for cell, setting in enumerate(cells):
        name = f"None→None, {setting['n_layers']} blocks, lr {setting['lr']:g}"
        ended = runs.at([_fixed_id(runs.scale, NONE, seed, cell) for seed in runs.test_seeds], "diverged")
        ended = ended[np.isfinite(ended)]
        k, n = int(ended.sum()), len(ended)
        facts = dict(task=FIXED_TASK, comparison=name, n=n, unit=claim.unit, threshold=claim.threshold)
        facts |= dict(effect=100 * k / n if n else np.nan, each=_rate_interval(k, n))
        rows.append(_judged(claim, facts | dict(interval=_rate_interval(k, n, simultaneous(len(cells))))))
    return rows


def _rate_interval(k: int, n: int, level: float = 0.95) -> tuple[float, float]:
    return tuple(100 * end for end in clopper_pearson(k, n, level)) if n else (np.nan, np.nan)


# ---------------------------------------------------------------------------------------------------------------------
# the rule


def _judged(claim: Hypothesis, facts: Row) -> Row:
    """Adds `state`, and `main`: whether the row takes part in the decision."""
    low = facts["each" if claim.correction == "each" else "interval"][0]
    high = facts["interval"][1]
    state = "holds" if low > facts["threshold"] else "fails" if high < facts["threshold"] else "open"
    return facts | dict(state=state, main=claim.main in ("", facts["comparison"]))


def _decide(rows: list[Row], rival: str) -> str:
    """All hold → reproduced; one fails (the rival's, where there is one) → contradicted."""
    main = [row for row in rows if row["main"]]
    if all(row["state"] == "holds" for row in main):
        return "reproduced"
    fails = any(row["state"] == "fails" for row in main if rival in ("", row["comparison"]))
    return "contradicted" if fails else "inconclusive"


def _decisive(rows: list[Row], rival: str) -> Row:
    """The rival's row, or that of the main ones which comes closest to failing."""
    main = [row for row in rows if row["main"]] or rows
    return next((row for row in main if rival and row["comparison"] == rival), min(main, key=_strength))


def _strength(row: Row) -> tuple[int, float]:
    """First fails, open, holds; then the distance from the threshold, in widths of the interval."""
    width, margin = row["interval"][1] - row["interval"][0], row["effect"] - row["threshold"]
    return STATES.index(row["state"]), margin / width if width > 0 else np.inf * np.sign(margin) if margin else 0.0


def _combine(claim: Hypothesis, findings: list[_Finding]) -> FirstVerdict:
    """One verdict from the tasks: those with a verdict of their own decide, else those with a sketch."""
    counted = [f for f in findings if f.verdict in VERDICTS] or [f for f in findings if f.verdict == "sketch"]
    found = {f.verdict for f in counted}
    verdict = "not run" if not counted else found.pop() if len(found) == 1 else "inconclusive"
    if "contradicted" in found and "reproduced" not in found:
        verdict = "contradicted"
    by_task = {f.task: f.verdict for f in findings}
    if not counted:
        nothing = (np.nan, np.nan)
        return FirstVerdict(claim.id, verdict, np.nan, nothing, 0, "", claim.unit, claim.threshold, by_task)
    row = min((f.decisive for f in counted), key=_strength)
    uncorrected = claim.correction == "each" and row["state"] == "holds"  # what an intersection–union test rests on
    return FirstVerdict(
        claim=claim.id,
        verdict=verdict,
        effect=row["effect"],
        ci=row["each" if uncorrected else "interval"],
        n_seeds=min(row["n"] for f in counted for row in f.rows),
        decided_by=row["comparison"] + (f" on {row['task']}" if len(counted) > 1 else ""),
        unit=row["unit"],
        threshold=row["threshold"],
        by_task=by_task,
    )
