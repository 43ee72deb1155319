"""What came out, in sentences: notebooks 00, 01 and 02 show these below the cells that measure."""

from collections.abc import Mapping

import pandas as pd

from mambanorm.arms import Arm
from mambanorm.norms import NORMS, create_norm
from mambanorm.norms.base import SequenceNorm, TokenNorm
from mambanorm_study.answers.words import listed
from mambanorm_study.tables.run_tables import describe_frame, percent, seeds_text


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f} points".replace("-", "−")


# 00_start_here


def start_here(runs: pd.DataFrame) -> str:
    """The answer of notebook 00. `runs`: the original Mamba and the same with a norm after the SSM,
    one run each."""
    said = "; ".join(
        f"{Arm.parse(run.arm).label} {percent(run.test_accuracy)}" for run in runs.itertuples()
    )
    before, after = runs.test_accuracy
    passes = "passes" if before > 0.5 else "does not pass"
    time = f"{runs.wall_s.mean():.0f} s a run on {runs.threads.max()} thread(s)"
    return (
        f"**Answer** ({describe_frame(runs)}). The original Mamba {passes} 50 %, the norm after the SSM adds "
        f"{_points(after - before)}: {said}; chance is {percent(runs.chance.iloc[0])}; {time}. One run each, one seed."
    )


# 01_normalization


def guesses(table: pd.DataFrame) -> str:
    """What `trials` says of a batch of one, a sequence of one and the future."""

    def names(column: str, wanted: bool) -> str:
        return listed(table.index[table[column] == wanted])

    return (
        f"- **A batch of one** changes nothing for {names('alone', True)}. It changes {names('alone', False)}: their "
        "statistics hold the other rows.\n"
        f"- **A sequence of one position** leaves nothing of the input with {names('one position', False)}: a value "
        "minus itself is zero.\n"
        f"- **A language model** may use {names('no future', True)}. The others look at later positions, BN in "
        "training only: in eval its statistics are stored."
    )


def batch_norm(frame: pd.DataFrame) -> str:
    """The lecture's claim against `with_and_without`: training accuracy of the last epoch, by arm
    and rate."""
    last = frame[frame.epoch == frame.epoch.max()]
    rows, ahead = [], []
    for rate in sorted(last.lr.unique()):
        means = last[last.lr == rate].groupby("arm").train_accuracy.mean()
        none, he, bn = (means[arm] for arm in ("none", "none, He start", "BN"))
        ahead.append(bn > none)
        rows.append(
            f"- At learning rate {rate:g}: BN {percent(bn)}, none {percent(none)}, none with He's start {percent(he)}. "
            f"The start alone accounts for {_points(he - none)} of the difference of {_points(bn - none)}."
        )
    here = "holds" if all(ahead) else "fails" if not any(ahead) else "holds at one rate only"
    seeds = f"{last['scale'].iloc[0]} scale, {seeds_text([last.seed.nunique()])}"
    return f"**The claim {here} here** ({seeds}, after {last.epoch.max()} epochs).\n\n" + "\n".join(
        rows
    )


CONTROLS = ("None", "Scale", "Constant")
"""Entries of the registry that normalize nothing: none is the cheapest norm."""


def costs(table: pd.DataFrame) -> str:
    """What the table of `norm_costs` says on the three guesses: cheapest, RMSN against LN, sequence
    against token."""
    norms = table[~table.norm.isin(CONTROLS)].set_index("norm")
    plain = {name: create_norm(name, 8) for name in norms.index}
    along = [
        name
        for name, norm in plain.items()
        if isinstance(norm, SequenceNorm) and not hasattr(norm, "members")
    ]
    token = [name for name, norm in plain.items() if isinstance(norm, TokenNorm)]
    rmsn = norms.ratio["RMSN"]
    versus = (
        f"{100 * (1 - rmsn):.0f} % faster than"
        if rmsn < 1
        else f"{100 * (rmsn - 1):.0f} % slower than"
    )
    return (
        f"The cheapest norm is {norms.index[0]}. By the median RMSN is {versus} LN; the guide says 15–20 % faster. "
        f"Along the sequence plain norms ({', '.join(along)}) take {norms.ratio[along].median():.1f} times LN's time, "
        f"per token ({', '.join(token)}) {norms.ratio[token].median():.1f} times (medians)."
    )


def normalization(table: pd.DataFrame) -> str:
    """The notebook's answer, from the table of `norm_costs`."""
    causal = ", ".join(
        name for name, entry in NORMS.items() if entry.causal and name not in CONTROLS
    )
    cheapest, slowest = table[~table.norm.isin(CONTROLS)].iloc[[0, -1]].norm
    return (
        "**Answer.** Most norms compute y = γ·(x − μ)/√(σ² + ε) + β and differ in the axes of μ and σ². RMSN and Lp "
        "take out no mean and learn no β. DyT and Derf use no statistic: they squeeze each value by itself. NormVary, "
        "SwitchNorm and NormSelector mix others. Scale (a gain) and Constant (a shift) are controls, not norms. "
        f"Causal: {causal}. All others look along the sequence, BN in training only. On this machine {cheapest} was "
        f"the cheapest and {slowest} the most expensive, {table.ratio.iloc[-1]:.1f} times LN."
    )


# 02_mamba_block


def parts(frame: pd.DataFrame) -> str:
    """What `parts_of_a_block` says, seed by seed: a mean of seeds of which some find the rule and
    some do not is the accuracy of none."""
    rows = []
    for task, runs in frame.groupby("task", sort=False):
        of = runs.sort_values("seed").groupby("without", sort=False).test_accuracy
        of = {
            part: f"{listed(f'{100 * one:.0f}' for one in accuracies)} %" for part, accuracies in of
        }
        said = [
            f"{'the whole block' if p == 'nothing' else f'without the {p}'} {of[p]}"
            for p in runs.without.unique()
        ]
        rows.append(f"- **{task}** (chance {percent(runs.chance.iloc[0])}): {'; '.join(said)}.")
    seeds = seeds_text([frame.seed.nunique()])
    return f"Test accuracy of each seed ({frame['scale'].iloc[0]} scale, {seeds}):\n\n" + "\n".join(
        rows
    )


def block(growths: Mapping[str, float], survey: pd.DataFrame) -> str:
    """The answer of notebook 02: where a norm can stand, what it bounds, what others chose.
    `growths`: arm → by how much its branch grows when the input is 100 times larger. `survey`: the
    entries of the paper's, columns arm, domain.
    """
    said = ", ".join(f"{factor:.3g}-fold in {arm}" for arm, factor in growths.items())
    common = survey.groupby("domain").arm.agg(
        lambda arms: " and, equally often, ".join(arms.mode())
    )
    return (
        "**Answer.** A norm can stand before both branches (N1) and between the SSM and the gate (N2). "
        f"With the input a hundred times larger the branch grows {said}. Among the {len(survey)} entries of the survey "
        f"the commonest choice is {common['sequence']} for sequences, {common['vision']} for vision."
    )
