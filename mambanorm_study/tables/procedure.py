"""The paper's procedure to choose a pair of norms (§4.4), by validation, and the cost of choosing.

Step 1 chooses the norm after the SSM (N2): the one with the highest mean accuracy over the four
other norms before it. Step 2 chooses the norm before the SSM (N1): the best one with that N2 (a
search), or NormVary, which is the paper's second step (§4.5).

Only validation accuracies are used for choices, and a diverged run counts as chance. Accuracies are
fractions.
"""

from collections.abc import Iterable, Mapping

import pandas as pd

from mambanorm.arms import Arm
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.recorded_lr import grid_at_recorded_lr, recorded_lr
from mambanorm_study.tables.replication import to_replicate
from mambanorm_study.tables.run_tables import (
    choose,
    paired_steps,
    pairs_only,
    summarize,
)


def partners(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the mean validation accuracy over seeds of each pair of two different norms on each
    task: task, n2, arm, validation.
    """
    validation = runs.best_val_accuracy.mask(runs.status == "diverged", runs.chance)
    scored = pairs_only(runs.assign(validation=validation))
    mixed = scored[(scored.n1 != "None") & (scored.n2 != "None") & (scored.n1 != scored.n2)]
    return mixed.groupby(["task", "n2", "arm"], sort=False).validation.mean().reset_index()


def two_steps(runs: pd.DataFrame) -> dict[str, str]:
    """Return for each task the pair that the two steps choose, with the search as step 2."""
    pairs = partners(runs)
    mean_of_n2 = pairs.groupby(["task", "n2"]).validation.mean()
    best_n2 = mean_of_n2.unstack("task").idxmax()
    candidates = pairs[pairs.n2 == pairs.task.map(best_n2)]
    return candidates.set_index("arm").groupby("task").validation.idxmax().to_dict()


def normvary_runs(
    configs: Iterable[RunConfig], n2: Mapping[str, str], source: str | None = None
) -> list[RunConfig]:
    """Return the runs of NormVary before the N2 chosen on each task, on the seeds of `configs`.

    If the configs are recorded and this arm is not, it has to be trained, so only the first seed is
    returned.
    """
    is_recorded = bool(to_replicate(configs, source))
    runs: list[RunConfig] = []
    for task, norm in n2.items():
        grid = [config for config in configs if config.task == task]
        scale, arm = grid[0].scale, f"NormVary>SSM>{norm}"
        seeds = sorted({config.seed for config in grid})
        if is_recorded and not recorded_lr(task, arm, scale):
            seeds = seeds[:1]
        runs += grid_at_recorded_lr([arm], [task], scale, seeds, source)
    return runs


def ways(runs: pd.DataFrame, chosen: Mapping[str, str]) -> pd.DataFrame:
    """Return the pair chosen on each task and five other choices, one row for each task and way of
    choosing.

    Columns: task, way, arm, those of `summarize`, and `rank` by test accuracy among all pairs
    without NormVary. Ways: "two steps" (the chosen pair), "NormVary" (before the same N2), "same
    type" (N2 on both sides), "original" (Mamba's RMSN→None), "one step" (best of all pairs on
    validation), "cheating" (best of all pairs on test).
    """
    rows = []
    for task, arm in chosen.items():
        n2 = Arm.parse(arm).n2
        task_runs = pairs_only(runs[runs.task == task])
        table = summarize(task_runs, ["arm"]).set_index("arm")
        fixed = table["mean"].drop(f"NormVary>SSM>{n2}")
        table["rank"] = fixed.rank(ascending=False, method="min")
        arm_of_way = {
            "two steps": arm,
            "NormVary": f"NormVary>SSM>{n2}",
            "same type": f"{n2}>SSM>{n2}",
            "original": "RMSN>SSM>None",
            "one step": choose(task_runs, task, fixed.index),
            "cheating": fixed.idxmax(),
        }
        for way, choice in arm_of_way.items():
            rows.append({"task": task, "way": way, "arm": choice, **table.loc[choice]})
    return pd.DataFrame(rows).astype({"n": "Int64", "rank": "Int64"})


def against_chosen(runs: pd.DataFrame, choices: pd.DataFrame) -> pd.DataFrame:
    """Return the chosen pair minus each other arm of `choices` over shared seeds: rows of
    `paired_steps` with the column way.

    choices: the frame that `ways` returns. An arm that two ways choose has one row.
    """
    rows = []
    for task, table in choices.groupby("task", sort=False):
        chosen = table.arm[table.way == "two steps"].iloc[0]
        rivals = table[table.arm != chosen].drop_duplicates("arm")
        steps = {rival.way: (chosen, rival.arm) for rival in rivals.itertuples()}
        rows.append(paired_steps(runs[runs.task == task], steps))
    return pd.concat(rows, ignore_index=True).rename(columns={"step": "way"})


def winners_curse(runs: pd.DataFrame) -> pd.DataFrame:
    """Return how much test accuracy the best arm of one seed loses on the other seeds, one row for
    each task and seed.

    Columns: task, seed; winner, the best arm on this seed's test; accuracy, with this seed;
    other_seeds, the mean accuracy with the other seeds (NaN if there are none); points_lost, the
    difference in points.
    """
    rows = []
    for task, task_runs in runs.groupby("task", sort=False):
        table = task_runs.pivot(index="arm", columns="seed", values="test_accuracy")
        for seed, winner in table.idxmax().items():
            accuracy, elsewhere = table.loc[winner, seed], table.loc[winner].drop(seed).mean()
            rows.append((task, seed, winner, accuracy, elsewhere, 100 * (accuracy - elsewhere)))
    columns = ["task", "seed", "winner", "accuracy", "other_seeds", "points_lost"]
    return pd.DataFrame(rows, columns=columns)
