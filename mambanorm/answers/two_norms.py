"""Notebooks 05, 06 and 08: two norms. The pair that two steps choose, Table 2's step taken apart, and the proposal
against the original."""

from collections.abc import Sequence

import pandas as pd

from mambanorm.answers.words import answer, clearly, gained, label, numbered
from mambanorm.study.tables import interval_says, markdown_table, mean_sd, pairs_only, sketch_note, summarize

BETTER = {"clearly above zero": "the fixed N₁", "clearly below zero": "NormVary"}
MAMBA = "RMSN>SSM>None"


def which_pair(both: pd.DataFrame, read: pd.DataFrame, pairs: pd.DataFrame, curse: pd.DataFrame) -> str:
    """Two lines a task: the chosen pair and what it gains, and the paper's own second step. `both`: the run frame with
    NormVary; `read`, `pairs`, `curse`: the frames of `procedure.ways`, `.against_chosen` and `.winners_curse`."""
    lines = []
    for task, here in read.groupby("task", sort=False):
        mine, gaps = here.set_index("way"), pairs[pairs.task == task].set_index("b")
        two, cheating, normvary = (mine.loc[way] for way in ("two steps", "cheating", "NormVary"))
        type_, original = (f"{gained(gaps.loc[mine.arm[way]])} against" for way in ("same type", "original"))
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
            f"NormVary: {gained(gaps.loc[normvary.arm])}; better: {_better(gaps.loc[normvary.arm])}."
        )
    paper = "\nThe paper: N₂ = GN on sequences (§4.4), with NormVary before it (§4.5)."
    return answer(both, "mean ± sd, differences with 95 % t-interval", [*lines, paper])


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
            "difference": gained(gap),
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


# 06: what does N1 bring, N2, mixing, learning?


def learned_norm(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    *,
    against: tuple[pd.DataFrame, pd.DataFrame],
    moved: pd.DataFrame,
    printed: float,
) -> str:
    """A table of the steps and a paragraph for each task.

    `steps`: `tables.paired_steps` of Table 2's step taken apart. `against`: NormVary→N2 against the original, and
    against RMSN→N2, for every N2. `moved`: `look.mixture_moves`. `printed`: the paper's gain on ListOps, in
    points.
    """
    worded = steps.assign(points=[gained(row) for row in steps.itertuples()])
    table = worded.pivot(index="step", columns="task", values="points").reindex(list(dict.fromkeys(steps.step)))
    lines = [markdown_table(table.fillna("not run"))]
    for task, here in steps.groupby("task", sort=False):
        original, equal = (_above(table[table.task == task]) for table in against)
        lines.append(
            f"{_what_each_brings(task, here, moved[moved.task == task])} Intervals above zero, NormVary→N2 against the "
            f"original: {original}; against RMSN→N2: {equal}."
        )
    lines.append(f"The paper's row (Table 2): {printed:+.1f} points on ListOps, for both steps at once.")
    return answer(runs, "95 % t-intervals, not corrected for several comparisons", lines, "\n\n")


def _what_each_brings(task: str, here: pd.DataFrame, moved: pd.DataFrame) -> str:
    row = here.set_index("step")
    n1, n2 = row.difference["N1 alone"], row.difference["N2 alone"]
    verb = "costs" if max(n1, n2) < 0 else "brings"
    order = "as much as" if n1 == n2 else "more than" if (n2 > n1) == (verb == "brings") else "less than"
    points = f"({n2:+.1f} and {n1:+.1f} points)".replace("-", "−")
    far = (
        f"The weights moved by at most {moved.largest.max():.3f} from 0.2 (possible: about {moved.reach.max():.3f})."
        if len(moved)
        else "How far the weights moved is not known here: no run of NormVary→GN is stored."
    )
    return (
        f"- **{task}**: N2 alone {verb} {order} N1 alone {points}. {sketch_note(row.n)}"
        f"What NormVary adds to GN: {clearly(row.loc['N1 after N2'])}. What learning its weights adds: "
        f"{clearly(row.loc['by learning'])}. {far}"
    )


def _above(table: pd.DataFrame) -> str:
    """In how many rows the interval lies above zero."""
    return "one seed cannot tell" if table.low.isna().all() else f"{(table.low > 0).sum()} of {len(table)}"


LOST = {
    "clearly above zero": "So something would be lost.",
    "clearly below zero": "So nothing would be lost, and something gained.",
    "we cannot tell": "Whether anything would be lost, we cannot tell.",
    "one seed cannot tell": "One seed cannot tell.",
}


def guesses_on_learning(steps: pd.DataFrame, moved: pd.DataFrame) -> str:
    """The three guesses of notebook 06: how far the weights move, whose gain it is, what is lost without learning."""
    far = [f"{here.largest.max():.3f} on {task}" for task, here in moved.groupby("task", sort=False)]
    weights = f"The weights move by at most {' and '.join(far)}." if far else "No run of NormVary→GN is stored here."
    shares, losses = [], []
    for task, here in steps.groupby("task", sort=False):
        row = here.set_index("step")
        both, n1, n2, after = (gained(row.loc[step]) for step in ("both", "N1 alone", "N2 alone", "N1 after N2"))
        shares.append(f"On {task} both steps bring {both}. N1 alone brings {n1}, N2 alone {n2}.")
        shares.append(f"Once N2 is there, N1 adds {after}.")
        learning = row.loc["by learning"]
        losses.append(f"On {task} learning the weights brings {gained(learning)}. {LOST[clearly(learning)]}")
    return numbered([weights, " ".join(shares), " ".join(losses)])


# 08: which of the proposal's two norms brings the gain?

PROPOSED = ("NormVary→GN", "NormVary→LN")
SINGLE = {"GN alone": "GN after the SSM", "LN alone": "LN after the SSM", "NormVary alone": "NormVary before it"}
ADDED = {
    "NormVary, given GN": "NormVary in place of RMSN before GN",
    "NormVary, given LN": "NormVary in place of RMSN before LN",
}
LEARNED = "learning, given GN"


def proposal_or_original(runs: pd.DataFrame, steps: pd.DataFrame, *, printed: pd.Series, not_run: Sequence[str]) -> str:
    """A line for each task: the proposals against RMSN→None, and the gain of each norm, of the arms that were run.

    `steps`: `tables.paired_steps` of Table 2's step taken apart. `printed`: the paper's gain by task, in points.
    `not_run`: tasks of Table 2 that were not trained.
    """
    lines = []
    for task, here in steps.groupby("task", sort=False):
        row = here.set_index("step")
        against = _said(row, dict(zip(PROPOSED, PROPOSED, strict=True))) or "no proposal was run"
        whose = _said(row, dict(zip(SINGLE, SINGLE, strict=True)) | ADDED)
        whose += _learned(row.loc[LEARNED]) if LEARNED in row.index else ""
        text = f"- **{task}**, against RMSN→None: {against}. Whose gain is it? {whose}. {sketch_note(row.n)}"
        lines += [text.rstrip(), *_cost(runs, here)]
    theirs = ", ".join(f"{task} {points:+.1f}" for task, points in printed.items())
    lines.append(f"- Of Table 2 not run: {', '.join(not_run) or 'nothing'}. The paper, in points: {theirs}.")
    lines.append("- Notebook 12 has the verdict on the proposal (H8), at the same learning rates.")
    return answer(runs, "95 % t-intervals", lines)


def _learned(row: pd.Series) -> str:
    """What learning the mixture brings, held against the point that counts as well as against zero."""
    little = "less than the one point that counts" if row.high < 1 else clearly(row)
    return f". That the mixture is learned brings {gained(row)}: {little}"


def _cost(runs: pd.DataFrame, steps: pd.DataFrame) -> list[str]:
    """A line on what each proposal costs beside the original: weights, and the time of a run of the same seed."""
    lines = []
    for row in steps[steps.step.isin(PROPOSED)].itertuples():
        mine = runs[(runs.task == row.task) & (runs.status == "ok")].set_index("seed")
        new, old = mine[mine.arm == row.a], mine[mine.arm == row.b]
        more = 100 * (new.parameters.iloc[0] / old.parameters.iloc[0] - 1)
        low, middle, high = (new.wall_s / old.wall_s).dropna().quantile([0.25, 0.5, 0.75])
        times = f"{middle:.2f} times" if low > 1 or high < 1 else "about"
        time = f"a run took {times} as long (quartiles {low:.2f} to {high:.2f} times; the runs shared a machine)"
        lines.append(f"- **What {row.step} costs** on {row.task}: {more:.1f} % more weights; {time}.")
    return lines


def _said(row: pd.DataFrame, names: dict[str, str]) -> str:
    """Each of these steps that was run: its name, gain, and whether it is clear."""
    there = [(name, row.loc[step]) for step, name in names.items() if step in row.index]
    return ". ".join(f"{name} brings {gained(found)}: {clearly(found)}" for name, found in there)


SUM = {
    "clearly above zero": "together they bring more than the sum of both",
    "clearly below zero": "together they bring less than the sum of both",
    "we cannot tell": "whether the gains add up, we cannot tell",
    "one seed cannot tell": "one seed cannot tell whether the gains add up",
}


def guesses_on_steps(steps: pd.DataFrame, beyond: pd.DataFrame) -> str:
    """The three guesses of notebook 08, task by task: which single step brings more, whether the gains add up, and what
    LN does. `beyond`: `contrasts.difference_of_differences` of `contrasts.interaction`."""
    texts = []
    for task, here in steps.groupby("task", sort=False):
        row, more = here.set_index("step"), beyond[(beyond.task == task) & (beyond.step == "GN")]
        added = "The four arms that this needs were not all run."
        for gap in more.itertuples():
            added = f"Both steps together minus the sum of the two is {gained(gap)}: {SUM[clearly(gap)]}."
        layer_norm = _said(row, {name: name for name in ("LN alone", "NormVary→LN")}) or "LN was not run"
        texts.append(f"**{task}**\n\n{numbered([_single(row), added, f'{layer_norm}.'])}")
    return "\n\n".join(texts)


def _single(row: pd.DataFrame) -> str:
    there = row.loc[[step for step in ("GN alone", "NormVary alone") if step in row.index]]
    told = ", ".join(f"{step} {gained(found)}" for step, found in there.iterrows())
    if len(there) < 2:
        return f"One of the two steps was not run: {told or 'nor was the other'}."
    verb = "costs less" if there.difference.max() < 0 else "brings more"
    return f"{SINGLE[there.difference.idxmax()]} {verb}: {told}."
