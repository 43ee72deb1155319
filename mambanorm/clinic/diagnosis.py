"""`diagnose`: one batch forward and backward through a model; every site and every weight in numbers, then in words."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.basics.checks import shown
from mambanorm.basics.text import plural
from mambanorm.clinic.batches import as_it_was, check_device, check_targets, first_tensor, run, split
from mambanorm.clinic.passing import EDGES, First, Pass
from mambanorm.clinic.sentences import findings_of
from mambanorm.clinic.sites import places_of
from mambanorm.clinic.surgery import sites_for_norms
from mambanorm.clinic.symptoms import Symptoms
from mambanorm.diagnostics import blocks_of, left_as_found

HISTOGRAMS = ["histogram", "grad_histogram"]
NO_LOSS = "the mean square of the output: no loss was given, and the model returns none"


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
    pattern that nothing matches, a batch on another device than the model or one that it refuses, and a loss that is
    not one number; TypeError for what is no module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {shown(model)}")
    if sites is not None and not isinstance(sites, Mapping):
        sites = (sites,) if isinstance(sites, str) else tuple(sites)
    places = places_of(model, sites)
    check_device(model, batch)
    seen = Pass(places, () if isinstance(sites, Mapping) else sites)
    buffers = pd.DataFrame([describe_buffer(name, value) for name, value in model.named_buffers()])
    named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    with as_it_was(), left_as_found(model), seen.open(model), torch.enable_grad():
        value, loss_is = _loss_of(model, batch, loss)
        number = float(value.detach())
        seen.end_forward(number)
        grads, skipped = _gradients(value, named)
    rows = pd.DataFrame(seen.rows, columns=None if seen.rows else ["depth", "site", "layer", "where", *HISTOGRAMS])
    weights = pd.DataFrame([describe_weight(name, w, grads.get(name)) for name, w in model.named_parameters()])
    skipped += _unseen(places, rows, model)
    table = rows.drop(columns=HISTOGRAMS)
    seats = sites_for_norms(model)
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
    if not missing:
        return []
    why = "their modules were not called; a fused kernel or torch.compile hides what it computes"
    return [f"sites {', '.join(missing)} of {type(model).__name__}: {why}"] if not blocks_of(model) else []


def describe_weight(name: str, weight: Tensor, grad: Tensor | None) -> dict:
    """One row of `Diagnosis.weights`."""
    flat = weight.detach()
    size = float(torch.linalg.vector_norm(flat, dtype=torch.float64))
    row = dict(weight=name, shape=tuple(flat.shape), rms=size / math.sqrt(max(flat.numel(), 1)))
    row |= dict(nonfinite=float((~flat.isfinite()).double().mean()), highest=float(flat.max()) if flat.numel() else 0.0)
    ratio = math.nan if grad is None else float(torch.linalg.vector_norm(grad, dtype=torch.float64))
    row["grad_to_weight"] = ratio / size if size > 0 else math.nan
    matrix = flat.flatten(1) if flat.dim() > 1 else None
    facts = dict(sigma_1=math.nan, stable_rank=math.nan)
    if matrix is not None and min(matrix.shape) > 0 and math.isfinite(size) and size > 0:
        facts = dict(sigma_1=(sigma := sigma_1(matrix)), stable_rank=(size / sigma) ** 2)
    return row | facts


def describe_buffer(name: str, value: Tensor) -> dict:
    """What of a buffer is not finite, in numbers of values."""
    counts = dict(nan=value.isnan(), inf=value == math.inf, minus_inf=value == -math.inf)
    return dict(buffer=name, size=value.numel()) | {kind: int(which.sum()) for kind, which in counts.items()}


def sigma_1(matrix: Tensor) -> float:
    """The largest singular value, from the smaller Gram matrix in float64: a tenth of the time of all of them.

    `diagnostics.singular_values` is its slow twin. The matrix is scaled first, so that no square overflows.
    """
    largest = float(matrix.abs().max())
    if not largest:
        return 0.0
    scaled = matrix.double() / largest
    gram = scaled @ scaled.T if scaled.shape[0] <= scaled.shape[1] else scaled.T @ scaled
    return largest * math.sqrt(max(float(torch.linalg.eigvalsh(gram)[-1]), 0.0))
