"""Notebook 09: the same norms on images. Which pair leads, before or after, LN or GN, and what the
proposal brings."""

import pandas as pd

from mambanorm_study.answers.words import answer, label, over_seeds, told
from mambanorm_study.basics.text import plural
from mambanorm_study.tables.run_tables import mean_sd, paired, pairs_only, sketch_note, summarize

NORMS = ("BN", "IN", "LN", "RMSN", "GN")
NONE, ORIGINAL = "None>SSM>None", "LN>SSM>LN"
LAST = (
    "- The paper, ImageNet-100: no norm 10.7 %, LN→LN 86.6 % (§4.2), after ahead for 4 of 5 norms (Table 1).\n"
    "- Compare the sequences: best pair and best N₂ in notebook 05. Notebook 12 has the verdicts on images."
)


def does_it_hold(runs: pd.DataFrame, grid: pd.DataFrame, steps: pd.DataFrame) -> str:
    """For each task: the best pair, the place, the norm after the SSM, the proposal. `grid`: the
    runs of the 6×6 grid. `steps`: `tables.paired_steps` of the proposal taken apart."""
    lines = []
    for task, here in runs.groupby("task", sort=False):
        table, moves = grid[grid.task == task], steps[steps.task == task].set_index("step")
        means = summarize(table).set_index("arm")
        best = means["mean"].idxmax()
        n2s = by_n2(table)
        order = ", ".join(
            f"{n2} {mean:.1f} %" for n2, mean in n2s.mean().sort_values(ascending=False).items()
        )
        said = {step: told(row) for step, row in moves.iterrows()}
        apart = told(paired(table, ORIGINAL, NONE).iloc[0])
        of_task = (
            f"- **{task}**: no norm {mean_sd(means.loc[NONE])}, the original LN→LN {mean_sd(means.loc[ORIGINAL])} "
            f"(difference {apart}); the best pair of the grid is {label(best)} with {mean_sd(means.loc[best])}.",
            f"- **The place**: after is ahead of before for {place_counts(here)}. {sketch_note([here.seed.nunique()])}",
            f"- **The norm after the SSM**, mean over the four others before it: {order}. LN, the paper's choice, "
            f"minus GN: {told(over_seeds(n2s.LN - n2s.GN))}. {sketch_note([table.seed.nunique()])}",
            f"- **The proposal**, NormVary→LN against LN→LN, {plural(int(moves.n.max()), 'seed')}: {said['proposal']}. "
            f"Mixing gives {said['by mixing']}. Learning the mixture gives {said['by learning']}. "
            f"{sketch_note(moves.n)}",
        )
        lines += map(str.rstrip, of_task)
    return answer(runs, "mean ± sd, differences with 95 % t-interval", [*lines, LAST])


def place_counts(frame: pd.DataFrame) -> str:
    """ "2 of 5 norms (interval above zero: 0, below: 1)": for how many norms after is ahead of
    before, of one task."""
    found = pd.concat([paired(frame, f"None>SSM>{n}", f"{n}>SSM>None") for n in NORMS])
    clear = f"interval above zero: {(found.low > 0).sum()}, below: {(found.high < 0).sum()}"
    return f"{(found.difference > 0).sum()} of {len(found)} norms ({clear})"


def by_n2(grid: pd.DataFrame) -> pd.DataFrame:
    """Accuracy in per cent by task and seed (rows) and N₂ (columns), a mean over the other four
    norms before it."""
    pairs = pairs_only(grid)
    mixed = pairs[pairs.n1.isin(NORMS) & pairs.n2.isin(NORMS) & (pairs.n1 != pairs.n2)]
    return 100 * mixed.pivot_table(index=["task", "seed"], columns="n2", values="test_accuracy")
