"""The verdicts as notebook 12 and `mambanorm verdicts` show them: tables and lines of text."""

from collections.abc import Iterable

import pandas as pd

from mambanorm_study.basics.settings import STUDY_SCALE
from mambanorm_study.basics.text import plural
from mambanorm_study.claims.claim import Claim
from mambanorm_study.claims.evidence import VERSION, Evidence, tasks_of
from mambanorm_study.claims.hypotheses import CLAIMS
from mambanorm_study.claims.verdict import Verdict, judge
from mambanorm_study.runs.grid import base_config
from mambanorm_study.tables.experiments import BUDGETS, at_budget


def runs_behind(verdict: Verdict, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of the deciding comparison; no row for a claim that was not run."""
    return frame[frame.run_id.isin(verdict.turns_on.run_ids)]


def describe(verdict: Verdict) -> str:
    """Return the verdict as a few lines: the word, its number, and the footnotes."""
    claim, row = verdict.claim, verdict.turns_on
    word, number = "not run", ""
    if verdict.n:
        word = verdict.said
        seeds = plural(row.n, "seed")
        number = f"{row.comparison}: {row.amount}, {seeds}, {verdict.basis}"
    head = f"{claim.id:<5}{word}: {claim.words} ({claim.where})"
    notes = filter(None, (number, verdict.reason, verdict.failures, *verdict.footnotes))
    return "\n     · ".join([head, *notes])


def basis(found: Iterable[Verdict], source: str) -> str:
    """Return `protocol 12, evening scale, curves, recorded` for several verdicts."""
    judged = [verdict for verdict in found if verdict.n]
    tasks = ", ".join(dict.fromkeys(verdict.task for verdict in judged)) or "nothing yet"
    scales = ", ".join(dict.fromkeys(verdict.scale for verdict in judged)) or "no"
    return f"protocol {VERSION}, {scales} scale, {tasks}, {source}"


ROW_COLUMNS = ("word", "comparison", "effect", "low", "high", "n", "smallest", "unit")


def over_budget(frame: pd.DataFrame, scale: str = STUDY_SCALE) -> pd.DataFrame:
    """Return the deciding comparison of every claim on tuned arms at each share of the steps that
    was run, if there are two: claim, task, share, steps, and ROW_COLUMNS.
    """
    evidence = Evidence(frame, scale)
    rows = []
    for claim in CLAIMS.values():
        if claim.runs == "tuned":
            for task in tasks_of(claim, evidence.tasks, scale):
                rows += _budget_rows(claim, task, evidence, set(frame.steps[frame.task == task]))
    return pd.DataFrame(rows, columns=["claim", "task", "share", "steps", *ROW_COLUMNS])


def _budget_rows(claim: Claim, task: str, evidence: Evidence, run_steps: set[int]) -> list[dict]:
    """Return the rows of one claim and task. All shares show the comparison that decides at the
    whole budget, if it was run.
    """
    steps = base_config(task, evidence.scale).steps
    found = {}
    for share in BUDGETS:
        if round(share * steps) in run_steps:
            changes = at_budget(task, evidence.scale, share)
            verdict = judge(claim, evidence, task=task, changes=changes)
            if verdict.n:
                found[share] = verdict
    if len(found) < 2:
        return []
    deciding = found[1.0].turns_on.comparison if 1.0 in found else ""
    rows = []
    for share, verdict in found.items():
        same = [row for row in verdict.rows if row.comparison == deciding and row.n]
        row = (same or [verdict.turns_on])[0]
        facts = {"claim": claim.id, "task": task, "share": share, "steps": round(share * steps)}
        rows.append(facts | {name: getattr(row, name) for name in ROW_COLUMNS})
    return rows
