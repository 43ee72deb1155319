"""`diagnose`: run one batch forward and backward through a model, and report the model's
activations, gradients, weights and faults.
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
from mambanorm_clinic.mixers import SiteLocation, parameter_symptoms
from mambanorm_clinic.rules import PassRecord, find_symptoms
from mambanorm_clinic.sites import FLOAT16_MAX, PassRecorder, site_locations
from mambanorm_clinic.surgery import sites_for_norms
from mambanorm_clinic.symptoms import Symptoms
from mambanorm_study.basics.settings import Later
from mambanorm_study.basics.text import plural

clinic_figures = Later("mambanorm_clinic.figures")  # imports matplotlib only when a figure is drawn

COLUMNS = (
    "depth", "site", "where", "rms", "max_abs", "p999", "kurtosis", "nonfinite", "room_float16",
    "grad_rms",
)  # fmt: skip
WEIGHT_COLUMNS = ("weight", "shape", "rms", "nonfinite", "grad_to_weight")
MAX_NAMED_MODULES = 4  # largest number of modules that a message names


@dataclass(frozen=True, eq=False)
class Diagnosis(PassRecord):
    """The record of one pass through a model (see PassRecord), and the faults found in the record.

    name: the name of the model's class. loss_source: how the loss was computed, in words. modules:
    the number of modules that were called.
    """

    name: str = ""
    loss_source: str = ""
    modules: int = 0

    @cached_property
    def findings(self) -> Symptoms:
        """Return the faults of the model, the worst first."""
        return find_symptoms(self)

    def plot(self):
        """Return a figure of the activations' magnitude over depth, one panel per site."""
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
    """Return a model's faults, and statistics of its activations, gradients and weights on a batch.

    model: any module; it runs in its current mode. batch: a tensor, a tuple (input, targets), or a
    dict of keyword arguments. loss: a function of (output, targets) that returns a scalar tensor;
    None means the loss that the model returns, as transformers' models do when given labels, or the
    mean square of the output if the model returns no loss.

    sites: the tensors to describe, as a map from the name of each site to a pattern of module
    paths, such as {"scan": "layers.*.mixer.norm"} for the outputs of the matching modules, or
    {"gated": "layers.*.out_proj:input"} for their inputs. None means the sites that sites.py knows
    in this kit's models, in transformers' Mamba, Mamba-2, Falcon-Mamba and Jamba, and in the models
    of mamba-ssm; in any other model None means the output of every module without submodules. The
    inputs and outputs of all modules are checked for large and for non-finite values, whatever
    `sites` contains.

    The model is called once, with hooks; a compiled model runs uncompiled. Weights, `.grad`, mode,
    buffers and torch's random states stay as they are. Raises ValueError if `model` is no module
    or raises an error, if the loss is not one number, if a pattern matches no module, or if no
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
                f"one of the keys {', '.join(TARGETS)}"
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
    """Return the Diagnosis of one forward and backward pass through a model.

    forward(): runs the model, and returns the tensor on which to call backward and a text that says
    how this tensor was computed. known_loss: the loss to report if the tensor is not the loss;
    None means that the tensor is the loss. sites: as for `diagnose`.
    """
    locations = site_locations(model, sites)
    recorder = PassRecorder(locations, kit_sites=sites is None)
    # only running statistics are checked, because other buffers, such as masks, may be infinite
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
        loss, source = forward()
        check_loss(loss)
        loss_value = float(loss.detach()) if known_loss is None else known_loss
        recorder.end_forward(loss_value)
        gradients, skipped = _gradients(loss, model, source)
    table = pd.DataFrame(recorder.rows, columns=COLUMNS)
    table["room_float16"] = np.log2(FLOAT16_MAX / table.max_abs)
    return Diagnosis(
        table=table,
        weights=_weight_table(model, gradients),
        first=recorder.first,
        first_gradient=recorder.first_gradient if math.isfinite(loss_value) else None,
        loss=loss_value,
        skipped=skipped + _uncalled_modules(locations, set(table["where"]), sites or ()),
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
    tensor = first_tensor(output, skip_integers=True)
    if tensor is None:
        raise ValueError(
            f"the model returns {type(output).__name__}, which contains no floating-point tensor: "
            "give a loss"
        )
    return (
        tensor.float().square().mean(),
        "the mean square of the output: no loss was given, and the model returns none",
    )


def check_loss(loss: object) -> None:
    """Raise ValueError unless the loss is a tensor of one number."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = tuple(loss.shape) if isinstance(loss, Tensor) else shown(loss)
        raise ValueError(f"the loss must be a tensor of one number, got {got}")


def _gradients(loss: Tensor, model: nn.Module, source: str) -> tuple[dict[str, Tensor], list[str]]:
    """Return a tuple (gradients, skipped).

    gradients: a map from parameter name to gradient, for the parameters on which the loss depends.
    skipped: a list with one sentence that says why no gradient could be computed, or [] if
    gradients were computed. source: how the loss was computed, in words. `.grad` is not changed.
    """
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    try:
        grads = torch.autograd.grad(loss.sum(), list(weights.values()), allow_unused=True)
    # raised if all weights are frozen, or if the loss is not differentiable
    except (RuntimeError, ValueError) as error:
        return {}, [f"gradients, because there is no backward pass from {source}: {error}"]
    return {name: grad for name, grad in zip(weights, grads, strict=True) if grad is not None}, []


def _uncalled_modules(
    locations: list[SiteLocation], called_paths: set[str], requested_sites: Iterable[str]
) -> list[str]:
    """Return a list with one sentence on the sites whose modules were not called in the pass, or []
    if all modules were called.

    locations: the locations of all sites. called_paths: the paths of the sites that were recorded.
    requested_sites: the names of the sites that the caller of `diagnose` gave. Raises ValueError if
    none of the modules of a requested site was called.
    """
    uncalled = [location for location in locations if location.where not in called_paths]
    for site in requested_sites:
        paths = [location.where for location in locations if location.site == site]
        if called_paths.isdisjoint(paths):
            raise ValueError(
                f"site {site!r}: none of its modules was called in this pass "
                f"({', '.join(paths[:MAX_NAMED_MODULES])}): the model skips these modules, passes "
                "them no floats, or uses their weights without calling them; give a pattern of "
                "modules that are called, such as those in diagnose(model, batch).table"
            )
    sites = ", ".join(dict.fromkeys(location.site for location in uncalled))
    names = ", ".join(location.where for location in uncalled[:MAX_NAMED_MODULES])
    line = (
        f"sites {sites} ({plural(len(uncalled), 'module')}: {names}), because these modules are "
        "not called; a fused kernel or torch.compile may hide the calls"
    )
    return [line] if uncalled else []


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
