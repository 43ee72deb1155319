"""A claim on one task → a Verdict: its comparisons as rows, each with its interval and word, and
the claim's word."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from mambanorm_study.basics.text import plural
from mambanorm_study.claims import rule
from mambanorm_study.claims.claim import CONTROL, NONE, SMALLEST_EFFECT, Claim, Comparison, minus
from mambanorm_study.claims.evidence import VERSION, Evidence, Runs, tasks_of
from mambanorm_study.claims.hypotheses import find_claim
from mambanorm_study.claims.plan import planned_tasks
from mambanorm_study.runs.grid import is_test_seed
from mambanorm_study.runs.presets import kind_of
from mambanorm_study.tables.experiments import failure_runs
from mambanorm_study.tables.intervals import clopper_pearson, k_of_n, shared_rows
from mambanorm_study.tables.scores import SMALLEST_BITS
from mambanorm_study.tables.tables import label, points

NOT_FRESH = "not fresh: earlier versions of the rule were read on these runs"
# An arm gets a footnote if more of its runs than this have their best step in the last tenth of
# training.
STILL_IMPROVES = 1 / 3


@dataclass(frozen=True)
class Row:
    """One comparison on one task: its mean difference, the plain 95 % interval, and its word.

    smallest: the smallest effect of interest, in `unit`. corrected: how many comparisons the word
    was corrected for, where that changed it. fresh: True if no earlier version of the protocol was
    read on these runs. failed: arm → (runs that diverged, runs). why: the reason for having no
    word.
    """

    comparison: str
    task: str
    unit: str
    smallest: float
    decides: bool = True
    word: str = rule.NO_WORD
    effect: float = np.nan
    low: float = np.nan
    high: float = np.nan
    n: int = 0
    per_seed: tuple[float, ...] = ()
    paper: float = np.nan  # the same comparison in the paper's numbers
    seeds_to_tell: int | None = None
    corrected: int = 0
    beyond: bool = False  # whether the interval lies above the smallest effect
    fresh: bool = True
    rates: Mapping[str, float] | None = None  # arm → learning rate
    failed: Mapping[str, tuple[int, int]] | None = None
    footnotes: tuple[str, ...] = ()
    run_ids: tuple[str, ...] = ()
    why: str = ""

    @property
    def amount(self) -> str:
        """`+2.3 points [0.4, 4.2]`, or the effect in another unit."""
        if self.unit in ("pp", "bits a character") and np.isfinite(self.low):
            return points(self.effect, self.low, self.high, self.unit)
        interval = f" [{self.low:.3g}, {self.high:.3g}]" if np.isfinite(self.low) else ""
        return (
            f"{self.effect:.3g}{interval} {'points' if self.unit == 'pp' else self.unit}".replace(
                "-", "−"
            )
        )

    @property
    def said(self) -> str:
        """The word as it is printed: `supported, by more than a point`, `no gain of a point
        (corrected for 4 comparisons)`."""
        said, unit = self.word, "points" if self.unit == "pp" else self.unit
        smallest = (
            "a point" if (self.smallest, unit) == (1, "points") else f"{self.smallest:g} {unit}"
        )
        if self.unit == "% of runs":
            said += ": fewer than half of the runs fail" if self.word == rule.NO_GAIN else ""
        elif self.word == rule.NO_GAIN:
            said = f"no gain of {smallest}"
        elif self.word == rule.SUPPORTED and self.beyond:
            said += f", by more than {smallest}"
        return said + (f" (corrected for {self.corrected} comparisons)" if self.corrected else "")


@dataclass(frozen=True, eq=False)
class Verdict:
    """The word of a claim on one task, and its rows. `turns_on`: the row of the comparison that
    decides the word."""

    claim: Claim
    task: str
    scale: str
    word: str
    rows: tuple[Row, ...]  # the deciding comparisons first
    turns_on: Row

    @property
    def n(self) -> int:
        """The number of seeds of the deciding comparison; 0 if the claim was not run."""
        return self.turns_on.n

    @property
    def protocol(self) -> int:
        """The version of the protocol by which the claim was judged."""
        return VERSION

    @property
    def said(self) -> str:
        return self.turns_on.said

    @property
    def brief(self) -> str:
        """`opposite (GN→GN − IN→IN: −20.3 points [−32.9, −7.6])`"""
        return (
            f"{self.said} ({self.turns_on.comparison}: {self.turns_on.amount})"
            if self.n
            else "not run"
        )

    @property
    def reason(self) -> str:
        """About how many seeds would tell, or why there is no word; "" for the other words."""
        if self.word == rule.CANNOT_TELL:
            seeds = self.turns_on.seeds_to_tell
            return (
                f"about {seeds} new seeds would tell"
                if seeds
                else "more than 10,000 new seeds would be needed"
            )
        return self.turns_on.why if self.word == rule.NO_WORD else ""

    @property
    def failures(self) -> str:
        """How often runs failed: `failed: None→GN 0 of 12 [0, 26 %], GN→None 1 of 12 [0, 38 %]`; ""
        where that is not asked, and where more than four arms are compared."""
        failed = self.turns_on.failed or {}
        said = ", ".join(f"{label(arm)} {k_of_n(k, n)}" for arm, (k, n) in failed.items())
        return f"failed: {said}" if 0 < len(failed) <= 4 else ""

    @property
    def footnotes(self) -> tuple[str, ...]:
        """Remarks that do not change the word."""
        stale = NOT_FRESH if self.n and not self.turns_on.fresh else ""
        return tuple(filter(None, (stale, *self.turns_on.footnotes, self.claim.note)))

    @property
    def basis(self) -> str:
        """The version, scale and task of the verdict: "protocol 12, quick scale, digits, not the
        paper's Breakfast"."""
        place = self.claim.printed_on
        same = self.scale == "paper" and place.lower().replace("-", "") == self.task
        unasked = (
            "which the paper does not ask"
            if self.claim.id.startswith("E")
            else "a kind of task that the paper has not"
        )
        other = "" if same else f", not the paper's {place}" if place else f", {unasked}"
        return f"protocol {self.protocol}, {self.scale} scale, {self.task or 'no task'}{other}"


def judge(
    claim_id: str | Claim,
    frame: pd.DataFrame | Evidence,
    *,
    scale: str | None = None,
    task: str | None = None,
    changes: Mapping[str, Any] | None = None,
    tuning: bool | None = None,
) -> Verdict:
    """Return the verdict of one claim on one task from a run frame; no run is trained.

    frame: load_runs(), with the columns of summaries.with_summaries for the claims on the inside of
    models (H10 to H12, H16, E1). It may hold other runs as well. task: None = the first that
    `judged_tasks` names. changes: judge the runs that differ from those of the scale in these
    fields, such as dict(n_layers=8). tuning: judge on the tuning seeds, as the protocol's
    predictions do. None: as the given Evidence. ValueError for an unknown claim, a frame that
    `Evidence` refuses, and `changes` of a claim whose settings are part of the question.
    """
    claim = find_claim(claim_id)
    if changes and claim.runs != "tuned":
        raise ValueError(
            f"{claim.id} is about runs with fixed settings, which are part of the question: no changes"
        )
    evidence = Evidence(frame, scale, tuning=tuning, changes=changes)
    task = next(iter(judged_tasks(claim, evidence)), "") if task is None else task
    rows = (_failure_rows if claim.runs == "failure" else _rows)(claim, evidence, task)
    deciding = [row for row in rows if row.decides] or [
        next((row for row in rows if row.n), rows[0])
    ]
    word = rule.word_of_claim([row.word for row in deciding], claim.one_suffices)
    agreeing = [row for row in deciding if row.word == word]
    end = "low" if word == rule.SUPPORTED else "high"
    choose = max if claim.one_suffices else min
    turns_on = choose(
        [row for row in agreeing if row.n] or agreeing, key=lambda row: getattr(row, end)
    )
    return Verdict(claim, task, evidence.scale, word, tuple(rows), turns_on)


def verdicts(
    frame: pd.DataFrame | Evidence,
    claims: Iterable[str],
    *,
    scale: str | None = None,
    tasks: Iterable[str] | None = None,
) -> list[Verdict]:
    """Return one verdict for each claim and task; a claim without runs has one, with n = 0. tasks:
    None = those of `judged_tasks`."""
    evidence, found = Evidence(frame, scale), []
    for claim in map(find_claim, claims):
        asked = (
            judged_tasks(claim, evidence)
            if tasks is None
            else tasks_of(claim, tasks, evidence.scale)
        )
        judged = [judge(claim, evidence, task=task) for task in asked or [""]]
        found += [verdict for verdict in judged if verdict.n] or judged[:1]
    return found


def judged_tasks(claim: Claim, evidence: Evidence) -> list[str]:
    """Return the tasks of the runs that the claim is about; at scale evening those that the
    protocol plans, if there are any."""
    planned = (
        planned_tasks(claim, evidence.scale) if evidence.scale == "evening" else evidence.tasks
    )
    return tasks_of(
        claim, [task for task in planned if task in evidence.tasks], evidence.scale
    ) or tasks_of(claim, evidence.tasks, evidence.scale)


def _rows(claim: Claim, evidence: Evidence, task: str) -> list[Row]:
    levels = rule.levels(max(len(claim.deciding), 1), claim.one_suffices)
    beside = [_row(claim, one, evidence, task) for one in claim.comparisons if not one.decides]
    return [
        _deciding_row(claim, group, evidence, task, levels) for group in claim.deciding
    ] + beside


def _deciding_row(
    claim: Claim, group: Sequence[Comparison], evidence: Evidence, task: str, levels: tuple
) -> Row:
    """Return the row of a comparison that decides; of a group, of the one that is best by
    validation, on the tuning seeds that all its arms have."""
    if len(group) == 1:
        return _row(claim, group[0], evidence, task, levels)
    runs = evidence.on_tuning_seeds().of_arms(
        dict.fromkeys(arm for one in group for arm in one.weights), task
    )
    if runs.missing:
        return Row(
            group[0].group, task, group[0].unit, claim.smallest_of(group[0]), why=runs.missing
        )
    validation = dict(zip(runs.arms, runs.columns["validation"].mean(axis=1), strict=True))
    best = max(
        group, key=lambda one: sum(weight * validation[arm] for arm, weight in one.weights.items())
    )
    return _row(claim, best, evidence, task, levels)


def _row(
    claim: Claim, comparison: Comparison, evidence: Evidence, task: str, levels: tuple = rule.PLAIN
) -> Row:
    """Return the row of one comparison. levels: of the ends of the interval by which it is
    judged."""
    smallest = claim.smallest_of(comparison)
    row = Row(comparison.name, task, comparison.unit, smallest, comparison.decides)
    runs = evidence.of_claim(claim, comparison.weights, task)
    differences = runs.total(comparison)
    finite = np.isfinite(differences)
    if not finite.any():
        return replace(row, why=runs.missing or f"the runs lack {comparison.column}")
    differences, tuned = differences[finite], claim.runs == "tuned"
    low, high = rule.interval(differences)
    why = claim.measured or _why_no_word(claim, comparison, runs, len(differences))
    word, plain = rule.word_of(differences, smallest, *levels), rule.word_of(differences, smallest)
    return replace(
        row,
        word=rule.NO_WORD if why else word,
        effect=float(differences.mean()),
        low=low,
        high=high,
        n=len(differences),
        per_seed=tuple(differences.tolist()),
        paper=claim.printed(comparison, task),
        seeds_to_tell=None if why else rule.seeds_to_tell(differences, smallest, *levels),
        corrected=0 if why or word == plain else len(claim.deciding),
        beyond=rule.interval(differences, *levels)[0] > smallest > 0,
        fresh=runs.fresh,
        rates=dict(zip(runs.arms, runs.rates, strict=True)) if tuned else None,
        failed=runs.failed() if tuned or claim.runs == "deep" else None,
        footnotes=tuple(_footnotes(runs, comparison, evidence, task)) if tuned else (),
        run_ids=tuple(runs.columns["run_id"][:, finite].ravel()),
        why=why,
    )


def _why_no_word(claim: Claim, comparison: Comparison, runs: Runs, n: int) -> str:
    if n < rule.FEWEST or claim.runs not in ("tuned", "ladder"):
        return _too_few(n)
    above_chance = (
        runs.columns["bits" if comparison.column == "bits" else "score"] - runs.columns["chance"]
    )
    for sign in (1, -1):
        side = above_chance[[sign * comparison.weights[arm] > 0 for arm in runs.arms]]
        if not len(side) or rule.interval(side.mean(axis=0))[0] > 0:
            return ""
    return "both sides' accuracy may be chance"


def _too_few(n: int) -> str:
    return f"{plural(n, 'pair')} of runs, and {rule.FEWEST} are needed" if n < rule.FEWEST else ""


def _footnotes(runs: Runs, comparison: Comparison, evidence: Evidence, task: str) -> list[str]:
    n, notes = len(runs.seeds), []
    for text, column, least in (
        ("failed", "diverged", 0),
        ("still improved at the end", "late", STILL_IMPROVES * n),
    ):
        counts = zip(runs.arms, runs.columns[column].sum(axis=1), strict=True)
        if named := [f"{label(arm)} {k:.0f}" for arm, k in counts if k > least]:
            notes.append(f"{text}: {', '.join(named)} of {n} runs")
    second = evidence.on_tuning_seeds().of_arms(runs.arms, task, rank=1).total(comparison)
    second = second[np.isfinite(second)]
    if len(second) > 1:
        amount = points(second.mean(), *rule.interval(second), comparison.unit)
        notes.append(f"at the second-best learning rates, tuning seeds: {amount}")
    if shared := shared_rows(task, evidence.scale):
        notes.append(f"the seeds share {shared}: the interval speaks about it alone")
    return notes


def compare_arms(arm: str, against: str, evidence: Evidence, task: str) -> Row:
    """Return the row of two arms on a task without a claim: better, worse, about the same, or
    cannot tell."""
    language = kind_of(task) == "language"
    comparison = minus(arm, against, column="bits" if language else "score")
    claim = Claim(
        "E", "", "", "", "", (comparison,), smallest=SMALLEST_BITS if language else SMALLEST_EFFECT
    )
    row = _row(claim, comparison, evidence, task)
    if row.why:
        return row
    lead = np.sign(row.effect or 1.0) * np.array(row.per_seed)  # of the arm that is ahead
    seeds = rule.seeds_to_tell(lead, row.smallest)
    return replace(row, word=rule.better_or_worse(row.per_seed, row.smallest), seeds_to_tell=seeds)


# ----------------------------------------------------------------------------------------- H9: how


def _failure_rows(claim: Claim, evidence: Evidence, task: str) -> list[Row]:
    """Return one row a depth and learning rate: the share of None→None's runs that fail, with its
    exact interval."""
    cells: dict[str, list[str]] = {}
    for config in failure_runs(evidence.scale, evidence.seeds(task) or (0,)):
        name = f"None→None fails, {config.n_layers} blocks, lr {config.lr:g}"
        cells.setdefault(name, []).append(config.run_id)
    return [
        _failure_row(Row(name, task, "% of runs", claim.smallest), evidence, cells)
        for name in cells
    ]


def _failure_row(row: Row, evidence: Evidence, cells: Mapping[str, list[str]]) -> Row:
    runs = evidence.runs[
        (evidence.runs.task == row.task) & evidence.runs.run_id.isin(cells[row.comparison])
    ]
    table = (
        runs.pivot(index="seed", columns="arm", values="diverged")
        .reindex(columns=[NONE, CONTROL])
        .dropna()
    )
    (k, control), n = table.sum().astype(int), len(table)
    if not n:
        return replace(row, why="not run")
    low, high = clopper_pearson(k, n)
    word = failure_word(k, control, n, rule.levels(len(cells), one_suffices=True)[0])
    return replace(
        row,
        word=word,
        effect=100 * k / n,
        low=100 * low,
        high=100 * high,
        n=n,
        per_seed=tuple(100 * table[NONE]),
        corrected=0 if word == failure_word(k, control, n) else len(cells),
        fresh=all(map(is_test_seed, table.index)) and not (runs.protocol < VERSION).any(),
        failed={NONE: (int(k), n), CONTROL: (int(control), n)},
        run_ids=tuple(runs[runs.seed.isin(table.index)].sort_values(["arm", "seed"]).run_id),
        footnotes=(f"{label(CONTROL)} failed in {control} of {n} runs there",),
        why=_too_few(n),
    )


def failure_word(k: int, control: int, n: int, lower: float = rule.ONE_SIDED) -> str:
    """Return the word of k failures of n runs without norms, beside the control's, by exact
    intervals of both shares.

    Supported: more than half of the runs fail, and less than half of the control's. Opposite: fewer
    than the control's. No gain: fewer than half fail.
    """
    low, high = clopper_pearson(k, n, 1 - 2 * lower)[0], clopper_pearson(k, n)[1]
    control_low, control_high = clopper_pearson(control, n)
    if n < rule.FEWEST:
        return rule.NO_WORD
    if low > 0.5 and control_high < 0.5:
        return rule.SUPPORTED
    if high < control_low:
        return rule.OPPOSITE
    return rule.NO_GAIN if high < 0.5 else rule.CANNOT_TELL
