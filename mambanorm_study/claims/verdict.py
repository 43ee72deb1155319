"""Judges a claim on one task from a run frame (a DataFrame with one row per run). The result is a
`Verdict`, which has a `Row` for each of the claim's comparisons.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np
import pandas as pd

from mambanorm_study.basics.settings import STUDY_SCALE
from mambanorm_study.basics.text import plural
from mambanorm_study.claims import rule
from mambanorm_study.claims.claim import (
    CONTROL,
    NONE,
    Claim,
    Comparison,
    compared_column,
    minus,
)
from mambanorm_study.claims.evidence import RULE_VERSION, VERSION, Evidence, Runs, tasks_of
from mambanorm_study.claims.hypotheses import find_claim
from mambanorm_study.claims.plan import planned_tasks
from mambanorm_study.runs.grid import is_test_seed
from mambanorm_study.tables import experiments, intervals
from mambanorm_study.tables.run_tables import difference_with_interval, label

NOT_FRESH = "not fresh: earlier versions of the rule have judged these runs"
# A footnote names an arm if more than this share of the arm's runs still improved in the last tenth
# of training.
STILL_IMPROVES = 1 / 3


@dataclass(frozen=True)
class Row:
    """The result of one comparison on one task: the mean difference (`effect`), the 95 % interval
    of the mean without a correction for several comparisons (`low`, `high`), and the verdict on the
    comparison (`word`), such as "supported".

    smallest: the smallest effect of interest, in `unit`. n: the number of seeds. per_seed: the
    difference for each seed. paper: the mean difference in the paper's numbers. seeds_to_tell:
    about how many new seeds are needed for a verdict other than "cannot tell". corrected: the
    number of comparisons for which the interval was corrected, if the correction changed the
    verdict, and 0 if it did not. beyond: True if the interval that gives the verdict lies above
    `smallest`. fresh: see `Runs.fresh`. lrs: a map from arm to learning rate. failed: a map from
    arm to (number of runs that diverged, number of runs). why: why the comparison has no verdict.
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
    def as_text(self) -> str:
        """The verdict on the comparison, as it is printed: `supported, by more than a point` or `no
        gain of a point (corrected for 4 comparisons)`.
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
    """The verdict on a claim on one task (`word`, such as "supported"), with the results of the
    claim's comparisons.

    rows: one row for each comparison, the deciding comparisons first. main_row: the row that
    decides the verdict. protocol: the version of PROTOCOL.md by which the claim was judged.
    """

    claim: Claim
    task: str
    scale: str
    word: str
    rows: tuple[Row, ...]
    main_row: Row
    protocol: int = VERSION

    @property
    def n(self) -> int:
        """The number of seeds of the deciding comparison; 0 if the claim was not run."""
        return self.main_row.n

    @property
    def as_text(self) -> str:
        """The verdict as it is printed, such as `supported, by more than a point`."""
        return self.main_row.as_text

    @property
    def brief(self) -> str:
        """The verdict and the difference that decides it, as text: `opposite (GN→GN − IN→IN: −20.3
        points [−32.9, −7.6])`.
        """
        if not self.n:
            return "not run"
        return f"{self.as_text} ({self.main_row.comparison}: {self.main_row.amount})"

    @property
    def reason(self) -> str:
        """The reason for the verdict, as text. For "cannot tell": how many new seeds would give
        another verdict. For "no word": why there is no verdict. For all other verdicts: "".
        """
        if self.word != rule.CANNOT_TELL:
            return self.main_row.why if self.word == rule.NO_WORD else ""
        seeds = self.main_row.seeds_to_tell
        if seeds is None:
            return "more than 10,000 new seeds would be needed"
        return f"about {seeds} new seeds would tell"

    @property
    def failures(self) -> str:
        """The failed runs as text: `failed: None→GN 0 of 12 [0, 26 %], GN→None 1 of 12 [0,
        38 %]`; "" if failures were not counted, or if there are more than four arms.
        """
        failed = self.main_row.failed or {}
        shares = [
            f"{label(arm)} {intervals.count_with_interval(k, n)}" for arm, (k, n) in failed.items()
        ]
        return f"failed: {', '.join(shares)}" if 0 < len(shares) <= 4 else ""

    @property
    def footnotes(self) -> tuple[str, ...]:
        """The remarks that are printed with the verdict but do not change it."""
        not_fresh = NOT_FRESH if self.n and not self.main_row.fresh else ""
        return tuple(filter(None, (not_fresh, *self.main_row.footnotes, self.claim.note)))

    @property
    def basis(self) -> str:
        """The protocol, scale and task of the verdict, as text: "protocol 12, quick scale, digits,
        not the paper's Breakfast".
        """
        paper_task = self.claim.compared_paper_task
        difference = f", not the paper's {paper_task}"
        if self.scale == "paper" and paper_task.lower().replace("-", "") == self.task:
            difference = ""
        elif not self.claim.of_paper:
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
    Claims about activations and weights (H10 to H12, H16, E1) need the columns that
    `with_summaries` adds. Pass an `Evidence` to judge on the tuning seeds, or to judge runs with
    other settings. task: None means the first task of the claim on which the frame has runs. Raises
    ValueError for an unknown claim, and for a frame with several scales, unless `scale` names one
    of them.
    """
    claim, evidence = find_claim(claim_id), Evidence(frame, scale)
    if task is None:
        task = next(iter(_judged_tasks(claim, evidence)), "")
    make_rows = _failure_rows if claim.runs == "failure" else _rows
    rows = make_rows(claim, evidence, task)
    with_runs = [row for row in rows if row.n]
    deciding = [row for row in rows if row.decides] or (with_runs or rows)[:1]
    word = rule.claim_verdict([row.word for row in deciding], claim.one_suffices)
    main_row = _main_row(deciding, word, claim)
    return Verdict(claim, task, evidence.scale, word, tuple(rows), main_row=main_row)


def _main_row(deciding: list[Row], word: str, claim: Claim) -> Row:
    """Return the row that decides the verdict on a claim (`word`). If several deciding rows have
    the same verdict as the claim, return the best of these rows if one comparison suffices, and the
    worst if all comparisons must hold.
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
    """Return a list with one verdict for each pair of a claim and a task of which the frame has
    runs, and one verdict with n = 0 for each claim without any runs.

    tasks: None means the planned tasks of a claim at the default scale, and all tasks of the frame
    at other scales. The other arguments are as in `judge`.
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
    """Return the row of one comparison of a group: the comparison with the largest mean difference
    in validation scores, on the tuning seeds that all arms of the group have.

    levels: see `_row`.
    """
    if len(group) == 1:
        return _row(claim, group[0], evidence, task, levels)
    arms = dict.fromkeys(arm for comparison in group for arm in comparison.weights)
    runs = Evidence(evidence, tuning=True).runs_of_arms(arms, task)
    if runs.missing:
        first = group[0]
        return Row(first.group, task, first.unit, claim.smallest_effect(first), why=runs.missing)
    validation = [runs.differences(replace(c, column="validation")).mean() for c in group]
    return _row(claim, group[int(np.argmax(validation))], evidence, task, levels)


def _row(
    claim: Claim, comparison: Comparison, evidence: Evidence, task: str, levels: tuple = ()
) -> Row:
    """Return the row of one comparison on a task.

    levels: the one-sided error levels of the lower and of the upper end of the interval that gives
    the verdict; () means the levels of a 95 % interval without a correction.
    """
    smallest = claim.smallest_effect(comparison)
    row = Row(comparison.name, task, comparison.unit, smallest, comparison.decides)
    runs = evidence.runs_of_claim(claim, comparison.weights, task)
    differences = runs.differences(comparison)
    finite = np.isfinite(differences)
    if not finite.any():
        return replace(row, why=runs.missing or f"the runs lack {comparison.column}")
    differences, tuned = differences[finite], claim.runs == "tuned"
    low, high = rule.interval(differences)
    why = claim.why_no_word or _why_no_word(claim, comparison, runs, len(differences))
    word, plain_word = (
        rule.comparison_verdict(differences, smallest, *levels),
        rule.comparison_verdict(differences, smallest),
    )
    return replace(
        row,
        word=rule.NO_WORD if why else word,
        effect=float(differences.mean()),
        low=low,
        high=high,
        n=len(differences),
        per_seed=tuple(differences.tolist()),
        paper=claim.paper_difference(comparison, task),
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
    """Return why a comparison has no verdict, as text: it has too few pairs of runs (n), or the
    accuracies of both sides may be chance. Return "" if it has a verdict.
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
    second_best = Evidence(evidence, tuning=True).runs_of_arms(runs.arms, task, rank=1)
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
    """Return the row of the comparison `arm` minus `against` on a task, without a claim. The
    verdict in the row is that of `rule.better_or_worse`.
    """
    column, smallest = compared_column(task)
    comparison = minus(arm, against, column=column)
    claim = Claim("", "", "", "", "", (comparison,), smallest=smallest, of_paper=False)
    row = _row(claim, comparison, evidence, task)
    if row.why:
        return row
    # for each seed, the arm that is ahead on average minus the other arm
    lead = np.sign(row.effect or 1.0) * np.array(row.per_seed)
    seeds = rule.seeds_to_tell(lead, row.smallest)
    return replace(row, word=rule.better_or_worse(row.per_seed, row.smallest), seeds_to_tell=seeds)


# ------------------------------------------------------------------------------ H9 counts failures


def _failure_rows(claim: Claim, evidence: Evidence, task: str) -> list[Row]:
    """Return one row for each combination of depth and learning rate in `failure_runs`: the share
    of None→None runs that fail, in per cent, with the exact interval for this share.
    """
    run_ids: dict[str, list[str]] = {}
    for config in experiments.failure_runs(evidence.scale, evidence.seeds(task) or (0,)):
        name = f"None→None fails, {config.n_layers} blocks, lr {config.lr:g}"
        run_ids.setdefault(name, []).append(config.run_id)
    runs = evidence.runs[evidence.runs.task == task]
    return [
        _failure_row(
            Row(name, task, "% of runs", claim.smallest), runs[runs.run_id.isin(ids)], len(run_ids)
        )
        for name, ids in run_ids.items()
    ]


def _failure_row(row: Row, runs: pd.DataFrame, n_rows: int) -> Row:
    """Return a copy of `row` with the results of `runs` on the seeds that both arms have.

    runs: the runs of the arms NONE and CONTROL at the row's depth and learning rate. n_rows: the
    number of combinations of depth and learning rate, for which the verdict is corrected.
    """
    diverged = runs.pivot(index="seed", columns="arm", values="diverged")
    diverged = diverged.reindex(columns=[NONE, CONTROL]).dropna()
    n = len(diverged)
    if not n:
        return replace(row, why="not run")
    k, k_control = diverged.sum().astype(int).tolist()
    low, high = intervals.clopper_pearson(k, n)
    word = failure_verdict(k, k_control, n, rule.levels(n_rows, one_suffices=True)[0])
    return replace(
        row,
        word=word,
        effect=100 * k / n,
        low=100 * low,
        high=100 * high,
        n=n,
        per_seed=tuple(100 * diverged[NONE]),
        corrected=0 if word == failure_verdict(k, k_control, n) else n_rows,
        fresh=all(map(is_test_seed, diverged.index)) and not (runs.protocol < RULE_VERSION).any(),
        failed={NONE: (k, n), CONTROL: (k_control, n)},
        run_ids=tuple(runs[runs.seed.isin(diverged.index)].sort_values(["arm", "seed"]).run_id),
        footnotes=(f"{label(CONTROL)} failed in {k_control} of {n} runs there",),
        why=_too_few_pairs(n),
    )


def failure_verdict(failed: int, control_failed: int, n: int, lower: float = rule.ONE_SIDED) -> str:
    """Return the verdict on claim H9, if `failed` of n runs without norms and `control_failed` of n
    runs with norms on both sides of the SSM (the control) failed.

    The exact intervals for the two shares of failed runs decide: a share lies above or below a
    value if its whole interval does. "supported": the share without norms lies above one half, and
    the share of the control below one half. "opposite": the share without norms lies below the
    share of the control. "no gain": the share without norms lies below one half. Any other result
    is "cannot tell", and n < FEWEST gives "no word".

    lower: the one-sided error level of the lower end of the interval for the share without norms.
    """
    low, _ = intervals.clopper_pearson(failed, n, 1 - 2 * lower)
    _, high = intervals.clopper_pearson(failed, n)
    control_low, control_high = intervals.clopper_pearson(control_failed, n)
    if n < rule.FEWEST:
        return rule.NO_WORD
    if low > 0.5 and control_high < 0.5:
        return rule.SUPPORTED
    if high < control_low:
        return rule.OPPOSITE
    return rule.NO_GAIN if high < 0.5 else rule.CANNOT_TELL
