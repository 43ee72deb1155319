"""Differences of differences: does one norm gain more from a change than another?

    difference_of_differences   (a − b) − (c − d) over the seeds that all four arms share
    place_against               names → arms: one norm's gain from standing after the SSM, less that of each other norm
    second_norm                 the same norm at both sites, less that norm at the better of the two sites
    interaction                 names → arms: NormVary's gain with a norm after the SSM, less its gain without one

Differences are percentage points of test accuracy. Intervals are 95 % t-intervals over seeds, each for one comparison
alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd

from mambanorm.arms import Arm
from mambanorm.study.intervals import t_interval
from mambanorm.study.tables import by_seed, check_frame, paired, summarize

Four = tuple[str, str, str, str]
COLUMNS = ["task", "step", "difference", "low", "high", "n"]


def difference_of_differences(runs: pd.DataFrame, contrasts: Mapping[str, Four]) -> pd.DataFrame:
    """(a − b) − (c − d) for each named (a, b, c, d), one row a task and name, in points.

    Columns: task, step (the name), difference (mean), low, high, n (seeds). A task that lacks one of the four arms has
    no row of that name. ValueError for a frame without runs, or if a seed was run in more than one way.
    """
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
    """Other norm → the four arms of: `norm` after − before the SSM, less the other's after − before."""
    return {n: (f"None>SSM>{norm}", f"{norm}>SSM>None", f"None>SSM>{n}", f"{n}>SSM>None") for n in others}


def second_norm(runs: pd.DataFrame, norms: Iterable[str]) -> pd.DataFrame:
    """X→X minus the better of X→None and None→X, for each norm and task (`tables.paired`, one row each).

    The better place is taken by the mean test accuracy of the same runs, which flatters it a little.
    """
    rows = []
    for _, here in runs.groupby("task", sort=False):
        means = summarize(here, ["arm"]).set_index("arm")["mean"]
        for n in norms:
            better = means[[f"{n}>SSM>None", f"None>SSM>{n}"]].idxmax()
            rows.append(paired(here, f"{n}>SSM>{n}", better))
    return pd.concat(rows, ignore_index=True)


def interaction(after: Iterable[str] = ("GN", "LN")) -> dict[str, Four]:
    """N2 → the four arms of: what NormVary adds to RMSN with this N2, less what it adds without one."""
    without = ("NormVary>SSM>None", "RMSN>SSM>None")
    return {n2: (f"NormVary>SSM>{n2}", f"RMSN>SSM>{n2}", *without) for n2 in after}
