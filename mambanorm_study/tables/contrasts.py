"""Differences of differences, the gain of a norm at a further site, our gains beside the paper's.

A further site is a site other than before and after the SSM (MORE_SITES in mambanorm/arms.py).
Differences are percentage points of test accuracy. Intervals are 95 % t-intervals over seeds, not
corrected for several comparisons.
"""

from collections.abc import Iterable

import pandas as pd

from mambanorm.arms import Arm
from mambanorm_study.runs.presets import LANGUAGE_TASKS
from mambanorm_study.tables.experiments import MAMBA_ARM
from mambanorm_study.tables.paper import paper_values
from mambanorm_study.tables.run_tables import (
    SAME_TASK,
    by_seed,
    label,
    paired,
    points,
    summarize,
    t_interval,
    with_value,
)

# The arms (a, b, c, d) of a difference of differences (a − b) − (c − d).
FourArms = tuple[str, str, str, str]
# Steps for `paired_steps`, one for each N2: the gain of NormVary over RMSN (as the norm before the
# SSM) with N2 after the SSM, minus the same gain without a norm after the SSM.
INTERACTION: dict[str, FourArms] = {
    n2: (f"NormVary>SSM>{n2}", f"RMSN>SSM>{n2}", "NormVary>SSM>None", "RMSN>SSM>None")
    for n2 in ("GN", "LN")
}
COLUMNS = ["task", "site", "norm", "arm", "gain", "low", "high", "n", "per_seed", "unit"]


def position_contrasts(norm: str, others: Iterable[str]) -> dict[str, FourArms]:
    """Return steps for `paired_steps`, one for each other norm: the gain of placing `norm` after
    instead of before the SSM, minus the same gain of the other norm.
    """
    return {
        n: (f"None>SSM>{norm}", f"{norm}>SSM>None", f"None>SSM>{n}", f"{n}>SSM>None")
        for n in others
    }


def second_norm(runs: pd.DataFrame, norms: Iterable[str]) -> pd.DataFrame:
    """Return the gain of a second norm, X→X minus the better one of X→None and None→X, as rows of
    `paired`, one for each norm X and task.

    The arm with the higher mean test accuracy in these same runs counts as better, so its accuracy
    is slightly overestimated.
    """
    rows = []
    for _, task_runs in runs.groupby("task", sort=False):
        means = summarize(task_runs, ["arm"]).set_index("arm")["mean"]
        for n in norms:
            better = means[[f"{n}>SSM>None", f"None>SSM>{n}"]].idxmax()
            rows.append(paired(task_runs, f"{n}>SSM>{n}", better))
    return pd.concat(rows, ignore_index=True)


def site_gains(frame: pd.DataFrame) -> pd.DataFrame:
    """Return how much each arm with a norm at one further site gains over MAMBA_ARM on the seeds
    that both arms share: one row for each task, norm and site.

    Columns: task, site, norm, arm, gain (mean), low, high (95 % t-interval), n, per_seed (list),
    unit. The gain is in points of test accuracy; for language models it is the reduction of the
    test loss in bits per character. A diverged run counts as chance.
    """
    rows = []
    for task, runs in with_value(frame).groupby("task", sort=False):
        sign, unit = (-1, "bits per character saved") if task in LANGUAGE_TASKS else (1, "points")
        mamba = by_seed(runs, task, str(MAMBA_ARM), "value")
        for arm in runs.arm.unique():
            parsed = Arm.parse(arm)
            if parsed[:2] == MAMBA_ARM[:2] and len(parsed.more) == 1:
                gains = sign * (by_seed(runs, task, arm, "value") - mamba).dropna()
                numbers = (gains.mean(), *t_interval(gains), len(gains), gains.tolist())
                rows.append((task, *parsed.more[0], arm, *numbers, unit))
    return pd.DataFrame(rows, columns=COLUMNS)


# --------------------------------------------------------------------------------------------------
# Table 2 (notebook 08)

PROPOSAL, ORIGINAL = "NormVary>SSM>GN", "RMSN>SSM>None"
PROPOSALS = (PROPOSAL, "NormVary>SSM>LN")


def printed_gain() -> pd.Series:
    """Return the printed accuracy of PROPOSAL minus that of ORIGINAL in points, for each task of
    the paper's Table 2.
    """
    rows = paper_values("sequence").query("source == 'Table 2'")
    means = 100 * rows.pivot(index="task", columns="arm", values="accuracy")
    return (means[PROPOSAL] - means[ORIGINAL]).rename("gain")


def printed_table() -> pd.DataFrame:
    """Return the paper's Table 2 as text, one row for each task: the accuracy of ORIGINAL and of
    PROPOSAL, such as "37.90 ± 0.23" (per cent, sd over three seeds), and the gain.
    """
    rows = paper_values("sequence").query("source == 'Table 2'")
    cells = (100 * rows.accuracy).map("{:.2f}".format) + (100 * rows.sd).map(" ± {:.2f}".format)
    table = rows.assign(cell=cells).pivot(index="task", columns="arm", values="cell")
    gain = printed_gain().map("{:+.2f} points".format)
    return table[[ORIGINAL, PROPOSAL]].assign(gain=gain)


def gains_beside_paper(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the paper's gain beside ours as text, one row for each task: the four tasks of the
    paper, then our other tasks.

    steps: a frame of `paired_steps`, of which only the rows that compare one of PROPOSALS with
    ORIGINAL are used.
    """
    ours = steps[steps.a.isin(PROPOSALS) & (steps.b == ORIGINAL)]
    texts = [
        f"{label(row.a)}: {points(row.difference, row.low, row.high)}" for row in ours.itertuples()
    ]
    by_task = pd.Series(texts, ours.task.replace(SAME_TASK), dtype=object)
    by_task = by_task.groupby(level=0, sort=False).agg("; ".join)
    printed = printed_table().gain
    tasks = printed.index.append(by_task.index.difference(printed.index))
    scales = ", ".join(ours.scale.unique()) or "not run"
    columns = {
        "the paper": printed.reindex(tasks, fill_value="–"),
        f"ours, {scales}": by_task.reindex(tasks),
    }
    return pd.DataFrame(columns).fillna("not run").rename_axis("task")
