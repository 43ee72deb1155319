"""Differences of differences, the gain of a norm at a further site, our gains beside the paper's.

An arm names the norms before and after the SSM, e.g. RMSN>SSM>GN. A further site is a site other
than these two (MORE_SITES in mambanorm/arms.py).

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
    difference_with_interval,
    label,
    paired,
    seeds_text,
    summarize,
    t_interval,
    with_value,
)

# The arms (a, b, c, d) of a difference of differences (a − b) − (c − d).
FourArms = tuple[str, str, str, str]
# Norm N2 → four arms for `paired_steps`: the gain of NormVary over RMSN before the SSM if N2 is the
# norm after the SSM, minus this gain if there is no norm after the SSM.
INTERACTION: dict[str, FourArms] = {
    n2: (f"NormVary>SSM>{n2}", f"RMSN>SSM>{n2}", "NormVary>SSM>None", "RMSN>SSM>None")
    for n2 in ("GN", "LN")
}
COLUMNS = ["task", "site", "norm", "arm", "gain", "low", "high", "n", "per_seed", "unit"]


def position_contrasts(norm: str, other_norms: Iterable[str]) -> dict[str, FourArms]:
    """Return a map from each of `other_norms` to four arms for `paired_steps`. Their difference of
    differences is the gain of placing `norm` after instead of before the SSM, minus the gain of
    placing the other norm after instead of before the SSM.
    """
    return {
        n: (f"None>SSM>{norm}", f"{norm}>SSM>None", f"None>SSM>{n}", f"{n}>SSM>None")
        for n in other_norms
    }


def second_norm_gains(runs: pd.DataFrame, norms: Iterable[str]) -> pd.DataFrame:
    """Return the gain of a second norm: the accuracy of X→X (norm X before and after the SSM) minus
    that of the better arm of X→None and None→X. One row for each task and norm X, with the columns
    of `paired`.

    The better arm is the one with the higher mean test accuracy in `runs`, the same runs from which
    the gain is computed, so the accuracy of the better arm is slightly overestimated.
    """
    rows = []
    for _, task_runs in runs.groupby("task", sort=False):
        means = summarize(task_runs, ["arm"]).set_index("arm")["mean"]
        for n in norms:
            better = means[[f"{n}>SSM>None", f"None>SSM>{n}"]].idxmax()
            rows.append(paired(task_runs, f"{n}>SSM>{n}", better))
    return pd.concat(rows, ignore_index=True)


def site_gains(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the gain of a norm at one further site (a site other than before and after the SSM):
    the test accuracy of MAMBA_ARM (RMSN→None) with this norm minus that of MAMBA_ARM, on the seeds
    that both arms share. One row for each task, norm and site.

    Columns: task, site, norm, arm, gain (mean over seeds), low and high (95 % t-interval), n (the
    number of seeds), per_seed (list of gains), unit. The gain is in percentage points; for language
    models it is the reduction of the test loss in bits per character. A diverged run counts as
    chance. Tasks without MAMBA_ARM have no rows.
    """
    rows, has_mamba = [], set(frame.task[frame.arm == str(MAMBA_ARM)])
    for task, runs in with_value(frame[frame.task.isin(has_mamba)]).groupby("task", sort=False):
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
# Table 2 of the paper (notebook 08)

PROPOSAL, ORIGINAL = "NormVary>SSM>GN", "RMSN>SSM>None"
PROPOSALS = (PROPOSAL, "NormVary>SSM>LN")

# Task of the paper's Table 2, under our name → the length in the paper, and the tasks whose runs
# stand beside it, each with a description.
TABLE_2_TASKS: dict[str, tuple[str, dict[str, str]]] = {
    "listops": ("2,000 tokens", {"listops": "ListOps (at evening 6 to 21 tokens)"}),
    "imdb": ("4,096 characters", {"imdb": "IMDB"}),
    "cifar100": ("1,024 pixels", {"cifar100": "CIFAR-100"}),
    "pathfinder64": (
        "4,096 pixels",
        {"pathfinder64": "Path-64", "paths16": "paths like those of Pathfinder, 256 pixels"},
    ),
}
# Task → hours of one run of ORIGINAL at the paper's settings, on two CPU cores (docs/costs.md) and
# on an NVIDIA H200 in float32 (docs/clusters.md; "about": estimated from FLOPs).
PAPER_HOURS = {
    "listops": ("121", "0.73"),
    "imdb": ("168", "about 0.85"),
    "cifar100": ("17.5", "about 0.17"),
    "pathfinder64": ("864", "6"),
}


def printed_accuracies() -> pd.DataFrame:
    """Return the accuracies of the paper's Table 2 in per cent, one row for each task.

    Columns: the arms ORIGINAL (RMSN→None) and PROPOSAL (NormVary→GN).
    """
    rows = paper_values("sequence").query("source == 'Table 2'")
    return 100 * rows.pivot(index="task", columns="arm", values="accuracy")[[ORIGINAL, PROPOSAL]]


def printed_gains() -> pd.Series:
    """Return the accuracy that the paper prints for PROPOSAL minus the one it prints for ORIGINAL,
    in percentage points: a Series over the tasks of the paper's Table 2.
    """
    means = printed_accuracies()
    return (means[PROPOSAL] - means[ORIGINAL]).rename("gain")


def printed_table() -> pd.DataFrame:
    """Return the paper's Table 2 as a table of texts, one row for each task.

    Columns: the arms ORIGINAL and PROPOSAL (accuracy such as "37.90 ± 0.23": mean and sd over three
    seeds in per cent), and gain (PROPOSAL minus ORIGINAL, such as "+2.44 points").
    """
    rows = paper_values("sequence").query("source == 'Table 2'")
    cells = (100 * rows.accuracy).map("{:.2f}".format) + (100 * rows.sd).map(" ± {:.2f}".format)
    table = rows.assign(cell=cells).pivot(index="task", columns="arm", values="cell")
    gain = printed_gains().map("{:+.2f} points".format)
    return table[[ORIGINAL, PROPOSAL]].assign(gain=gain)


def table_2_beside_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the paper's Table 2 beside our runs as a table of texts, one row for each of its four
    tasks.

    runs: runs of ORIGINAL and PROPOSAL, each arm at one learning rate; runs of other arms and tasks
    are left out. Columns: "the paper, %" (accuracies of ORIGINAL → PROPOSAL), "length in the
    paper", "run here" (task, scale, number of shared seeds; for a task without runs the command
    that runs it), "ours, %" (mean accuracies over the shared seeds), "our gain" (PROPOSAL −
    ORIGINAL with its 95 % t-interval), "RMSN→None at the paper's size" (PAPER_HOURS).
    """
    printed, table = printed_accuracies(), {}
    for task, (length, descriptions) in TABLE_2_TASKS.items():
        name, (hours, gpu_hours) = SAME_TASK[task], PAPER_HOURS[task]
        command = f"mambanorm study --notebooks 08 --tasks {task} --scale paper"
        cells = {"run here": f"not run: `{command}`", "ours, %": "–", "our gain": "–"}
        for compared, description in descriptions.items():
            accuracies = _accuracies_of_pair(runs, compared)
            if len(accuracies):
                cells = _cells_of_pair(accuracies, description, runs[runs.task == compared].scale)
                break
        table[name] = {
            "the paper, %": "{:.2f} → {:.2f}".format(*printed.loc[name]),
            "length in the paper": length,
            **cells,
            "RMSN→None at the paper's size": f"{hours} h; GPU {gpu_hours} h",
        }
    return pd.DataFrame(table).T.rename_axis("task")


def _accuracies_of_pair(runs: pd.DataFrame, task: str) -> pd.DataFrame:
    """Return the accuracies (per cent) of ORIGINAL and PROPOSAL on a task, one row for each seed
    that both have.
    """
    of_task = runs[(runs.task == task) & runs.arm.isin([ORIGINAL, PROPOSAL])]
    table = 100 * of_task.pivot(index="seed", columns="arm", values="test_accuracy")
    return table.reindex(columns=[ORIGINAL, PROPOSAL]).dropna()


def _cells_of_pair(accuracies: pd.DataFrame, description: str, scales: pd.Series) -> dict[str, str]:
    """Return what `table_2_beside_runs` says about the accuracies of `_accuracies_of_pair`."""
    gains = accuracies[PROPOSAL] - accuracies[ORIGINAL]
    scale, seeds = ", ".join(scales.unique()), seeds_text([len(gains)])
    return {
        "run here": f"{description}; scale {scale}, {seeds}",
        "ours, %": "{:.1f} → {:.1f}".format(*accuracies.mean()),
        "our gain": difference_with_interval(gains.mean(), *t_interval(gains)),
    }


def gains_beside_paper(steps: pd.DataFrame) -> pd.DataFrame:
    """Return a table of texts with the gain of the proposal over the original: one row for each
    task, first the four tasks of the paper's Table 2, then our other tasks.

    Columns: "the paper" (the gain as printed), "ours, …" (the gain in our runs, with their scales
    in the heading). steps: a table that `paired_steps` returns. Only the rows that compare one of
    PROPOSALS with ORIGINAL are used.
    """
    ours = steps[steps.a.isin(PROPOSALS) & (steps.b == ORIGINAL)]
    texts = [
        f"{label(row.a)}: {difference_with_interval(row.difference, row.low, row.high)}"
        for row in ours.itertuples()
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
