"""Contrasts: does one norm gain more from a change than another, what does a further site bring,
and Table 2 beside us.

Differences are percentage points of test accuracy. Intervals are 95 % t-intervals over seeds, each
for one comparison alone.
"""

import math
from collections.abc import Iterable, Mapping

import pandas as pd

from mambanorm.arms import Arm
from mambanorm_study.runs.presets import LANGUAGE_TASKS
from mambanorm_study.tables.experiments import MAMBA_ARM
from mambanorm_study.tables.paper import TABLE_2_ARMS, paper_values
from mambanorm_study.tables.run_tables import (
    SAME_TASK,
    by_seed,
    check_frame,
    paired,
    points,
    summarize,
    t_interval,
)

Four = tuple[str, str, str, str]
COLUMNS = ["task", "step", "difference", "low", "high", "n"]


def difference_of_differences(runs: pd.DataFrame, contrasts: Mapping[str, Four]) -> pd.DataFrame:
    """(a − b) − (c − d) for each named (a, b, c, d), one row a task and name, in points: the
    columns COLUMNS, `step` is the name. A task that lacks one of the four arms has no row of it."""
    check_frame(runs)
    rows = []
    for task, here in runs.groupby("task", sort=False):
        for name, arms in contrasts.items():
            arms = [str(Arm.parse(arm)) for arm in arms]
            if set(arms) <= set(here.arm):
                a, b, c, d = (100 * by_seed(here, task, arm) for arm in arms)
                beyond = ((a - b) - (c - d)).dropna()
                rows.append((task, name, beyond.mean(), *t_interval(beyond), len(beyond)))
    return pd.DataFrame(rows, columns=COLUMNS)


def place_against(norm: str, others: Iterable[str]) -> dict[str, Four]:
    """Other norm → the four arms of: `norm` after − before the SSM, less the other's after −
    before."""
    return {
        n: (f"None>SSM>{norm}", f"{norm}>SSM>None", f"None>SSM>{n}", f"{n}>SSM>None")
        for n in others
    }


def second_norm(runs: pd.DataFrame, norms: Iterable[str]) -> pd.DataFrame:
    """X→X minus the better of X→None and None→X, for each norm and task (`tables.paired`, one row
    each). The better place is taken by the mean test accuracy of the same runs, which flatters it a
    little."""
    rows = []
    for _, here in runs.groupby("task", sort=False):
        means = summarize(here, ["arm"]).set_index("arm")["mean"]
        for n in norms:
            better = means[[f"{n}>SSM>None", f"None>SSM>{n}"]].idxmax()
            rows.append(paired(here, f"{n}>SSM>{n}", better))
    return pd.concat(rows, ignore_index=True)


def interaction(after: Iterable[str] = ("GN", "LN")) -> dict[str, Four]:
    """N2 → the four arms of: what NormVary adds to RMSN with this N2, less what it adds without
    one."""
    without = ("NormVary>SSM>None", "RMSN>SSM>None")
    return {n2: (f"NormVary>SSM>{n2}", f"RMSN>SSM>{n2}", *without) for n2 in after}


def site_gains(frame: pd.DataFrame) -> pd.DataFrame:
    """The gain of each arm with one further site over MAMBA_ARM, over shared seeds, one row a task, norm
    and site.

    Columns: task, site, norm, arm, gain (mean), low, high (95 % t-interval), n, per_seed (list),
    unit. More is better: points of test accuracy; of a language model bits a character that the
    test loss is lower. A run that diverged counts as chance.
    """
    check_frame(frame, ("task", "arm", "seed", "test_accuracy", "status"))
    rows = []
    for task, here in frame.groupby("task", sort=False):
        lost, unit = here.status == "diverged", "points"
        if task in LANGUAGE_TASKS:
            worth, unit = (
                -here.test_loss.where(~lost, here.chance_loss) / math.log(2),
                "bits a character saved",
            )
        else:
            worth = 100 * here.test_accuracy.where(~lost, here.chance)
        scored = here.assign(worth=worth)
        own = by_seed(scored, str(task), str(MAMBA_ARM), "worth")
        for arm in dict.fromkeys(scored.arm):
            parsed = Arm.parse(arm)
            if parsed[:2] == MAMBA_ARM[:2] and len(parsed.more) == 1:
                gains = (by_seed(scored, str(task), arm, "worth") - own).dropna()
                low, high = t_interval(gains)
                (site, norm), facts = (
                    parsed.more[0],
                    dict(gain=gains.mean(), low=low, high=high, n=len(gains)),
                )
                rows.append(
                    dict(
                        task=task,
                        site=site,
                        norm=norm,
                        arm=arm,
                        **facts,
                        per_seed=gains.tolist(),
                        unit=unit,
                    )
                )
    return pd.DataFrame(rows)


# --------------------------------------------------------------------------------------------------
# Table 2 (notebook 08)

PROPOSAL, ORIGINAL = "NormVary>SSM>GN", "RMSN>SSM>None"
PROPOSALS = (PROPOSAL, "NormVary>SSM>LN")


def printed_gain() -> pd.Series:
    """The paper's task → proposal minus original, in percentage points."""
    means = 100 * paper_values("sequence").query("source == 'Table 2'").pivot(
        index="task", columns="arm", values="accuracy"
    )
    return (means[PROPOSAL] - means[ORIGINAL]).rename("gain")


def printed_table() -> pd.DataFrame:
    """One row a task of the paper: both arms as "37.90 ± 0.23" (per cent, sd over three seeds), and
    the gain."""
    rows = paper_values("sequence").query("source == 'Table 2'")
    cells = rows.assign(
        cell=[f"{100 * row.accuracy:.2f} ± {100 * row.sd:.2f}" for row in rows.itertuples()]
    )
    table = cells.pivot(index="task", columns="arm", values="cell")[list(TABLE_2_ARMS.values())]
    return table.assign(gain=printed_gain().map("{:+.2f} points".format))


def gains_beside(steps: pd.DataFrame) -> pd.DataFrame:
    """The paper's gain beside ours, both in words, one row a task: the paper's four, then others of
    ours. `steps`: a frame of `tables.paired`, of which the rows that set a proposal against the
    original are taken."""
    ours = steps[steps.a.isin(PROPOSALS) & (steps.b == ORIGINAL)]
    said = [
        f"{Arm.parse(row.a).label}: {points(row.difference, row.low, row.high)}"
        for row in ours.itertuples()
    ]
    said = (
        pd.Series(said, ours.task.replace(SAME_TASK), dtype=object)
        .groupby(level=0, sort=False)
        .agg("; ".join)
    )
    theirs = printed_table().gain
    here = ", ".join(ours.scale.unique()) or "not run"
    both = theirs.index.append(said.index.difference(theirs.index))
    table = {"the paper": theirs.reindex(both, fill_value="–"), f"ours, {here}": said.reindex(both)}
    return pd.DataFrame(table).fillna("not run").rename_axis("task")
