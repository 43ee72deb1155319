"""The advice for README, report and notebook 12, computed from the runs: which norms to take for
sequences, images and text, and what to do if training ends in NaN.

An arm is a choice of norms, such as RMSN>SSM>None: RMSN before the scan (the SSM), and nothing
after it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

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
from mambanorm_study.runs.presets import kind_of
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
    """Return what to know before taking the advice, as a Markdown list of lists."""
    lines = []
    for row in advice:
        lines.append(f"- **If you {row.reader}:**")
        lines += [f"    - {fact}" for fact in row.know.split("; ")]
    return "\n".join(lines)


def arm_to_take(table: pd.DataFrame) -> str:
    """Return the arm that a `ranking` recommends: the arm that validation chooses if it is better
    than the original arm, else the original arm.
    """
    original = table[table.who == ORIGINAL]
    if len(original) and original.standing.iloc[0] not in (CHOSEN, BEHIND):
        return original.arm.iloc[0]
    return table.arm.iloc[0]


def _advice_on_task(kind: str, task: str, table: pd.DataFrame, evidence: Evidence) -> Advice:
    arm, chosen, name = arm_to_take(table), table.arm.iloc[0], TASK_NAMES.get(task, task)
    because, lead = f"validation chooses it among {plural(len(table), 'arm')}", ""
    for row in table[(table.who == ORIGINAL) & (table.arm != chosen)].itertuples():
        lead = difference_with_interval(row.behind, row.low, row.high, row.unit)
        lead = f"{label(chosen)} − {label(row.arm)}: {lead}"
        if arm == chosen:
            gain = f"{row.behind:.1f} points" if row.unit == "pp" else f"{row.behind:.3f} bits"
            because = f"on {name} {gain} more than the original, {label(row.arm)}"
        else:
            because = "it is the original, and no other arm is clearly better"
    facts = [lead, *_what_to_know(arm, task, table, evidence)]
    basis = f"{name}, {plural(table.n[table.arm == arm].iloc[0], 'seed')}"
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
    runs, blocks = evidence.runs_of_arms([arm], task), base_config(task, evidence.scale).n_layers
    late, n = int(runs.columns["late"].sum()), len(runs.seeds)
    yield f"{int(runs.columns['diverged'].sum())} of {n} runs failed, at {blocks} blocks"
    if late > n / 3:
        yield f"{late} of {n} runs still improved at the end"
    if not runs.fresh:
        yield "not fresh: the learning rates were chosen on these seeds"
    yield _deeper(arm, task, table, evidence)
    time = relative_step_time(arm, task)
    if time is not None and abs(time - 1) >= 0.05:
        yield f"a training step takes {time:.1f} times as long as the original's"
    if "BN" in Arm.parse(arm).norms:
        yield "BN needs batches of several rows"
    if kind_of(task) == "sequence" and not is_causal(arm):
        yield _without_looking_ahead(arm, table, task, evidence)


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


def _without_looking_ahead(arm: str, table: pd.DataFrame, task: str, evidence: Evidence) -> str:
    """Return the advice for models whose outputs must not depend on later positions."""
    ahead = join_words(name for name in Arm.parse(arm).norms if not NORMS[name].causal)
    best = arm_to_take(ranking(evidence, task, arms=filter(is_causal, table.arm)))
    lead = compare_arms(table.arm.iloc[0], best, evidence, task).amount.removeprefix("+")
    when = " in training" if ahead == "BN" else ""
    return (
        f"{ahead} reads later positions{when}; if that is not allowed, {label(best)}: {lead} less"
    )


def is_causal(arm: str) -> bool:
    """Return True if no norm of an arm reads later positions."""
    return all(NORMS[name].causal for name in Arm.parse(arm).norms)


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
    high, low = (
        _counts(evidence, [c for c in experiments.failure_runs(scale, seeds) if c.lr == lr])
        for lr in sorted({c.lr for c in experiments.failure_runs(scale, seeds)}, reverse=True)
    )
    high |= _counts(evidence, experiments.growth_runs(scale, seeds=seeds))
    high |= _counts(evidence, experiments.failing_runs(scale, seeds))
    before, after_bn = "RMSN>SSM>None", "None>SSM>BN"
    if not {NONE, before, CONTROL, after_bn} <= set(high):
        return []
    after_failed, after_n = _ladder_counts(evidence, ["None>SSM>GN", "None>SSM>LN"])
    before_failed, before_n = _ladder_counts(evidence, ["GN>SSM>None", "LN>SSM>None"])
    text = "{} of {} runs".format
    because = f"with RMSN {text(*high[before])} failed, without a norm {text(*high[NONE])}"
    know = (
        f"{task}, 8 blocks; RMSN after the scan as well adds {_second_norm(evidence, seeds)}. A "
        f"third less learning rate alone: {text(*low[NONE])} without a norm failed. BN after the "
        f"scan alone failed in {text(*high[after_bn])}. With 4 blocks and five learning rates, GN "
        f"or LN after the scan alone failed in {text(after_failed, after_n)}, all at the highest "
        f"rates, and before the block in {text(before_failed, before_n)}"
    )
    take = "RMSN before the block, then a lower learning rate, then `mambanorm diagnose`"
    return [Advice(NAN_READER, take, because, know)]


def _counts(evidence: Evidence, configs: list) -> dict[str, tuple[int, int]]:
    """Return a map from arm to (failed runs, runs) of these configs."""
    runs = evidence.runs[evidence.runs.run_id.isin([config.run_id for config in configs])]
    counts = runs.groupby("arm").diverged.agg(["sum", "count"])
    return {arm: (int(failed), int(n)) for arm, failed, n in counts.itertuples()}


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
