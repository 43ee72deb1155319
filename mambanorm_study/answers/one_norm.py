"""Notebooks 03 and 04: one norm, at both sites and at one. Which type leads, and where it should
stand."""

import pandas as pd

from mambanorm.arms import Arm
from mambanorm_study.answers.words import answer, gained, label, told
from mambanorm_study.tables.run_tables import mean_sd, paired, percent, summarize

NONE = "None>SSM>None"


def type_of_norm(runs: pd.DataFrame) -> str:
    """The answer of notebook 03, for each task: the arm that leads, with no norm and chance beside
    it, its gain, and its lead over the next. `runs`: its run frame, no norm among them."""
    lines = []
    for task, here in runs.groupby("task", sort=False):
        means = summarize(here).set_index("arm").sort_values("mean", ascending=False, kind="stable")
        best, second = means.index[:2]
        none, chance = mean_sd(means.loc[NONE]), f"chance {percent(means.chance[NONE])}"
        start = f"- **{task}**: {label(best)} is ahead with {mean_sd(means.loc[best])}"
        if best == NONE:
            lines.append(f"{start}, without any norm ({chance}).")
            continue
        gain, lead = (told(paired(here, best, other).iloc[0], ": ") for other in (NONE, second))
        next_to = "" if second == NONE else f" Over the next, {label(second)}, it is {lead}."
        lines.append(f"{start} (no norm {none}, {chance}). The gain is {gain}.{next_to}")
    paper = "\nThe paper, on Breakfast (§4.2): GN→GN 68.8 % against 7.0 %."
    return answer(runs, "mean ± sd, each difference with a 95 % t-interval", [*lines, paper])


def difference(frame: pd.DataFrame) -> str:
    """Each difference of a frame of `tables.paired`, and what its interval says."""
    return "\n".join(
        f"- {label(row.a)} − {label(row.b)} on {row.task}: {told(row, ': ')}."
        for row in frame.itertuples()
    )


def before_or_after(
    runs: pd.DataFrame,
    pairs: pd.DataFrame,
    rivals: pd.DataFrame,
    sizes: pd.DataFrame,
    *,
    printed: pd.DataFrame,
) -> str:
    """The answer of notebook 04: for each task how often after is ahead, for which norm the place
    matters most, and how many others gain less by it than GN; then what a norm after the SSM does
    for the gate.

    `pairs`: after − before as `tables.paired` has it. `rivals`:
    `contrasts.difference_of_differences` of GN against the others. `sizes`: the frame of
    `diagnostics.sizes_inside`. `printed`: the paper's own differences, a column a task.
    """
    lines = []
    for task, here in pairs.groupby("task", sort=False):
        most, others = here.loc[here.difference.abs().idxmax()], rivals[rivals.task == task]
        counts = f", clearly for {(here.low > 0).sum()}, clearly behind for {(here.high < 0).sum()}"
        lines.append(
            f"- **{task}**: after is ahead for {(here.difference > 0).sum()} of {len(here)} norms"
            f"{counts if most.n > 1 else ''}. The place matters most for {Arm.parse(most.a).n2} ({gained(most)}, after "
            f"− before). GN's gain is larger than that of {(others.difference > 0).sum()} of the other {len(others)}."
        )
    factors = sizes.index.get_level_values("factor")
    least, largest = factors.min(), factors.max()
    after, before = (
        sizes.z[arm, largest] / sizes.z[arm, least] for arm in ("None>SSM>RMSN", "RMSN>SSM>None")
    )
    does = "does nothing for the gate" if after > 2 else "holds the gate's input too"
    lines.append(
        f"- An input {largest / least:g} times as large multiplies the gate's input by {after:.3g} where RMSN stands "
        f"after the SSM, and by {before:.3g} where it stands before. So a norm after the SSM {does}."
    )
    theirs = ", ".join(
        f"{(column > 0).sum()} of {len(column)} on {task}" for task, column in printed.items()
    )
    lines.append(f"- The paper's own Table 1: after is ahead for {theirs}.")
    return answer(runs, "after − before, 95 % t-intervals", lines)
