"""The protocol of the verdicts: its version, what it plans, and the hypotheses as text.

PROTOCOL.md beside this file says rule and versions in words; its hypotheses are written into it by `python -m
mambanorm.claims.protocol`. Whoever changes a hypothesis or a number of the rule writes a new version, here and there,
before the runs that it judges, and says what it flips.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import asdict
from pathlib import Path

from mambanorm.claims import rule
from mambanorm.claims.claim import SMALLEST_BITS, SMALLEST_EFFECT, Claim
from mambanorm.claims.hypotheses import BEYOND, CLAIMS, UNEVEN
from mambanorm.study.experiments import (
    BUDGETS,
    DEPTHS,
    EDGE_LRS,
    FAILURE_DEPTHS,
    FAILURE_LRS,
    FURTHER_LR_FACTORS,
    LADDER,
    LR_FACTORS,
)

VERSION, DATE = 11, "2026-11-25"
FINGERPRINT = "249ae996e31f24eb"
SAME_RUNS = range(2, VERSION + 1)
"""The versions whose recorded runs are judged: all of them ask for the same runs."""

EVENING_SEEDS, GRID_SEEDS = tuple(range(40, 52)), tuple(range(40, 48))
"""Test seeds at scale evening, which no run had had before: of the claims that compare few arms, and of those that need
the grid, a ladder of rates, E3 or E4 (recording.py)."""
FAILING_SEEDS, LOOKED_BACK = tuple(range(40, 80)), tuple(range(40, 60))
"""Those of the claims on runs that fail, which are short: how many fail and how (H9, H16); and of those in which about
half of the seeds can tell, because None→None failed, or did not (H10 to H12, E1)."""

FEW, INSIDE = ("H5", "H6", "H7", "H13", "E2", "E3", "E4"), ("H10", "H11", "H12", "E1")
FIRST_CLAIMS = ("H1", "H2", "H3", "H4", "H8")
"""Claims, without the letter of their kind: those that are asked of GRID_SEEDS, and of LOOKED_BACK; those that are
asked over the budget, too."""

VERDICT_SEEDS = 8
"""Test seeds of a verdict at the other scales, unless asked otherwise."""

TRAINED_TASKS, LAST = ("curves", "listops", "glyphs", "glyphs_images", "pydoc"), ("listops", "glyphs")
"""The tasks by which a claim about tuned arms is judged at scale evening; those that are recorded last, but for H1 and
H2 on glyphs. Other tasks of a frame are judged where they are asked for."""


def planned_seeds(claim_id: str, scale: str) -> tuple[int, ...]:
    """The test seeds that a claim's verdict is planned with."""
    if scale != "evening":
        return tuple(range(VERDICT_SEEDS))
    name = claim_id.rstrip("svl")
    by_name = dict.fromkeys(FEW, GRID_SEEDS) | dict.fromkeys(("H9", "H16"), FAILING_SEEDS)
    return (by_name | dict.fromkeys(INSIDE, LOOKED_BACK)).get(name, EVENING_SEEDS)


def fingerprint() -> str:
    """SHA-256 of the hypotheses and of every number by which they are judged, the first 16 digits."""
    numbers = [rule.ONE_SIDED, rule.FEWEST, rule.RISING, SMALLEST_EFFECT, SMALLEST_BITS, UNEVEN]
    grids = [LR_FACTORS, FURTHER_LR_FACTORS, DEPTHS, FAILURE_DEPTHS, FAILURE_LRS, EDGE_LRS, BUDGETS, LADDER]
    plan = [EVENING_SEEDS, GRID_SEEDS, FAILING_SEEDS, LOOKED_BACK, FEW, INSIDE, TRAINED_TASKS]
    told = [numbers, grids, plan, [asdict(claim) for claim in (*CLAIMS.values(), *BEYOND.values())]]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


PROTOCOL = Path(__file__).with_name("PROTOCOL.md")
MARKS = ("<!-- hypotheses: written by python -m mambanorm.claims.protocol -->\n", "<!-- end -->\n")


def hypotheses_text() -> str:
    """Every hypothesis as Markdown: the paper's sentence and its place, what is measured, and what it takes to hold."""
    return "\n".join(_hypothesis(claim) for claim in (*CLAIMS.values(), *BEYOND.values()))


def _hypothesis(claim: Claim) -> str:
    beside = [c.name for c in claim.comparisons if not c.decides]
    lines = [f"**{claim.id}** {claim.words}", "", f"> {claim.quote} ({claim.where})", ""]
    lines.append(f"- Measured: {claim.quantity}.")
    lines.append(f"- Needs {claim.needs}.")
    if beside:
        lines.append(f"- Beside it, without a part in the decision: {'; '.join(beside)}.")
    lines.append(f"- The paper's numbers: {claim.paper}.")
    if claim.note:
        lines.append(f"- Note: {claim.note}.")
    return "\n".join(lines) + "\n"


def with_hypotheses(document: str) -> str:
    """PROTOCOL.md with the hypotheses as they are now."""
    start, end = document.index(MARKS[0]) + len(MARKS[0]), document.index(MARKS[1])
    return f"{document[:start]}\n{hypotheses_text()}\n{document[end:]}"


def commit_in_force() -> str:
    """The commit that last changed PROTOCOL.md; with ", changed since" where it was edited; "unknown" without git."""
    git = ["git", "-C", str(PROTOCOL.parent)]
    try:
        log = subprocess.run([*git, "log", "-1", "--format=%h", "--", PROTOCOL.name], capture_output=True, text=True)
        dirty = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", PROTOCOL.name], capture_output=True)
    except OSError:
        return "unknown"
    commit = log.stdout.strip()
    return f"{commit}, changed since" if commit and dirty.returncode else commit or "unknown"


if __name__ == "__main__":
    PROTOCOL.write_text(with_hypotheses(PROTOCOL.read_text("utf-8")), "utf-8")
    print(f"{PROTOCOL}: version {VERSION}, fingerprint {fingerprint()}")
