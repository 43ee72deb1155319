"""Verdicts as text and tables, for notebook 12 and `mambanorm verdicts`."""

from collections.abc import Iterable
from dataclasses import asdict

import pandas as pd

from mambanorm_study.basics.settings import STUDY_SCALE
from mambanorm_study.basics.text import plural
from mambanorm_study.claims.claim import Claim
from mambanorm_study.claims.evidence import VERSION, Evidence, tasks_of
from mambanorm_study.claims.hypotheses import CLAIMS
from mambanorm_study.claims.verdict import Verdict, judge
from mambanorm_study.runs.grid import base_config
from mambanorm_study.tables.experiments import BUDGETS, budget_changes


def describe(verdict: Verdict) -> str:
    """Return a verdict as a few lines of text: the word and the claim, the difference that decides,
    the reason for an uninformative word, failures and footnotes.
    """
    claim, row = verdict.claim, verdict.turns_on
    word, number = "not run", ""
    if verdict.n:
        word = verdict.said
        number = f"{row.comparison}: {row.amount}, {plural(row.n, 'seed')}, {verdict.basis}"
    head = f"{claim.id:<5}{word}: {claim.words} ({claim.where})"
    notes = filter(None, (number, verdict.reason, verdict.failures, *verdict.footnotes))
    return "\n     · ".join([head, *notes])


def basis(verdicts: Iterable[Verdict], source: str) -> str:
    """Return what several verdicts are based on: `protocol 12, evening scale, curves, recorded`."""
    judged = [verdict for verdict in verdicts if verdict.n]
    tasks = ", ".join(dict.fromkeys(verdict.task for verdict in judged)) or "nothing yet"
    scales = ", ".join(dict.fromkeys(verdict.scale for verdict in judged)) or "no"
    return f"protocol {VERSION}, {scales} scale, {tasks}, {source}"


def comparisons_by_steps(frame: pd.DataFrame, scale: str = STUDY_SCALE) -> pd.DataFrame:
    """Return how the comparison that decides a claim changes with the number of training steps: one
    row for each claim on tuned arms, task and number of steps in BUDGETS that was run.

    Columns: claim, task, share (of the scale's steps), steps, and fields of the comparison's `Row`.
    Claims that were run with only one number of steps are omitted.
    """
    evidence = Evidence(frame, scale)
    rows = []
    for claim in CLAIMS.values():
        if claim.runs == "tuned":
            for task in tasks_of(claim, evidence.tasks, scale):
                rows += _budget_rows(claim, task, evidence, set(frame.steps[frame.task == task]))
    columns = ["claim", "task", "share", "steps", "word", "comparison", "effect", "low", "high"]
    return pd.DataFrame(rows, columns=[*columns, "n", "smallest", "unit"])


def _budget_rows(claim: Claim, task: str, evidence: Evidence, run_steps: set[int]) -> list[dict]:
    """Return the rows of one claim and task. Every row shows the comparison that decides at the
    scale's own number of steps. If that comparison was not run with the row's number of steps, the
    row shows the comparison that decides at this number.
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
    deciding, rows = judged[1.0].turns_on.comparison, []
    for share, verdict in judged.items():
        same_comparison = (row for row in verdict.rows if row.comparison == deciding and row.n)
        row = next(same_comparison, verdict.turns_on)
        facts = {"claim": claim.id, "task": task, "share": share, "steps": round(share * steps)}
        rows.append(asdict(row) | facts)
    return rows
