"""Notebook 09: the same norms on images. Do the leading pair, place and norm still lead?"""

import pandas as pd

from mambanorm_study.answers.phrases import answer_text, judged_difference, mean_difference
from mambanorm_study.basics.text import plural
from mambanorm_study.tables.run_tables import (
    label,
    mean_sd,
    paired,
    pairs_only,
    sketch_note,
    summarize,
)

NORMS = ("BN", "IN", "LN", "RMSN", "GN")
NONE, ORIGINAL = "None>SSM>None", "LN>SSM>LN"
LAST = (
    "- The paper, ImageNet-100: no norm 10.7 %, LN→LN 86.6 % (§4.2), after ahead for 4 of 5 norms "
    "(Table 1).\n"
    "- Compare the sequences: best pair and best N₂ in notebook 05. Notebook 12 has the verdicts "
    "on images."
)


def does_it_hold(runs: pd.DataFrame, grid: pd.DataFrame, steps: pd.DataFrame) -> str:
    """Return the answer of notebook 09: for each task the best pair, the place, N2, the proposal.

    grid: the runs of the 6×6 grid. steps: `tables.paired_steps` of the proposal taken apart.
    """
    lines = []
    for task, of_task in runs.groupby("task", sort=False):
        table, moves = grid[grid.task == task], steps[steps.task == task].set_index("step")
        means = summarize(table).set_index("arm")
        best = means["mean"].idxmax()
        none, original, leader = (mean_sd(means.loc[arm]) for arm in (NONE, ORIGINAL, best))
        n2s = by_n2(table)
        order = [f"{n2} {x:.1f} %" for n2, x in n2s.mean().sort_values(ascending=False).items()]
        says = {step: judged_difference(row) for step, row in moves.iterrows()}
        of_lines = [
            f"- **{task}**: no norm {none}, the original LN→LN {original} (difference "
            f"{judged_difference(paired(table, ORIGINAL, NONE).iloc[0])}); the best pair of the "
            f"grid is {label(best)} with {leader}.",
            f"- **The place**: after is ahead of before for {place_counts(of_task)}. "
            f"{sketch_note([of_task.seed.nunique()])}",
            "- **The norm after the SSM**, mean over the four others before it: "
            f"{', '.join(order)}. LN, the paper's choice, minus GN: "
            f"{judged_difference(mean_difference(n2s.LN - n2s.GN))}. "
            f"{sketch_note([table.seed.nunique()])}",
            "- **The proposal**, NormVary→LN against LN→LN, "
            f"{plural(int(moves.n.max()), 'seed')}: {says['proposal']}. Mixing gives "
            f"{says['by mixing']}. Learning the mixture gives {says['by learning']}. "
            f"{sketch_note(moves.n)}",
        ]
        lines += [line.rstrip() for line in of_lines]
    return answer_text(runs, "mean ± sd, differences with 95 % t-interval", [*lines, LAST])


def place_counts(frame: pd.DataFrame) -> str:
    """Return for how many norms after is ahead of before on one task.

    The text is "2 of 5 norms (interval above zero: 0, below: 1)".
    """
    rows = pd.concat([paired(frame, f"None>SSM>{n}", f"{n}>SSM>None") for n in NORMS])
    clear = f"interval above zero: {(rows.low > 0).sum()}, below: {(rows.high < 0).sum()}"
    return f"{(rows.difference > 0).sum()} of {len(rows)} norms ({clear})"


def by_n2(grid: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracy in per cent by task and seed (rows) and N₂ (columns).

    It is a mean over the other four norms before the SSM.
    """
    pairs = pairs_only(grid)
    mixed = pairs[pairs.n1.isin(NORMS) & pairs.n2.isin(NORMS) & (pairs.n1 != pairs.n2)]
    return 100 * mixed.pivot_table(index=["task", "seed"], columns="n2", values="test_accuracy")
