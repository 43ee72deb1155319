"""Verdicts as text: one row a claim in a data frame, a few lines or one line on a terminal."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from mambanorm.basics.text import plural
from mambanorm.claims.hypotheses import CLAIMS
from mambanorm.claims.verdict import Verdict, judge

# ---------------------------------------------------------------------------------------------------------------------
# the table


def verdict_table(
    frame: pd.DataFrame,
    claims: Iterable[str] | None = None,
    *,
    scale: str | None = None,
    tasks: Iterable[str] | None = None,
) -> pd.DataFrame:
    """One row a claim: id, claim, verdict, effect, low, high, unit, threshold, decided_by, paper, seeds, seeds_to_tell,
    protocol, fidelity, caveats. None = every claim."""
    tasks = None if tasks is None else list(tasks)
    rows = []
    for claim_id in CLAIMS if claims is None else claims:
        v = judge(claim_id, frame, scale=scale, tasks=tasks)
        facts = dict(id=v.claim.id, claim=v.claim.words, verdict=v.verdict, effect=v.effect, low=v.ci[0], high=v.ci[1])
        facts |= dict(unit=v.unit, threshold=v.threshold, decided_by=v.decided_by, paper=v.paper, seeds=v.n_seeds)
        facts |= dict(seeds_to_tell=v.seeds_to_tell, protocol=v.protocol)
        rows.append(facts | dict(fidelity=v.fidelity, caveats="; ".join(v.caveats)))
    return pd.DataFrame(rows)


def describe(verdict: Verdict) -> str:
    """The verdict, its number and what to know of it, a few lines."""
    claim = verdict.claim
    lines = [f"{claim.id:<5}{verdict.verdict:<14}{claim.words} ({claim.where})"]
    if verdict.decided_by:
        lines.append(
            f"     {verdict.decided_by}: {verdict.amount}, {plural(verdict.n_seeds, 'seed')}, {verdict.fidelity}"
        )
    return "\n".join(lines + [f"     · {caveat}" for caveat in verdict.caveats])


def one_line(verdict: Verdict) -> str:
    """A row of the table that the command line prints: id, verdict, effect with interval, seeds, what decided it, and
    what it lacks."""
    found = f"{verdict.amount:<46}{plural(verdict.n_seeds, 'seed'):<9}{verdict.decided_by}" if verdict.n_seeds else ""
    lacks = f" ({lack})" if (lack := verdict.reason) else ""
    return f"{verdict.claim.id:<5}{verdict.verdict:<14}{found}{lacks}".rstrip()
