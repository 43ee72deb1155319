"""Notebook 09: the same norms on images. Which pair leads, before or after, LN or GN, and what the proposal brings."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from mambanorm.answers.words import answer, gained, label, listed, numbered
from mambanorm.study.intervals import t_interval
from mambanorm.study.tables import (
    interval_says,
    mean_sd,
    paired,
    pairs_only,
    points,
    recorded_too,
    sketch_note,
    summarize,
)

NORMS = ("BN", "IN", "LN", "RMSN", "GN")
NONE, ORIGINAL = "None>SSM>None", "LN>SSM>LN"
LAST = (
    "- The paper, ImageNet-100: no norm 10.7 %, LN→LN 86.6 % (§4.2), after ahead for 4 of 5 norms (Table 1).\n"
    "- Compare the sequences: best pair and best N₂ in notebook 05. Tuned arms, eight seeds: the claims about images "
    "in notebook 12."
)


def does_it_hold(
    runs: pd.DataFrame, grid: pd.DataFrame, steps: pd.DataFrame, *, recorded: pd.DataFrame, trained: pd.DataFrame
) -> str:
    """For each task: the best pair, the place, the norm after the SSM, the proposal; then models trained to the end.

    `grid`: the runs of the 6×6 grid. `steps`: `tables.paired_steps` of the proposal taken apart. `recorded`: run frame
    of more seeds to stand beside, `trained`: recorded runs of trained models; either may be empty.
    """
    lines = []
    for task, here in runs.groupby("task", sort=False):
        more, moves = recorded[recorded.task == task], steps[steps.task == task].set_index("step")
        table = grid[grid.task == task]
        lines += [_best(task, table), _place(here, more), _after(table, more), _proposal(moves, recorded)]
    lines += [
        f"- **{task}, trained to the end**: after is ahead of before for {place_counts(here)}."
        for task, here in trained.groupby("task", sort=False)
    ]
    return answer(runs, "mean ± sd, differences with 95 % t-interval", [*lines, LAST])


def _best(task: str, grid: pd.DataFrame) -> str:
    means = summarize(grid).set_index("arm")
    best = means["mean"].idxmax()
    return (
        f"- **{task}**: no norm {mean_sd(means.loc[NONE])}, the original LN→LN {mean_sd(means.loc[ORIGINAL])}; the "
        f"best pair of the grid is {label(best)} with {mean_sd(means.loc[best])}."
    )


def _place(here: pd.DataFrame, more: pd.DataFrame) -> str:
    text = f"- **The place**: after is ahead of before for {place_counts(here)}{_beside(place_counts, more)}."
    return f"{text} {sketch_note([here.seed.nunique()])}".rstrip()


def _after(grid: pd.DataFrame, more: pd.DataFrame) -> str:
    means = by_n2(grid).mean().sort_values(ascending=False)
    order = ", ".join(f"{n2} {mean:.1f} %" for n2, mean in means.items())
    text = (
        f"- **The norm after the SSM**, mean over the four others before it: {order}. LN, the paper's choice, minus "
        f"GN: {_ln_minus_gn(grid)}{_beside(_ln_minus_gn, more)}."
    )
    return f"{text} {sketch_note([grid.seed.nunique()])}".rstrip()


def _proposal(moves: pd.DataFrame, recorded: pd.DataFrame) -> str:
    said = {step: f"{gained(row)}{recorded_too(row, recorded)}" for step, row in moves.iterrows()}
    text = (
        f"- **The proposal**, NormVary→LN against LN→LN: {said['proposal']}; mixing gives {said['by mixing']}, "
        f"learning the mixture {said['by learning']}."
    )
    return f"{text} {sketch_note(moves.n)}".rstrip()


def _beside(tell, more: pd.DataFrame) -> str:
    """What more recorded seeds say of the same; "" without any."""
    return f"; {more.seed.nunique()} recorded seeds: {tell(more)}" if len(more) else ""


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
    gap = _gap(frame)
    return points(gap.mean(), *t_interval(gap))


def _gap(frame: pd.DataFrame) -> pd.Series:
    table = by_n2(frame)
    return table.LN - table.GN


def guesses_on_images(grid: pd.DataFrame) -> str:
    """The three guesses of notebook 09, task by task: no norm against LN→LN, after against before, and LN against GN
    after the SSM."""
    texts = []
    for task, here in grid.groupby("task", sort=False):
        apart, gap = paired(here, ORIGINAL, NONE).iloc[0], _gap(here)
        lines = [f"LN→LN minus no norm: {gained(apart)}, {interval_says(apart.low, apart.high)}."]
        lines += [f"After is ahead of before for {place_counts(here)}."]
        lines += [f"LN minus GN after the SSM: {_ln_minus_gn(here)}, {interval_says(*t_interval(gap))}."]
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
