"""A claim and a run frame → a verdict: reproduced, contradicted, inconclusive, a sketch, or not run.

The rule is the same for every claim. Each comparison gives one number a seed (arms are paired by their seeds). These
numbers give a mean with an interval. Every claim has a threshold, written before any run (`hypotheses.py`):

    reproduced     every interval lies wholly above the threshold; of a claim with a main comparison, the main one
    contradicted   one lies wholly below it; of a best-of claim, the one against the rival that the select seeds name
    inconclusive   anything else
    sketch         the same picture from fewer than 6 seeds, from untuned arms, or with an arm missing: no verdict
    not run        nothing to compare

Intervals are paired t at 95 %, simultaneous within the claim (Bonferroni over its comparisons) and not beyond it; of a
rate they are exact. Claims with `correction="each"` (H3, H9) hold by uncorrected intervals, one by one. A
diverged run is scored as chance and never left out; the rate of divergence stands beside. On several tasks, intervals
are simultaneous over all of them. A claim is then reproduced if it is reproduced on each task, contradicted if it is
contradicted on one and reproduced on none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from mambanorm.claims import effects
from mambanorm.claims.comparisons import Comparison
from mambanorm.claims.effects import STATES, Row
from mambanorm.claims.evidence import Evidence, tasks_of, variants
from mambanorm.claims.hypotheses import CLAIMS, Claim, find_claim
from mambanorm.model.arms import Arm
from mambanorm.study.experiments import lr_grid
from mambanorm.study.intervals import SIGN_FLIP_AT_MOST, t_interval
from mambanorm.study.tables import SKETCH_BELOW, percent, points
from mambanorm.text import plural
from mambanorm.training.config import TUNE_SEEDS

VERDICTS = ("reproduced", "contradicted", "inconclusive", "sketch", "not run")
FULL_SEEDS = 8
COLUMNS = ["task", "comparison", "effect", "low", "high", "n", "threshold", "unit", "state", "main", "paper"]
COLUMNS += ["each_low", "each_high", "per_seed"]

__all__ = ["CLAIMS", "VERDICTS", "Verdict", "judge", "runs_behind"]


@dataclass(frozen=True, eq=False)
class Verdict:
    """What the runs say of a claim. `effect` and `ci` are those of the comparison that decides, in `unit`.

    rows: one a task and comparison, columns COLUMNS (low, high simultaneous; each_low, each_high uncorrected; state
    holds | fails | open; paper = the same comparison in the paper's numbers, NaN if not printed; per_seed = list).
    divergence: one row a task and arm with diverged, n, rate, low, high (exact), p (Fisher, against the claim's
    reference arm). beside: what the same runs say at other settings, none of which decides.
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
    by_task: dict[str, str]
    rows: pd.DataFrame
    divergence: pd.DataFrame
    beside: dict[str, Verdict] = field(default_factory=dict)

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
    def at_odds(self) -> dict[str, Verdict]:
        """The part of `beside` that a reader must not miss: another verdict, or an effect outside this interval."""
        low, high = self.ci

        def alike(other: Verdict) -> bool:
            same_place = other.decided_by == self.decided_by
            return other.verdict == self.verdict and (low <= other.effect <= high or not same_place)

        return {name: other for name, other in self.beside.items() if not alike(other)}

    @property
    def fidelity(self) -> str:
        """What the verdict is based on: "quick scale, digits, not the paper's Breakfast"."""
        if not self.tasks:
            return "–"
        same = self.scale == "paper" and self.claim.printed_on.lower().replace("-", "") in self.tasks
        other = "" if same else f", not the paper's {self.claim.printed_on}"
        return f"{self.scale} scale, {', '.join(self.tasks)}{other}"


def judge(
    claim_id: str | Claim, frame: pd.DataFrame, *, scale: str | None = None, tasks: Iterable[str] | None = None
) -> Verdict:
    """The verdict of one claim on a run frame; no run is trained.

    `frame`: load_runs(), with the columns of summaries.with_summaries for the claims on the inside (H10…H12). It may
    hold any other runs as well.
    `tasks` None = those of the frame that the claim is about. ValueError for an unknown claim, or a frame that mixes
    scales unless `scale` names one.
    """
    claim, evidence = find_claim(claim_id), Evidence(frame, scale)
    asked = tasks_of(claim, evidence.tasks if tasks is None else tasks)
    verdict = _judge_all(claim, evidence, asked)
    if verdict.verdict not in VERDICTS[:3]:
        return verdict
    beside = {name: _judge_all(claim, other, asked) for name, other in _others(claim, frame, evidence.scale)}
    if claim.runs == "tuned":  # at the task's own rate: not run for every arm, no news if every arm chose that rate
        beside = {k: v for k, v in beside.items() if v.verdict in VERDICTS[:3] and v.brief != verdict.brief}
    texts = tuple(f"{name}: {other.brief}" for name, other in beside.items())
    return replace(verdict, caveats=verdict.caveats + texts, beside=beside)


def _judge_all(claim: Claim, evidence: Evidence, tasks: list[str]) -> Verdict:
    """One verdict from the tasks; the intervals are simultaneous over the comparisons of all of them."""
    findings = [judge_task(claim, evidence, task) for task in tasks]
    counted = [finding.task for finding in findings if finding.verdict in VERDICTS[:3]]
    if len(counted) > 1:
        evidence.families = len(counted)
        findings = [judge_task(claim, evidence, task) for task in tasks]
    return combine(claim, evidence, findings)


def _others(claim: Claim, frame: pd.DataFrame, scale: str) -> Iterator[tuple[str, Evidence]]:
    """The other settings at which a claim is judged; none of them decides."""
    for variant, name in enumerate(variants(claim, scale)[1:], start=1):
        yield name, Evidence(frame, scale, variant)
    if claim.runs == "depth":
        yield "in eval mode", Evidence(frame, scale, mode="eval")
    if claim.runs == "tuned":
        yield "at the task's own learning rate for every arm", Evidence(frame, scale, own_rate=True)


@dataclass(frozen=True, eq=False)
class Finding:
    """What one task says of a claim."""

    task: str
    verdict: str
    rows: list[Row]
    decisive: Row | None  # the rival's row, or the weakest
    caveats: list[str]
    divergence: list[Row]


def judge_task(claim: Claim, evidence: Evidence, task: str) -> Finding:
    rows, rival = effects.rows_of(claim, evidence, task)
    found = [row for row in rows if row["n"]]
    gaps = lacking(claim, evidence, task)
    diverged = effects.divergence(claim, evidence, task)
    if not found:
        return Finding(task, "not run", [], None, gaps, diverged)
    untuned = _untuned(claim, evidence, task)
    whole = len(found) == len(rows) and (rival or claim.select != "rival") and not untuned
    enough = min(row["n"] for row in found) >= SKETCH_BELOW
    verdict = decide(found, rival) if whole and enough else "sketch"
    caveats = gaps + untuned + _cautions(claim, evidence, task, rows, rival, diverged, verdict)
    return Finding(task, verdict, rows, decisive(found, rival), caveats, diverged)


def decide(rows: list[Row], rival: str = "") -> str:
    """The rule: all hold → reproduced; one fails (the rival's, where there is one) → contradicted."""
    main = [row for row in rows if row["main"]]
    if all(row["state"] == "holds" for row in main):
        return "reproduced"
    fails = any(row["state"] == "fails" for row in main if rival in ("", row["comparison"]))
    return "contradicted" if fails else "inconclusive"


def decisive(rows: list[Row], rival: str = "") -> Row:
    """The rival's row, or that of the main ones which comes closest to failing, in widths of its interval."""
    main = [row for row in rows if row["main"]] or rows
    return next((row for row in main if rival and row["comparison"] == rival), min(main, key=_strength))


def _strength(row: Row) -> tuple[int, float]:
    width, margin = row["high"] - row["low"], row["effect"] - row["threshold"]
    return STATES.index(row["state"]), margin / width if width > 0 else np.inf * np.sign(margin) if margin else 0.0


def combine(claim: Claim, evidence: Evidence, findings: list[Finding]) -> Verdict:
    """One verdict from the tasks: those with a verdict of their own decide.

    A claim is about every sequence (or image) task: reproduced if it is reproduced on each of them, contradicted if it
    is contradicted on one and reproduced on none.
    """
    ranks = [[f for f in findings if f.verdict in names] for names in (VERDICTS[:3], ("sketch",))]
    counted = next((rank for rank in ranks if rank), [])
    verdicts = list(dict.fromkeys(f.verdict for f in counted))
    verdict = "not run" if not counted else verdicts[0] if len(verdicts) == 1 else "inconclusive"
    if "contradicted" in verdicts and "reproduced" not in verdicts:
        verdict = "contradicted"
    disagree = f"the tasks disagree: {', '.join(f'{f.task} {f.verdict}' for f in counted)}"
    caveats = [disagree] if len(verdicts) > 1 else []
    caveats += [f"{f.task}: {f.verdict}, not counted" for f in findings if f not in counted and counted]
    several = len(counted) > 1
    caveats += [f"{f.task}: {text}" if several else text for f in counted for text in f.caveats]
    if not counted:
        caveats += [text for f in findings for text in f.caveats] or [_why_not_run(claim, evidence)]
    deciding = min((f.decisive for f in counted), key=_strength, default=None)
    rows = pd.DataFrame([row for f in findings for row in f.rows]).reindex(columns=COLUMNS)
    name = "" if deciding is None else deciding["comparison"] + (f" on {deciding['task']}" if several else "")
    return Verdict(
        claim=claim,
        verdict=verdict,
        effect=np.nan if deciding is None else deciding["effect"],
        ci=_interval(claim, deciding),
        n_seeds=min((row["n"] for f in counted for row in f.rows if row["n"]), default=0),
        caveats=(*caveats, claim.note) if claim.note else tuple(caveats),
        scale=evidence.scale,
        tasks=tuple(f.task for f in counted),
        decided_by=name,
        paper=np.nan if deciding is None else deciding["paper"],
        threshold=claim.threshold if deciding is None else deciding["threshold"],
        unit=claim.unit if deciding is None else deciding["unit"],
        per_seed=() if deciding is None else tuple(deciding["per_seed"]),
        by_task={f.task: f.verdict for f in findings},
        rows=rows,
        divergence=pd.DataFrame([row for f in findings for row in f.divergence]),
    )


def _interval(claim: Claim, row: Row | None) -> tuple[float, float]:
    """The interval that the decision rests on: uncorrected where a row holds in an intersection–union test."""
    if row is None:
        return np.nan, np.nan
    prefix = "each_" if claim.correction == "each" and row["state"] == "holds" else ""
    return row[f"{prefix}low"], row[f"{prefix}high"]


def _why_not_run(claim: Claim, evidence: Evidence) -> str:
    if claim.kind == "vision" and not tasks_of(claim, evidence.tasks):
        return "no image task has been run"
    if any(c.column != "score" for c in claim.comparisons) and len(evidence.runs):
        return "the frame has no runs of this claim, or lacks their summaries (summaries.with_summaries)"
    return "the frame has no runs of this claim: see mambanorm.needed"


# ---------------------------------------------------------------------------------------------------------------------
# caveats


def label(arm: str) -> str:
    return Arm.parse(arm).label


def lacking(claim: Claim, evidence: Evidence, task: str) -> list[str]:
    """What keeps the claim from more seeds: arms without a run, seeds that an arm lacks, seeds without a failure."""
    if claim.measure == "failure":
        return []
    texts = []
    for column in dict.fromkeys(["score", *(c.column for c in claim.comparisons)]):
        known = evidence.table(claim, task, column).notna()
        known = known[known.any(axis=1)]
        absent = [label(arm) for arm in known if not known[arm].any()]
        what = "not run" if column == "score" else f"no {column}"
        if absent:
            texts.append(f"{what}: {', '.join(absent)}")
        for arm in known:
            seeds = [str(seed) for seed in known.index[~known[arm]]] if known[arm].any() else []
            if seeds:
                texts.append(f"{label(arm)} lacks seeds {', '.join(seeds)}")
    if claim.runs == "failing":
        calm = evidence.table(claim, task, "diverged")[claim.arms[0]]
        seeds = ", ".join(str(seed) for seed in calm.index[calm == 0])
        if seeds:
            texts.append(f"no failure to look back from with seeds {seeds}")
    return list(dict.fromkeys(texts))


def _untuned(claim: Claim, evidence: Evidence, task: str) -> list[str]:
    arms = evidence.untuned(task, claim.arms) if claim.runs == "tuned" else []
    which = "no arm is tuned: one learning rate for all" if len(arms) == len(claim.arms) else ""
    return [which or f"not tuned: {', '.join(map(label, arms))}"] if arms else []


def _cautions(
    claim: Claim, evidence: Evidence, task: str, rows: list[Row], rival: str, diverged: list[Row], verdict: str
) -> list[str]:
    """What a reader of the verdict should know besides."""
    fewest = min(row["n"] for row in rows)
    texts = [f"{plural(fewest, 'seed')}, fewer than {FULL_SEEDS}"] if 0 < fewest < FULL_SEEDS else []
    if claim.select == "rival":
        texts.append(f"hardest on the select seeds: {rival}" if rival else "the select seeds are incomplete")
    if claim.select == "best" and any(not row["n"] for row in rows):
        texts.append("the select seeds are incomplete: " + ", ".join(r["comparison"] for r in rows if not r["n"]))
    where = "at the settings of Figure 10 " if claim.measure == "failure" else ""
    texts += [where + divergence_text(row) for row in diverged if row["diverged"] or (where and row["n"])]
    if verdict in VERDICTS[:3]:
        holding = sum(row["state"] == "holds" for row in rows)
        if len(rows) > 1 and not claim.main:
            texts.append(f"{holding} of {len(rows)} comparisons hold")
        texts += _by_sign_flip(claim, rows, rival, verdict, claim.m * evidence.families)
    if claim.measure == "spread":
        p = effects.classical_spread(claim, evidence, task)
        texts.append(f"classical Brown–Forsythe over all runs: p = {p:.2g}")
    return texts + _at_chance(claim, evidence, task) + _about_rates(claim, evidence, task, rows, verdict)


AT_CHANCE = "models not told from chance"


def _at_chance(claim: Claim, evidence: Evidence, task: str) -> list[str]:
    """Arms of the claim on growth that are not told from chance: a model that learned nothing is weak evidence."""
    if claim.runs != "depth":
        return []
    scores, chance = (evidence.table(claim, task, name) / 100 for name in ("score", "chance"))
    texts = []
    for arm in scores:
        gain = (scores[arm] - chance[arm]).dropna()
        if len(gain) > 1 and t_interval(gain.to_numpy())[0] <= 0:
            texts.append(f"{label(arm)} ({percent(scores[arm].mean())}, chance {percent(chance[arm].mean())})")
    return [f"{AT_CHANCE}: {', '.join(texts)}"] if texts else []


def divergence_text(row: Row) -> str:
    """`None→None diverged in 3 of 8 runs [9, 76 %] (Fisher p = 0.2)`; accuracy claims score these as chance."""
    against = f" (Fisher p = {row['p']:.2g})" if np.isfinite(row["p"]) else ""
    interval = f"[{100 * row['low']:.0f}, {100 * row['high']:.0f} %]"
    return f"{label(row['arm'])} diverged in {row['diverged']} of {plural(row['n'], 'run')} {interval}{against}"


def _by_sign_flip(claim: Claim, rows: list[Row], rival: str, verdict: str, m: int) -> list[str]:
    if claim.measure == "failure" or max(row["n"] for row in rows) > SIGN_FLIP_AT_MOST:
        return []
    again = effects.by_sign_flip(claim, rows, m)
    other = verdict if again is None else decide(again, rival)
    return [f"by exact sign-flip intervals: {other}"] if other != verdict else []


def _about_rates(claim: Claim, evidence: Evidence, task: str, rows: list[Row], verdict: str) -> list[str]:
    """Arms whose learning rate lies at the edge of the grid, and at which single rates the claim would hold."""
    if claim.runs != "tuned" or evidence.untuned(task, claim.arms):
        return []
    grid, texts = lr_grid(task, evidence.scale), []
    edge = [f"{label(arm)} ({lr:g})" for arm in claim.arms if (lr := evidence.lr(task, arm)) in (grid[0], grid[-1])]
    if edge:
        texts.append(f"learning rate chosen at the edge of {grid[0]:g} … {grid[-1]:g}: {', '.join(edge)}")
    if claim.measure == "contrast" and all(c.column == "score" for c in claim.comparisons):
        made = {row["comparison"] for row in rows if row["main"]}
        comparisons = [c for c in claim.comparisons if c.name in made]
        holds = [f"{lr:g}" for lr in grid if _holds_at(claim, comparisons, evidence.tune_table(claim, task, lr))]
        where = f"(validation, {plural(len(TUNE_SEEDS), 'tune seed')}, one rate for all arms)"
        if made and len(holds) == 1:
            texts.append(f"holds only at learning rate {holds[0]} of {len(grid)} {where}")
        if not holds and verdict == "reproduced":
            texts.append(f"holds at no single learning rate {where}")
    return texts


def _holds_at(claim: Claim, comparisons: Iterable[Comparison], table: pd.DataFrame) -> bool:
    return all(effects.contrast(table, c).mean() > claim.threshold_of(c) for c in comparisons)


# ---------------------------------------------------------------------------------------------------------------------
# what it rests on


def runs_behind(verdict: Verdict, frame: pd.DataFrame) -> pd.DataFrame:
    """The runs behind the comparison that decides: the rows of its arms on its task, at the learning rates that the
    decision used. No row for a claim that was not run."""
    if not verdict.decided_by:
        return frame.iloc[:0]
    evidence = Evidence(frame, verdict.scale)
    ids = [
        name
        for row in verdict.rows.itertuples()
        if verdict.decided_by in (f"{row.comparison} on {row.task}", row.comparison) and row.task in verdict.tasks
        for name in effects.run_ids(verdict.claim, evidence, row.task, row.comparison)
    ]
    return frame[frame.run_id.isin(ids)]
