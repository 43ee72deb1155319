"""A claim on one task → a Verdict: its comparisons as rows, each with its interval and its word, and the claim's word."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from mambanorm.claims import rule
from mambanorm.claims.claim import CONTROL, NONE, SMALLEST_BITS, SMALLEST_EFFECT, Claim, Comparison, minus
from mambanorm.claims.evidence import VERSION, Evidence, Runs, kind_of, shared_rows, tasks_of
from mambanorm.claims.hypotheses import find_claim
from mambanorm.study.experiments import failure_runs
from mambanorm.study.intervals import clopper_pearson, fisher
from mambanorm.study.paper import paper_values
from mambanorm.study.tables import label, points

STILL_IMPROVES = 1 / 3
"""An arm gets a footnote if more of its runs than this have their best step in the last tenth of training."""

DIFFERENCES = ("pp", "bits a character")
"""Units of differences that are printed with `tables.points`."""


@dataclass(frozen=True)
class Row:
    """One comparison on one task: its mean difference, the plain 95 % interval, and its word.

    smallest: the smallest effect of interest, in `unit`. corrected: how many comparisons the word was corrected for,
    where that changed it. fresh: whether no verdict had been read on these runs before this version of the protocol.
    failed: arm → (runs that diverged, runs). why: the reason for having no word, or how often the control failed.
    """

    comparison: str
    task: str
    unit: str
    smallest: float
    word: str = rule.NO_WORD
    effect: float = np.nan
    low: float = np.nan
    high: float = np.nan
    n: int = 0
    per_seed: tuple[float, ...] = ()
    decides: bool = True
    paper: float = np.nan  # the same comparison in the paper's numbers
    seeds_to_tell: int | None = None
    corrected: int = 0
    fresh: bool = True
    rates: Mapping[str, float] | None = None  # arm → learning rate
    failed: Mapping[str, tuple[int, int]] | None = None
    footnotes: tuple[str, ...] = ()
    run_ids: tuple[str, ...] = ()
    why: str = ""

    @property
    def amount(self) -> str:
        """`+2.3 points [0.4, 4.2]`, or the effect in another unit."""
        if self.unit in DIFFERENCES and np.isfinite(self.low):
            return points(self.effect, self.low, self.high, self.unit)
        interval = f" [{self.low:.3g}, {self.high:.3g}]" if np.isfinite(self.low) else ""
        return f"{self.effect:.3g}{interval} {'points' if self.unit == 'pp' else self.unit}".replace("-", "−")

    @property
    def smallest_effect(self) -> str:
        if self.unit == "pp":
            return "a point" if self.smallest == 1 else f"{self.smallest:g} points"
        return f"{self.smallest:g} {self.unit}"

    @property
    def said(self) -> str:
        """The word as it is printed: `supported, by more than a point`, `no gain of a point (corrected for 4
        comparisons)`."""
        said, of_failures = self.word, self.unit == "% of runs"
        if self.word == rule.NO_GAIN:
            said = "no gain: fewer than half of the runs fail" if of_failures else f"no gain of {self.smallest_effect}"
        elif self.word == rule.SUPPORTED and self.low > self.smallest > 0 and not of_failures:
            said = f"supported, by more than {self.smallest_effect}"
        return said + (f" (corrected for {self.corrected} comparisons)" if self.corrected else "")


@dataclass(frozen=True, eq=False)
class Verdict:
    """What the runs of one task say about a claim. `rows`: its comparisons, the deciding ones first."""

    claim: Claim
    task: str
    scale: str
    word: str
    rows: tuple[Row, ...]
    turns_on: Row  # the comparison that decides the word
    protocol: int = VERSION

    @property
    def n(self) -> int:
        """The number of seeds of the deciding comparison; 0 if the claim was not run."""
        return self.turns_on.n

    @property
    def fresh(self) -> bool:
        return self.turns_on.fresh

    @property
    def said(self) -> str:
        return self.turns_on.said if self.word == self.turns_on.word else self.word

    @property
    def brief(self) -> str:
        """`opposite (GN→GN − IN→IN: −20.3 points [−32.9, −7.6])`"""
        return f"{self.said} ({self.turns_on.comparison}: {self.turns_on.amount})" if self.n else "not run"

    @property
    def reason(self) -> str:
        """About how many seeds would tell, or why there is no word; "" for the other words."""
        if self.word == rule.CANNOT_TELL:
            seeds = self.turns_on.seeds_to_tell
            return f"about {seeds} new seeds would tell" if seeds else "more seeds would be needed than there are"
        return self.turns_on.why if self.word == rule.NO_WORD else ""

    @property
    def footnotes(self) -> tuple[str, ...]:
        """What to know besides the word: failed runs, unfinished training, the second-best rates, seeds, the claim's
        note."""
        notes = [] if self.fresh or not self.n else ["not fresh: earlier versions of the rule were read on these runs"]
        notes += self.turns_on.footnotes
        if self.claim.runs == "failure" and self.turns_on.why:
            notes.append(self.turns_on.why)
        return (*notes, self.claim.note) if self.claim.note else tuple(notes)

    @property
    def table(self) -> pd.DataFrame:
        """One row a comparison, with the fields of `Row`."""
        return pd.DataFrame([asdict(row) for row in self.rows])

    @property
    def basis(self) -> str:
        """What the verdict rests on: "protocol 12, quick scale, digits, not the paper's Breakfast"."""
        place = self.claim.printed_on
        same = self.scale == "paper" and place.lower().replace("-", "") == self.task
        unasked = ", which the paper does not ask" if self.claim.beyond else ", a kind of task that the paper has not"
        other = "" if same else f", not the paper's {place}" if place else unasked
        return f"protocol {self.protocol}, {self.scale} scale, {self.task or 'no task'}{other}"


def judge(
    claim_id: str | Claim,
    frame: pd.DataFrame | Evidence,
    *,
    scale: str | None = None,
    task: str | None = None,
    changes: Mapping[str, Any] | None = None,
    tuning: bool = False,
) -> Verdict:
    """Return the verdict of one claim on one task from a run frame; no run is trained.

    frame: load_runs(), with the columns of summaries.with_summaries for the claims on the inside of models (H10 to H12,
    H16, E1). It may hold other runs as well. task: None = the first of the frame's that the claim is about. changes:
    judge the runs that differ from those of the scale in these fields, such as dict(n_layers=8). tuning: judge on the
    tuning seeds, as the protocol's predictions do. ValueError for an unknown claim, a frame that `Evidence` refuses,
    and `changes` of a claim whose settings are part of the question.
    """
    claim = find_claim(claim_id)
    if changes and claim.runs != "tuned":
        raise ValueError(f"{claim.id} is about runs with fixed settings, which are part of the question: no changes")
    evidence = Evidence(frame, scale, tuning=tuning, changes=changes)
    if task is None:
        task = next(iter(tasks_of(claim, evidence.tasks, evidence.scale)), "")
    rows = _failure_rows(claim, evidence, task) if claim.runs == "failure" else _rows(claim, evidence, task)
    deciding = [row for row in rows if row.decides]
    if claim.measured:
        turns_on = next((row for row in rows if row.n), rows[0])
        return Verdict(claim, task, evidence.scale, rule.NO_WORD, tuple(rows), turns_on)
    word = rule.word_of_claim([row.word for row in deciding], claim.one_suffices)
    agreeing = [row for row in deciding if row.word == word]
    strongest, weakest = (lambda row: np.nan_to_num(row.low)), (lambda row: np.nan_to_num(row.high))
    turns_on = max(agreeing, key=strongest) if claim.one_suffices else min(agreeing, key=weakest)
    return Verdict(claim, task, evidence.scale, word, tuple(rows), turns_on)


def verdicts(
    frame: pd.DataFrame | Evidence,
    claims: Iterable[str],
    *,
    scale: str | None = None,
    tasks: Iterable[str] | None = None,
) -> list[Verdict]:
    """Return one verdict for each claim and task; a claim without runs has one, with n = 0. `tasks`: None = those of
    the frame."""
    evidence, found = Evidence(frame, scale), []
    tasks = evidence.tasks if tasks is None else list(tasks)
    for name in claims:
        asked = tasks_of(find_claim(name), tasks, evidence.scale)
        judged = [judge(name, evidence, task=task) for task in asked] or [judge(name, evidence, task="")]
        found += [one for one in judged if one.n] or judged[:1]
    return found


def _rows(claim: Claim, evidence: Evidence, task: str) -> list[Row]:
    lower, upper = rule.levels(max(len(claim.deciding), 1), claim.one_suffices)
    rows = []
    for group in claim.deciding:
        row = _row(claim, _chosen(group, evidence, task), evidence, task)
        word = rule.word_of(row.per_seed, row.smallest, lower, upper) if not row.why else rule.NO_WORD
        rows.append(_with(row, word=word, corrected=0 if word == row.word else len(claim.deciding)))
    beside = [comparison for comparison in claim.comparisons if not comparison.decides]
    return rows + [_row(claim, comparison, evidence, task) for comparison in beside]


def _chosen(group: Sequence[Comparison], evidence: Evidence, task: str) -> Comparison:
    """Return the comparison of a group that is best by validation, on the tuning seeds that all its arms have."""
    if len(group) == 1:
        return group[0]
    runs = _tuning(evidence).of_arms(dict.fromkeys(arm for one in group for arm in one.weights), task)
    if runs.missing:
        return group[0]
    validation = dict(zip(runs.arms, runs.columns["validation"].mean(axis=1), strict=True))
    return max(group, key=lambda one: sum(weight * validation[arm] for arm, weight in one.weights.items()))


def _tuning(evidence: Evidence) -> Evidence:
    return Evidence(evidence, tuning=True, changes=dict(evidence.changes))


def _row(claim: Claim, comparison: Comparison, evidence: Evidence, task: str) -> Row:
    """Return the row of one comparison, with its word at the plain levels."""
    smallest = claim.smallest_of(comparison)
    row = Row(comparison.name, task, comparison.unit, smallest, decides=comparison.decides)
    runs = evidence.of_claim(claim, comparison.weights, task)
    differences = runs.total(comparison)
    if not len(differences):
        return _with(row, why=runs.missing or f"the runs lack {comparison.column}")
    low, high = rule.interval(differences)
    row = _with(
        row,
        effect=float(differences.mean()),
        low=low,
        high=high,
        n=len(differences),
        per_seed=tuple(differences.tolist()),
        paper=printed(claim, comparison, task),
        fresh=runs.fresh,
        rates=dict(zip(runs.arms, runs.rates, strict=True)) if claim.runs == "tuned" else None,
        failed=_failed(runs) if claim.runs in ("tuned", "deep") else None,
        run_ids=tuple(runs.run_ids.ravel()),
    )
    if claim.runs == "tuned":
        row = _with(row, footnotes=tuple(_footnotes(runs, comparison, evidence, task)))
    why = claim.measured or _why_no_word(claim, comparison, runs, row.n)
    if why:
        return _with(row, why=why)
    row = _with(row, word=rule.word_of(differences, smallest))
    return _with(row, seeds_to_tell=rule.seeds_to_tell(differences, smallest)) if row.n > 1 else row


def _with(row: Row, **fields: Any) -> Row:
    return replace(row, **fields)


def _why_no_word(claim: Claim, comparison: Comparison, runs: Runs, n: int) -> str:
    if n < rule.FEWEST:
        return f"{n} pairs of runs, and {rule.FEWEST} are needed"
    if claim.runs not in ("tuned", "ladder"):
        return ""
    score = runs.columns["bits" if comparison.column == "bits" else "score"]
    above_chance = score - runs.columns["chance"]
    for side in comparison.sides():
        if not side or rule.interval(above_chance[[arm in side for arm in runs.arms]].mean(axis=0))[0] > 0:
            return ""
    return "both sides' accuracy may be chance"


def _failed(runs: Runs) -> dict[str, tuple[int, int]]:
    return {arm: (int(row.sum()), len(row)) for arm, row in zip(runs.arms, runs.columns["diverged"], strict=True)}


def _footnotes(runs: Runs, comparison: Comparison, evidence: Evidence, task: str) -> list[str]:
    n, notes = len(runs.seeds), []
    for text, counts in (
        ("failed", runs.columns["diverged"].sum(axis=1)),
        ("still improved at the end", runs.columns["late"].sum(axis=1)),
    ):
        least = 0 if text == "failed" else STILL_IMPROVES * n
        named = [f"{label(arm)} {k:.0f}" for arm, k in zip(runs.arms, counts, strict=True) if k > least]
        if named:
            notes.append(f"{text}: {', '.join(named)} of {n} runs")
    second = _tuning(evidence).of_arms(runs.arms, task, rank=1).total(comparison)
    if len(second) > 1:
        at_second = points(second.mean(), *rule.interval(second), comparison.unit)
        notes.append(f"at the second-best learning rates, tuning seeds: {at_second}")
    if shared := shared_rows(task, evidence.scale):
        notes.append(f"the seeds share {shared}: the interval speaks of it alone")
    return notes


def compare_arms(arm: str, against: str, evidence: Evidence, task: str) -> Row:
    """Return the row of two arms on a task without a claim: better, worse, about the same, or cannot tell."""
    language = kind_of(task) == "language"
    comparison = minus(arm, against, column="bits" if language else "score")
    claim = Claim("", "", "", "", "", (comparison,), smallest=SMALLEST_BITS if language else SMALLEST_EFFECT)
    row = _row(claim, comparison, evidence, task)
    return row if row.why else _with(row, word=rule.better_or_worse(row.per_seed, row.smallest))


@lru_cache(maxsize=16)
def _printed(kind: str, task: str) -> dict[str, float]:
    values = paper_values(kind)
    return dict(values[values.task == task].set_index("arm").accuracy)


def printed(claim: Claim, comparison: Comparison, task: str) -> float:
    """Return the same weighted sum of the paper's numbers, in points; NaN if the paper does not print them all.

    Numbers of the main experiments are shown for every task; those of a task that this kit has as well (ListOps, for
    H8s) for that task only.
    """
    if claim.runs != "tuned" or comparison.column != "score" or not claim.id or not claim.printed_on:
        return float("nan")
    accuracy = _printed(claim.kind, claim.printed_on)
    elsewhere = claim.paper_task and task != claim.paper_task.lower()
    if elsewhere or not set(comparison.weights) <= set(accuracy):
        return float("nan")
    return round(100 * sum(weight * accuracy[arm] for arm, weight in comparison.weights.items()), 4)


# ------------------------------------------------------------------------------------------ H9: how often training fails


@lru_cache(maxsize=64)
def _cells(scale: str, seeds: tuple[int, ...]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return the run ids of each depth × learning rate, one a seed, by arm."""
    cells: dict[str, dict[str, tuple[str, ...]]] = {}
    for config in failure_runs(scale, seeds):
        by_arm = cells.setdefault(f"None→None fails, {config.n_layers} blocks, lr {config.lr:g}", {})
        by_arm[config.arm] = (*by_arm.get(config.arm, ()), config.run_id)
    return cells


def _failure_rows(claim: Claim, evidence: Evidence, task: str) -> list[Row]:
    """Return one row a depth and learning rate: the share of None→None's runs that fail, with its exact interval."""
    rows, cells = [], _cells(evidence.scale, evidence.seeds.get(task) or (0,))
    lower, _ = rule.levels(len(cells), one_suffices=True)
    for name, by_arm in cells.items():
        ids = np.array([by_arm[NONE], by_arm[CONTROL]])
        places = evidence.places(ids.ravel()).reshape(ids.shape)
        places = places[:, (places >= 0).all(axis=0)]
        n, row = places.shape[1], Row(name, task, claim.unit, claim.smallest, why="not run")
        if n:
            k, control = evidence.columns["diverged"][places].sum(axis=1).astype(int).tolist()
            low, high = (100 * end for end in clopper_pearson(k, n))
            plain, word = (failure_word(k, control, n, level) for level in (rule.ONE_SIDED, lower))
            row = _with(
                row,
                word=word if n >= rule.FEWEST else rule.NO_WORD,
                effect=100 * k / n,
                low=low,
                high=high,
                n=n,
                per_seed=(100.0,) * k + (0.0,) * (n - k),
                corrected=0 if word == plain else len(cells),
                fresh=not (evidence.columns["protocol"][places] < VERSION).any(),
                failed={NONE: (k, n), CONTROL: (control, n)},
                run_ids=tuple(ids[:, : places.shape[1]].ravel()),
                why=f"{label(CONTROL)} failed in {control} of {n} runs there",
            )
        rows.append(row)
    return rows


def failure_word(k: int, control: int, n: int, lower: float = rule.ONE_SIDED) -> str:
    """Return the word of k failures of n runs without norms, beside the control's, by exact intervals of both shares.

    Supported: more than half of the runs fail, and less than half of the control's. Opposite: fewer than the control's.
    No gain: fewer than half fail.
    """
    low, high = clopper_pearson(k, n, 1 - 2 * lower)[0], clopper_pearson(k, n)[1]
    control_low, control_high = clopper_pearson(control, n)
    if low > 0.5 and control_high < 0.5:
        return rule.SUPPORTED
    if high < control_low:
        return rule.OPPOSITE
    return rule.NO_GAIN if high < 0.5 else rule.CANNOT_TELL


def failure_sentence(verdict: Verdict) -> str:
    """Return how often models without norms failed, and the control, in the deepest models at the highest rate."""
    counts = verdict.rows[-1].failed
    if not counts:
        return ""
    (k, n), (control, _) = counts[NONE], counts[CONTROL]
    said = f"{label(NONE)} failed in {k} of {n} runs, {label(CONTROL)} failed in {control} of {n} runs"
    p = fisher(k, n, control, n)
    return f"in the deepest models at the highest learning rate {said} (Fisher p = {p:.2g})"


def k_of_n(k: int, n: int) -> str:
    """`1 of 12 [0, 38 %]`"""
    low, high = clopper_pearson(k, n)
    return f"{k} of {n} [{100 * low:.0f}, {100 * high:.0f} %]"
