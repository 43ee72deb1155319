"""A card for a norm: what it does, what it costs, whether it trains, whether it is better, in words first.

What a norm does is measured in card_checks.py. Better, worse or neither is said by `which_arm.answer`, the rule of
the verdicts, at each of three places, against Mamba's own arm and against the best recorded one; their runs are
recorded. NormCard, its words and its page are in card_page.py.

Each comparison stands by itself at the protocol's level: a card has a dozen, and none is corrected for the others.
With fewer seeds than the rule judges a card is a sketch: one learning rate, no ladder, and no verdict.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from mambanorm.advice.card_checks import checks_of, twin
from mambanorm.advice.card_page import REFERENCE, NormCard, run_seconds, strip_of
from mambanorm.advice.which_arm import answer, duel, duel_runs, frame_of, ranking
from mambanorm.arms import Arm
from mambanorm.basics.extensions import asked_imports, set_imports
from mambanorm.basics.settings import KIT_NORMS, study_scale
from mambanorm.basics.text import spell
from mambanorm.claims import rule
from mambanorm.claims.claim import NONE, Claim, Comparison
from mambanorm.claims.evidence import LEARNS, Evidence, kind_of
from mambanorm.claims.needed import VERDICT_TASKS
from mambanorm.claims.protocol import TRAINED_TASKS, VERDICT_SEEDS, planned_seeds
from mambanorm.config import RunConfig
from mambanorm.look import growth, norm_quantiles, token_norms
from mambanorm.models.classifier import SequenceClassifier
from mambanorm.norms import NORMS, norm_name
from mambanorm.runs.grid import base_config, check_names, check_seeds, check_task, grid, unique
from mambanorm.runs.recorded_results import own_rate, recorded, recorded_path
from mambanorm.runs.store import stored_run
from mambanorm.study.experiments import all_rates, deep_runs, inside_task, ladder, ladder_runs
from mambanorm.study.norm_catalog import costs_of
from mambanorm.study.summaries import growth_facts, headroom_facts
from mambanorm.study.tables import points

FEW = 2
"""Seeds of what is no verdict: the ladder of rates, and eight blocks."""
LIMIT_S = 3600.0
"""A longer training is refused unless it is asked for."""


def find_norm(which: str) -> str:
    """The name of a registered norm, or of the one that a file registers. ValueError, in one line, for a file that
    registers none or several, or that fails, and for an unknown name."""
    if not which.endswith(".py"):
        return norm_name(which)
    path, before = Path(which).resolve(), set(NORMS)
    set_imports([which])
    found = [name for name, entry in NORMS.items() if name not in before or _file_of(entry.factory) == path]
    if not found:
        raise ValueError(f"{which} registers no norm: it needs a class or function under @mn.register_norm(…)")
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
    """The card of a norm: a registered name, or a file that registers it.

    tasks: None = the recorded sequence and image task of the scale (`card_tasks`); a language task if it is named and
    the norm is causal. seeds: a number = so many of the recorded ones of `against`, the arm to compare with; a list =
    those; None = 8, but of images 6 where the norm is not the kit's, for a card in a quarter of an hour. scale: None:
    the environment's, else evening. train=False reads what is there. A training that would take longer than `limit_s`
    seconds (None = no limit), or that fails, is left out; the card says so. out: a folder in which the card is written,
    before and after the training. `engine`: sweep's scheduler, workers, client, progress.

    ValueError for an unknown norm, task or scale, a task of regression, and for a file without a norm.
    """
    name, scale = find_norm(which), study_scale(scale)
    tasks = card_tasks(scale) if tasks is None else tuple(map(check_task, check_names("tasks", tasks)))
    against = str(Arm.parse(against))
    for task in tasks:  # a regression is refused here, before anything is measured
        duel(against, next(arm for arm in (NONE, REFERENCE) if arm != against), task)
    few = VERDICT_SEEDS if name in KIT_NORMS else rule.FEWEST  # images take longer
    usual = {task: few if kind_of(task) == "vision" else VERDICT_SEEDS for task in (*tasks, inside_task(scale))}
    own = {task: card_seeds(task, scale, many if seeds is None else seeds, against) for task, many in usual.items()}
    card = _measured(NormCard(name, scale, tasks, own, against, which=which if which.endswith(".py") else ""))
    if out is not None and train:
        card.save(out)
    if train and not card.same:
        factory = NORMS[card.name].factory
        known = {str(_file_of(factory)), getattr(factory, "__module__", "")} & {*asked_imports()}
        engine = ({} if card.name in KIT_NORMS or known else dict(workers=0)) | engine  # workers know no others
        card = replace(card, notes=(*card.notes, *_trained(card, runs_dir, limit_s, engine)))
    card = _read(card, frame_of(card.scale, runs_dir), runs_dir)
    if out is not None:
        card.save(out)
    return card


def _measured(card: NormCard) -> NormCard:
    """With checks, costs and the norm of the kit that it is. A norm that fails has no costs."""
    checks, costs, notes, same = checks_of(card.name), pd.DataFrame(), (), ""
    try:
        costs, same = costs_of(card.name), "" if card.name in KIT_NORMS else twin(card.name)
    except Exception as error:  # anything that a norm of a user's own may raise
        notes = (f"Its costs could not be measured: {type(error).__name__}: {' '.join(str(error).split())[:160]}.",)
    return replace(card, checks=checks, costs=costs, same=same, notes=notes)


def card_tasks(scale: str) -> tuple[str, ...]:
    """A task of sequences and one of images: the recorded ones of the scale, else those of the verdicts."""
    known = [task for task in TRAINED_TASKS if own_rate(task, REFERENCE, scale)]
    of_kind = {kind: [t for t in (*known, *VERDICT_TASKS) if kind_of(t) == kind] for kind in ("sequence", "vision")}
    return tuple(tasks[0] for tasks in of_kind.values())


def card_seeds(task: str, scale: str, seeds: int | Iterable[int], against: str = REFERENCE) -> list[int]:
    """The first so many recorded seeds of the arm that it stands against, the partners; a list as it is. On the task of
    §4.6 those of the ladders of rates."""
    known, asked = own_rate(task, against, scale), check_seeds(seeds, scale)
    recorded = planned_seeds("E2s", scale) if task == inside_task(scale) else known[1] if known else ()
    return list(recorded[: len(asked)]) if known and isinstance(seeds, int) else asked


# ------------------------------------------------------------------------------------------------------ the training


def _tasks(card: NormCard) -> list[str]:
    """Those of its tasks on which it may stand: in a language model only what is causal, declared and measured."""
    causal = NORMS[card.name].causal and card.sees_ahead == "no"
    return [task for task in card.tasks if causal or kind_of(task) != "language"]


def card_runs(card: NormCard, known: pd.DataFrame) -> list[RunConfig]:
    """The runs that a frame lacks for a card: at each place the rates of the verdicts, the ladder of rates and eight
    blocks. Its results may ask for further rates. Of a sketch, one rate a task."""
    arms, asked = list(card.arms.values()), []
    for task in _tasks(card):
        seeds = card.seeds[task]
        if card.sketch:
            asked += grid([*arms, card.against], task, scale=card.scale, seeds=seeds, lr=_lr(card, task))
            continue
        for arm in arms:
            if arm != card.against:
                asked += duel_runs(arm, card.against, task, seeds, card.scale, known)
    if not card.sketch:
        few = card.seeds[inside_task(card.scale)][:FEW]
        asked += [*ladder_runs(arms, card.scale, few), *deep_runs(card.scale, few[:1], arms)]
    held = set(known.run_id) if len(known) else set()
    return unique(config for config in asked if config.run_id not in held)


def _lr(card: NormCard, task: str) -> float:
    """The rate of a sketch: the recorded one of the arm that it stands against."""
    known = own_rate(task, card.against, card.scale)
    return known[0] if known else base_config(task, card.scale).lr


def seconds_of(card: NormCard, configs: Sequence[RunConfig], engine: dict[str, Any]) -> float:
    """About how long these runs take: as long as recorded ones, and what the norm costs beside RMSN."""
    from mambanorm.runs.cluster import count_workers

    slower = 0.0
    if len(card.costs):
        cost = card.costs.iloc[1]
        slower = max(cost.ms * (1 - 1 / cost.over_rmsn), 0) / 1e3
    extra = sum(c.steps * c.n_layers * Arm.parse(c.arm).norms.count(card.name) * slower for c in configs)
    workers = max(1, count_workers(list(configs), engine.get("workers", "auto"), engine.get("scheduler")))
    return (sum(map(run_seconds, configs)) + extra) / workers


def _trained(card: NormCard, runs_dir: Any, limit_s: float | None, engine: dict[str, Any]) -> tuple[str, ...]:
    """Trains what lacks, round by round; what could not be done, in sentences."""
    from mambanorm.runs.sweep import sweep  # here: what is recorded is told without Dask

    failed: dict[str, str] = {}
    anyway, doubt = "`--yes` (limit_s=None) trains it all the same", NORMS[card.name].doubt
    if limit_s is not None and doubt.startswith("trying it"):
        return (f"Not trained: {doubt}. {anyway}.",)
    while more := [c for c in card_runs(card, frame_of(card.scale, runs_dir)) if c.run_id not in failed]:
        if limit_s is not None and (takes := seconds_of(card, more, engine)) > limit_s:
            return (f"Not trained: {len(more)} runs would take about {spell(takes)}. {anyway}, `--seeds 3` a sketch.",)
        frame = sweep(more, runs_dir=runs_dir, **engine)
        lost = frame[frame.status == "failed"]
        failed |= dict(zip(lost.run_id, lost.error, strict=True))
    first = " ".join(str(next(iter(failed.values()), "")).split())
    return (f"{len(failed)} runs could not be trained; the first: {first[:200]}.",) if failed else ()


# ------------------------------------------------------------------------------------------------ what is known of it


def _read(card: NormCard, known: pd.DataFrame, runs_dir: str | Path | None) -> NormCard:
    """The card with what recorded and stored runs say."""
    if known.empty:
        return replace(card, training=training_of(card, known, runs_dir))
    verdicts, strips = [], {}
    for task in _tasks(card):
        mine = known[(known.task == task) & known.seed.isin(card.seeds[task])]
        evidence, lr = Evidence(mine, card.scale), _lr(card, task) if card.sketch else None
        verdicts += (sketch_of if card.sketch else verdicts_of)(card, task, evidence)
        strips[task] = strip_of(evidence, task, tuple(card.arms.values()), lr)
    training = training_of(card, known, runs_dir)
    return replace(card, training=training, verdicts=pd.DataFrame(verdicts), strips=strips)


def verdicts_of(card: NormCard, task: str, evidence: Evidence) -> list[dict[str, Any]]:
    """A row a place and arm that it stands against, its own and the best recorded one, from the runs that are there;
    none of a place without its runs."""
    rows, best = [], best_arm(card, task)
    best = best if best and not evidence.tuned((best,), task).gaps else None
    for place, arm in card.arms.items():
        for against in dict.fromkeys(filter(None, (card.against, best))):
            if against != arm and not evidence.tuned((arm,), task).gaps:
                row = dict(place=place, arm=arm, against=against, best=against == best)
                rows.append(row | answer(arm, against, task, evidence, card.scale))
    return rows


def sketch_of(card: NormCard, task: str, evidence: Evidence) -> list[dict[str, Any]]:
    """A row a place of which a pair of runs has finished, with the columns of `verdicts_of`: differences at one rate,
    their mean with its t-interval, no verdict."""
    rows, column, unit = [], *(("bits", "bits a character") if kind_of(task) == "language" else ("score", "pp"))
    for place, arm in card.arms.items():
        if arm == card.against:
            continue
        runs = evidence.at_rates((arm, card.against), task, [_lr(card, task)])
        n, mean, half = rule.interval(np.subtract(*runs.finished(column)), rule.ONE_SIDED)
        lost = [int(k) for k in np.nansum(runs.at("diverged"), axis=1)]
        row = dict(place=place, arm=arm, against=card.against, best=False, task=task, word="sketch", new_seeds=None)
        row |= dict(effect=float(mean), low=float(mean - half), high=float(mean + half), unit=unit, n=int(n))
        told = points(mean, row["low"], row["high"], unit) if n else "no pair of runs finished"
        row |= dict(said=told, verdict=None, reverse=None)
        rows += [row | dict(diverged=lost[0], diverged_against=lost[1])] if not runs.gaps else []
    return rows


def training_of(card: NormCard, known: pd.DataFrame, runs_dir: str | Path | None) -> pd.DataFrame:
    """One row a place: arm; task; rate and rate_reference, the highest rate that trains and that of the arm beside it,
    means of the seeds that have the whole ladder; diverged, by rate; start, decades in 8 blocks by which the median
    output grows before training, and trained, the largest token's in the last step; headroom in decades."""
    task, seeds = inside_task(card.scale), card.seeds[inside_task(card.scale)]
    rows, mine = [], known[(known.task == task) & known.seed.isin(seeds)] if len(known) else known
    by_id = mine.drop_duplicates("run_id").set_index("run_id") if len(mine) else mine
    high = _highest_rates([*card.arms.values(), card.against], Evidence(mine, card.scale), task)
    for place, arm in card.arms.items():
        row = dict(place=place, arm=arm, task=task, rate=high[arm], rate_reference=high[card.against])
        row |= dict(diverged=_by_rate(arm, task, card.scale, seeds, by_id), start=growth_at_start(arm))
        deep = [_deep_facts(c, by_id, runs_dir) for c in deep_runs(card.scale, seeds, [arm])]
        deep = pd.DataFrame(deep, columns=["growth", "headroom"]).astype(float)
        rows.append(row | dict(trained=deep.growth.mean(), headroom=deep.headroom.mean()))
    return pd.DataFrame(rows)


def _highest_rates(arms: Sequence[str], evidence: Evidence, task: str) -> dict[str, float]:
    """Arm → the highest rate of the ladder that trains, as E2 has it; NaN where no seed that learns has the whole
    ladder."""
    facts = dict.fromkeys(("words", "quote", "where", "quantity"), "")
    found = {}
    for arm in dict.fromkeys(arms):
        climb = Claim(id="cards", comparisons=(Comparison(arm, {arm: 1.0}, column="reach"),), runs="ladder", **facts)
        best = evidence.runs(climb, task).columns  # at each seed's best rate
        reach = np.where(best["score"] > best["chance"] + LEARNS, best["reach"], np.nan)
        found[arm] = 10 ** float(np.nanmean(reach)) if np.isfinite(reach).any() else np.nan
    return found


def _by_rate(arm: str, task: str, scale: str, seeds: Sequence[int], by_id: pd.DataFrame) -> dict[str, tuple[int, int]]:
    """Rate → (diverged, runs)."""
    found = {}
    for lr in sorted({*all_rates(task, scale), *ladder(task, scale)}):
        config = base_config(task, scale, arm=arm, lr=lr)
        ids = [run_id for seed in seeds if (run_id := config.with_seed(seed).run_id) in by_id.index]
        if ids:
            found[f"{lr:g}"] = int((by_id.status[ids] == "diverged").sum()), len(ids)
    return found


def _deep_facts(config: RunConfig, by_id: pd.DataFrame, runs_dir: str | Path | None) -> dict[str, float]:
    """Growth and head-room of a run of eight blocks, as recorded or from the store."""
    if config.run_id in by_id.index and "headroom" in by_id and np.isfinite(by_id.headroom[config.run_id]):
        return dict(growth=by_id.growth[config.run_id], headroom=by_id.headroom[config.run_id])
    run = stored_run(config.run_id, runs_dir)
    return {} if run is None else dict(growth=growth_facts(run).get("growth", np.nan), **headroom_facts(run))


def growth_at_start(arm: str) -> float:
    """Decades in 8 blocks by which the median token's sum grows in a model that is not trained; NaN if it fails."""
    with torch.random.fork_rng(devices=[]), suppress(Exception):
        torch.manual_seed(0)
        model = SequenceClassifier(10, in_features=1, d_model=32, n_layers=8, d_state=8, arm=arm).train()
        tokens = token_norms(model, torch.randn(8, 32, 1))
        return float(growth(norm_quantiles(tokens[tokens.site == "residual"])["median"])["decades_per_8"])
    return np.nan


def best_arm(card: NormCard, task: str) -> str | None:
    """The recorded arm, without this norm, that validation would take; None where nothing is recorded."""
    path, name = recorded_path(card.scale), card.same or card.name
    ranked = _ranked(card.scale, task, path.stat().st_mtime_ns) if path.is_file() else ()
    return next((arm for arm in ranked if name not in Arm.parse(arm).norms), None)


@lru_cache(maxsize=32)
def _ranked(scale: str, task: str, mtime_ns: int) -> tuple[str, ...]:
    """The recorded arms of a task, the best on validation first."""
    frame = recorded(scale)
    with suppress(ValueError):
        return tuple(ranking(frame[frame.task == task], task, scale=scale).arm)
    return ()


def kit_cards(scale: str | None = None, names: Iterable[str] | None = None) -> list[NormCard]:
    """The cards of the kit's norms from recorded runs; nothing is trained."""
    scale = study_scale(scale)
    known, tasks = frame_of(scale, None), card_tasks(scale)
    own = {task: card_seeds(task, scale, 8) for task in dict.fromkeys((*tasks, inside_task(scale)))}
    names = names or [name for name in NORMS if name in KIT_NORMS and name != "None"]
    return [_read(_measured(NormCard(name, scale, tasks, own)), known, None) for name in names]
