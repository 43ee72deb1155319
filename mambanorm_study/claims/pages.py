"""Verdicts as text and tables, for notebook 12 and `mambanorm verdicts`."""

from collections.abc import Iterable
from dataclasses import asdict

import numpy as np
import pandas as pd

from mambanorm_study.basics.settings import STUDY_SCALE
from mambanorm_study.basics.text import plural
from mambanorm_study.claims import rule
from mambanorm_study.claims.claim import Claim
from mambanorm_study.claims.evidence import VERSION, Evidence, tasks_of
from mambanorm_study.claims.hypotheses import CLAIMS
from mambanorm_study.claims.verdict import Verdict, judge
from mambanorm_study.runs.grid import base_config
from mambanorm_study.tables.experiments import BUDGETS, budget_changes


def describe(verdict: Verdict) -> str:
    """Return a few lines of text about a verdict: the verdict and the claim, the difference that
    decides the verdict, the reason if it is "cannot tell" or "no word", the number of failed runs,
    and footnotes.
    """
    claim, row = verdict.claim, verdict.main_row
    word, number = "not run", ""
    if verdict.n:
        word = verdict.as_text
        number = f"{row.comparison}: {row.amount}, {plural(row.n, 'seed')}, {verdict.basis}"
    head = f"{claim.id:<5}{word}: {claim.words} ({claim.where})"
    notes = filter(None, (number, verdict.reason, verdict.failures, *verdict.footnotes))
    return "\n     · ".join([head, *notes])


def basis(verdicts: Iterable[Verdict], source: str) -> str:
    """Return, as text, what several verdicts are based on: `protocol 12, evening scale, curves,
    recorded`.

    source: where the runs are from, such as "recorded".
    """
    judged = [verdict for verdict in verdicts if verdict.n]
    tasks = ", ".join(dict.fromkeys(verdict.task for verdict in judged)) or "nothing yet"
    scales = ", ".join(dict.fromkeys(verdict.scale for verdict in judged)) or "no"
    return f"protocol {VERSION}, {scales} scale, {tasks}, {source}"


def judge_differences(differences: pd.DataFrame, smallest: float) -> tuple[str, pd.DataFrame]:
    """Return the verdict on a claim that is not in CLAIMS, for example of a lesson, and a table of
    its comparisons, one row for each column of `differences`.

    All comparisons must hold, so the upper end of each interval is corrected for their number, and
    the claim has the weakest of their verdicts. Columns: effect (the mean difference), low and high
    (its 95 % interval without the correction), seeds (their number), verdict, and corrected (True
    if the correction changed the verdict). differences: one row for each seed, positive where the
    claim is right. smallest: the smallest effect of interest. Raises ValueError for differences
    that are not finite, and for an empty frame.
    """
    if differences.empty or not np.isfinite(differences).all(axis=None):
        raise ValueError("differences must be finite, at least one seed: leave out the other seeds")
    levels = rule.levels(differences.shape[1], one_suffices=False)
    rows = {}
    for comparison, per_seed in differences.items():
        low, high = rule.interval(per_seed)
        verdict = rule.comparison_verdict(per_seed, smallest, *levels)
        rows[comparison] = {
            "effect": per_seed.mean(),
            "low": low,
            "high": high,
            "seeds": len(per_seed),
            "verdict": verdict,
            "corrected": verdict != rule.comparison_verdict(per_seed, smallest),
        }
    table = pd.DataFrame.from_dict(rows, orient="index")
    return rule.claim_verdict(table.verdict, one_suffices=False), table


def comparisons_by_steps(frame: pd.DataFrame | Evidence, scale: str = STUDY_SCALE) -> pd.DataFrame:
    """Return how the comparison that decides a verdict changes with the number of training steps,
    as a DataFrame with one row for each claim about tuned arms, task and number of steps that was
    run.

    Columns: claim (its id), words (the claim in words), task, share (the number of steps as a share
    of the scale's steps, one of BUDGETS), steps, word (the verdict on the comparison), comparison,
    effect, low, high, n, smallest and unit (see `Row`). Claims that were run with only one number
    of steps are omitted.
    """
    evidence, rows = Evidence(frame, scale), []
    steps_of_task = evidence.runs.groupby("task").steps.agg(set)
    for claim in CLAIMS.values():
        if claim.runs == "tuned":
            for task in tasks_of(claim, evidence.tasks, scale):
                rows += _budget_rows(claim, task, evidence, steps_of_task[task])
    columns = ["claim", "words", "task", "share", "steps", "word", "comparison", "effect"]
    return pd.DataFrame(rows, columns=[*columns, "low", "high", "n", "smallest", "unit"])


def _budget_rows(claim: Claim, task: str, evidence: Evidence, run_steps: set[int]) -> list[dict]:
    """Return the rows of `comparisons_by_steps` for one claim and task, as dictionaries.

    Every row shows the comparison that decides the verdict at the scale's number of steps. If that
    comparison was not run with the row's number of steps, the row shows the comparison that decides
    the verdict at the row's number of steps. run_steps: the numbers of steps that were run.
    """
    steps = base_config(task, evidence.scale).steps
    judged = {}
    for share in BUDGETS:
        if round(share * steps) in run_steps:
            changes = budget_changes(task, evidence.scale, share)
            judged[share] = judge(claim, Evidence(evidence, changes=changes), task=task)
    judged = {share: verdict for share, verdict in judged.items() if verdict.n}
    if len(judged) < 2 or 1.0 not in judged:
        return []
    deciding, rows = judged[1.0].main_row.comparison, []
    for share, verdict in judged.items():
        same_comparison = (row for row in verdict.rows if row.comparison == deciding and row.n)
        row = next(same_comparison, verdict.main_row)
        facts = {"claim": claim.id, "words": claim.words, "task": task, "share": share}
        rows.append(asdict(row) | facts | {"steps": round(share * steps)})
    return rows
