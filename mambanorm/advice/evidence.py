"""What this kit has measured on a question, as reasons: from the stored rows of experiments.py, never from memory.

Each function returns Measured: reasons that agree with the recommendation, those at odds with it, and those that decide
nothing. A difference is told by the 95 % t-interval of its paired seeds. Where nothing is stored, the only entry says
how to measure it. `store`: scale and runs_dir of what is stored, None = the environment's.
"""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from mambanorm.advice.fitting import stored
from mambanorm.advice.recommendation import Reason
from mambanorm.basics.settings import default_scale
from mambanorm.study.intervals import t_interval
from mambanorm.study.tables import interval_says, points, seeds_text


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


def _sorted(reason: Reason, says: str, good: str) -> Measured:
    """The reason in its list; good: what the interval says ("above zero" or "below zero") if it agrees."""
    if says == good:
        return Measured(agree=(reason,))
    return Measured(odd=(reason,)) if says in ("above zero", "below zero") else Measured(undecided=(reason,))


def paired_by_seed(frame: pd.DataFrame, column: str, a: str, b: str, value: str) -> pd.Series:
    """value of the rows where column is a, minus value where it is b, seed by seed."""
    wide = frame.pivot_table(index="seed", columns=column, values=value)
    return (wide[a] - wide[b]).dropna()


def _told(difference: pd.Series) -> tuple[str, str]:
    low, high = t_interval(difference)
    return points(difference.mean(), low, high), interval_says(low, high)


def batch_size(batch: int | None, norm: str, store: dict | None = None, name: str = "batch_size") -> Measured:
    """BN against GN at the measured batch nearest to the one asked for; norm: the recommended one. It is decided only
    for one of the two. name: of the CNN, or "dense"."""
    frame = stored(name, **store or {})
    if frame.empty:
        return _unmeasured(name, store)
    near = min(frame.batch.unique(), key=lambda b: abs(b - (batch or (32 if norm == "BN" else 4))))
    here = frame[frame.batch == near]
    amount, says = _told(paired_by_seed(here, "norm", "BN", "GN", "accuracy"))
    model = "linear layers" if name == "dense" else "a small CNN"
    text = f"BN − GN at batch {near}, {model} on digits: {amount}, {says}."
    if norm in ("BN", "GN"):
        return _sorted(Reason(text, _source(here)), says, "above zero" if norm == "BN" else "below zero")
    return Measured(undecided=(Reason(f"{text} {norm} is not in these runs.", _source(here)),))


def depth(layers: int | None, store: dict | None = None) -> Measured:
    """Pre- against post-norm at the measured depth nearest to the one asked for (None = the deepest), both with LN."""
    frame = stored("depth", **store or {})
    if frame.empty:
        return _unmeasured("depth", store)
    near = min(frame.depth.unique(), key=lambda n: abs(n - (layers or 10**6)))
    here = frame[(frame.depth == near) & (frame.norm == "LN")]
    amount, says = _told(paired_by_seed(here, "place", "pre", "post", "accuracy"))
    text = f"Pre- − post-norm at {near} layers, no warm-up, digits: {amount}, {says}."
    return _sorted(Reason(text, _source(here)), says, "above zero")


def rms_norm(norm: str, store: dict | None = None) -> Measured:
    """RMSN against LN in the pre-norm Transformer; norm: which of the two is recommended. Nothing without such runs."""
    frame = stored("depth", **store or {})
    if frame.empty or "RMSN" not in set(frame.norm):
        return Measured()
    layers = frame[frame.norm == "RMSN"].depth.iloc[0]
    here = frame[(frame.depth == layers) & (frame.place == "pre")]
    amount, says = _told(paired_by_seed(here, "norm", "RMSN", "LN", "accuracy"))
    text = f"RMSN − LN, pre-norm, {layers} layers, no warm-up, digits: {amount}, {says}."
    return _sorted(Reason(text, _source(here)), says, "above zero" if norm == "RMSN" else "below zero")


def recurrent(store: dict | None = None) -> Measured:
    """LN against BN and against no norm in an LSTM."""
    frame = stored("recurrent", **store or {})
    if frame.empty:
        return _unmeasured("recurrent", store)
    found = Measured()
    for other, what in (("BN", "BN"), ("None", "no norm")):
        amount, says = _told(paired_by_seed(frame, "norm", "LN", other, "accuracy"))
        reason = Reason(f"LN − {what} in a stacked LSTM on digits: {amount}, {says}.", _source(frame))
        found += _sorted(reason, says, "above zero")
    return found


def style(store: dict | None = None) -> Measured:
    """Which norm paints one style best, and how much of each image's own style it leaves."""
    frame = stored("style", **store or {})
    if frame.empty:
        return _unmeasured("style", store)
    means = frame.groupby("norm")[["error", "error_beyond", "survives"]].mean()
    error = Reason(
        f"Painting digits of unseen contrasts in one style, RMSE: IN {means.error_beyond['IN']:.2f}, "
        f"BN {means.error_beyond['BN']:.2f}; contrasts as in training: IN {means.error['IN']:.2f}, BN "
        f"{means.error['BN']:.2f}.",
        _source(frame).replace("mean and 95 % t-interval", "means"),
    )
    left = Reason(
        f"Of each image's own style {100 * means.survives['IN']:.0f} % of the variance can be read behind IN, "
        f"{100 * means.survives['BN']:.0f} % behind BN: the guide has it the other way round.",
        error.source,
    )
    gap = paired_by_seed(frame, "norm", "IN", "BN", "error_beyond")
    reversed_ = (left,) if means.survives["IN"] < means.survives["BN"] else ()
    return _sorted(error, interval_says(*t_interval(gap)), "below zero") + Measured(odd=reversed_)


def gan(component: str, store: dict | None = None) -> Measured:
    """Each measured norm in this component against none in both, by the energy distance of samples (low is good)."""
    frame = stored("gan", **store or {})
    if frame.empty:
        return _unmeasured("gan", store)
    other = "discriminator" if component == "generator" else "generator"
    here, found = frame[frame[other] == "None"], Measured()
    for norm in (name for name in ("BN", "IN") if name in set(here[component])):
        difference = paired_by_seed(here, component, norm, "None", "distance")
        low, high = t_interval(difference)
        text = (
            f"{norm} − no norm in the {component} of a GAN of digits, energy distance (lower is better): "
            f"{difference.mean():+.2f} [{low:.2f}, {high:.2f}], {interval_says(low, high)}."
        ).replace("-", "−")
        found += _sorted(Reason(text, _source(frame)), interval_says(low, high), "above zero")
    return found
