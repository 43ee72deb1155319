"""Notebooks 00, 01 and 02: what the small experiments show."""

from collections.abc import Mapping

import pandas as pd

from mambanorm.arms import Arm
from mambanorm.norms import NORMS, create_norm
from mambanorm.norms.base import SequenceNorm, TokenNorm
from mambanorm_study.answers.phrases import join_words
from mambanorm_study.tables.run_tables import describe_frame, percent, seeds_text


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f} points".replace("-", "−")


# 00_start_here


def start_here(runs: pd.DataFrame) -> str:
    """Return the answer of notebook 00.

    runs: one run of the original Mamba, and one of the same with a norm after the SSM.
    """
    accuracies = "; ".join(
        f"{Arm.parse(run.arm).label} {percent(run.test_accuracy)}" for run in runs.itertuples()
    )
    before, after = runs.test_accuracy
    passes = "passes" if before > 0.5 else "does not pass"
    time = f"{runs.wall_s.mean():.0f} s a run on {runs.threads.max()} thread(s)"
    return (
        f"**Answer** ({describe_frame(runs)}). The original Mamba {passes} 50 %, the norm after "
        f"the SSM adds {_points(after - before)}: {accuracies}; chance is "
        f"{percent(runs.chance.iloc[0])}; {time}. One run each, one seed."
    )


# 01_normalization


def guesses(table: pd.DataFrame) -> str:
    """Return the norms that work on a batch of one, on one position, and without the future.

    table: norms × the boolean columns alone, one position, no future.
    """

    def names(column: str, value: bool) -> str:
        return join_words(table.index[table[column] == value])

    return (
        f"- **A batch of one** changes nothing for {names('alone', True)}. It changes "
        f"{names('alone', False)}: their statistics hold the other rows.\n"
        "- **A sequence of one position** leaves nothing of the input with "
        f"{names('one position', False)}: a value minus itself is zero.\n"
        f"- **A language model** may use {names('no future', True)}. The others look at later "
        "positions, BN in training only: in eval its statistics are stored."
    )


def batch_norm(frame: pd.DataFrame) -> str:
    """Return the lecture's claim on BN beside the training accuracy of the last epoch.

    frame: `trained.with_and_without`.
    """
    last = frame[frame.epoch == frame.epoch.max()]
    means = last.pivot_table(index="lr", columns="arm", values="train_accuracy")
    lines = [
        f"- At learning rate {lr:g}: BN {percent(row.BN)}, none {percent(row.none)}, none with "
        f"He's start {percent(row['none, He start'])}. The start alone accounts for "
        f"{_points(row['none, He start'] - row.none)} of the difference of "
        f"{_points(row.BN - row.none)}."
        for lr, row in means.iterrows()
    ]
    is_ahead = means.none < means.BN
    holds = "holds at one rate only" if is_ahead.any() else "fails"
    if is_ahead.all():
        holds = "holds"
    seeds = f"{last['scale'].iloc[0]} scale, {seeds_text([last.seed.nunique()])}"
    return "\n".join(
        [f"**The claim {holds} here** ({seeds}, after {last.epoch.max()} epochs).", "", *lines]
    )


CONTROLS = ("None", "Scale", "Constant")  # entries of the registry that do not normalize


def costs(table: pd.DataFrame) -> str:
    """Return the cheapest norm, RMSN against LN, and norms of the sequence against the token's.

    table: `norm_catalog.norm_costs`.
    """
    norms = table[~table.norm.isin(CONTROLS)].set_index("norm")
    along, token = [], []
    for name in norms.index:
        norm = create_norm(name, 8)
        if isinstance(norm, SequenceNorm) and not hasattr(norm, "members"):
            along.append(name)
        elif isinstance(norm, TokenNorm):
            token.append(name)
    saved = 100 * (1 - norms.ratio["RMSN"])
    versus = f"{abs(saved):.0f} % {'faster' if saved > 0 else 'slower'} than"
    return (
        f"The cheapest norm is {norms.index[0]}. By the median RMSN is {versus} LN; the guide "
        f"says 15–20 % faster. Along the sequence plain norms ({', '.join(along)}) take "
        f"{norms.ratio[along].median():.1f} times LN's time, per token ({', '.join(token)}) "
        f"{norms.ratio[token].median():.1f} times (medians)."
    )


def normalization(table: pd.DataFrame) -> str:
    """Return the answer of notebook 01. table: `norm_catalog.norm_costs`."""
    causal = [name for name, entry in NORMS.items() if entry.causal and name not in CONTROLS]
    cheapest, slowest = table[~table.norm.isin(CONTROLS)].iloc[[0, -1]].norm
    return (
        "**Answer.** Most norms compute y = γ·(x − μ)/√(σ² + ε) + β and differ in the axes of μ "
        "and σ². RMSN and Lp take out no mean and learn no β. DyT and Derf use no statistic: they "
        "squeeze each value by itself. NormVary, SwitchNorm and NormSelector mix others. Scale (a "
        f"gain) and Constant (a shift) are controls, not norms. Causal: {', '.join(causal)}. All "
        f"others look along the sequence, BN in training only. On this machine {cheapest} was the "
        f"cheapest and {slowest} the most expensive, {table.ratio.iloc[-1]:.1f} times LN."
    )


# 02_mamba_block


def parts(frame: pd.DataFrame) -> str:
    """Return the test accuracies of `trained.parts_of_a_block`, seed by seed.

    A mean is left out: some seeds find the rule of the task and some do not.
    """
    lines = []
    for task, runs in frame.groupby("task", sort=False):
        models = []
        for part, rows in runs.sort_values("seed", kind="stable").groupby("without", sort=False):
            name = "the whole block" if part == "nothing" else f"without the {part}"
            models.append(f"{name} {join_words(f'{100 * x:.0f}' for x in rows.test_accuracy)} %")
        chance = percent(runs.chance.iloc[0])
        lines.append(f"- **{task}** (chance {chance}): {'; '.join(models)}.")
    seeds = f"{frame['scale'].iloc[0]} scale, {seeds_text([frame.seed.nunique()])}"
    return "\n".join([f"Test accuracy of each seed ({seeds}):", "", *lines])


def block(growths: Mapping[str, float], survey: pd.DataFrame) -> str:
    """Return the answer of notebook 02: where a norm can stand, what it bounds, what others chose.

    growths: arm → growth of its branch when the input is 100 times larger. survey: entries of the
    paper's survey, columns arm and domain.
    """
    growth = ", ".join(f"{factor:.3g}-fold in {arm}" for arm, factor in growths.items())
    common = survey.groupby("domain").arm.agg(
        lambda arms: " and, equally often, ".join(arms.mode())
    )
    return (
        "**Answer.** A norm can stand before both branches (N1) and between the SSM and the gate "
        f"(N2). With the input a hundred times larger the branch grows {growth}. Among the "
        f"{len(survey)} entries of the survey the commonest choice is {common['sequence']} for "
        f"sequences, {common['vision']} for vision."
    )
