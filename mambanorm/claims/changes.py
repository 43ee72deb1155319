"""Version 1 of the protocol beside the one in force: which verdicts differ, and what changed in between.

first_verdicts    what version 1 said, judged anew on the runs that were recorded under it
verdict_changes   claim → version 1 → the version in force → why they differ
recorded_under    by which protocol a frame was recorded
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from mambanorm.basics.settings import default_scale
from mambanorm.claims.protocol import VERSION
from mambanorm.claims.verdict import Verdict
from mambanorm.claims.version_1 import HYPOTHESES, FirstVerdict, judge_version_1
from mambanorm.study.tables import points
from mambanorm.training.recorded_results import recorded, recorded_path

TUNING = "tuning, overlap of splits and unseen divergence now widen its interval"
SAME_RIVALS = f"the same hypothesis, but every rival decides, not one that two more seeds named; {TUNING}"

WHY = {
    "H1": "it now asks for one norm (“an appropriate”), not for each of the five",
    "H2s": SAME_RIVALS,
    "H2v": "it now asks for a place among the best two: the paper's own lead over the next is 0.3 points",
    "H3": "it now asks for the mean over the norms (“generally”), not for each of them",
    "H4": "it now asks for GN alone: that GN gains most is nowhere in the paper",
    "H5": f"the same hypothesis; the best partner is chosen on the other seeds, not on two more; {TUNING}",
    "H6": SAME_RIVALS,
    "H7": "it now compares variances of means with the seeds' noise taken out, not spreads within a seed",
    "H8": f"the same step, but the comparisons beside it no longer decide or widen its interval; {TUNING}",
    "H9": "it now asks for one setting where most runs fail and a normalized control's do not, not for all settings",
    "H10": "it now looks where training fails and at the largest token, not at 24 steps in which nothing grows",
    "H11": "it now takes the variance across the blocks, not within each, and growth over all, not last minus first",
    "H12": "it now asks for one norm that takes a quarter off the unevenness since initialisation, in deep models",
}
"""Claim, or its number if sequences and images share it → what changed since version 1."""


def first_verdicts(scale: str | None = None, tasks: Iterable[str] | None = None) -> dict[str, FirstVerdict]:
    """Claim id → the verdict of version 1 on the runs recorded under it (None = the environment's scale, every task);
    empty if there are none at this scale."""
    scale = default_scale() if scale is None else scale
    if not recorded_path(scale, version=1).is_file():
        return {}
    frame, tasks = recorded(scale, version=1), None if tasks is None else list(tasks)
    return {name: judge_version_1(name, frame, scale=scale, tasks=tasks) for name in HYPOTHESES}


def first_brief(first: FirstVerdict) -> str:
    """`contradicted (GN→GN − IN→IN on digits: −20.3 points [−32.9, −7.6])`"""
    if not first.n_seeds:
        return first.verdict
    low, high = first.ci
    amount = f"{first.effect:.3g} [{low:.3g}, {high:.3g}] {first.unit}".replace("-", "−")
    return f"{first.verdict} ({first.decided_by}: {points(first.effect, low, high) if first.unit == 'pp' else amount})"


def verdict_changes(verdicts: Sequence[Verdict], first: Mapping[str, FirstVerdict]) -> pd.DataFrame:
    """One row a claim that both judge: claim, version 1, the version in force (each with what decided it), differ
    (bool), and why they differ, "" where they say the same word."""
    rows = []
    for verdict in verdicts:
        if (before := first.get(verdict.claim.id)) is None:
            continue
        differ = before.verdict != verdict.verdict
        why = _why(verdict) if differ else ""
        rows.append((verdict.claim.id, first_brief(before), verdict.brief, differ, why))
    columns = ["claim", "version 1", f"version {VERSION}", "differ", "why they differ"]
    return pd.DataFrame(rows, columns=columns).astype({"differ": bool})


def _why(verdict: Verdict) -> str:
    if verdict.verdict in ("sketch", "not run"):
        return f"protocol {VERSION} has no verdict yet: runs or seeds are missing"
    name = verdict.claim.id
    why = WHY.get(name) or WHY[name[:-1]]
    return f"{why}; {verdict.reason}" if verdict.verdict == "not testable" else why


def recorded_under(frame: pd.DataFrame) -> str:
    """`protocol 2, in force since commit e74d60c`, from the frame's own columns."""
    if not {"protocol", "protocol_commit"} <= set(frame.columns) or frame.empty:
        return "no protocol is named in the frame"
    said = frame[["protocol", "protocol_commit"]].drop_duplicates().itertuples(index=False)
    return " and ".join(f"protocol {version:.0f}, in force since commit {commit}" for version, commit in said)
