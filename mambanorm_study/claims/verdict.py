"""A claim on one task → a Verdict: its comparisons as rows with their intervals and words, and the
claim's word.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np
import pandas as pd

from mambanorm_study.basics.settings import STUDY_SCALE
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
from mambanorm_study.tables.run_tables import label, points
from mambanorm_study.tables.scores import SMALLEST_BITS

NOT_FRESH = "not fresh: earlier versions of the rule were read on these runs"
# The share of an arm's runs with their best step in the last tenth of training, above which a
# footnote says so.
STILL_IMPROVES = 1 / 3


@dataclass(frozen=True)
class Row:
    """One comparison on one task: its mean difference, the plain 95 % interval, and its word.

    smallest: the smallest effect of interest, in `unit`. paper: the same comparison in the paper's
    numbers. corrected: how many comparisons the word was corrected for, where that changed it.
    beyond: True if the interval lies above the smallest effect. fresh: True if no earlier version
    of the protocol was read on these runs. lrs: arm → learning rate. failed: arm → (runs that
    diverged, runs). why: the reason for having no word.
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
    paper: float = np.nan
    seeds_to_tell: int | None = None
    corrected: int = 0
    beyond: bool = False
    fresh: bool = True
    lrs: Mapping[str, float] | None = None
    failed: Mapping[str, tuple[int, int]] | None = None
    footnotes: tuple[str, ...] = ()
    run_ids: tuple[str, ...] = ()
    why: str = ""

    @property
    def amount(self) -> str:
        """The effect with its interval: `+2.3 points [0.4, 4.2]`."""
        has_interval = np.isfinite(self.low)
        if self.unit in ("pp", "bits a character") and has_interval:
            return points(self.effect, self.low, self.high, self.unit)
        interval = f" [{self.low:.3g}, {self.high:.3g}]" if has_interval else ""
        unit = "points" if self.unit == "pp" else self.unit
        return f"{self.effect:.3g}{interval} {unit}".replace("-", "−")

    @property
    def said(self) -> str:
        """The word as it is printed: `supported, by more than a point`, `no gain of a point
        (corrected for 4 comparisons)`.
        """
        text = self.word
        smallest = f"{self.smallest:g} {'points' if self.unit == 'pp' else self.unit}"
        if self.unit == "pp" and self.smallest == 1:
            smallest = "a point"
        if self.unit == "% of runs":
            if self.word == rule.NO_GAIN:
                text += ": fewer than half of the runs fail"
        elif self.word == rule.NO_GAIN:
            text = f"no gain of {smallest}"
        elif self.word == rule.SUPPORTED and self.beyond:
            text += f", by more than {smallest}"
        return f"{text} (corrected for {self.corrected} comparisons)" if self.corrected else text


@dataclass(frozen=True, eq=False)
class Verdict:
    """The word of a claim on one task, and its rows, the deciding comparisons first. `turns_on`:
    the row that decides the word.
    """

    claim: Claim
    task: str
    scale: str
    word: str
    rows: tuple[Row, ...]
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
        """The word as it is printed."""
        return self.turns_on.said

    @property
    def brief(self) -> str:
        """The word and its number: `opposite (GN→GN − IN→IN: −20.3 points [−32.9, −7.6])`."""
        if not self.n:
            return "not run"
        return f"{self.said} ({self.turns_on.comparison}: {self.turns_on.amount})"

    @property
    def reason(self) -> str:
        """How many seeds would tell, or why there is no word; "" for the other words."""
        if self.word == rule.NO_WORD:
            return self.turns_on.why
        if self.word != rule.CANNOT_TELL:
            return ""
        seeds = self.turns_on.seeds_to_tell
        if seeds is None:
            return "more than 10,000 new seeds would be needed"
        return f"about {seeds} new seeds would tell"

    @property
    def failures(self) -> str:
        """How many runs failed: `failed: None→GN 0 of 12 [0, 26 %], GN→None 1 of 12 [0, 38 %]`;
        "" where failures were not counted, and for more than four arms.
        """
        failed = self.turns_on.failed or {}
        if not 0 < len(failed) <= 4:
            return ""
        return "failed: " + ", ".join(
            f"{label(arm)} {k_of_n(k, n)}" for arm, (k, n) in failed.items()
        )

    @property
    def footnotes(self) -> tuple[str, ...]:
        """Remarks that do not change the word."""
        stale = NOT_FRESH if self.n and not self.turns_on.fresh else ""
        return tuple(filter(None, (stale, *self.turns_on.footnotes, self.claim.note)))

    @property
    def basis(self) -> str:
        """The version, scale and task of the verdict: "protocol 12, quick scale, digits, not the
        paper's Breakfast".
        """
        paper_task = self.claim.printed_on
        if self.scale == "paper" and paper_task.lower().replace("-", "") == self.task:
            difference = ""
        elif paper_task:
            difference = f", not the paper's {paper_task}"
        elif self.claim.beyond_the_paper:
            difference = ", which the paper does not ask"
        else:
            difference = ", a kind of task that the paper has not"
        return f"protocol {VERSION}, {self.scale} scale, {self.task or 'no task'}{difference}"


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
            f"{claim.id} is about runs with fixed settings, which are part of the question: no "
            "changes"
        )
    evidence = Evidence(frame, scale, tuning=tuning, changes=changes)
    if task is None:
        task = next(iter(judged_tasks(claim, evidence)), "")
    make_rows = _failure_rows if claim.runs == "failure" else _rows
    rows = make_rows(claim, evidence, task)
    with_runs = [row for row in rows if row.n]
    deciding = [row for row in rows if row.decides] or (with_runs or rows)[:1]
    word = rule.word_of_claim([row.word for row in deciding], claim.one_suffices)
    return Verdict(claim, task, evidence.scale, word, tuple(rows), _turning(deciding, word, claim))


def _turning(deciding: list[Row], word: str, claim: Claim) -> Row:
    """Return the row that decides: of those with the claim's word, the best one if one suffices,
    else the worst.
    """
    agreeing = [row for row in deciding if row.word == word]
    candidates = [row for row in agreeing if row.n] or agreeing
    choose = max if claim.one_suffices else min
    return choose(candidates, key=attrgetter("low" if word == rule.SUPPORTED else "high"))


def verdicts(
    frame: pd.DataFrame | Evidence,
    claims: Iterable[str],
    *,
    scale: str | None = None,
    tasks: Iterable[str] | None = None,
) -> list[Verdict]:
    """Return one verdict for each claim and task.

    A claim without any runs gets a single verdict with n = 0. tasks: None = those of
    `judged_tasks`.
    """
    evidence = Evidence(frame, scale)
    found: list[Verdict] = []
    for claim in map(find_claim, claims):
        if tasks is None:
            claim_tasks = judged_tasks(claim, evidence)
        else:
            claim_tasks = tasks_of(claim, tasks, evidence.scale)
        judged = [judge(claim, evidence, task=task) for task in claim_tasks or [""]]
        found += [verdict for verdict in judged if verdict.n] or judged[:1]
    return found


def judged_tasks(claim: Claim, evidence: Evidence) -> list[str]:
    """Return the tasks of the frame that the claim is about; at the default scale those that the
    protocol plans, if there are any.
    """
    if evidence.scale == STUDY_SCALE:
        planned = [t for t in planned_tasks(claim, evidence.scale) if t in evidence.tasks]
        if planned:
            return planned
    return tasks_of(claim, evidence.tasks, evidence.scale)


def _rows(claim: Claim, evidence: Evidence, task: str) -> list[Row]:
    levels = rule.levels(max(len(claim.deciding), 1), claim.one_suffices)
    deciding = [_deciding_row(claim, group, evidence, task, levels) for group in claim.deciding]
    beside = [_row(claim, one, evidence, task) for one in claim.comparisons if not one.decides]
    return deciding + beside


def _deciding_row(
    claim: Claim, group: Sequence[Comparison], evidence: Evidence, task: str, levels: tuple
) -> Row:
    """Return the row of the comparison that decides: of a group, the best one by validation on the
    tuning seeds that all its arms have.
    """
    if len(group) == 1:
        return _row(claim, group[0], evidence, task, levels)
    arms = dict.fromkeys(arm for comparison in group for arm in comparison.weights)
    runs = evidence.on_tuning_seeds().of_arms(arms, task)
    if runs.missing:
        first = group[0]
        return Row(first.group, task, first.unit, claim.smallest_of(first), why=runs.missing)
    validation = dict(zip(runs.arms, runs.columns["validation"].mean(axis=1), strict=True))

    def validated(comparison: Comparison) -> float:
        return sum(weight * validation[arm] for arm, weight in comparison.weights.items())

    return _row(claim, max(group, key=validated), evidence, task, levels)


def _row(
    claim: Claim, comparison: Comparison, evidence: Evidence, task: str, levels: tuple = rule.PLAIN
) -> Row:
    """Return the row of one comparison. levels: the error levels of the interval's ends by which it
    is judged.
    """
    smallest = claim.smallest_of(comparison)
    row = Row(comparison.name, task, comparison.unit, smallest, comparison.decides)
    runs = evidence.of_claim(claim, comparison.weights, task)
    differences = runs.differences(comparison)
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
        lrs=dict(zip(runs.arms, runs.lrs, strict=True)) if tuned else None,
        failed=runs.failed() if tuned or claim.runs == "deep" else None,
        footnotes=tuple(_footnotes(runs, comparison, evidence, task)) if tuned else (),
        run_ids=tuple(runs.columns["run_id"][:, finite].ravel()),
        why=why,
    )


def _why_no_word(claim: Claim, comparison: Comparison, runs: Runs, n: int) -> str:
    """Return why a comparison has no word: too few pairs of runs, or both sides at chance."""
    if n < rule.FEWEST or claim.runs not in ("tuned", "ladder"):
        return _too_few(n)
    score = runs.columns["bits" if comparison.column == "bits" else "score"]
    above_chance = score - runs.columns["chance"]
    for sign in (1, -1):
        side = above_chance[[sign * comparison.weights[arm] > 0 for arm in runs.arms]]
        if not len(side) or rule.interval(side.mean(axis=0))[0] > 0:
            return ""
    return "both sides' accuracy may be chance"


def _too_few(n: int) -> str:
    return f"{plural(n, 'pair')} of runs, and {rule.FEWEST} are needed" if n < rule.FEWEST else ""


def _footnotes(runs: Runs, comparison: Comparison, evidence: Evidence, task: str) -> list[str]:
    """Return remarks on a comparison of tuned arms: failures, unfinished training, the second-best
    learning rates, and what the seeds share.
    """
    n = len(runs.seeds)
    notes = []
    for text, column, threshold in (
        ("failed", "diverged", 0),
        ("still improved at the end", "late", STILL_IMPROVES * n),
    ):
        counts = zip(runs.arms, runs.columns[column].sum(axis=1), strict=True)
        named = [f"{label(arm)} {count:.0f}" for arm, count in counts if count > threshold]
        if named:
            notes.append(f"{text}: {', '.join(named)} of {n} runs")
    second_best = evidence.on_tuning_seeds().of_arms(runs.arms, task, rank=1)
    differences = second_best.differences(comparison)
    differences = differences[np.isfinite(differences)]
    if len(differences) > 1:
        amount = points(differences.mean(), *rule.interval(differences), comparison.unit)
        notes.append(f"at the second-best learning rates, tuning seeds: {amount}")
    shared = shared_rows(task, evidence.scale)
    if shared:
        notes.append(f"the seeds share {shared}: the interval speaks about it alone")
    return notes


def compare_arms(arm: str, against: str, evidence: Evidence, task: str) -> Row:
    """Return the row of two arms on a task without a claim: better, worse, about the same, or
    cannot tell.
    """
    column, smallest = "score", SMALLEST_EFFECT
    if kind_of(task) == "language":
        column, smallest = "bits", SMALLEST_BITS
    comparison = minus(arm, against, column=column)
    claim = Claim("E", "", "", "", "", (comparison,), smallest=smallest)
    row = _row(claim, comparison, evidence, task)
    if row.why:
        return row
    lead = np.sign(row.effect or 1.0) * np.array(row.per_seed)  # of the arm that is ahead
    seeds = rule.seeds_to_tell(lead, row.smallest)
    return replace(row, word=rule.better_or_worse(row.per_seed, row.smallest), seeds_to_tell=seeds)


# ------------------------------------------------------------------------------ H9 counts failures


def _failure_rows(claim: Claim, evidence: Evidence, task: str) -> list[Row]:
    """Return one row a depth and learning rate: the share of None→None's runs that fail, with its
    exact interval.
    """
    cells: dict[str, list[str]] = {}
    for config in failure_runs(evidence.scale, evidence.seeds(task) or (0,)):
        name = f"None→None fails, {config.n_layers} blocks, lr {config.lr:g}"
        cells.setdefault(name, []).append(config.run_id)
    rows = []
    for name, run_ids in cells.items():
        row = Row(name, task, "% of runs", claim.smallest)
        runs = evidence.runs[(evidence.runs.task == task) & evidence.runs.run_id.isin(run_ids)]
        rows.append(_failure_row(row, runs, len(cells)))
    return rows


def _failure_row(row: Row, runs: pd.DataFrame, cells: int) -> Row:
    """Return the row of one of `cells` settings from its runs, on the seeds of both arms."""
    diverged = runs.pivot(index="seed", columns="arm", values="diverged")
    diverged = diverged.reindex(columns=[NONE, CONTROL]).dropna()
    n = len(diverged)
    if not n:
        return replace(row, why="not run")
    k, k_control = diverged.sum().astype(int).tolist()
    low, high = clopper_pearson(k, n)
    word = failure_word(k, k_control, n, rule.levels(cells, one_suffices=True)[0])
    return replace(
        row,
        word=word,
        effect=100 * k / n,
        low=100 * low,
        high=100 * high,
        n=n,
        per_seed=tuple(100 * diverged[NONE]),
        corrected=0 if word == failure_word(k, k_control, n) else cells,
        fresh=all(map(is_test_seed, diverged.index)) and not (runs.protocol < VERSION).any(),
        failed={NONE: (k, n), CONTROL: (k_control, n)},
        run_ids=tuple(runs[runs.seed.isin(diverged.index)].sort_values(["arm", "seed"]).run_id),
        footnotes=(f"{label(CONTROL)} failed in {k_control} of {n} runs there",),
        why=_too_few(n),
    )


def failure_word(k: int, control: int, n: int, lower: float = rule.ONE_SIDED) -> str:
    """Return the word of k failures of n runs without norms, beside the control's, by exact
    intervals of both shares.

    Supported: more than half of the runs fail, and less than half of the control's. Opposite: fewer
    than the control's. No gain: fewer than half fail.
    """
    low, _ = clopper_pearson(k, n, 1 - 2 * lower)
    _, high = clopper_pearson(k, n)
    control_low, control_high = clopper_pearson(control, n)
    if n < rule.FEWEST:
        return rule.NO_WORD
    if low > 0.5 and control_high < 0.5:
        return rule.SUPPORTED
    if high < control_low:
        return rule.OPPOSITE
    return rule.NO_GAIN if high < 0.5 else rule.CANNOT_TELL
