"""Which arm to take: chosen by validation, then held against every other arm by test accuracy (`ranking`); and any arm
against any other, by the rule of the verdicts (`compare`).

As in the verdicts each arm has one learning rate, and accuracies are those of runs that finished, with the diverged
ones told beside. The chosen arm's own lead is a little flattered, because its validation shares the luck of its seeds
with its test: an arm of which it says "we cannot tell" is safe to take instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mambanorm.arms import Arm
from mambanorm.basics.settings import check_scale, default_scale
from mambanorm.claims import rule
from mambanorm.claims.claim import KINDS, SMALLEST_BITS, SMALLEST_EFFECT, UNITS, Claim, minus
from mambanorm.claims.evidence import Evidence, kind_of, shared_rows
from mambanorm.claims.frames import of_seeds
from mambanorm.claims.hypotheses import CLAIMS
from mambanorm.claims.needed import needed
from mambanorm.claims.protocol import TRAINED_TASKS, VERDICT_SEEDS
from mambanorm.claims.recording import known_runs
from mambanorm.claims.verdict import Verdict, judge
from mambanorm.config import RunConfig
from mambanorm.runs.grid import check_names, check_seeds
from mambanorm.runs.recorded_results import own_rate, recorded, recorded_path
from mambanorm.study.tables import CANNOT_TELL, label

NAMED = {
    "sequence": {"NormVary>SSM>GN": "the paper's", "BN>SSM>LN": "the later claim's", "RMSN>SSM>None": "the original"},
    "vision": {"NormVary>SSM>LN": "the paper's", "BN>SSM>LN": "the later claim's", "LN>SSM>LN": "the original"},
    "language": {"NormVary-token>SSM>GN-token": "the paper's, causal", "RMSN>SSM>None": "the original"},
}
"""The recommendation of §4.5, that of the paper's apparent successor, and the original that both start from."""
ADVISED_ON = {kind_of(task): task for task in reversed(TRAINED_TASKS)}
"""Kind of a task → the recorded one by which an arm is advised: by `what_to_do`, and by `recommend` (advice)."""


def tuned_arms(kind: str) -> tuple[str, ...]:
    """Every Mamba with norms before and after the SSM, and nothing further, that some claim of that kind tunes."""
    mine = (claim for claim in CLAIMS.values() if claim.kind == kind and claim.runs == "tuned")
    known = dict.fromkeys(Arm.parse(arm) for claim in mine for arm in claim.arms)
    return tuple(str(arm) for arm in known if type(arm) is Arm and not arm.more)


def ranking(
    frame: pd.DataFrame, task: str, *, scale: str | None = None, arms: Iterable[str] | None = None
) -> pd.DataFrame:
    """One row an arm, by mean validation accuracy, the chosen one first: arm, who (names it), lr, validation, mean, sd,
    n, diverged, late (as of `Runs`), all on the seeds that every arm has, and how far it lies behind the chosen one on
    the seeds that both finished: behind, low, high (95 %, simultaneous over all arms), per_seed, told, unit. Accuracies
    in per cent, differences in points (unit "pp"); of language models "bits a character", the losses with a minus.

    arms: those to choose from (None = all that a claim tunes); the others are neither chosen nor compared.
    Arms that are not tuned are left out. ValueError if none is left, or with fewer than two test seeds.
    """
    evidence, kind = Evidence(frame, scale), kind_of(task)
    allowed = set(tuned_arms(kind) if arms is None else arms)
    arms = (arm for arm in tuned_arms(kind) if arm in allowed and not evidence.tuned((arm,), task).gaps)
    runs = evidence.tuned(tuple(arms), task)
    shared = np.isin(runs.seeds, runs.whole_seeds)
    if not runs.arms or shared.sum() < 2:
        raise ValueError(f"no arm is tuned and tested on task {task!r} at scale {evidence.scale}: see mambanorm.needed")
    scores = runs.finished(measured := "bits" if kind == "language" else "score")[:, shared]
    n, mean = rule.interval(scores)
    validation = runs.at("validation")[:, shared].mean(axis=1)
    order = np.argsort(-validation, kind="stable")
    chosen, level, rows = order[0], rule.ONE_SIDED / max(len(order) - 1, 1), []
    for i in order:
        gap = scores[chosen] - scores[i]
        gap = gap[np.isfinite(gap)]
        _, behind, half = rule.interval(gap, level)
        low, high = (np.nan, np.nan) if i == chosen else (behind - half, behind + half)
        told = "chosen" if i == chosen else "behind" if low > 0 else "ahead" if high < 0 else CANNOT_TELL
        facts = dict(arm=runs.arms[i], who=NAMED[kind].get(runs.arms[i], ""), lr=runs.lr[i], validation=validation[i])
        facts |= dict(mean=mean[i], sd=np.nanstd(scores[i], ddof=1), n=n[i], late=runs.late[i])
        facts |= dict(diverged=int(shared.sum() - n[i]), behind=float(behind), low=low, high=high)
        rows.append(facts | dict(per_seed=gap.tolist(), told=told, unit=UNITS[measured]))
    return pd.DataFrame(rows)


def rankings(frame: pd.DataFrame, tasks: Iterable[str], scale: str | None = None) -> dict[str, pd.DataFrame]:
    """Task → `ranking`, for those of the tasks on which an arm is tuned and tested with two seeds or more."""
    found, evidence = {}, Evidence(frame, scale)
    for task in tasks:
        with suppress(ValueError):
            found[task] = ranking(evidence, task, scale=scale)
    return found


def leading(table: pd.DataFrame, at_most: int = 8) -> pd.DataFrame:
    """The first arms of a ranking and those that somebody recommends, rounded for reading."""
    shown = table[(table.index < at_most) | (table.who != "")].drop(columns=["per_seed", "unit", "late"])
    digits = 1 if (table.unit == "pp").all() else 3
    return shown.round(dict.fromkeys(["validation", "mean", "sd", "behind", "low", "high"], digits))


def against_chosen(table: pd.DataFrame, task: str) -> pd.DataFrame:
    """Rows for `figures.fig_pairs`: the chosen arm minus each of those that somebody recommends."""
    chosen = table.arm.iloc[0]
    named = table[(table.who != "") & (table.arm != chosen)].rename(columns={"arm": "b", "behind": "difference"})
    columns = ["task", "a", "b", "difference", "low", "high", "n", "per_seed", "who", "unit"]
    return named.assign(a=chosen, task=task)[columns]


# -------------------------------------------------------------------------------------------- any arm against any other


def duel(arm: str, against: str, task: str) -> Claim:
    """The claim that one arm is better than another on a task, by the smallest effect of interest."""
    arm, against = str(Arm.parse(arm)), str(Arm.parse(against))
    if arm == against:
        raise ValueError(f"{arm} against itself: give two arms")
    kind, column = kind_of(task), "bits" if kind_of(task) == "language" else "score"
    if kind not in KINDS.values():
        raise ValueError(f"{task} is a regression, whose arms the rule of the verdicts does not compare: see `sweep`")
    if kind == "language":
        from mambanorm.norms import check_causal  # here: the claims are told without torch

        norms = [*Arm.parse(arm).norms, *Arm.parse(against).norms]
        check_causal(norms, "which a language model predicts")
    letter = next(letter for letter, name in KINDS.items() if name == kind)
    return Claim(
        id=f"duel{letter}",
        words=f"{label(arm)} is better than {label(against)}.",
        **dict.fromkeys(("quote", "where", "quantity"), ""),
        comparisons=(minus(arm, against, column=column),),
        threshold=SMALLEST_BITS if kind == "language" else SMALLEST_EFFECT,
    )


def duel_seeds(against: str, task: str, scale: str, seeds: int | Iterable[int] | None) -> list[int]:
    """The first recorded seeds of the arm that is compared with, so that it need not be trained again; else 0…7."""
    known = own_rate(task, str(Arm.parse(against)), scale) if seeds is None else None
    return list(known[1][:VERDICT_SEEDS]) if known else check_seeds(VERDICT_SEEDS if seeds is None else seeds, scale)


def duel_runs(arm: str, against: str, task: str, seeds: list[int], scale: str, frame: pd.DataFrame) -> list[RunConfig]:
    """The runs of a comparison that a frame lacks; its results may ask for further learning rates."""
    held = set(frame.run_id) if len(frame) else set()
    asked = needed(duel(arm, against, task), seeds, [task], scale, of_seeds(frame, seeds))
    return [config for config in asked if config.run_id not in held]


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
    """One arm against another, each at its own learning rate, by the rule of PROTOCOL.md: recorded runs are read,
    missing ones are trained. One row a task: said, the answer in words; word, its kind: better, worse, alike, open or
    not judged; new_seeds, how many would tell what is open; effect, low, high (95 %), unit, n, diverged and
    diverged_against; `verdict` and `reverse`, what the rule says of either order.

    `seeds` None = the recorded ones of `against`, at most eight. `engine`: sweep's scheduler, workers, client,
    progress. ValueError for the same arm twice, arms of two kinds of model, and a regression.
    """
    scale = default_scale() if scale is None else check_scale(scale)
    rows = []
    for task in check_names("tasks", tasks):
        own = duel_seeds(against, task, scale, seeds)
        while more := duel_runs(arm, against, task, own, scale, known := frame_of(scale, runs_dir)):
            from mambanorm.runs.sweep import sweep  # here: what is recorded is told without torch and Dask

            failed = sweep(more, runs_dir=runs_dir, **engine)
            if len(failed := failed[failed.status == "failed"]):
                raise RuntimeError(f"{len(failed)} runs could not be trained, the first: {failed.iloc[0].run_id}")
        rows.append(answer(arm, against, task, known[known.seed.isin(own) & (known.task == task)], scale))
    return pd.DataFrame(rows)


def answer(arm: str, against: str, task: str, frame: pd.DataFrame | Evidence, scale: str) -> dict[str, object]:
    """The row of a comparison from the runs that are there; nothing is trained."""
    pair = (arm, against)
    return _told(*(judge(duel(*of, task), frame, scale=scale, tasks=[task]) for of in (pair, pair[::-1])))


def frame_of(scale: str, runs_dir: str | Path | None) -> pd.DataFrame:
    """What is recorded at a scale, and what the store has besides."""
    return known_runs(scale, runs_dir, recorded(scale) if recorded_path(scale).is_file() else None)


def _told(verdict: Verdict, reverse: Verdict) -> dict[str, object]:
    """The row of a comparison, from the verdicts on either order."""
    (ahead, behind), (low, high) = verdict.claim.arms, verdict.plain
    limit = "0.01 bits a character" if verdict.claim.kind == "language" else "one point"
    of_seeds = f"{verdict.amount}, {verdict.n_seeds} seeds"
    winner = verdict if verdict.verdict == "reproduced" else reverse if reverse.verdict == "reproduced" else None
    word, seeds = "open", [one.seeds_to_tell for one in (verdict, reverse) if one.seeds_to_tell]
    if winner is not None:
        word = "better" if winner is verdict else "worse"
        words = f"{winner.claim.words.rstrip('.')} by more than {limit} ({of_seeds})"
        words += ", but diverges more often" if winner.said != winner.verdict else ""
    elif verdict.verdict == reverse.verdict == "contradicted":
        word, words = "alike", f"{label(ahead)} and {label(behind)} differ by less than {limit} ({of_seeds})"
    elif "not judged" in (verdict.verdict, reverse.verdict):
        silent = verdict if verdict.verdict == "not judged" else reverse
        word, words = "not judged", f"not judged: {silent.reason} ({of_seeds})"
    else:
        words = f"we cannot tell whether {label(ahead)} or {label(behind)} is better ({of_seeds})"
        words += f"; about {min(seeds)} new seeds would tell" if seeds else ""
    task = verdict.records[0]["task"]
    if shared := shared_rows(task, verdict.scale):
        words += f"; the seeds share {shared}, and this speaks of it alone"
    diverged = verdict.records[0]["finish"] or (0, 0, 0, 0)  # diverged and all, of either arm
    return dict(
        task=task,
        said=words,
        word=word,
        new_seeds=min(seeds, default=None) if word == "open" else None,
        effect=verdict.effect,
        low=low,
        high=high,
        unit=verdict.unit,
        n=verdict.n_seeds,
        diverged=diverged[0],
        diverged_against=diverged[2],
        verdict=verdict,
        reverse=reverse,
    )
