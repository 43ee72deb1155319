"""A claim and a run frame → a verdict: reproduced, contradicted, ≈ threshold, inconclusive, not testable, …

The rule is the same for every claim (protocol.py has its versions, PROTOCOL.md all of it in words). Each comparison
gives one number a seed (arms are paired by their seeds) and from these a mean with an interval, which is held against a
threshold (effects.py). Of the m comparisons that decide, at least u have to hold (u = m where a claim says "every"):

    reproduced      u of them hold
    contradicted    so many fail that u can no longer hold
    inconclusive    neither; more seeds could tell, and how many is said
    ≈ threshold     neither; the effect is told to lie at the threshold, so more seeds would tell nothing else
    not testable    neither; these runs cannot tell: at a ceiling or at chance, no variance, a learning rate at the edge
                    of its grid, out of reach, or too imprecise for any number of seeds
    sketch          the same picture from fewer than 6 seeds, or with a run of the protocol missing: no verdict
    not run         nothing to compare

A diverged run is scored as chance and never left out; the rate of divergence stands beside. On several tasks a claim is
reproduced if it is reproduced on each task, contradicted if it is contradicted on one and reproduced on none. A task
that cannot tell for another reason than imprecision says nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from mambanorm.claims import effects
from mambanorm.claims.cautions import cautions, how_many_hold, missing_runs
from mambanorm.claims.comparisons import NONE
from mambanorm.claims.effects import STATES, Row
from mambanorm.claims.evidence import Evidence
from mambanorm.claims.gaps import label
from mambanorm.claims.hypotheses import CLAIMS, CONTROL, Claim, find_claim
from mambanorm.claims.judged_on import check_changes, tasks_of, variants
from mambanorm.claims.protocol import CEILING_TASK, VERSION
from mambanorm.study.tables import SKETCH_BELOW, points

VERDICTS = ("reproduced", "contradicted", "≈ threshold", "inconclusive", "not testable", "sketch", "not run")
TOLD = VERDICTS[:4]
"""Those that count where several tasks make one verdict."""
BY_SEED = ("pp", "bits a character")
"""Units of effects that are the mean of one number a seed."""
COLUMNS = ["task", "comparison", "effect", "low", "high", "n", "threshold", "unit", "state", "why", "decides", "paper"]
COLUMNS += ["seeds_to_tell", "plain", "per_seed"]

__all__ = ["CLAIMS", "VERDICTS", "Verdict", "judge"]


@dataclass(frozen=True, eq=False)
class Verdict:
    """What the runs say of a claim. `effect` and `ci`, its bounds, are those of the comparison that decides, in `unit`.

    rows: one a task and comparison, columns COLUMNS (state as in effects.py; paper = the same comparison in the paper's
    numbers, NaN if not printed; per_seed = list). divergence: one row a task and arm with diverged, n, rate, low, high
    (exact), p (Fisher, against the claim's reference arm). beside: what the same runs say at other settings, none of
    which decides. seeds_to_tell: how many seeds would tell, had they the same effect and spread; None unless
    inconclusive. protocol: the version of the rule.
    """

    claim: Claim
    verdict: str
    effect: float
    ci: tuple[float, float]
    n_seeds: int
    caveats: tuple[str, ...]
    scale: str
    tasks: tuple[str, ...]
    decided_by: str  # the comparison, and its task where there are several
    paper: float  # the same in the paper's numbers, NaN if it does not print them
    threshold: float
    unit: str
    per_seed: tuple[float, ...]
    plain: tuple[float, float]  # the 95 % t-interval of the seeds, without what widens `ci`
    by_task: dict[str, str]
    records: tuple[Row, ...]
    diverged: tuple[Row, ...]
    seeds_to_tell: int | None = None
    protocol: int = VERSION
    beside: dict[str, Verdict] = field(default_factory=dict)

    @property
    def turns_on(self) -> Row | None:
        """The record of the comparison that decides; None where nothing was made."""
        found = (
            row
            for row in self.records
            if row["task"] in self.tasks
            and self.decided_by in (f"{row['comparison']} on {row['task']}", row["comparison"])
        )
        return next(found, None) if self.decided_by else None

    @property
    def rows(self) -> pd.DataFrame:
        return pd.DataFrame(self.records).reindex(columns=COLUMNS)

    @property
    def divergence(self) -> pd.DataFrame:
        return pd.DataFrame(self.diverged)

    @property
    def amount(self) -> str:
        """`+2.3 points [0.4, 4.2]`, or the effect in the claim's own unit."""
        low, high = self.ci
        if self.unit == "pp":
            return points(self.effect, low, high)
        interval = f" [{low:.3g}, {high:.3g}]" if np.isfinite(low) else ""
        return f"{self.effect:.3g}{interval} {self.unit}".replace("-", "−")

    @property
    def brief(self) -> str:
        """`contradicted (GN→GN − IN→IN: −20.3 points [−32.9, −7.6])`"""
        return f"{self.verdict} ({self.decided_by}: {self.amount})" if self.n_seeds else self.verdict

    @property
    def reason(self) -> str:
        """What a reader asks next: how many seeds would tell, or why these runs cannot; "" for other verdicts."""
        if self.seeds_to_tell:
            return f"about {self.seeds_to_tell} new seeds would tell"
        if self.verdict not in ("inconclusive", "not testable"):
            return ""
        if not self.decided_by:
            return self.caveats[0]
        return self.turns_on["why"] if self.turns_on else ""

    @property
    def count(self) -> str:
        """`3 of 5 comparisons hold`, task by task; "" where only one is made."""
        texts = []
        for task in self.tasks:
            if told := how_many_hold([row for row in self.records if row["task"] == task]):
                texts.append(told + (f" on {task}" if len(self.tasks) > 1 else ""))
        return ", ".join(texts)

    @property
    def uneven(self) -> str:
        """Where mean and median of the seeds lie further apart than the threshold and a quarter of the mean: both."""
        if self.unit not in BY_SEED or not len(self.per_seed):
            return ""
        median, mean = float(np.median(self.per_seed)), float(np.mean(self.per_seed))
        if abs(mean - median) <= max(abs(self.threshold), abs(mean) / 4):
            return ""
        low, high = min(self.per_seed), max(self.per_seed)
        told = f"the mean hides two kinds of seeds: median {median:+.3g} {self.unit}, from {low:+.3g} to {high:+.3g}"
        return told.replace("-", "−")

    @property
    def failed(self) -> str:
        """Of the claim on failures: how often models without norms failed, and the control; "" for the others."""
        rows = {row["arm"]: row for row in self.diverged if self.claim.runs == "failure" and row["n"]}
        if not {NONE, CONTROL} <= set(rows):
            return ""
        counts = (f"{label(arm)} failed in {rows[arm]['diverged']} of {rows[arm]['n']} runs" for arm in (NONE, CONTROL))
        return f"with the most blocks and the highest rate {', '.join(counts)} (Fisher p = {rows[CONTROL]['p']:.2g})"

    @property
    def at_odds(self) -> dict[str, Verdict]:
        """The part of `beside` that a reader must not miss: another verdict, or an effect outside this interval."""
        low, high = self.ci

        def alike(other: Verdict) -> bool:
            same_place = other.decided_by == self.decided_by
            return other.verdict == self.verdict and (low <= other.effect <= high or not same_place)

        return {name: other for name, other in self.beside.items() if not alike(other)}

    @property
    def fidelity(self) -> str:
        """What the verdict is based on: "protocol 2, quick scale, digits, not the paper's Breakfast"."""
        if not self.tasks:
            return "–"
        same = self.scale == "paper" and self.claim.printed_on.lower().replace("-", "") in self.tasks
        place = self.claim.printed_on
        unasked = ", which the paper does not ask" if self.claim.beyond else ", a kind of task that the paper has not"
        other = "" if same else f", not the paper's {place}" if place else unasked
        return f"protocol {self.protocol}, {self.scale} scale, {', '.join(self.tasks)}{other}"


def judge(
    claim_id: str | Claim,
    frame: pd.DataFrame,
    *,
    scale: str | None = None,
    tasks: Iterable[str] | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Verdict:
    """The verdict of one claim on a run frame; no run is trained.

    `frame`: load_runs(), with the columns of summaries.with_summaries for the claims on the inside (H10…H12). It may
    hold any other runs as well.
    `tasks` None = those of the frame that the claim is about; at evening the check of the ceiling stands beside, and
    decides nothing. `changes`: judge the runs that differ from those of the
    scale in these fields, such as dict(d_model=16). ValueError for an unknown claim, for a frame that mixes scales
    unless `scale` names one, for one recorded under another version of the protocol, and for `changes` of a claim of
    §4.6, whose settings are part of the question.
    """
    claim, evidence = find_claim(claim_id), Evidence(frame, scale, changes=changes)
    check_changes(claim, changes)
    asked = tasks_of(claim, evidence.tasks if tasks is None else tasks, evidence.scale)
    ceiling = [task for task in asked if tasks is None and (evidence.scale, task) == ("evening", CEILING_TASK)]
    asked = [task for task in asked if task not in ceiling]
    verdict = _judge_all(claim, evidence, asked)
    if verdict.verdict not in VERDICTS[:5]:
        return verdict
    others = {
        name: Evidence(frame, evidence.scale, i) for i, name in list(enumerate(variants(claim, evidence.scale)))[1:]
    }
    beside = {name: _judge_all(claim, other, asked) for name, other in others.items()}
    beside |= {f"{task}, a check of the ceiling": _judge_all(claim, evidence, [task]) for task in ceiling}
    texts = tuple(f"{name}: {other.brief}" for name, other in beside.items())
    return replace(verdict, caveats=verdict.caveats + texts, beside=beside)


def _judge_all(claim: Claim, evidence: Evidence, tasks: list[str]) -> Verdict:
    """One verdict from the tasks; those that were run share the level at which a claim is contradicted."""
    findings = [judge_task(claim, evidence, task) for task in tasks]
    run = sum(finding.verdict not in ("sketch", "not run") for finding in findings)
    if run > 1:
        findings = [judge_task(claim, evidence, task, run) for task in tasks]
    return combine(claim, evidence, findings)


@dataclass(frozen=True, eq=False)
class Finding:
    """What one task says of a claim."""

    task: str
    verdict: str
    rows: list[Row]
    decisive: Row | None
    caveats: list[str]
    divergence: list[Row]

    @property
    def counts(self) -> bool:
        """Whether it takes part where several tasks make one verdict. A task that cannot tell, whatever the seeds, says
        nothing; one that is only too imprecise has not reproduced the claim."""
        imprecise = any(row["state"] == "imprecise" and row["decides"] for row in self.rows)
        return self.verdict in TOLD or (self.verdict == "not testable" and imprecise)


def judge_task(claim: Claim, evidence: Evidence, task: str, tasks: int = 1) -> Finding:
    rows = effects.rows_of(claim, evidence, task, tasks)
    found = [row for row in rows if row["n"]]
    gaps, left_out = missing_runs(claim, evidence, task)
    diverged = effects.divergence(claim, evidence, task)
    deciding = [row for row in found if row["decides"]]
    if claim.runs in ("growth", "failing") and evidence.paired(claim, task).calm:
        return Finding(task, "not testable", [], None, ["the failure did not occur in any seed", *left_out], diverged)
    if not deciding:
        return Finding(task, "not run", [], None, gaps + left_out, diverged)
    whole = all(row["n"] for row in rows if row["decides"]) and not gaps
    enough = min(row["n"] for row in found) >= SKETCH_BELOW
    verdict = decide(claim, deciding) if whole and enough else "sketch"
    caveats = gaps + left_out + cautions(claim, evidence, task, rows, diverged, verdict in VERDICTS[:5])
    return Finding(task, verdict, rows, decisive(claim, deciding, verdict), caveats, diverged)


def decide(claim: Claim, rows: list[Row]) -> str:
    """The rule, from the states of the m rows that decide."""
    m, states = len(rows), Counter(row["state"] for row in rows)
    hold_at_least = claim.at_least or m
    fail_at_least = m - hold_at_least + 1
    if states["holds"] >= hold_at_least:
        return "reproduced"
    if states["fails"] >= fail_at_least:
        return "contradicted"

    def could_be_told(*unsettled: str) -> bool:
        """Whether the claim could still be decided if every row in these states were told."""
        more = sum(states[state] for state in unsettled)
        return states["holds"] + more >= hold_at_least or states["fails"] + more >= fail_at_least

    if could_be_told("open"):
        return "inconclusive"
    return "not testable" if could_be_told("open", "imprecise", "untestable") else "≈ threshold"


def decisive(claim: Claim, rows: list[Row], verdict: str) -> Row:
    """The row on which the verdict turns: of those that hold (or fail) the last one that it took, else the nearest."""
    ranked = sorted(rows, key=_strength, reverse=True)
    u = claim.at_least or len(rows)
    states = {"reproduced": ("holds",), "contradicted": ("fails",), "≈ threshold": ("near",), "inconclusive": ("open",)}
    mine = [row for row in ranked if row["state"] in states.get(verdict, ("untestable", "imprecise"))]
    if verdict == "reproduced":
        return mine[u - 1]
    if verdict == "contradicted":
        return mine[-(len(rows) - u + 1)]
    return (mine[0] if u == 1 else mine[-1]) if mine else ranked[min(u, len(ranked)) - 1]


def _strength(row: Row) -> tuple[int, float]:
    width, margin = row["high"] - row["low"], row["effect"] - row["threshold"]
    return STATES.index(row["state"]), margin / width if width > 0 else np.inf * np.sign(margin) if margin else 0.0


def combine(claim: Claim, evidence: Evidence, findings: list[Finding]) -> Verdict:
    """One verdict from the tasks: those that were told something decide; without one, the others in this order."""
    ranks = [[f for f in findings if f.verdict == word] for word in ("not testable", "sketch")]
    counted = next((rank for rank in ([f for f in findings if f.counts], *ranks) if rank), [])
    verdicts = list(dict.fromkeys(f.verdict for f in counted))
    verdict = _together(verdicts)
    disagree = f"the tasks disagree: {', '.join(f'{f.task} {f.verdict}' for f in counted)}"
    caveats = [disagree] if len(verdicts) > 1 else []
    caveats += [f"{f.task}: {f.verdict}, not counted" for f in findings if f not in counted and counted]
    several = len(counted) > 1
    caveats += [f"{f.task}: {text}" if several else text for f in counted for text in f.caveats]
    if not counted:
        caveats += [text for f in findings for text in f.caveats] or [_why_not_run(claim, evidence)]
    agreeing = [f for f in counted if f.verdict == verdict] or counted
    deciding = min((f.decisive for f in agreeing if f.decisive), key=_strength, default=None)
    seeds = deciding["seeds_to_tell"] if verdict == "inconclusive" and deciding else None
    if seeds:
        caveats.append(f"about {seeds} new seeds would tell, had they the same effect and spread")
    name = "" if deciding is None else deciding["comparison"] + (f" on {deciding['task']}" if several else "")
    return Verdict(
        claim=claim,
        verdict=verdict,
        effect=np.nan if deciding is None else deciding["effect"],
        ci=(np.nan, np.nan) if deciding is None else (deciding["low"], deciding["high"]),
        n_seeds=0 if deciding is None else deciding["n"],
        caveats=(*caveats, claim.note) if claim.note else tuple(caveats),
        scale=evidence.scale,
        tasks=tuple(f.task for f in counted),
        decided_by=name,
        paper=np.nan if deciding is None else deciding["paper"],
        threshold=claim.threshold if deciding is None else deciding["threshold"],
        unit=claim.unit if deciding is None else deciding["unit"],
        per_seed=() if deciding is None else tuple(deciding["per_seed"]),
        plain=(np.nan, np.nan) if deciding is None else deciding["plain"],
        by_task={f.task: f.verdict for f in findings},
        records=tuple(row for f in findings for row in f.rows),
        diverged=tuple(row for f in findings for row in f.divergence),
        seeds_to_tell=seeds,
    )


def _together(verdicts: list[str]) -> str:
    """One word from those of the tasks."""
    if len(verdicts) < 2:
        return verdicts[0] if verdicts else "not run"
    if "contradicted" in verdicts and "reproduced" not in verdicts:
        return "contradicted"
    return "≈ threshold" if set(verdicts) == {"reproduced", "≈ threshold"} else "inconclusive"


def _why_not_run(claim: Claim, evidence: Evidence) -> str:
    kinds = {"vision": "image task", "language": "language model"}
    if claim.kind in kinds and not tasks_of(claim, evidence.tasks, evidence.scale):
        return f"no {kinds[claim.kind]} has been run"
    if any(c.column not in ("score", "spread") for c in claim.comparisons) and len(evidence.index):
        return "the frame has no runs of this claim, or lacks their summaries (summaries.with_summaries)"
    return "the frame has no runs of this claim: see mambanorm.needed"
