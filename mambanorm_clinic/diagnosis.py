"""`diagnose`: run one batch forward and backward through a model; describe every site and every
weight in numbers, and the faults in words.
"""

import base64
import html
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.errors import shown
from mambanorm.inside import preserve_state
from mambanorm_clinic.calling import (
    TARGETS,
    first_real_tensor,
    preserve_random_state,
    split_batch,
    try_model,
    vector_norm,
)
from mambanorm_clinic.mixers import parameter_symptoms
from mambanorm_clinic.rules import PassRecord, find_symptoms
from mambanorm_clinic.sites import COLUMNS, PassRecorder, Place, places_of
from mambanorm_clinic.surgery import sites_for_norms
from mambanorm_clinic.symptoms import NonFiniteValue, Symptoms, place_text
from mambanorm_study.basics.settings import Later
from mambanorm_study.basics.text import plural

clinic_figures = Later("mambanorm_clinic.figures")  # matplotlib is loaded when a picture is drawn

WEIGHT_COLUMNS = ("weight", "shape", "rms", "nonfinite", "grad_to_weight")
# Modules that a message names.
NAMED_MODULES = 4
# Steps before a failure in the text of a report; its frames have all of them.
SHOWN_STEPS = 4
NO_LOSS = "the mean square of the output: no loss was given, and the model returns none"


@dataclass(frozen=True, kw_only=True)
class Diagnosis(PassRecord):
    """The record of one pass through a model, and the faults that the rules find in it.

    name: the model's class. loss_source: where the loss is from. modules: how many were run.
    """

    name: str
    loss_source: str
    findings: Symptoms
    modules: int

    def plot(self):
        """Return a figure of magnitude over depth, one panel a site."""
        return clinic_figures.fig_clinic(self.table, f"{self.name}: what one batch shows")

    def __repr__(self) -> str:
        return f"{self._summary}\n{self.findings!r}"

    @property
    def _summary(self) -> str:
        sites = plural(self.table.site.nunique(), "site")
        layers = plural(self.table.depth.max() if len(self.table) else 0, "layer")
        modules, weights = plural(self.modules, "module"), plural(len(self.weights), "weight")
        return (
            f"{self.name}: {sites} in {layers}, {modules}, {weights}; loss {self.loss:.4g} "
            f"({self.loss_source})"
        )

    def _repr_html_(self) -> str:
        png = base64.b64encode(self.plot()._repr_png_()).decode()
        picture = (
            '<img width="950" alt="depth against magnitude, by site" '
            f'src="data:image/png;base64,{png}">'
        )
        text = f"<p>{html.escape(self._summary)}</p>{self.findings._repr_html_()}{picture}"
        for title, frame in (("every site", self.table), ("every weight", self.weights)):
            table = frame.to_html(index=False, float_format="%.3g")
            text += f"<details><summary>{title}</summary>{table}</details>"
        return text


def diagnose(
    model: nn.Module,
    batch: object,
    *,
    loss: Callable[[object, object], Tensor] | None = None,
    sites: Mapping[str, str] | None = None,
) -> Diagnosis:
    """Return the activations, gradients and weights of a model on one batch, and their faults.

    model: any module, in its current mode. sites.py knows the sites of this kit's models, of
    transformers' Mamba, Mamba-2, Falcon-Mamba and Jamba, and of mamba-ssm's. For any other model
    every module without submodules is a site, unless `sites` maps names to patterns of module
    names: {"scan": "layers.*.mixer.norm"}, or "layers.*.out_proj:input" for the input. Every module
    is checked for large and non-finite values. batch: a tensor, a tuple (input, targets), or a dict
    of keyword arguments. loss(output, targets); None = the loss that the model returns, as
    transformers' does when given labels, else the mean square of its output.

    The model runs once with hooks; a compiled model runs uncompiled. Weights, `.grad`, mode,
    buffers and random states stay as they are. Raises ValueError if a pattern matches no module, if
    no module of a given site is called, if the model refuses the batch, and if the loss is not one
    number; TypeError if the model is not a module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {shown(model)}")
    places = places_of(model, sites)
    recorder = PassRecorder(places, own_sites=sites is None)
    broken = [name for name, buffer in model.named_buffers() if _is_broken(name, buffer)]
    result = _run_once(model, batch, loss, recorder)
    name, table = type(model).__name__, pd.DataFrame(recorder.rows, columns=COLUMNS)
    record = PassRecord(
        table,
        _weight_table(model, result.gradients),
        recorder.first,
        recorder.first_gradient,
        result.loss,
        skipped=[*result.skipped, *_uncalled_modules(places, table, name, sites or ())],
        norm_sites=sites_for_norms(model),
        largest=recorder.largest,
        broken_buffers=broken,
        parameter_symptoms=parameter_symptoms(model),
        float16=not is_in_bfloat16(model),
    )
    modules = {where.removesuffix(":input") for where in recorder.largest}
    return Diagnosis(
        **vars(record),
        name=name,
        loss_source=result.loss_source,
        findings=find_symptoms(record),
        modules=len(modules),
    )


class RunResult(NamedTuple):
    """The loss and the gradients of one pass. skipped: why there are no gradients."""

    loss: float
    loss_source: str
    gradients: dict[str, Tensor]
    skipped: list[str]


def _run_once(
    model: nn.Module, batch: object, loss: Callable | None, recorder: PassRecorder
) -> RunResult:
    with (
        preserve_random_state(),
        preserve_state(model),
        recorder.recording(model),
        torch.enable_grad(),
    ):
        value, loss_source = _loss_of(model, batch, loss)
        number = float(value.detach())
        recorder.end_forward(number)
        return RunResult(number, loss_source, *_gradients(value, model))


def _is_broken(name: str, buffer: Tensor) -> bool:
    """Return True if a buffer is not finite by accident: masks hold −∞, a lowest value begins with
    ∞.
    """
    is_statistic = name.rpartition(".")[2].startswith("running_")
    return bool(buffer.isnan().any()) or (is_statistic and not buffer.isfinite().all())


def _loss_of(model: nn.Module, batch: object, loss: Callable | None) -> tuple[Tensor, str]:
    output = try_model(model, batch, with_targets=loss is None)
    if loss is not None:
        targets = split_batch(batch)[1]
        if targets is None:
            raise ValueError(
                "loss needs targets, and the batch has none: give (input, targets), or a dict with "
                f"one of {', '.join(TARGETS)}"
            )
        value, source = loss(output, targets), "the loss given"
    elif isinstance(getattr(output, "loss", None), Tensor):
        value, source = output.loss, "the model's own loss"
    else:
        tensor = first_real_tensor(output)
        if tensor is None:
            raise ValueError(
                f"the model puts out {type(output).__name__}, in which no tensor of real numbers "
                "was found: give a loss"
            )
        value, source = tensor.float().square().mean(), NO_LOSS
    check_loss(value)
    return value, source


def check_loss(value: object) -> None:
    """Raise ValueError unless the loss is a tensor of one number."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = tuple(value.shape) if isinstance(value, Tensor) else shown(value)
        raise ValueError(f"the loss must be a tensor of one number, got {got}")


def _gradients(value: Tensor, model: nn.Module) -> tuple[dict[str, Tensor], list[str]]:
    """Return the gradients by the weights' names, and why there are none. `.grad` stays as it
    is.
    """
    learned = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if not learned:
        return {}, ["gradients: no weight learns"]
    if not value.requires_grad:
        return {}, ["gradients: the loss has no graph"]
    try:
        grads = torch.autograd.grad(value.sum(), list(learned.values()), allow_unused=True)
    except RuntimeError as error:  # reentrant checkpointing, or an operation without a backward
        return {}, [f"gradients: the backward pass fails with {error}"]
    return {name: grad for name, grad in zip(learned, grads, strict=True) if grad is not None}, []


def is_in_bfloat16(model: nn.Module) -> bool:
    """Return True if the model computes in bfloat16, by autocast or by its weights."""
    weight = next((weight for weight in model.parameters() if weight.is_floating_point()), None)
    if weight is None:
        return False
    device = weight.device.type
    casts = torch.is_autocast_enabled(device)
    return weight.dtype == torch.bfloat16 or (
        casts and torch.get_autocast_dtype(device) == torch.bfloat16
    )


def _uncalled_modules(
    places: list[Place], table: pd.DataFrame, model: str, chosen: Iterable[str]
) -> list[str]:
    """Return a line for each site of which some or all modules were not called.

    A fused kernel hides its parts. chosen: the sites that the caller named. Raises ValueError if no
    module of such a site was called.
    """
    called, uncalled_sites, lines = set(table["where"]), [], []
    for site in dict.fromkeys(place.site for place in places):
        paths = [place.where for place in places if place.site == site]
        missing = [path for path in paths if path not in called]
        names = ", ".join(missing[:NAMED_MODULES]) + ", …" * (len(missing) > NAMED_MODULES)
        if len(missing) == len(paths) and site in chosen:
            raise ValueError(
                f"site {site!r}: none of its modules was called in this pass ({names}): the model "
                "leaves them out, hands them no numbers, or reads their weights without a call; "
                "name modules that are called, as diagnose without `sites` lists them in its table"
            )
        if len(missing) == len(paths):
            uncalled_sites.append(site)
        elif missing:
            lines.append(
                f"site {site}: {len(missing)} of {len(paths)} modules were not called ({names})"
            )
    if uncalled_sites:
        lines.insert(
            0,
            f"sites {', '.join(uncalled_sites)} of {model}: their modules were not called; a fused "
            "kernel or torch.compile hides what it computes",
        )
    return lines


def _weight_table(model: nn.Module, gradients: dict[str, Tensor]) -> pd.DataFrame:
    rows = []
    for name, weight in model.named_parameters():
        weight, ratio = weight.detach(), math.nan
        size = float(vector_norm(weight, torch.float64))
        if name in gradients and size > 0:
            ratio = float(vector_norm(gradients[name], torch.float64)) / size
        rms = size / math.sqrt(max(weight.numel(), 1))
        nonfinite = float((~weight.isfinite()).double().mean())
        rows.append((name, tuple(weight.shape), rms, nonfinite, ratio))
    return pd.DataFrame(rows, columns=WEIGHT_COLUMNS)


# --------------------------------------------------------------------------------------------------
# a training step that is not finite


@dataclass(frozen=True)
class Report:
    """The record of a training step that was not finite.

    step: the optimizer's step, from 1, that was about to be made. first: the first non-finite value
    when the batch is run again, None if there was none; backward: it is a gradient. steps: step,
    loss, grad_norm; layers: step, depth, layer, rms, grad_rms. checkpoint: the weights of the last
    finite step, None if these are lost.
    """

    step: int
    first: NonFiniteValue | None
    backward: bool
    steps: pd.DataFrame
    layers: pd.DataFrame
    findings: Symptoms
    checkpoint: Path | None
    picture: Path

    @property
    def site(self) -> str:
        """Return where the first non-finite value is, as in `NonFiniteValue.where`; "" if there is
        none.
        """
        return "" if self.first is None else self.first.where

    def __str__(self) -> str:
        last = self.steps.iloc[-1]
        lines = [
            f"step {self.step} is not finite: loss {last.loss:.4g}, norm of the gradients "
            f"{last.grad_norm:.4g}"
        ]
        if self.first is not None:
            place = place_text(self.first.site, self.first.depth, self.first.where)
            lines.append(f"first: {'the gradient of ' if self.backward else ''}{place}")
        norms = [f"{norm:.3g}" for norm in self.steps.grad_norm.iloc[-SHOWN_STEPS - 1 :]]
        lines.append(f"norm of the gradients in the last steps: {' → '.join(norms)}")
        if self.checkpoint is not None:
            lines.append(f"weights after step {self.step - 1}, finite: {self.checkpoint}")
        return "\n".join([*lines, f"picture: {self.picture}", repr(self.findings)])


class NonFinite(FloatingPointError):
    """Raised instead of an optimizer's step that would spread a non-finite gradient.

    `report` says where it began.
    """

    def __init__(self, report: Report):
        super().__init__(str(report))
        self.report = report
