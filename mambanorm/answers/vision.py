"""Notebook 09: the same norms on images. Which pair leads, before or after, LN or GN, and what the proposal brings."""

from collections.abc import Sequence

import pandas as pd

from mambanorm.answers.words import answer, clearly, gained, label, listed, numbered, over_seeds
from mambanorm.basics.text import plural
from mambanorm.study.tables import mean_sd, paired, pairs_only, sketch_note, summarize

NORMS = ("BN", "IN", "LN", "RMSN", "GN")
NONE, ORIGINAL = "None>SSM>None", "LN>SSM>LN"
LAST = (
    "- The paper, ImageNet-100: no norm 10.7 %, LN→LN 86.6 % (§4.2), after ahead for 4 of 5 norms (Table 1).\n"
    "- Compare the sequences: best pair and best N₂ in notebook 05. Notebook 12 has the verdicts on images."
)


def does_it_hold(runs: pd.DataFrame, grid: pd.DataFrame, steps: pd.DataFrame) -> str:
    """For each task: the best pair, the place, the norm after the SSM, the proposal. `grid`: the runs of the 6×6 grid.
    `steps`: `tables.paired_steps` of the proposal taken apart."""
    lines = []
    for task, here in runs.groupby("task", sort=False):
        table, moves = grid[grid.task == task], steps[steps.task == task].set_index("step")
        means = summarize(table).set_index("arm")
        best = means["mean"].idxmax()
        order = ", ".join(f"{n2} {mean:.1f} %" for n2, mean in by_n2(table).mean().sort_values(ascending=False).items())
        said = {step: f"{gained(row)}, {clearly(row)}" for step, row in moves.iterrows()}
        of_task = (
            f"- **{task}**: no norm {mean_sd(means.loc[NONE])}, the original LN→LN {mean_sd(means.loc[ORIGINAL])}; the "
            f"best pair of the grid is {label(best)} with {mean_sd(means.loc[best])}.",
            f"- **The place**: after is ahead of before for {place_counts(here)}. {sketch_note([here.seed.nunique()])}",
            f"- **The norm after the SSM**, mean over the four others before it: {order}. LN, the paper's choice, "
            f"minus GN: {_ln_minus_gn(table)}. {sketch_note([table.seed.nunique()])}",
            f"- **The proposal**, NormVary→LN against LN→LN, {plural(int(moves.n.max()), 'seed')}: {said['proposal']}. "
            f"Mixing gives {said['by mixing']}. Learning the mixture gives {said['by learning']}. "
            f"{sketch_note(moves.n)}",
        )
        lines += map(str.rstrip, of_task)
    return answer(runs, "mean ± sd, differences with 95 % t-interval", [*lines, LAST])


def place_counts(frame: pd.DataFrame) -> str:
    """ "2 of 5 norms (interval above zero: 0, below: 1)": for how many norms after is ahead of before, of one task."""
    found = pd.concat([paired(frame, f"None>SSM>{n}", f"{n}>SSM>None") for n in NORMS])
    clear = f"interval above zero: {(found.low > 0).sum()}, below: {(found.high < 0).sum()}"
    return f"{(found.difference > 0).sum()} of {len(found)} norms ({clear})"


def by_n2(grid: pd.DataFrame) -> pd.DataFrame:
    """Accuracy in per cent by task and seed (rows) and N₂ (columns), a mean over the other four norms before it."""
    pairs = pairs_only(grid)
    mixed = pairs[pairs.n1.isin(NORMS) & pairs.n2.isin(NORMS) & (pairs.n1 != pairs.n2)]
    return 100 * mixed.pivot_table(index=["task", "seed"], columns="n2", values="test_accuracy")


def _ln_minus_gn(frame: pd.DataFrame) -> str:
    row = over_seeds((table := by_n2(frame)).LN - table.GN)
    return f"{gained(row)}, {clearly(row)}"


def guesses_on_images(grid: pd.DataFrame) -> str:
    """The three guesses of notebook 09, task by task: no norm against LN→LN, after against before, and LN against GN
    after the SSM."""
    texts = []
    for task, here in grid.groupby("task", sort=False):
        apart = paired(here, ORIGINAL, NONE).iloc[0]
        lines = [f"LN→LN minus no norm: {gained(apart)}, {clearly(apart)}."]
        lines += [f"After is ahead of before for {place_counts(here)}."]
        lines += [f"LN minus GN after the SSM: {_ln_minus_gn(here)}."]
        texts.append(f"**{task}**\n\n{numbered(lines)}")
    return "\n\n".join(texts)


def ranks_of(images: pd.DataFrame, sequences: pd.DataFrame) -> pd.DataFrame:
    """One row an arm that both run frames have: its mean accuracy as `image` and as `sequence` (fractions) and its rank
    in each (1 = best), the best image arms first."""
    both = {
        name: frame.groupby("arm").test_accuracy.mean() for name, frame in zip(KINDS, (images, sequences), strict=True)
    }
    table = pd.DataFrame(both).dropna()
    ranks = table.rank(ascending=False).add_suffix(" rank")
    return table.join(ranks).sort_values("image", ascending=False)


KINDS = ("image", "sequence")


def does_rank_carry_over(ranks: pd.DataFrame, first: int = 5) -> str:
    """Spearman's correlation of the two orders, and which of the first arms they share. `ranks`: of `ranks_of`."""
    rho = ranks["image rank"].corr(ranks["sequence rank"])  # Pearson's of the ranks is Spearman's of the means
    top = [set(ranks[f"{kind} rank"].nsmallest(first).index) for kind in KINDS]
    shared = listed(label(arm) for arm in ranks.index if arm in top[0] & top[1])
    return (
        f"Over {len(ranks)} arms the ranks correlate with ρ = {rho:+.2f} (Spearman; 1 = the same order, 0 = none). Of "
        f"the first {first} arms of either order both have: {shared}."
    ).replace("-", "−")


def with_and_without(runs: pd.DataFrame, changed: pd.DataFrame, what: str, arms: Sequence[str]) -> pd.DataFrame:
    """Mean accuracy in per cent of these arms as they are and with a change, over the seeds that both frames have."""
    seeds = set(runs.seed) & set(changed.seed)
    frames = {"as it is": runs, what: changed}
    means = {
        name: 100 * frame[frame.arm.isin(arms) & frame.seed.isin(seeds)].groupby("arm").test_accuracy.mean()
        for name, frame in frames.items()
    }
    table = pd.DataFrame(means).reindex(list(arms)).assign(seeds=len(seeds))
    return table.set_index(table.index.map(label))
