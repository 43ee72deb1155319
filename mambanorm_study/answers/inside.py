"""Notebooks 07 and 14: what grows inside a model, how a run without norms ends, and what cures it.

Glossary: `ends` is the frame of the treatments of notebook 14, one row a treatment and seed, with
the columns treatment, seed, failed, step (how many were made) and bits (validation, a character;
NaN where the run failed).
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from mambanorm_study.answers.phrases import join_words, numbered_list
from mambanorm_study.runs.result import RunResult
from mambanorm_study.runs.weight_log import spectrum_spread
from mambanorm_study.tables.run_tables import describe_frame, label, seeds_text

NONE = "None→None"
PAPER = (
    "The paper: outputs grow exponentially unless a norm follows the SSM; singular values grow "
    "most in deep layers."
)


def run_end(run: RunResult) -> str:
    """Return "went non-finite at step 9 of 40, first at `…`", or that the run did not fail."""
    if run.status == "diverged":
        step = f"step {run.steps + 1} of {run.config.steps}"
        return f"went non-finite at {step}, first at `{run.first_nonfinite_site}`"
    return f"did **not** fail in its {run.steps} steps here"


def guesses_on_growth(untrained: pd.DataFrame, trained: pd.DataFrame, turned: pd.DataFrame) -> str:
    """Return the three guesses of notebook 07: growth without norms, and with a norm on one side.

    The frames of `inside.residual_growth` are of models before training, after it, and with larger
    weights.
    """
    query = "mode == 'train' and arm == @NONE"
    before_training, larger = (frame.query(query).iloc[0] for frame in (untrained, turned))
    after_training = "; ".join(
        f"{_growth(row)} ({row.task}, {row.n_layers} blocks, {row.phase})"
        for row in trained.query(query).itertuples()
    )
    one_side: dict[str, list[str]] = {"before": [], "after": []}
    for row in turned.query("mode == 'train' and arm != @NONE").itertuples():
        n1, n2 = row.arm.split("→")
        if "None" in (n1, n2):
            one_side["after" if n1 == "None" else "before"].append(f"{row.arm} {_growth(row)}")
    sides = "; ".join(
        f"a norm only {place}: {join_words(rows)}" for place, rows in one_side.items() if rows
    )
    return numbered_list(
        [
            "Without norms and untrained, from the first block to the last: "
            f"{_growth(before_training)}.",
            f"After training: {after_training}. With larger weights: {_growth(larger)}.",
            f"With larger weights, from the first block to the last: {sides}.",
        ]
    )


def _growth(row) -> str:
    # "median token × 1.1, largest × 2.3"
    if not np.isfinite([row.median_last, row.largest_last]).all():
        return row.law if row.law.startswith("explodes") else "the largest token is not finite"
    rises = (row.median_last - row.median_first, row.largest_last - row.largest_first)
    median, largest = (f"{float(f'{10**rise:.3g}'):,g}" for rise in rises)
    return f"median token × {median}, largest × {largest}"


def why_it_works(hot: pd.DataFrame, growing: pd.DataFrame, end: str, spectra: str) -> str:
    """Return the answer of notebook 07: growth of the largest token, failures, singular values.

    hot: runs at a high learning rate. growing: recorded models of Figure 9's arms. end: `run_end`
    of a run without norms. spectra: `how_spectra_moved` of it.
    """
    failed = (hot.status == "diverged").groupby(hot.arm).agg(["sum", "size"])
    failures = ", ".join(
        f"{label(arm)} {failed.loc[arm, 'sum']} of {failed.loc[arm, 'size']}"
        for arm in ("None>SSM>None", "RMSN>SSM>RMSN")
        if arm in failed.index
    )
    return (
        f"**Answer** ({describe_frame(hot, 'all runs')}). A norm keeps a block from multiplying "
        "what comes in. Before the SSM it bounds both branches, after the SSM the scan's alone. "
        "Powers of ten by which the largest token grows in 8 blocks, at the last finite step: "
        f"{_growth_by_arm(growing)}.\n\n"
        f"At lr {hot.lr.iloc[0]:g} ended non-finite: {failures}. One of those without norms, "
        f"trained here once more, {end}. {spectra}\n\n{PAPER}"
    )


def how_spectra_moved(sigma: Mapping[str, np.ndarray], control: np.ndarray) -> str:
    """Return how the spread of the singular values and σ₁ changed from half way to the end.

    The spread is their variance within and between layers. It is compared with the control
    RMSN→None at that step. sigma: phase → (layers, k), the last phase last. control: (layers, k).
    """
    half_way, end = sigma["normal"], sigma[list(sigma)[-1]]
    rise = end[:, 0] / half_way[:, 0]
    quarter = max(len(rise) // 4, 1)
    before, after, calm = (pd.Series(spectrum_spread(s)) for s in (half_way, end, control))
    changed, beside = after / before, calm / after
    return (
        "From half way to its end the variance of its singular values changed by × "
        f"{changed['within']:.2f} within and × {changed['between']:.2f} between layers; σ₁ by × "
        f"{rise[:quarter].mean():.2f} in the first quarter of the blocks and × "
        f"{rise[-quarter:].mean():.2f} in the deepest. At about the same step the control "
        f"RMSN→None had × {beside['within']:.2f} of that variance within and × "
        f"{beside['between']:.2f} of it between layers."
    )


def _growth_by_arm(runs: pd.DataFrame) -> str:
    """Return the decades in 8 blocks by which the largest token grows: "None→None 6.7 ± 2.1"."""
    table = runs.groupby("arm", sort=False).growth.agg(["mean", "std", "count"])
    arms = [
        f"{label(arm)} {row['mean']:.1f} ± {row['std']:.1f}"
        for arm, row in table[table["count"] > 0].iterrows()
    ]
    return ", ".join(arms) or "none was recorded"


# 14: what cures


def how_they_ended(ends: pd.DataFrame) -> pd.DataFrame:
    """Return one row a treatment: seeds, failed (how many), bits, sd and fewest steps.

    bits and sd are mean and standard deviation over the seeds that did not fail.
    """
    by = ends.groupby("treatment", sort=False)
    return pd.DataFrame(
        {
            "seeds": by.seed.nunique(),
            "failed": by.failed.sum(),
            "bits": by.bits.mean(),
            "sd": by.bits.std(),
            "fewest steps": by.step.min(),
        }
    )


def what_cures(ends: pd.DataFrame, scale: str, unigram: float, began: str) -> str:
    """Return the answer of notebook 14: where it begins, and how each treatment ended.

    It names the finite treatment that learned most, and those that learned no more than the
    characters' shares. unigram: bits a character of a model that knows only these. began: where the
    first value was not finite.
    """
    table = how_they_ended(ends)
    lines = [f"- First not finite: {began}."]
    for name, row in table.iterrows():
        how = f"fail, {_bits(row)}"
        if row.failed:
            how = f"fail, the first after {row['fewest steps']:.0f} steps"
            if row.failed < row.seeds:
                how += f"; the others reach {_bits(row)}"
        lines.append(f"- **{name}**: {row.failed:.0f} of {row.seeds:.0f} {how}.")
    finite = table[table.failed == 0]
    idle = list(finite.index[finite.bits >= unigram])
    last = f"- Finite in every seed: {join_words(finite.index)}."
    if len(finite):
        last += f" Of these {finite.bits.idxmin()} learned most."
    if idle:
        last += (
            f" Staying finite is not learning: {join_words(idle)} ended no lower than the "
            f"{unigram:.2f} bits of a model that knows only how common each character is."
        )
    basis = f"{scale} scale, {seeds_text(table.seeds)}; validation bits a character, mean ± sd"
    return "\n".join([f"**Answer** ({basis}).", "", *lines, last])


def _bits(row: pd.Series) -> str:
    return f"{row.bits:.2f} bits" + ("" if pd.isna(row.sd) else f" ± {row.sd:.2f}")
