"""Notebooks 03 and 04: models with one type of norm. Which type leads, and is a norm better before
or after the SSM?

An arm says which norms stand before and after the SSM: RMSN>SSM>GN, or RMSN→GN for short.
"""

import pandas as pd

from mambanorm.arms import Arm
from mambanorm_study.answers.phrases import answer_text, difference_text, judged_difference
from mambanorm_study.tables.run_tables import label, mean_sd, paired, percent, summarize

NONE = "None>SSM>None"


def type_of_norm(runs: pd.DataFrame) -> str:
    """Return the answer of notebook 03: for each task the arm with the highest mean accuracy, and
    the lead of this arm over the arm without norms and over the second-best arm.

    runs: a run frame that includes the arm without norms.
    """
    lines = []
    for task, of_task in runs.groupby("task", sort=False):
        means = summarize(of_task).set_index("arm")
        means = means.sort_values("mean", ascending=False, kind="stable")
        best, second = means.index[:2]
        line = (
            f"- **{task}**: {label(best)} is ahead with {mean_sd(means.loc[best])} (no norm "
            f"{mean_sd(means.loc[NONE])}, chance {percent(means.chance[NONE])})."
        )
        for rival in dict.fromkeys([NONE, second]):
            if rival != best:
                lead = paired(of_task, best, rival).iloc[0]
                line += f" Lead over {label(rival)}: {judged_difference(lead)}."
        lines.append(line)
    return answer_text(
        runs,
        "mean ± sd, each difference with a 95 % t-interval",
        [*lines, "\nThe paper, on Breakfast (§4.2): GN→GN 68.8 % against 7.0 %."],
    )


def before_or_after(
    runs: pd.DataFrame,
    pairs: pd.DataFrame,
    rivals: pd.DataFrame,
    sizes: pd.DataFrame,
    *,
    printed: pd.DataFrame,
) -> str:
    """Return the answer of notebook 04. For each task: for how many norms the accuracy is higher
    with the norm after the SSM than with the norm before it, which norm has the largest difference
    after − before, and for how many other norms this difference is smaller than for GN. For one
    block: whether a norm after the SSM bounds the gate's input.

    pairs: rows of `run_tables.paired` with the difference after − before of each norm. rivals: rows
    of `run_tables.paired_steps`, GN's difference after − before minus that of each other norm.
    sizes: the frame of `diagnostics.rms_inside_block`. printed: the paper's differences after −
    before, one row per norm and one column per task.
    """
    lines = []
    for task, rows in pairs.groupby("task", sort=False):
        largest, gn_leads = rows.loc[rows.difference.abs().idxmax()], rivals[rivals.task == task]
        lines.append(
            f"- **{task}**: after is ahead for {(rows.difference > 0).sum()} of {len(rows)} norms, "
            f"clearly for {(rows.low > 0).sum()}, clearly behind for {(rows.high < 0).sum()}. The "
            f"largest difference is {Arm.parse(largest.a).n2}'s ({difference_text(largest)}, after "
            f"− before). GN gains more than {(gn_leads.difference > 0).sum()} of the other "
            f"{len(gn_leads)} norms."
        )
    lines.append(_gate_text(sizes))
    counts = [
        f"{(column > 0).sum()} of {len(column)} on {task}" for task, column in printed.items()
    ]
    lines.append(f"- The paper's own Table 1: after is ahead for {', '.join(counts)}.")
    return answer_text(runs, "after − before, 95 % t-intervals", lines)


def _gate_text(sizes: pd.DataFrame) -> str:
    z = sizes.z.unstack("factor")
    growth = z[z.columns.max()] / z[z.columns.min()]
    after, before = growth["None>SSM>RMSN"], growth["RMSN>SSM>None"]
    bounds = "does not bound" if after > 2 else "also bounds"
    return (
        f"- If the input is {z.columns.max() / z.columns.min():g} times larger, the gate's input "
        f"grows by a factor of {after:.3g} with RMSN after the SSM, and of {before:.3g} with RMSN "
        f"before it. So a norm after the SSM {bounds} the gate's input."
    )
