"""Rank all arms (`ranking`), and compare two arms (`compare`).

An arm is a choice of norms and their sites in a block, such as `RMSN>SSM>None`.

`ranking` chooses an arm by validation accuracy and compares the chosen arm with every other arm by
test accuracy. As in the verdicts, the learning rate of an arm is chosen on the tuning seeds, arms
are compared on the test seeds, and a run that diverged has the score of chance. If no test seeds
are recorded, the arms are compared on the tuning seeds, and the column `fresh` is False.
"""

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
from mambanorm_study.claims import CLAIMS, TRAINED_TASKS, rule
from mambanorm_study.claims.claim import UNITS, compared_column
from mambanorm_study.claims.evidence import RECORDED_TUNING_SEEDS, Evidence
from mambanorm_study.claims.plan import VERDICT_SEEDS, arm_runs, check_comparable, check_test_seeds
from mambanorm_study.claims.verdict import Row, compare_arms
from mambanorm_study.config import RunConfig
from mambanorm_study.runs import grid, needed_runs, presets, recorded_results
from mambanorm_study.tables import intervals, scores
from mambanorm_study.tables.run_tables import CANNOT_TELL, label

ORIGINAL, PAPERS, LATER = "the original", "the paper's", "the later claim's"

# Kind of task → arm → who recommends the arm: the paper (in its section 4.5), what seems to be
# the paper's successor, or the authors of the original model, from which paper and successor start.
RECOMMENDED_BY = {
    "sequence": {"NormVary>SSM>GN": PAPERS, "BN>SSM>LN": LATER, "RMSN>SSM>None": ORIGINAL},
    "vision": {"NormVary>SSM>LN": PAPERS, "BN>SSM>LN": LATER, "LN>SSM>LN": ORIGINAL},
    "language": {
        "NormVary-token>SSM>GN-token": f"{PAPERS}, causal",
        "RMSN>SSM>None": ORIGINAL,
    },
}

# Kind of task → the first task of this kind in TRAINED_TASKS. `what_to_do` and `recommend` choose
# an arm by the ranking on this task.
ADVISED_ON = {presets.kind_of(task): task for task in reversed(TRAINED_TASKS)}

# Standings of an arm in a ranking, relative to the chosen arm. The fifth standing is CANNOT_TELL.
CHOSEN, BEHIND, AHEAD, SAME = "chosen", "behind", "ahead", "about the same"

# Result of `rule.better_or_worse` for "chosen arm minus other arm" → standing of the other arm. Any
# result that is not listed here gives CANNOT_TELL.
STANDING_OF_WORD = {"better": BEHIND, "worse": AHEAD, "about the same": SAME}


def tuned_arms(kind: str) -> tuple[str, ...]:
    """Return the arms whose learning rate is tuned for a claim about this kind of task.

    Arms of Transformers are left out, and arms with a norm at any other site than N1 (before the
    block) and N2 (after the SSM).
    """
    claims = [claim for claim in CLAIMS.values() if claim.kind == kind and claim.runs == "tuned"]
    arms = dict.fromkeys(Arm.parse(arm) for claim in claims for arm in claim.arms)
    return tuple(str(arm) for arm in arms if type(arm) is Arm and not arm.more)


def ranking(
    frame: pd.DataFrame | Evidence,
    task: str,
    *,
    scale: str | None = None,
    arms: Iterable[str] | None = None,
) -> pd.DataFrame:
    """Return one row per arm, sorted by mean validation accuracy on the tuning seeds, best first.

    The first row is the chosen arm. Columns:
    - arm, who (who recommends the arm), lr, validation (mean validation accuracy);
    - of the test accuracy, as in `accuracy`: mean, sd, n (number of seeds), diverged (number of the
      arm's test runs that diverged);
    - of the difference "chosen arm minus this arm" in test accuracy, as in `compare`: behind (the
      mean), low, high (the 95 % interval), per_seed (one difference per seed), unit;
    - standing of the arm ("chosen", "behind", "ahead", "about the same" or "we cannot tell");
    - fresh (True if all runs of this arm and of the chosen arm are on test seeds, and no earlier
      version of the protocol has judged these runs).

    Accuracies are in per cent, and their differences in points (unit "pp"). For language models,
    minus the test loss in bits per character takes the place of the accuracy.

    frame: a run frame (one row per run) or Evidence. arms: the arms to choose from; None means
    `tuned_arms`. Arms without a tuned learning rate, or with fewer than two seeds, are left out.
    Raises ValueError if no arm remains, or if the remaining arms have fewer than two tuning seeds
    in common.
    """
    evidence, kind = Evidence(frame, scale), presets.kind_of(task)
    names = tuned_arms(kind)
    if arms is not None:
        candidates = set(arms)
        names = tuple(arm for arm in names if arm in candidates)
    accuracies = {arm: accuracy(arm, task, evidence) for arm in names}
    tested = [arm for arm, facts in accuracies.items() if facts["n"] > 1]
    tested = _with_common_tuning_seeds(tested, task, evidence)
    tuning = Evidence(evidence, tuning=True).runs_of_arms(tested, task) if tested else None
    if tuning is None or len(tuning.seeds) < 2:
        raise ValueError(
            f"no arm is tuned and tested on task {task!r} at scale {evidence.scale}: "
            "see mambanorm_study.needed"
        )
    validation = dict(zip(tested, tuning.columns["validation"].mean(axis=1), strict=True))
    best_first = sorted(tested, key=lambda arm: -validation[arm])
    rows = []
    for arm in best_first:
        facts = {
            "arm": arm,
            "who": RECOMMENDED_BY[kind].get(arm, ""),
            "lr": evidence.lr(arm, task),
            "validation": validation[arm],
            **accuracies[arm],
        }
        rows.append(facts | _standing(best_first[0], arm, task, evidence))
    return pd.DataFrame(rows)


def _with_common_tuning_seeds(arms: list[str], task: str, evidence: Evidence) -> list[str]:
    """Return the arms that were tuned on recorded seeds or, if there are none, all arms.

    Other arms have other tuning seeds, so their validation scores cannot be compared.
    """
    recorded_seeds = set(RECORDED_TUNING_SEEDS)
    comparable = [
        arm for arm in arms if recorded_seeds & set(evidence.validation_scores(arm, task).index)
    ]
    return comparable or arms


def _standing(chosen: str, arm: str, task: str, evidence: Evidence) -> dict[str, Any]:
    """Return the columns of `ranking` on the difference between the chosen arm and another arm."""
    if arm == chosen:
        facts = {"behind": 0.0, "low": np.nan, "high": np.nan, "per_seed": [], "standing": CHOSEN}
        fresh = evidence.runs_of_arms([arm], task).fresh
        return facts | {"unit": UNITS[compared_column(task)[0]], "fresh": fresh}
    row = compare_arms(chosen, arm, evidence, task)
    return {
        "behind": row.effect,
        "low": row.low,
        "high": row.high,
        "per_seed": list(row.per_seed),
        "standing": STANDING_OF_WORD.get(row.word, CANNOT_TELL),
        "unit": row.unit,
        "fresh": row.fresh,
    }


def accuracy(arm: str, task: str, evidence: Evidence) -> dict[str, float]:
    """Return the test accuracy of an arm at its tuned learning rate, on its test seeds or, if it
    has none, on its tuning seeds.

    The result is a dict with mean, sd, n (the number of seeds; 0 if the arm has no tuned learning
    rate or no runs at it) and diverged (the number of diverged runs). The accuracy is in per cent;
    for language models, minus the test loss in bits per character takes its place.
    """
    runs = evidence.runs_of_arms([arm], task)
    if runs.missing:
        return {"mean": np.nan, "sd": np.nan, "n": 0, "diverged": 0}
    score = runs.columns[compared_column(task)[0]][0]
    sd = score.std(ddof=1) if len(score) > 1 else np.nan
    diverged = int(runs.columns["diverged"].sum())
    return {"mean": score.mean(), "sd": sd, "n": len(score), "diverged": diverged}


def rankings(
    frame: pd.DataFrame | Evidence, tasks: Iterable[str], scale: str | None = None
) -> dict[str, pd.DataFrame]:
    """Return a map from task to the `ranking` on this task, for the tasks that have a ranking.

    A task has a ranking if arms are tuned and tested on it (see `ranking`).
    """
    tables, evidence = {}, Evidence(frame, scale)
    for task in tasks:
        with suppress(ValueError):
            tables[task] = ranking(evidence, task)
    return tables


def leading_arms(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a `ranking` for its first eight arms and for the recommended arms.

    Numbers are rounded, and the columns per_seed, unit and fresh are left out.
    """
    rows = table[(table.index < 8) | (table.who != "")].drop(columns=["per_seed", "unit", "fresh"])
    digits = 1 if (table.unit == "pp").all() else 3
    return rows.round(dict.fromkeys(["validation", "mean", "sd", "behind", "low", "high"], digits))


# ------------------------------------------------------------------------------------- two arms

# Result of `rule.better_or_worse` for two arms → sentence about these two arms.
SENTENCES = {
    "better": "{} is better than {}",
    "worse": "{} is worse than {}",
    "about the same": "{} and {} are about the same",
    rule.CANNOT_TELL: "we cannot tell whether {} or {} is better",
}

NOT_FRESH = "not fresh: a learning rate was chosen on these seeds"


def comparison_seeds(
    against: str, task: str, scale: str, seeds: int | Iterable[int] | None
) -> list[int]:
    """Return the seeds on which a new arm is compared with the arm `against`.

    seeds: a list of test seeds, which is returned, or a number n of seeds; None means 8. For a
    number n, the result is the first n seeds on which runs of `against` at its tuned learning rate
    are recorded (test seeds, or tuning seeds if no test seed is recorded), so that `against` is not
    trained again. If fewer than n seeds are recorded, the result is the first n test seeds.
    """
    number = VERDICT_SEEDS if seeds is None else seeds
    test_seeds = list(check_test_seeds(number))
    known = recorded_results.recorded_lr(task, str(grid.Cell.parse(against)), scale)
    if isinstance(number, int) and known and len(known.seeds) >= number:
        return list(known.seeds[:number])
    return test_seeds


def comparison_runs(
    arm: str, against: str, task: str, seeds: list[int], scale: str, frame: pd.DataFrame
) -> list[RunConfig]:
    """Return the configs of the runs that the comparison of two arms needs next.

    An arm without a tuned learning rate needs tuning runs. An arm with a tuned learning rate needs
    test runs on `seeds`. frame: the run frame of known runs (one row per run).
    """
    arms = check_comparable([arm, against], task, scale)
    return arm_runs(arms, task, seeds, Evidence(frame, scale))


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
    """Compare `arm` with `against`, each at its tuned learning rate, by the rule of PROTOCOL.md.

    Missing runs are trained. Returns one row per task. Columns: task, said (the answer as a text),
    brief (the same text without footnotes), word (the answer in short: better, worse, about the
    same, cannot tell or no word), new_seeds (if `word` is "cannot tell": about how many new seeds
    it would take to tell), effect (`arm` minus `against`), low and high (the 95 % interval of the
    effect), unit, n (number of seeds), diverged (number of runs of `arm` that diverged),
    diverged_against (the same for `against`) and fresh (as in `ranking`).

    seeds: as in `comparison_seeds`; if a list is given, the arms are compared only on its seeds.
    engine: arguments of `sweep` (scheduler, workers, client, progress). Raises ValueError for arms
    that cannot be compared (`check_comparable`), and RuntimeError if a run could not be trained.
    """
    scale = default_scale() if scale is None else check_scale(scale)
    rows = []
    for task in grid.check_names("tasks", tasks):
        test_seeds = comparison_seeds(against, task, scale, seeds)
        needed = partial(comparison_runs, arm, against, task, test_seeds, scale)
        known, failed, _ = needed_runs.train_needed(needed, scale, runs_dir, **engine)
        if len(failed):
            number, first = plural(len(failed), "run"), failed.error.iloc[0]
            raise RuntimeError(f"{number} could not be trained, the first: {first}")
        if isinstance(seeds, Iterable):
            known = scores.select_test_seeds(known, test_seeds)
        rows.append(comparison_row(arm, against, task, known, scale))
    return pd.DataFrame(rows)


def comparison_row(
    arm: str, against: str, task: str, frame: pd.DataFrame | Evidence, scale: str
) -> dict[str, object]:
    """Return one row of `compare` as a dict, from the runs in `frame`, without training."""
    arm, against = check_comparable([arm, against], task, scale)
    row = compare_arms(arm, against, Evidence(frame, scale), task)
    failed = row.failed or {arm: (0, 0), against: (0, 0)}
    brief = _brief_answer(row, arm, against)
    notes = [] if row.fresh else [NOT_FRESH]
    shared = intervals.shared_data_name(row.task, scale) if row.n else ""
    if shared:
        notes.append(f"the seeds share {shared}, so the interval is valid for it only")
    return dict(
        task=row.task,
        said="; ".join([brief, *notes]),
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


def _brief_answer(row: Row, arm: str, against: str) -> str:
    """Return the answer of `compare` as a text without footnotes.

    An example is `LN→GN is better than RMSN→None: +2.1 points [0.4, 3.8], 8 seeds; failed: LN→GN 1
    of 8 runs`.
    """
    if row.word == rule.NO_WORD:
        parts = [f"no word: {row.why}"]
    else:
        sentence = SENTENCES[row.word].format(label(arm), label(against))
        parts = [f"{sentence}: {row.amount}, {plural(row.n, 'seed')}"]
    parts += failures_in_words(row)
    if row.word == rule.CANNOT_TELL and row.seeds_to_tell:
        parts.append(f"about {row.seeds_to_tell} new seeds would tell")
    return "; ".join(parts)


def failures_in_words(row: Row) -> list[str]:
    """Return a list of one text about failed runs, such as `failed: NormVary→GN 2 of 12 runs`.

    The list is empty if no run failed.
    """
    counts = [f"{label(arm)} {k} of {n} runs" for arm, (k, n) in (row.failed or {}).items() if k]
    return [f"failed: {', '.join(counts)}"] if counts else []
