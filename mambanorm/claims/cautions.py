"""What a reader of a verdict should know besides: what is missing, how many comparisons hold, who diverged, which rate
still rises at the edge of its grid.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mambanorm.basics.text import plural
from mambanorm.claims import failures
from mambanorm.claims.effects import Row
from mambanorm.claims.evidence import Evidence
from mambanorm.claims.gaps import label
from mambanorm.claims.hypotheses import Claim

FULL_SEEDS = 8


def missing_runs(claim: Claim, evidence: Evidence, task: str) -> tuple[list[str], list[str]]:
    """What keeps the claim from a verdict (arms and rates without runs), and the seeds that are left out."""
    if claim.runs == "failure":
        counts = failures.count(evidence)
        return counts.gaps, counts.left_out
    paired = evidence.paired(claim, task)
    return list(paired.gaps), list(paired.left_out)


def how_many_hold(rows: Sequence[Row]) -> str:
    """`3 of 5 comparisons hold` of those that decide, if these are several; and of those that only stand beside."""
    deciding, beside = ([row["state"] for row in rows if row["n"] and row["decides"] == it] for it in (True, False))
    texts = [f"{deciding.count('holds')} of {len(deciding)} comparisons hold"] if len(deciding) > 1 else []
    texts += [f"{beside.count('holds')} of {len(beside)} shown beside hold"] if beside else []
    return ", ".join(texts)


def cautions(
    claim: Claim, evidence: Evidence, task: str, rows: list[Row], diverged: list[Row], judged: bool
) -> list[str]:
    """What a reader of the verdict should know besides."""
    fewest = min(row["n"] for row in rows)
    texts = [f"{plural(fewest, 'seed')}, fewer than {FULL_SEEDS}"] if 0 < fewest < FULL_SEEDS else []
    where = "at the settings of Figure 10 " if claim.runs == "failure" else ""
    texts += [where + divergence_text(row) for row in diverged if row["diverged"] or (where and row["n"])]
    if judged:
        made = [row for row in rows if row["n"]]
        texts += [told] if (told := how_many_hold(rows)) else []
        reasons = {
            row["why"]: None for row in made if row["why"] and row["state"] in ("untestable", "imprecise", "open")
        }
        for why in reasons:
            names = ", ".join(row["comparison"] for row in made if row["why"] == why)
            texts.append(f"{names}: {why}")
    if claim.runs == "tuned" and (edge := _at_an_edge(claim, evidence, task)):
        texts.append(f"learning rate still rising at the edge of its grid: {edge}")
    return texts


def _at_an_edge(claim: Claim, evidence: Evidence, task: str) -> str:
    paired = evidence.paired(claim, task)
    if paired.edge is None:
        return ""
    arms = zip(paired.arms, paired.chosen, paired.edge, strict=True)
    return ", ".join(f"{label(arm)} ({lr:g})" for arm, lr, edge in arms if edge)


def divergence_text(row: Row) -> str:
    """`None→None diverged in 3 of 24 runs [9, 76 %] (Fisher p = 0.2)`; accuracy claims score these as chance."""
    against = f" (Fisher p = {row['p']:.2g})" if np.isfinite(row["p"]) else ""
    interval = f"[{100 * row['low']:.0f}, {100 * row['high']:.0f} %]"
    return f"{label(row['arm'])} diverged in {row['diverged']} of {plural(row['n'], 'run')} {interval}{against}"
