"""Which arm to take: chosen by validation on the tune seeds, then held against every other arm on the test seeds.

The seeds that choose are not those that judge, so the chosen arm carries no winner's curse into its differences.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from mambanorm.claims.evidence import Evidence
from mambanorm.claims.hypotheses import CLAIMS
from mambanorm.study.intervals import simultaneous, t_interval
from mambanorm.training.presets import VISION_TASKS

NAMED = {
    "sequence": {"NormVary>SSM>GN": "the paper's", "BN>SSM>LN": "the later claim's", "RMSN>SSM>None": "the original"},
    "vision": {"NormVary>SSM>LN": "the paper's", "BN>SSM>LN": "the later claim's", "LN>SSM>LN": "the original"},
}
"""The recommendation of §4.5, that of the paper's apparent successor, and the original that both start from."""


def tuned_arms(kind: str) -> tuple[str, ...]:
    """Every arm that some claim of that kind tunes."""
    mine = (claim for claim in CLAIMS.values() if claim.kind == kind and claim.runs == "tuned")
    return tuple(dict.fromkeys(arm for claim in mine for arm in claim.arms))


def ranking(frame: pd.DataFrame, task: str, *, scale: str | None = None) -> pd.DataFrame:
    """One row an arm, by validation on the tune seeds, the chosen one first: arm, who (names it), lr, validation, mean,
    sd, n, diverged, and how far it lies behind the chosen arm on shared test seeds: behind, low, high (95 %,
    simultaneous over all arms), per_seed, told. Accuracies in per cent, differences in points.

    Arms that are not tuned, or have fewer than two test runs, are left out. ValueError if none is left.
    """
    evidence, kind = Evidence(frame, scale), "vision" if task in VISION_TASKS else "sequence"
    arms = [arm for arm in tuned_arms(kind) if not evidence.untuned(task, [arm])]
    score, diverged = (evidence.tuned_table(arms, task, column) for column in ("score", "diverged"))
    arms = [arm for arm in arms if score[arm].count() > 1]
    if not arms:
        raise ValueError(f"no arm is tuned and tested on task {task!r} at scale {evidence.scale}: see mambanorm.needed")
    validation = {arm: evidence.tuning(task, arm).max() for arm in arms}
    chosen = max(arms, key=validation.get)
    rows = []
    for arm in sorted(arms, key=validation.get, reverse=True):
        gap = (score[chosen] - score[arm]).dropna()
        low, high = t_interval(gap, simultaneous(max(len(arms) - 1, 1))) if arm != chosen else (np.nan, np.nan)
        told = "behind" if low > 0 else "ahead" if high < 0 else "not told apart"
        facts = dict(arm=arm, who=NAMED[kind].get(arm, ""), lr=evidence.lr(task, arm), validation=validation[arm])
        facts |= dict(mean=score[arm].mean(), sd=score[arm].std(), n=int(score[arm].count()))
        facts |= dict(diverged=int(diverged[arm].sum()), behind=gap.mean(), low=low, high=high)
        rows.append(facts | dict(per_seed=gap.tolist(), told="chosen" if arm == chosen else told))
    return pd.DataFrame(rows)


def against_chosen(table: pd.DataFrame, task: str, arms: list[str] | None = None) -> pd.DataFrame:
    """Rows for `figures.fig_pairs`: the chosen arm minus each of those arms (None = those that somebody recommends)."""
    chosen = table.arm.iloc[0]
    wanted = table[(table.who != "") if arms is None else table.arm.isin(arms)]
    wanted = wanted[wanted.arm != chosen].rename(columns={"arm": "b", "behind": "difference"})
    return wanted.assign(a=chosen, task=task)[["task", "a", "b", "difference", "low", "high", "n", "per_seed", "who"]]
