"""The rules that find the faults of a model in the record of one pass.

Each rule is a function that yields symptoms. A symptom describes one fault: it contains a measured
number, the layer, advice, and the notebook that measured this kind of fault.
tests/mambanorm_clinic/test_diagnosis.py tests that the rules find nothing in sound models and find
each fault in a model that has it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from mambanorm_clinic.mixers import join, parent_of
from mambanorm_clinic.sites import FLOAT16_MAX
from mambanorm_clinic.symptoms import (
    FAILURE_SOURCE,
    GROWTH_SOURCE,
    NEGLIGIBLE,
    NonFiniteValue,
    Symptom,
    Symptoms,
    tensor_name,
)
from mambanorm_study.basics.text import plural
from mambanorm_study.tables.growth import growth

# Growth over depth is measured at the first of these sites that the model has.
GROWTH_SITES = ("residual", "branch")
# Site → the earlier sites at which norms are inserted to bound the values at this site. For sites
# after the scan these are the scan's inputs (notebook 14 also tries a norm at the site itself).
SITES_TO_NORMALIZE = {
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
# The sites that are inputs of the scan or come after it. A NaN at one of these sites comes from an
# overflow, even if the values just before the NaN are small.
AROUND_SCAN = set(SITES_TO_NORMALIZE) - {"conv", "z"}
# Gradients vanish if the RMS of the first layers' gradients, divided by the RMS of the last layers'
# gradients, is below SMALLEST_RATIO, and explode if this ratio is above 1/SMALLEST_RATIO. Models
# with fewer than FEWEST_MATRICES weight matrices are not checked.
SMALLEST_RATIO = 1e-4
FEWEST_MATRICES = 8
# Growth is reported if it exceeds this number of decades per 8 layers. A sum of l independent
# branches grows like √l. This is at most 0.8 decades per 8 layers, a rate that is reached in models
# with 4 layers, the smallest number that is examined.
GROWTH_LIMIT = 1.0
# If all magnitudes before a NaN are below this value, the NaN is probably not due to an overflow,
# because even exp(x) overflows in float32 only above x = 88.
SMALL_VALUE = 80.0

WIDER_TYPE = "use bfloat16 or float32 for this tensor (their range ends at 3e38)"
SOUND_STEP_SIZE = (
    "look at Δ's bias first: softplus(bias) should lie in 0.001…0.1. If it does not, go back to an "
    "earlier checkpoint, or initialize the bias again with mambanorm.block.init_dt_bias(bias); "
    "then use a lower learning rate, and no weight decay for the bias. If the bias is sound, scale "
    "dt_proj.weight down (in Mamba-2 the last rows of in_proj.weight)."
)
NORM_EACH_BRANCH = (
    "for norm in clinic.insert_norm(model, 'branch', 'RMSN', batch).norms: "
    "torch.nn.init.ones_(norm.weight), because the fitted weights would keep the growth"
)
SCALE_BRANCHES = "divide the last matrix of each branch (out_proj) by the RMS of its output"
HALVE_SUM = (
    "This changes the model's outputs, so train the model further. If the model sums two "
    "directions whose outputs both contain the input x, halve the sum instead, "
    "y = (f(x) + g(x)) / 2: no norm inside the blocks cures that growth. Averaging directions that "
    "are summed inside the branch cost about a point (notebook 16, Q4)"
)


@dataclass(frozen=True, eq=False)
class PassRecord:
    """The record of one forward and backward pass through a model, as the rules examine it.

    table: one row per site, layer and call, in the order of execution. Its columns are depth (from
    1), site and where (the path); rms, max_abs, p999 (the 99.9 % quantile of the magnitude) and
    kurtosis (3 for a normal distribution) of the finite values; nonfinite, the fraction of
    non-finite values; room_float16, the number of times that max_abs can double before it exceeds
    float16's range (negative if it already does); and grad_rms, the RMS of the gradient.

    weights: one row per parameter. Its columns are weight (the name), shape, rms, nonfinite and
    grad_to_weight (‖gradient‖ / ‖weight‖).

    first, first_gradient: the first non-finite value of the forward pass and of the backward pass,
    None if all values are finite. loss: the value of the loss. skipped: texts on what was not
    examined and why. norm_sites: the sites at which `insert_norm` can insert a norm into this
    model. largest: maps the path of each site to the largest magnitude of the site, and the path of
    each module to that of its output. broken_buffers: the names of running statistics that were not
    finite before the pass. parameter_symptoms: see `mixers.parameter_symptoms`. in_bfloat16: True
    if the model computes in bfloat16, so that values beyond float16's range are no fault.
    """

    table: pd.DataFrame
    weights: pd.DataFrame
    first: NonFiniteValue | None = None
    first_gradient: NonFiniteValue | None = None
    loss: float = 0.0
    skipped: Sequence[str] = ()
    norm_sites: Sequence[str] = ()
    largest: Mapping[str, float] = field(default_factory=dict)
    broken_buffers: Sequence[str] = ()
    parameter_symptoms: Mapping[str, Symptom] = field(default_factory=dict)
    in_bfloat16: bool = False


def find_symptoms(record: PassRecord) -> Symptoms:
    """Return all faults that the rules find in the record of a pass, the worst first."""
    non_finite_weights = list(_non_finite_weights(record))
    dead_states = list(_dead_state(record))
    symptoms = [*non_finite_weights, *dead_states]
    symptoms += [
        symptom
        for parameter, symptom in record.parameter_symptoms.items()
        if parameter == "A" or not dead_states  # the symptom of a dead state already names Δ
    ]
    if not non_finite_weights:
        symptoms += _non_finite_activations(record)
    if non_finite_weights or dead_states:
        unchecked = "sizes, growth and gradients, because the faults found may have changed them"
        return Symptoms(symptoms, [*record.skipped, unchecked])
    symptoms += [*_beyond_float16(record), *_growth(record), *_gradient_flow(record.weights)]
    return Symptoms(symptoms, record.skipped)


def _non_finite_weights(record: PassRecord) -> Iterator[Symptom]:
    broken = record.weights[record.weights.nonfinite > 0]
    if len(broken):
        first = broken.weight.iloc[0]
        yield Symptom(
            "serious",
            first,
            f"{len(broken)} of {plural(len(record.weights), 'weight')} are not finite; the first "
            f"is {first}. The cause can no longer be found",
            "go back to an earlier checkpoint with finite weights; in the next training, "
            "clinic.watch saves the last finite weights",
            FAILURE_SOURCE,
        )
    for name in record.broken_buffers:
        yield Symptom(
            "serious",
            name,
            f"the buffer {name} is not finite before the pass begins",
            "go back to an earlier checkpoint, or compute the buffer again: call the norm's "
            "reset_running_stats(), then run some batches in train mode",
            FAILURE_SOURCE,
        )


def _dead_state(record: PassRecord) -> Iterator[Symptom]:
    """Yield a Symptom that names the first layer with a dead state.

    A state is dead if, in every channel, it forgets everything from one position to the next or
    receives no input.
    """
    table = record.table
    is_zero = (table.nonfinite == 0) & (table.max_abs < NEGLIGIBLE)
    dead_rows = table[table.site.isin(["decay", "step_size"]) & is_zero].sort_values("depth")
    if dead_rows.empty:
        return
    row = dead_rows.iloc[0]
    where = join(parent_of(row["where"]), "step_size")
    size = "0" if row.max_abs == 0 else f"at most {row.max_abs:.2g}"
    if row.site == "decay":
        delta = table[table["where"] == where].rms.max()
        effect = (
            f"Δ is {delta:.3g} (RMS), so that exp(ΔA) is {size} in every channel, at every "
            "position: the state forgets all earlier positions"
        )
    else:
        effect = f"Δ is {size} in every channel, at every position: nothing enters the state"
    yield Symptom(
        "serious",
        where,
        f"{tensor_name('step_size', row.depth, where)}: a dead state, in "
        f"{plural(dead_rows.depth.nunique(), 'layer')}. {effect}",
        f"{SOUND_STEP_SIZE}{_norms_to_insert(['delta'], record.norm_sites)}",
        FAILURE_SOURCE,
    )


def _non_finite_activations(record: PassRecord) -> Iterator[Symptom]:
    first = record.first
    gradient = record.first_gradient
    if first is not None:
        yield Symptom(
            "serious",
            first.where,
            f"the first non-finite value of the forward pass is in {first}{_value_before(first)}",
            _advice_for(first, record.norm_sites),
            FAILURE_SOURCE,
        )
    elif not math.isfinite(record.loss):
        yield Symptom(
            "serious",
            "",
            f"every site is finite and the loss is {record.loss}",
            "look at the loss function: does it compute a log of 0, or a mean of no values?",
            FAILURE_SOURCE,
        )
    elif gradient is not None:
        yield Symptom(
            "serious",
            gradient.where,
            f"the forward pass is finite; the first non-finite value of the backward pass is in "
            f"{gradient}{_value_before(gradient)}",
            "use a larger eps in the norm, root or division whose backward pass comes just before; "
            "with large weights go back to an earlier checkpoint, then use a lower learning rate "
            "or clip_grad_norm_ (which repairs no gradient that is already non-finite)",
            FAILURE_SOURCE,
        )


def _value_before(value: NonFiniteValue) -> str:
    """Return a clause, for a message, on the last finite tensor before a non-finite value, "" if
    there is none. For a value in a gradient the clause is on the last finite gradient.
    """
    if not value.before:
        return ""
    before = f"{'the gradient of ' if value.in_gradient else ''}{tensor_name('', 0, value.before)}"
    return f"; just before, {before} is finite, with largest magnitude {value.before_max:.3g}"


def _advice_for(first: NonFiniteValue, norm_sites: Sequence[str]) -> str:
    """Return advice, as text, on the first non-finite value of the forward pass.

    Against an overflow the advice is a wider number type, a lower learning rate, and norms at the
    sites from which the value is computed. norm_sites: the sites at which `insert_norm` can insert
    a norm into the model.
    """
    if first.where == ":input":
        return "look at the data: the model's input is not finite"
    around_scan = first.site in AROUND_SCAN or first.before_site in AROUND_SCAN
    if first.nan and first.before_max < SMALL_VALUE and not around_scan:
        return (
            f"the values just before this NaN are at most {first.before_max:.3g}, too small for an "
            "overflow: look for a log or sqrt of a number below 0, or 0/0; clamp the argument or "
            "add an eps"
        )
    after_scan = first.before_site in ("scan", "n2", "gated")  # then first.site may be ""
    sites = SITES_TO_NORMALIZE.get("scan" if after_scan else first.site, (first.before_site,))
    wider_type = f"{WIDER_TYPE}; or " if first.half else ""
    return (
        f"{wider_type}go back to an earlier checkpoint and lower the learning rate (the weights "
        "that clinic.watch writes are no help: they already lead to this non-finite value)."
        f"{_norms_to_insert(sites, norm_sites)}"
    )


def _norms_to_insert(sites: Sequence[str], norm_sites: Sequence[str]) -> str:
    """Return a sentence that advises norms at `sites`, "" if none can be inserted there.

    norm_sites: the sites at which `insert_norm` can insert a norm into the model.
    """
    calls = [
        f"clinic.insert_norm(model, {site!r}, 'RMSN', batch)"
        for site in sites
        if site in norm_sites
    ]
    if not calls:
        return ""
    return (
        " Norms that are inserted in a checkpoint in which all values are finite bound these "
        f"values in further training, but do not cure this checkpoint: {', '.join(calls)}"
    )


def _beyond_float16(record: PassRecord) -> Iterator[Symptom]:
    largest = pd.Series(record.largest, dtype=float)
    too_large = largest[largest > FLOAT16_MAX]
    if too_large.empty or record.in_bfloat16:
        return
    where = too_large.index[0]
    tensor = tensor_name("", 0, where)
    # a site with the same largest magnitude is the same tensor; the site's name tells more than the
    # path of the module
    sites = record.table[
        record.table["where"].isin(too_large.index[too_large == too_large.iloc[0]])
    ]
    if len(sites):
        row = sites.loc[sites.max_abs.idxmax()]
        where = row["where"]
        tensor = tensor_name(row.site, row.depth, where)
    yield Symptom(
        "warning",
        where,
        f"{tensor} reaches {largest[where]:.3g}, the first of "
        f"{plural(len(too_large), 'tensor')} beyond float16's {FLOAT16_MAX:,.0f}; the largest is "
        f"{too_large.max():.3g}",
        f"this overflows only in float16: {WIDER_TYPE}; a norm after this tensor does not help, "
        "because it comes after the overflow",
        GROWTH_SOURCE,
    )


def _growth(record: PassRecord) -> Iterator[Symptom]:
    """Yield a Symptom if the RMS grows too fast over depth.

    The RMS is taken at the first of GROWTH_SITES that the model has. The limit is GROWTH_LIMIT.
    """
    table = record.table
    site = next((site for site in GROWTH_SITES if (table.site == site).any()), None)
    layers = table[table.site == site].groupby("depth", sort=False)
    rms = layers.rms.max().dropna()  # in the order of execution
    if len(rms) < 4 or not (rms > 0).all():
        return
    fit = growth(rms.set_axis(range(1, len(rms) + 1)))
    decades = np.log10(rms.iloc[-1] / rms.iloc[0])
    if not (fit["decades_per_8"] > GROWTH_LIMIT and decades > GROWTH_LIMIT * len(rms) / 8):
        return
    first, last = rms.index[0], rms.index[-1]
    remedy = NORM_EACH_BRANCH if "branch" in record.norm_sites else SCALE_BRANCHES
    yield Symptom(
        "warning",
        layers.get_group(last)["where"].iloc[0],
        f"the RMS of {site} grows by {decades:.1f} decades over {plural(len(rms), 'layer')}, from "
        f"{rms[first]:.3g} in layer {first} to {rms[last]:.3g} in layer {last} ({fit['law']})",
        f"{remedy}. {HALVE_SUM}",
        GROWTH_SOURCE,
    )


def _gradient_flow(weights: pd.DataFrame) -> Iterator[Symptom]:
    """Yield a Symptom if gradients vanish or explode over depth.

    The weight matrices are taken in the order of definition. The RMS of each matrix's gradient is
    computed, and the median over the first third is compared with the median over the last third.
    """
    # A_log and VSS's projections are left out, because the backward pass to earlier layers does not
    # go through these parameters, so that their gradients are small
    is_matrix = weights["shape"].map(len).ge(2) & weights.weight.str.fullmatch(r"(.*\.)?weight")
    matrices = weights[is_matrix.astype(bool)]
    grad_rms = (matrices.rms * matrices.grad_to_weight).dropna()
    # no gradient passes through a matrix of zeros; some heads are initialized with zeros
    if len(grad_rms) < FEWEST_MATRICES or not (matrices.rms > 0).all():
        return
    third = len(grad_rms) // 3
    first, last = grad_rms.iloc[:third].median(), grad_rms.iloc[-third:].median()
    if last > 0 and not SMALLEST_RATIO < first / last < 1 / SMALLEST_RATIO:
        word = "vanish" if first < last else "explode"
        yield Symptom(
            "serious",
            matrices.weight.iloc[0],
            f"gradients {word}: the RMS of the first layers' gradients, {first:.1e}, is "
            f"{first / last:.1e} times the RMS of the last layers' gradients",
            "use a norm in each layer (BN in CNNs, pre-norm in Transformers) and residual paths; "
            "before ReLU use He's initial weights",
            "notebook 11, check 8",
        )
