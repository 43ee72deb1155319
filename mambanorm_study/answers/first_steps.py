"""Notebooks 00, 01 and 02: what the small experiments show."""

from collections.abc import Mapping

import pandas as pd

from mambanorm.norms import NORMS
from mambanorm_study.tables.run_tables import describe_frame, percent

CONTROLS = ("None", "Scale", "Constant")  # registered norms that do not normalize

# Norms with separate statistics for each token, and norms with statistics over several positions.
PER_TOKEN, ALONG_SEQUENCE = ("LN", "RMSN", "GN-token"), ("BN", "IN", "GN", "LN-DL", "RMSN-DL")


def answer_on_first_runs(runs: pd.DataFrame) -> str:
    """Return the answer of notebook 00: the accuracies of two runs, their difference, and the time
    that a run takes.

    runs: a frame of two runs, the original Mamba and then the same model with a norm after the SSM.
    """
    before, after = runs.test_accuracy
    gain = f"{100 * (after - before):+.1f} points".replace("-", "−")
    return (
        f"**Answer** ({describe_frame(runs)}). The original Mamba reaches {percent(before)}, and "
        f"with a norm after the SSM {percent(after)}: {gain}. Chance is "
        f"{percent(runs.chance.iloc[0])}. A run takes {runs.wall_s.mean():.0f} s on "
        f"{runs.threads.max()} thread(s). One run each, one seed."
    )


def costs_text(table: pd.DataFrame) -> str:
    """Return the sentences on costs in notebook 01: the cheapest norm, and the times of RMSN, of
    the norms along the sequence (median) and of the norms per token (median), each compared with
    LN's time.

    table: the frame of `norm_catalog.norm_costs`.
    """
    ratio = table[~table.norm.isin(CONTROLS)].set_index("norm").ratio
    along, per_token = (ratio[ratio.index.isin(norms)] for norms in (ALONG_SEQUENCE, PER_TOKEN))
    saved = 100 * (1 - ratio["RMSN"])
    return (
        f"The cheapest norm is {ratio.index[0]}. By the median RMSN is {abs(saved):.0f} % "
        f"{'faster' if saved > 0 else 'slower'} than LN; the guide says 15–20 % faster. Plain "
        f"norms along the sequence ({', '.join(along.index)}) take {along.median():.1f} times LN's "
        f"time, norms per token ({', '.join(per_token.index)}) {per_token.median():.1f} times "
        "(medians)."
    )


def answer_on_norms(table: pd.DataFrame) -> str:
    """Return the answer of notebook 01: what norms compute, which norms are causal, and which norm
    is the cheapest and which the most expensive.

    table: the frame of `norm_catalog.norm_costs`.
    """
    causal = [name for name, entry in NORMS.items() if entry.causal and name not in CONTROLS]
    cheapest, slowest = table[~table.norm.isin(CONTROLS)].iloc[[0, -1]].norm
    return (
        "**Answer.** Most norms compute y = γ·(x − μ)/√(σ² + ε) + β and differ in the axes over "
        "which μ and σ² are computed. RMSN and Lp subtract no mean and have no β. DyT and Derf use "
        "no statistics: they squash each value by itself. NormVary, SwitchNorm and NormSelector "
        "mix other norms. Scale (a gain) and Constant (a shift) are controls, not norms. "
        f"Causal norms: {', '.join(causal)}. All others use later positions, BN in training only. "
        f"On this machine {cheapest} was the cheapest and {slowest} the most expensive, with "
        f"{table.ratio.iloc[-1]:.1f} times LN's time."
    )


def answer_on_block(growths: Mapping[str, float], survey: pd.DataFrame) -> str:
    """Return the answer of notebook 02: at which sites of the Mamba block a norm can stand, how
    much the output of a block's branch grows with the block's input, and which arms published
    models use most often.

    growths: arm → factor by which the output of the branch grows if the input is 100 times larger.
    survey: entries of the paper's survey, with the columns arm and domain.
    """
    growth = ", ".join(f"{factor:.3g}-fold in {arm}" for arm, factor in growths.items())
    common = survey.groupby("domain").arm.agg(
        lambda arms: " and, equally often, ".join(arms.mode())
    )
    return (
        "**Answer.** A norm can stand before both branches (N1) and between the SSM and the gate "
        f"(N2). If the input is a hundred times larger, the branch grows {growth}. The most common "
        f"choices among the {len(survey)} entries of the survey are {common['sequence']} for "
        f"sequences and {common['vision']} for vision."
    )
