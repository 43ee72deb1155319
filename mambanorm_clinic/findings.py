"""What is found wrong with a model: Symptom, one thing; Symptoms, all of a model, as data, as a
table and as text; and findings_of, the rules by which a diagnosis finds them.

A rule is a function of the frames of a Diagnosis. Each sentence has its number, the layer, what to
try, and where this kit measured it. What is silent on a sound model and speaks on a sick one is
tested in tests/test_clinic.py.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import pandas as pd

from mambanorm_study.basics.text import plural
from mambanorm_study.tables.growth import growth

SEVERITIES = ("serious", "warning", "note")
STREAM = ("residual", "branch")
"""Sites at which growth over depth is looked at, the first that there is."""
SCANNED = ("dt", "B", "C", "delta", "delta_after", "step_size")
"""Sites that the scan reads; the value after them is its own."""
BEHIND_SCAN = ("scan", "n2", "gated", "branch", "residual")
IN_FRONT = dict.fromkeys(("scan", "n2", "gated", "branch"), ("delta", "B", "C")) | {
    "residual": ("branch",)
}
IN_FRONT |= dict.fromkeys(("conv", "z"), ("n1",)) | dict.fromkeys(
    ("step_size", "delta_after"), ("delta",)
)
IN_FRONT |= dict.fromkeys(("dt", "delta", "B", "C"), ("conv",))
"""Where a norm bounds what a site is made of. Behind the scan it is what the scan reads: notebook
14 tries both."""
FLOW, LAYERS = 1e-4, 8
"""Ratio of the gradients of the first weights to those of the last below which they vanish, above
its inverse they explode; weight matrices from which that means something."""
GROWS = 1.0
"""Decades in 8 layers above which growth is told: √l, a sum of independent branches, has at most
0.7."""
OUTLIER = 300.0
"""Largest magnitude by RMS above which a site is told to hold outliers; of normal values it is 5 or
6."""
NOTHING = 1.2e-7
"""Share of a state that float32 no longer sees beside 1."""
SMALL = 80.0
"""Magnitude of what goes into a module up to which NaN is hardly an overflow: e⁸⁹ leaves
float32."""
FLOAT16 = 65504.0
"""The largest number that it holds."""
LOST = "it holds non-finite weights already: go back to an earlier checkpoint; clinic.watch keeps the last finite one"
SPOILT = "an earlier checkpoint, or make it anew: reset_running_stats() of a norm, then batches in train mode"
BACKWARD = (
    "a larger eps in the norm, root or division whose backward pass comes just before; with large weights an "
    "earlier checkpoint, then a lower rate or clip_grad_norm_ (which mends no gradient that is not finite already)"
)
"""What to try where only gradients are not finite."""
WIDER = "bfloat16 or float32 there, which reach 3e38"
KEEPS = "keep the values as they are: they do not cure this, but bound them in further training"
"""What a norm does that is fitted so that the model changes least."""
GROWTH = "notebook 07, Figure 9 (H10)"
FAILURES = "notebook 07, failures (H9)"


@dataclass(frozen=True)
class Symptom:
    """How bad, where, what with its number, what to try, and the line of the guide or where this
    kit measured it.

    severity: SEVERITIES. where: the module's path in the model ("" = the model itself).
    """

    severity: str
    where: str
    found: str
    try_this: str
    check: str


class Symptoms(list[Symptom]):
    """The symptoms of a model, the worst first; shows itself as a table. `frame` has them as a data
    frame.

    skipped: what could not be looked at, and why. source: what the table's last column says.
    """

    def __init__(
        self, found: Iterable[Symptom], skipped: Sequence[str] = (), source: str = "in the guide"
    ):
        super().__init__(sorted(found, key=lambda one: SEVERITIES.index(one.severity)))
        self.skipped, self.source = tuple(skipped), source

    @property
    def frame(self) -> pd.DataFrame:
        return pd.DataFrame(self, columns=[field.name for field in fields(Symptom)])

    @property
    def _lines(self) -> list[str]:
        count = plural(len(self), "finding") if self else "nothing found"
        return [count, *(f"not looked at: {why}" for why in self.skipped)]

    def __repr__(self) -> str:
        told = [
            f"{one.severity}: {one.where or 'the model'}: {one.found}\n    try: {one.try_this} ({one.check})"
            for one in self
        ]
        return "\n".join([*told, *self._lines])

    def _repr_html_(self) -> str:
        shown = self.frame.replace({"where": {"": "the model"}})
        shown.columns = ["", "where", "what was found", "what to try", self.source]
        with pd.option_context("display.max_colwidth", None):
            table = shown.to_html(index=False, border=0) if len(shown) else ""
        return table + "".join(f"<p>{html.escape(line)}</p>" for line in self._lines)


@dataclass(frozen=True)
class First:
    """The first non-finite value. where: path of the module, ":input" behind it for its input, or a
    site of one of this kit's blocks. site, depth: as in the table, "" and 0 for a tensor that is no
    site. before: what came just before it and was finite, "" if nothing did; before_max: its
    largest magnitude; before_site: the site that it is, or "". nan: it is NaN, and not infinite
    alone. half: it is of float16."""

    where: str
    site: str = ""
    depth: int = 0
    before: str = ""
    before_max: float = math.nan
    before_site: str = ""
    nan: bool = False
    half: bool = False

    @property
    def told(self) -> str:
        found = f"the first non-finite value of the forward pass is {named(self.site, self.depth, self.where)}"
        if self.before:
            before = named("", 0, self.before)
            found += (
                f"; just before it {before} is finite, its largest magnitude {self.before_max:.3g}"
            )
        return found

    @property
    def told_backward(self) -> str:
        """`told` of a first_gradient."""
        at = named(self.site, self.depth, self.where)
        found = f"the forward pass is finite; of the backward pass the gradient of {at} is the first that is not"
        if self.before:
            found += f", behind that of {named('', 0, self.before)} (largest {self.before_max:.3g})"
        return found

    @property
    def look_at(self) -> str:
        """What to look at where no norm would help: at the data, or at code that makes NaN of small
        values; else ""."""
        if self.where == ":input":
            return "look at the data: the model's input is not finite"
        in_a_mixer = {self.site, self.before_site} & {*SCANNED, *BEHIND_SCAN}
        if in_a_mixer or not (self.nan and self.before_max < SMALL):
            return ""
        small = f"NaN, and nothing just before it is above {self.before_max:.3g}, too small for an overflow"
        return f"{small}: look for log or sqrt of a number below 0 or 0/0 there; clamp the argument or add an eps"


def named(site: str, depth: int, where: str) -> str:
    """A place in words: `scan of layer 3 (blocks.2.scan)`, or its path alone."""
    where = {"": "the model's output", ":input": "the model's input"}.get(where, where)
    return f"{site} of layer {depth} ({where})" if site else where


# --------------------------------------------------------------------------------------------------
# the rules of a diagnosis


def findings_of(
    table: pd.DataFrame,
    weights: pd.DataFrame,
    first: First | None,
    first_gradient: First | None,
    loss: float,
    skipped: Sequence[str] = (),
    seats: Sequence[str] = (),
    largest: Mapping[str, float] | None = None,
    spoilt: Sequence[str] = (),
    *,
    parameters: Sequence[Symptom] = (),
    float16: bool = True,
) -> Symptoms:
    """All that the rules find in the frames of a Diagnosis, the worst first. seats: where
    insert_norm could put a norm into this model. largest: the largest magnitude at each module,
    sites or not (None = at the sites alone). spoilt: buffers that were not finite before the pass.
    parameters: what the mixers' own parameters have shown (mixers.py). float16: whether a value
    beyond float16 is told, which is no fault of a model in bfloat16."""
    depth, dead = _dead(table, seats)
    found = [*_lost(weights, spoilt), *dead]
    found += [one for one in parameters if not (dead and one.found.startswith("Δ"))]
    if not (weights.nonfinite > 0).any() and not spoilt:
        found += _non_finite(first, first_gradient, loss, seats)
    if dead:  # what such a Δ does to the layers behind it is no finding of its own
        table, skipped = (
            table[table.depth < depth],
            [*skipped, f"sizes from layer {depth} on: they follow from its Δ"],
        )
        largest = None
    found += [
        *(_room(table, largest) if float16 else ()),
        *_growth(table, seats),
        *_outliers(table),
        *_flow(weights),
    ]
    return Symptoms(found, skipped, "measured in")


def _lost(weights: pd.DataFrame, spoilt: Sequence[str]) -> Iterator[Symptom]:
    lost = weights[weights.nonfinite > 0]
    if len(lost):
        first = lost.weight.iloc[0]
        found = f"{len(lost)} of {plural(len(weights), 'weight')} are not finite, {first} the first of them"
        yield Symptom(
            "serious", first, f"{found}; what made them so cannot be seen any more", LOST, FAILURES
        )
    for name in spoilt:
        yield Symptom(
            "serious",
            name,
            f"the buffer {name} is not finite before the pass begins",
            SPOILT,
            FAILURES,
        )


def _dead(table: pd.DataFrame, seats: Sequence[str]) -> tuple[int, list[Symptom]]:
    """The first layer whose state keeps nothing from one position to the next, or takes nothing in,
    in every channel: its depth, 0 if there is none, and what is found."""
    made = table[
        table["where"].str.contains(r"(?:^|\.)(?:decay|step_size)$") & (table.nonfinite == 0)
    ]
    dead = made[made.max_abs < NOTHING].sort_values("depth")
    if not len(dead):
        return 0, []
    row = dead.iloc[0]
    where = row["where"].removesuffix(row.site) + "step_size"
    most = f"{'0' if row.max_abs == 0 else f'at most {row.max_abs:.2g}'} in every channel, at every position"
    found = f"{named('step_size', row.depth, where)}: a dead state, in {plural(dead.depth.nunique(), 'layer')}. "
    if row.site == "decay":
        delta = made[made["where"] == where].rms.max()
        found += f"Δ is {delta:.3g} (RMS), so that exp(ΔA) is {most}: the state forgets all that came before"
    else:
        found += f"Δ is {most}: nothing enters the state"
    mend = "look at Δ's bias first, whose softplus should lie in 0.001…0.1: an earlier checkpoint, or draw it anew by "
    mend += "mambanorm.block.init_dt_bias(bias), then a lower rate and no weight decay for it. If the bias is sound, "
    mend += f"scale dt_proj.weight down, in Mamba-2 in_proj's last rows. {_norms(['delta'], seats)}"
    return int(row.depth), [Symptom("serious", where, found, mend, FAILURES)]


def _non_finite(
    first: First | None, first_gradient: First | None, loss: float, seats: Sequence[str]
) -> Iterator[Symptom]:
    """Where it begins. A loss that is not finite behind a finite forward pass is told before the
    gradients that it spoils."""
    if first is not None:
        yield Symptom(
            "serious",
            first.where,
            first.told,
            first.look_at or _back_in_range(first, seats),
            FAILURES,
        )
    elif not math.isfinite(loss):
        mend = "look at the loss: log of 0, or a mean of no values"
        yield Symptom("serious", "", f"every site is finite and the loss is {loss}", mend, FAILURES)
    elif first_gradient is not None:
        yield Symptom(
            "serious", first_gradient.where, first_gradient.told_backward, BACKWARD, FAILURES
        )


def _back_in_range(first: First, seats: Sequence[str]) -> str:
    """Return what to try when a value has left the range: a wider type, or smaller weights; and
    norms in front of that place, which bound the values in further training."""
    mend = "an earlier checkpoint (clinic.watch writes the weights with which this happens) and a lower rate"
    mend = f"{WIDER}; or {mend}" if first.half else mend
    inside = first.before_site in ("scan", "n2", "gated")  # of a module that is no site itself
    sites = IN_FRONT["scan"] if inside else IN_FRONT.get(first.site, (first.before_site,))
    return f"{mend}. {_norms(sites, seats)}".rstrip(". ")


def _norms(sites: Sequence[str], seats: Sequence[str]) -> str:
    """Return a sentence on norms at these sites, "" if insert_norm takes none of them."""
    calls = [
        f"clinic.insert_norm(model, {site!r}, 'RMSN', batch)" for site in sites if site in seats
    ]
    return f"Norms inserted while all is finite, {', '.join(calls)}, {KEEPS}" if calls else ""


def _room(table: pd.DataFrame, largest: Mapping[str, float] | None) -> Iterator[Symptom]:
    """The first site or module beyond float16."""
    sites = {
        row["where"]: row for _, row in table.sort_values("max_abs").iterrows()
    }  # several may share a tensor
    sizes = {where: row.max_abs for where, row in sites.items()} if largest is None else largest
    beyond = [where for where, size in sizes.items() if size > FLOAT16]
    if beyond:
        same = [
            where for where in beyond if sizes[where] == sizes[beyond[0]]
        ]  # one tensor: a module's, and a site
        where = next((where for where in same if where in sites), beyond[0])
        site, depth = (sites[where].site, sites[where].depth) if where in sites else ("", 0)
        found = f"{named(site, depth, where)} reaches {sizes[where]:.3g}, the first of {plural(len(beyond), 'place')} "
        found += f"beyond float16's {FLOAT16:,.0f}; the largest is {max(sizes[where] for where in beyond):.3g}"
        mend = f"{WIDER}: only float16 overflows; a norm behind this place comes too late"
        yield Symptom("warning", where, found, mend, GROWTH)


def _growth(table: pd.DataFrame, seats: Sequence[str]) -> Iterator[Symptom]:
    """RMS over depth of the residual stream, or of what stands for it."""
    site = next((site for site in STREAM if (table.site == site).any()), None)
    rms = (
        table[table.site == site].groupby("depth", sort=False).rms.max().dropna()
    )  # in the order of execution
    if len(rms) < 4:
        return
    facts = growth(rms.set_axis(range(1, len(rms) + 1)))
    with np.errstate(divide="ignore", invalid="ignore"):
        grown = np.log10(rms.iloc[-1] / rms.iloc[0])
    if facts["decades_per_8"] > GROWS and grown > GROWS * len(rms) / 8:
        found = f"the RMS of {site} grows by {grown:.1f} decades over {plural(len(rms), 'layer')}, "
        found += f"from {rms.iloc[0]:.3g} in layer {rms.index[0]} to {rms.iloc[-1]:.3g} in layer {rms.index[-1]} "
        where = table[(table.site == site) & (table.depth == rms.index[-1])].iloc[0]["where"]
        between = _between_blocks(table)
        if between > grown / 2:
            found += f"({between:.1f} of them between the blocks, "
            mend = "halve the sum of two directions that each contain their input, y = (f(x) + g(x)) / 2; no norm "
            mend += "inside the blocks cures this"
        else:
            found += "("
            mend = "divide the last matrix of each branch (out_proj) by the RMS of what the branch puts out"
            if "branch" in seats:
                mend = "for norm in clinic.insert_norm(model, 'branch', 'RMSN', batch).norms: "
                mend += (
                    "torch.nn.init.ones_(norm.weight), since as it is put in it keeps the growth"
                )
            mend += "; this changes what the model computes, so train on"
        yield Symptom("warning", where, f"{found}{facts['law']})", mend, GROWTH)


def _between_blocks(table: pd.DataFrame) -> float:
    """Decades by which a layer's input exceeds the output of the layer before it, over all layers;
    0 where either is not seen."""
    x, y = (
        table[table.site == site].groupby("depth", sort=False).rms.max()
        for site in ("x", "residual")
    )
    if len(x) != len(y) or not len(x):
        return 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.log10(x.to_numpy()[1:] / y.to_numpy()[:-1]).sum())


def _outliers(table: pd.DataFrame) -> Iterator[Symptom]:
    table = table[table.site != "decay"]  # of which most may be near 0
    ratio = table.max_abs / table.rms
    if (ratio > OUTLIER).any():
        row = table.loc[ratio.idxmax()]
        found = (
            f"{named(row.site, row.depth, row['where'])} holds outliers: its largest magnitude is "
        )
        found += (
            f"{ratio.max():.0f} times its RMS, kurtosis {row['kurtosis']:.3g} (normal values: 3)"
        )
        mend = "leave this site in 16 or 32 bits when you quantize, else all other values are rounded to 0; it removes "
        mend += "the rounding error and not the outliers"
        yield Symptom("note", row["where"], found, mend, GROWTH)


def _flow(weights: pd.DataFrame) -> Iterator[Symptom]:
    """Gradients that vanish or explode on their way back: their RMS in the first third of the
    weight matrices, in the order of definition, beside the last third. None pass a matrix that is
    all 0, as some heads begin."""
    pairs = zip(
        weights.weight, weights["shape"]
    )  # not A_log, not VSS's projections: their gradients are small
    is_layer = [len(shape) >= 2 and name.rpartition(".")[2] == "weight" for name, shape in pairs]
    matrices = weights[np.array(is_layer, dtype=bool)]
    sizes = (matrices.rms * matrices.grad_to_weight).dropna()
    if len(sizes) < LAYERS or not (matrices.rms > 0).all():
        return
    third = len(sizes) // 3
    first, last = sizes.iloc[:third].median(), sizes.iloc[-third:].median()
    if last > 0 and not FLOW < first / last < 1 / FLOW:
        word = "vanish" if first < last else "explode"
        found = f"gradients {word}: the first layers' (RMS {first:.1e}) are {first / last:.1e} times the last layers'"
        mend = "a norm in each layer (BN in CNNs, pre-norm in Transformers), residual paths; where ReLU follows, He's "
        mend += "initial weights"
        yield Symptom("serious", matrices.weight.iloc[0], found, mend, "notebook 11, check 8")
