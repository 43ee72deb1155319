"""The protocol of the verdicts: by which rule, in which version, and what the versions changed.

PROTOCOL.md beside this file is `text()`, written out; a test holds the two equal. Whoever changes a hypothesis or a
number of the rule writes a new version here, before the runs that it judges, and says what it flips.

    VERSION, VERSIONS     the version in force, and all of them with their fingerprints
    levels                the levels of the two ends of an interval
    fingerprint           of the hypotheses and of every number of the rule
    text                  all of it as Markdown
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

from mambanorm.claims.hypotheses import CLAIMS, SMALLEST_EFFECT, Claim
from mambanorm.study.experiments import DEPTHS, FAILURE_DEPTHS, FAILURE_LRS, FURTHER_LR_FACTORS, LR_FACTORS
from mambanorm.study.tables import SKETCH_BELOW

ONE_SIDED = 0.025
"""How often a claim at the boundary may be called reproduced, and how often contradicted."""

MOST_SEEDS = 100
"""Test seeds are 0 to 99."""


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
    """A version of the protocol; `fingerprint` is that of its hypotheses and numbers ("" = not kept)."""

    number: int
    date: str
    what: str
    fingerprint: str = ""


VERSIONS = (
    Version(1, "2026-11-20", "one rule for every claim, tuned on two seeds of their own"),
    Version(2, "2026-11-22", "hypotheses that say what the paper says; tuning inside the interval; not testable"),
)
VERSION = VERSIONS[-1].number


def fingerprint() -> str:
    """SHA-256 of all hypotheses and of every number by which they are judged, the first 16 digits."""
    numbers = [ONE_SIDED, MOST_SEEDS, SMALLEST_EFFECT, SKETCH_BELOW, LR_FACTORS, FURTHER_LR_FACTORS]
    numbers += [DEPTHS, FAILURE_DEPTHS, FAILURE_LRS]
    told = json.dumps([numbers, [asdict(claim) for claim in CLAIMS.values()]], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:16]
