"""Which arm to take: chosen by validation, then held against every other arm by test accuracy.

Cross-fitted as all of the verdicts: on seed k the arm is held against the others that the *other* seeds choose, so no
winner's curse enters the differences.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import numpy as np
import pandas as pd

from mambanorm.claims.comparisons import UNITS
from mambanorm.claims.evidence import Evidence, splits_of
from mambanorm.claims.hypotheses import CLAIMS
from mambanorm.claims.judged_on import kind_of
from mambanorm.claims.protocol import ONE_SIDED
from mambanorm.study.intervals import t_quantile

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
    n, diverged, and how far it lies behind the arm that the other seeds choose: behind, low, high (95 %, simultaneous
    over all arms, wider by the splits' overlap), per_seed, told, unit. Accuracies in per cent, differences in points
    (unit "pp"); of language models "bits a character", the losses with a minus.

    arms: those to choose from (None = all that a claim tunes); the others are neither chosen nor compared.
    Arms that are not tuned are left out. ValueError if none is left, or with fewer than two test seeds.
    """
    evidence, kind = Evidence(frame, scale), kind_of(task)
    allowed = set(tuned_arms(kind) if arms is None else arms)
    arms = [arm for arm in tuned_arms(kind) if arm in allowed and not evidence.tuned((arm,), task).gaps]
    paired = evidence.tuned(tuple(arms), task)
    n = len(paired.seeds)
    if n < 2:
        raise ValueError(f"no arm is tuned and tested on task {task!r} at scale {evidence.scale}: see mambanorm.needed")
    measured = "bits" if kind == "language" else "score"
    score, validation = paired.columns[measured], paired.columns["validation"].mean(axis=1)
    best = np.round(paired.promise, 9).argmax(axis=0)  # by seed, on the others
    chosen, ratio = int(validation.argmax()), splits_of(task, evidence.scale).ratio
    rows = []
    for i in np.argsort(-validation, kind="stable"):
        gap = score[best, np.arange(n)] - score[i]
        half = t_quantile(n - 1, ONE_SIDED / max(len(arms) - 1, 1)) * gap.std(ddof=1) * np.sqrt(1 / n + ratio)
        low, high = (np.nan, np.nan) if i == chosen else (gap.mean() - half, gap.mean() + half)
        told = "chosen" if i == chosen else "behind" if low > 0 else "ahead" if high < 0 else "not told apart"
        facts = dict(arm=arms[i], who=NAMED[kind].get(arms[i], ""), lr=paired.chosen[i], validation=validation[i])
        facts |= dict(mean=score[i].mean(), sd=score[i].std(ddof=1), n=n, diverged=int(paired.diverged[i, 0]))
        facts |= dict(behind=gap.mean(), low=low, high=high, per_seed=gap.tolist(), told=told)
        rows.append(facts | dict(unit=UNITS[measured]))
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
