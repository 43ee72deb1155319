"""What a diagnosis finds, as sentences: each with its number, the layer, what to try, and where this kit measured it.

A rule is a function of the frames of a Diagnosis. What is silent on a sound model and speaks on a sick one is tested in
tests/test_clinic.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

import pandas as pd

from mambanorm.advice.checks_of_behaviour import FLOW, LAYERS
from mambanorm.advice.findings import Finding, Findings
from mambanorm.basics.text import plural
from mambanorm.clinic.passing import LARGEST, First
from mambanorm.diagnostics import growth

STREAM = ("residual", "branch")
"""Sites at which growth over depth is looked at, the first that there is."""
SCANNED = ("dt", "B", "C", "delta", "delta_after", "step_size")
"""Sites that the scan reads; the value after them is its own."""
BEHIND_SCAN = ("scan", "n2", "gated", "branch", "residual")
GROWS = 1.0
"""Decades in 8 layers above which growth is told: √l, a sum of independent branches, has at most 0.7."""
OUTLIER = 300.0
"""Largest magnitude by RMS above which a site is told to hold outliers; of normal values it is 5 or 6."""
STRETCHED = 10.0
"""By what factor a σ₁ may exceed the median of the same weight in all layers."""
FLOAT32_SQUARE = math.sqrt(3.4e38)
HIGHEST_LOG = math.log(3.4e38)
LOST = "it holds non-finite weights already: go back to an earlier checkpoint; mn.watch keeps the last finite one"
GROWTH, SPECTRA, FAILURES = (
    "notebook 07, Figure 9 (H10)", "notebook 07, Figure 10 (H11)", "notebook 07, failures (H9)"
)  # fmt: skip


class ClinicFindings(Findings):
    """Findings whose last column says where this kit measured it."""

    LAST = "measured in"


def findings_of(
    table: pd.DataFrame,
    weights: pd.DataFrame,
    first: First | None,
    first_gradient: First | None,
    loss: float,
    skipped: Sequence[str] = (),
    seats: Sequence[str] = (),
) -> Findings:
    """All that the rules find in the frames of a Diagnosis, the worst first. seats: where insert_norm could put a norm
    into this model."""
    lost = list(_lost_weights(weights))
    found = [*lost, *_decay(weights), *([] if lost else _non_finite(first, first_gradient, loss, seats))]
    if len(table):
        found += [*_room(table, seats), *_growth(table, seats), *_outliers(table), *_flow(table)]
    return ClinicFindings([*found, *_stretched(weights)], skipped)


def place(site: str, depth: int, where: str) -> str:
    where = {"": "the model's output", ":input": "the model's input"}.get(where, where)
    return f"{site} of layer {depth} ({where})" if site else where


def _lost_weights(weights: pd.DataFrame) -> Iterator[Finding]:
    lost = weights[weights.nonfinite > 0] if len(weights) else weights
    if len(lost):
        first = lost.weight.iloc[0]
        found = f"{len(lost)} of {plural(len(weights), 'weight')} are not finite, {first} the first of them"
        yield Finding("serious", first, f"{found}; what made them so cannot be seen any more", LOST, FAILURES)


def _decay(weights: pd.DataFrame) -> Iterator[Finding]:
    """A = −exp(A_log) is computed in float32, whatever the model's type: above 88.7 it is infinite."""
    if not len(weights):
        return
    far = weights[weights.weight.str.contains(r"(?:^|\.)A_logs?$") & (weights.highest > HIGHEST_LOG)]
    if len(far):
        row = far.iloc[0]
        found = f"{row.weight} reaches {row.highest:.3g}, and A = −exp(A_log) is infinite in float32 above "
        found += f"{HIGHEST_LOG:.1f}; so in {plural(len(far), 'layer')}"
        mend = "a lower rate, at least for A_log, or clip_grad_norm_"
        yield Finding("serious", row.weight, found, mend, FAILURES)


def _non_finite(
    first: First | None, first_gradient: First | None, loss: float, seats: Sequence[str]
) -> Iterator[Finding]:
    """A loss that is not finite behind a finite forward pass is told before the gradients that it spoils."""
    if first is not None:
        found = f"the first non-finite value of the forward pass is {place(first.site, first.depth, first.where)}"
        if first.before:
            before = place("", 0, first.before)
            found += f"; just before it {before} is finite, its largest magnitude {first.before_max:.3g}"
        known = (
            FAILURES if first.before_site in SCANNED else _failures()
        )  # no recorded run has norms on Δ, B and C there
        yield Finding("serious", first.where, found, _norm_before(first, seats), known)
    elif not math.isfinite(loss):
        mend = "look at the loss: log of 0, or a mean of no values"
        yield Finding("serious", "", f"every site is finite and the loss is {loss}", mend, FAILURES)
    elif first_gradient is not None:
        at = place(first_gradient.site, first_gradient.depth, first_gradient.where)
        found = f"the forward pass is finite; of the backward pass the gradient of {at} is the first that is not"
        if first_gradient.before:
            found += f", behind that of {place('', 0, first_gradient.before)} (largest {first_gradient.before_max:.3g})"
        mend = "a lower rate, clip_grad_norm_, or a larger eps in the norm whose backward pass comes just before"
        yield Finding("serious", first_gradient.where, found, mend, _failures())


def _norm_before(first: First, seats: Sequence[str]) -> str:
    """What to try where a value has left the range: a norm behind it comes too late for it. Of a product that overflows
    the norm goes to its input; of the scan, to what the scan reads."""
    inside = [site for site in ("delta", "B", "C") if site in seats]
    if first.before_site in SCANNED and inside:
        calls = ", ".join(f"mn.insert_norm(model, {site!r}, 'RMSN', batch)" for site in inside)
        behind = "one behind it comes too late for this value"
        return f"norms on what the scan reads, as Jamba has: {calls}; {behind}; or a lower rate"
    return _norm_for(first.site or first.before_site, seats)


def _norm_for(site: str, seats: Sequence[str]) -> str:
    """What to try against values that leave the range; insert_norm only where it would take the site."""
    seat = next((seat for seat in ("n2", "gated") if seat in seats), None)
    if site in BEHIND_SCAN and seat:
        norm = f"mn.insert_norm(model, {seat!r}, 'RMSN', batch)"
        return f"a norm behind the scan, {norm}, a lower rate, or clip_grad_norm_"
    if site in SCANNED:
        name = site if site in ("B", "C") else "delta"
        how = f": mn.insert_norm(model, {name!r}, 'RMSN', batch)" if name in seats else ""
        on = "what becomes Δ" if site in ("delta_after", "step_size") else "it"
        return f"a norm on {on}, as Jamba has{how}, or a lower rate"
    return "a norm before it, a lower rate, or clip_grad_norm_"


@lru_cache(maxsize=1)
def _failures() -> str:
    """What this kit's recorded runs say of non-finite ends: where they began without norms, and how RMSN fared."""
    from mambanorm.training.recorded_results import read_results, recorded_path

    try:
        runs = read_results(recorded_path("evening"))
    except (OSError, ValueError):  # installed without its data
        return FAILURES
    none = runs[runs.arm == "None>SSM>None"]
    failed = none[none.status == "diverged"]
    none = none[none.task.isin(failed.task) & none.lr.isin(failed.lr)]
    behind = failed.first_nonfinite_site.str.endswith((".scan", ".n2", ".gated")).sum()
    same = runs[(runs.arm == "RMSN>SSM>RMSN") & runs.task.isin(failed.task) & runs.lr.isin(failed.lr)]
    told = f"{FAILURES}: in float32, on other models, {len(failed)} of {len(none)} runs of None→None end non-finite"
    told += f", {behind} of them first behind the scan"
    if not len(same):
        return told
    return f"{told}; of RMSN→RMSN at their tasks and rates {(same.status == 'diverged').sum()} of {len(same)}"


def _room(table: pd.DataFrame, seats: Sequence[str]) -> Iterator[Finding]:
    """The site with the largest magnitude, where it is beyond float16 or near what a square can hold."""
    row = table.loc[table.max_abs.idxmax()] if table.max_abs.notna().any() else None
    if row is None or not row.max_abs > LARGEST["float16"]:
        return
    at, n = place(row.site, row.depth, row["where"]), (table.max_abs > LARGEST["float16"]).sum()
    found = f"the largest magnitude is {row.max_abs:.3g}, at {at}: "
    if row.max_abs > FLOAT32_SQUARE:
        found += "its square leaves float32, so that a mean square of it is infinite, and a norm of it puts out 0"
        yield Finding("serious", row["where"], found, _norm_for(row.site, seats), GROWTH)
        return
    found += f"beyond float16's {LARGEST['float16']:,.0f}; {n} of {plural(len(table), 'site')} in all"
    mend = f"bfloat16 or float32 there; or {_norm_for(row.site, seats)}"
    yield Finding("warning", row["where"], found, mend, GROWTH)


def _growth(table: pd.DataFrame, seats: Sequence[str]) -> Iterator[Finding]:
    """RMS over depth of the residual stream, or of what stands for it."""
    site = next((site for site in STREAM if (table.site == site).any()), None)
    if site is None:
        return
    rms = table[table.site == site].groupby("depth").rms.max().dropna()
    if len(rms) < 4:
        return
    facts = growth(rms)
    if facts["decades_per_8"] > GROWS:
        found = f"the RMS of {site} grows by {facts['decades_per_8']:.1f} decades in 8 layers, "
        found += f"from {rms.iloc[0]:.3g} in layer {rms.index[0]} to {rms.iloc[-1]:.3g} in layer {rms.index[-1]}"
        found += f" ({facts['law']})"
        where = table[(table.site == site) & (table.depth == rms.index[-1])].iloc[0]["where"]
        yield Finding("warning", where, found, _norm_for(site, seats), GROWTH)


def _outliers(table: pd.DataFrame) -> Iterator[Finding]:
    ratio = table.max_abs / table.rms
    if (ratio > OUTLIER).any():
        row = table.loc[ratio.idxmax()]
        found = f"{place(row.site, row.depth, row['where'])} holds outliers: its largest magnitude is "
        found += f"{ratio.max():.0f} times its RMS, kurtosis {row['kurtosis']:.3g} (normal values: 3)"
        mend = "keep this site in a wider type when you quantize; a norm of each token before the next matrix"
        yield Finding("note", row["where"], found, mend, GROWTH)


def _flow(table: pd.DataFrame) -> Iterator[Finding]:
    """Gradients that vanish or explode on their way back through the layers."""
    site = next((site for site in STREAM if table[table.site == site].grad_rms.notna().any()), None)
    if site is None:
        return
    rms = table[table.site == site].groupby("depth").grad_rms.max()
    if len(rms) < LAYERS or not (rms.iloc[-1] > 0 and math.isfinite(rms.iloc[0])):
        return
    ratio = rms.iloc[0] / rms.iloc[-1]
    if not FLOW < ratio < 1 / FLOW:
        word = "vanish" if ratio < 1 else "explode"
        found = f"gradients {word}: at {site} of layer {rms.index[0]} their RMS is {rms.iloc[0]:.1e}, "
        found += f"{ratio:.1e} times that of layer {rms.index[-1]}"
        mend = "a norm before each layer and a residual path around it"
        yield Finding("serious", table[table.site == site].iloc[0]["where"], found, mend, "notebook 11, check 8")


def _stretched(weights: pd.DataFrame) -> Iterator[Finding]:
    """A weight whose σ₁ is far above that of the same weight in the other layers."""
    if not len(weights) or not weights.sigma_1.notna().any():
        return
    kind = weights.weight.str.replace(r"\.\d+\.", ".*.", regex=True)
    median = weights.groupby(kind).sigma_1.transform("median")
    far = weights.sigma_1 / median.where(weights.groupby(kind).sigma_1.transform("size") >= 3)
    if (far > STRETCHED).any():
        row = weights.loc[far.idxmax()]
        found = f"σ₁ of {row.weight} is {row.sigma_1:.3g}, {far.max():.0f} times the median of its kind "
        found += f"(stable rank {row.stable_rank:.1f}); a large σ₁ is no diagnosis, one that stands alone is a sign"
        yield Finding("warning", row.weight, found, "look at this layer's gradients first; weight decay on it", SPECTRA)
