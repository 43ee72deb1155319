"""`diagnose`: one batch forward and backward through a model; every site and every weight in
numbers, then in words."""

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

from mambanorm.errors import shown
from mambanorm.inside import preserve_state
from mambanorm_clinic.calling import check_targets, first_tensor, preserve_random_state, run, split
from mambanorm_clinic.findings import First, Symptoms, findings_of, named
from mambanorm_clinic.mixers import suspicious
from mambanorm_clinic.sites import COLUMNS, Pass, Place, places_of
from mambanorm_clinic.surgery import sites_for_norms
from mambanorm_study.basics.settings import Later
from mambanorm_study.basics.text import plural

pictures = Later(
    "mambanorm_clinic.figures"
)  # of what is found, drawn by a room above where they are asked for

WEIGHTS = ("weight", "shape", "rms", "nonfinite", "grad_to_weight")
SHOWN = 4
"""Modules that a message names."""
BEFORE = 4
"""Steps that the text of a report tells of; the frames have them all."""
NO_LOSS = "the mean square of the output: no loss was given, and the model returns none"


@dataclass(frozen=True)
class Diagnosis:
    """What a pass has shown.

    table: one row a site, layer and call, in the order of execution: depth (from 1), site, layer,
    where; rms, max_abs, p999, kurtosis (normal = 3) of the finite values, nonfinite (fraction),
    room_float16 and room_bfloat16 (doublings until the largest magnitude leaves the type, below 0
    it has), grad_rms, grad_max_abs, grad_nonfinite. weights: one row a parameter: rms, nonfinite,
    grad_to_weight (‖gradient‖/‖W‖). first, first_gradient: the first non-finite value forward and
    backward. modules: how many were run and looked at.
    """

    name: str
    table: pd.DataFrame
    weights: pd.DataFrame
    first: First | None
    first_gradient: First | None
    loss: float
    loss_is: str
    findings: Symptoms
    modules: int

    def plot(self):
        """Depth against magnitude, one panel a site."""
        return pictures.fig_clinic(self.table, f"{self.name}: what one batch shows")

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
        picture = f'<img width="950" alt="depth against magnitude, by site" src="data:image/png;base64,{drawn}">'
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
    sites: Mapping[str, str] | None = None,
) -> Diagnosis:
    """What a model's activations, gradients and weights look like on one batch, and what is wrong
    with them.

    model: any module, in its own mode. Sites are known (look/sites.py) of this kit's models,
    transformers' Mamba, Mamba-2, Falcon-Mamba and Jamba, and mamba-ssm's; of another model every
    module without submodules is a site, unless `sites` maps names to patterns of module names:
    {"scan": "layers.*.mixer.norm"}, or "layers.*.out_proj:input" for what goes in. Whatever the
    sites, every module is looked at for magnitudes and non-finite values. batch: a tensor, a tuple
    (input, targets), or a dict of keyword arguments. loss(output, targets); None = the loss that
    the model returns, as transformers' does when given labels, else the mean square of its output.

    The model is run once by hooks, a compiled one as it is written; weights, `.grad`, mode, buffers
    and random states stay as they are. ValueError for a pattern without a match, a site of `sites`
    without a called module, a batch that the model refuses, and a loss that is not one number;
    TypeError if the model is no module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {shown(model)}")
    places = places_of(model, sites)
    seen = Pass(places, own=sites is None)
    spoilt = [name for name, value in model.named_buffers() if _is_spoilt(name, value)]
    learn = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    with preserve_random_state(), preserve_state(model), seen.open(model), torch.enable_grad():
        value, loss_is = _loss_of(model, batch, loss)
        number = float(value.detach())
        seen.end_forward(number)
        grads, skipped = _gradients(value, learn)
    table = pd.DataFrame(seen.rows, columns=COLUMNS)
    weights = [
        describe_weight(name, weight, grads.get(name)) for name, weight in model.named_parameters()
    ]
    weights = pd.DataFrame(weights, columns=WEIGHTS)
    skipped, seats = (
        [*skipped, *_unseen(places, table, type(model).__name__, sites or ())],
        sites_for_norms(model),
    )
    found = findings_of(
        table, weights, seen.first, seen.first_gradient, number, skipped, seats, seen.largest, spoilt,
        parameters=suspicious(model), float16=not in_bfloat16(model),
    )  # fmt: skip
    modules = {where.removesuffix(":input") for where in seen.largest}
    return Diagnosis(type(model).__name__, table, weights, seen.first, seen.first_gradient,
                     number, loss_is, found, len(modules))  # fmt: skip


def _is_spoilt(name: str, buffer: Tensor) -> bool:
    """Whether a buffer is not finite by accident: a mask holds −∞, and a lowest value begins with
    ∞."""
    running = name.rpartition(".")[2].startswith("running_")
    return bool(buffer.isnan().any()) or (running and not buffer.isfinite().all())


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
            raise ValueError(
                f"the model puts out {given}, in which no tensor of real numbers was found: give a loss"
            )
        value, loss_is = first.float().square().mean(), NO_LOSS
    check_loss(value)
    return value, loss_is


def check_loss(value: object) -> None:
    """ValueError for what is no tensor of one number."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = tuple(value.shape) if isinstance(value, Tensor) else shown(value)
        raise ValueError(f"the loss must be a tensor of one number, got {got}")


def _gradients(value: Tensor, learn: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """The gradient of each weight that has one, by name, and why there is none. The weights' own
    `.grad` stays."""
    if not learn or not value.requires_grad:
        return {}, ["gradients: " + ("no weight learns" if not learn else "the loss has no graph")]
    try:
        grads = torch.autograd.grad(value.sum(), list(learn.values()), allow_unused=True)
    except (
        RuntimeError
    ) as error:  # reentrant checkpointing, or an operation without a backward pass
        return {}, [f"gradients: the backward pass fails with {error}"]
    return {name: grad for name, grad in zip(learn, grads, strict=True) if grad is not None}, []


def in_bfloat16(model: nn.Module) -> bool:
    """Return True if the model computes in bfloat16, by autocast or by its weights."""
    weight = next((weight for weight in model.parameters() if weight.is_floating_point()), None)
    if weight is None:
        return False
    kind = weight.device.type
    casts = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16
    return casts or weight.dtype == torch.bfloat16


def _unseen(
    places: list[Place], table: pd.DataFrame, model: str, asked: Iterable[str]
) -> list[str]:
    """Return a line for each site of which some or all modules were not called; a fused kernel
    hides its parts.

    asked: the sites that the caller named. ValueError if no module of such a site was called."""
    seen, whole, skipped = set(table["where"]), [], []
    for site in dict.fromkeys(place.site for place in places):
        every = [place.where for place in places if place.site == site]
        missing = [where for where in every if where not in seen]
        names = ", ".join([*missing[:SHOWN], *["…"] * (len(missing) > SHOWN)])
        if missing == every and site in asked:
            why = "the model leaves them out, hands them no numbers, or reads their weights without a call"
            what = (
                "name modules that are called, as diagnose without `sites` lists them in its table"
            )
            raise ValueError(
                f"site {site!r}: none of its modules was called in this pass ({names}): {why}; {what}"
            )
        if missing == every:
            whole.append(site)
        elif missing:
            skipped.append(
                f"site {site}: {len(missing)} of {len(every)} modules were not called ({names})"
            )
    why = "their modules were not called; a fused kernel or torch.compile hides what it computes"
    return [*([f"sites {', '.join(whole)} of {model}: {why}"] if whole else []), *skipped]


def describe_weight(name: str, weight: Tensor, grad: Tensor | None) -> dict:
    """One row of `Diagnosis.weights`."""
    flat = weight.detach()
    size = float(torch.linalg.vector_norm(flat, dtype=torch.float64))
    row = dict(weight=name, shape=tuple(flat.shape), rms=size / math.sqrt(max(flat.numel(), 1)))
    row["nonfinite"] = float((~flat.isfinite()).double().mean())
    if grad is not None and size > 0:
        row["grad_to_weight"] = float(torch.linalg.vector_norm(grad, dtype=torch.float64)) / size
    return row


# --------------------------------------------------------------------------------------------------
# a training step that is not finite


@dataclass(frozen=True)
class Report:
    """What was seen when a step was not finite.

    step: the optimizer's step, from 1, that was about to be made. first: the first non-finite value
    when the batch is run again, None if it was not met again; backward: it is a gradient. steps:
    step, loss, grad_norm; layers: step, depth, layer, rms, grad_rms. checkpoint: the weights of the
    last finite step, None where these are lost.
    """

    step: int
    first: First | None
    backward: bool
    steps: pd.DataFrame
    layers: pd.DataFrame
    findings: Symptoms
    checkpoint: Path | None
    picture: Path

    @property
    def site(self) -> str:
        """Where it was first seen, as in `First.where`; "" if it was not met again."""
        return "" if self.first is None else self.first.where

    def __str__(self) -> str:
        now = self.steps.iloc[-1]
        lines = [
            f"step {self.step} is not finite: loss {now.loss:.4g}, norm of the gradients {now.grad_norm:.4g}"
        ]
        if self.first is not None:
            what = "the gradient of " if self.backward else ""
            lines.append(
                f"first: {what}{named(self.first.site, self.first.depth, self.first.where)}"
            )
        norms = " → ".join(f"{norm:.3g}" for norm in self.steps.grad_norm.iloc[-BEFORE - 1 :])
        lines.append(f"norm of the gradients in the last steps: {norms}")
        if self.checkpoint is not None:
            lines.append(f"weights after step {self.step - 1}, finite: {self.checkpoint}")
        return "\n".join([*lines, f"picture: {self.picture}", repr(self.findings)])


class NonFinite(FloatingPointError):
    """Raised in place of an optimizer's step that would spread a non-finite gradient; `report` says
    where it began."""

    def __init__(self, report: Report):
        super().__init__(str(report))
        self.report = report
