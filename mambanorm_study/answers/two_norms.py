"""Notebooks 05, 06 and 08: models with two norms, N1 before and N2 after the SSM. Which pair wins,
and which of the two norms makes the gain?
"""

from collections.abc import Sequence

import pandas as pd

from mambanorm_study.answers.phrases import (
    answer_text,
    difference_text,
    join_words,
    judged_difference,
    numbered_list,
)
from mambanorm_study.tables.run_tables import label, mean_sd, pairs_only, summarize

MAMBA = "RMSN>SSM>None"


def which_pair(
    runs: pd.DataFrame, choices: pd.DataFrame, pairs: pd.DataFrame, curse: pd.DataFrame
) -> str:
    """Return the answer of notebook 05: for each task the pair that the paper's two steps choose
    (first N2, then N1), the gain of this pair over other pairs, and its gain over the pair of
    NormVary with the same N2.

    runs: a run frame that includes NormVary. choices: the frame of `procedure.ways_to_choose`.
    pairs: the frame of `procedure.against_chosen`. curse: the frame of `procedure.winners_curse`.
    """
    lines = []
    for task, ways in choices.groupby("task", sort=False):
        ways, gaps = ways.set_index("way"), pairs[pairs.task == task].set_index("b")
        two, cheating, normvary = (ways.loc[way] for way in ("two steps", "cheating", "NormVary"))
        same_type, original = ways.arm["same type"], ways.arm["original"]
        points_lost = curse[curse.task == task].points_lost.mean()
        luck = "not known from one seed" if pd.isna(points_lost) else f"{points_lost:.1f} points"
        lines += [
            f"- **{task}**: the two steps choose {label(two.arm)}, {mean_sd(two)} on test, rank "
            f"{two['rank']} of 36; {difference_text(gaps.loc[same_type])} against one type at both "
            f"sites ({label(same_type)}) and {difference_text(gaps.loc[original])} against the "
            f"original ({label(original)}). The arm with the best test accuracy is "
            f"{label(cheating.arm)}, {mean_sd(cheating)}. The loss of the best arm of one seed "
            f"on the other seeds: {luck}.",
            f"- The paper's own second step, {label(normvary.arm)}, has {mean_sd(normvary)}; the "
            f"fixed N₁ minus NormVary: {judged_difference(gaps.loc[normvary.arm])}.",
        ]
    return answer_text(
        runs,
        "mean ± sd, differences with 95 % t-interval",
        [*lines, "\nThe paper: N₂ = GN on sequences (§4.4), with NormVary before it (§4.5)."],
    )


def guesses_on_pairs(runs: pd.DataFrame) -> str:
    """Return the answers to the three guesses of notebook 05, for each task: whether the rows (N1)
    or the columns (N2) of the grid of mean accuracies differ more, the best cell of the grid, and
    the rank of Mamba's original pair RMSN→None.
    """
    texts = []
    for task, of_task in pairs_only(runs).groupby("task", sort=False):
        means = summarize(of_task, ["n1", "n2", "arm"]).set_index("arm")
        sd_n1, sd_n2 = (100 * means.groupby(site)["mean"].mean().std() for site in ("n1", "n2"))
        ranks = means["mean"].rank(ascending=False, method="min")
        rank = f"has rank {ranks[MAMBA]:.0f} of {len(means)}" if MAMBA in ranks else "was not run"
        lines = [
            f"The {'columns (N₂)' if sd_n2 > sd_n1 else 'rows (N₁)'} differ more: the standard "
            f"deviation of the columns' means is {sd_n2:.1f} points, of the rows' means "
            f"{sd_n1:.1f}.",
            f"The best cell is {label(means['mean'].idxmax())}.",
            f"{label(MAMBA)} {rank}.",
        ]
        texts.append(f"**{task}**\n\n{numbered_list(lines)}")
    return "\n\n".join(texts)


def answer_on_normvary(
    runs: pd.DataFrame, steps: pd.DataFrame, *, moved: pd.DataFrame, printed: float
) -> str:
    """Return the answer of notebook 06: how far the weights of NormVary move, what NormVary as N1
    and GN as N2 gain, alone and together, and what NormVary gains by learning the weights.

    steps: the frame of `run_tables.paired_steps` for the parts of the step from RMSN→None to
    NormVary→GN (Table 2). moved: the frame of `weight_log.mixture_moves`. printed: the gain of
    NormVary→GN over RMSN→None that the paper prints for ListOps, in points.
    """
    moves = [
        f"{rows.largest.max():.3f} from 0.2 on {task} (possible: about {rows.reach.max():.3f})"
        for task, rows in moved.groupby("task", sort=False)
    ]
    weights = f"The largest move of a weight: {join_words(moves)}."
    shares, learning = [], []
    for task, rows in steps.groupby("task", sort=False):
        texts = rows.set_index("step").apply(judged_difference, axis=1)
        names = ("both", "N1 alone", "N2 alone", "N1 after N2")
        shares.append(f"On {task}: {'; '.join(f'{name} {texts[name]}' for name in names)}.")
        learning.append(f"Learning the weights gains on {task}: {texts['by learning']}.")
    lines = [
        numbered_list([weights, " ".join(shares), " ".join(learning)]),
        "",
        f"The paper's row (Table 2): {printed:+.1f} points on ListOps, for both steps at once.",
    ]
    return answer_text(runs, "95 % t-intervals, not corrected for several comparisons", lines)


def proposal_or_original(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    interaction: pd.DataFrame,
    *,
    printed: pd.Series,
    not_run: Sequence[str] = (),
) -> str:
    """Return the answer of notebook 08: the gain of each step from the original arm to the proposed
    arm on each task, and whether the gains of the two norms add up.

    steps: the frame of `run_tables.paired_steps` for the parts of the step from RMSN→None
    (original) to NormVary→GN (proposed; Table 2). interaction: the frame of
    `run_tables.paired_steps` for `contrasts.INTERACTION`. printed: task → the paper's gain in
    points. not_run: tasks of Table 2 that were not trained.
    """
    lines = []
    for task, rows in steps.groupby("task", sort=False):
        texts = rows.set_index("step").apply(judged_difference, axis=1)
        line = f"- **{task}**: {'; '.join(f'{step} {text}' for step, text in texts.items())}."
        for row in interaction[
            (interaction.task == task) & (interaction.step == "GN")
        ].itertuples():
            line += (
                " The gain of NormVary→GN minus the sum of the gains of NormVary alone and of GN "
                f"after RMSN: {judged_difference(row)}."
            )
        lines.append(line)
    gains = ", ".join(f"{task} {gain:+.1f}" for task, gain in printed.items())
    absent = f" Not run here: {', '.join(not_run)}." if not_run else ""
    lines.append(
        f"- The paper's Table 2, in points: {gains}.{absent} Notebook 12 has the verdict on the "
        "proposal (H8)."
    )
    return answer_text(runs, "95 % t-intervals", lines)
