"""Which verdict of a claim a reader meets first: that of trained models, where there is one.

Scale quick takes minutes, and its models stop after one or two epochs: its verdicts sketch how fast arms learn. At
scale evening they are trained (protocol 5, *Scales*). So ahead of the results of quick stand those of evening, and what
quick says of the same claim is called early.

headline_scales     a scale → the recorded scales that its verdicts stand on, the trained models first
headline            run frame → a verdict for each claim
trained_inside      the recorded runs of trained models of §4.6, with what they kept of their inside
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from mambanorm.arms import Arm
from mambanorm.claims.budget import still_rising
from mambanorm.claims.evidence import Evidence
from mambanorm.claims.frames import LOOKED_AT
from mambanorm.claims.hypotheses import CLAIMS
from mambanorm.claims.protocol import RISING
from mambanorm.claims.verdict import VERDICTS, Verdict, judge
from mambanorm.study.experiments import failing_runs, failure_runs, growth_runs
from mambanorm.training.recorded_results import recorded, recorded_inside, recorded_path

TRAINED, EARLY = "evening", "quick"
JUDGED = VERDICTS[:5]
"""Words that are a verdict; a sketch is none."""

NO_RUNS = pd.DataFrame(columns=[*LOOKED_AT, "arm"])
NOT_RECORDED = "Models trained to the end are not recorded here yet: `mambanorm record --scale evening` adds them."


def headline_scales(scale: str) -> tuple[str, ...]:
    """The scale itself; of evening and quick those of the two that are recorded, the trained models first."""
    there = tuple(name for name in (TRAINED, EARLY) if recorded_path(name).is_file() or name == scale)
    return there if scale in (TRAINED, EARLY) else (scale,)


def headline(frame: pd.DataFrame, scales: Sequence[str], tasks: Iterable[str] | None = None) -> list[Verdict]:
    """A verdict for each claim at the first of these scales that has one; where none has, at the first that has runs,
    else at the first. A verdict on trained models names the arms that still rise (protocol 7). ValueError without a
    scale."""
    if isinstance(scales, str) or not scales:
        raise ValueError(f"scales must be a list of scales such as ['evening', 'quick'], got {scales!r}")
    tasks = None if tasks is None else list(tasks)
    read = {scale: Evidence(frame, scale) for scale in scales}
    rising = still_rising(frame if TRAINED in scales else frame.iloc[:0], TRAINED, read.get(TRAINED))
    return [_with_rising(_first(name, read, tasks), rising[rising.late > RISING]) for name in CLAIMS]


def _first(name: str, read: Mapping[str, Evidence], tasks: list[str] | None) -> Verdict:
    found = []
    for scale, evidence in read.items():
        found.append(judge(name, evidence, scale=scale, tasks=tasks))
        if found[-1].verdict in JUDGED:
            return found[-1]
    return next((verdict for verdict in found if verdict.n_seeds), found[0])


def _with_rising(verdict: Verdict, rising: pd.DataFrame) -> Verdict:
    """The verdict with a caveat for its arms that are not trained to the end."""
    if verdict.scale != TRAINED or verdict.claim.runs != "tuned":
        return verdict
    mine = rising[rising.task.isin(verdict.tasks) & rising.arm.isin(verdict.claim.arms)]
    if mine.empty:
        return verdict
    named = ", ".join(f"{Arm.parse(row.arm).label} on {row.task} ({100 * row.late:.0f} %)" for row in mine.itertuples())
    told = f"not trained to the end, more than a third of the runs best in their last tenth: {named}"
    return replace(verdict, caveats=(*verdict.caveats, told))


def trained_inside(norm: str = "BN") -> tuple[pd.DataFrame, dict[str, dict[str, np.ndarray]]]:
    """The recorded runs of §4.6 of trained models (`failure_runs`, `growth_runs`, `failing_runs`), and by run id what
    they kept (`recorded_inside`). Empty where they are not recorded."""
    if not recorded_path(TRAINED).is_file():
        return NO_RUNS, {}
    frame = recorded(TRAINED)
    seeds = sorted({int(seed) for seed in frame.seed})
    lists = failure_runs(TRAINED, seeds), growth_runs(TRAINED, norm, seeds), failing_runs(TRAINED, seeds)
    asked = {config.run_id for configs in lists for config in configs}
    return frame[frame.run_id.isin(asked)].reset_index(drop=True), recorded_inside(TRAINED)
