"""What was found, in plain sentences: the first thing that README and report say.

Each finding is one comparison of one claim on the recorded trained models. Its first words follow the row's state
(effects.py), so a finding that other runs turn over turns its sentence over too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pandas as pd

from mambanorm.claims.evidence import Evidence
from mambanorm.claims.headline import EARLY, TRAINED
from mambanorm.claims.verdict import Verdict, judge
from mambanorm.study.tables import points
from mambanorm.training.recorded_results import recorded, recorded_path


@dataclass(frozen=True)
class Finding:
    """One comparison of a claim on one task, and the words for it: if it holds, if it fails, if it is open."""

    claim: str
    task: str
    comparison: str
    holds: str
    fails: str
    open: str
    compared: str
    early: str = ""
    """A task on which the first epochs (scale quick) are looked at, too."""


FINDINGS = (
    Finding(
        *("H1s", "mnist1d", "GN→GN − None→None"),
        holds="Without any norm Mamba learns badly.",
        fails="Mamba learns as well without a norm.",
        open="Whether Mamba needs a norm is not told.",
        compared="GN before the block and after the scan, against no norm at all",
    ),
    Finding(
        *("H3s", "mnist1d", "mean over 5 norms: None→N − N→None"),
        holds="After the scan is a better place for a norm than before the block.",
        fails="After the scan is no better a place for a norm than before the block.",
        open="Which place is better for a norm is not told.",
        compared="The same norm moved from before to after, the mean of five norms",
        early="listops",
    ),
    Finding(
        *("H8s", "mnist1d", "NormVary→GN − RMSN→None"),
        holds="The paper's proposal beats the original Mamba.",
        fails="The paper's proposal does not beat the original Mamba.",
        open="Whether the paper's proposal beats the original Mamba is not told.",
        compared="NormVary→GN against RMSN→None",
    ),
    Finding(
        *("H8s", "mnist1d", "NormVary→GN − NormVary-fixed→GN"),
        holds="That NormVary learns its mixture of norms is part of the gain.",
        fails="That NormVary learns its mixture of norms brings nothing that counts.",
        open="Whether NormVary has to learn its mixture of norms is not told.",
        compared="The proposal against itself with equal weights that stay",
    ),
    Finding(
        *("H6s", "mnist1d", "mean of ·→GN − mean of ·→IN"),
        holds="GN, the second norm that the paper prefers, is better than IN.",
        fails="GN, the second norm that the paper prefers, is not the best one.",
        open="Whether GN or IN is the better second norm is not told.",
        compared="All pairs that end with GN against all that end with IN",
    ),
    Finding(
        *("H8v", "digits_images", "NormVary→LN − LN→LN"),
        holds="The proposal for images beats the original, too.",
        fails="The proposal for images does not beat the original.",
        open="On images these runs cannot tell: every seed deals out the same 1,797 digits.",
        compared="NormVary→LN against LN→LN",
    ),
)


def findings(frame: pd.DataFrame | None = None) -> list[str]:
    """A sentence in Markdown for each finding, with its effect and interval, from a run frame of trained models and of
    first epochs (None = the recorded results; then none where no trained models are recorded). A finding without runs
    is left out."""
    if frame is None:
        if not recorded_path(TRAINED).is_file():
            return []
        frame = pd.concat([recorded(TRAINED), recorded(EARLY)], ignore_index=True)

    read = {scale: Evidence(frame, scale) for scale in (TRAINED, EARLY)}

    @cache
    def verdict(claim: str, task: str, scale: str) -> Verdict:
        return judge(claim, read[scale], scale=scale, tasks=[task])

    return [said for one in FINDINGS if (said := _sentence(one, verdict))]


def _sentence(one: Finding, verdict) -> str:
    told = verdict(one.claim, one.task, TRAINED)
    row = _row(told, one)
    if row is None or row.n < 2:
        return ""
    lead = {"holds": one.holds, "fails": one.fails}.get(row.state, one.open)
    hides = (
        f" ({told.uneven.replace(' pp', '')})" if told.uneven and told.turns_on["comparison"] == one.comparison else ""
    )
    said = f"**{lead}** {one.compared}: {points(row.effect, row.low, row.high)}{hides}."
    return said + (_at_odds(row.state, _row(verdict(one.claim, one.early, EARLY), one), one) if one.early else "")


def _row(verdict: Verdict, one: Finding):
    return next((row for row in verdict.rows.itertuples() if row.comparison == one.comparison), None)


def _at_odds(state: str, early, one: Finding) -> str:
    """What the first epochs of another task say, if they say the opposite."""
    opposite = {"holds": "fails", "fails": "holds"}.get(state)
    other_way = early is not None and early.state == opposite
    return f" Early in training, on {one.early}, it is the other way round." if other_way else ""
