"""The paper's procedure to choose a pair of norms by validation (§4.4), and what choosing costs.

Step 1 chooses the norm after the SSM (N2): the norm whose accuracy is highest, averaged over the
four other norms as N1. Step 2 chooses the norm before the SSM (N1): either the best N1 for that N2
(a search), or NormVary, the paper's second step (§4.5). An arm N1→N2, also written N1>SSM>N2, names
both norms.

Choices use validation accuracies only, and a diverged run counts as chance. Accuracies are
fractions.
"""

from collections.abc import Iterable, Mapping

import pandas as pd

from mambanorm.arms import Arm
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.recorded_results import grid_at_recorded_lr, recorded_lr
from mambanorm_study.tables.replication import configs_to_replicate
from mambanorm_study.tables.run_tables import (
    best_arm,
    paired_steps,
    pairs_only,
    summarize,
)


def pair_validation(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the validation accuracy of each pair of two different norms, averaged over seeds: one
    row for each task and pair.

    Columns: task, n2 (the norm after the SSM), arm (the pair), validation (the mean accuracy, a
    fraction).
    """
    validation = runs.best_val_accuracy.mask(runs.status == "diverged", runs.chance)
    scored = pairs_only(runs.assign(validation=validation))
    mixed = scored[(scored.n1 != "None") & (scored.n2 != "None") & (scored.n1 != scored.n2)]
    return mixed.groupby(["task", "n2", "arm"], sort=False).validation.mean().reset_index()


def two_step_choices(runs: pd.DataFrame) -> dict[str, str]:
    """Return a map from each task to the arm that the paper's two steps choose by validation.

    Step 1 chooses the norm N2 after the SSM whose accuracy is highest, averaged over the norms
    before the SSM. Step 2 chooses the norm before the SSM whose accuracy is highest with
    this N2.
    """
    pairs = pair_validation(runs)
    mean_of_n2 = pairs.groupby(["task", "n2"]).validation.mean()
    best_n2 = mean_of_n2.unstack("task").idxmax()
    candidates = pairs[pairs.n2 == pairs.task.map(best_n2)]
    return candidates.set_index("arm").groupby("task").validation.idxmax().to_dict()


def normvary_runs(
    configs: Iterable[RunConfig], n2: Mapping[str, str], source: str | None = None
) -> list[RunConfig]:
    """Return the runs of the arm NormVary→N2 on each task, on the seeds of `configs`. n2: task →
    norm after the SSM.

    If the configs are recorded but the arm NormVary→N2 is not, this arm has to be trained, so only
    its run on the first seed is returned.
    """
    is_recorded = bool(configs_to_replicate(configs, source))
    runs: list[RunConfig] = []
    for task, norm in n2.items():
        grid = [config for config in configs if config.task == task]
        scale, arm = grid[0].scale, f"NormVary>SSM>{norm}"
        seeds = sorted({config.seed for config in grid})
        if is_recorded and not recorded_lr(task, arm, scale):
            seeds = seeds[:1]
        runs += grid_at_recorded_lr([arm], [task], scale, seeds, source)
    return runs


def ways_to_choose(runs: pd.DataFrame, chosen_arms: Mapping[str, str]) -> pd.DataFrame:
    """Return the arms that six ways of choosing a pair of norms give, one row for each task and
    way.

    chosen_arms: task → the arm of `two_step_choices`. Its norm after the SSM is called N2 here.
    Columns: task, way, arm, those of `summarize`, and rank, the arm's rank by test accuracy among
    all pairs except NormVary→N2. Ways: "two steps" (the arm in chosen_arms), "NormVary"
    (NormVary→N2), "same type" (N2→N2), "original" (Mamba's RMSN→None), "one step" (the best of all
    ranked pairs by validation), "cheating" (the best of all ranked pairs by test accuracy).
    """
    rows = []
    for task, arm in chosen_arms.items():
        n2 = Arm.parse(arm).n2
        task_runs = pairs_only(runs[runs.task == task])
        table = summarize(task_runs, ["arm"]).set_index("arm")
        ranked_means = table["mean"].drop(f"NormVary>SSM>{n2}")
        table["rank"] = ranked_means.rank(ascending=False, method="min")
        arm_of_way = {
            "two steps": arm,
            "NormVary": f"NormVary>SSM>{n2}",
            "same type": f"{n2}>SSM>{n2}",
            "original": "RMSN>SSM>None",
            "one step": best_arm(task_runs, task, ranked_means.index),
            "cheating": ranked_means.idxmax(),
        }
        for way, choice in arm_of_way.items():
            rows.append({"task": task, "way": way, "arm": choice, **table.loc[choice]})
    return pd.DataFrame(rows).astype({"n": "Int64", "rank": "Int64"})


def against_chosen(runs: pd.DataFrame, choices: pd.DataFrame) -> pd.DataFrame:
    """Return the test accuracy of the pair chosen in two steps minus that of each arm that another
    way chooses, over shared seeds: one row for each task and arm.

    choices: the table of `ways_to_choose`. An arm that several ways choose has one row. The columns
    are those of `paired_steps`, with step renamed to way.
    """
    rows = []
    for task, table in choices.groupby("task", sort=False):
        chosen = table.arm[table.way == "two steps"].iloc[0]
        rivals = table[table.arm != chosen].drop_duplicates("arm")
        steps = {rival.way: (chosen, rival.arm) for rival in rivals.itertuples()}
        rows.append(paired_steps(runs[runs.task == task], steps))
    return pd.concat(rows, ignore_index=True).rename(columns={"step": "way"})


def on_complete_seeds(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs on the seeds on which every arm of their task was run."""
    by_task = runs.groupby("task").arm
    by_seed = runs.groupby(["task", "seed"]).arm
    return runs[by_seed.transform("nunique") == by_task.transform("nunique")]


def winners_curse(runs: pd.DataFrame) -> pd.DataFrame:
    """Return how much lower the test accuracy of the arm that is best on one seed is on the other
    seeds, one row for each task and each seed of `on_complete_seeds`.

    Columns: task, seed; winner, the arm with the best test accuracy on this seed; accuracy, the
    winner's test accuracy on this seed; other_seeds, the winner's mean test accuracy on the other
    seeds (NaN if there are none); points_lost, accuracy − other_seeds in percentage
    points.
    """
    rows = []
    for task, task_runs in on_complete_seeds(runs).groupby("task", sort=False):
        table = task_runs.pivot(index="arm", columns="seed", values="test_accuracy")
        for seed, winner in table.idxmax().items():
            accuracy, elsewhere = table.loc[winner, seed], table.loc[winner].drop(seed).mean()
            rows.append((task, seed, winner, accuracy, elsewhere, 100 * (accuracy - elsewhere)))
    columns = ["task", "seed", "winner", "accuracy", "other_seeds", "points_lost"]
    return pd.DataFrame(rows, columns=columns)
