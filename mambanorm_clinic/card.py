"""A card for a norm: what it does, what it costs, whether it trains, whether it is better, in words
first.

card_checks.py measures what a norm does; card_rows.py compares it, at each of three places, with
Mamba's original arm and with the best recorded arm, by the rule of the verdicts; card_page.py has
NormCard, its words and its page.

The norm's arms are tuned on four new seeds, then tested on seeds at which the arm that they are
compared with is recorded. A card has a dozen comparisons, and none is corrected for the others.
With fewer seeds than the rule needs a card is a sketch: one learning rate, no ladder, and no words.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from mambanorm.arms import Arm
from mambanorm.norms import NORMS, norm_name
from mambanorm_clinic.card_checks import checks_of, twin
from mambanorm_clinic.card_page import REFERENCE, NormCard, run_seconds
from mambanorm_clinic.card_rows import sketch_of, sketch_rate, strip_of, training_of, verdicts_of
from mambanorm_study.advice.which_arm import check_pair, duel_runs, duel_seeds
from mambanorm_study.basics.extensions import files_to_import, set_imports
from mambanorm_study.basics.settings import STUDY_SCALE, study_scale
from mambanorm_study.basics.text import plural, spell
from mambanorm_study.claims import rule
from mambanorm_study.claims.claim import NONE
from mambanorm_study.claims.evidence import Evidence
from mambanorm_study.claims.plan import TRAINED_TASKS, VERDICT_SEEDS, VERDICT_TASKS, planned_seeds
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import check_names, check_task, grid, unique
from mambanorm_study.runs.needed_runs import known_runs
from mambanorm_study.runs.presets import kind_of
from mambanorm_study.runs.recorded_lr import recorded_lr
from mambanorm_study.tables.experiments import deep_runs, inside_task, ladder_runs
from mambanorm_study.tables.norm_catalog import costs_of
from mambanorm_study.tables.scores import of_test_seeds

FEW = 2
"""The number of seeds of the ladder of rates; models of eight blocks have one."""

LIMIT_S = 3600.0
"""A card refuses to train for longer, unless told otherwise."""


def find_norm(which: str) -> str:
    """Return the name of a registered norm, or of the norm that a file registers. ValueError, in
    one line, for a file that registers none or several, or that fails, and for an unknown name."""
    if not which.endswith(".py"):
        return norm_name(which)
    path, before = Path(which).resolve(), set(NORMS)
    set_imports([which])
    found = [
        name
        for name, entry in NORMS.items()
        if name not in before or _file_of(entry.factory) == path
    ]
    if not found:
        raise ValueError(
            f"{which} registers no norm: it needs a class or function under @mn.register_norm(…)"
        )
    if len(found) > 1:
        names = f"{which} registers {len(found)} norms, {', '.join(found)}"
        raise ValueError(f"{names}: say which, `mambanorm --import {which} card {found[0]}`")
    return found[0]


def _file_of(factory: Any) -> Path | None:
    file = getattr(sys.modules.get(getattr(factory, "__module__", "")), "__file__", None)
    return Path(file).resolve() if file else None


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
    images if the norm is not the kit's, for a card in a quarter of an hour; a list of test seeds is
    judged alone. scale: None = the environment's, else evening. train=False trains nothing. A
    training that would take longer than `limit_s` seconds (None = no limit), or that fails, is left
    out, and the card says so. out: a folder in which the card is written, before and after the
    training. `engine`: sweep's scheduler, workers, client, progress.

    ValueError for an unknown norm, task or scale, a task of regression, and for a file without a
    norm.
    """
    name, scale = find_norm(which), study_scale(scale)
    tasks = (
        card_tasks(scale) if tasks is None else tuple(map(check_task, check_names("tasks", tasks)))
    )
    against = str(Arm.parse(against))
    for task in tasks:  # a regression is refused here, before anything is measured
        check_pair(against, next(arm for arm in (NONE, REFERENCE) if arm != against), task)
    of_images = VERDICT_SEEDS if NORMS[name].built_in else rule.FEWEST  # images take longer
    own = {}
    for task in (*tasks, inside_task(scale)):
        usual = of_images if kind_of(task) == "vision" else VERDICT_SEEDS
        own[task] = card_seeds(task, scale, usual if seeds is None else seeds, against)
    card = _measured(
        NormCard(name, scale, tasks, own, against, which=which if which.endswith(".py") else "")
    )
    if out is not None and train:
        card.save(out)
    if train and not card.same:
        factory = NORMS[card.name].factory
        known = {str(_file_of(factory)), getattr(factory, "__module__", "")} & {*files_to_import()}
        engine = (
            {} if NORMS[card.name].built_in or known else dict(workers=0)
        ) | engine  # workers know no others
        card = replace(card, untrained=_trained(card, runs_dir, limit_s, engine))
    known = known_runs(card.scale, runs_dir)
    if seeds is not None and not isinstance(seeds, int):
        known = pd.concat(
            [of_test_seeds(known[known.task == task], used) for task, used in card.seeds.items()]
        )
    card = _read(card, known, runs_dir)
    if out is not None:
        card.save(out)
    return card


def _measured(card: NormCard) -> NormCard:
    """Return the card with checks, costs, and the norm of the kit that it equals. A norm that fails
    has no costs."""
    checks, costs, notes, same = checks_of(card.name), pd.DataFrame(), (), ""
    try:
        costs, same = costs_of(card.name), "" if NORMS[card.name].built_in else twin(card.name)
    except Exception as error:  # anything that a norm of a user's own may raise
        notes = (
            f"Its costs could not be measured: {type(error).__name__}: {' '.join(str(error).split())[:160]}.",
        )
    return replace(card, checks=checks, costs=costs, same=same, notes=notes)


def card_tasks(scale: str) -> tuple[str, ...]:
    """Return a task of sequences and a task of images: recorded ones of the scale, else those of
    the verdicts."""
    known = [task for task in TRAINED_TASKS if recorded_lr(task, REFERENCE, scale)]
    of_kind = {
        kind: [t for t in (*known, *VERDICT_TASKS) if kind_of(t) == kind]
        for kind in ("sequence", "vision")
    }
    return tuple(tasks[0] for tasks in of_kind.values())


def card_seeds(
    task: str, scale: str, seeds: int | Iterable[int], against: str = REFERENCE
) -> list[int]:
    """Return the seeds on which a norm's arms are tested (`which_arm.duel_seeds`); on the task of
    §4.6, for trained models, the seeds of the recorded ladders of rates."""
    if task == inside_task(STUDY_SCALE) and scale == STUDY_SCALE:
        number = seeds if isinstance(seeds, int) else len(list(seeds))
        return list(planned_seeds("E2s", scale)[:number])
    return duel_seeds(against, task, scale, seeds)


# ------------------------------------------------------------------------------------- the training


def _tasks(card: NormCard) -> list[str]:
    """Return the tasks that the norm can be used on: in a language model it must be declared and
    measured as causal."""
    causal = NORMS[card.name].causal and card.sees_ahead == "no"
    return [task for task in card.tasks if causal or kind_of(task) != "language"]


def card_runs(card: NormCard, known: pd.DataFrame) -> list[RunConfig]:
    """Return the runs that a frame lacks for a card: at each place tuning runs, or test runs if the
    arm is tuned; the ladder of rates; and models of eight blocks. A sketch has one rate a task.
    Once these are trained, ask again."""
    arms, asked = list(card.arms.values()), []
    for task in _tasks(card):
        seeds = card.seeds[task]
        if card.sketch:
            asked += grid(
                [*arms, card.against],
                task,
                scale=card.scale,
                seeds=seeds,
                lr=sketch_rate(card, task),
            )
            continue
        for arm in arms:
            if arm != card.against:
                asked += duel_runs(arm, card.against, task, seeds, card.scale, known)
    if not card.sketch:
        few = card.seeds[inside_task(card.scale)][:FEW]
        asked += [*ladder_runs(arms, card.scale, few), *deep_runs(card.scale, few[:1], arms)]
    held = set(known.run_id) if len(known) else set()
    return unique(config for config in asked if config.run_id not in held)


def later_runs(card: NormCard, known: pd.DataFrame) -> list[RunConfig]:
    """Return the test runs of the arms that must be tuned first, for an estimate: their learning
    rate is not known."""
    evidence, runs = Evidence(known, card.scale), []
    for task in [] if card.sketch else _tasks(card):
        arms = [arm for arm in card.arms.values() if evidence.lr(arm, task) is None]
        runs += grid(arms, [task], scale=card.scale, seeds=card.seeds[task]) if arms else []
    return runs


def seconds_of(card: NormCard, configs: Sequence[RunConfig], engine: dict[str, Any]) -> float:
    """Return about how long these runs take: as long as recorded runs, plus what the norm costs
    more than RMSN."""
    from mambanorm_study.runs.cluster import count_workers

    slower = 0.0
    if len(card.costs):
        cost = card.costs.iloc[1]
        slower = max(cost.ms * (1 - 1 / cost.over_rmsn), 0) / 1e3
    extra = sum(
        c.steps * c.n_layers * Arm.parse(c.arm).norms.count(card.name) * slower for c in configs
    )
    workers = max(
        1, count_workers(list(configs), engine.get("workers", "auto"), engine.get("scheduler"))
    )
    return (sum(map(run_seconds, configs)) + extra) / workers


def _trained(
    card: NormCard, runs_dir: Any, limit_s: float | None, engine: dict[str, Any]
) -> tuple[str, ...]:
    """Train the missing runs, round by round; return sentences about what could not be trained."""
    from mambanorm_study.runs.sweep import (
        sweep,
    )  # here, because recorded runs are read without Dask

    failed: dict[str, str] = {}
    anyway, doubt = "`--yes` (limit_s=None) trains it all the same", NORMS[card.name].doubt
    if limit_s is not None and doubt.startswith("trying it"):
        return (f"Not trained: {doubt}. {anyway}.",)
    while True:
        known = known_runs(card.scale, runs_dir)
        runs = [config for config in card_runs(card, known) if config.run_id not in failed]
        if not runs:
            break
        planned = [*runs, *later_runs(card, known)]
        if limit_s is not None and (takes := seconds_of(card, planned, engine)) > limit_s:
            sketch = "`--seeds 3` a sketch"
            return (
                f"Not trained: {len(planned)} runs would take about {spell(takes)}. {anyway}, {sketch}.",
            )
        frame = sweep(runs, runs_dir=runs_dir, **engine)
        lost = frame[frame.status == "failed"]
        failed.update(zip(lost.run_id, lost.error, strict=True))
    first = " ".join(str(next(iter(failed.values()), "")).split())
    return (
        (f"{plural(len(failed), 'run')} could not be trained; the first: {first[:200]}.",)
        if failed
        else ()
    )


# ------------------------------------------------------------------------------ what is known of it


def _read(card: NormCard, known: pd.DataFrame, runs_dir: str | Path | None) -> NormCard:
    """Return the card with what the known runs say."""
    if known.empty:
        return replace(card, training=training_of(card, known, runs_dir))
    verdicts, strips = [], {}
    evidence = Evidence(known, card.scale)
    for task in _tasks(card):
        lr = sketch_rate(card, task) if card.sketch else None
        verdicts += (sketch_of if card.sketch else verdicts_of)(card, task, evidence)
        strips[task] = strip_of(evidence, task, tuple(card.arms.values()), lr)
    training = training_of(card, known, runs_dir)
    return replace(card, training=training, verdicts=pd.DataFrame(verdicts), strips=strips)


def kit_cards(scale: str | None = None, names: Iterable[str] | None = None) -> list[NormCard]:
    """Return the cards of the kit's norms from recorded runs; nothing is trained."""
    scale = study_scale(scale)
    known, tasks = known_runs(scale), card_tasks(scale)
    own = {
        task: card_seeds(task, scale, VERDICT_SEEDS)
        for task in dict.fromkeys((*tasks, inside_task(scale)))
    }
    names = names or [name for name, entry in NORMS.items() if entry.built_in and name != "None"]
    return [_read(_measured(NormCard(name, scale, tasks, own)), known, None) for name in names]
