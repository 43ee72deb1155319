"""Which arm to take: chosen by validation, then compared with every other arm by test accuracy
(`ranking`); and any arm compared with any other (`compare`).

As in the verdicts, each arm has one learning rate, fixed on the tuning seeds, and is compared on
the test seeds; a diverged run scores chance. Where no test seeds are recorded yet, the tuning seeds
serve, and `fresh` is False.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mambanorm.arms import Arm
from mambanorm_study.basics.settings import check_scale, default_scale
from mambanorm_study.basics.text import plural
from mambanorm_study.claims import rule
from mambanorm_study.claims.claim import SMALLEST_EFFECT, UNITS
from mambanorm_study.claims.evidence import Evidence
from mambanorm_study.claims.hypotheses import CLAIMS
from mambanorm_study.claims.plan import TRAINED_TASKS, VERDICT_SEEDS, arm_runs, check_test_seeds
from mambanorm_study.claims.verdict import Row, compare_arms
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import check_names
from mambanorm_study.runs.presets import kind_of
from mambanorm_study.runs.recorded_results import own_rate
from mambanorm_study.runs.rounds import train_asked
from mambanorm_study.tables.experiments import model_of
from mambanorm_study.tables.intervals import shared_rows
from mambanorm_study.tables.scores import SMALLEST_BITS, of_test_seeds
from mambanorm_study.tables.run_tables import CANNOT_TELL, label

NAMED = {
    "sequence": {
        "NormVary>SSM>GN": "the paper's",
        "BN>SSM>LN": "the later claim's",
        "RMSN>SSM>None": "the original",
    },
    "vision": {
        "NormVary>SSM>LN": "the paper's",
        "BN>SSM>LN": "the later claim's",
        "LN>SSM>LN": "the original",
    },
    "language": {
        "NormVary-token>SSM>GN-token": "the paper's, causal",
        "RMSN>SSM>None": "the original",
    },
}
"""The recommendation of §4.5, that of the paper's apparent successor, and the original that both
start from."""

ADVISED_ON = {kind_of(task): task for task in reversed(TRAINED_TASKS)}
"""Kind of a task → the recorded task by which an arm is advised: by `what_to_do`, and by
`recommend` (advice)."""

PLACE_OF_WORD = {"better": "behind", "worse": "ahead", "about the same": "about the same"}
"""The word of chosen arm − other arm → where the other arm stands; any other word is
CANNOT_TELL."""


def tuned_arms(kind: str) -> tuple[str, ...]:
    """Return every Mamba with norms before and after the SSM, and nothing further, that a claim of
    that kind tunes."""
    claims = (claim for claim in CLAIMS.values() if claim.kind == kind and claim.runs == "tuned")
    arms = dict.fromkeys(Arm.parse(arm) for claim in claims for arm in claim.arms)
    return tuple(str(arm) for arm in arms if type(arm) is Arm and not arm.more)


def compared_on(task: str) -> tuple[str, float]:
    """Return the column in which arms are compared on a task, and the smallest effect of interest
    in it."""
    return ("bits", SMALLEST_BITS) if kind_of(task) == "language" else ("score", SMALLEST_EFFECT)


def ranking(
    frame: pd.DataFrame | Evidence,
    task: str,
    *,
    scale: str | None = None,
    arms: Iterable[str] | None = None,
) -> pd.DataFrame:
    """Return one row an arm, ordered by mean validation accuracy on the tuning seeds; the first arm
    is the chosen one.

    Columns: arm, who (names it), lr, validation; on the test seeds that all arms have: mean, sd, n,
    late (the share of runs that still improved at the end), diverged; chosen arm minus this arm:
    behind (mean), low, high (95 %), per_seed, told ("chosen", "behind", "ahead", "about the same",
    "we cannot tell"), unit; fresh. Accuracies in per cent, differences in points (unit "pp");
    language models: minus the test loss, in bits a character.

    arms: those to choose from (None = all that a claim tunes). Arms without a learning rate are
    left out. ValueError if none is left, or if they share fewer than two seeds.
    """
    evidence, kind = Evidence(frame, scale), kind_of(task)
    allowed = set(tuned_arms(kind) if arms is None else arms)
    arms = [
        arm for arm in tuned_arms(kind) if arm in allowed and evidence.lr(arm, task) is not None
    ]
    runs = evidence.of_arms(arms, task) if arms else None
    if runs is None or len(runs.seeds) < 2:
        raise ValueError(
            f"no arm is tuned and tested on task {task!r} at scale {evidence.scale}: see mambanorm.needed"
        )
    tuning = evidence.on_tuning_seeds().of_arms(arms, task)
    column, smallest = compared_on(task)
    score, validation = runs.columns[column], tuning.columns["validation"].mean(axis=1)
    order = np.argsort(-validation, kind="stable")
    lead = score[order[0]] - score  # (arms, seeds), by how much the chosen arm is better
    low, high = np.array([rule.interval(row) for row in lead]).T
    table = pd.DataFrame(
        dict(
            arm=runs.arms,
            who=[NAMED[kind].get(arm, "") for arm in runs.arms],
            lr=runs.lrs,
            validation=validation,
            mean=score.mean(axis=1),
            sd=score.std(axis=1, ddof=1),
            n=len(runs.seeds),
            late=runs.columns["late"].mean(axis=1),
            diverged=runs.columns["diverged"].sum(axis=1).astype(int),
            behind=lead.mean(axis=1),
            low=low,
            high=high,
            per_seed=lead.tolist(),
            told=[
                PLACE_OF_WORD.get(rule.better_or_worse(row, smallest), CANNOT_TELL) for row in lead
            ],
            unit=UNITS[column],
            fresh=runs.fresh,
        )
    )
    table.loc[order[0], ["low", "high", "told"]] = np.nan, np.nan, "chosen"
    return table.iloc[order].reset_index(drop=True)


def rankings(
    frame: pd.DataFrame | Evidence, tasks: Iterable[str], scale: str | None = None
) -> dict[str, pd.DataFrame]:
    """Return task → `ranking`, for those of the tasks on which arms are tuned and share two seeds
    or more."""
    found, evidence = {}, Evidence(frame, scale)
    for task in tasks:
        with suppress(ValueError):
            found[task] = ranking(evidence, task)
    return found


def leading(table: pd.DataFrame, at_most: int = 8) -> pd.DataFrame:
    """Return the first arms of a ranking and those that somebody recommends, rounded for
    reading."""
    shown = table[(table.index < at_most) | (table.who != "")].drop(
        columns=["per_seed", "unit", "late", "fresh"]
    )
    digits = 1 if (table.unit == "pp").all() else 3
    return shown.round(dict.fromkeys(["validation", "mean", "sd", "behind", "low", "high"], digits))


def against_chosen(table: pd.DataFrame, task: str) -> pd.DataFrame:
    """Return rows for `figures.fig_pairs`: the chosen arm minus each of those that somebody
    recommends."""
    chosen = table.arm.iloc[0]
    named = table[(table.who != "") & (table.arm != chosen)].rename(
        columns={"arm": "b", "behind": "difference"}
    )
    columns = ["task", "a", "b", "difference", "low", "high", "n", "per_seed", "who", "unit"]
    return named.assign(a=chosen, task=task)[columns]


# ------------------------------------------------------------------------ any arm against any other

SKETCH = "sketch"
"""The word of a comparison at one learning rate, with too few seeds (card.py)."""

SAID = {
    "better": "{} is better than {}",
    "worse": "{} is worse than {}",
    "about the same": "{} and {} are about the same",
    rule.CANNOT_TELL: "we cannot tell whether {} or {} is better",
    SKETCH: "{} − {}",
}

NOT_FRESH = "not fresh: a learning rate was chosen on these seeds"


def check_pair(arm: str, against: str, task: str) -> tuple[str, str]:
    """Return two arms as they are stored. ValueError if they cannot be compared on the task: the
    same arm twice, a Mamba and a Transformer, a regression, or a norm that sees later positions in
    a language model."""
    arm, against = str(Arm.parse(arm)), str(Arm.parse(against))
    if arm == against:
        raise ValueError(f"{arm} against itself: give two arms")
    model_of([arm, against])
    if kind_of(task) == "table":
        raise ValueError(
            f"{task} is a regression, whose arms the rule of the verdicts does not compare: see `sweep`"
        )
    if kind_of(task) == "language":
        from mambanorm.norms import (
            check_causal,
        )  # here, because recorded runs are compared without torch

        check_causal(
            [*Arm.parse(arm).norms, *Arm.parse(against).norms], "which a language model predicts"
        )
    return arm, against


def duel_seeds(against: str, task: str, scale: str, seeds: int | Iterable[int] | None) -> list[int]:
    """Return the seeds on which a new arm is compared with `against`.

    A number, or None for eight: so many of the recorded seeds of `against` at its learning rate,
    which then need not be trained again; the first test seeds if fewer are recorded. A list: these
    test seeds.
    """
    if seeds is not None and not isinstance(seeds, int):
        return list(check_test_seeds(seeds))
    number = VERDICT_SEEDS if seeds is None else seeds
    first_tests = check_test_seeds(number)
    known = own_rate(task, str(Arm.parse(against)), scale)
    recorded = known[1] if known else ()
    return list(recorded[:number] if len(recorded) >= number else first_tests)


def duel_runs(
    arm: str, against: str, task: str, seeds: list[int], scale: str, frame: pd.DataFrame
) -> list[RunConfig]:
    """Return the runs of a comparison that a frame lacks: the tuning runs of an arm without a
    learning rate, and the test runs of an arm that has one. Once these are trained, ask again."""
    stored = set(frame.run_id) if len(frame) else set()
    asked = _runs_of_pair(check_pair(arm, against, task), task, seeds, scale, frame)
    return [config for config in asked if config.run_id not in stored]


def _runs_of_pair(
    pair: tuple[str, str], task: str, seeds: list[int], scale: str, frame: pd.DataFrame
) -> list[RunConfig]:
    return arm_runs(pair, task, seeds, Evidence(frame, scale))


def compare(
    arm: str,
    against: str = "RMSN>SSM>None",
    tasks: str | Iterable[str] = ("digits",),
    *,
    seeds: int | Iterable[int] | None = None,
    scale: str | None = None,
    runs_dir: str | Path | None = None,
    **engine: Any,
) -> pd.DataFrame:
    """Compare one arm with another, each at its learning rate, by the rule of PROTOCOL.md; missing
    runs are trained.

    Returns one row a task: said and brief, the answer in words with and without its footnotes; word
    (better, worse, about the same, cannot tell, no word); new_seeds, about how many would tell what
    we cannot; effect, low, high (95 %), unit, n, diverged, diverged_against, fresh.

    `seeds`: see `duel_seeds`; a list of seeds is judged alone. `engine`: sweep's scheduler,
    workers, client, progress. ValueError for arms that cannot be compared (`check_pair`),
    RuntimeError if a run could not be trained.
    """
    scale, rows = default_scale() if scale is None else check_scale(scale), []
    for task in check_names("tasks", tasks):
        pair, test_seeds = check_pair(arm, against, task), duel_seeds(against, task, scale, seeds)
        trained = train_asked(
            partial(_runs_of_pair, pair, task, test_seeds, scale), scale, runs_dir, **engine
        )
        if failed := len(trained.failed):
            first = trained.failed.run_id.iloc[0]
            raise RuntimeError(f"{plural(failed, 'run')} could not be trained, the first: {first}")
        listed = seeds is not None and not isinstance(seeds, int)
        known = of_test_seeds(trained.known, test_seeds) if listed else trained.known
        rows.append(answer(arm, against, task, known, scale))
    return pd.DataFrame(rows)


def answer(
    arm: str, against: str, task: str, frame: pd.DataFrame | Evidence, scale: str
) -> dict[str, object]:
    """Return the row of a comparison from the runs that are there; nothing is trained."""
    arm, against = check_pair(arm, against, task)
    return row_of_answer(
        compare_arms(arm, against, Evidence(frame, scale), task), arm, against, scale
    )


def row_of_answer(row: Row, arm: str, against: str, scale: str) -> dict[str, object]:
    """Return a comparison of two arms as `compare` shows it."""
    failed = row.failed or {arm: (0, 0), against: (0, 0)}
    brief = _brief(row, arm, against)
    return dict(
        task=row.task,
        said="; ".join([brief, *_footnotes(row, scale)]),
        brief=brief,
        word=row.word,
        new_seeds=row.seeds_to_tell if row.word == rule.CANNOT_TELL else None,
        effect=row.effect,
        low=row.low,
        high=row.high,
        unit=row.unit,
        n=row.n,
        diverged=failed[arm][0],
        diverged_against=failed[against][0],
        fresh=row.fresh,
    )


def _brief(row: Row, arm: str, against: str) -> str:
    """`LN→GN is better than RMSN→None: +2.1 points [0.4, 3.8], 8 seeds; failed: LN→GN 1 of 8
    runs`"""
    if row.word == rule.NO_WORD:
        said = f"no word: {row.why}"
    else:
        said = f"{SAID[row.word].format(label(arm), label(against))}: {row.amount}, {plural(row.n, 'seed')}"
    failed = [f"{label(one)} {k} of {n} runs" for one, (k, n) in (row.failed or {}).items() if k]
    parts = [said, *(["failed: " + ", ".join(failed)] if failed else [])]
    if row.word == rule.CANNOT_TELL and row.seeds_to_tell:
        parts.append(f"about {row.seeds_to_tell} new seeds would tell")
    return "; ".join(parts)


def _footnotes(row: Row, scale: str) -> list[str]:
    notes = [] if row.fresh else [NOT_FRESH]
    if row.n and (shared := shared_rows(row.task, scale)):
        notes.append(f"the seeds share {shared}, and this speaks about it alone")
    return notes
