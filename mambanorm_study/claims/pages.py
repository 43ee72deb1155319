"""The verdicts as notebook 12 and the command show them."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from mambanorm_study.basics.settings import STUDY_SCALE
from mambanorm_study.basics.text import plural
from mambanorm_study.claims.evidence import VERSION, Evidence, tasks_of
from mambanorm_study.claims.hypotheses import CLAIMS
from mambanorm_study.claims.verdict import Verdict, judge, verdicts
from mambanorm_study.runs.grid import base_config
from mambanorm_study.tables.experiments import BUDGETS, at_budget


def runs_behind(verdict: Verdict, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of the comparison that decides a verdict; no row for a claim that was not
    run."""
    return frame[frame.run_id.isin(verdict.turns_on.run_ids)]


def verdict_table(
    frame: pd.DataFrame,
    claims: Iterable[str] | None = None,
    *,
    scale: str | None = None,
    tasks: Iterable[str] | None = None,
) -> pd.DataFrame:
    """Return one row a claim and task: id, task, claim, verdict, what was compared, effect, low and
    high (95 %), unit, smallest, seeds, fresh, seeds_to_tell, paper, basis, footnotes. claims: None
    = those of the study's sources."""
    rows = []
    for verdict in verdicts(frame, CLAIMS if claims is None else claims, scale=scale, tasks=tasks):
        row = verdict.turns_on
        rows.append(
            dict(
                id=verdict.claim.id,
                task=verdict.task,
                claim=verdict.claim.words,
                verdict=verdict.said,
                compared=row.comparison,
                **{
                    name: getattr(row, name)
                    for name in ("effect", "low", "high", "unit", "smallest")
                },
                seeds=row.n,
                fresh=row.fresh,
                seeds_to_tell=row.seeds_to_tell,
                paper=row.paper,
                basis=verdict.basis,
                footnotes="; ".join(verdict.footnotes),
            )
        )
    return pd.DataFrame(rows)


def describe(verdict: Verdict) -> str:
    """Return the verdict as a few lines: the word, its number, and the footnotes."""
    claim, row = verdict.claim, verdict.turns_on
    head = f"{claim.id:<5}{verdict.said if verdict.n else 'not run'}: {claim.words} ({claim.where})"
    number = (
        f"{row.comparison}: {row.amount}, {plural(row.n, 'seed')}, {verdict.basis}"
        if verdict.n
        else ""
    )
    notes = filter(None, (number, verdict.reason, verdict.failures, *verdict.footnotes))
    return "\n     · ".join([head, *notes])


def basis(found: Iterable[Verdict], source: str) -> str:
    """Return `protocol 12, evening scale, curves, recorded`."""
    run = [verdict for verdict in found if verdict.n]
    tasks, scales = (
        dict.fromkeys(verdict.task for verdict in run),
        dict.fromkeys(verdict.scale for verdict in run),
    )
    return f"protocol {VERSION}, {', '.join(scales) or 'no'} scale, {', '.join(tasks) or 'nothing yet'}, {source}"


OF_ROW = ("word", "comparison", "effect", "low", "high", "n", "smallest", "unit")


def over_budget(frame: pd.DataFrame, scale: str = STUDY_SCALE) -> pd.DataFrame:
    """Return the deciding comparison of every claim on tuned arms at each share of the steps that
    was run, if there are two: claim, task, share, steps, and OF_ROW."""
    evidence, rows = Evidence(frame, scale), []
    tuned = [claim for claim in CLAIMS.values() if claim.runs == "tuned"]
    for claim, task in [
        (one, task) for one in tuned for task in tasks_of(one, evidence.tasks, scale)
    ]:
        steps, run = base_config(task, scale).steps, set(frame.steps[frame.task == task])
        shares = [share for share in BUDGETS if round(share * steps) in run]
        found = {
            share: judge(claim, evidence, task=task, changes=at_budget(task, scale, share))
            for share in shares
        }
        found = {share: verdict for share, verdict in found.items() if verdict.n}
        whole = found[1.0].turns_on.comparison if 1.0 in found else ""
        for share, verdict in found.items() if len(found) > 1 else ():
            row = next(
                (row for row in verdict.rows if row.comparison == whole and row.n), verdict.turns_on
            )
            facts = dict(claim=claim.id, task=task, share=share, steps=round(share * steps))
            rows.append(facts | {name: getattr(row, name) for name in OF_ROW})
    return pd.DataFrame(rows, columns=["claim", "task", "share", "steps", *OF_ROW])
