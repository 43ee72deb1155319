"""The recommendation for a Mamba block, which the guide does not treat: from recorded runs alone.

It is the arm that README and notebook 12 name: `ranking` chooses it by validation accuracy among
the recorded trained models. Notebook 12 has the verdicts on the paper's claims.
"""

from functools import lru_cache

import pandas as pd

from mambanorm.arms import Arm
from mambanorm.errors import unknown
from mambanorm.norms import NORMS
from mambanorm_study.advice.recommendation import Recommendation
from mambanorm_study.advice.which_arm import ADVISED_ON, AHEAD, BEHIND, ranking, tuned_arms
from mambanorm_study.basics.settings import SMALL_BATCH, STUDY_SCALE
from mambanorm_study.runs.presets import kind_of
from mambanorm_study.runs.recorded_results import recorded
from mambanorm_study.tables.run_tables import label, points
from mambanorm_study.tasks import TASKS

# Task of the guide → kind of this kit's tasks; any other task is a sequence.
KINDS = {
    "language_model": "language",
    "detection": "vision",
    "segmentation": "vision",
    "style_transfer": "vision",
    "image_translation": "vision",
}


def recommend_mamba(task: str | None, causal: bool, batch_size: int | None) -> Recommendation:
    """Return the recommendation for a Mamba block. Raises ValueError for a task of the kit without
    recorded runs.
    """
    kind = kind_of(task) if task in TASKS else KINDS.get(task, "sequence")
    causal = causal or kind == "language"
    table, basis = _ranked(kind, task if task in TASKS else ADVISED_ON[kind], causal)
    best, other_arms = table.iloc[0], table.iloc[1:]
    arm = Arm.parse(best.arm)
    is_behind = other_arms.standing == BEHIND
    similar = [label(name) for name in other_arms.arm[~is_behind & (other_arms.standing != AHEAD)]]
    score = f"{best['mean']:.1f} ± {best.sd:.1f} %"
    if kind == "language":  # a ranking holds the negated loss
        score = f"{-best['mean']:.2f} ± {best.sd:.2f} bits a character"
    what = f"the {'causal ' if causal else ''}arm that validation chooses of {len(table)}"
    reasons = (
        f"{arm.label} is {what}: {score} (mean ± sd, {best.n:.0f} seeds) in the test. [{basis}]",
        f"About the same, or we cannot tell: {', '.join(similar) or 'none'}. [{basis}]",
    )
    at_odds = [
        f"{label(row.arm)} ({row.who}) is behind it: "
        f"{points(-row.behind, -row.high, -row.low, row.unit)}. [{basis}]"
        for row in other_arms[is_behind & (other_arms.who != "")].itertuples()
    ]
    if batch_size and batch_size < SMALL_BATCH and {"BN", "NormVary"} & set(arm.norms):
        text = f"A batch of {batch_size} makes the statistics of BN noisy. [guide S4, step 1]"
        at_odds.append(text)
    if not _is_causal(best.arm):
        at_odds.append(
            "It looks at later positions: causal=True asks for one that does not. [notebook 01]"
        )
    norm, place = arm.n2, f"after the SSM (N2), {arm.n1} before it (N1)"
    if arm.n2 == "None":
        norm, place = arm.n1, "before the SSM (N1), none after it (N2)"
    return Recommendation(
        norm=norm,
        place=place,
        code=f'mambanorm.MambaBlock(d_model, n1="{arm.n1}", n2="{arm.n2}")',
        reasons=reasons,
        at_odds=tuple(at_odds),
        instead=tuple(similar[:3]),
    )


def _is_causal(arm: str) -> bool:
    return all(NORMS[name].causal for name in Arm.parse(arm).norms)


@lru_cache(maxsize=16)
def _ranked(kind: str, task: str, causal: bool) -> tuple[pd.DataFrame, str]:
    """Return the ranking of the recorded arms on a task, of causal arms alone if `causal`, and a
    text that names these runs.
    """
    frame = recorded(STUDY_SCALE)
    tasks = list(frame.task.unique())
    if task not in tasks:
        raise unknown("task with recorded runs", task, tasks)
    arms = [arm for arm in tuned_arms(kind) if _is_causal(arm) or not causal]
    table = ranking(frame, task, scale=STUDY_SCALE, arms=arms)
    return table, f"recorded runs, scale {STUDY_SCALE}, {task}, {int(table.n.max())} seeds"
