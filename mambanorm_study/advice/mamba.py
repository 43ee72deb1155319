"""The recommendation for a Mamba block, which the guide does not treat: from recorded runs alone.

The arm is the arm of README and notebook 12: `ranking` chooses it by validation, on the recorded
trained models. The reasons say how sure the choice is, and what the recorded runs say about the
claims of the paper.
"""

from functools import lru_cache

import pandas as pd

from mambanorm.arms import Arm
from mambanorm.errors import unknown
from mambanorm.norms import NORMS
from mambanorm_study.advice.recommendation import Recommendation
from mambanorm_study.advice.which_arm import ADVISED_ON, AHEAD, BEHIND, ranking, tuned_arms
from mambanorm_study.basics.settings import SMALL_BATCH, STUDY_SCALE
from mambanorm_study.claims.rule import NO_GAIN, OPPOSITE, SUPPORTED
from mambanorm_study.claims.verdict import Verdict, verdicts
from mambanorm_study.runs.presets import kind_of
from mambanorm_study.runs.recorded_results import recorded
from mambanorm_study.tables.run_tables import points
from mambanorm_study.tasks import TASKS

# Task of the guide → kind of this kit's tasks; any other task is a sequence.
KINDS = {
    "language_model": "language",
    "detection": "vision",
    "segmentation": "vision",
    "style_transfer": "vision",
    "image_translation": "vision",
}

# Kind of task → the claims on type, position and proposal.
JUDGED = {
    "sequence": ("H1s", "H3s", "H4s", "H6s", "H8s"),
    "vision": ("H1v", "H3v", "H4v", "H6v", "H8v"),
    "language": ("H1l", "H3l", "H8l"),
}


def recommend_mamba(task: str | None, causal: bool, batch_size: int | None) -> Recommendation:
    """Return the recommendation for a Mamba block. ValueError for a task of the kit that is not
    recorded.
    """
    kind = kind_of(task) if task in TASKS else KINDS.get(task, "sequence")
    causal = causal or kind == "language"
    table, basis = _ranked(kind, task if task in TASKS else None, causal)
    best, other_arms = table.iloc[0], table.iloc[1:]
    arm = Arm.parse(best.arm)
    clear = other_arms.standing.isin([BEHIND, AHEAD])
    similar = [Arm.parse(name).label for name in other_arms.arm[~clear]]
    what = f"the {'causal ' if causal else ''}arm that validation chooses of {len(table)}"
    reasons = [
        f"{arm.label} is {what}: {_score(best, kind)} in the test. [{basis}]",
        f"About the same, or we cannot tell: {', '.join(similar) or 'none'}. [{basis}]",
    ]
    at_odds, undecided, left_out = [], [], []
    for verdict in _verdicts(kind):
        if not all(_fits(name, causal) for name in verdict.claim.arms):
            left_out.append(verdict.claim.id)
        elif verdict.word == SUPPORTED:
            reasons.append(_claim(verdict))
        elif verdict.word in (OPPOSITE, NO_GAIN):
            at_odds.append(_claim(verdict))
        else:
            undecided.append(_claim(verdict))
    for row in other_arms[(other_arms.who != "") & (other_arms.standing == BEHIND)].itertuples():
        difference = points(-row.behind, -row.high, -row.low, row.unit)
        name = f"{Arm.parse(row.arm).label} ({row.who})"
        at_odds.append(f"{name} is behind it: {difference}. [{basis}]")
    if left_out:
        ids = ", ".join(left_out)
        undecided.append(f"{ids} compare arms that look at later positions. [claims of the paper]")
    if batch_size and batch_size < SMALL_BATCH and {"BN", "NormVary"} & set(arm.norms):
        text = f"A batch of {batch_size} makes the statistics of BN noisy. [guide S4, step 1]"
        at_odds.append(text)
    if not _fits(best.arm, causal=True):
        at_odds.append(
            "It looks at later positions: causal=True asks for one that does not. [notebook 01]"
        )
    if arm.n2 == "None":
        norm, place = arm.n1, "before the SSM (N1), none after it (N2)"
    else:
        norm, place = arm.n2, f"after the SSM (N2), {arm.n1} before it (N1)"
    return Recommendation(
        norm=norm,
        place=place,
        code=f'mambanorm.MambaBlock(d_model, n1="{arm.n1}", n2="{arm.n2}")',
        reasons=tuple(reasons),
        at_odds=tuple(at_odds),
        instead=tuple(similar[:3]),
        undecided=tuple(undecided),
    )


def _score(row: pd.Series, kind: str) -> str:
    """Return the test score of an arm: accuracy, or the loss in bits a character."""
    seeds = f"(mean ± sd, {row.n:.0f} seeds)"
    if kind == "language":  # a ranking holds the negated loss
        return f"{-row['mean']:.2f} ± {row.sd:.2f} bits a character {seeds}"
    return f"{row['mean']:.1f} ± {row.sd:.1f} % {seeds}"


def _fits(arm: str, causal: bool) -> bool:
    """Return True if an arm may be used: in a causal model its norms must be causal."""
    return not causal or all(NORMS[name].causal for name in Arm.parse(arm).norms)


@lru_cache(maxsize=16)
def _ranked(kind: str, task: str | None, causal: bool) -> tuple[pd.DataFrame, str]:
    """Return the ranking on a task, and the runs that it rests on in words.

    task: None = the task by which arms of this kind are advised. causal: rank causal arms only.
    """
    frame, name = recorded(STUDY_SCALE), task or ADVISED_ON[kind]
    tasks = list(frame.task.unique())
    if name not in tasks:
        raise unknown("task with recorded runs", name, tasks)
    arms = [arm for arm in tuned_arms(kind) if _fits(arm, causal)]
    table = ranking(frame, name, scale=STUDY_SCALE, arms=arms)
    return table, f"recorded runs, scale {STUDY_SCALE}, {name}, {int(table.n.max())} seeds"


@lru_cache(maxsize=4)
def _verdicts(kind: str) -> list[Verdict]:
    """Return the verdicts on the recorded models, one for each claim and task that was run."""
    tasks = [ADVISED_ON[kind]]
    judged = verdicts(recorded(STUDY_SCALE), JUDGED[kind], scale=STUDY_SCALE, tasks=tasks)
    return [verdict for verdict in judged if verdict.n]


def _claim(verdict: Verdict) -> str:
    source = f"claim of the paper, {verdict.claim.where}; {verdict.basis}, {verdict.n} seeds"
    return f"“{verdict.claim.words}” ({verdict.claim.id}): {verdict.brief}. [{source}]"
