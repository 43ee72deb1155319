"""The verdict on a claim from a run frame: the word of the claim on one task, and a `Row` for each
of the claim's comparisons.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

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
from mambanorm_study.tables import experiments, intervals, scores
from mambanorm_study.tables.run_tables import difference_with_interval, label

NOT_FRESH = "not fresh: earlier versions of the rule have judged these runs"
# A footnote names an arm if more than this share of the arm's runs still improved in the last tenth
# of training.
STILL_IMPROVES = 1 / 3


@dataclass(frozen=True)
class Row:
    """One comparison on one task: its mean difference (effect), its 95 % interval without a
    correction (low, high), and its word, such as "supported".

    smallest: the smallest effect of interest, in `unit`. paper: the comparison computed from the
    paper's numbers. seeds_to_tell: about how many new seeds it would take to reach a word other
    than "cannot tell". corrected: the number of comparisons that the correction counted, if it
    changed the word; else 0. beyond: True if the interval that gives the word lies
    above `smallest`. fresh: see `Runs.fresh`. lrs: arm → learning rate. failed: arm → (number of
    runs that diverged, number of runs). why: why the comparison has no word.
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
        """The effect with its interval as text: `+2.3 points [0.4, 4.2]`."""
        if self.unit in ("pp", "bits a character"):
            return difference_with_interval(self.effect, self.low, self.high, self.unit)
        interval = f" [{self.low:.3g}, {self.high:.3g}]" if np.isfinite(self.low) else ""
        return f"{self.effect:.3g}{interval} {self.unit}".replace("-", "−")

    @property
    def said(self) -> str:
        """The word as it is printed: `supported, by more than a point` or `no gain of a point
        (corrected for 4 comparisons)`.
        """
        smallest = f"{self.smallest:g} {'points' if self.unit == 'pp' else self.unit}"
        if smallest == "1 points":
            smallest = "a point"
        text = self.word
        if self.word == rule.NO_GAIN:
            text = f"no gain of {smallest}"
            if self.unit == "% of runs":
                text = "no gain: fewer than half of the runs fail"
        elif self.word == rule.SUPPORTED and self.beyond:
            text = f"supported, by more than {smallest}"
        return f"{text} (corrected for {self.corrected} comparisons)" if self.corrected else text


@dataclass(frozen=True, eq=False)
class Verdict:
    """The verdict on a claim on one task: a word of the rule, and the comparisons that decide it.

    rows: the claim's comparisons, the deciding comparisons first. turns_on: the row that decides
    the word. protocol: the version of PROTOCOL.md by which the claim was judged.
    """

    claim: Claim
    task: str
    scale: str
    word: str
    rows: tuple[Row, ...]
    turns_on: Row
    protocol: int = VERSION

    @property
    def n(self) -> int:
        """The number of seeds of the deciding comparison; 0 if the claim was not run."""
        return self.turns_on.n

    @property
    def said(self) -> str:
        """The word as it is printed."""
        return self.turns_on.said

    @property
    def brief(self) -> str:
        """The word and the deciding difference: `opposite (GN→GN − IN→IN: −20.3 points [−32.9,
        −7.6])`.
        """
        if not self.n:
            return "not run"
        return f"{self.said} ({self.turns_on.comparison}: {self.turns_on.amount})"

    @property
    def reason(self) -> str:
        """For "cannot tell", how many new seeds would give another word; for "no word", why there
        is no word; "" for the other words.
        """
        if self.word != rule.CANNOT_TELL:
            return self.turns_on.why if self.word == rule.NO_WORD else ""
        seeds = self.turns_on.seeds_to_tell
        if seeds is None:
            return "more than 10,000 new seeds would be needed"
        return f"about {seeds} new seeds would tell"

    @property
    def failures(self) -> str:
        """The failed runs as text: `failed: None→GN 0 of 12 [0, 26 %], GN→None 1 of 12 [0,
        38 %]`; "" if failures were not counted, and for more than four arms.
        """
        failed = self.turns_on.failed or {}
        shares = [
            f"{label(arm)} {intervals.count_with_interval(k, n)}" for arm, (k, n) in failed.items()
        ]
        return f"failed: {', '.join(shares)}" if 0 < len(shares) <= 4 else ""

    @property
    def footnotes(self) -> tuple[str, ...]:
        """The remarks on the verdict that do not change its word."""
        not_fresh = NOT_FRESH if self.n and not self.turns_on.fresh else ""
        return tuple(filter(None, (not_fresh, *self.turns_on.footnotes, self.claim.note)))

    @property
    def basis(self) -> str:
        """The protocol, scale and task of the verdict, as text: "protocol 12, quick scale, digits,
        not the paper's Breakfast".
        """
        paper_task = self.claim.printed_on
        difference = f", not the paper's {paper_task}"
        if self.scale == "paper" and paper_task.lower().replace("-", "") == self.task:
            difference = ""
        elif self.claim.id.startswith("E"):
            difference = ", a question that the paper does not ask"
        elif not paper_task:
            difference = ", a kind of task that the paper does not have"
        return f"protocol {VERSION}, {self.scale} scale, {self.task or 'no task'}{difference}"


def judge(
    claim_id: str | Claim,
    frame: pd.DataFrame | Evidence,
    *,
    scale: str | None = None,
    task: str | None = None,
) -> Verdict:
    """Return the verdict on one claim on one task from a run frame; no run is trained.

    frame: a run frame such as load_runs(), which may also hold runs that the claim does not use.
    Claims about activations and weights (H10 to H12, H16, E1) need the columns of
    `with_summaries`. Pass an `Evidence` to judge on the tuning seeds, or to judge runs with other
    settings. task: None means the first task of the claim that the frame has. Raises ValueError for
    an unknown claim, and for a frame with several scales, unless `scale` names one of them.
    """
    claim, evidence = find_claim(claim_id), Evidence(frame, scale)
    if task is None:
        task = next(iter(_judged_tasks(claim, evidence)), "")
    make_rows = _failure_rows if claim.runs == "failure" else _rows
    rows = make_rows(claim, evidence, task)
    with_runs = [row for row in rows if row.n]
    deciding = [row for row in rows if row.decides] or (with_runs or rows)[:1]
    word = rule.word_of_claim([row.word for row in deciding], claim.one_suffices)
    decisive = _decisive_row(deciding, word, claim)
    return Verdict(claim, task, evidence.scale, word, tuple(rows), turns_on=decisive)


def _decisive_row(deciding: list[Row], word: str, claim: Claim) -> Row:
    """Return the row that gives the claim its word. If several deciding rows have this word, return
    the best of them if one comparison suffices, else the worst.
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
    """Return one verdict for each claim and task that has runs; for a claim without any runs, one
    verdict with n = 0.

    tasks: None means the planned tasks of a claim at the default scale, and all tasks of the frame
    at other scales. Other arguments as in `judge`.
    """
    evidence = Evidence(frame, scale)
    judged_claims: list[Verdict] = []
    for claim in map(find_claim, claims):
        claim_tasks = _judged_tasks(claim, evidence, tasks) or [""]
        judged = [judge(claim, evidence, task=task) for task in claim_tasks]
        judged_claims += [verdict for verdict in judged if verdict.n] or judged[:1]
    return judged_claims


def _judged_tasks(
    claim: Claim, evidence: Evidence, tasks: Iterable[str] | None = None
) -> list[str]:
    if tasks is None and evidence.scale == STUDY_SCALE:
        tasks = [task for task in planned_tasks(claim, STUDY_SCALE) if task in evidence.tasks]
    return tasks_of(claim, tasks or evidence.tasks, evidence.scale)


def _rows(claim: Claim, evidence: Evidence, task: str) -> list[Row]:
    levels = rule.levels(max(len(claim.deciding_groups), 1), claim.one_suffices)
    deciding = [
        _row_of_group(claim, group, evidence, task, levels) for group in claim.deciding_groups
    ]
    further = [comparison for comparison in claim.comparisons if not comparison.decides]
    return deciding + [_row(claim, comparison, evidence, task) for comparison in further]


def _row_of_group(
    claim: Claim, group: Sequence[Comparison], evidence: Evidence, task: str, levels: tuple
) -> Row:
    """Return the row for a group of comparisons: that of the comparison which is best by validation
    on the tuning seeds that all arms of the group have.
    """
    if len(group) == 1:
        return _row(claim, group[0], evidence, task, levels)
    arms = dict.fromkeys(arm for comparison in group for arm in comparison.weights)
    runs = Evidence(evidence, tuning=True).of_arms(arms, task)
    if runs.missing:
        first = group[0]
        return Row(first.group, task, first.unit, claim.smallest_of(first), why=runs.missing)
    validation = [runs.differences(replace(c, column="validation")).mean() for c in group]
    return _row(claim, group[int(np.argmax(validation))], evidence, task, levels)


def _row(
    claim: Claim, comparison: Comparison, evidence: Evidence, task: str, levels: tuple = ()
) -> Row:
    """Return the row of one comparison. levels: the one-sided error levels of the two ends of the
    interval that gives the word; () means the levels of a 95 % interval without a correction.
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
    why = claim.why_no_word or _why_no_word(claim, comparison, runs, len(differences))
    word, plain_word = (
        rule.word_of(differences, smallest, *levels),
        rule.word_of(differences, smallest),
    )
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
        corrected=0 if why or word == plain_word else len(claim.deciding_groups),
        beyond=rule.interval(differences, *levels)[0] > smallest > 0,
        fresh=runs.fresh,
        lrs=dict(zip(runs.arms, runs.lrs, strict=True)) if tuned else None,
        failed=runs.failure_counts() if tuned or claim.runs == "deep" else None,
        footnotes=tuple(_footnotes(runs, comparison, evidence, task)) if tuned else (),
        run_ids=tuple(runs.columns["run_id"][:, finite].ravel()),
        why=why,
    )


def _why_no_word(claim: Claim, comparison: Comparison, runs: Runs, n: int) -> str:
    """Return why a comparison has no word: too few pairs of runs, or both sides may be at chance;
    "" if it has a word.
    """
    if n < rule.FEWEST or claim.runs not in ("tuned", "ladder"):
        return _too_few_pairs(n)
    score = runs.columns["bits" if comparison.column == "bits" else "score"]
    above_chance = score - runs.columns["chance"]
    for sign in (1, -1):
        side = above_chance[[sign * comparison.weights[arm] > 0 for arm in runs.arms]]
        if not len(side) or rule.interval(side.mean(axis=0))[0] > 0:
            return ""
    return "both sides' accuracy may be chance"


def _too_few_pairs(n: int) -> str:
    return f"{plural(n, 'pair')} of runs, and {rule.FEWEST} are needed" if n < rule.FEWEST else ""


def _footnotes(runs: Runs, comparison: Comparison, evidence: Evidence, task: str) -> list[str]:
    """Return remarks on a comparison of tuned arms: how many runs failed or still improved at the
    end, the difference at the second-best learning rates, and which data the seeds share.
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
    second_best = Evidence(evidence, tuning=True).of_arms(runs.arms, task, rank=1)
    differences = second_best.differences(comparison)
    differences = differences[np.isfinite(differences)]
    if len(differences) > 1:
        amount = difference_with_interval(
            differences.mean(), *rule.interval(differences), comparison.unit
        )
        notes.append(f"at the second-best learning rates, tuning seeds: {amount}")
    shared = intervals.shared_data_name(task, evidence.scale)
    if shared:
        notes.append(f"the seeds share {shared}, so the interval is valid for it only")
    return notes


def compare_arms(arm: str, against: str, evidence: Evidence, task: str) -> Row:
    """Return the row of `arm` minus `against` on a task, without a claim. The row's word is that of
    `rule.better_or_worse`.
    """
    is_text = kind_of(task) == "language"
    column, smallest = ("bits", scores.SMALLEST_BITS) if is_text else ("score", SMALLEST_EFFECT)
    comparison = minus(arm, against, column=column)
    # `printed_on` is empty for an id that starts with E: there are no numbers of the paper
    claim = Claim("E", "", "", "", "", (comparison,), smallest=smallest)
    row = _row(claim, comparison, evidence, task)
    if row.why:
        return row
    # the differences of the arm that is ahead minus the other arm
    lead = np.sign(row.effect or 1.0) * np.array(row.per_seed)
    seeds = rule.seeds_to_tell(lead, row.smallest)
    return replace(row, word=rule.better_or_worse(row.per_seed, row.smallest), seeds_to_tell=seeds)


# ------------------------------------------------------------------------------ H9 counts failures


def _failure_rows(claim: Claim, evidence: Evidence, task: str) -> list[Row]:
    """Return one row for each depth and learning rate of `failure_runs`: the share of None→None
    runs that fail, with the exact interval for this share.
    """
    cells: dict[str, list[str]] = {}
    for config in experiments.failure_runs(evidence.scale, evidence.seeds(task) or (0,)):
        name = f"None→None fails, {config.n_layers} blocks, lr {config.lr:g}"
        cells.setdefault(name, []).append(config.run_id)
    runs = evidence.runs[evidence.runs.task == task]
    return [
        _failure_row(
            Row(name, task, "% of runs", claim.smallest), runs[runs.run_id.isin(ids)], len(cells)
        )
        for name, ids in cells.items()
    ]


def _failure_row(row: Row, runs: pd.DataFrame, cells: int) -> Row:
    """Return a copy of `row` with the results of its runs on the seeds that both arms have.

    runs: the runs of NONE and CONTROL at the row's depth and learning rate. cells: the number of
    combinations of depth and learning rate, for which the word is corrected.
    """
    diverged = runs.pivot(index="seed", columns="arm", values="diverged")
    diverged = diverged.reindex(columns=[NONE, CONTROL]).dropna()
    n = len(diverged)
    if not n:
        return replace(row, why="not run")
    k, k_control = diverged.sum().astype(int).tolist()
    low, high = intervals.clopper_pearson(k, n)
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
        why=_too_few_pairs(n),
    )


def failure_word(k: int, control: int, n: int, lower: float = rule.ONE_SIDED) -> str:
    """Return the word of H9, if k of n runs without norms and `control` of n runs with norms on
    both sides failed.

    The exact intervals for the two shares of failed runs decide: a share lies above or below a
    value if its whole interval does. "supported": the share without norms lies above one half, and
    that of the control below one half. "opposite": the share without norms lies below that of the
    control. "no gain": the share without norms lies below one half. lower: the one-sided error
    level of the lower end for the share without norms.
    """
    low, _ = intervals.clopper_pearson(k, n, 1 - 2 * lower)
    _, high = intervals.clopper_pearson(k, n)
    control_low, control_high = intervals.clopper_pearson(control, n)
    if n < rule.FEWEST:
        return rule.NO_WORD
    if low > 0.5 and control_high < 0.5:
        return rule.SUPPORTED
    if high < control_low:
        return rule.OPPOSITE
    return rule.NO_GAIN if high < 0.5 else rule.CANNOT_TELL
