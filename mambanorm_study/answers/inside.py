"""Notebooks 07 and 14: what grows inside a model, how a run without norms ends, and which treatment
keeps one finite.

ends, the frame that the answers of 14 read: one row a treatment and seed: treatment, seed, failed,
step (how many were made), bits (validation, a character; NaN where the run failed).
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from mambanorm_study.answers.words import listed, numbered
from mambanorm_study.runs.result import RunResult
from mambanorm_study.runs.weight_log import spectrum_spread
from mambanorm_study.tables.run_tables import describe_frame, label, seeds_text

NONE = "None→None"
PAPER = "The paper: outputs grow exponentially unless a norm follows the SSM; singular values grow most in deep layers."


def its_end(run: RunResult) -> str:
    """How a run ended: "went non-finite at step 9 of 40, first at `…`", or that it did not fail."""
    if run.status == "diverged":
        return f"went non-finite at step {run.steps + 1} of {run.config.steps}, first at `{run.first_nonfinite_site}`"
    return f"did **not** fail in its {run.steps} steps here"


def guesses_on_growth(untrained: pd.DataFrame, trained: pd.DataFrame, turned: pd.DataFrame) -> str:
    """The three guesses of notebook 07: growth without norms before training, after it and with
    larger weights, and whether a norm after the SSM is enough. Frames: `diagnostics.residual_growth`."""
    none = [
        [row for row in table.itertuples() if row.arm == NONE and row.mode == "train"]
        for table in (untrained, trained, turned)
    ]
    after = "; ".join(
        f"{_factor(row)} ({row.task}, {row.n_layers} blocks, {row.phase})" for row in none[1]
    )
    one_side = {"before": [], "after": []}
    for row in turned[turned["mode"] == "train"].itertuples():
        before, behind = (norm != "None" for norm in row.arm.split("→"))
        if before != behind:
            one_side["before" if before else "after"].append(f"{row.arm} {_factor(row)}")
    said = "; ".join(
        f"a norm only {place}: {listed(rows)}" for place, rows in one_side.items() if rows
    )
    return numbered(
        [
            f"Without norms and untrained, from the first block to the last: {_factor(none[0][0])}.",
            f"After training: {after}. With larger weights: {_factor(none[2][0])}.",
            f"With larger weights, from the first block to the last: {said}.",
        ]
    )


def _factor(row) -> str:
    """ "median token × 1.1, largest × 2.3" """
    if not np.isfinite([row.median_last, row.largest_last]).all():
        return row.law if row.law.startswith("explodes") else "the largest token is not finite"
    rises = (row.median_last - row.median_first, row.largest_last - row.largest_first)
    median, largest = (f"{float(f'{10**rise:.3g}'):,g}" for rise in rises)
    return f"median token × {median}, largest × {largest}"


def why_it_works(hot: pd.DataFrame, growing: pd.DataFrame, end: str, spectra: str) -> str:
    """The answer of notebook 07: how the largest token grew in recorded models of Figure 9's arms
    (`growing`), how often runs ended non-finite without norms and with RMSN on both sides (`hot`),
    how one of them ended here (`its_end`) and its singular values (`how_spectra_moved`)."""
    failed = {arm: hot[hot.arm == arm] for arm in ("None>SSM>None", "RMSN>SSM>RMSN")}
    failures = ", ".join(
        f"{label(arm)} {(runs.status == 'diverged').sum()} of {len(runs)}"
        for arm, runs in failed.items()
        if len(runs)
    )
    lines = [
        f"**Answer** ({describe_frame(hot, 'all runs')}). A norm keeps a block from multiplying what comes in. Before "
        "the SSM it bounds both branches, after the SSM the scan's alone. Powers of ten by which the largest token "
        f"grows in 8 blocks, at the last finite step: {grown_said(growing)}.",
        f"At lr {hot.lr.iloc[0]:g} ended non-finite: {failures}. One of those without norms, trained here once more, "
        f"{end}. {spectra}",
        PAPER,
    ]
    return "\n\n".join(lines)


def how_spectra_moved(sigma: Mapping[str, np.ndarray], control: np.ndarray) -> str:
    """How the variance of the singular values within and between layers changed from half way to
    the end, how σ₁ did, and where the control RMSN→None stands at that step. `sigma`: phase →
    (layers, k), the last phase last; `control`: (layers, k)."""
    end = sigma[list(sigma)[-1]]
    rise = end[:, 0] / sigma["normal"][:, 0]
    before, last, calm = (pd.Series(spectrum_spread(s)) for s in (sigma["normal"], end, control))
    quarter, changed, beside = max(len(rise) // 4, 1), last / before, calm / last
    return (
        f"From half way to its end the variance of its singular values changed by × {changed['within']:.2f} within and "
        f"× {changed['between']:.2f} between layers; σ₁ by × {rise[:quarter].mean():.2f} in the "
        f"first quarter of the blocks and × {rise[-quarter:].mean():.2f} in the deepest. At about the same step the "
        f"control RMSN→None had × {beside['within']:.2f} of that variance within and × {beside['between']:.2f} of it "
        "between layers."
    )


def grown_said(runs: pd.DataFrame) -> str:
    """Powers of ten that the largest token grows by in 8 blocks, arm by arm: "None→None 6.7 ±
    2.1"."""
    of = [(label(arm), mine.growth.dropna()) for arm, mine in runs.groupby("arm", sort=False)]
    return (
        ", ".join(f"{arm} {g.mean():.1f} ± {g.std():.1f}" for arm, g in of if len(g))
        or "none was recorded"
    )


# 14: what cures


def how_they_ended(ends: pd.DataFrame) -> pd.DataFrame:
    """One row a treatment: seeds, failed (how many), fewest steps (made), bits and sd (mean and
    standard deviation over the seeds that did not fail)."""
    by = ends.groupby("treatment", sort=False)
    facts = dict(seeds=by.seed.nunique(), failed=by.failed.sum(), bits=by.bits.mean())
    return pd.DataFrame(facts | {"sd": by.bits.std(), "fewest steps": by.step.min()})


def what_cures(ends: pd.DataFrame, scale: str, unigram: float, began: str) -> str:
    """The answer of notebook 14: where it begins, how each treatment ended, which of the finite
    ones learned most, and which learned more than the characters' shares.

    unigram: bits a character of a model that knows only how common each is.
    """
    table = how_they_ended(ends)
    lines = [f"- First not finite: {began}."]
    for name, row in table.iterrows():
        left = "" if row.failed == row.seeds else f"; the others reach {_bits(row)}"
        how = (
            f"fail, the first after {row['fewest steps']:.0f} steps{left}"
            if row.failed
            else f"fail, {_bits(row)}"
        )
        lines.append(f"- **{name}**: {row.failed:.0f} of {row.seeds:.0f} {how}.")
    well = table[table.failed == 0]
    idle = list(well.index[well.bits >= unigram])
    shares = f"the {unigram:.2f} bits of a model that knows only how common each character is"
    told = f"- Finite in every seed: {listed(well.index)}."
    told += f" Of these {well.bits.idxmin()} learned most." if len(well) else ""
    told += (
        f" Staying finite is not learning: {listed(idle)} ended no lower than {shares}."
        if idle
        else ""
    )
    head = f"**Answer** ({scale} scale, {seeds_text(table.seeds)}; validation bits a character, mean ± sd)."
    return "\n".join([head, "", *lines, told])


def _bits(row: pd.Series) -> str:
    return f"{row.bits:.2f} bits" + (f" ± {row.sd:.2f}" if row.sd == row.sd else "")
