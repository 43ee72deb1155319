"""Notebooks 07 and 14: growth inside a model, how runs without norms end, and what cures them.

The parameter `ends` is the frame of the treatments in notebook 14: one row per treatment and seed,
with the columns treatment, seed, failed, step (the last step) and bits (validation loss in bits per
character; NaN if the run failed).
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from mambanorm_study.answers.phrases import join_words
from mambanorm_study.runs.result import RunResult
from mambanorm_study.runs.weight_log import spectrum_spread
from mambanorm_study.tables.run_tables import describe_frame, label, seeds_text

PAPER = (
    "The paper: outputs grow exponentially unless a norm follows the SSM; singular values grow "
    "most in deep layers."
)


def run_end(run: RunResult) -> str:
    """Return how a run ended, as text: "went non-finite at step 9 of 40, first at `…`" or "did
    **not** fail in its 40 steps here".
    """
    if run.status != "diverged":
        return f"did **not** fail in its {run.steps} steps here"
    step = f"step {run.steps + 1} of {run.config.steps}"
    return f"went non-finite at {step}, first at `{run.first_nonfinite_site}`"


def growth_factors(table: pd.DataFrame) -> pd.DataFrame:
    """Return the factors by which the median and the largest L2 norm over the tokens grow from the
    first block to the last, in train mode: one row per phase, task, number of layers and arm.

    Columns: phase, task, n_layers, arm, "median token ×" and "largest token ×" (the factors as
    text), law (of growth). table: rows of `diagnostics.residual_growth`.
    """
    table = table.query("mode == 'train'").reset_index(drop=True)
    for token in ("median", "largest"):
        factors = 10 ** (table[f"{token}_last"] - table[f"{token}_first"])
        # three significant digits, without an exponent
        table[f"{token} token ×"] = [f"{float(f'{factor:.3g}'):,g}" for factor in factors]
    columns = ["phase", "task", "n_layers", "arm", "median token ×", "largest token ×", "law"]
    return table[columns]


def why_it_works(
    runs: pd.DataFrame, growth_runs: pd.DataFrame, end_text: str, spectra_text: str
) -> str:
    """Return the answer of notebook 07: how much the largest L2 norm of a token grows, how many
    runs ended non-finite, and how singular values changed.

    runs: run frame at a high learning rate. growth_runs: recorded runs of Figure 9's arms;
    the column `growth` says by how many decades the largest L2 norm of a token grows in 8 blocks.
    end_text, spectra_text: what `run_end` and `how_spectra_moved` return for a run without norms.
    """
    failed = (runs.status == "diverged").groupby(runs.arm).agg(["sum", "size"])
    failures = ", ".join(
        f"{label(arm)} {failed.loc[arm, 'sum']} of {failed.loc[arm, 'size']}"
        for arm in ("None>SSM>None", "RMSN>SSM>RMSN")
        if arm in failed.index
    )
    growth = (
        growth_runs.groupby("arm", sort=False).growth.agg(["mean", "std"]).dropna(subset="mean")
    )
    grown = ", ".join(
        f"{label(arm)} {row['mean']:.1f} ± {row['std']:.1f}" for arm, row in growth.iterrows()
    )
    return (
        f"**Answer** ({describe_frame(runs, 'all runs')}). A norm keeps a block from multiplying "
        "its input. Before the SSM it bounds both branches, after the SSM only the branch of the "
        "scan. Powers of ten by which the largest token grows in 8 blocks, at the last finite "
        f"step: {grown or 'none was recorded'}.\n\n"
        f"Runs that ended non-finite at lr {runs.lr.iloc[0]:g}: {failures}. One of the runs "
        f"without norms, trained here again, {end_text}. {spectra_text}\n\n{PAPER}"
    )


def how_spectra_moved(sigma: Mapping[str, np.ndarray], control: np.ndarray) -> str:
    """Return two sentences on the singular values of a run's out_proj weights. The first gives the
    factors by which three quantities changed in the second half of the run: the variance of the
    singular values within layers, their variance between layers, and the largest singular value σ₁
    of a layer. The second divides the two variances in the control run (RMSN→None), at about the
    run's last step, by the two variances in the run.

    sigma: phase → singular values (layers, k) of the run; "normal" is half-way, the last phase is
    the end of the run. control: singular values (layers, k) of the control run.
    """
    half_way, end = sigma["normal"], sigma[list(sigma)[-1]]
    rise = end[:, 0] / half_way[:, 0]
    quarter = max(len(rise) // 4, 1)
    before, after, control_spread = (
        pd.Series(spectrum_spread(s)) for s in (half_way, end, control)
    )
    changed, ratio = after / before, control_spread / after
    return (
        "In the second half of the run the variance of its singular values changed by a factor of "
        f"{changed['within']:.2f} within and {changed['between']:.2f} between layers, and σ₁ by "
        f"{rise[:quarter].mean():.2f} in the first quarter of the blocks and "
        f"{rise[-quarter:].mean():.2f} in the deepest. At about the same step the control "
        f"RMSN→None had {ratio['within']:.2f} times this variance within and "
        f"{ratio['between']:.2f} times this variance between layers."
    )


# notebook 14: what cures runs without norms


def treatment_table(ends: pd.DataFrame) -> pd.DataFrame:
    """Return how the runs of each treatment ended, one row per treatment.

    ends: one row per treatment and seed, see the module. Columns: seeds, the number of seeds;
    failed, the number of failed runs; bits and sd, the mean and the standard deviation of the
    validation loss in bits per character, without failed runs; fewest steps, the last step of the
    run that ended first.
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


def what_cures(ends: pd.DataFrame, scale: str, unigram_bits: float, first_site: str) -> str:
    """Return the answer of notebook 14: the site of the first non-finite value, the treatments that
    failed, the treatments that stayed finite, and those that stayed finite but learned nothing.

    ends: one row per treatment and seed, see the module. scale: name of the scale. unigram_bits:
    loss in bits per character of a model that knows only how common each character is. first_site:
    text that names the site of the first non-finite value.
    """
    table = treatment_table(ends)
    failing, finite = table[table.failed > 0], table[table.failed == 0].sort_values("bits")
    failures = join_words(
        f"{name} ({row.failed:.0f} of {row.seeds:.0f}, the first after {row['fewest steps']:.0f} "
        "steps)"
        for name, row in failing.iterrows()
    )
    losses = join_words(
        f"{name} ({row.bits:.2f} bits{'' if pd.isna(row.sd) else f' ± {row.sd:.2f}'})"
        for name, row in finite.iterrows()
    )
    lines = [
        f"- First not finite: {first_site}.",
        f"- Runs failed: {failures}.",
        f"- Finite in every seed, the lowest loss first: {losses}.",
    ]
    idle = finite.index[finite.bits >= unigram_bits]
    if len(idle):
        lines.append(
            f"- Staying finite is not learning: {join_words(idle)} ended no lower than the "
            f"{unigram_bits:.2f} bits of a model that knows only how common each character is."
        )
    shows = "validation loss in bits per character, mean ± sd"
    opening = f"**Answer** ({scale} scale, {seeds_text(table.seeds)}; {shows})."
    return "\n".join([opening, "", *lines])
