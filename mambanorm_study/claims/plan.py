"""Lists of the runs that the verdicts need, and functions that train these runs.

An arm is a choice of norms, e.g. RMSN>SSM>GN: RMSN before the SSM, and GN after it. An arm is tuned
once, at three learning rates on the tuning seeds. Its learning rate is then fixed, and the arm is
tested on the test seeds. The runs of a claim are therefore trained in two rounds: first tuning runs
for the arms that have no learning rate yet, then test runs.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd

from mambanorm.arms import Arm
from mambanorm_study.basics.settings import STUDY_SCALE, check_scale, default_scale
from mambanorm_study.claims.claim import MAIN_TASK, Claim
from mambanorm_study.claims.evidence import NEW_TUNING_SEEDS, Evidence, tasks_of
from mambanorm_study.claims.hypotheses import BEYOND, CLAIMS, find_claim
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import (
    FIRST_TEST_SEED,
    LAST_TEST_SEED,
    QUESTION_SEEDS,
    Cell,
    base_config,
    check_names,
    check_seeds,
    check_task,
    grid,
    unique,
)
from mambanorm_study.runs.needed_runs import TrainedRuns, train_needed
from mambanorm_study.runs.presets import kind_of
from mambanorm_study.runs.store import load_runs
from mambanorm_study.tables.experiments import fixed_runs, inside_task, lr_grid, model_of
from mambanorm_study.tables.summaries import with_summaries

PROTOCOL = Path(__file__).with_name("PROTOCOL.md")

# The tasks on which claims about tuned arms are tested at the default scale.
TRAINED_TASKS = ("curves", "listops", "glyphs", "glyphs_images", "pydoc", "paths16")

# At the other scales: the tasks on which claims about tuned arms are tested, and the number of test
# seeds. Comparisons that belong to no claim have this number of test seeds, too.
VERDICT_TASKS, VERDICT_SEEDS = ("digits", "digits_images"), 8

# The ids of the claims that can be judged only if the models of their runs are evaluated or trained
# again.
NEED_MODELS = {"H15v", "H16s"}


def planned_tasks(claim: str | Claim, scale: str) -> list[str]:
    """Return the tasks on which a claim is tested at a scale."""
    claim = find_claim(claim)
    if claim.runs != "tuned":
        return [inside_task(scale)]
    if scale == STUDY_SCALE:
        return [MAIN_TASK[claim.kind], *claim.other_tasks]
    return tasks_of(claim, VERDICT_TASKS, scale)


def planned_seeds(claim: str | Claim, scale: str, task: str = "curves") -> tuple[int, ...]:
    """Return the planned test seeds of a claim on a task at a scale."""
    claim = find_claim(claim)
    if scale != STUDY_SCALE:
        return tuple(range(FIRST_TEST_SEED, FIRST_TEST_SEED + VERDICT_SEEDS))
    return claim.seeds if task in claim.other_tasks else claim.seeds + claim.further_seeds


def tuned_arms(task: str, *, with_further_seeds: bool = False) -> tuple[str, ...]:
    """Return the arms of all claims that are about tuned arms and are tested on a task at the
    default scale, each arm once.

    with_further_seeds: True restricts the claims to those that have additional test seeds.
    """
    claims = [
        claim
        for claim in (CLAIMS | BEYOND).values()
        if claim.runs == "tuned"
        and task in planned_tasks(claim, STUDY_SCALE)
        and (claim.further_seeds or not with_further_seeds)
    ]
    return tuple(dict.fromkeys(arm for claim in claims for arm in claim.arms))


def check_test_seeds(seeds: int | Iterable[int], runs: str = "tuned") -> tuple[int, ...]:
    """Return the given test seeds as a tuple.

    seeds: a list of seeds, or a number n for the first n test seeds, e.g. 8 for 52 to 59; this
    number does not count QUESTION_SEEDS. runs: the field `runs` of the claim. Raises ValueError for
    a seed that is not a test seed, and for a list in which only some seeds are in QUESTION_SEEDS,
    because comparisons would leave these out. For claims with fixed learning rates, every seed
    below 100 is allowed.
    """
    listed = tuple(check_seeds(seeds, "smoke"))
    if not isinstance(seeds, Iterable):
        of_claims = set(range(FIRST_TEST_SEED, LAST_TEST_SEED + 1)) - set(QUESTION_SEEDS)
        if len(listed) > len(of_claims):
            raise ValueError(f"there are {len(of_claims)} test seeds, got {len(listed)}")
        listed = tuple(sorted(of_claims)[: len(listed)])
    elif runs == "tuned" and 0 < len(set(listed) & set(QUESTION_SEEDS)) < len(listed):
        raise ValueError(
            f"seeds {QUESTION_SEEDS[0]} to {QUESTION_SEEDS[-1]} are those of questions: give only "
            f"these or none of them, got {', '.join(map(str, listed))}"
        )
    first = FIRST_TEST_SEED if runs == "tuned" else 0
    wrong_seeds = [str(seed) for seed in listed if not first <= seed <= LAST_TEST_SEED]
    if wrong_seeds:
        raise ValueError(
            f"test seeds are {first} to {LAST_TEST_SEED}, got {', '.join(wrong_seeds)}: lower "
            "seeds and seeds from 100 on choose learning rates. A plain number, such as 8, takes "
            "the first test seeds, 52 to 59"
        )
    return listed


def check_comparable(arms: Sequence[str], task: str, scale: str) -> list[str]:
    """Return the names under which the runs of these arms or cells are stored.

    Raises ValueError if they cannot be compared on the task: if two have the same settings, if one
    is a Mamba and another a Transformer, if the task is a regression, or if the task is a language
    model and a norm of the arms sees later positions.
    """
    if kind_of(check_task(task)) == "table":
        raise ValueError(
            f"{task} is a regression, and the rule of the verdicts does not apply to regressions: "
            "use `sweep`"
        )
    names = {base_config(task, scale, arm=arm).run_id: str(Cell.parse(arm)) for arm in arms}
    if len(names) < len(arms):
        raise ValueError(f"{arms[0]} is compared with itself: give two different arms")
    model_of(arms)
    if kind_of(task) == "language":
        from mambanorm.norms import check_causal  # imported here, because other tasks need no torch

        norms = [norm for arm in arms for norm in Arm.parse(Cell.parse(arm).arm).norms]
        check_causal(norms, "which a language model predicts")
    return list(names.values())


def tuning_runs(arm: str, task: str, evidence: Evidence) -> list[RunConfig]:
    """Return the configs of an arm's tuning runs on a task; [] if its tuning runs are recorded."""
    if any(seed < FIRST_TEST_SEED for seed in evidence.validation_scores(arm, task).index):
        return []
    settings = dict(evidence.changes, scale=evidence.scale, seeds=NEW_TUNING_SEEDS)
    lrs = lr_grid(task, evidence.scale, model_of([arm]))
    return [config for lr in lrs for config in grid([arm], [task], lr=lr, **settings)]


def is_tuned(arm: str, task: str, evidence: Evidence) -> bool:
    """Return True if all tuning runs of an arm on a task are known."""
    seeds = set(evidence.validation_scores(arm, task).index)
    return any(seed < FIRST_TEST_SEED for seed in seeds) or set(NEW_TUNING_SEEDS) <= seeds


def arm_runs(
    arms: Iterable[str], task: str, seeds: Iterable[int], evidence: Evidence
) -> list[RunConfig]:
    """Return the configs of the runs of these arms that are needed next on a task: tuning runs for
    each arm that has no recorded tuning runs, and test runs for each arm that has been tuned.

    seeds: the test seeds. evidence: the known runs.
    """
    settings = dict(evidence.changes, scale=evidence.scale, seeds=seeds)
    configs: list[RunConfig] = []
    for arm in arms:
        configs += tuning_runs(arm, task, evidence)
        if is_tuned(arm, task, evidence):
            configs += grid([arm], [task], lr=evidence.lr(arm, task), **settings)
    return configs


def needed(
    claim_id: str | Claim,
    seeds: int | Iterable[int] | None = None,
    tasks: Iterable[str] | None = None,
    scale: str | None = None,
    frame: pd.DataFrame | Evidence | None = None,
) -> list[RunConfig]:
    """Return the configs of the runs that the verdict on a claim needs next, given the known runs
    `frame`.

    An arm that is not tuned in `frame` needs its tuning runs first: train them, then call `needed`
    again with a frame that has them. seeds: a list of test seeds, or a number n for the first n
    test seeds; None means the planned seeds. tasks: None means the planned tasks. Raises ValueError
    for an unknown claim, and for seeds that are not test seeds.
    """
    claim = find_claim(claim_id)
    scale = default_scale() if scale is None else check_scale(scale)
    test_seeds = None if seeds is None else check_test_seeds(seeds, claim.runs)
    if tasks is None:
        claim_tasks = planned_tasks(claim, scale)
    else:
        claim_tasks = tasks_of(claim, check_names("tasks", tasks), scale)
    evidence = Evidence(frame, scale)
    configs: list[RunConfig] = []
    for task in map(check_task, claim_tasks):
        used_seeds = test_seeds or planned_seeds(claim, scale, task)
        if claim.runs == "tuned":
            configs += arm_runs(claim.arms, task, used_seeds, evidence)
        else:
            configs += fixed_runs(claim.runs, claim.arms, scale, used_seeds)
    return unique(configs)


def verdict_runs(
    claims: Iterable[str],
    frame: pd.DataFrame,
    *,
    seeds: int | Iterable[int] | None = None,
    tasks: Iterable[str] | None = None,
    scale: str | None = None,
) -> list[RunConfig]:
    """Return the configs of the runs that the verdicts on these claims need next, given the known
    runs `frame`. The other arguments are as in `needed`.
    """
    evidence = Evidence(frame, default_scale() if scale is None else scale)
    configs = [needed(claim, seeds, tasks, evidence.scale, evidence) for claim in claims]
    return unique(chain.from_iterable(configs))


def train_verdicts(
    claims: Iterable[str],
    *,
    seeds: int | Iterable[int] | None = None,
    tasks: Iterable[str] | None = None,
    scale: str | None = None,
    runs_dir: str | Path | None = None,
    **engine: Any,
) -> TrainedRuns:
    """Train the missing runs for the verdicts on these claims. Return a `TrainedRuns`, whose
    `known` holds all known runs, with the columns that `with_summaries` adds.

    seeds, tasks: see `needed`. engine: the arguments scheduler, workers, client and progress of
    `sweep`.
    """
    scale = default_scale() if scale is None else scale
    claims = check_names("claims", claims)
    find_needed = partial(verdict_runs, claims, seeds=seeds, tasks=tasks, scale=scale)
    trained = train_needed(find_needed, scale, runs_dir, **engine)
    rerun_models = not NEED_MODELS.isdisjoint(claims)
    return add_summaries(trained, scale, runs_dir, rerun_models=rerun_models)


def add_summaries(
    trained: TrainedRuns, scale: str, runs_dir: str | Path | None, *, rerun_models: bool = False
) -> TrainedRuns:
    """Return a copy of `trained` in which the stored runs have the columns of `with_summaries`."""
    stored = load_runs(runs_dir, scale=scale)
    if stored.empty:
        return trained
    with_columns = with_summaries(stored, runs_dir, rerun_models=rerun_models)
    recorded = trained.known[~trained.known.run_id.isin(stored.run_id)]
    return trained._replace(known=pd.concat([with_columns, recorded], ignore_index=True))
