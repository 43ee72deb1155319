"""`diagnose`: one batch forward and backward through a model; every site and every weight in numbers, then in words.

Diagnosis, diagnose     of a model on a batch
Report, NonFinite       of a training step that is not finite, and the error that carries it (`watch`)
Call, replay, …         the batch of that step, looked at as diagnose does, and what is wrong with it
"""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.basics.checks import shown
from mambanorm.basics.text import plural
from mambanorm.clinic.findings import Symptoms, findings_of
from mambanorm.clinic.passing import COLUMNS, EDGES, First, Pass, named
from mambanorm.clinic.sites import places_of
from mambanorm.clinic.surgery import sites_for_norms
from mambanorm.diagnostics import blocks_of, left_as_found
from mambanorm.diagnostics.recording import (
    as_it_was,
    check_targets,
    eagerly,
    first_tensor,
    run,
    split,
    tensors_in,
)

HISTOGRAMS = ["histogram", "grad_histogram"]
WEIGHTS = ("weight", "shape", "rms", "nonfinite", "highest", "grad_to_weight", "sigma_1", "stable_rank")
NO_LOSS = "the mean square of the output: no loss was given, and the model returns none"
BEFORE = 4
"""Steps that the text of a report tells of; the frames have them all."""


@dataclass(frozen=True)
class Diagnosis:
    """What a pass has shown.

    table: one row a site, layer and call, in the order of execution: depth (from 1), site, layer, where; rms, max_abs,
    p999, kurtosis (normal = 3) of the finite values, nonfinite (fraction), room_float16 and room_bfloat16 (doublings
    until the largest magnitude leaves the type, below 0 it has), grad_rms, grad_max_abs, grad_nonfinite.
    weights: one row a parameter: rms, nonfinite, highest (its largest value), grad_to_weight (‖gradient‖/‖W‖), and for
    matrices sigma_1 and stable_rank (‖W‖_F²/σ₁²).
    first, first_gradient: the first non-finite value forward and backward, None if there is none. findings: sentences.
    """

    name: str
    table: pd.DataFrame
    weights: pd.DataFrame
    histograms: pd.DataFrame
    """Rows as in the table: site, depth, and the counts of values and of gradients by size (EDGES in passing.py)."""
    first: First | None
    first_gradient: First | None
    loss: float
    loss_is: str
    findings: Symptoms
    modules: int
    """How many were run, and looked at for magnitudes and non-finite values, sites or not."""

    def plot(self):
        """Depth against magnitude, one panel a site, and histograms of activations and gradients."""
        from mambanorm.figures.clinic import fig_clinic

        return fig_clinic(self.table, self.histograms, EDGES, f"{self.name}: what one batch shows")

    def __repr__(self) -> str:
        return f"{self._head}\n{self.findings!r}"

    @property
    def _head(self) -> str:
        layers = self.table.depth.max() if len(self.table) else 0
        return (
            f"{self.name}: {plural(self.table.site.nunique(), 'site')} in {plural(layers, 'layer')}, "
            f"{plural(self.modules, 'module')}, "
            f"{plural(len(self.weights), 'weight')}; loss {self.loss:.4g} ({self.loss_is})"
        )

    def _repr_html_(self) -> str:
        drawn = base64.b64encode(self.plot()._repr_png_()).decode()
        picture = f'<img alt="depth against magnitude, by site" src="data:image/png;base64,{drawn}">'
        tables = "".join(
            f"<details><summary>{name}</summary>{frame.to_html(index=False, float_format='%.3g')}</details>"
            for name, frame in (("every site", self.table), ("every weight", self.weights))
        )
        return f"<p>{html.escape(self._head)}</p>{self.findings._repr_html_()}{picture}{tables}"


def diagnose(
    model: nn.Module,
    batch: object,
    *,
    loss: Callable[[object, object], Tensor] | None = None,
    sites: Mapping[str, str] | Iterable[str] | None = None,
) -> Diagnosis:
    """What a model's activations, gradients and weights look like on one batch, and what is wrong with them.

    model: any module, in its own mode: this kit's, transformers' Mamba, Mamba-2, Falcon-Mamba and Jamba, mamba-ssm's,
    or another with `sites`, a map of names to patterns of module names: {"scan": "layers.*.mixer.norm"}, or
    "layers.*.out_proj:input" for what goes in. A map names, and hides nothing: every module is looked at for magnitudes
    and non-finite values. Without a map every module that has none inside is a site. For the known
    families `sites` may be names of sites, None = all (clinic/sites.py says what each means).
    batch: a tensor, a tuple (input, targets), or a dict of keyword arguments. loss(output, targets); None = the loss
    that the model returns, as transformers' does when given labels, else the mean square of its output.

    Buffers that are not finite are named. The model is run once by hooks, not copied, a compiled one as it is written;
    weights, `.grad`, mode, buffers and random states stay as they are. ValueError for an unknown site or none, a
    pattern that nothing matches, a batch that the model refuses, and a loss that is not one number; TypeError for what
    is no module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {shown(model)}")
    if sites is not None and not isinstance(sites, Mapping):
        sites = (sites,) if isinstance(sites, str) else tuple(sites)
    places = places_of(model, sites)
    seen = Pass(places, () if isinstance(sites, Mapping) else sites)
    buffers = [describe_buffer(name, value) for name, value in model.named_buffers()]
    named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    with as_it_was(), left_as_found(model), seen.open(model), torch.enable_grad():
        value, loss_is = _loss_of(model, batch, loss)
        number = float(value.detach())
        seen.end_forward(number)
        grads, skipped = _gradients(value, named)
    rows = pd.DataFrame(seen.rows, columns=COLUMNS)
    weights = pd.DataFrame(
        [describe_weight(name, w, grads.get(name)) for name, w in model.named_parameters()], columns=WEIGHTS
    )
    skipped += _unseen(places, rows, model)
    table, seats = rows.drop(columns=HISTOGRAMS), sites_for_norms(model)
    found = findings_of(table, weights, seen.first, seen.first_gradient, number, skipped, seats, seen.largest, buffers)
    kept = rows[["site", "depth", *HISTOGRAMS]]
    return Diagnosis(type(model).__name__, table, weights, kept, seen.first, seen.first_gradient,
                     number, loss_is, found, len({where.removesuffix(":input") for where in seen.largest}))  # fmt: skip


def _loss_of(model: nn.Module, batch: object, loss: Callable | None) -> tuple[Tensor, str]:
    """The loss, and in words where it is from."""
    output = run(model, batch, with_targets=loss is None)
    if loss is not None:
        check_targets(batch)
        value, loss_is = loss(output, split(batch)[1]), "the loss given"
    elif isinstance(own := getattr(output, "loss", None), Tensor):
        value, loss_is = own, "the model's own loss"
    else:
        first = first_tensor(output, real=True)
        if first is None or not first.is_floating_point():
            given = type(output).__name__
            raise ValueError(f"the model puts out {given}, in which no tensor of real numbers was found: give a loss")
        value, loss_is = first.float().square().mean(), NO_LOSS
    check_loss(value)
    return value, loss_is


def check_loss(value: object) -> None:
    """ValueError for what is no tensor of one number."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = tuple(value.shape) if isinstance(value, Tensor) else shown(value)
        raise ValueError(f"the loss must be a tensor of one number, got {got}")


def _gradients(value: Tensor, named: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """The gradient of each weight that has one, by name, and why there is none. The weights' own `.grad` stays."""
    if not named or not value.requires_grad:
        return {}, ["gradients: " + ("no weight learns" if not named else "the loss has no graph")]
    try:
        grads = torch.autograd.grad(value.sum(), list(named.values()), allow_unused=True)
    except RuntimeError as error:  # reentrant checkpointing, or an operation without a backward pass
        return {}, [f"gradients: the backward pass fails with {error}"]
    return {name: grad for name, grad in zip(named, grads, strict=True) if grad is not None}, []


def _unseen(places: list, rows: pd.DataFrame, model: nn.Module) -> list[str]:
    """Sites whose module did not run; a fused kernel hides what it computes."""
    missing = dict.fromkeys(place.site for place in places if place.where not in set(rows["where"]))
    if not missing or blocks_of(model):
        return []
    why = "their modules were not called; a fused kernel or torch.compile hides what it computes"
    return [f"sites {', '.join(missing)} of {type(model).__name__}: {why}"]


def describe_weight(name: str, weight: Tensor, grad: Tensor | None) -> dict:
    """One row of `Diagnosis.weights`."""
    flat = weight.detach()
    size = float(torch.linalg.vector_norm(flat, dtype=torch.float64))
    row = dict(weight=name, shape=tuple(flat.shape), rms=size / math.sqrt(max(flat.numel(), 1)))
    row |= dict(nonfinite=float((~flat.isfinite()).double().mean()), highest=float(flat.max()) if flat.numel() else 0.0)
    if grad is not None and size > 0:
        row["grad_to_weight"] = float(torch.linalg.vector_norm(grad, dtype=torch.float64)) / size
    if flat.dim() > 1 and size > 0 and math.isfinite(size):
        row["sigma_1"] = sigma_1(flat.flatten(1))
        row["stable_rank"] = (size / row["sigma_1"]) ** 2
    return row


def sigma_1(matrix: Tensor) -> float:
    """The largest singular value, from the smaller Gram matrix in float64: a tenth of the time of all of them.
    `diagnostics.singular_values` is its slow twin."""
    wide = matrix.double()
    gram = wide @ wide.T if wide.shape[0] <= wide.shape[1] else wide.T @ wide
    return math.sqrt(float(torch.linalg.eigvalsh(gram)[-1]))


def describe_buffer(name: str, value: Tensor) -> dict:
    """What of a buffer is not finite, in numbers of values."""
    counts = dict(nan=value.isnan(), inf=value == math.inf, minus_inf=value == -math.inf)
    return dict(buffer=name, size=value.numel()) | {kind: int(which.sum()) for kind, which in counts.items()}


# ---------------------------------------------------------------------------------------------------------------------
# a training step that is not finite


@dataclass(frozen=True)
class Report:
    """What was seen when a step was not finite.

    step: the optimizer's step, from 1, that was about to be made. last_finite_step: the step after which the weights in
    `checkpoint` stand. first: the first non-finite value when the batch is run again, None if it was not met again;
    backward: it is a gradient. steps: step, loss, grad_norm; layers: step, depth, layer, rms, grad_rms.
    """

    step: int
    last_finite_step: int | None
    first: First | None
    backward: bool
    steps: pd.DataFrame
    layers: pd.DataFrame
    findings: Symptoms
    checkpoint: Path | None
    picture: Path
    what: str = "is not finite"
    """What the step is; of one whose loss and gradients are finite, why it is told all the same."""

    @property
    def site(self) -> str:
        """Where it was first seen, as in `First.where`; "" if it was not met again."""
        return "" if self.first is None else self.first.where

    def __str__(self) -> str:
        now = self.steps.iloc[-1]
        lines = [f"step {self.step} {self.what}: loss {now.loss:.4g}, norm of the gradients {now.grad_norm:.4g}"]
        if self.first is not None:
            what = "the gradient of " if self.backward else ""
            lines.append(f"first: {what}{named(self.first.site, self.first.depth, self.first.where)}")
        norms = " → ".join(f"{norm:.3g}" for norm in self.steps.grad_norm.iloc[-BEFORE - 1 :])
        lines.append(f"norm of the gradients in the last steps: {norms}")
        if self.checkpoint is not None:
            lines.append(f"weights after step {self.last_finite_step}, finite: {self.checkpoint}")
        return "\n".join([*lines, f"picture: {self.picture}", repr(self.findings)])


class NonFinite(FloatingPointError):
    """Raised in place of the optimizer's step that would have spread a non-finite gradient; `report` says the rest."""

    def __init__(self, report: Report):
        super().__init__(str(report))
        self.report = report


@dataclass(frozen=True)
class Call:
    """What a model was called with, and under which random state and autocast."""

    args: tuple
    kwargs: dict
    random: Tensor
    casts: dict

    @classmethod
    def now(cls, model: nn.Module, args: tuple, kwargs: dict) -> Call:
        kind = next((weight.device.type for weight in model.parameters()), "cpu")
        casts = dict(device_type=kind, enabled=torch.is_autocast_enabled(kind), dtype=torch.get_autocast_dtype(kind))
        return cls(args, kwargs, torch.get_rng_state(), casts)


def replay(model: nn.Module, given: Call, seed: Tensor | None, loss: float) -> Pass:
    """A batch as `diagnose` looks at it, with the same weights, autocast and dropout masks (those of the CPU; on a GPU
    dropout draws anew). seed: the gradient that the model's output had; loss: what it was then. The gradients behind a
    finite pass tell nothing where it is the loss that is not finite."""
    seen = Pass(places_of(model), None)
    with as_it_was(), left_as_found(model), seen.open(model), torch.enable_grad():
        torch.set_rng_state(given.random)
        with torch.autocast(**given.casts), eagerly():
            output = model(*given.args, **given.kwargs)
        seen.end_forward(loss)
        value = getattr(output, "loss", None)
        if not isinstance(value, Tensor):
            value = next((t for t in tensors_in(output) if t.requires_grad), None)
        whole = seen.first is None and math.isfinite(loss)
        if whole and value is not None and (seed is not None or value.numel() == 1):
            learns = [weight for weight in model.parameters() if weight.requires_grad]
            torch.autograd.grad(value, learns, grad_outputs=seed, allow_unused=True)
    return seen


def step_findings(model: nn.Module, seen: Pass | None, lost: list[str], loss: float, why: str) -> Symptoms:
    """What is wrong at a step: with weights that are lost, by name; else with the batch that was run again, if it shows
    anything. why: it does not."""
    weights = [dict(weight=name, nonfinite=1.0) for name in lost]
    if lost or seen is None or not (seen.first or seen.first_gradient or seen.huge):
        seen, loss = Pass(), 0.0 if lost or why else loss
    else:
        own = model.named_parameters()
        weights = [dict(weight=name, nonfinite=0.0, highest=float(weight.max())) for name, weight in own]
    frames = pd.DataFrame(seen.rows, columns=COLUMNS), pd.DataFrame(weights, columns=WEIGHTS)
    seats, skipped = sites_for_norms(model), [why] * bool(why)
    return findings_of(*frames, seen.first, seen.first_gradient, loss, skipped, seats, seen.largest)
