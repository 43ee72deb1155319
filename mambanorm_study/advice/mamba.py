"""The recommendation for a Mamba block. The guide has none, so it comes from the recorded runs.

The README and notebook 12 recommend the same arms: `ranking` chooses an arm by its validation
accuracy in the recorded runs. Notebook 12 has the verdicts on the paper's claims.
"""

from functools import lru_cache

import pandas as pd

from mambanorm import NORMS, Arm
from mambanorm_study.advice.recommendation import Recommendation
from mambanorm_study.advice.which_arm import ADVISED_ON, AHEAD, BEHIND, ranking, tuned_arms
from mambanorm_study.basics.settings import STUDY_SCALE
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


def recommend_mamba(task: str | None, causal: bool) -> Recommendation:
    """Return the recommendation for a Mamba block.

    task: a recorded task of the kit, a task of the guide, or None. Raises ValueError for a task of
    the kit without recorded runs.
    """
    if task not in TASKS:
        task = ADVISED_ON[KINDS.get(task, "sequence")]
    is_language = kind_of(task) == "language"
    table = _ranked(task, causal or is_language)
    best, other_arms = table.iloc[0], table.iloc[1:]
    arm = Arm.parse(best.arm)
    if is_language:  # a ranking holds the negated loss
        score = f"{-best['mean']:.2f} ± {best.sd:.2f} bits a character"
    else:
        score = f"{best['mean']:.1f} ± {best.sd:.1f} %"
    is_behind = other_arms.standing == BEHIND
    similar = [label(name) for name in other_arms.arm[~is_behind & (other_arms.standing != AHEAD)]]
    what = f"the {'causal ' if causal or is_language else ''}arm that validation chooses"
    basis = f"[recorded runs, scale {STUDY_SCALE}, {task}, {table.n.max():.0f} seeds]"
    at_odds = [
        f"{label(row.arm)} ({row.who}) is behind it: "
        f"{points(-row.behind, -row.high, -row.low, row.unit)}. {basis}"
        for row in other_arms[is_behind & (other_arms.who != "")].itertuples()
    ]
    if not _is_causal(best.arm):
        at_odds.append(
            "Its norms read later positions; causal=True gives an arm whose norms do not. "
            "[notebook 01]"
        )
    norm, place = arm.n2, f"after the SSM (N2), {arm.n1} before it (N1)"
    if arm.n2 == "None":
        norm, place = arm.n1, "before the SSM (N1), none after it (N2)"
    return Recommendation(
        norm=norm,
        place=place,
        code=f'mambanorm.MambaBlock(d_model, n1="{arm.n1}", n2="{arm.n2}")',
        reasons=(
            f"{arm.label} is {what} of {len(table)}: {score} (mean ± sd, {best.n:.0f} seeds) in "
            f"the test. {basis}",
            f"About the same, or we cannot tell: {', '.join(similar) or 'none'}. {basis}",
        ),
        at_odds=tuple(at_odds),
        instead=tuple(similar[:3]),
    )


def _is_causal(arm: str) -> bool:
    return all(NORMS[name].causal for name in Arm.parse(arm).norms)


@lru_cache(maxsize=16)
def _ranked(task: str, causal: bool) -> pd.DataFrame:
    """Return the ranking of the recorded arms on a task; of the causal ones if `causal`."""
    arms = [arm for arm in tuned_arms(kind_of(task)) if _is_causal(arm) or not causal]
    return ranking(recorded(STUDY_SCALE), task, scale=STUDY_SCALE, arms=arms)
