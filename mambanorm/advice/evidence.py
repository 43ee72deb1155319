"""What this kit has measured on a question, as reasons: from the stored rows of experiments.py, never from memory.

Each function returns two lists: reasons that agree with the guide or stand beside it, and those that are at odds with
it. A difference is told by the 95 % t-interval of its paired seeds. Where nothing is stored, the only reason says how
to measure it. `store`: scale and runs_dir of what is stored, None = the environment's.
"""

from __future__ import annotations

import pandas as pd

from mambanorm.advice.fitting import stored
from mambanorm.advice.recommendation import Reason
from mambanorm.settings import default_scale
from mambanorm.study.intervals import t_interval
from mambanorm.study.tables import interval_says, points, seeds_text

Lists = tuple[list[Reason], list[Reason]]


def _source(frame: pd.DataFrame) -> str:
    return f"this kit, {frame.scale.iloc[0]} scale, {seeds_text([frame.seed.nunique()])}, mean and 95 % t-interval"


def _unmeasured(name: str) -> Lists:
    text = f"Not measured here yet: `mambanorm.advice.measure({name!r})` does it in seconds to a minute."
    return [Reason(text, f"this kit, scale {default_scale()}")], []


def paired_by_seed(frame: pd.DataFrame, column: str, a: str, b: str, value: str) -> pd.Series:
    """value of the rows where column is a, minus value where it is b, seed by seed."""
    wide = frame.pivot_table(index="seed", columns=column, values=value)
    return (wide[a] - wide[b]).dropna()


def _told(difference: pd.Series) -> tuple[str, str]:
    low, high = t_interval(difference)
    return points(difference.mean(), low, high), interval_says(low, high)


def batch_size(batch: int | None, small: bool, store: dict | None = None, name: str = "batch_size") -> Lists:
    """BN against GN at the measured batch nearest to the one asked for; name: of the CNN, or "dense"."""
    frame = stored(name, **store or {})
    if frame.empty:
        return _unmeasured(name)
    near = min(frame.batch.unique(), key=lambda b: abs(b - (batch or (4 if small else 32))))
    here = frame[frame.batch == near]
    amount, says = _told(paired_by_seed(here, "norm", "BN", "GN", "accuracy"))
    model = "linear layers" if name == "dense" else "a small CNN"
    reason = Reason(f"BN − GN at batch {near}, {model} on digits: {amount}, {says}.", _source(here))
    against = says == ("above zero" if small else "below zero")
    return ([], [reason]) if against else ([reason], [])


def depth(layers: int | None, store: dict | None = None) -> Lists:
    """Pre- against post-norm at the measured depth nearest to the one asked for (None = the deepest), both with LN."""
    frame = stored("depth", **store or {})
    if frame.empty:
        return _unmeasured("depth")
    near = min(frame.depth.unique(), key=lambda n: abs(n - (layers or 10**6)))
    here = frame[(frame.depth == near) & (frame.norm == "LN")]
    amount, says = _told(paired_by_seed(here, "place", "pre", "post", "accuracy"))
    reason = Reason(f"Pre- − post-norm at {near} layers, no warm-up, digits: {amount}, {says}.", _source(here))
    return ([], [reason]) if says == "below zero" else ([reason], [])


def recurrent(store: dict | None = None) -> Lists:
    """LN against BN and against no norm in an LSTM."""
    frame = stored("recurrent", **store or {})
    if frame.empty:
        return _unmeasured("recurrent")
    agree, odd = [], []
    for other, what in (("BN", "BN"), ("None", "no norm")):
        amount, says = _told(paired_by_seed(frame, "norm", "LN", other, "accuracy"))
        reason = Reason(f"LN − {what} in a stacked LSTM on digits: {amount}, {says}.", _source(frame))
        (odd if says == "below zero" else agree).append(reason)
    return agree, odd


def style(store: dict | None = None) -> Lists:
    """Which norm paints one style best, and how much of each image's own style it leaves."""
    frame = stored("style", **store or {})
    if frame.empty:
        return _unmeasured("style")
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
    helps = means.error_beyond["IN"] < means.error_beyond["BN"]
    odd = [left] if means.survives["IN"] < means.survives["BN"] else []
    return ([error], odd) if helps else ([], [error, *odd])


def gan(component: str, store: dict | None = None) -> Lists:
    """BatchNorm in this component against none in both, by the energy distance of samples (lower is better)."""
    frame = stored("gan", **store or {})
    if frame.empty:
        return _unmeasured("gan")
    other = "discriminator" if component == "generator" else "generator"
    here = frame[frame[other] == "None"]
    difference = paired_by_seed(here, component, "BN", "None", "distance")
    low, high = t_interval(difference)
    text = (
        f"BN − no norm in the {component} of a GAN of digits, energy distance (lower is better): "
        f"{difference.mean():+.2f} [{low:.2f}, {high:.2f}], {interval_says(low, high)}."
    ).replace("-", "−")
    reason = Reason(text, _source(frame))
    return ([], [reason]) if high < 0 else ([reason], [])
