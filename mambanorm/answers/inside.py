"""Notebooks 07 and 14: what grows inside a model, how a run without norms ends, and which treatment keeps one finite.

ends, the frame that the answers of 14 read: one row a treatment and seed: treatment, seed, failed, step (how many were
made), bits (validation, a character; NaN where the run failed).
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from mambanorm.answers.words import label, listed, numbered
from mambanorm.diagnostics import FLAT
from mambanorm.study.inside import first_to_last
from mambanorm.study.tables import describe_frame, markdown_table, percent, seeds_text
from mambanorm.training.result import RunResult

NONE = "None→None"
PAPER = "The paper: exponential growth without norms, none with a norm after; the variance rises, most in deep layers."


def hidden_growth(table: pd.DataFrame, at_most: int = 5) -> str:
    """Where the largest token rises while the median is flat. `table`: `inside.residual_growth`, both modes."""
    rise = 8 * (table.largest_last - table.largest_first) / (table.n_layers - 1)
    risen = (table.law == "flat") & (rise > FLAT)
    hidden = table[risen].assign(rise=rise[risen])
    steepest = hidden.sort_values("rise", ascending=False).head(at_most)
    ends = zip(first_to_last(steepest, "largest"), first_to_last(steepest, "median"), strict=True)
    said = [
        f"- {row.arm}, {row.mode} mode ({row.task}, {row.n_layers} blocks, {row.phase}): {largest}, the median {median}"
        for row, (largest, median) in zip(steepest.itertuples(), ends, strict=True)
    ]
    told = " The steepest, as log₁₀ of the norm in the first → last block:" if said else ""
    head = f"In {len(hidden)} of {len(table)} cases the median is flat and the **largest token rises**.{told}"
    return "\n".join([head, "", *said])


def have_learned(scores: pd.DataFrame, word: str) -> str:
    """How many of a few models beat chance, and what they are called. `scores`: `inside.scores`."""
    first, lowest = scores.iloc[0], scores.loc[scores.low.idxmin()]
    return (
        f"{first.task}, {first.blocks} blocks, {first.steps} steps: {scores.beats_chance.sum()} of {len(scores)} "
        f"models beat chance ({percent(scores.chance.mean())}), mean {percent(scores.test_accuracy.mean())}, lowest "
        f"interval {100 * lowest.low:.1f} to {100 * lowest.high:.1f} %, n = {first.n} test rows each. They are called "
        f"**{word}** below."
    )


def its_end(run: RunResult) -> str:
    """How a run ended: "went non-finite at step 9 of 40, first at `…`", or that it did not fail."""
    if run.status == "diverged":
        return f"went non-finite at step {run.steps + 1} of {run.config.steps}, first at `{run.first_nonfinite_site}`"
    return f"did **not** fail in its {run.steps} steps here"


# the guesses


def guesses_on_growth(
    untrained: pd.DataFrame, trained: pd.DataFrame, turned: pd.DataFrame, growing: pd.DataFrame
) -> str:
    """The three guesses of notebook 07: growth without norms before training, after it and with larger weights, and
    whether a norm after the SSM is enough. The first three frames: `inside.residual_growth`; growing: recorded runs."""
    none = [
        [row for row in table.itertuples() if row.arm == NONE and row.mode == "train"]
        for table in (untrained, trained, turned)
    ]
    after = "; ".join(f"{_factor(row)} ({row.task}, {row.n_layers} blocks, {row.phase})" for row in none[1])
    deep = grown_said(growing[growing.arm == "None>SSM>None"])
    one_side = {"before": [], "after": []}
    for row in turned[turned["mode"] == "train"].itertuples():
        before, behind = (norm != "None" for norm in row.arm.split("→"))
        if before != behind:
            grows = f"{row.decades_per_8:+.2f} decades in 8 blocks ({_factor(row)})".replace("-", "−")
            one_side["before" if before else "after"].append(f"{row.arm} {row.law if _explodes(row) else grows}")
    said = "; ".join(f"a norm only {place}: {listed(rows)}" for place, rows in one_side.items() if rows)
    return numbered(
        [
            f"Without norms and untrained, from the first block to the last: {_factor(none[0][0])}.",
            f"After training: {after}. Recorded, eight blocks, decades of the largest token in 8 blocks at the "
            f"last finite step: {deep}. With larger weights: {_factor(none[2][0])}.",
            f"With the larger weights, {said}.",
        ]
    )


def _explodes(row) -> bool:
    return row.law.startswith("explodes")


def _factor(row) -> str:
    """ "the median token × 1.1, the largest × 2.3" """
    if not np.isfinite([row.median_last, row.largest_last]).all():
        return f"the model {row.law}" if _explodes(row) else "the largest token is not finite"
    median, largest = 10 ** (row.median_last - row.median_first), 10 ** (row.largest_last - row.largest_first)
    return f"the median token × {median:.3g}, the largest × {largest:.3g}"


def how_the_gains_differ(grown: Mapping[float, pd.DataFrame]) -> str:
    """At which gain each arm stays flat, grows or explodes. `grown`: gain → `inside.residual_growth`; train mode."""
    gains = sorted(grown)
    laws = {gain: grown[gain][grown[gain]["mode"] == "train"].set_index("arm").law for gain in gains}
    rows = {arm: [laws[gain].get(arm, "–") for gain in gains] for arm in dict.fromkeys(laws[gains[0]].index)}
    table = pd.DataFrame(rows, index=[f"weights × {gain:g}" for gain in gains]).T
    explodes = [gain for gain in gains if str(laws[gain].get(NONE, "")).startswith("explodes")]
    first = f"at × {explodes[0]:g}" if explodes else "at none of these gains"
    flat = {arm: max((g for g in gains if laws[g].get(arm) == "flat"), default=0.0) for arm in rows}
    most = max(flat.values())
    last = listed(arm for arm, gain in flat.items() if gain == most) if most else "none of them"
    return f"{markdown_table(table)}\n\nWithout norms the model explodes {first}. Flat for longest: {last}."


# the answer


def growth_in_short(columns: Mapping[str, pd.DataFrame], arms: Sequence[str]) -> pd.DataFrame:
    """By arm and model: decades of the median token in 8 blocks, or that it explodes; then the largest token, first →
    last block. `columns`: name → `inside.residual_growth`; train mode."""
    short = {}
    for name, table in columns.items():
        table = table[table["mode"] == "train"]
        slopes = table.decades_per_8.round(2).add(0.0).map("{:+.2f}".format)  # no −0.00
        median = slopes.where(~table.law.str.startswith("explodes"), table.law)
        ends = first_to_last(table, "largest")
        short[name] = pd.Series([f"{m}; {e}" for m, e in zip(median, ends, strict=True)], table.arm)
    return pd.DataFrame(short).reindex(arms).fillna("not run")


def why_it_works(table: pd.DataFrame, later: str, end: str, spectra: str) -> str:
    """The answer of notebook 07: growth by arm (`growth_in_short`), recorded models (`in_models_that_train`), how one
    of them ended here (`its_end`) and its singular values (`how_spectra_moved`)."""
    lines = [
        "**Answer**. Growth of the residual stream in train mode, one seed: decades per 8 blocks of the median token; "
        "log₁₀ of the largest token's norm, first → last block.",
        markdown_table(table),
        later,
        f"One of those without norms, trained here once more, {end}. {spectra}",
        PAPER,
    ]
    return "\n\n".join(lines)


def how_spectra_moved(sigma: Mapping[str, np.ndarray], spread: pd.DataFrame) -> str:
    """How the variance of the singular values within and between layers changed from half way to the end, how σ₁ did,
    and where the control RMSN→None stands at that step. `sigma`: phase → (layers, k), the last phase last; `spread`:
    its variances and the control's, one row each."""
    phases = list(sigma)
    rise = sigma[phases[-1]][:, 0] / sigma["normal"][:, 0]
    before, last, control = spread.loc["normal"], spread.loc[phases[-1]], spread.loc["RMSN→None"]
    quarter, changed = max(len(rise) // 4, 1), last / before
    return (
        f"From half way to its end the variance of its singular values changed by × {changed['within']:.2f} within and "
        f"× {changed['between']:.2f} between layers; σ₁ by × {rise[:quarter].mean():.2f} in the "
        f"first quarter of the blocks and × {rise[-quarter:].mean():.2f} in the deepest. At about the same step the "
        f"control RMSN→None had × {control['within'] / last['within']:.2f} of that variance within and "
        f"× {control['between'] / last['between']:.2f} of it between layers."
    )


def in_models_that_train(hot: pd.DataFrame, growing: pd.DataFrame) -> str:
    """Of recorded runs: how often they ended non-finite without norms and with RMSN on both sides, and how the largest
    token grew in Figure 9's arms."""
    failed = {arm: hot[hot.arm == arm] for arm in ("None>SSM>None", "RMSN>SSM>RMSN")}
    failures = ", ".join(
        f"{label(arm)} {(runs.status == 'diverged').sum()} of {len(runs)}" for arm, runs in failed.items() if len(runs)
    )
    return (
        f"Recorded models of eight blocks ({describe_frame(hot, 'all runs')}), at lr {hot.lr.iloc[0]:g}: ended "
        f"non-finite: {failures}. Growth of the largest token over the blocks at the last finite step, decades in 8 "
        f"blocks: {grown_said(growing)}."
    )


def grown_said(runs: pd.DataFrame) -> str:
    """Decades that the largest token grows in 8 blocks, arm by arm: "None→None 6.7 ± 2.1"."""
    of = [(label(arm), mine.growth.dropna()) for arm, mine in runs.groupby("arm", sort=False)]
    return ", ".join(f"{arm} {g.mean():.1f} ± {g.std():.1f}" for arm, g in of if len(g)) or "none was recorded"


# 14: what cures


def guesses_on_cures(where: str, seat: str, largest: float, limit: float, ends: pd.DataFrame) -> str:
    """The three guesses of notebook 14: what leaves the range first, what keeps every seed finite, what learns most.

    where: the first place that is not finite; seat: the last finite one, its largest magnitude, and the limit of the
    type that was left.
    """
    table = how_they_ended(ends)
    well = table[table.failed == 0]
    last = f" Just before it `{seat}` is finite, its largest magnitude {largest:,.0f}; the type ends at {limit:,.0f}."
    best = f"{well.bits.idxmin()}, {well.bits.min():.2f} bits a character" if len(well) else "none"
    return numbered(
        [
            f"First not finite: `{where}`.{last}",
            f"Finite in every seed: {listed(well.index)}. Not in every seed: {listed(table.index[table.failed > 0])}.",
            f"Of what is finite in every seed the lowest validation loss has: {best}.",
        ]
    )


def how_they_ended(ends: pd.DataFrame) -> pd.DataFrame:
    """One row a treatment: seeds, failed (how many), fewest steps (made), bits and sd (mean and standard deviation
    over the seeds that did not fail)."""
    by = ends.groupby("treatment", sort=False)
    facts = dict(seeds=by.seed.nunique(), failed=by.failed.sum(), bits=by.bits.mean())
    return pd.DataFrame(facts | {"sd": by.bits.std(), "fewest steps": by.step.min()})


def what_cures(ends: pd.DataFrame, scale: str, unigram: float) -> str:
    """The answer: how each treatment ended, and which of the finite ones learned more than the characters' shares.

    unigram: bits a character of a model that knows only how common each is.
    """
    table = how_they_ended(ends)
    lines = []
    for name, row in table.iterrows():
        left = "" if row.failed == row.seeds else f"; the others reach {_bits(row)}"
        how = f"fail, the first after {row['fewest steps']:.0f} steps{left}" if row.failed else f"fail, {_bits(row)}"
        lines.append(f"- **{name}**: {row.failed:.0f} of {row.seeds:.0f} {how}.")
    well = table[table.failed == 0]
    idle = list(well.index[well.bits >= unigram])
    shares = f"the {unigram:.2f} bits of a model that knows only how common each character is"
    told = f"- Finite is not learned: {listed(idle)} does not get below {shares}."
    if not idle:
        told = f"- What stays finite in every seed gets below {shares}: {listed(well.index)}."
    head = f"**Answer** ({scale} scale, {seeds_text(table.seeds)}; validation bits a character, mean ± sd)."
    return "\n".join([head, "", *lines, told])


def _bits(row: pd.Series) -> str:
    return f"{row.bits:.2f} bits" + (f" ± {row.sd:.2f}" if row.sd == row.sd else "")
