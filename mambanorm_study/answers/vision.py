"""Notebook 09: images. Do the pair, site and norm that lead on sequences lead on images too?"""

import pandas as pd

from mambanorm_study.answers.phrases import answer_text, judged_difference, mean_difference
from mambanorm_study.basics.text import plural
from mambanorm_study.tables.run_tables import (
    label,
    mean_sd,
    paired,
    pairs_only,
    summarize,
)

NORMS = ("BN", "IN", "LN", "RMSN", "GN")
NONE, ORIGINAL = "None>SSM>None", "LN>SSM>LN"


def answer_on_images(runs: pd.DataFrame, grid: pd.DataFrame, steps: pd.DataFrame) -> str:
    """Return the answer of notebook 09: for each task the best pair, for how many norms the
    accuracy is higher after than before the SSM, the accuracy by norm after the SSM, and the gain
    of the proposed arm NormVary→LN over LN→LN.

    grid: the runs of the 6×6 grid of norms before and after the SSM. steps: the frame of
    `run_tables.paired_steps` for the step from LN→LN to NormVary→LN and for its parts.
    """
    lines = []
    for task, of_task in runs.groupby("task", sort=False):
        table, moves = grid[grid.task == task], steps[steps.task == task].set_index("step")
        means = summarize(table).set_index("arm")
        best, n2s = means["mean"].idxmax(), accuracy_by_n2(table)
        order = [f"{n2} {x:.1f} %" for n2, x in n2s.mean().sort_values(ascending=False).items()]
        gains = moves.apply(judged_difference, axis=1)
        lines += [
            f"- **{task}**: no norm {mean_sd(means.loc[NONE])}, the original LN→LN "
            f"{mean_sd(means.loc[ORIGINAL])} (difference "
            f"{judged_difference(paired(table, ORIGINAL, NONE).iloc[0])}); the best pair of the "
            f"grid is {label(best)} with {mean_sd(means.loc[best])}.",
            f"- **Before or after**: after the SSM is ahead for {site_counts(of_task)}.",
            "- **The norm after the SSM**, mean over the same five norms before it: "
            f"{', '.join(order)}. LN, the paper's choice, minus GN: "
            f"{judged_difference(mean_difference(n2s.LN - n2s.GN))}.",
            "- **The proposal**, NormVary→LN against LN→LN, "
            f"{plural(int(moves.n.max()), 'seed')}: {gains['proposal']}. Mixing gains "
            f"{gains['by mixing']}. Learning the mixture gains {gains['by learning']}.",
        ]
    lines += [
        "- The paper, ImageNet-100: no norm 10.7 %, LN→LN 86.6 % (§4.2); after the SSM is ahead "
        "for 4 of 5 norms (Table 1).",
        "- For sequences, notebook 05 has the best pair and the best N₂. Notebook 12 has the "
        "verdicts on images.",
    ]
    return answer_text(runs, "mean ± sd, differences with 95 % t-interval", lines)


def site_counts(frame: pd.DataFrame) -> str:
    """Return for how many norms the mean accuracy on one task is higher with the norm after the SSM
    than with the norm before it, as text: "2 of 5 norms (interval above zero: 0, below: 1)".

    frame: the runs of one task.
    """
    rows = pd.concat([paired(frame, f"None>SSM>{n}", f"{n}>SSM>None") for n in NORMS])
    clear = f"interval above zero: {(rows.low > 0).sum()}, below: {(rows.high < 0).sum()}"
    return f"{(rows.difference > 0).sum()} of {len(rows)} norms ({clear})"


def accuracy_by_n2(grid: pd.DataFrame) -> pd.DataFrame:
    """Return the test accuracy in per cent of the arms N1→N2, averaged over the same five norms N1
    for each N2: one row per task and seed, one column per N2. A seed that lacks an arm is left out.
    """
    pairs = pairs_only(grid).query("n1 in @NORMS and n2 in @NORMS")
    by_arm = pairs.pivot_table(
        index=["task", "seed"], columns=["n2", "n1"], values="test_accuracy"
    ).dropna()
    return 100 * by_arm.T.groupby("n2").mean().T
