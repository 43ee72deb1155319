"""The recommendation for a Mamba block, about which the guide says nothing; it rests on the
recorded runs alone.

The arm is the one that README and notebook 12 name: `ranking` chooses it by validation, on the
recorded trained models. The reasons say how sure that is, and what the recorded runs say about the
claims of the paper.
"""

from __future__ import annotations

from functools import lru_cache

import pandas as pd

from mambanorm.arms import Arm
from mambanorm.errors import unknown
from mambanorm.norms import NORMS
from mambanorm_study.advice.which_arm import ADVISED_ON, ranking, tuned_arms
from mambanorm_study.basics.settings import SMALL_BATCH, STUDY_SCALE
from mambanorm_study.claims.rule import NO_GAIN, OPPOSITE, SUPPORTED
from mambanorm_study.claims.verdict import Verdict, verdicts
from mambanorm_study.runs.presets import kind_of
from mambanorm_study.runs.recorded_results import recorded
from mambanorm_study.tables.run_tables import points
from mambanorm_study.tasks import TASKS

KINDS = {
    "language_model": "language", "detection": "vision", "segmentation": "vision", "style_transfer": "vision",
    "image_translation": "vision",
}  # fmt: skip
"""Task of the guide → kind of this kit's tasks; any other is a sequence."""
JUDGED = {
    "sequence": ("H1s", "H3s", "H4s", "H6s", "H8s"),
    "vision": ("H1v", "H3v", "H4v", "H6v", "H8v"),
    "language": ("H1l", "H3l", "H8l"),
}
"""The claims on type, position and proposal, by kind of task."""


def advised(task: str | None, causal: bool, batch_size: int | None) -> tuple:
    """Return the fields of a Recommendation that follow its question, for a Mamba block. ValueError
    for a task of the kit that is not recorded."""
    kind = kind_of(task) if task in TASKS else KINDS.get(task, "sequence")
    causal = causal or kind == "language"
    table, basis = _ranked(kind, task if task in TASKS else None, causal)
    best, others = table.iloc[0], table.iloc[1:]
    near = [Arm.parse(name).label for name in others[~others.told.isin(("behind", "ahead"))].arm]
    arm = Arm.parse(best.arm)
    what = f"the {'causal ' if causal else ''}arm that validation chooses of {len(table)}"
    reasons = [
        f"{arm.label} is {what}: {_score(best, kind)} in the test. [{basis}]",
        f"About the same, or we cannot tell: {', '.join(near) or 'none'}. [{basis}]",
    ]
    fitting, left_out = _fitting_verdicts(kind, causal)
    reasons += [_claim(verdict) for verdict in fitting if verdict.word == SUPPORTED]
    odd = [_claim(verdict) for verdict in fitting if verdict.word in (OPPOSITE, NO_GAIN)]
    undecided = [
        _claim(verdict) for verdict in fitting if verdict.word not in (SUPPORTED, OPPOSITE, NO_GAIN)
    ]
    odd += [
        _named(row, basis) for row in others[others.who != ""].itertuples() if row.told == "behind"
    ]
    if batch_size and batch_size < SMALL_BATCH and {"BN", "NormVary"} & set(arm.norms):
        odd.append(f"A batch of {batch_size} makes the statistics of BN noisy. [guide S4, step 1]")
    if not _fits(best.arm, causal=True):
        odd.append(
            "It looks at later positions: causal=True asks for one that does not. [notebook 01]"
        )
    code = f'mambanorm.MambaBlock(d_model, n1="{arm.n1}", n2="{arm.n2}")'
    norm, place = (arm.n2, f"after the SSM (N2), {arm.n1} before it (N1)")
    if arm.n2 == "None":
        norm, place = arm.n1, "before the SSM (N1), none after it (N2)"
    return norm, place, code, tuple(reasons), tuple(odd), tuple(near[:3]), (*undecided, *left_out)


def _score(row: pd.Series, kind: str) -> str:
    """Return the test score of an arm: accuracy, or bits a character, which a ranking holds with a
    minus."""
    if kind == "language":
        return f"{-row['mean']:.2f} ± {row.sd:.2f} bits a character (mean ± sd, {row.n:.0f} seeds)"
    return f"{row['mean']:.1f} ± {row.sd:.1f} % (mean ± sd, {row.n:.0f} seeds)"


def _fitting_verdicts(kind: str, causal: bool) -> tuple[list[Verdict], list[str]]:
    """Return the verdicts on arms that may be taken, and a sentence on the claims that are left
    out."""
    fitting = [
        verdict
        for verdict in _verdicts(kind)
        if all(_fits(arm, causal) for arm in verdict.claim.arms)
    ]
    left_out = dict.fromkeys(
        verdict.claim.id for verdict in _verdicts(kind) if verdict not in fitting
    )
    if not left_out:
        return fitting, []
    return fitting, [
        f"{', '.join(left_out)} compare arms that look at later positions. [claims of the paper]"
    ]


def _fits(arm: str, causal: bool) -> bool:
    return not causal or all(NORMS[name].causal for name in Arm.parse(arm).norms)


@lru_cache(maxsize=16)
def _ranked(kind: str, task: str | None, causal: bool) -> tuple[pd.DataFrame, str]:
    """Return the ranking on a task (None = the task by which arms of this kind are advised), and
    its basis in words.

    causal: only among the arms that see no later position.
    """
    frame, name = recorded(STUDY_SCALE), task or ADVISED_ON[kind]
    if name not in (known := dict.fromkeys(frame.task)):
        raise unknown("task with recorded runs", name, known)
    table = ranking(
        frame, name, scale=STUDY_SCALE, arms=[arm for arm in tuned_arms(kind) if _fits(arm, causal)]
    )
    return table, f"recorded runs, scale {STUDY_SCALE}, {name}, {int(table.n.max())} seeds"


@lru_cache(maxsize=4)
def _verdicts(kind: str) -> tuple[Verdict, ...]:
    """Return the verdicts on recorded trained models, one for each claim and task."""
    judged = verdicts(
        recorded(STUDY_SCALE), JUDGED[kind], scale=STUDY_SCALE, tasks=[ADVISED_ON[kind]]
    )
    return tuple(verdict for verdict in judged if verdict.n)


def _claim(verdict: Verdict) -> str:
    source = f"claim of the paper, {verdict.claim.where}; {verdict.basis}, {verdict.n} seeds"
    return f"“{verdict.claim.words}” ({verdict.claim.id}): {verdict.brief}. [{source}]"


def _named(row, basis: str) -> str:
    difference = points(-row.behind, -row.high, -row.low, row.unit)
    return f"{Arm.parse(row.arm).label} ({row.who}) is behind it: {difference}. [{basis}]"
