"""Which runs the verdicts need, and training them. cli/recording.py records them.

An arm is tuned once, at three learning rates on the tuning seeds; its rate is then fixed and tested
on the test seeds. The runs of a claim therefore come in two rounds: the tuning runs of the arms
that have no rate, then the test runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from mambanorm_study.basics.settings import check_scale, default_scale
from mambanorm_study.claims.claim import Claim
from mambanorm_study.claims.evidence import NEW_TUNING_SEEDS, Evidence, tasks_of
from mambanorm_study.claims.hypotheses import BEYOND, CLAIMS, find_claim
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import (
    FIRST_TEST_SEED,
    LAST_TEST_SEED,
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

# The tasks of the verdicts at the default scale, "evening".
TRAINED_TASKS = ("curves", "listops", "glyphs", "glyphs_images", "pydoc")

# The tasks of the verdicts at the other scales, and how many test seeds; a comparison of two arms
# has as many.
VERDICT_TASKS, VERDICT_SEEDS = ("digits", "digits_images"), 8

TEST_SEEDS, FURTHER_TEST_SEEDS = tuple(range(52, 64)), tuple(range(64, 76))
# The claims whose arms have twice as many test seeds at scale evening, on curves, images and text.
OFTENER = ("H4s", "H4v", "H8s", "H8v", "H8l")

# The seeds of the claims with fixed learning rates, on `mnist1d`. Version 11 recorded and read
# these runs.
FIXED_SEEDS = {
    **dict.fromkeys(("H9s", "H16s"), tuple(range(40, 80))),
    **dict.fromkeys(("H10s", "H11s", "H12s", "E1s"), tuple(range(40, 60))),
    **dict.fromkeys(("H13s", "E2s"), tuple(range(40, 48))),
}

# The claims that are asked on a task where not every claim about its kind is.
ONLY = {"listops": ("H8s",), "glyphs": ("H1s", "H2s")}


def planned_tasks(claim: str | Claim, scale: str) -> list[str]:
    """Return the tasks that a claim is asked on."""
    claim = find_claim(claim)
    if claim.runs != "tuned":
        return [inside_task(scale)]
    tasks = TRAINED_TASKS if scale == "evening" else VERDICT_TASKS
    return [
        task for task in tasks_of(claim, tasks, scale) if claim.id in ONLY.get(task, (claim.id,))
    ]


def planned_seeds(claim: str | Claim, scale: str, task: str = "curves") -> tuple[int, ...]:
    """Return the test seeds that are planned for the verdict on a claim."""
    name = find_claim(claim).id
    if scale != "evening":
        return tuple(range(FIRST_TEST_SEED, FIRST_TEST_SEED + VERDICT_SEEDS))
    further = FURTHER_TEST_SEEDS if name in OFTENER and task not in ONLY else ()
    return FIXED_SEEDS.get(name, TEST_SEEDS + further)


def tuned_arms(
    task: str, scale: str = "evening", only: Iterable[str] | None = None
) -> tuple[str, ...]:
    """Return the arms of the claims that are asked on a task, of all or `only` of some."""
    known = CLAIMS | BEYOND
    claims = [known[name] for name in known if only is None or name in only]
    claims = [claim for claim in claims if claim.runs == "tuned" and claim.kind == kind_of(task)]
    if scale == "evening":
        claims = [claim for claim in claims if task in planned_tasks(claim, scale)]
    return tuple(dict.fromkeys(arm for claim in claims for arm in claim.arms))


def check_test_seeds(seeds: int | Iterable[int], runs: str = "tuned") -> tuple[int, ...]:
    """Return test seeds: 8 → 52…59, a list as it is. ValueError for seeds that tune; a claim with
    fixed learning rates (`runs` as in `Claim`) takes any seed below 100."""
    listed = check_seeds(seeds, "smoke")
    seeds = (
        tuple(listed)
        if isinstance(seeds, Iterable)
        else tuple(seed + FIRST_TEST_SEED for seed in listed)
    )
    first = FIRST_TEST_SEED if runs == "tuned" else 0
    if wrong := [seed for seed in seeds if not first <= seed <= LAST_TEST_SEED]:
        raise ValueError(
            f"test seeds are {first} to {LAST_TEST_SEED}, got {', '.join(map(str, wrong))}: lower seeds and those from "
            "100 on choose learning rates. A plain number, such as 8, takes the first test seeds, 52 to 59"
        )
    return seeds


def arm_runs(
    arms: Iterable[str],
    task: str,
    seeds: Iterable[int],
    evidence: Evidence,
    tuning: tuple[int, ...] = NEW_TUNING_SEEDS,
) -> list[RunConfig]:
    """Return the runs of these arms on a task that are needed next: the tuning runs of an arm that
    the kit did not tune, and the test runs of an arm that has a learning rate. `evidence`: the runs
    that are known."""
    configs, how = [], dict(scale=evidence.scale, **dict(evidence.changes))
    for arm in arms:
        tuned_on = set(evidence.tuned(arm, task).index)
        recorded = any(seed < FIRST_TEST_SEED for seed in tuned_on)
        if not recorded:
            for lr in lr_grid(task, evidence.scale, model_of([arm])):
                configs += grid([arm], [task], seeds=tuning, lr=lr, **how)
        if recorded or set(tuning) <= tuned_on:
            configs += grid([arm], [task], seeds=seeds, lr=evidence.rate(arm, task), **how)
    return configs


def needed(
    claim_id: str | Claim,
    seeds: int | Iterable[int] | None = None,
    tasks: Iterable[str] | None = None,
    scale: str | None = None,
    frame: pd.DataFrame | Evidence | None = None,
    changes: Mapping[str, Any] | None = None,
) -> list[RunConfig]:
    """Return the runs that the verdict on a claim needs next, on these tasks (None: the planned
    ones).

    frame: the runs that are known. An arm that it does not tune yet needs its tuning runs first:
    train, then ask again. changes: fields in which the runs differ from those of the scale, such as
    dict(n_layers=8). ValueError for an unknown claim and for seeds that are no test seeds.
    """
    claim, scale = find_claim(claim_id), default_scale() if scale is None else check_scale(scale)
    seeds = None if seeds is None else check_test_seeds(seeds, claim.runs)
    tasks = (
        planned_tasks(claim, scale)
        if tasks is None
        else tasks_of(claim, check_names("tasks", tasks), scale)
    )
    if claim.runs != "tuned":
        seeds = seeds or planned_seeds(claim, scale)
        return unique(fixed_runs(claim.runs, claim.arms, scale, seeds)) if tasks else []
    evidence, configs = Evidence(frame, scale, changes=changes), []
    for task in map(check_task, tasks):
        configs += arm_runs(claim.arms, task, seeds or planned_seeds(claim, scale, task), evidence)
    return configs


def verdict_runs(
    claims: Iterable[str],
    frame: pd.DataFrame,
    *,
    seeds: int | Iterable[int] | None = None,
    tasks: Iterable[str] | None = None,
    scale: str | None = None,
) -> list[RunConfig]:
    """Return the runs that the verdicts on these claims need next, as in `needed`."""
    evidence = Evidence(frame, default_scale() if scale is None else scale)
    return unique(
        config for name in claims for config in needed(name, seeds, tasks, evidence.scale, evidence)
    )


def train_verdicts(
    claims: Iterable[str],
    *,
    seeds: int | Iterable[int] | None = None,
    tasks: Iterable[str] | None = None,
    scale: str | None = None,
    runs_dir: str | Path | None = None,
    **engine: Any,
) -> TrainedRuns:
    """Train what the verdicts on these claims lack. The runs that are known then have the summaries
    of the inside of models; H15v and H16s need models to run or train once more."""
    scale, asked = (
        default_scale() if scale is None else scale,
        dict(seeds=seeds, tasks=tasks, scale=scale),
    )
    claims = check_names("claims", claims)
    trained = train_needed(
        lambda frame: verdict_runs(claims, frame, **asked), scale, runs_dir, **engine
    )
    own = load_runs(runs_dir, scale=scale)
    summed = with_summaries(own, runs_dir, again=not {"H15v", "H16s"}.isdisjoint(claims))
    others = trained.known[~trained.known.run_id.isin(own.run_id)]
    return trained._replace(
        known=pd.concat([summed, others], ignore_index=True) if len(own) else others
    )
