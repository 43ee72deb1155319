"""Notebooks 05, 06 and 08: two norms. Which pair wins, and whose gain is the proposal's?"""

from collections.abc import Sequence

import pandas as pd

from mambanorm_study.answers.phrases import (
    answer_text,
    difference_text,
    join_words,
    judged_difference,
    numbered_list,
)
from mambanorm_study.tables.run_tables import (
    interval_says,
    label,
    mean_sd,
    pairs_only,
    sketch_note,
    summarize,
)

MAMBA = "RMSN>SSM>None"
SINGLE = {"GN alone": "GN after the SSM", "NormVary alone": "NormVary before the SSM"}
AGAINST = ("NormVary→GN", "NormVary→LN", "LN alone")
LEARNED = "learning, given GN"


# 05


def which_pair(
    both: pd.DataFrame, read: pd.DataFrame, pairs: pd.DataFrame, curse: pd.DataFrame
) -> str:
    """Return the answer of notebook 05: for each task the chosen pair, its gain, and NormVary.

    both: the run frame with NormVary. read, pairs, curse: the frames of `procedure.ways`,
    `.against_chosen` and `.winners_curse`.
    """
    lines = []
    for task, ways in read.groupby("task", sort=False):
        ways, gaps = ways.set_index("way"), pairs[pairs.task == task].set_index("b")
        two, cheating, normvary = (ways.loc[way] for way in ("two steps", "cheating", "NormVary"))
        same_type, original = ways.arm["same type"], ways.arm["original"]
        lost = curse[curse.task == task].points_lost.mean()
        luck = "not known from one seed" if pd.isna(lost) else f"{lost:.1f} points"
        lines += [
            f"- **{task}**: the two steps choose {label(two.arm)}, {mean_sd(two)} on test, rank "
            f"{two['rank']} of 36; {difference_text(gaps.loc[same_type])} against one type at both "
            f"sites ({label(same_type)}) and {difference_text(gaps.loc[original])} against the "
            f"original ({label(original)}). Best on test, chosen on test: {label(cheating.arm)}, "
            f"{mean_sd(cheating)}. What the best arm of one seed loses on the others: {luck}.",
            f"- The paper's own second step, {label(normvary.arm)}, has {mean_sd(normvary)}; the "
            f"fixed N₁ minus NormVary: {judged_difference(gaps.loc[normvary.arm])}.",
        ]
    return answer_text(
        both,
        "mean ± sd, differences with 95 % t-interval",
        [*lines, "\nThe paper: N₂ = GN on sequences (§4.4), with NormVary before it (§4.5)."],
    )


def guesses_on_pairs(runs: pd.DataFrame) -> str:
    """Return the three guesses of notebook 05, for each task of the grid.

    They are: do rows or columns differ more, does the best cell lie on the diagonal, and which rank
    has Mamba's own pair?
    """
    texts = []
    for task, of_task in pairs_only(runs).groupby("task", sort=False):
        means = summarize(of_task, ["n1", "n2", "arm"]).set_index("arm")
        sd_n1, sd_n2 = (100 * means.groupby(site)["mean"].mean().std() for site in ("n1", "n2"))
        more = "columns (N₂)" if sd_n2 > sd_n1 else "rows (N₁)"
        best, ranks = means["mean"].idxmax(), means["mean"].rank(ascending=False, method="min")
        on = "on" if means.n1[best] == means.n2[best] else "off"
        rank = f"has rank {ranks[MAMBA]:.0f} of {len(means)}" if MAMBA in ranks else "was not run"
        lines = [
            f"The {more} differ more. The sd of the columns' means is {sd_n2:.1f} points, that of "
            f"the rows' means {sd_n1:.1f}.",
            f"The best cell, {label(best)}, lies {on} the diagonal.",
            f"{label(MAMBA)} {rank}.",
        ]
        texts.append(f"**{task}**\n\n{numbered_list(lines)}")
    return "\n\n".join(texts)


# 06


def learned_norm(
    runs: pd.DataFrame, steps: pd.DataFrame, *, moved: pd.DataFrame, printed: float
) -> str:
    """Return the answer of notebook 06: the moves of the weights, whose gain it is, and learning.

    steps: `tables.paired_steps` of Table 2's step taken apart. moved: `look.mixture_moves`.
    printed: the paper's gain on ListOps, in points.
    """
    moves = [
        f"{rows.largest.max():.3f} from 0.2 on {task} (possible: about {rows.reach.max():.3f})"
        for task, rows in moved.groupby("task", sort=False)
    ]
    weights = "No run of NormVary→GN is stored here."
    if moves:
        weights = f"The weights move by at most {join_words(moves)}."
    shares, losses = [], []
    for task, rows in steps.groupby("task", sort=False):
        row = rows.set_index("step")
        both, n1, n2 = (difference_text(row.loc[s]) for s in ("both", "N1 alone", "N2 alone"))
        shares.append(
            f"On {task} both steps bring {both}. N1 alone brings {n1}, N2 alone {n2}. Once N2 is "
            f"there, N1 adds {judged_difference(row.loc['N1 after N2'])}. "
            f"{sketch_note(row.n)}".rstrip()
        )
        losses.append(
            f"On {task} learning the weights brings {judged_difference(row.loc['by learning'])}."
        )
    paper = f"The paper's row (Table 2): {printed:+.1f} points on ListOps, for both steps at once."
    lines = [numbered_list([weights, " ".join(shares), " ".join(losses)]), "", paper]
    shows = "95 % t-intervals, not corrected for several comparisons"
    return answer_text(runs, shows, lines)


# 08


def proposal_or_original(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    beyond: pd.DataFrame,
    *,
    printed: pd.Series,
    not_run: Sequence[str] = (),
) -> str:
    """Return the answer of notebook 08: which of the proposal's two norms brings the gain.

    For each task it says which single step brings more, whether the gains add up, how the proposals
    and LN compare with RMSN→None, and what learning brings. steps: `tables.paired_steps` of Table
    2's step taken apart. beyond: `run_tables.paired_steps` of `contrasts.INTERACTION`.
    printed: the paper's gain by task, in points. not_run: tasks of Table 2 that were not trained.
    """
    lines = []
    for task, rows in steps.groupby("task", sort=False):
        row = rows.set_index("step")
        interaction = beyond[(beyond.task == task) & (beyond.step == "GN")]
        sentences = [_single_steps(row), "The four arms of the interaction were not all run."]
        if len(interaction):
            excess = judged_difference(interaction.iloc[-1])
            sentences[1] = f"Both steps together minus the sum of the two is {excess}."
        sentences.append("Against RMSN→None:")
        shown = [step for step in AGAINST if step in row.index]
        sentences += [f"{s} brings {judged_difference(row.loc[s], ': ')}." for s in shown]
        if LEARNED in row.index:
            sentences.append(_learning(row.loc[LEARNED]))
        elif not shown:
            sentences.append("no proposal was run.")
        lines.append(f"- **{task}**: {' '.join(sentences)} {sketch_note(row.n)}".rstrip())
    gains = ", ".join(f"{task} {gain:+.1f}" for task, gain in printed.items())
    absent = f" Not run here: {', '.join(not_run)}." if not_run else ""
    lines.append(
        f"- The paper's Table 2, in points: {gains}.{absent} Notebook 12 has the verdict on the "
        "proposal (H8)."
    )
    return answer_text(runs, "95 % t-intervals", lines)


def _learning(row: pd.Series) -> str:
    """Return the gain of a learned mixture, judged against one point as well as against zero."""
    little = "less than the one point that counts"
    says = little if row.high < 1 else interval_says(row.low, row.high)
    return f"That the mixture is learned brings {difference_text(row)}: {says}."


def _single_steps(rows: pd.DataFrame) -> str:
    single = rows.loc[[step for step in SINGLE if step in rows.index]]
    each = ", ".join(f"{step} {difference_text(row)}" for step, row in single.iterrows())
    if single.empty:
        return "Neither of the two steps was run."
    if len(single) < 2:
        return f"Only one of the two steps was run: {each}."
    more, less = (single.loc[i] for i in (single.difference.idxmax(), single.difference.idxmin()))
    verb = "may bring more, the intervals overlap"
    if more.low > less.high:
        verb = "costs less" if more.difference < 0 else "brings more"
    return f"{SINGLE[more.name]} {verb}: {each}."
