"""Notebook 05: the pair that the paper's two steps choose, beside the same type twice, the original and NormVary."""

from __future__ import annotations

import pandas as pd

from mambanorm.answers.words import answer, gained, label, numbered
from mambanorm.study.tables import interval_says, mean_sd, pairs_only, points, summarize

COMPARED = {"same type": "one type at both sites", "original": "the original"}
BETTER = {"above zero": "the fixed N₁", "below zero": "NormVary"}
MAMBA = "RMSN>SSM>None"


def which_pair(both: pd.DataFrame, read: pd.DataFrame, pairs: pd.DataFrame, curse: pd.DataFrame) -> str:
    """Two lines a task: the chosen pair and what it gains, and the paper's own second step. `both`: the run frame with
    NormVary; `read`, `pairs`, `curse`: the frames of `procedure.ways`, `.against_chosen` and `.winners_curse`."""
    lines = []
    for task, here in read.groupby("task", sort=False):
        mine, gaps = here.set_index("way"), pairs[pairs.task == task].set_index("b")
        lines += [_chosen(task, mine, gaps, curse[curse.task == task]), _adaptive(mine, gaps)]
    paper = "\nThe paper: N₂ = GN on sequences (§4.4), with NormVary before it (§4.5)."
    return answer(both, "mean ± sd, differences with 95 % t-interval", [*lines, paper])


def _chosen(task: str, mine: pd.DataFrame, gaps: pd.DataFrame, curse: pd.DataFrame) -> str:
    two, cheating = mine.loc["two steps"], mine.loc["cheating"]
    against = " and ".join(_against(mine.arm[way], name, gaps) for way, name in COMPARED.items())
    lost = curse.points_lost.mean()
    luck = f"{lost:.1f} points" if lost == lost else "not known from one seed"
    return (
        f"- **{task}**: the two steps choose {label(two.arm)}, {mean_sd(two)} on test, rank {two['rank']} of 36; "
        f"{against}. Best on test, chosen on test: {label(cheating.arm)}, {mean_sd(cheating)}. What the best arm of "
        f"one seed loses on the others: {luck}."
    )


def _against(arm: str, name: str, gaps: pd.DataFrame) -> str:
    return f"{gained(gaps.loc[arm])} against {name} ({label(arm)})"


def _adaptive(mine: pd.DataFrame, gaps: pd.DataFrame) -> str:
    normvary = mine.loc["NormVary"]
    gap = gaps.loc[normvary.arm]
    return (
        f"- The paper's own second step, {label(normvary.arm)}, has {mean_sd(normvary)}; the fixed N₁ minus NormVary: "
        f"{gained(gap)}; better: {_better(gap)}."
    )


def _better(gap) -> str:
    says = interval_says(gap.low, gap.high)
    return BETTER.get(says, says)


def search_or_normvary(read: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """Which second step is better? One row a task: both arms with mean ± sd, their difference with its interval, the
    number of shared seeds, and which is better if the interval tells. Frames as in `which_pair`."""
    rows = {}
    for gap in pairs[pairs.way == "NormVary"].itertuples():
        mine = read[read.task == gap.task].set_index("way")
        rows[gap.task] = {
            "fixed N₁ → chosen N₂": f"{gap.a}, {mean_sd(mine.loc['two steps'])}",
            "NormVary → chosen N₂": f"{gap.b}, {mean_sd(mine.loc['NormVary'])}",
            "difference": points(gap.difference, gap.low, gap.high),
            "seeds": gap.n,
            "better": _better(gap),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("task")


def guesses_on_pairs(runs: pd.DataFrame) -> str:
    """The three guesses of notebook 05, for each task of the grid: whether rows or columns differ more, whether the
    best cell lies on the diagonal, and which rank Mamba's own pair has."""
    texts = []
    for task, here in pairs_only(runs).groupby("task", sort=False):
        means = summarize(here, ["n1", "n2", "arm"]).set_index("arm")
        texts.append(f"**{task}**\n\n{numbered([_sites(means), _diagonal(means), _rank(means)])}")
    return "\n\n".join(texts)


def _sites(means: pd.DataFrame) -> str:
    n1, n2 = (100 * means.groupby(site)["mean"].mean().std() for site in ("n1", "n2"))
    more = "columns (N₂)" if n2 > n1 else "rows (N₁)"
    return f"The {more} differ more. The sd of the columns' means is {n2:.1f} points, that of the rows' means {n1:.1f}."


def _diagonal(means: pd.DataFrame) -> str:
    best = means["mean"].idxmax()
    on = "on" if means.n1[best] == means.n2[best] else "off"
    return f"The best cell, {label(best)}, lies {on} the diagonal."


def _rank(means: pd.DataFrame) -> str:
    if MAMBA not in means.index:
        return f"{label(MAMBA)} was not run."
    rank = means["mean"].rank(ascending=False, method="min")[MAMBA]
    return f"{label(MAMBA)} has rank {rank:.0f} of {len(means)}."
