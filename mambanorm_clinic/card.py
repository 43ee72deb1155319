"""A card for a norm: what it does, what it costs, whether it trains, whether it is better, in words
first.

card_checks.py measures what a norm does; card_tables.py compares it, at each of three places, with
Mamba's original arm and with the best recorded arm, by the rule of the verdicts; card_text.py has
the sentences, and card_page.py NormCard and its page.

The norm's arms are tuned on four new seeds, then tested on seeds at which the arm that they are
compared with is recorded. A card has a dozen comparisons, and none is corrected for the others.
With fewer seeds than the rule needs a card is a sketch: one learning rate, no ladder, and no words.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from mambanorm.arms import Arm
from mambanorm.norms import NORMS, norm_name
from mambanorm_clinic.card_checks import checks_of, error_text, try_norm, twin
from mambanorm_clinic.card_estimates import run_seconds
from mambanorm_clinic.card_facts import REFERENCE
from mambanorm_clinic.card_page import NormCard
from mambanorm_clinic.card_tables import (
    comparison_rows,
    score_table,
    sketch_lr,
    training_table,
)
from mambanorm_study.advice.which_arm import check_pair, duel_runs, duel_seeds
from mambanorm_study.basics.extensions import files_to_import, set_imports
from mambanorm_study.basics.settings import STUDY_SCALE, study_scale
from mambanorm_study.basics.text import plural, spell
from mambanorm_study.claims import rule
from mambanorm_study.claims.claim import NONE
from mambanorm_study.claims.evidence import Evidence
from mambanorm_study.claims.plan import (
    TRAINED_TASKS,
    VERDICT_SEEDS,
    VERDICT_TASKS,
    planned_seeds,
)
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import check_names, check_task, grid, unique
from mambanorm_study.runs.needed_runs import known_runs, train_needed
from mambanorm_study.runs.presets import kind_of
from mambanorm_study.runs.recorded_results import recorded_lr
from mambanorm_study.tables.experiments import deep_runs, inside_task, ladder_runs
from mambanorm_study.tables.norm_catalog import costs_of
from mambanorm_study.tables.scores import of_test_seeds

# Seconds from which a training must be asked for.
LIMIT_S = 3600.0
# Seeds of the ladder of learning rates; models of eight blocks have one.
LADDER_SEEDS = 2


def norm_card(
    which: str,
    *,
    tasks: str | Iterable[str] | None = None,
    seeds: int | Iterable[int] | None = None,
    scale: str | None = None,
    against: str = REFERENCE,
    train: bool = True,
    limit_s: float | None = LIMIT_S,
    runs_dir: str | Path | None = None,
    out: str | Path | None = None,
    **engine: Any,
) -> NormCard:
    """Return the card of a norm: a registered name, or a file that registers it.

    tasks: None = the recorded sequence and image task of the scale (`card_tasks`); a language task
    must be named, and the norm be causal. seeds: as in `which_arm.duel_seeds`; None = 8, but 6 on
    images if the norm is not the kit's; a list of test seeds is judged alone. scale: None = the
    environment's, else evening. train=False trains nothing. The card says so if a training fails,
    or is left out because it would take longer than `limit_s` seconds (None = no limit). out: a
    folder in which the card is written, before and after the training. `engine`: sweep's scheduler,
    workers, client, progress.

    Raises ValueError for an unknown norm, task or scale, a regression, and a file without a norm.
    """
    name, scale, against = find_norm(which), study_scale(scale), str(Arm.parse(against))
    tasks = _check_card_tasks(tasks, scale, against)
    card = NormCard(
        name,
        scale,
        tasks,
        _seeds_by_task(name, tasks, scale, seeds, against),
        against,
        file=which if which.endswith(".py") else "",
    )
    card = _measure(card)
    if train:
        if out is not None:
            card.save(out)
        if not card.same:
            if not _is_known_to_workers(name):
                engine = {"workers": 0, **engine}
            card = replace(card, untrained=train_card(card, runs_dir, limit_s, engine))
    known = known_runs(scale, runs_dir)
    if seeds is not None and not isinstance(seeds, int):
        frames = [of_test_seeds(known[known.task == task], s) for task, s in card.seeds.items()]
        known = pd.concat(frames)
    card = _judge(card, known, runs_dir)
    if out is not None:
        card.save(out)
    return card


def find_norm(which: str) -> str:
    """Return the name of a registered norm, or of the norm that a file registers.

    Raises ValueError, in one line, for a file that registers none or several, or that fails, and
    for an unknown name.
    """
    if not which.endswith(".py"):
        return norm_name(which)
    path, registered_before = Path(which).resolve(), set(NORMS)
    set_imports([which])
    names = [
        name
        for name, entry in NORMS.items()
        if name not in registered_before or _file_of(entry.factory) == path
    ]
    if not names:
        raise ValueError(
            f"{which} registers no norm: it needs a class or function under @mn.register_norm(…)"
        )
    if len(names) > 1:
        raise ValueError(
            f"{which} registers {len(names)} norms, {', '.join(names)}: say which, "
            f"`mambanorm --import {which} card {names[0]}`"
        )
    return names[0]


def _file_of(factory: Any) -> Path | None:
    file = getattr(sys.modules.get(getattr(factory, "__module__", "")), "__file__", None)
    return Path(file).resolve() if file else None


def _is_known_to_workers(name: str) -> bool:
    """Return True if other processes can import a norm: the kit's, or one of an imported file."""
    factory = NORMS[name].factory
    places = {str(_file_of(factory)), getattr(factory, "__module__", "")}
    return NORMS[name].built_in or not places.isdisjoint(files_to_import())


def _check_card_tasks(
    tasks: str | Iterable[str] | None, scale: str, against: str
) -> tuple[str, ...]:
    if tasks is None:
        tasks = card_tasks(scale)
    else:
        tasks = tuple(check_task(task) for task in check_names("tasks", tasks))
    other_arm = NONE if against != NONE else REFERENCE
    for task in tasks:
        check_pair(against, other_arm, task)
    return tasks


def _seeds_by_task(
    name: str, tasks: tuple[str, ...], scale: str, seeds: Any, against: str
) -> dict[str, list[int]]:
    """Return the test seeds by task; by default fewer on images if the norm is not the kit's,
    because images take longer.
    """
    seeds_by_task = {}
    for task in (*tasks, inside_task(scale)):
        is_slow = kind_of(task) == "vision" and not NORMS[name].built_in
        default = rule.FEWEST if is_slow else VERDICT_SEEDS
        seeds_by_task[task] = card_seeds(task, scale, default if seeds is None else seeds, against)
    return seeds_by_task


def _measure(card: NormCard) -> NormCard:
    """Return the card with checks, costs, and the norm of the kit that it equals.

    A norm that fails has no costs.
    """
    trial = try_norm(card.name)
    card = replace(card, trial=trial, checks=checks_of(trial))
    try:
        costs, same = costs_of(card.name), "" if NORMS[card.name].built_in else twin(card.name)
    except Exception as error:  # a norm of yours may raise anything
        return replace(card, notes=(f"Its costs could not be measured: {error_text(error)}.",))
    return replace(card, costs=costs, same=same)


def _judge(card: NormCard, known: pd.DataFrame, runs_dir: str | Path | None) -> NormCard:
    """Return the card with the results of the known runs."""
    training = training_table(card, known, runs_dir)
    if known.empty:
        return replace(card, training=training)
    rows, scores = [], {}
    evidence = Evidence(known, card.scale)
    for task in usable_tasks(card):
        rows += comparison_rows(card, task, evidence)
        scores[task] = score_table(card, task, evidence)
    return replace(card, training=training, verdicts=pd.DataFrame(rows), scores=scores)


def kit_cards(scale: str | None = None, names: Iterable[str] | None = None) -> list[NormCard]:
    """Return the cards of the kit's norms from recorded runs; nothing is trained."""
    scale = study_scale(scale)
    known, tasks = known_runs(scale), card_tasks(scale)
    if names is None:
        names = [name for name, entry in NORMS.items() if entry.built_in and name != "None"]
    cards = []
    for name in names:
        seeds = _seeds_by_task(name, tasks, scale, VERDICT_SEEDS, REFERENCE)
        cards.append(_judge(_measure(NormCard(name, scale, tasks, seeds)), known, None))
    return cards


# --------------------------------------------------------------------------------------------------
# the runs of a card


def card_tasks(scale: str) -> tuple[str, ...]:
    """Return a task of sequences and a task of images: recorded ones of the scale, else those of
    the verdicts.
    """
    tasks = [task for task in TRAINED_TASKS if recorded_lr(task, REFERENCE, scale)]
    tasks += VERDICT_TASKS
    return tuple(
        next(task for task in tasks if kind_of(task) == kind) for kind in ("sequence", "vision")
    )


def card_seeds(task: str, scale: str, seeds: Any, against: str = REFERENCE) -> list[int]:
    """Return the seeds on which a norm's arms are tested (`which_arm.duel_seeds`); on the task of
    §4.6, for trained models, the seeds of the recorded ladders of learning rates.
    """
    if task == inside_task(STUDY_SCALE) and scale == STUDY_SCALE:
        number = seeds if isinstance(seeds, int) else len(list(seeds))
        return list(planned_seeds("E2s", scale)[:number])
    return duel_seeds(against, task, scale, seeds)


def usable_tasks(card: NormCard) -> list[str]:
    """Return the tasks on which the norm can be used: in a language model it must be declared and
    measured as causal.
    """
    behaviour = card.trial.result
    is_causal = NORMS[card.name].causal and behaviour is not None and behaviour.looks_ahead is None
    return [task for task in card.tasks if is_causal or kind_of(task) != "language"]


def card_runs(card: NormCard, known: pd.DataFrame) -> list[RunConfig]:
    """Return the runs that a card needs and that are not among the known ones.

    For each position of the norm: tuning runs, or test runs once the arm is tuned; runs at five
    learning rates; and models of eight blocks. A sketch (a card with few seeds) has one learning
    rate for each task. Call it again after training, because test runs depend on the tuning runs.
    """
    arms, configs = list(card.arms.values()), []
    for task in usable_tasks(card):
        seeds = card.seeds[task]
        if card.sketch:
            every_arm, lr = [*arms, card.against], sketch_lr(card, task)
            configs += grid(every_arm, task, scale=card.scale, seeds=seeds, lr=lr)
            continue
        for arm in arms:
            if arm != card.against:
                configs += duel_runs(arm, card.against, task, seeds, card.scale, known)
    if not card.sketch:
        seeds = card.seeds[inside_task(card.scale)][:LADDER_SEEDS]
        configs += ladder_runs(arms, card.scale, seeds)
        configs += deep_runs(card.scale, seeds[:1], arms)
    known_ids = set(known.run_id) if len(known) else set()
    return unique(config for config in configs if config.run_id not in known_ids)


def later_runs(card: NormCard, known: pd.DataFrame) -> list[RunConfig]:
    """Return the test runs of the arms that must be tuned first, for an estimate: their learning
    rate is not known.
    """
    if card.sketch:
        return []
    evidence, configs = Evidence(known, card.scale), []
    for task in usable_tasks(card):
        arms = [arm for arm in card.arms.values() if evidence.lr(arm, task) is None]
        if arms:
            configs += grid(arms, [task], scale=card.scale, seeds=card.seeds[task])
    return configs


def seconds_of(card: NormCard, configs: Sequence[RunConfig], engine: dict[str, Any]) -> float:
    """Return about how many seconds these runs take: as long as recorded runs, plus what the norm
    costs more than RMSN.
    """
    from mambanorm_study.runs.cluster import count_workers  # recorded runs are read without Dask

    seconds = run_seconds(configs)
    if len(card.costs):
        cost = card.costs.iloc[1]
        extra = max(cost.ms * (1 - 1 / cost.over_rmsn), 0) / 1e3
        for config in configs:
            norms = Arm.parse(config.arm).norms.count(card.name)
            seconds += config.steps * config.n_layers * norms * extra
    workers = count_workers(list(configs), engine.get("workers", "auto"), engine.get("scheduler"))
    return seconds / max(1, workers)


def train_card(
    card: NormCard, runs_dir: str | Path | None, limit_s: float | None, engine: dict[str, Any]
) -> tuple[str, ...]:
    """Train the missing runs of a card; return sentences on what could not be trained."""
    anyway = "`--yes` (limit_s=None) trains it all the same"
    if limit_s is not None and card.trial.error is not None:
        return (f"Not trained: trying it ended in {error_text(card.trial.error)}. {anyway}.",)
    known = known_runs(card.scale, runs_dir)
    configs = [*card_runs(card, known), *later_runs(card, known)]
    if not configs:
        return ()
    if limit_s is not None:
        seconds = seconds_of(card, configs, engine)
        if seconds > limit_s:
            return (
                f"Not trained: {len(configs)} runs would take about {spell(seconds)}. {anyway}, "
                "`--seeds 3` a sketch.",
            )
    failed = train_needed(partial(card_runs, card), card.scale, runs_dir, **engine).failed
    if failed.empty:
        return ()
    error = " ".join(str(failed.error.iloc[0]).split())[:200]
    return (f"{plural(len(failed), 'run')} could not be trained; the first: {error}.",)
