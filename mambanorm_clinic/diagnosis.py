"""`diagnose`: run one batch forward and backward through a model, and report its activations,
gradients, weights and faults.
"""

import base64
import html
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.errors import shown
from mambanorm.inside import preserve_state
from mambanorm_clinic.calling import TARGETS, call_model, first_tensor, split_batch
from mambanorm_clinic.mixers import Place, parameter_symptoms
from mambanorm_clinic.rules import PassRecord, find_symptoms
from mambanorm_clinic.sites import FLOAT16_MAX, PassRecorder, places_of
from mambanorm_clinic.surgery import sites_for_norms
from mambanorm_clinic.symptoms import Symptoms
from mambanorm_study.basics.settings import Later
from mambanorm_study.basics.text import plural

clinic_figures = Later("mambanorm_clinic.figures")  # matplotlib is loaded when a picture is drawn

COLUMNS = (
    "depth", "site", "where", "rms", "max_abs", "p999", "kurtosis", "nonfinite", "room_float16",
    "grad_rms",
)  # fmt: skip
WEIGHT_COLUMNS = ("weight", "shape", "rms", "nonfinite", "grad_to_weight")
NAMED_MODULES = 4  # modules that a message names


@dataclass(frozen=True, eq=False)
class Diagnosis(PassRecord):
    """The record of one pass through a model (see PassRecord), and the faults found in it.

    name: the model's class. loss_source: how the loss was computed, in words. modules: the number
    of modules that were called.
    """

    name: str = ""
    loss_source: str = ""
    modules: int = 0

    @cached_property
    def findings(self) -> Symptoms:
        """Return the faults, the worst first."""
        return find_symptoms(self)

    def plot(self):
        """Return a figure of magnitude over depth, with one panel per site."""
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
        picture = f'<img width="950" alt="magnitude by site" src="data:image/png;base64,{png}">'
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
    """Return statistics of a model's activations, gradients and weights on one batch, and faults.

    model: any module, in its current mode. sites: the tensors to describe, given as a map from
    names to patterns of module paths: {"scan": "layers.*.mixer.norm"} for outputs,
    "layers.*.out_proj:input" for inputs. None = the known sites (sites.py) of this kit's models, of
    transformers' Mamba, Mamba-2, Falcon-Mamba and Jamba, and of mamba-ssm's; in any other model the
    output of every module without submodules. Whatever the sites, every module is checked for large
    and non-finite values. batch: a tensor, a tuple (input, targets), or a dict of keyword
    arguments. loss: a function of (output, targets). None = the loss that the model returns, as
    transformers' models do when given labels, or else the mean square of the output.

    The model runs once with hooks; a compiled model runs uncompiled. Weights, `.grad`, mode,
    buffers and torch's random states stay as they are. Raises ValueError if the model is no module
    or raises an error, if the loss is not one number, if a pattern matches no module, and if no
    module of a site in `sites` is called.
    """

    def forward() -> tuple[Tensor, str]:
        output = call_model(model, batch, with_targets=loss is None)
        if loss is None:
            return _default_loss(output)
        targets = split_batch(batch)[1]
        if targets is None:
            raise ValueError(
                "loss needs targets, and the batch has none: give (input, targets), or a dict with "
                f"one of {', '.join(TARGETS)}"
            )
        return loss(output, targets), "the loss given"

    return examine(model, forward, sites=sites)


def examine(
    model: nn.Module,
    forward: Callable[[], tuple[Tensor, str]],
    *,
    known_loss: float | None = None,
    sites: Mapping[str, str] | None = None,
) -> Diagnosis:
    """Return the diagnosis of one forward and backward pass.

    forward(): runs the model, and returns the loss for the backward pass and how it was computed,
    in words. known_loss: the true loss, if `forward` cannot compute it. sites: as for `diagnose`.
    """
    places = places_of(model, sites)
    recorder = PassRecorder(places, kit_sites=sites is None)
    # other buffers may contain infinity on purpose, such as masks
    broken_buffers = [
        name
        for name, buffer in model.named_buffers()
        if name.rpartition(".")[2].startswith("running_") and not buffer.isfinite().all()
    ]
    with (
        torch.random.fork_rng(),
        preserve_state(model),
        recorder.recording(model),
        torch.enable_grad(),
    ):
        value, source = forward()
        check_loss(value)
        number = float(value.detach()) if known_loss is None else known_loss
        recorder.end_forward(number)
        gradients, skipped = _gradients(value, model, source)
    table = pd.DataFrame(recorder.rows, columns=COLUMNS)
    table["room_float16"] = np.log2(FLOAT16_MAX / table.max_abs)
    return Diagnosis(
        table=table,
        weights=_weight_table(model, gradients),
        first=recorder.first,
        first_gradient=recorder.first_gradient if math.isfinite(number) else None,
        loss=number,
        skipped=skipped + _uncalled_modules(places, set(table["where"]), sites or ()),
        norm_sites=sites_for_norms(model),
        largest=recorder.largest,
        broken_buffers=broken_buffers,
        parameter_symptoms=parameter_symptoms(model),
        in_bfloat16=torch.bfloat16 in recorder.dtypes,
        name=type(model).__name__,
        loss_source=source,
        modules=len({where.removesuffix(":input") for where in recorder.largest}),
    )


def _default_loss(output: object) -> tuple[Tensor, str]:
    if isinstance(getattr(output, "loss", None), Tensor):
        return output.loss, "the model's own loss"
    tensor = first_tensor(output, floating=True)
    if tensor is None:
        raise ValueError(
            f"the model returns {type(output).__name__}, in which there is no tensor of floats: "
            "give a loss"
        )
    return (
        tensor.float().square().mean(),
        "the mean square of the output: no loss was given, and the model returns none",
    )


def check_loss(value: object) -> None:
    """Raise ValueError unless the loss is a tensor of one number."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = tuple(value.shape) if isinstance(value, Tensor) else shown(value)
        raise ValueError(f"the loss must be a tensor of one number, got {got}")


def _gradients(value: Tensor, model: nn.Module, source: str) -> tuple[dict[str, Tensor], list[str]]:
    """Return the gradient of each parameter, and the reason if there are none; `.grad` is kept."""
    learned = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    try:
        grads = torch.autograd.grad(value.sum(), list(learned.values()), allow_unused=True)
    except (RuntimeError, ValueError) as error:  # all weights are frozen, or there is no derivative
        return {}, [f"gradients, because there is no backward pass from {source}: {error}"]
    return {name: grad for name, grad in zip(learned, grads, strict=True) if grad is not None}, []


def _uncalled_modules(places: list[Place], called: set[str], named: Iterable[str]) -> list[str]:
    """Return a sentence on the sites whose modules were not called, in a list; [] if all were.

    named: the sites that the caller named. Raises ValueError if no module of such a site was
    called.
    """
    missing = [place for place in places if place.where not in called]
    for site in named:
        paths = [place.where for place in places if place.site == site]
        if called.isdisjoint(paths):
            raise ValueError(
                f"site {site!r}: none of its modules was called in this pass "
                f"({', '.join(paths[:NAMED_MODULES])}): the model skips them, passes them no "
                "floats, or uses their weights without calling them; name modules that are called, "
                "such as those in the table of diagnose without `sites`"
            )
    sites = ", ".join(dict.fromkeys(place.site for place in missing))
    names = ", ".join(place.where for place in missing[:NAMED_MODULES])
    line = (
        f"sites {sites} ({plural(len(missing), 'module')}: {names}), because they are not called; "
        "a fused kernel or torch.compile may hide them"
    )
    return [line] if missing else []


def _weight_table(model: nn.Module, gradients: dict[str, Tensor]) -> pd.DataFrame:
    norm = partial(torch.linalg.vector_norm, dtype=torch.float64)
    rows = []
    for name, weight in model.named_parameters():
        size = float(norm(weight.detach()))
        grad_size = float(norm(gradients[name])) if name in gradients else math.nan
        rms = size / math.sqrt(max(weight.numel(), 1))
        nonfinite = float((~weight.isfinite()).double().mean())
        ratio = grad_size / size if size > 0 else math.nan
        rows.append((name, tuple(weight.shape), rms, nonfinite, ratio))
    return pd.DataFrame(rows, columns=WEIGHT_COLUMNS)
