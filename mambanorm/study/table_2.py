"""Table 2 of the paper as it is printed, beside our gains, and what its other tasks would cost here (notebook 08).

printed_table    the paper's two columns in per cent, mean ± sd
printed_gain     proposal minus original, in points
gains_beside     the paper's gain and ours, in words
cost_table       one run, and all runs of the notebook, of tasks that were not run
commands         what runs them
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from mambanorm.arms import Arm
from mambanorm.basics.text import prefixed, spell
from mambanorm.study.experiments import VALIDATION_ARMS
from mambanorm.study.paper import TABLE_2_ARMS, paper_values
from mambanorm.study.plan import plan, plan_table
from mambanorm.study.tables import SAME_TASK, points
from mambanorm.training.grid import base_config
from mambanorm.training.presets import SEEDS_PER_ARM

PROPOSAL, ORIGINAL = "NormVary>SSM>GN", "RMSN>SSM>None"
PROPOSALS = (PROPOSAL, "NormVary>SSM>LN")
SCALES = ("lab", "paper")
FACTS = dict(parameters="parameters", steps="steps", tokens="tokens", flops="FLOPs", bytes="bytes of memory")


def _printed() -> pd.DataFrame:
    return paper_values("sequence").query("source == 'Table 2'")


def printed_gain() -> pd.Series:
    """The paper's task → proposal minus original, in percentage points."""
    means = 100 * _printed().pivot(index="task", columns="arm", values="accuracy")
    return (means[PROPOSAL] - means[ORIGINAL]).rename("gain")


def printed_table() -> pd.DataFrame:
    """One row a task of the paper: both arms as "37.90 ± 0.23" (per cent, sd over three seeds), and the gain."""
    rows = _printed()
    cells = rows.assign(cell=[f"{100 * row.accuracy:.2f} ± {100 * row.sd:.2f}" for row in rows.itertuples()])
    table = cells.pivot(index="task", columns="arm", values="cell")[list(TABLE_2_ARMS.values())]
    return table.assign(gain=printed_gain().map("{:+.2f} points".format))


def gains_beside(steps: pd.DataFrame) -> pd.DataFrame:
    """The paper's gain beside ours, both in words, one row a task: the paper's four, then others of ours. `steps`: a
    frame of `tables.paired`, of which the rows that set a proposal against the original are taken."""
    ours = steps[steps.a.isin(PROPOSALS) & (steps.b == ORIGINAL)]
    said = [f"{Arm.parse(row.a).label}: {points(row.difference, row.low, row.high)}" for row in ours.itertuples()]
    said = pd.Series(said, ours.task.replace(SAME_TASK), dtype=object).groupby(level=0, sort=False).agg("; ".join)
    theirs = printed_table().gain
    here = ", ".join(ours.scale.unique()) or "not run"
    both = theirs.index.append(said.index.difference(theirs.index))
    table = {"the paper": theirs.reindex(both, fill_value="–"), f"ours, {here}": said.reindex(both)}
    return pd.DataFrame(table).fillna("not run").rename_axis("task")


def cost_table(tasks: Sequence[str], *, measured: bool = True) -> pd.DataFrame:
    """What tasks that were not run would cost: of one run at the paper's settings its parameters, steps, tokens, FLOPs
    and bytes; of all runs of notebook 08 the time on this machine at each scale, one after another.

    Every arm is counted as NormVary→GN. The time is that of the training's FLOPs at the speed of a few timed steps on
    two rows of the first task; `measured=False` leaves it out ("–"). No row for no task.
    """
    if not tasks:
        return pd.DataFrame()
    cost = plan_table([base_config(t, s, arm=PROPOSAL) for t in tasks for s in SCALES], measured=False)
    cost["runs"] = len(VALIDATION_ARMS) * cost.scale.map(SEEDS_PER_ARM)
    speed = _flops_a_second(tasks[0]) if measured else float("nan")
    times = cost.assign(s=cost.runs * cost.flops / speed).pivot(index="task", columns="scale", values="s")
    times = times[list(SCALES)].map(_spelled)
    times.columns = [f"{s}, {cost.runs[cost.scale == s].iloc[0]} runs" for s in SCALES]
    facts = cost[cost.scale == "paper"].set_index("task")[list(FACTS)]
    return facts.map(prefixed).rename(columns=FACTS).add_suffix(", one run").join(times).loc[list(tasks)]


def _flops_a_second(task: str) -> float:
    small = plan(base_config(task, SCALES[0], arm=PROPOSAL, batch_size=2))
    return small["flops_per_step"] / small["seconds_per_step"]


def _spelled(seconds: float) -> str:
    return "–" if seconds != seconds else spell(3600 * float(f"{seconds / 3600:.1g}"))


def commands(tasks: Iterable[str], scale: str = "paper") -> str:
    """The line of a shell for each task: fetch or draw its data, then run notebook 08 on it."""
    line = "mambanorm tasks --prepare {0} --scale {1} && mambanorm study --notebooks 08 --tasks {0} --scale {1}"
    return "\n".join(line.format(task, scale) for task in tasks)
