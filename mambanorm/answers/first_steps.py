"""What came out, in sentences: notebooks 00, 01 and 02 show these below the cells that measure.

Every function takes what a cell has measured and returns an `Answer`, a text that a notebook shows as Markdown. No
sentence says more than its numbers: which arm is ahead, and by how much, is read off the frame each time.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from mambanorm.answers.words import listed
from mambanorm.arms import Arm
from mambanorm.lessons.invariance import FELT
from mambanorm.norms import NORMS, create_norm
from mambanorm.norms.base import SequenceNorm, TokenNorm
from mambanorm.study.tables import describe_frame, percent, seeds_text


class Answer(str):
    """A text in Markdown; a notebook shows it set, `print` shows it as it is."""

    def _repr_markdown_(self) -> str:
        return str(self)


def _mean(frame: pd.DataFrame, column: str, **where: object) -> float:
    for name, value in where.items():
        frame = frame[frame[name] == value]
    return float(frame[column].mean())


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f} points".replace("-", "−")


# 00_start_here


def first_guess(runs: pd.DataFrame) -> Answer:
    """Was the guess right? `runs`: the original Mamba and the same with a norm after the SSM, one run each."""
    before, after = runs.test_accuracy
    passes = "passes" if before > 0.5 else "does not pass"
    return Answer(
        f"The original Mamba {passes} 50 %: it reaches {percent(before)}. "
        f"With {Arm.parse(runs.arm.iloc[1]).n2} after the SSM it is {percent(after)}, {_points(after - before)}. "
        "This is one run each, with one seed."
    )


def start_here(runs: pd.DataFrame) -> Answer:
    said = "; ".join(f"{Arm.parse(run.arm).label} {percent(run.test_accuracy)}" for run in runs.itertuples())
    time = f"{runs.wall_s.mean():.0f} s a run on {runs.threads.max()} thread(s)"
    return Answer(f"**Answer** ({describe_frame(runs)}). {said}; chance is {percent(runs.chance.iloc[0])}; {time}.")


# 01_normalization


def scaling(table: pd.DataFrame) -> Answer:
    """What `scaling_table` says: a row a way of scaling, columns condition and steps."""
    said = [f"{how}: condition number {row.condition:,.3g}, {_steps(row.steps)}" for how, row in table.iterrows()]
    fewer = table.steps["raw"] / table.steps["standardised"]
    factor = f"fall by a factor of {fewer:.0f}" if fewer == fewer else "cannot be compared"
    return Answer(
        f"**Steps until 99 % of the way down.** {'; '.join(said)}. From raw to standardised the steps "
        f"{factor}. Each learning rate is 1 over the steepest curvature, so it does not decide."
    )


def _steps(steps: float) -> str:
    return f"{steps:.0f} steps" if steps == steps else "not reached in 2,000 steps"


def outlier(table: pd.DataFrame) -> Answer:
    """What `outlier_table` says: a row a way, the range of the other wines as measured and with an outlier."""
    said = [f"{how} {row.iloc[0]:.3g} → {row.iloc[1]:.2g}" for how, row in table.iterrows()]
    return Answer(
        f"Range of the other wines, before → with the wrong one: {'; '.join(said)}. Minimum and maximum are single "
        "values, so one mistake sets them. Mean and deviation suffer as well. Median and quartiles hardly move."
    )


def guesses(table: pd.DataFrame) -> Answer:
    """What `trials` says of a batch of one, a sequence of one and the future."""

    def names(column: str, wanted: bool) -> str:
        return listed(table.index[table[column] == wanted])

    return Answer(
        f"- **A batch of one** changes nothing for {names('alone', True)}. It changes {names('alone', False)}: their "
        "statistics hold the other rows.\n"
        f"- **A sequence of one position** leaves nothing of the input with {names('one position', False)}: a value "
        "minus itself is zero.\n"
        f"- **A language model** may use {names('no future', True)}. The others look at later positions, BN in "
        "training only: in eval its statistics are stored."
    )


def not_felt(table: pd.DataFrame) -> Answer:
    """What the table of `invariances` says, change by change."""
    rows = []
    for change in table:
        blind = [name for name in table.index if table.loc[name, change] < FELT]
        seeing = [name for name in table.index if name not in blind]
        few = f"felt by {listed(seeing)} alone" if len(seeing) < len(blind) else f"not felt by {listed(blind)}"
        rows.append(f"- **{change}**: {few if seeing else 'felt by none'}.")
    return Answer("\n".join(rows))


def batch_norm(frame: pd.DataFrame) -> Answer:
    """The lecture's claim against `with_and_without`: training accuracy of the last epoch, by arm and rate."""
    last = frame[frame.epoch == frame.epoch.max()]
    rows, ahead = [], []
    for rate in sorted(last.lr.unique()):
        none, he, bn = (_mean(last, "train_accuracy", arm=a, lr=rate) for a in ("none", "none, He start", "BN"))
        ahead.append(bn > none)
        rows.append(
            f"- At learning rate {rate:g}: BN {percent(bn)}, none {percent(none)}, none with He's start {percent(he)}. "
            f"The start alone accounts for {_points(he - none)} of the difference of {_points(bn - none)}."
        )
    here = "holds" if all(ahead) else "fails" if not any(ahead) else "holds at one rate only"
    seeds = f"{last['scale'].iloc[0]} scale, {seeds_text([last.seed.nunique()])}"
    return Answer(f"**The claim {here} here** ({seeds}, after {last.epoch.max()} epochs).\n\n" + "\n".join(rows))


CONTROLS = ("None", "Scale", "Constant")
"""Entries of the registry that normalize nothing: none is the cheapest norm."""


def costs(table: pd.DataFrame) -> Answer:
    """What the table of `norm_costs` says on the three guesses: cheapest, RMSN against LN, sequence against token."""
    norms = table[~table.norm.isin(CONTROLS)].set_index("norm")
    plain = {name: create_norm(name, 8) for name in norms.index}
    along = [name for name, norm in plain.items() if isinstance(norm, SequenceNorm) and not hasattr(norm, "members")]
    token = [name for name, norm in plain.items() if isinstance(norm, TokenNorm)]
    rmsn = norms.ratio["RMSN"]
    versus = f"{100 * (1 - rmsn):.0f} % faster than" if rmsn < 1 else f"{100 * (rmsn - 1):.0f} % slower than"
    return Answer(
        f"The cheapest norm is {norms.index[0]}. By the median RMSN is {versus} LN; the guide says 15–20 % faster. "
        f"Along the sequence plain norms ({', '.join(along)}) take {norms.ratio[along].median():.1f} times LN's time, "
        f"per token ({', '.join(token)}) {norms.ratio[token].median():.1f} times (medians)."
    )


def normalization(table: pd.DataFrame) -> Answer:
    """The notebook's answer, from the table of `norm_costs`."""
    causal = ", ".join(name for name, entry in NORMS.items() if entry.causal and name not in CONTROLS)
    cheapest, slowest = table[~table.norm.isin(CONTROLS)].iloc[[0, -1]].norm
    return Answer(
        "**Answer.** Most norms compute y = γ·(x − μ)/√(σ² + ε) + β and differ in the axes of μ and σ². RMSN and Lp "
        "take out no mean and learn no β. DyT and Derf use no statistic: they squeeze each value by itself. NormVary, "
        "SwitchNorm and NormSelector mix others. Scale and Constant are controls: a gain, a shift, and no norm. "
        f"Causal: {causal}. All others look along the sequence, BN in training only. "
        f"On this machine {cheapest} was the cheapest and "
        f"{slowest} the most expensive, {table.ratio.iloc[-1]:.1f} times LN."
    )


# 02_mamba_block


def parts(frame: pd.DataFrame) -> Answer:
    """What `parts_of_a_block` says, seed by seed: a mean of seeds of which some find the rule and some do not is the
    accuracy of none."""
    rows = []
    for task, runs in frame.groupby("task", sort=False):
        of = {part: runs[runs.without == part].sort_values("seed").test_accuracy for part in runs.without.unique()}
        said = [f"{'the whole block' if p == 'nothing' else f'without the {p}'} {_each(a)}" for p, a in of.items()]
        rows.append(f"- **{task}** (chance {percent(runs.chance.iloc[0])}): {'; '.join(said)}.")
    seeds = seeds_text([frame.seed.nunique()])
    return Answer(f"Test accuracy of each seed ({frame['scale'].iloc[0]} scale, {seeds}):\n\n" + "\n".join(rows))


def _each(accuracies: pd.Series) -> str:
    return f"{listed(f'{100 * accuracy:.0f}' for accuracy in accuracies)} %"


def growth(growths: Mapping[str, float]) -> Answer:
    """`growths`: arm → by how much its branch grows when the input is 100 times larger."""
    flat = [arm for arm, factor in growths.items() if factor < 2]
    rest = [f"{float(f'{factor:.2g}'):,.0f}-fold with {arm}" for arm, factor in growths.items() if factor >= 2]
    return Answer(f"The branch stays as it is with {listed(flat)}. It grows {listed(rest)}.")


def survey(table: pd.DataFrame) -> str:
    """The commonest arm of each domain in the paper's survey; columns arm, domain."""
    counts = table.groupby("domain").arm.agg(lambda arms: " and, equally often, ".join(arms.mode()))
    chosen = f"{counts['sequence']} for sequences, {counts['vision']} for vision."
    return f"Among the {len(table)} entries of the survey the commonest choice is {chosen}"


def block(growths: Mapping[str, float], table: pd.DataFrame) -> Answer:
    """The notebook's answer: where a norm can stand, what it bounds, what others chose."""
    said = ", ".join(f"{factor:.3g}-fold in {arm}" for arm, factor in growths.items())
    return Answer(
        "**Answer.** A norm can stand before both branches (N1) and between the SSM and the gate (N2). "
        f"With the input a hundred times larger the branch grows {said}. {survey(table)}"
    )
