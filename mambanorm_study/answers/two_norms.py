"""Notebooks 05, 06 and 08: two norms. The pair that two steps choose, Table 2's step taken apart,
and the proposal against the original."""

from collections.abc import Sequence

import pandas as pd

from mambanorm_study.answers.words import answer, clearly, gained, label, listed, numbered, told
from mambanorm_study.tables.run_tables import mean_sd, pairs_only, sketch_note, summarize

MAMBA = "RMSN>SSM>None"


def which_pair(
    both: pd.DataFrame, read: pd.DataFrame, pairs: pd.DataFrame, curse: pd.DataFrame
) -> str:
    """Two lines a task: the chosen pair and what it gains, and the paper's own second step. `both`:
    the run frame with NormVary; `read`, `pairs`, `curse`: the frames of `procedure.ways`,
    `.against_chosen` and `.winners_curse`."""
    lines = []
    for task, here in read.groupby("task", sort=False):
        mine, gaps = here.set_index("way"), pairs[pairs.task == task].set_index("b")
        two, cheating, normvary = (mine.loc[way] for way in ("two steps", "cheating", "NormVary"))
        type_, original = (
            f"{gained(gaps.loc[mine.arm[way]])} against" for way in ("same type", "original")
        )
        lost = curse[curse.task == task].points_lost.mean()
        luck = f"{lost:.1f} points" if lost == lost else "not known from one seed"
        lines.append(
            f"- **{task}**: the two steps choose {label(two.arm)}, {mean_sd(two)} on test, rank {two['rank']} of 36; "
            f"{type_} one type at both sites ({label(mine.arm['same type'])}) and {original} the original "
            f"({label(mine.arm['original'])}). Best on test, chosen on test: {label(cheating.arm)}, "
            f"{mean_sd(cheating)}. What the best arm of one seed loses on the others: {luck}."
        )
        lines.append(
            f"- The paper's own second step, {label(normvary.arm)}, has {mean_sd(normvary)}; the fixed N₁ minus "
            f"NormVary: {told(gaps.loc[normvary.arm])}."
        )
    paper = "\nThe paper: N₂ = GN on sequences (§4.4), with NormVary before it (§4.5)."
    return answer(both, "mean ± sd, differences with 95 % t-interval", [*lines, paper])


def guesses_on_pairs(runs: pd.DataFrame) -> str:
    """The three guesses of notebook 05, for each task of the grid: whether rows or columns differ
    more, whether the best cell lies on the diagonal, and which rank Mamba's own pair has."""
    texts = []
    for task, here in pairs_only(runs).groupby("task", sort=False):
        means = summarize(here, ["n1", "n2", "arm"]).set_index("arm")
        n1, n2 = (100 * means.groupby(site)["mean"].mean().std() for site in ("n1", "n2"))
        more = "columns (N₂)" if n2 > n1 else "rows (N₁)"
        best, ranks = means["mean"].idxmax(), means["mean"].rank(ascending=False, method="min")
        on = "on" if means.n1[best] == means.n2[best] else "off"
        rank = f"has rank {ranks[MAMBA]:.0f} of {len(means)}" if MAMBA in ranks else "was not run"
        lines = [
            f"The {more} differ more. The sd of the columns' means is {n2:.1f} points, that of the rows' means "
            f"{n1:.1f}.",
            f"The best cell, {label(best)}, lies {on} the diagonal.",
            f"{label(MAMBA)} {rank}.",
        ]
        texts.append(f"**{task}**\n\n{numbered(lines)}")
    return "\n\n".join(texts)


# 06: how far do the weights move, whose gain is it, what does learning bring?


def learned_norm(
    runs: pd.DataFrame, steps: pd.DataFrame, *, moved: pd.DataFrame, printed: float
) -> str:
    """The answer of notebook 06: how far the weights move, whose gain it is, what is lost without
    learning.

    `steps`: `tables.paired_steps` of Table 2's step taken apart. `moved`: `look.mixture_moves`.
    `printed`: the paper's gain on ListOps, in points.
    """
    far = [
        f"{here.largest.max():.3f} from 0.2 on {task} (possible: about {here.reach.max():.3f})"
        for task, here in moved.groupby("task", sort=False)
    ]
    weights = (
        f"The weights move by at most {listed(far)}."
        if far
        else "No run of NormVary→GN is stored here."
    )
    shares, losses = [], []
    for task, here in steps.groupby("task", sort=False):
        row = here.set_index("step")
        both, n1, n2 = (gained(row.loc[step]) for step in ("both", "N1 alone", "N2 alone"))
        shares.append(
            f"On {task} both steps bring {both}. N1 alone brings {n1}, N2 alone {n2}. Once N2 is there, N1 adds "
            f"{told(row.loc['N1 after N2'])}. {sketch_note(row.n)}".rstrip()
        )
        losses.append(f"On {task} learning the weights brings {told(row.loc['by learning'])}.")
    paper = (
        f"\nThe paper's row (Table 2): {printed:+.1f} points on ListOps, for both steps at once."
    )
    lines = [numbered([weights, " ".join(shares), " ".join(losses)]), paper]
    return answer(runs, "95 % t-intervals, not corrected for several comparisons", lines)


# 08: which of the proposal's two norms brings the gain?

SINGLE = {"GN alone": "GN after the SSM", "NormVary alone": "NormVary before the SSM"}
AGAINST = ("NormVary→GN", "NormVary→LN", "LN alone")
LEARNED = "learning, given GN"


def proposal_or_original(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    beyond: pd.DataFrame,
    *,
    printed: pd.Series,
    not_run: Sequence[str] = (),
) -> str:
    """The answer of notebook 08, for each task of the arms that were run: which single step brings
    more, whether the gains add up, the proposals and LN against RMSN→None, what learning brings.

    `steps`: `tables.paired_steps` of Table 2's step taken apart. `beyond`:
    `contrasts.difference_of_differences` of `contrasts.interaction`. `printed`: the paper's gain by
    task, in points. `not_run`: tasks of Table 2 that were not trained.
    """
    lines = []
    for task, here in steps.groupby("task", sort=False):
        row, more = here.set_index("step"), beyond[(beyond.task == task) & (beyond.step == "GN")]
        added = "The four arms of the interaction were not all run."
        for gap in more.itertuples():
            added = f"Both steps together minus the sum of the two is {told(gap)}."
        against = [
            f"{step} brings {told(row.loc[step], ': ')}." for step in AGAINST if step in row.index
        ]
        against += [_learned(row.loc[LEARNED])] if LEARNED in row.index else []
        said = " ".join(
            [_single(row), added, "Against RMSN→None:", *(against or ["no proposal was run."])]
        )
        lines.append(f"- **{task}**: {said} {sketch_note(row.n)}".rstrip())
    theirs = ", ".join(f"{task} {points:+.1f}" for task, points in printed.items())
    absent = f" Not run here: {', '.join(not_run)}." if not_run else ""
    lines.append(
        f"- The paper's Table 2, in points: {theirs}.{absent} Notebook 12 has the verdict on the proposal (H8)."
    )
    return answer(runs, "95 % t-intervals", lines)


def _learned(row: pd.Series) -> str:
    """What learning the mixture brings, held against the point that counts as well as against
    zero."""
    little = "less than the one point that counts" if row.high < 1 else clearly(row)
    return f"That the mixture is learned brings {gained(row)}: {little}."


def _single(row: pd.DataFrame) -> str:
    there = row.loc[[step for step in SINGLE if step in row.index]]
    each = ", ".join(f"{step} {gained(found)}" for step, found in there.iterrows())
    if len(there) < 2:
        return (
            f"Only one of the two steps was run: {each}."
            if each
            else "Neither of the two steps was run."
        )
    first, other = there.loc[there.difference.idxmax()], there.loc[there.difference.idxmin()]
    verb = "costs less" if first.difference < 0 else "brings more"
    return f"{SINGLE[first.name]} {verb if first.low > other.high else 'may bring more, the intervals overlap'}: {each}."
