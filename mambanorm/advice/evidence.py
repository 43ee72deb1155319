"""What this kit has measured on a question, as reasons: from stored rows and recorded runs, never from memory.


Where nothing is stored, the only entry says how to measure it. `store`: scale and runs_dir of what is stored.

For a Mamba block the arm is the one that README and notebook 12 name: `ranking` chooses it by validation, on the
recorded trained models. The reasons say how sure that is, and which claims of the paper stand or fall.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import pandas as pd

from mambanorm.advice.experiments import stored
from mambanorm.advice.recommendation import Question, Reason, Recommendation
from mambanorm.arms import Arm
from mambanorm.basics.errors import unknown
from mambanorm.basics.settings import STUDY_SCALE
from mambanorm.claims import judge, ranking
from mambanorm.claims.evidence import kind_of
from mambanorm.claims.ranking import ADVISED_ON, tuned_arms
from mambanorm.claims.verdict import Verdict
from mambanorm.norms import NORMS
from mambanorm.runs.recorded_results import recorded
from mambanorm.study.intervals import t_interval
from mambanorm.study.tables import CANNOT_TELL, interval_says, points, seeds_text
from mambanorm.tasks import TASKS

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


class Gap:
    """value of the rows where column is a, minus value where it is b, seed by seed. low, high: the 95 % t-interval of
    the mean; says: what it says of zero."""

    def __init__(self, frame: pd.DataFrame, column: str, a: str, b: str, value: str = "accuracy"):
        wide = frame.pivot_table(index="seed", columns=column, values=value)
        self.by_seed, self.value = (wide[a] - wide[b]).dropna(), value
        self.low, self.high = t_interval(self.by_seed)
        self.says = interval_says(self.low, self.high)

    @property
    def mean(self) -> float:
        return self.by_seed.mean()

    def __str__(self) -> str:
        if self.value == "accuracy":
            return points(self.mean, self.low, self.high)
        return f"{self.mean:+.2f} [{self.low:.2f}, {self.high:.2f}]".replace("-", "−")


class Measured(NamedTuple):
    """Reasons for what is recommended, against it, and those that decide nothing."""

    agree: tuple[Reason, ...] = ()
    odd: tuple[Reason, ...] = ()
    undecided: tuple[Reason, ...] = ()

    def __add__(self, other: Measured) -> Measured:
        return Measured(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


def _unmeasured(name: str, store: dict) -> Measured:
    text = f"Not measured here yet: `mambanorm.advice.measure({name!r}, {store['scale']!r})` does it."
    return Measured(undecided=(Reason(text, f"this kit, {store['scale']} scale"),))


def _compared(words: str, frame: pd.DataFrame, gap: Gap, good: str, but: str = "") -> Measured:
    """The sentence on a gap, in its list; good: what the interval says if it agrees ("clearly above zero" or "clearly
    below zero"), "" where it decides nothing; but: what is to be said of that."""
    source = f"this kit, {frame.scale.iloc[0]} scale, {seeds_text([frame.seed.nunique()])}, mean and 95 % t-interval"
    reason = (Reason(f"{words}: {gap}, {gap.says}.{but}", source),)
    if good and gap.says in ("clearly above zero", "clearly below zero"):
        return Measured(agree=reason) if gap.says == good else Measured(odd=reason)
    return Measured(undecided=reason)


def batch_size(batch: int | None, norm: str, store: dict, name: str = "batch_size") -> Measured:
    """BN against GN at the measured batch nearest to the one asked for; norm: the recommended one. It is decided only
    for one of the two. name: of the CNN, or "dense"."""
    if (frame := stored(name, **store)).empty:
        return _unmeasured(name, store)
    near = min(frame.batch.unique(), key=lambda b: abs(b - (batch or (32 if norm == "BN" else 4))))
    here = frame[frame.batch == near]
    words = f"BN − GN at batch {near}, {'linear layers' if name == 'dense' else 'a small CNN'} on digits"
    good = {"BN": "clearly above zero", "GN": "clearly below zero"}.get(norm, "")
    but = "" if good else f" {norm} is not in these runs."
    return _compared(words, here, Gap(here, "norm", "BN", "GN"), good, but)


def depth(layers: int | None, store: dict) -> Measured:
    """Pre- against post-norm at the measured depth nearest to the one asked for (None = the deepest), both with LN."""
    if (frame := stored("depth", **store)).empty:
        return _unmeasured("depth", store)
    near = min(frame.depth.unique(), key=lambda n: abs(n - (layers or 10**6)))
    here = frame[(frame.depth == near) & (frame.norm == "LN")]
    words = f"Pre- − post-norm at {near} layers, no warm-up, digits"
    return _compared(words, here, Gap(here, "place", "pre", "post"), "clearly above zero")


def recurrent(store: dict) -> Measured:
    """LN against BN and against no norm in an LSTM."""
    if (frame := stored("recurrent", **store)).empty:
        return _unmeasured("recurrent", store)
    bn, none = (
        _compared(
            f"LN − {what} in a stacked LSTM on digits", frame, Gap(frame, "norm", "LN", other), "clearly above zero"
        )
        for other, what in (("BN", "BN"), ("None", "no norm"))
    )
    return bn + none


def style(store: dict) -> Measured:
    """IN against BN where one style is painted, and how much of each image's own style they leave."""
    if (frame := stored("style", **store)).empty:
        return _unmeasured("style", store)
    words = "IN − BN, painting digits of unseen contrasts in one style, RMSE"
    found = _compared(words, frame, Gap(frame, "norm", "IN", "BN", "error_beyond"), "clearly below zero")
    left = 100 * frame.groupby("norm").survives.mean()
    if left.IN < left.BN:
        text = f"Of each image's own style {left.IN:.0f} % of the variance can be read behind IN, {left.BN:.0f} % "
        (source,) = {reason.source for reason in (*found.agree, *found.odd, *found.undecided)}
        found += Measured(odd=(Reason(f"{text}behind BN: the guide has it the other way round.", source),))
    return found


# ---------------------------------------------------------------------------------------------------------------------
# a Mamba block, from the recorded runs and verdicts


def mamba(q: Question) -> Recommendation:
    """The recommendation for a Mamba block. ValueError for a task of the kit that is not recorded."""
    kind = kind_of(q.task) if q.task in TASKS else KINDS.get(q.task, "sequence")
    causal = q.causal or kind == "language"
    table, basis = _ranked(kind, q.task if q.task in TASKS else None, causal)
    best, others = table.iloc[0], table.iloc[1:]
    near = [Arm.parse(name).label for name in others[others.told == CANNOT_TELL].arm]
    arm = Arm.parse(best.arm)
    what = f"the {'causal ' if causal else ''}arm that validation chooses of {len(table)}"
    reasons = [
        Reason(f"{arm.label} is {what}: {_score(best, kind)} in the test.", basis),
        Reason(f"Whether these are worse we cannot tell: {', '.join(near) or 'none'}.", basis),
    ]
    verdicts, left_out = _fitting_verdicts(kind, causal)
    reasons += [_claim(v) for v in verdicts if v.verdict == "reproduced"]
    odd = [_claim(v) for v in verdicts if v.verdict == "contradicted"]
    undecided = [_claim(v) for v in verdicts if v.n_seeds and v.verdict not in ("reproduced", "contradicted")]
    odd += [_named(row, basis, kind) for row in others[others.who != ""].itertuples() if row.told == "behind"]
    if q.batch_size is not None and q.batch_size < 8 and {"BN", "NormVary"} & set(arm.norms):
        odd.append(Reason(f"A batch of {q.batch_size} makes the statistics of BN noisy.", "guide S4, step 1"))
    if not _fits(best.arm, causal=True):
        odd.append(Reason("It looks along the sequence, and so at later positions: causal=True asks for one that does "
                          "not.", "notebook 01"))  # fmt: skip
    code = f'mambanorm.MambaBlock(d_model, n1="{arm.n1}", n2="{arm.n2}")'
    norm, place = (arm.n2, f"after the SSM (N2), {arm.n1} before it (N1)")
    if arm.n2 == "None":
        norm, place = arm.n1, "before the SSM (N1), none after it (N2)"
    return Recommendation(q, norm, place, code, tuple(reasons), tuple(odd), tuple(near[:3]), (*undecided, *left_out))


def _score(row: pd.Series, kind: str) -> str:
    """Test score of an arm: accuracy, or bits a character, which a ranking holds with a minus."""
    if kind == "language":
        return f"{-row['mean']:.2f} ± {row.sd:.2f} bits a character (mean ± sd, {row.n:.0f} seeds)"
    return f"{row['mean']:.1f} ± {row.sd:.1f} % (mean ± sd, {row.n:.0f} seeds)"


def _fitting_verdicts(kind: str, causal: bool) -> tuple[list[Verdict], list[Reason]]:
    """The verdicts on claims of arms that may be taken, and a sentence on those that are left out."""
    fitting = [v for v in _verdicts(kind) if all(_fits(arm, causal) for arm in v.claim.arms)]
    if not (out := [v.claim.id for v in _verdicts(kind) if v not in fitting]):
        return fitting, []
    text = f"The paper's claims {', '.join(out)} compare arms that look at later positions: they say nothing of these."
    return fitting, [Reason(text, "claims of the paper")]


def _fits(arm: str, causal: bool) -> bool:
    return not causal or all(NORMS[name].causal for name in Arm.parse(arm).norms)


@lru_cache(maxsize=16)
def _ranked(kind: str, task: str | None, causal: bool) -> tuple[pd.DataFrame, str]:
    """The ranking on a task (None = the one that speaks for its kind), and what it rests on, in words.

    causal: among the arms that see no later position, so that these are held against each other.
    """
    frame, name = recorded(STUDY_SCALE), task or ADVISED_ON[kind]
    if name not in (known := dict.fromkeys(frame.task)):
        raise unknown("task with recorded runs", name, known)
    table = ranking(frame, name, scale=STUDY_SCALE, arms=[arm for arm in tuned_arms(kind) if _fits(arm, causal)])
    return table, f"recorded runs, scale {STUDY_SCALE}, {name}, {int(table.n.max())} seeds"


@lru_cache(maxsize=4)
def _verdicts(kind: str) -> tuple[Verdict, ...]:
    """Each claim's verdict on trained models."""
    return tuple(judge(name, recorded(STUDY_SCALE), scale=STUDY_SCALE) for name in JUDGED[kind])


def _claim(verdict: Verdict) -> Reason:
    text = f"“{verdict.claim.words}” ({verdict.claim.id}): {verdict.brief}."
    return Reason(text, f"claim of the paper, {verdict.claim.where}; {verdict.fidelity}, {verdict.n_seeds} seeds")


def _named(row, basis: str, kind: str) -> Reason:
    behind = points(-row.behind, -row.high, -row.low)
    if kind == "language":
        behind = f"{row.behind:+.2f} [{row.low:.2f}, {row.high:.2f}] bits a character".replace("-", "−")
    return Reason(f"{Arm.parse(row.arm).label} ({row.who}) is behind it: {behind}.", basis)
