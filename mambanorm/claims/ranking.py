"""Which arm to take: chosen by validation, then held against every other arm by test accuracy.

As in the verdicts each arm has one learning rate, and accuracies are those of runs that finished, with the diverged
ones told beside. The chosen arm's own lead is a little flattered, because its validation shares the luck of its seeds
with its test: what is told "not told apart" is safe to take instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import numpy as np
import pandas as pd

from mambanorm.claims import rule
from mambanorm.claims.claim import UNITS
from mambanorm.claims.evidence import Evidence, kind_of
from mambanorm.claims.hypotheses import CLAIMS

NAMED = {
    "sequence": {"NormVary>SSM>GN": "the paper's", "BN>SSM>LN": "the later claim's", "RMSN>SSM>None": "the original"},
    "vision": {"NormVary>SSM>LN": "the paper's", "BN>SSM>LN": "the later claim's", "LN>SSM>LN": "the original"},
    "language": {"NormVary-token>SSM>GN-token": "the paper's, causal", "RMSN>SSM>None": "the original"},
}
"""The recommendation of §4.5, that of the paper's apparent successor, and the original that both start from."""


def tuned_arms(kind: str) -> tuple[str, ...]:
    """Every arm that some claim of that kind tunes."""
    mine = (claim for claim in CLAIMS.values() if claim.kind == kind and claim.runs == "tuned")
    return tuple(dict.fromkeys(arm for claim in mine for arm in claim.arms))


def ranking(
    frame: pd.DataFrame, task: str, *, scale: str | None = None, arms: Iterable[str] | None = None
) -> pd.DataFrame:
    """One row an arm, by mean validation accuracy, the chosen one first: arm, who (names it), lr, validation, mean, sd,
    n, diverged, all on the seeds that every arm has, and how far it lies behind the chosen one on the seeds that both
    finished: behind, low, high (95 %, simultaneous over all arms), per_seed, told, unit. Accuracies in per cent,
    differences in points (unit "pp"); of language models "bits a character", the losses with a minus.

    arms: those to choose from (None = all that a claim tunes); the others are neither chosen nor compared.
    Arms that are not tuned are left out. ValueError if none is left, or with fewer than two test seeds.
    """
    evidence, kind = Evidence(frame, scale), kind_of(task)
    allowed = set(tuned_arms(kind) if arms is None else arms)
    arms = (arm for arm in tuned_arms(kind) if arm in allowed and not evidence.tuned((arm,), task).gaps)
    runs = evidence.tuned(tuple(arms), task)
    shared = np.isin(runs.seeds, runs.whole_seeds)
    if not runs.arms or shared.sum() < 2:
        raise ValueError(f"no arm is tuned and tested on task {task!r} at scale {evidence.scale}: see mambanorm.needed")
    scores = runs.finished(measured := "bits" if kind == "language" else "score")[:, shared]
    n, mean = rule.interval(scores)
    validation = runs.at("validation")[:, shared].mean(axis=1)
    order = np.argsort(-validation, kind="stable")
    chosen, level, rows = order[0], rule.ONE_SIDED / max(len(order) - 1, 1), []
    for i in order:
        gap = scores[chosen] - scores[i]
        gap = gap[np.isfinite(gap)]
        _, behind, half = rule.interval(gap, level)
        low, high = (np.nan, np.nan) if i == chosen else (behind - half, behind + half)
        told = "chosen" if i == chosen else "behind" if low > 0 else "ahead" if high < 0 else "not told apart"
        facts = dict(arm=runs.arms[i], who=NAMED[kind].get(runs.arms[i], ""), lr=runs.lr[i], validation=validation[i])
        facts |= dict(mean=mean[i], sd=np.nanstd(scores[i], ddof=1), n=n[i])
        facts |= dict(diverged=int(shared.sum() - n[i]), behind=float(behind), low=low, high=high)
        rows.append(facts | dict(per_seed=gap.tolist(), told=told, unit=UNITS[measured]))
    return pd.DataFrame(rows)


def rankings(frame: pd.DataFrame, tasks: Iterable[str], scale: str | None = None) -> dict[str, pd.DataFrame]:
    """Task → `ranking`, for those of the tasks on which an arm is tuned and tested with two seeds or more."""
    found, evidence = {}, Evidence(frame, scale)
    for task in tasks:
        with suppress(ValueError):
            found[task] = ranking(evidence, task, scale=scale)
    return found


def leading(table: pd.DataFrame, at_most: int = 8) -> pd.DataFrame:
    """The first arms of a ranking and those that somebody recommends, rounded for reading."""
    shown = table[(table.index < at_most) | (table.who != "")].drop(columns=["per_seed", "unit"])
    digits = 1 if (table.unit == "pp").all() else 3
    return shown.round(dict.fromkeys(["validation", "mean", "sd", "behind", "low", "high"], digits))


def not_ranked(table: pd.DataFrame, task: str) -> dict[str, str]:
    """The arms that some claim tunes and this ranking lacks, because they are not tuned: arm → who recommends it, or
    "". Without them the first of the ranking is the first of a part."""
    kind = kind_of(task)
    return {arm: NAMED[kind].get(arm, "") for arm in tuned_arms(kind) if arm not in set(table.arm)}


def against_chosen(table: pd.DataFrame, task: str, arms: list[str] | None = None) -> pd.DataFrame:
    """Rows for `figures.fig_pairs`: the chosen arm minus each of those arms (None = those that somebody recommends)."""
    chosen = table.arm.iloc[0]
    wanted = table[(table.who != "") if arms is None else table.arm.isin(arms)]
    wanted = wanted[wanted.arm != chosen].rename(columns={"arm": "b", "behind": "difference"})
    columns = ["task", "a", "b", "difference", "low", "high", "n", "per_seed", "who", "unit"]
    return wanted.assign(a=chosen, task=task)[columns]
