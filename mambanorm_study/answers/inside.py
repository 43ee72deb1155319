"""Notebooks 07 and 14: growth inside a model, how runs without norms end, and what cures them.

The parameter `ends` is the frame of the treatments in notebook 14: one row per treatment and seed,
with the columns treatment, seed, failed, step (the last step) and bits (validation loss in bits per
character; NaN if the run failed).
"""

import pandas as pd

from mambanorm_study.answers.phrases import join_words
from mambanorm_study.runs.result import RunResult
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
    text), "law of the median" (the law by which the median grows). table: rows of
    `diagnostics.residual_growth`.
    """
    table = table.query("mode == 'train'").reset_index(drop=True)
    for token in ("median", "largest"):
        factors = 10 ** (table[f"{token}_last"] - table[f"{token}_first"])
        # three significant digits, without an exponent
        table[f"{token} token ×"] = [f"{float(f'{factor:.3g}'):,g}" for factor in factors]
    columns = ["phase", "task", "n_layers", "arm", "median token ×", "largest token ×"]
    return table[[*columns, "law"]].rename(columns={"law": "law of the median"})


def why_it_works(runs: pd.DataFrame, growth_runs: pd.DataFrame, end_text: str) -> str:
    """Return the answer of notebook 07: how much the largest L2 norm of a token grows, and how many
    runs ended non-finite.

    runs: run frame at a high learning rate. growth_runs: one row per recorded run, with the columns
    arm and growth, the powers of ten by which the largest L2 norm of a token grows from the first
    block to the last. end_text: what `run_end` returns for a run without norms.
    """
    failed = (runs.status == "diverged").groupby(runs.arm).agg(["sum", "size"])
    failures = ", ".join(
        f"{label(arm)} {failed.loc[arm, 'sum']} of {failed.loc[arm, 'size']}"
        for arm in ("None>SSM>None", "RMSN>SSM>RMSN")
        if arm in failed.index
    )
    medians = growth_runs.groupby("arm", sort=False).growth.median().dropna()
    grown = ", ".join(f"{label(arm)} {median:.1f}" for arm, median in medians.items())
    return (
        f"**Answer** ({describe_frame(runs, 'all runs')}). Before the SSM a norm bounds both "
        "branches of a block, after the SSM only the branch of the scan.\n\n"
        "- Powers of ten by which the largest token grows from the first block to the "
        f"last, at the last finite step, median of the runs: {grown or 'none was recorded'}.\n"
        f"- Runs that ended non-finite at lr {runs.lr.iloc[0]:g}: {failures}. One of the runs "
        f"without norms, trained here again, {end_text}.\n\n{PAPER}"
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
