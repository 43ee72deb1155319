"""`norm_card`: make a norm card, which is a page about one norm.

The page says what the norm does and costs, whether a model with the norm trains, and whether this
model is better than models with other norms.

An arm is a choice of norms for the sites of a Mamba block, such as RMSN>SSM>None (see arms.py). A
card has three arms, one per position of the norm: before the block, after the scan, and on both
sides. card_checks.py measures what the norm does. card_tables.py compares each arm with Mamba's
original arm and with the best recorded arm, by the rule in PROTOCOL.md. card_text.py writes the
sentences. card_page.py has the class NormCard, which writes the page.

The learning rate of an arm without recorded runs is tuned on the four NEW_TUNING_SEEDS of
evidence.py. The arm is then tested on the seeds that are recorded for the arm with which it is
compared. A card has about a dozen comparisons, whose confidence intervals are not corrected for
multiple comparisons.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from mambanorm.arms import Arm
from mambanorm.norms import NORMS, registered_name
from mambanorm_clinic.card_checks import behaviour_of, checks_of, error_text, twin
from mambanorm_clinic.card_page import NormCard
from mambanorm_clinic.card_tables import comparison_rows, score_table, training_table
from mambanorm_clinic.card_text import REFERENCE
from mambanorm_study.advice.which_arm import comparison_runs, comparison_seeds
from mambanorm_study.basics.extensions import files_to_import, set_imports
from mambanorm_study.basics.settings import study_scale
from mambanorm_study.basics.text import plural
from mambanorm_study.claims import rule
from mambanorm_study.claims.claim import NONE
from mambanorm_study.claims.evidence import Evidence
from mambanorm_study.claims.plan import (
    TRAINED_TASKS,
    VERDICT_TASKS,
    check_comparable,
    planned_seeds,
)
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import check_names, check_task, grid, unique
from mambanorm_study.runs.needed_runs import known_runs, train_needed
from mambanorm_study.runs.presets import kind_of
from mambanorm_study.runs.recorded_results import recorded_lr
from mambanorm_study.tables.experiments import inside_task, ladder_runs
from mambanorm_study.tables.norm_catalog import costs_by_shape
from mambanorm_study.tables.scores import select_test_seeds

# Number of seeds on which each arm of a card is trained at each of five learning rates. Many arms
# diverge at the highest of these rates.
SEEDS_PER_RATE = 2


def norm_card(
    norm: str,
    *,
    tasks: str | Iterable[str] | None = None,
    seeds: int | Iterable[int] | None = None,
    scale: str | None = None,
    against: str = REFERENCE,
    train: bool = True,
    runs_dir: str | Path | None = None,
    frame: pd.DataFrame | None = None,
    out: str | Path | None = None,
    **engine: Any,
) -> NormCard:
    """Return the NormCard of a norm, after training the runs that the card needs.

    norm: a registered name, or a file that registers a norm. tasks: None means one sequence task
    and one image task (see `card_tasks`); on a language task only a causal norm is compared. seeds:
    a list of test seeds, or the number of recorded seeds to compare on (see
    `which_arm.comparison_seeds`); None means 8, but 6 on image tasks if the norm is not built in.
    scale: None means the scale in the environment variable MAMBANORM_SCALE or, if it is not set,
    "evening". against: the arm (the norms of a block, such as RMSN>SSM>None) with which the arms
    that contain the norm are compared. train: False means that recorded and stored runs are read
    and no run is trained. runs_dir: the run store. frame: a run frame (one row per run) with
    further known runs, such as those of a colleague. out: the folder to which the card is written;
    None writes no file.
    engine: the arguments scheduler, workers, client and progress of `sweep`.

    Raises ValueError for an unknown norm, task or scale, for a regression task, and for a file that
    registers no norm. If a run cannot be trained, no error is raised; the card reports the failure.
    """
    card = _measured_card(norm, tasks, seeds, study_scale(scale), str(Arm.parse(against)))
    if train and card.behaviour:
        card = replace(card, untrained=_train_missing_runs(card, runs_dir, frame, engine))
    known = known_runs(card.scale, runs_dir, frame)
    evidences = {}
    for task in usable_tasks(card):
        runs = known[known.task == task]
        if seeds is not None and not isinstance(seeds, int):
            runs = select_test_seeds(runs, card.seeds[task])
        evidences[task] = Evidence(runs, card.scale)
    card = _with_results(card, evidences, _evidence(known, inside_task(card.scale), card.scale))
    if out is not None:
        card.save(out)
    return card


def _measured_card(
    norm: str,
    tasks: str | Iterable[str] | None,
    seeds: Any,
    scale: str,
    against: str,
    costs: pd.DataFrame | None = None,
) -> NormCard:
    """Return the card of a norm without results of runs.

    norm, tasks, seeds: see `norm_card`. costs: the norm's table of `costs_by_shape`; None means
    that the costs are measured.
    """
    name, tasks = find_norm(norm), _check_card_tasks(tasks, scale, against)
    test_seeds = {task: _test_seeds(name, task, scale, seeds, against) for task in tasks}
    return _measure_norm(NormCard(name, scale, tasks, test_seeds, against), costs)


def _with_results(
    card: NormCard, evidences: Mapping[str, Evidence], training_evidence: Evidence
) -> NormCard:
    """Return a copy of the card with the results of known runs.

    evidences: task → the known runs on the task. training_evidence: the known runs on
    `inside_task`.
    """
    rows, scores = [], {}
    for task in usable_tasks(card):
        rows += comparison_rows(card, task, evidences[task])
        scores[task] = score_table(card.arms.values(), task, evidences[task])
    scores = {task: table for task, table in scores.items() if len(table)}
    training = training_table(card, training_evidence)
    return replace(card, training=training, verdicts=pd.DataFrame(rows), scores=scores)


def find_norm(norm: str) -> str:
    """Return the registered name of a norm.

    norm: the registered name itself, or the path of a .py file that registers the norm; the file is
    imported. Raises ValueError for an unknown name, and for a file that raises an error or does not
    register exactly one norm.
    """
    if not norm.endswith(".py"):
        return registered_name(norm)
    path, registered_before = Path(norm).resolve(), set(NORMS)
    set_imports([norm])
    names = [
        name
        for name, entry in NORMS.items()
        if name not in registered_before or _source_file(entry.factory) == path
    ]
    if not names:
        raise ValueError(
            f"{norm} registers no norm: decorate a class or a function with @mn.register_norm(…)"
        )
    if len(names) > 1:
        raise ValueError(
            f"{norm} registers {len(names)} norms, {', '.join(names)}: choose one by its name, "
            f"`mambanorm --import {norm} card {names[0]}`"
        )
    return names[0]


def _source_file(factory: Any) -> Path | None:
    file = getattr(sys.modules.get(getattr(factory, "__module__", "")), "__file__", None)
    return Path(file).resolve() if file else None


def _check_card_tasks(
    tasks: str | Iterable[str] | None, scale: str, against: str
) -> tuple[str, ...]:
    if tasks is None:
        tasks = card_tasks(scale)
    else:
        tasks = tuple(check_task(task) for task in check_names("tasks", tasks))
    other_arm = NONE if against != NONE else REFERENCE
    for task in tasks:
        check_comparable([against, other_arm], task, scale)
    return tasks


def card_tasks(scale: str) -> tuple[str, ...]:
    """Return the default tasks of a card: one sequence task and one image task.

    Each is the first task of its kind in TRAINED_TASKS on which Mamba's original arm has recorded
    tuning runs at this scale. If there is no such task, it is the first task of its kind in
    VERDICT_TASKS.
    """
    tasks = [task for task in TRAINED_TASKS if recorded_lr(task, REFERENCE, scale)]
    tasks += VERDICT_TASKS
    return tuple(
        next(task for task in tasks if kind_of(task) == kind) for kind in ("sequence", "vision")
    )


def _test_seeds(name: str, task: str, scale: str, seeds: Any, against: str) -> list[int]:
    if seeds is None and kind_of(task) == "vision" and not NORMS[name].built_in:
        seeds = rule.FEWEST  # fewer seeds, because runs on images take longer
    return comparison_seeds(against, task, scale, seeds)


def _measure_norm(card: NormCard, costs: pd.DataFrame | None) -> NormCard:
    """Return a copy of the card with the norm's behaviour, checks and costs.

    The copy's attribute `same` is the name of a built-in norm that computes the same, "" if there
    is none. If the norm raises an error, only the attribute `untrained` is set, to a tuple with one
    sentence on the error.
    """
    try:
        behaviour = behaviour_of(card.name)
        costs = costs_by_shape([card.name])[card.name] if costs is None else costs
    except Exception as error:  # a user's norm may raise any exception
        reason = f"The norm was not measured or trained, because it failed: {error_text(error)}."
        return replace(card, untrained=(reason,))
    return replace(
        card,
        behaviour=behaviour,
        checks=checks_of(card.name, behaviour),
        costs=costs,
        same="" if NORMS[card.name].built_in else twin(card.name),
    )


def kit_cards(scale: str | None = None, names: Iterable[str] | None = None) -> list[NormCard]:
    """Return a list with the NormCard of each built-in norm, without training any run.

    scale: as for `norm_card`. names: the norms; None means all built-in norms except the norm
    "None".
    """
    if names is None:
        names = [name for name, entry in NORMS.items() if entry.built_in and name != "None"]
    scale = study_scale(scale)
    known = known_runs(scale)
    evidences = {task: _evidence(known, task, scale) for task in card_tasks(scale)}
    inside = inside_task(scale)
    training_evidence = evidences.get(inside) or _evidence(known, inside, scale)
    names = list(names)
    costs = costs_by_shape(names)
    cards = [_measured_card(name, None, None, scale, REFERENCE, costs[name]) for name in names]
    return [_with_results(card, evidences, training_evidence) for card in cards]


def _evidence(known: pd.DataFrame, task: str, scale: str) -> Evidence:
    return Evidence(known[known.task == task], scale)


# --------------------------------------------------------------------------------------------------
# the runs of a card


def usable_tasks(card: NormCard) -> list[str]:
    """Return a list of the card's tasks on which models with the card's norm can be compared.

    The list includes language tasks only if the norm is declared causal and was measured as causal.
    The list is empty if the norm raised an error when it was measured.
    """
    if card.behaviour is None:
        return []
    is_causal = NORMS[card.name].causal and card.behaviour.looks_ahead is None
    return [task for task in card.tasks if is_causal or kind_of(task) != "language"]


def card_runs(card: NormCard, known: pd.DataFrame) -> list[RunConfig]:
    """Return the configs of the runs that a card needs next and that are not in `known`.

    known: a DataFrame with one row per known run. Each arm of the card needs runs at five learning
    rates. On each usable task the arm also needs tuning runs or, if its learning rate is tuned
    already, test runs. Call this function again after the tuning runs are trained, because they
    determine the learning rate of the test runs.
    """
    arms = list(card.arms.values())
    configs = ladder_runs(arms, card.scale, planned_seeds("E2s", card.scale)[:SEEDS_PER_RATE])
    for task in usable_tasks(card):
        for arm in arms:
            if arm != card.against:
                configs += comparison_runs(
                    arm, card.against, task, card.seeds[task], card.scale, known
                )
    known_ids = set(known.run_id)
    return unique(config for config in configs if config.run_id not in known_ids)


def missing_runs(
    card: NormCard, runs_dir: str | Path | None = None, frame: pd.DataFrame | None = None
) -> list[RunConfig]:
    """Return the configs of all runs that a card still needs, to estimate how long the runs take.

    The test runs of an arm that is not tuned yet get the default learning rate of the scale. The
    list is empty if the norm raised an error when it was measured, or if the norm computes the same
    as a built-in norm. runs_dir, frame: as in `norm_card`.
    """
    if card.behaviour is None or card.same:
        return []
    known = known_runs(card.scale, runs_dir, frame)
    configs, evidence = card_runs(card, known), Evidence(known, card.scale)
    for task in usable_tasks(card):
        untuned = [arm for arm in card.arms.values() if evidence.lr(arm, task) is None]
        if untuned:
            configs += grid(untuned, task, scale=card.scale, seeds=card.seeds[task])
    return configs


def _train_missing_runs(
    card: NormCard,
    runs_dir: str | Path | None,
    frame: pd.DataFrame | None,
    engine: dict[str, Any],
) -> tuple[str, ...]:
    """Train the missing runs of a card.

    Returns a tuple with one sentence on the runs that could not be trained, or () if no run failed.
    engine: arguments of `sweep`.
    """
    if not missing_runs(card, runs_dir, frame):
        return ()
    norm = NORMS[card.name]
    if not (norm.built_in or str(_source_file(norm.factory)) in files_to_import()):
        engine = {"workers": 0, **engine}  # worker processes would not know the norm
    failed = train_needed(partial(card_runs, card), card.scale, runs_dir, frame, **engine).failed
    if failed.empty:
        return ()
    error = " ".join(str(failed.error.iloc[0]).split())[:200]
    return (f"{plural(len(failed), 'run')} could not be trained; the first error is: {error}.",)
