"""Notebooks 03 and 04: one norm. Which type leads, and does it belong before or after the SSM?"""

import pandas as pd

from mambanorm.arms import Arm
from mambanorm_study.answers.phrases import answer_text, difference_text, judged_difference
from mambanorm_study.tables.run_tables import label, mean_sd, paired, percent, summarize

NONE = "None>SSM>None"


def type_of_norm(runs: pd.DataFrame) -> str:
    """Return the answer of notebook 03: for each task the leading arm, its gain, and its lead.

    The gain is over no norm, the lead over the next arm. runs: a run frame that holds no norm, too.
    """
    lines = []
    for task, of_task in runs.groupby("task", sort=False):
        means = summarize(of_task).set_index("arm")
        means = means.sort_values("mean", ascending=False, kind="stable")
        best, second = means.index[:2]
        none, chance = mean_sd(means.loc[NONE]), f"chance {percent(means.chance[NONE])}"
        start = f"- **{task}**: {label(best)} is ahead with {mean_sd(means.loc[best])}"
        if best == NONE:
            lines.append(f"{start}, without any norm ({chance}).")
            continue
        gain = judged_difference(paired(of_task, best, NONE).iloc[0], ": ")
        line = f"{start} (no norm {none}, {chance}). The gain is {gain}."
        if second != NONE:
            lead = judged_difference(paired(of_task, best, second).iloc[0], ": ")
            line += f" Over the next, {label(second)}, it is {lead}."
        lines.append(line)
    return answer_text(
        runs,
        "mean ± sd, each difference with a 95 % t-interval",
        [*lines, "\nThe paper, on Breakfast (§4.2): GN→GN 68.8 % against 7.0 %."],
    )


def difference(frame: pd.DataFrame) -> str:
    """Return each difference of a frame of `tables.paired`, and what its interval says."""
    return "\n".join(
        f"- {label(row.a)} − {label(row.b)} on {row.task}: {judged_difference(row, ': ')}."
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
    """Return the answer of notebook 04: for each task how often after is ahead, and the gate.

    It names the norm whose place matters most, and counts the norms that gain less than GN. pairs:
    after − before, rows of `tables.paired`. rivals: `run_tables.paired_steps` of GN
    against the others. sizes: `inside.sizes_inside`. printed: the paper's differences, one column a
    task.
    """
    lines = []
    for task, rows in pairs.groupby("task", sort=False):
        most, against = rows.loc[rows.difference.abs().idxmax()], rivals[rivals.task == task]
        counts = ""
        if most.n > 1:
            above, below = (rows.low > 0).sum(), (rows.high < 0).sum()
            counts = f", clearly for {above}, clearly behind for {below}"
        lines.append(
            f"- **{task}**: after is ahead for {(rows.difference > 0).sum()} of {len(rows)} norms"
            f"{counts}. The place matters most for {Arm.parse(most.a).n2} "
            f"({difference_text(most)}, after − before). GN's gain is larger than that of "
            f"{(against.difference > 0).sum()} of the other {len(against)}."
        )
    lines.append(_gate_line(sizes))
    counts = [
        f"{(column > 0).sum()} of {len(column)} on {task}" for task, column in printed.items()
    ]
    lines.append(f"- The paper's own Table 1: after is ahead for {', '.join(counts)}.")
    return answer_text(runs, "after − before, 95 % t-intervals", lines)


def _gate_line(sizes: pd.DataFrame) -> str:
    factors = sizes.index.get_level_values("factor")
    least, largest = factors.min(), factors.max()
    growth = sizes.z.xs(largest, level="factor") / sizes.z.xs(least, level="factor")
    after, before = growth["None>SSM>RMSN"], growth["RMSN>SSM>None"]
    does = "does nothing for the gate" if after > 2 else "holds the gate's input too"
    return (
        f"- An input {largest / least:g} times as large multiplies the gate's input by {after:.3g} "
        f"where RMSN stands after the SSM, and by {before:.3g} where it stands before. So a norm "
        f"after the SSM {does}."
    )
