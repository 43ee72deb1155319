"""A claim and a run frame → a verdict: reproduced, contradicted, ≈ threshold, open or not judged.

rule.py has the rule, PROTOCOL.md says it in words. How good finished runs are decides the word; how often runs diverge
stands beside it, always, and is added to the word where the better side is told to diverge more often. On several tasks
a claim is reproduced if it is reproduced on each task, contradicted if it is contradicted on one and reproduced on
none; a task on which it is not judged says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from mambanorm.claims.claim import CONTROL, NONE, Claim
from mambanorm.claims.evidence import Evidence, check_changes, shared_rows, tasks_of
from mambanorm.claims.hypotheses import find_claim
from mambanorm.claims.protocol import TRAINED_TASKS, VERSION
from mambanorm.claims.rows import NO_NUMBER, Row, rows_of
from mambanorm.claims.rule import STATES, VERDICTS, decide, more_often
from mambanorm.study.intervals import clopper_pearson, fisher
from mambanorm.study.tables import label, points

TOLD = VERDICTS[:4]
"""The words that runs can say; the last one says that they cannot."""
BY_SEED = ("pp", "bits a character")
"""Units of effects that are the mean of one number a seed."""
COLUMNS = ["task", "comparison", "effect", "low", "high", "n", "threshold", "unit", "state", "why", "decides", "paper"]
COLUMNS += ["seeds_to_tell", "plain", "per_seed"]
OF_DECISION = ("effect", "plain", "paper", "threshold", "unit", "per_seed", "finish")
"""What a verdict has of the comparison on which it turns."""


@dataclass(frozen=True, eq=False)
class Verdict:
    """What the runs say of a claim. `effect` and `ci`, its bounds, are those of the comparison that decides, in `unit`.

    rows: one a task and comparison, columns COLUMNS (state as in rule.py; paper = the same comparison in the paper's
    numbers, NaN if not printed; per_seed = tuple). turns_on: the one that decides, of which `effect`, `plain` (its 95 %
    interval), `paper`, `threshold`, `unit`, `per_seed` and `finish` are; NO_NUMBER where nothing was compared.
    seeds_to_tell: how many seeds would tell, had they the same effect and spread; None unless open. protocol: the
    version of the rule.
    """

    claim: Claim
    verdict: str
    scale: str
    tasks: tuple[str, ...]
    by_task: dict[str, str]
    records: tuple[Row, ...]
    turns_on: Row
    caveats: tuple[str, ...] = ()
    protocol: int = VERSION

    def __getattr__(self, name: str) -> Any:
        if name not in OF_DECISION:
            raise AttributeError(f"a Verdict has no {name}")
        return self.turns_on[name]

    @property
    def n_seeds(self) -> int:
        return self.turns_on["n"]

    @property
    def ci(self) -> tuple[float, float]:
        return self.turns_on["low"], self.turns_on["high"]

    @property
    def seeds_to_tell(self) -> int | None:
        return self.turns_on["seeds_to_tell"] if self.verdict == "open" else None

    @property
    def decided_by(self) -> str:
        """The comparison, and its task where there are several."""
        if not self.n_seeds:
            return ""
        return self.turns_on["comparison"] + (f" on {self.turns_on['task']}" if len(self.tasks) > 1 else "")

    @property
    def rows(self) -> pd.DataFrame:
        return pd.DataFrame(self.records).reindex(columns=COLUMNS)

    @property
    def said(self) -> str:
        """The word, with what is told of divergence: `reproduced, but None→GN diverges more often`."""
        if self.finish is None or self.verdict not in VERDICTS[:2]:
            return self.verdict
        ahead, behind = self.finish[:2], self.finish[2:]
        if self.verdict == "contradicted":
            ahead, behind = behind, ahead
        who = self.sides[self.verdict == "contradicted"]
        return f"{self.verdict}, but {who} diverges more often" if more_often(*ahead, *behind) else self.verdict

    @property
    def sides(self) -> tuple[str, str]:
        """The arm on either side of the comparison that decides, or how many they are."""
        name = self.turns_on["comparison"]
        weights = next(c.weights for c in self.claim.comparisons if c.name == name)
        arms = [[arm for arm, weight in weights.items() if sign * weight > 0] for sign in (1, -1)]
        texts = ("the side of the claim", "the other side")
        return tuple(label(a[0]) if len(a) == 1 else text for a, text in zip(arms, texts, strict=True))

    @property
    def stability(self) -> str:
        """`diverged at their rates: None→GN 0 of 12 [0, 26 %], GN→None 1 of 12 [0, 38 %]`; "" where it is not asked."""
        if self.finish is None:
            return ""
        counts = zip(self.sides, (self.finish[:2], self.finish[2:]), strict=True)
        return "diverged at their rates: " + ", ".join(f"{who} {k_of_n(k, n)}" for who, (k, n) in counts if n)

    @property
    def amount(self) -> str:
        """`+2.3 points [0.4, 4.2]`, or the effect in the claim's own unit."""
        low, high = self.ci
        if self.unit == "pp" and np.isfinite(low):
            return points(self.effect, low, high)
        interval = f" [{low:.3g}, {high:.3g}]" if np.isfinite(low) else ""
        return f"{self.effect:.3g}{interval} {'points' if self.unit == 'pp' else self.unit}".replace("-", "−")

    @property
    def brief(self) -> str:
        """`contradicted (GN→GN − IN→IN: −20.3 points [−32.9, −7.6])`"""
        return f"{self.said} ({self.decided_by}: {self.amount})" if self.n_seeds else self.verdict

    @property
    def reason(self) -> str:
        """What a reader asks next: how many seeds would tell, or why it is not judged; "" for other words."""
        if self.verdict == "open" and self.seeds_to_tell:
            return f"about {self.seeds_to_tell} new seeds would tell"
        if self.verdict not in VERDICTS[3:]:
            return ""
        return self.turns_on["why"] if self.turns_on["comparison"] else next(iter(self.caveats), "not run")

    @property
    def uneven(self) -> str:
        """Median and range of the seeds, if median and mean differ by more than threshold and a quarter of the mean."""
        if self.unit not in BY_SEED or not len(self.per_seed):
            return ""
        median, mean = float(np.median(self.per_seed)), float(np.mean(self.per_seed))
        if abs(mean - median) <= max(abs(self.threshold), abs(mean) / 4):
            return ""
        low, high = min(self.per_seed), max(self.per_seed)
        told = f"the seeds differ widely: median {median:+.3g} {self.unit}, from {low:+.3g} to {high:+.3g}"
        return told.replace("-", "−")

    @property
    def failed(self) -> str:
        """Of the claim on failures: how often models without norms failed, and the control; "" for the others."""
        k, n = (self.records[-1].get("failed"), self.records[-1]["n"]) if self.records else (None, 0)
        if not k:
            return ""
        counts = (f"{label(arm)} failed in {of} of {n} runs" for arm, of in zip((NONE, CONTROL), k, strict=True))
        p = fisher(k[0], n, k[1], n)
        return f"in the deepest models at the highest learning rate {', '.join(counts)} (Fisher p = {p:.2g})"

    @property
    def fidelity(self) -> str:
        """What the verdict is based on: "protocol 11, quick scale, digits, not the paper's Breakfast"."""
        if not self.tasks:
            return "–"
        same = self.scale == "paper" and self.claim.printed_on.lower().replace("-", "") in self.tasks
        place = self.claim.printed_on
        unasked = ", which the paper does not ask" if self.claim.beyond else ", a kind of task that the paper has not"
        other = "" if same else f", not the paper's {place}" if place else unasked
        return f"protocol {self.protocol}, {self.scale} scale, {', '.join(self.tasks)}{other}"


def k_of_n(k: int, n: int) -> str:
    low, high = clopper_pearson(k, n)
    return f"{k} of {n} [{100 * low:.0f}, {100 * high:.0f} %]"


def how_many_hold(rows: Sequence[Row]) -> str:
    """`3 of 5 comparisons hold` of those that decide, if these are several; and of those that only stand beside."""
    deciding, beside = ([row["state"] for row in rows if row["n"] and row["decides"] == it] for it in (True, False))
    texts = [f"{deciding.count('holds')} of {len(deciding)} comparisons hold"] if len(deciding) > 1 else []
    texts += [f"{beside.count('holds')} of {len(beside)} shown beside hold"] if beside else []
    return ", ".join(texts)


def judge(
    claim_id: str | Claim,
    frame: pd.DataFrame,
    *,
    scale: str | None = None,
    tasks: Iterable[str] | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Verdict:
    """The verdict of one claim on a run frame; no run is trained.

    `frame`: load_runs(), with the columns of summaries.with_summaries for the claims on the inside (H10 to H12, H16,
    E1). It may hold any other runs as well. `tasks` None = those of the frame that the claim is about; at evening those
    of TRAINED_TASKS, where it has one. `changes`: judge the runs that differ from those of the scale
    in these fields, such as dict(d_model=16). ValueError for an unknown claim, for a frame that `Evidence` refuses, and
    for `changes` of a claim of §4.6, whose settings are part of the question.
    """
    claim, evidence = find_claim(claim_id), Evidence(frame, scale, changes=changes)
    check_changes(claim, changes)
    asked = tasks_of(claim, evidence.tasks if tasks is None else tasks, evidence.scale)
    if tasks is None and evidence.scale == "evening":
        asked = [task for task in asked if task in TRAINED_TASKS] or asked
    found = [judge_task(claim, evidence, task) for task in asked]
    was_run = [one for one in found if one.turns_on["comparison"]]
    found = was_run if was_run and tasks is None else found
    if len(was_run) > 1:
        found = [judge_task(claim, evidence, one.tasks[0], len(was_run)) for one in found]
    return combine(claim, evidence, found)


def judge_task(claim: Claim, evidence: Evidence, task: str, tasks: int = 1) -> Verdict:
    """What one task says of a claim, without the note of the claim; `tasks`: how many share one verdict."""
    rows = rows_of(claim, evidence, task, tasks)
    deciding = [row for row in rows if row["decides"] or claim.no_verdict]
    verdict = str(decide(np.array([row["state"] for row in deciding]), claim.at_least))
    run = any(row["n"] for row in deciding)
    runs = evidence.runs(claim, task) if claim.runs != "failure" else None
    caveats = [runs.calm] if runs is not None and runs.calm else []
    caveats += [] if run else list(dict.fromkeys(row["why"] for row in deciding if row["why"]))
    if run:
        caveats += [told] if (told := how_many_hold(rows)) and not claim.no_verdict else []
        for why in dict.fromkeys(row["why"] for row in rows if row["why"] and row["state"] in ("open", "not judged")):
            caveats.append(f"{', '.join(row['comparison'] for row in rows if row['why'] == why)}: {why}")
        if claim.runs == "tuned" and (shared := shared_rows(task, evidence.scale)):
            caveats.append(f"the seeds share {shared}: the interval speaks of it alone")
    on, by_task = decisive(claim, deciding, verdict) if run else _nothing(claim), {task: verdict}
    return Verdict(claim, verdict, evidence.scale, (task,), by_task, tuple(rows), on, tuple(caveats))


def _nothing(claim: Claim) -> Row:
    return NO_NUMBER | dict(task="", comparison="", unit=claim.unit, threshold=claim.threshold)


def decisive(claim: Claim, rows: list[Row], verdict: str) -> Row:
    """The row on which the verdict turns: of those that hold (or fail) the last one that it took, else the nearest; of
    a claim that is only measured the first that was."""
    if claim.no_verdict:
        return next(row for row in rows if row["n"])
    ranked = sorted(rows, key=_strength, reverse=True)
    u = claim.at_least or len(rows)
    states = {"reproduced": "holds", "contradicted": "fails", "≈ threshold": "near"}
    mine = [row for row in ranked if row["state"] == states.get(verdict, verdict)]
    if verdict == "reproduced":
        return mine[u - 1]
    if verdict == "contradicted":
        return mine[-(len(rows) - u + 1)]
    return (mine[0] if u == 1 else mine[-1]) if mine else ranked[min(u, len(ranked)) - 1]


def _strength(row: Row) -> tuple[bool, int, float]:
    width, margin = row["high"] - row["low"], row["effect"] - row["threshold"]
    strength = margin / width if width > 0 else np.inf * np.sign(margin) if margin == margin and margin else 0.0
    return STATES.index(row["state"]), row["n"] > 0, strength


def combine(claim: Claim, evidence: Evidence, found: list[Verdict]) -> Verdict:
    """One verdict from those of the tasks: those that were told something decide; without one, those that were run."""
    ranks = [one for one in found if one.verdict in TOLD], [one for one in found if one.turns_on["comparison"]]
    counted = next((rank for rank in ranks if rank), [])
    by_task = {task: word for one in found for task, word in one.by_task.items()}
    tasks = tuple(task for one in counted for task in one.tasks)
    verdict = _together(list(dict.fromkeys(one.verdict for one in counted)))
    disagree = f"the tasks disagree: {', '.join(f'{task} {by_task[task]}' for task in tasks)}"
    caveats = [disagree] if len({one.verdict for one in counted}) > 1 else []
    for one in (one for one in found if counted and one.tasks[0] not in tasks):
        caveats.append(f"{one.tasks[0]}: {one.verdict}, not counted{one.reason and ': '}{one.reason}")
    caveats += [f"{one.tasks[0]}: {text}" if len(counted) > 1 else text for one in counted for text in one.caveats]
    if not counted:
        caveats += [text for one in found for text in one.caveats] or [_why_not_run(claim, evidence)]
    agreeing = [one for one in counted if one.verdict == verdict] or counted
    return Verdict(
        claim=claim,
        verdict=verdict,
        scale=evidence.scale,
        tasks=tasks,
        by_task=by_task,
        records=tuple(row for one in found for row in one.records),
        turns_on=min((one.turns_on for one in agreeing), key=_strength, default=_nothing(claim)),
        caveats=(*caveats, claim.note) if claim.note else tuple(caveats),
    )


def _together(words: list[str]) -> str:
    """One word from those of the tasks."""
    if len(words) < 2:
        return words[0] if words else "not judged"
    if "contradicted" in words and "reproduced" not in words:
        return "contradicted"
    return "≈ threshold" if set(words) == {"reproduced", "≈ threshold"} else "open"


def _why_not_run(claim: Claim, evidence: Evidence) -> str:
    kinds = {"vision": "image task", "language": "language model"}
    if claim.kind in kinds and not tasks_of(claim, evidence.tasks, evidence.scale):
        return f"no {kinds[claim.kind]} has been run"
    return "the frame has no runs of this claim: see mambanorm.needed"
