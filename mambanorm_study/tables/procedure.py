"""The paper's way to a pair of norms (§4.4), carried out on validation accuracy, and what choosing
costs (notebook 05).

Step 1 fixes the norm after the SSM: the N2 with the highest mean over the four other norms before
it. Step 2 fixes the norm before: the N1 that is best with that N2 (a search), or NormVary, which is
the paper's own second step (§4.5).

Choices read validation alone; a diverged run counts as chance there. Accuracies are fractions.
"""

from collections.abc import Iterable, Mapping

import pandas as pd

from mambanorm.arms import Arm
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.recorded_results import at_own_rates, own_rate
from mambanorm_study.tables.replication import to_replicate
from mambanorm_study.tables.run_tables import check_frame, choose, paired, pairs_only, summarize


def validation(runs: pd.DataFrame) -> pd.Series:
    """The best validation accuracy of each run; chance where it diverged."""
    check_frame(runs, ("best_val_accuracy", "status", "chance"))
    return runs.best_val_accuracy.where(runs.status != "diverged", runs.chance)


def partners(runs: pd.DataFrame) -> pd.DataFrame:
    """One row a task and pair of two *different* norms, None left out: task, n2, arm, validation
    (mean of seeds)."""
    scored = pairs_only(runs.assign(validation=validation(runs)))
    mixed = scored[(scored.n1 != "None") & (scored.n2 != "None") & (scored.n1 != scored.n2)]
    return mixed.groupby(["task", "n2", "arm"], sort=False).validation.mean().reset_index()


def worth_of_n2(pairs: pd.DataFrame) -> pd.DataFrame:
    """Step 1: mean, std and min of the validation accuracy over the partners of each N2; indexed by
    task and n2."""
    return pairs.groupby(["task", "n2"]).validation.agg(["mean", "std", "min"])


def best_n2(worth: pd.DataFrame, by: str = "mean") -> dict[str, str]:
    """Task → the N2 with the highest `by`: mean over the partners (the paper's), or min, the worst
    partner."""
    return worth[by].unstack("task").idxmax().to_dict()


def best_pair(pairs: pd.DataFrame, n2: Mapping[str, str]) -> dict[str, str]:
    """Step 2 as a search: task → the arm with the highest validation accuracy among those with that
    N2."""
    mine = pairs[pairs.n2 == pairs.task.map(n2)]
    return mine.set_index("arm").groupby("task").validation.idxmax().to_dict()


def two_steps(runs: pd.DataFrame, by: str = "mean") -> dict[str, str]:
    """Task → the pair that step 1 (with criterion `by`) and the search choose on these runs."""
    pairs = partners(runs)
    return best_pair(pairs, best_n2(worth_of_n2(pairs), by))


def normvary_runs(
    configs: Iterable[RunConfig], n2: Mapping[str, str], source: str | None = None
) -> list[RunConfig]:
    """NormVary before the N2 chosen on each task, on the seeds of the grid's configs. Where the
    grid is recorded and this arm is not, on the first of them: it is trained here."""
    known, found = to_replicate(configs, source), []
    for task, name in n2.items():
        like = [config for config in configs if config.task == task]
        arm, seeds = f"NormVary>SSM>{name}", sorted({config.seed for config in like})
        if known and not own_rate(task, arm, like[0].scale):
            seeds = seeds[:1]
        found += at_own_rates([arm], [task], like[0].scale, seeds, source)
    return found


def ways(runs: pd.DataFrame, chosen: Mapping[str, str]) -> pd.DataFrame:
    """The pair chosen on each task and five others, read on test: one row a task and way, with the
    columns of `tables.summarize` and `rank` on test among all pairs but NormVary's.

    Ways: `two steps` (the chosen pair), `NormVary` before the same N2, `same type` at both sites,
    `original` (Mamba's RMSN→None), `one step` (best of all on validation), `cheating` (best of all
    on test).
    """
    rows = []
    for task, arm in chosen.items():
        n2 = Arm.parse(arm).n2
        adaptive, runs_here = f"NormVary>SSM>{n2}", pairs_only(runs[runs.task == task])
        here = summarize(runs_here, ["arm"]).set_index("arm")
        fixed = here["mean"].drop(adaptive)
        here["rank"] = fixed.rank(ascending=False, method="min")
        arms = {
            "two steps": arm,
            "NormVary": adaptive,
            "same type": f"{n2}>SSM>{n2}",
            "original": "RMSN>SSM>None",
        }
        arms |= {"one step": choose(runs_here, task, fixed.index), "cheating": fixed.idxmax()}
        rows += [dict(task=task, way=way, arm=one, **here.loc[one]) for way, one in arms.items()]
    return pd.DataFrame(rows).astype({"n": "Int64", "rank": "Int64"})


def against_chosen(runs: pd.DataFrame, read: pd.DataFrame) -> pd.DataFrame:
    """The chosen pair minus each other arm of `ways`, over shared seeds (`tables.paired`), with the
    way beside it. An arm that stands there in two ways has one row."""
    rows = []
    for task, here in read.groupby("task", sort=False):
        mine = here.arm[here.way == "two steps"].iloc[0]
        others = here[here.arm != mine].drop_duplicates("arm")
        runs_here = runs[runs.task == task]
        rows += [
            paired(runs_here, mine, row.arm).assign(way=row.way) for row in others.itertuples()
        ]
    return pd.concat(rows, ignore_index=True)


def winners_curse(runs: pd.DataFrame) -> pd.DataFrame:
    """What the best arm of one seed's test accuracy loses on the other seeds, one row a task and
    seed: told, its accuracy at that seed; elsewhere, its mean over the others (NaN with one seed);
    points_lost, told − elsewhere."""
    rows = []
    for task, group in runs.groupby("task", sort=False):
        table = group.pivot(index="arm", columns="seed", values="test_accuracy")
        for seed in table:
            winner = table[seed].idxmax()
            told, rest = table.loc[winner, seed], table.drop(columns=seed).loc[winner].mean()
            rows.append((task, seed, winner, told, rest, 100 * (told - rest)))
    return pd.DataFrame(
        rows, columns=["task", "seed", "winner", "told", "elsewhere", "points_lost"]
    )
