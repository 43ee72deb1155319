"""The rules by which a diagnosis finds the faults of a model.

Each rule reads the record of one pass and yields symptoms. A message has its number, the layer,
advice, and the notebook that measured it. tests/mambanorm_clinic/test_diagnosis.py tests that the
rules are silent on sound models and speak on sick ones.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from mambanorm_clinic.sites import LARGEST
from mambanorm_clinic.symptoms import (
    FAILURE_SOURCE,
    GROWTH_SOURCE,
    NEGLIGIBLE,
    NonFiniteValue,
    Symptom,
    Symptoms,
    place_text,
)
from mambanorm_study.basics.text import plural
from mambanorm_study.tables.growth import growth

# The sites whose growth over depth is examined; the first that a model has is taken.
STREAM = ("residual", "branch")
# Where to put a norm that bounds a site: at what the site is computed from. Behind the scan that is
# what the scan reads (notebook 14 tries both).
SITES_IN_FRONT = {
    "dt": ("conv",),
    "delta": ("conv",),
    "B": ("conv",),
    "C": ("conv",),
    "delta_after": ("delta",),
    "step_size": ("delta",),
    "scan": ("delta", "B", "C"),
    "n2": ("delta", "B", "C"),
    "gated": ("delta", "B", "C"),
    "branch": ("delta", "B", "C"),
    "residual": ("branch",),
    "conv": ("n1",),
    "z": ("n1",),
}
# Sites that the scan reads, or that follow it: a NaN there is an overflow, whatever came before.
AROUND_SCAN = set(SITES_IN_FRONT) - {"conv", "z"}
# Gradients vanish if the norm of the first weights' gradient divided by that of the last is below
# FLOW, and explode above 1/FLOW. Models with fewer than FLOW_MATRICES matrices are not judged.
FLOW = 1e-4
FLOW_MATRICES = 8
# Decades in 8 layers from which growth is reported: √l, a sum of independent branches, has 0.7.
GROWTH_LIMIT = 1.0
# Largest magnitude by RMS from which a site holds outliers; normal values have 5 or 6.
OUTLIER_RATIO = 300.0
# Magnitude up to which NaN is hardly an overflow: e⁸⁹ leaves float32.
SMALL_VALUE = 80.0

WIDER_TYPE = "bfloat16 or float32 there, which reach 3e38"
LOWER_RATE = (
    "an earlier checkpoint (clinic.watch writes the weights with which this happens) and a lower "
    "rate"
)
SOUND_STEP_SIZE = (
    "look at Δ's bias first, whose softplus should lie in 0.001…0.1: an earlier checkpoint, or "
    "draw it anew by mambanorm.block.init_dt_bias(bias), then a lower rate and no weight decay for "
    "it. If the bias is sound, scale dt_proj.weight down, in Mamba-2 in_proj's last rows."
)
HALVE_SUM = (
    "halve the sum of two directions that each contain their input, y = (f(x) + g(x)) / 2; no norm "
    "inside the blocks cures this"
)
NORM_EACH_BRANCH = (
    "for norm in clinic.insert_norm(model, 'branch', 'RMSN', batch).norms: "
    "torch.nn.init.ones_(norm.weight), since as it is put in it keeps the growth"
)
SCALE_BRANCHES = (
    "divide the last matrix of each branch (out_proj) by the RMS of what the branch puts out"
)


@dataclass(frozen=True, eq=False)
class PassRecord:
    """The record of one pass through a model: the input of the rules.

    table: one row a site, layer and call, in the order of execution: depth (from 1), site, layer,
    where; rms, max_abs, p999, kurtosis (normal = 3) of the finite values, nonfinite (fraction),
    room_float16 and room_bfloat16 (doublings until the largest magnitude leaves the type, negative
    if it has), grad_rms, grad_max_abs, grad_nonfinite. weights: one row a parameter: rms,
    nonfinite, grad_to_weight (‖gradient‖/‖W‖). first, first_gradient: the first non-finite value
    forward and backward. skipped: what could not be inspected. norm_sites: where insert_norm can
    put a norm into this model. largest: where → the largest magnitude at each module (None = at the
    sites alone). broken_buffers: buffers that were not finite before the pass. parameter_symptoms:
    faults of the mixers' own parameters. float16: report values beyond float16, which are no fault
    of a model in bfloat16.
    """

    table: pd.DataFrame
    weights: pd.DataFrame
    first: NonFiniteValue | None = None
    first_gradient: NonFiniteValue | None = None
    loss: float = 0.0
    skipped: Sequence[str] = ()
    norm_sites: Sequence[str] = ()
    largest: Mapping[str, float] | None = None
    broken_buffers: Sequence[str] = ()
    parameter_symptoms: Sequence[Symptom] = ()
    float16: bool = True


def find_symptoms(record: PassRecord) -> Symptoms:
    """Return all faults that the rules find in the record of a pass, the worst first."""
    lost = list(_lost_values(record))
    dead = _dead_rows(record.table)
    symptoms = list(lost)
    if len(dead):
        symptoms.append(_dead_state(dead, record))
    for symptom in record.parameter_symptoms:
        if not len(dead) or symptom.parameter != "delta":  # a dead state names Δ already
            symptoms.append(symptom)
    if not lost:
        symptoms += _non_finite(record)
    if len(dead):
        depth = int(dead.depth.iloc[0])
        record = replace(
            record,
            table=record.table[record.table.depth < depth],
            largest=None,
            skipped=[*record.skipped, f"sizes from layer {depth} on: they follow from its Δ"],
        )
    if record.float16:
        symptoms += _beyond_float16(record)
    symptoms += [*_growth(record), *_outliers(record.table), *_flow(record.weights)]
    return Symptoms(symptoms, record.skipped, "measured in")


def _lost_values(record: PassRecord) -> Iterator[Symptom]:
    lost = record.weights[record.weights.nonfinite > 0]
    if len(lost):
        first = lost.weight.iloc[0]
        yield Symptom(
            "serious",
            first,
            f"{len(lost)} of {plural(len(record.weights), 'weight')} are not finite, {first} the "
            "first of them; what made them so cannot be seen any more",
            "it holds non-finite weights already: go back to an earlier checkpoint; clinic.watch "
            "keeps the last finite one",
            FAILURE_SOURCE,
        )
    for name in record.broken_buffers:
        yield Symptom(
            "serious",
            name,
            f"the buffer {name} is not finite before the pass begins",
            "an earlier checkpoint, or make it anew: reset_running_stats() of a norm, then batches "
            "in train mode",
            FAILURE_SOURCE,
        )


def _dead_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of dead states, by depth: in every channel the state keeps nothing from one
    position to the next, or takes nothing in.
    """
    derived = table["where"].str.contains(r"(?:^|\.)(?:decay|step_size)$")
    finite = table.nonfinite == 0
    return table[derived & finite & (table.max_abs < NEGLIGIBLE)].sort_values("depth")


def _dead_state(dead: pd.DataFrame, record: PassRecord) -> Symptom:
    row = dead.iloc[0]
    where = row["where"].removesuffix(row.site) + "step_size"
    size = "0" if row.max_abs == 0 else f"at most {row.max_abs:.2g}"
    if row.site == "decay":
        delta = record.table[record.table["where"] == where].rms.max()
        effect = (
            f"Δ is {delta:.3g} (RMS), so that exp(ΔA) is {size} in every channel, at every "
            "position: the state forgets all that came before"
        )
    else:
        effect = f"Δ is {size} in every channel, at every position: nothing enters the state"
    layers = plural(dead.depth.nunique(), "layer")
    message = f"{place_text('step_size', row.depth, where)}: a dead state, in {layers}. {effect}"
    advice = f"{SOUND_STEP_SIZE} {_norms_to_insert(['delta'], record.norm_sites)}"
    return Symptom("serious", where, message, advice, FAILURE_SOURCE)


def _non_finite(record: PassRecord) -> Iterator[Symptom]:
    if record.first is not None:
        yield _non_finite_forward(record.first, record.norm_sites)
    elif not math.isfinite(record.loss):
        yield Symptom(
            "serious",
            "",
            f"every site is finite and the loss is {record.loss}",
            "look at the loss: log of 0, or a mean of no values",
            FAILURE_SOURCE,
        )
    elif record.first_gradient is not None:
        first = record.first_gradient
        message = (
            "the forward pass is finite; of the backward pass the gradient of "
            f"{place_text(first.site, first.depth, first.where)} is the first that is not"
        )
        if first.before:
            before = place_text("", 0, first.before)
            message += f", behind that of {before} (largest {first.before_max:.3g})"
        yield Symptom(
            "serious",
            first.where,
            message,
            "a larger eps in the norm, root or division whose backward pass comes just before; "
            "with large weights an earlier checkpoint, then a lower rate or clip_grad_norm_ (which "
            "mends no gradient that is not finite already)",
            FAILURE_SOURCE,
        )


def _non_finite_forward(first: NonFiniteValue, norm_sites: Sequence[str]) -> Symptom:
    place = place_text(first.site, first.depth, first.where)
    message = f"the first non-finite value of the forward pass is {place}"
    if first.before:
        before = place_text("", 0, first.before)
        message += (
            f"; just before it {before} is finite, its largest magnitude {first.before_max:.3g}"
        )
    around_scan = first.site in AROUND_SCAN or first.before_site in AROUND_SCAN
    if first.where == ":input":
        advice = "look at the data: the model's input is not finite"
    elif first.nan and first.before_max < SMALL_VALUE and not around_scan:
        advice = (
            f"NaN, and nothing just before it is above {first.before_max:.3g}, too small for an "
            "overflow: look for log or sqrt of a number below 0 or 0/0 there; clamp the argument "
            "or add an eps"
        )
    else:
        advice = _overflow_advice(first, norm_sites)
    return Symptom("serious", first.where, message, advice, FAILURE_SOURCE)


def _overflow_advice(first: NonFiniteValue, norm_sites: Sequence[str]) -> str:
    """Return what to try if a value has left the range: a wider type, smaller weights, and norms in
    front of that place.
    """
    advice = f"{WIDER_TYPE}; or {LOWER_RATE}" if first.half else LOWER_RATE
    if first.before_site in ("scan", "n2", "gated"):  # the module at fault is not a site itself
        sites = SITES_IN_FRONT["scan"]
    else:
        sites = SITES_IN_FRONT.get(first.site, (first.before_site,))
    norms = _norms_to_insert(sites, norm_sites)
    return f"{advice}. {norms}" if norms else advice


def _norms_to_insert(sites: Sequence[str], norm_sites: Sequence[str]) -> str:
    """Return a sentence on norms at these sites, "" if insert_norm can put a norm at none."""
    calls = [
        f"clinic.insert_norm(model, {site!r}, 'RMSN', batch)"
        for site in sites
        if site in norm_sites
    ]
    if not calls:
        return ""
    return (
        f"Norms inserted while all is finite, {', '.join(calls)}, keep the values as they are: "
        "they do not cure this, but bound them in further training"
    )


def _beyond_float16(record: PassRecord) -> Iterator[Symptom]:
    sites = record.table.dropna(subset="max_abs")
    if record.largest is None:
        sizes = sites.groupby("where", sort=False).max_abs.max()
    else:
        sizes = pd.Series(record.largest, dtype=float)
    beyond = sizes[sizes > LARGEST["float16"]]
    if beyond.empty:
        return
    # a site and a module may share a tensor: the site's name says more
    same_tensor = beyond.index[beyond == beyond.iloc[0]]
    where = next((path for path in same_tensor if path in set(sites["where"])), beyond.index[0])
    place = place_text("", 0, where)
    if where in set(sites["where"]):
        row = sites[sites["where"] == where].sort_values("max_abs").iloc[-1]
        place = place_text(row.site, row.depth, where)
    yield Symptom(
        "warning",
        where,
        f"{place} reaches {sizes[where]:.3g}, the first of {plural(len(beyond), 'place')} beyond "
        f"float16's {LARGEST['float16']:,.0f}; the largest is {beyond.max():.3g}",
        f"{WIDER_TYPE}: only float16 overflows; a norm behind this place comes too late",
        GROWTH_SOURCE,
    )


def _growth(record: PassRecord) -> Iterator[Symptom]:
    """Find growth of the residual stream's RMS over depth."""
    table = record.table
    site = next((site for site in STREAM if (table.site == site).any()), None)
    rms = _rms_by_depth(table, site)
    if len(rms) < 4:
        return
    fit = growth(rms.set_axis(range(1, len(rms) + 1)))
    with np.errstate(divide="ignore", invalid="ignore"):
        decades = np.log10(rms.iloc[-1] / rms.iloc[0])
    if not (fit["decades_per_8"] > GROWTH_LIMIT and decades > GROWTH_LIMIT * len(rms) / 8):
        return
    between = _decades_between_blocks(table)
    if between > decades / 2:
        part = f"{between:.1f} of them between the blocks, "
        advice = HALVE_SUM
    else:
        part = ""
        remedy = NORM_EACH_BRANCH if "branch" in record.norm_sites else SCALE_BRANCHES
        advice = f"{remedy}; this changes what the model computes, so train on"
    message = (
        f"the RMS of {site} grows by {decades:.1f} decades over {plural(len(rms), 'layer')}, from "
        f"{rms.iloc[0]:.3g} in layer {rms.index[0]} to {rms.iloc[-1]:.3g} in layer {rms.index[-1]} "
        f"({part}{fit['law']})"
    )
    last = (table.site == site) & (table.depth == rms.index[-1])
    yield Symptom("warning", table[last].iloc[0]["where"], message, advice, GROWTH_SOURCE)


def _rms_by_depth(table: pd.DataFrame, site: str | None) -> pd.Series:
    """Return the largest RMS of a site in each layer, in the order of execution."""
    return table[table.site == site].groupby("depth", sort=False).rms.max().dropna()


def _decades_between_blocks(table: pd.DataFrame) -> float:
    """Return the decades by which layers' inputs exceed the outputs of the layers before them; 0 if
    either was not seen.
    """
    inputs, outputs = _rms_by_depth(table, "x"), _rms_by_depth(table, "residual")
    if len(inputs) != len(outputs) or inputs.empty:
        return 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.log10(inputs.to_numpy()[1:] / outputs.to_numpy()[:-1]).sum())


def _outliers(table: pd.DataFrame) -> Iterator[Symptom]:
    table = table[table.site != "decay"]  # most of its values may be near 0
    ratio = table.max_abs / table.rms
    if not (ratio > OUTLIER_RATIO).any():
        return
    row = table.loc[ratio.idxmax()]
    yield Symptom(
        "note",
        row["where"],
        f"{place_text(row.site, row.depth, row['where'])} holds outliers: its largest magnitude is "
        f"{ratio.max():.0f} times its RMS, kurtosis {row['kurtosis']:.3g} (normal values: 3)",
        "leave this site in 16 or 32 bits when you quantize, else all other values are rounded to "
        "0; it removes the rounding error and not the outliers",
        GROWTH_SOURCE,
    )


def _flow(weights: pd.DataFrame) -> Iterator[Symptom]:
    """Find gradients that vanish or explode: the RMS in the first third of the weight matrices, in
    the order of definition, beside the last third.
    """
    # A_log and VSS's projections are no layers on the way back: their gradients are small
    is_layer = [
        len(shape) >= 2 and name.rpartition(".")[2] == "weight"
        for name, shape in zip(weights.weight, weights["shape"], strict=True)
    ]
    matrices = weights[np.array(is_layer, dtype=bool)]
    sizes = (matrices.rms * matrices.grad_to_weight).dropna()
    # no gradient passes a matrix of zeros, as some heads begin
    if len(sizes) < FLOW_MATRICES or not (matrices.rms > 0).all():
        return
    third = len(sizes) // 3
    first, last = sizes.iloc[:third].median(), sizes.iloc[-third:].median()
    if last > 0 and not FLOW < first / last < 1 / FLOW:
        word = "vanish" if first < last else "explode"
        yield Symptom(
            "serious",
            matrices.weight.iloc[0],
            f"gradients {word}: the first layers' (RMS {first:.1e}) are {first / last:.1e} times "
            "the last layers'",
            "a norm in each layer (BN in CNNs, pre-norm in Transformers), residual paths; where "
            "ReLU follows, He's initial weights",
            "notebook 11, check 8",
        )
