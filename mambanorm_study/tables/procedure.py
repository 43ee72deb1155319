"""The paper's procedure for a pair of norms (§4.4), by validation, and the cost of choosing.

Step 1 fixes the norm after the SSM: the N2 with the highest mean over the four other norms before
it. Step 2 fixes the norm before: the N1 that is best with that N2 (a search), or NormVary, which is
the paper's second step (§4.5).

Choices read validation alone; a diverged run counts as chance there. Accuracies are fractions.
"""

from collections.abc import Iterable, Mapping

import pandas as pd

from mambanorm.arms import Arm
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.recorded_results import grid_at_recorded_lr, recorded_lr
from mambanorm_study.tables.replication import to_replicate
from mambanorm_study.tables.run_tables import check_frame, choose, paired, pairs_only, summarize


def validation(runs: pd.DataFrame) -> pd.Series:
    """Return the best validation accuracy of each run; chance where it diverged."""
    check_frame(runs, ("best_val_accuracy", "status", "chance"))
    return runs.best_val_accuracy.where(runs.status != "diverged", runs.chance)


def partners(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row a task and pair of two different norms: task, n2, arm, validation (mean of
    seeds).
    """
    scored = pairs_only(runs.assign(validation=validation(runs)))
    mixed = scored[(scored.n1 != "None") & (scored.n2 != "None") & (scored.n1 != scored.n2)]
    return mixed.groupby(["task", "n2", "arm"], sort=False).validation.mean().reset_index()


def worth_of_n2(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return step 1's table: mean, std and min of the validation accuracy over the partners of each
    N2, indexed by task and n2.
    """
    return pairs.groupby(["task", "n2"]).validation.agg(["mean", "std", "min"])


def best_n2(worth: pd.DataFrame, by: str = "mean") -> dict[str, str]:
    """Return task → the N2 with the highest `by`: mean over the partners (the paper's), or min, the
    worst partner.
    """
    return worth[by].unstack("task").idxmax().to_dict()


def best_pair(pairs: pd.DataFrame, n2: Mapping[str, str]) -> dict[str, str]:
    """Return step 2's search: task → the arm with the highest validation accuracy among those with
    that N2.
    """
    candidates = pairs[pairs.n2 == pairs.task.map(n2)]
    return candidates.set_index("arm").groupby("task").validation.idxmax().to_dict()


def two_steps(runs: pd.DataFrame, by: str = "mean") -> dict[str, str]:
    """Return task → the pair that step 1 (with criterion `by`) and the search choose."""
    pairs = partners(runs)
    return best_pair(pairs, best_n2(worth_of_n2(pairs), by))


def normvary_runs(
    configs: Iterable[RunConfig], n2: Mapping[str, str], source: str | None = None
) -> list[RunConfig]:
    """Return NormVary before the N2 chosen on each task, on the seeds of the grid's configs.

    Where the grid is recorded and this arm is not, it is trained here: on the first seed only.
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
    """Return the pair chosen on each task beside five others, with their test accuracy: one row a
    task and way, with the columns of `summarize` and `rank` on test among all pairs but NormVary's.

    Ways: `two steps` (the chosen pair), `NormVary` before the same N2, `same type` at both sites,
    `original` (Mamba's RMSN→None), `one step` (best of all on validation), `cheating` (best of all
    on test).
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
        for way, arm_of in arm_of_way.items():
            rows.append({"task": task, "way": way, "arm": arm_of, **table.loc[arm_of]})
    return pd.DataFrame(rows).astype({"n": "Int64", "rank": "Int64"})


def against_chosen(runs: pd.DataFrame, read: pd.DataFrame) -> pd.DataFrame:
    """Return the chosen pair minus each other arm of `ways` (the frame `read`), over shared seeds:
    rows of `paired` with the way. An arm of two ways has one row.
    """
    rows = []
    for task, table in read.groupby("task", sort=False):
        chosen = table.arm[table.way == "two steps"].iloc[0]
        rivals = table[table.arm != chosen].drop_duplicates("arm")
        task_runs = runs[runs.task == task]
        for rival in rivals.itertuples():
            rows.append(paired(task_runs, chosen, rival.arm).assign(way=rival.way))
    return pd.concat(rows, ignore_index=True)


def winners_curse(runs: pd.DataFrame) -> pd.DataFrame:
    """Return how much accuracy the best arm of one seed's test loses on the other seeds, one row a
    task and seed.

    Columns: task, seed, winner; told, its accuracy at that seed; elsewhere, its mean over the
    others (NaN with one seed); points_lost, told − elsewhere.
    """
    rows = []
    for task, task_runs in runs.groupby("task", sort=False):
        table = task_runs.pivot(index="arm", columns="seed", values="test_accuracy")
        for seed in table:
            winner = table[seed].idxmax()
            told = table.loc[winner, seed]
            elsewhere = table.drop(columns=seed).loc[winner].mean()
            rows.append((task, seed, winner, told, elsewhere, 100 * (told - elsewhere)))
    columns = ["task", "seed", "winner", "told", "elsewhere", "points_lost"]
    return pd.DataFrame(rows, columns=columns)
