"""What this kit has measured on a question, as reasons: from the stored rows of experiments.py, never from memory.

    Gap                                    a difference between two arms, paired by seed, with its t-interval
    batch_size, depth, recurrent, style    Measured: reasons that agree with a recommendation, those at odds with it,
                                           and those that decide nothing

Where nothing is stored, the only entry says how to measure it. `store`: scale and runs_dir of what is stored, None =
the environment's.
"""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from mambanorm.advice.fitting import stored
from mambanorm.advice.recommendation import Reason
from mambanorm.basics.settings import default_scale
from mambanorm.study.intervals import t_interval
from mambanorm.study.tables import interval_says, points, seeds_text


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


def _source(frame: pd.DataFrame) -> str:
    return f"this kit, {frame.scale.iloc[0]} scale, {seeds_text([frame.seed.nunique()])}, mean and 95 % t-interval"


def _unmeasured(name: str, store: dict | None) -> Measured:
    scale = (store or {}).get("scale") or default_scale()
    text = f"Not measured here yet: `mambanorm.advice.measure({name!r}, {scale!r})` does it."
    return Measured(undecided=(Reason(text, f"this kit, {scale} scale"),))


def _sorted(text: str, frame: pd.DataFrame, says: str, good: str) -> Measured:
    """The text in its list; good: what the interval says ("above zero" or "below zero") if it agrees."""
    reason = (Reason(text, _source(frame)),)
    if says == good:
        return Measured(agree=reason)
    return Measured(odd=reason) if says in ("above zero", "below zero") else Measured(undecided=reason)


def batch_size(batch: int | None, norm: str, store: dict | None = None, name: str = "batch_size") -> Measured:
    """BN against GN at the measured batch nearest to the one asked for; norm: the recommended one. It is decided only
    for one of the two. name: of the CNN, or "dense"."""
    frame = stored(name, **store or {})
    if frame.empty:
        return _unmeasured(name, store)
    near = min(frame.batch.unique(), key=lambda b: abs(b - (batch or (32 if norm == "BN" else 4))))
    here = frame[frame.batch == near]
    gap = Gap(here, "norm", "BN", "GN")
    model = "linear layers" if name == "dense" else "a small CNN"
    text = f"BN − GN at batch {near}, {model} on digits: {gap}, {gap.says}."
    if norm in ("BN", "GN"):
        return _sorted(text, here, gap.says, "above zero" if norm == "BN" else "below zero")
    return Measured(undecided=(Reason(f"{text} {norm} is not in these runs.", _source(here)),))


def depth(layers: int | None, store: dict | None = None) -> Measured:
    """Pre- against post-norm at the measured depth nearest to the one asked for (None = the deepest), both with LN."""
    frame = stored("depth", **store or {})
    if frame.empty:
        return _unmeasured("depth", store)
    near = min(frame.depth.unique(), key=lambda n: abs(n - (layers or 10**6)))
    here = frame[(frame.depth == near) & (frame.norm == "LN")]
    gap = Gap(here, "place", "pre", "post")
    text = f"Pre- − post-norm at {near} layers, no warm-up, digits: {gap}, {gap.says}."
    return _sorted(text, here, gap.says, "above zero")


def recurrent(store: dict | None = None) -> Measured:
    """LN against BN and against no norm in an LSTM."""
    frame, found = stored("recurrent", **store or {}), Measured()
    if frame.empty:
        return _unmeasured("recurrent", store)
    for other, what in (("BN", "BN"), ("None", "no norm")):
        gap = Gap(frame, "norm", "LN", other)
        text = f"LN − {what} in a stacked LSTM on digits: {gap}, {gap.says}."
        found += _sorted(text, frame, gap.says, "above zero")
    return found


def style(store: dict | None = None) -> Measured:
    """IN against BN where one style is painted, and how much of each image's own style they leave."""
    frame = stored("style", **store or {})
    if frame.empty:
        return _unmeasured("style", store)
    gap, left = Gap(frame, "norm", "IN", "BN", "error_beyond"), 100 * frame.groupby("norm").survives.mean()
    text = f"IN − BN, painting digits of unseen contrasts in one style, RMSE: {gap}, {gap.says}."
    found = _sorted(text, frame, gap.says, "below zero")
    if left.IN < left.BN:
        text = f"Of each image's own style {left.IN:.0f} % of the variance can be read behind IN, {left.BN:.0f} % "
        found += Measured(odd=(Reason(f"{text}behind BN: the guide has it the other way round.", _source(frame)),))
    return found
