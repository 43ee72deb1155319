"""The advice for README, report and notebook 12, computed from the runs: which norms to take for
sequences, images and text, and what to do if training ends in NaN.

An arm is a choice of norms, such as RMSN>SSM>None: RMSN before the scan (the SSM), and nothing
after it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import pandas as pd

from mambanorm import NORMS, Arm
from mambanorm_study.advice.step_times import relative_step_time
from mambanorm_study.advice.which_arm import (
    ADVISED_ON,
    AHEAD,
    BEHIND,
    CHOSEN,
    ORIGINAL,
    SAME,
    accuracy,
    ranking,
    rankings,
)
from mambanorm_study.answers.phrases import join_words
from mambanorm_study.basics.text import plural
from mambanorm_study.claims import rule
from mambanorm_study.claims.claim import CONTROL, LADDER_SEEDS, NONE
from mambanorm_study.claims.evidence import Evidence
from mambanorm_study.claims.verdict import compare_arms
from mambanorm_study.runs.grid import base_config
from mambanorm_study.tables import experiments
from mambanorm_study.tables.run_tables import CANNOT_TELL, difference_with_interval, label

# Kind of task → what a reader of the advice does.
READERS = {
    "sequence": "classify sequences",
    "vision": "classify images",
    "language": "model language",
}
NAN_READER = "see NaN in training"

# Task → its name in sentences.
TASK_NAMES = {"glyphs_images": "images of letters and digits", "pydoc": "Python's documentation"}

# The deep models of the planned runs have this many blocks.
DEEP = dict(n_layers=8)


@dataclass(frozen=True)
class Advice:
    """A row of the advice: what the reader does, which arm to take, why, and what to know first."""

    reader: str
    take: str
    because: str
    know: str


def what_to_do(frame: pd.DataFrame | Evidence | None) -> list[Advice]:
    """Return the advice: one row per kind of task with tuned arms, and one row about NaN.

    frame: a run frame (one row per run) or Evidence.
    """
    evidence = Evidence(frame, "evening")
    tables = rankings(evidence, ADVISED_ON.values())
    advice = [
        _advice_on_task(kind, task, tables[task], evidence)
        for kind, task in ADVISED_ON.items()
        if task in tables
    ]
    order = list(READERS.values())
    advice.sort(key=lambda row: order.index(row.reader))
    return [*advice, *_advice_on_nan(evidence)]


def advice_table(advice: Iterable[Advice]) -> str:
    """Return the advice as a Markdown table: what the reader does, which arm to take, and why."""
    rows = [("you …", "take", "because"), ("---",) * 3]
    rows += [(row.reader, f"**{row.take}**", row.because) for row in advice]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def advice_in_detail(advice: Iterable[Advice]) -> str:
    """Return what to know before taking the advice, as a Markdown list."""
    return "\n".join(f"- **If you {row.reader}:** {row.know}." for row in advice)


def arm_to_take(table: pd.DataFrame) -> str:
    """Return the arm that a `ranking` recommends: the arm that validation chooses if it is better
    than the original arm, else the original arm.
    """
    original = table[table.who == ORIGINAL]
    if len(original) and original.standing.iloc[0] not in (CHOSEN, BEHIND):
        return original.arm.iloc[0]
    return table.arm.iloc[0]


def _advice_on_task(kind: str, task: str, table: pd.DataFrame, evidence: Evidence) -> Advice:
    arm, chosen = arm_to_take(table), table.arm.iloc[0]
    because, lead = f"validation chooses it among {plural(len(table), 'arm')}", ""
    for row in table[(table.who == ORIGINAL) & (table.arm != chosen)].itertuples():
        lead = difference_with_interval(row.behind, row.low, row.high, row.unit)
        lead = f"{label(chosen)} − {label(row.arm)}: {lead}"
        if arm == chosen:
            gain = f"{row.behind:.1f} points" if row.unit == "pp" else f"{row.behind:.3f} bits"
            because = f"{gain} more than the original, {label(row.arm)}"
        else:
            because = "it is the original, and no other arm is clearly better"
    facts = [lead, *_what_to_know(arm, task, table, evidence)]
    basis = f"{TASK_NAMES.get(task, task)}, {plural(table.n[table.arm == arm].iloc[0], 'seed')}"
    return Advice(READERS[kind], label(arm), because, "; ".join(filter(None, [basis, *facts])))


def _what_to_know(arm: str, task: str, table: pd.DataFrame, evidence: Evidence) -> Iterator[str]:
    """Yield the rivals of an arm, its failures, its depth, its cost and its limits, as texts."""
    if arm == table.arm.iloc[0]:
        for standing, text in (
            (SAME, "about the same as"),
            (AHEAD, "behind"),
            (CANNOT_TELL, "we cannot tell whether it is better than"),
        ):
            rivals = [label(row.arm) for row in table.itertuples() if row.standing == standing]
            if rivals:
                yield f"{text} {join_words(rivals[:3])}"
    runs, blocks = accuracy(arm, task, evidence), base_config(task, evidence.scale).n_layers
    yield f"{runs['diverged']} of {plural(runs['n'], 'run')} failed, at {blocks} blocks"
    yield _deeper(arm, task, table, evidence)
    time = relative_step_time(arm, task)
    if time is not None and abs(time - 1) >= 0.05:
        yield f"a training step takes {time:.1f} times as long as the original's"
    norms = [NORMS[name] for name in Arm.parse(arm).norms]
    if any("B" in entry.axes for entry in norms):
        yield "needs batches of several rows"
    if not all(entry.causal for entry in norms):
        yield _without_looking_ahead(table, task, evidence)


def _deeper(arm: str, task: str, table: pd.DataFrame, evidence: Evidence) -> str:
    """Return how an arm compares with the original in models of 8 blocks; "" without such runs."""
    deep = Evidence(evidence, changes=DEEP)
    originals = [other for other in table.arm[table.who == ORIGINAL] if other != arm]
    for original in originals:
        row = compare_arms(arm, original, deep, task)
        if row.word != rule.NO_WORD:
            failed, n = row.failed[arm]
            return f"at 8 blocks {row.amount} over {label(original)}, {failed} of {n} failed"
    return ""


def _without_looking_ahead(table: pd.DataFrame, task: str, evidence: Evidence) -> str:
    """Return the advice for models whose outputs must not depend on later positions."""
    causal = [arm for arm in table.arm if all(NORMS[n].causal for n in Arm.parse(arm).norms)]
    if not causal:
        return "looks at later positions"
    best = arm_to_take(ranking(evidence, task, arms=causal))
    lead = compare_arms(table.arm.iloc[0], best, evidence, task).amount.removeprefix("+")
    return f"looks at later positions; without looking ahead take {label(best)}, {lead} behind"


# --------------------------------------------------------------------------------- NaN in training


def _advice_on_nan(evidence: Evidence) -> list[Advice]:
    """Return the advice for training that ends in NaN; [] if the runs are not in the evidence.

    The runs have 8 blocks and fixed learning rates. On the ladder of learning rates the arms with
    GN or LN after the scan alone are compared with the same norms before it.
    """
    task, scale = experiments.inside_task(evidence.scale), evidence.scale
    seeds = evidence.seeds(task)
    if not seeds:
        return []
    failing = _counts(evidence, experiments.failing_runs(scale, seeds))
    growth = _counts(evidence, experiments.growth_runs(scale, seeds=seeds))
    before = "RMSN>SSM>None"
    if not {NONE, before, CONTROL} <= set(failing) or "None>SSM>BN" not in growth:
        return []
    ladder = partial(_ladder_counts, evidence)
    after_failed, after_n = ladder(["None>SSM>GN", "None>SSM>LN"])
    before_failed, before_n = ladder(["GN>SSM>None", "LN>SSM>None"])
    text = "{} of {} runs".format
    because = f"{text(*failing[before])} failed, without a norm {text(*failing[NONE])}"
    know = (
        f"{task}, 8 blocks, RMSN; a second norm, after the scan, adds "
        f"{_second_norm(evidence, seeds)}; a norm after the scan alone is the weaker cure: at five "
        f"learning rates {text(after_failed, after_n)} failed with GN or LN there, and "
        f"{text(before_failed, before_n)} with the norm before the block; never BN after the scan "
        f"alone: {text(*growth['None>SSM>BN'])} failed"
    )
    take = "a norm before the block, then a lower learning rate, then `mambanorm diagnose`"
    return [Advice(NAN_READER, take, because, know)]


def _counts(evidence: Evidence, configs: list) -> dict[str, tuple[int, int]]:
    """Return a map from arm to (failed runs, runs) of these configs, on the seeds that all arms
    have.
    """
    runs = evidence.runs[evidence.runs.run_id.isin([config.run_id for config in configs])]
    diverged = runs.pivot(index="seed", columns="arm", values="diverged").dropna()
    return {arm: (int(diverged[arm].sum()), len(diverged)) for arm in diverged}


def _ladder_counts(evidence: Evidence, arms: list[str]) -> tuple[int, int]:
    """Return (failed runs, runs) of these arms at all learning rates of the ladder."""
    configs = experiments.ladder_runs(arms, evidence.scale, LADDER_SEEDS)
    ids = [config.run_id for config in configs]
    runs = evidence.runs[evidence.runs.run_id.isin(ids)]
    return int(runs.diverged.sum()), len(runs)


def _second_norm(evidence: Evidence, seeds: Iterable[int]) -> str:
    """Return what a norm after the scan adds to a norm before the block, in the runs of
    `failing_runs`.
    """
    configs = experiments.failing_runs(evidence.scale, seeds)
    runs = evidence.runs[evidence.runs.run_id.isin([config.run_id for config in configs])]
    score = runs.pivot(index="seed", columns="arm", values="score")
    differences = (score[CONTROL] - score["RMSN>SSM>None"]).dropna()
    return difference_with_interval(differences.mean(), *rule.interval(differences), "pp")
