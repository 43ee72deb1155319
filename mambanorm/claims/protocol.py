"""The protocol of the verdicts: by which rule, in which version, and what the versions changed.

PROTOCOL.md beside this file says it in words; its hypotheses are written into it by `python -m
mambanorm.claims.protocol`. Whoever changes a hypothesis or a number of the rule writes a new version, here and there,
before the runs that it judges, and says what it flips.

    VERSION, VERSIONS     the version in force, and all of them with their fingerprints
    SAME_RUNS             the versions whose recorded runs it judges
    planned_seeds         the test seeds of a claim at a scale
    levels                the levels of the two ends of an interval
    fingerprint           of the hypotheses and of every number of the rule
    hypotheses_text       the hypotheses as Markdown
    commit_in_force       the commit of PROTOCOL.md that a run which starts now stands under
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from mambanorm.claims.claim import SMALLEST_BITS
from mambanorm.claims.comparisons import TEXT_PARTS
from mambanorm.claims.hypotheses import BEYOND, CLAIMS, SMALLEST_EFFECT, UNEVEN, Claim
from mambanorm.claims.tuning import TRAINS
from mambanorm.study.experiments import (
    BUDGETS,
    DEPTHS,
    EDGE_LRS,
    FAILURE_DEPTHS,
    FAILURE_LRS,
    FURTHER_LR_FACTORS,
    LADDER,
    LR_FACTORS,
    SIZES,
)
from mambanorm.study.tables import SKETCH_BELOW

ONE_SIDED = 0.025
"""How often a claim at the boundary may be called reproduced, and how often contradicted."""

STABLE = 0.1
"""An arm is stable if none of its runs diverged, and so many were run that a rate of this size would have been seen."""

MOST_SEEDS = 100
"""Test seeds are 0 to 99."""

EVENING_SEEDS, GRID_SEEDS = tuple(range(20, 32)), tuple(range(20, 28))
"""Test seeds at scale evening, which no run had had before: of the claims that compare few arms, and of those that need
the grid (recording.py)."""

FIRST_CLAIMS = ("H1", "H2", "H3", "H4", "H8")
"""Claims, without the letter of their kind, that are asked of EVENING_SEEDS at evening, and over the budget; the others
are asked of GRID_SEEDS."""

VERDICT_SEEDS = 8
"""Test seeds of a verdict at the other scales, unless asked otherwise; fewer than 6 are a sketch."""

RISING = 1 / 3
"""The largest share of an arm's runs that may be best in their last tenth where its models are called trained."""

TRAINED_TASKS, CEILING_TASK = ("mnist1d", "digits_images", "pydoc"), "digits"
"""The tasks of scale evening in the order in which they are recorded. Another one joins by a new version, before its
runs. The last one is a check of the ceiling: it is asked two claims, and what it says stands beside their verdicts."""


def planned_seeds(claim_id: str, scale: str) -> tuple[int, ...]:
    """The test seeds that a claim's verdict is planned with."""
    if scale != "evening":
        return tuple(range(VERDICT_SEEDS))
    return EVENING_SEEDS if claim_id.rstrip("svl") in FIRST_CLAIMS else GRID_SEEDS


def levels(claim: Claim, m: int, tasks: int = 1) -> tuple[float, float]:
    """One-sided levels of the lower and of the upper end of each of m deciding intervals.

    That at least u of m hold is told by u intervals at ONE_SIDED/(m − u + 1) each; that they do not, by m − u + 1
    intervals at ONE_SIDED/u (partial conjunction, Benjamini & Heller 2008, with Bonferroni's bound). u = m is the
    intersection–union test, u = 1 is Bonferroni. Contradicted by one task of several is enough, so the upper level is
    shared by the tasks; to be reproduced it takes each task, which needs no correction.
    """
    u = claim.at_least or m
    return ONE_SIDED / (m - u + 1), ONE_SIDED / (u * tasks)


@dataclass(frozen=True)
class Version:
    """A version of the protocol; `fingerprint` is that of its hypotheses and numbers ("" = not kept). `runs`: the
    version under which the runs that it judges were first asked for; 0 = it asks for runs of its own."""

    number: int
    date: str
    what: str
    fingerprint: str = ""
    runs: int = 0


VERSIONS = (
    Version(1, "2026-11-20", "one rule for every claim, tuned on two seeds of their own"),
    Version(
        2,
        "2026-11-22",
        "hypotheses that say what the paper says; tuning inside the interval; not testable",
        "1ba83f7d97710bcb",
    ),
    Version(3, "2026-11-22", "bounds that hold where several arms diverge at once", "39e234a6d3bfeab2", runs=2),
    Version(4, "2026-11-22", "three questions of the second source, AutoNorm, are added", "34c98c4c6dd5891b", runs=2),
    Version(
        5,
        "2026-11-22",
        "trained models: a scale of its own, its seeds, the training budget",
        "738db600624dd84a",
        runs=2,
    ),
    Version(6, "2026-11-22", "language models, in bits; H9s to H12s on models that train", "d1fce27292573ee0", runs=2),
    Version(
        7,
        "2026-11-22",
        "at evening digits, near their ceiling, stand beside the verdicts; arms that still rise are named",
        "d3dcf37552bcf07d",
        runs=2,
    ),
    Version(
        8, "2026-11-23", "four questions beyond the paper, E1 to E4: later sites and norms", "6e3aea67ef72fc0c", runs=2
    ),
    Version(
        9, "2026-11-23", "E1 to E4 say what they are not; a seed that learns at no rate", "ab03ba1fef55e2ca", runs=2
    ),
)
VERSION = VERSIONS[-1].number
SAME_RUNS = {
    version.number for version in VERSIONS if (version.runs or version.number) == (VERSIONS[-1].runs or VERSION)
}
"""The versions whose recorded runs the one in force judges: those that ask for the same runs."""

BOUNDS = 3
"""The version that last changed how the bounds are computed (bounds.py): a part of the fingerprint."""


def fingerprint(claims: Iterable[Claim] | None = None) -> str:
    """SHA-256 of the hypotheses and of every number by which they are judged, the first 16 digits. None = all of them,
    with what is fixed for scale evening; of some claims: of these and of the rule alone, as versions 2 to 4 had it."""
    numbers = [ONE_SIDED, STABLE, MOST_SEEDS, SMALLEST_EFFECT, UNEVEN, SKETCH_BELOW, LR_FACTORS, FURTHER_LR_FACTORS]
    depths = [{scale: at[scale] for scale in at if scale != "evening"} for at in (DEPTHS, FAILURE_DEPTHS)]
    asked = (*CLAIMS.values(), *BEYOND.values()) if claims is None else claims
    told = [[*numbers, *depths, FAILURE_LRS, BOUNDS], [asdict(claim) for claim in asked]]
    if claims is None:
        told.append([EVENING_SEEDS, GRID_SEEDS, BUDGETS, SIZES, EDGE_LRS, SMALLEST_BITS, len(TEXT_PARTS)])
        told.append([TRAINED_TASKS, CEILING_TASK, RISING, LADDER, TRAINS])
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


PROTOCOL = Path(__file__).with_name("PROTOCOL.md")
MARKS = ("<!-- hypotheses: written by python -m mambanorm.claims.protocol -->\n", "<!-- end -->\n")


def hypotheses_text() -> str:
    """Every hypothesis as Markdown: the paper's sentence and its place, what is measured, and what it takes to hold."""
    return "\n".join(_hypothesis(claim) for claim in (*CLAIMS.values(), *BEYOND.values()))


def _hypothesis(claim: Claim) -> str:
    deciding = {c.group or c.name: claim.threshold_of(c) for c in claim.comparisons if c.decides}
    beside = [c.name for c in claim.comparisons if not c.decides]
    need = f"at least {claim.at_least} of" if claim.at_least else "all"
    thresholds = " / ".join(f"{threshold:+g}" for threshold in dict.fromkeys(deciding.values()))
    what = (
        "the cells of depth × learning rate" if claim.runs == "failure" else f"{len(deciding)}: {'; '.join(deciding)}"
    )
    what = f"{need} {what}" if len(deciding) > 1 or claim.at_least else claim.comparisons[0].name
    lines = [f"**{claim.id}** {claim.words}", "", f"> {claim.quote} ({claim.where})", ""]
    lines.append(f"- Measured: {claim.quantity}.")
    lines.append(f"- Needs above {thresholds} {claim.unit}: {what}.")
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
