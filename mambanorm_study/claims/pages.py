"""The verdicts as notebook 12 and `mambanorm verdicts` show them: tables and lines of text."""

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
from mambanorm_study.tables.experiments import BUDGETS, at_budget


def describe(verdict: Verdict) -> str:
    """Return the verdict as a few lines: the word, its number, and the footnotes."""
    claim, row = verdict.claim, verdict.turns_on
    word, number = "not run", ""
    if verdict.n:
        word = verdict.said
        number = f"{row.comparison}: {row.amount}, {plural(row.n, 'seed')}, {verdict.basis}"
    head = f"{claim.id:<5}{word}: {claim.words} ({claim.where})"
    notes = filter(None, (number, verdict.reason, verdict.failures, *verdict.footnotes))
    return "\n     · ".join([head, *notes])


def basis(verdicts: Iterable[Verdict], source: str) -> str:
    """Return `protocol 12, evening scale, curves, recorded` for several verdicts."""
    judged = [verdict for verdict in verdicts if verdict.n]
    tasks = ", ".join(dict.fromkeys(verdict.task for verdict in judged)) or "nothing yet"
    scales = ", ".join(dict.fromkeys(verdict.scale for verdict in judged)) or "no"
    return f"protocol {VERSION}, {scales} scale, {tasks}, {source}"


def comparisons_by_steps(frame: pd.DataFrame, scale: str = STUDY_SCALE) -> pd.DataFrame:
    """Return the deciding comparison of every claim on tuned arms at each number of steps that was
    run. Columns: claim, task, share (of the scale's steps), steps, and fields of its `Row`.

    Claims that were run with one number of steps only are omitted.
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
    scale's number of steps, if it was run.
    """
    steps = base_config(task, evidence.scale).steps
    judged = {}
    for share in BUDGETS:
        if round(share * steps) in run_steps:
            changes = at_budget(task, evidence.scale, share)
            judged[share] = judge(claim, Evidence(evidence, changes=changes), task=task)
    judged = {share: verdict for share, verdict in judged.items() if verdict.n}
    if len(judged) < 2 or 1.0 not in judged:
        return []
    deciding, rows = judged[1.0].turns_on.comparison, []
    for share, verdict in judged.items():
        same = (row for row in verdict.rows if row.comparison == deciding and row.n)
        row = next(same, verdict.turns_on)
        facts = {"claim": claim.id, "task": task, "share": share, "steps": round(share * steps)}
        rows.append(asdict(row) | facts)
    return rows
