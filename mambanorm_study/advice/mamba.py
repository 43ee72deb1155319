"""The recommendation for a Mamba block, from the recorded runs.

The guide *Normalization Techniques* does not cover Mamba. `ranking` chooses the arm by validation
accuracy in the recorded runs. The README and notebook 12 recommend the same arms as this module.
Notebook 12 has the verdicts on the paper's claims.
"""

from functools import lru_cache

import pandas as pd

from mambanorm import NORMS, Arm
from mambanorm_study.advice.recommendation import Recommendation
from mambanorm_study.advice.what_to_take import arm_to_take, is_causal
from mambanorm_study.advice.which_arm import ADVISED_ON, AHEAD, BEHIND, ranking, tuned_arms
from mambanorm_study.basics.settings import STUDY_SCALE
from mambanorm_study.runs.presets import kind_of
from mambanorm_study.runs.recorded_results import recorded
from mambanorm_study.tables.run_tables import difference_with_interval, label
from mambanorm_study.tasks import TASKS

# Task of the guide → kind of task in this kit. The kind of the guide's other tasks is "sequence".
KINDS = {
    "language_model": "language",
    "detection": "vision",
    "segmentation": "vision",
    "style_transfer": "vision",
    "image_translation": "vision",
}


def recommend_mamba(task: str | None, causal: bool) -> Recommendation:
    """Return the recommendation for a Mamba block.

    task: a recorded task of this kit, a task of the guide, or None for classification of sequences.
    causal: if True, choose only among arms whose norms read no later position. Raises ValueError
    for a task of this kit without recorded runs.
    """
    if task not in TASKS:
        task = ADVISED_ON[KINDS.get(task, "sequence")]
    is_language = kind_of(task) == "language"
    table = _recorded_ranking(task, causal or is_language)
    best = table[table.arm == arm_to_take(table)].iloc[0]
    other_arms, arm = table[table.arm != best.arm], Arm.parse(best.arm)
    if is_language:  # the mean in the ranking is minus the loss
        score = f"{-best['mean']:.2f} ± {best.sd:.2f} bits a character"
    else:
        score = f"{best['mean']:.1f} ± {best.sd:.1f} %"
    is_behind = other_arms.standing == BEHIND
    similar = [label(name) for name in other_arms.arm[~is_behind & (other_arms.standing != AHEAD)]]
    arms = f"{'causal ' if causal or is_language else ''}arms"
    basis = f"[recorded runs, scale {STUDY_SCALE}, {task}, {best.n:.0f} seeds]"
    rivals = [
        f"{label(row.arm)} ({row.who}) is behind {arm.label}: "
        f"{difference_with_interval(-row.behind, -row.high, -row.low, row.unit)}. {basis}"
        for row in other_arms[is_behind & (other_arms.who != "")].itertuples()
    ]
    contradictions = []
    if not is_causal(best.arm):
        ahead = ", ".join(name for name in arm.norms if not NORMS[name].causal)
        when = " in training" if ahead == "BN" else ""
        contradictions.append(
            f"{ahead} reads later positions{when}; causal=True gives an arm with causal norms. "
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
            f"{_why(best, table, arms)}: {score} (mean ± sd, {best.n:.0f} seeds) in the test. "
            f"{basis}",
            "Arms that are about the same, or for which we cannot tell: "
            f"{', '.join(similar) or 'none'}. {basis}",
            *rivals,
        ),
        contradictions=tuple(contradictions),
        alternatives=tuple(similar[:3]),
    )


def _why(best: pd.Series, table: pd.DataFrame, arms: str) -> str:
    """Return why the arm `best` is recommended, as text. arms: "arms" or "causal arms"."""
    arm, chosen = label(best.arm), label(table.arm.iloc[0])
    if arm == chosen:
        return f"Of {len(table)} {arms}, validation chooses {arm}"
    return f"The original {arm}: {chosen}, which validation chooses, is not clearly better"


@lru_cache(maxsize=16)
def _recorded_ranking(task: str, causal: bool) -> pd.DataFrame:
    """Return the `ranking` of the recorded arms on a task. causal: True ranks only causal arms."""
    arms = [arm for arm in tuned_arms(kind_of(task)) if is_causal(arm) or not causal]
    return ranking(recorded(STUDY_SCALE), task, scale=STUDY_SCALE, arms=arms)
