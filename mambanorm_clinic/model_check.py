"""`check_model`: the guide's checklist (source S4) for a real model: the faults that `diagnose`
finds, and mistakes with norms.

Lines 2, 3 and 10 of the checklist ask what the model is for: `recommend` answers them. A norm's
input is traced to the module that made it, if that module's output arrives unchanged or as a view;
it is lost behind F.relu, .contiguous() or pad_packed_sequence. Norms are recognized by their
classes and judged by their effect: each is run again on its input together with other rows, and on
other inputs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mambanorm.inside import preserve_state
from mambanorm.models.language import LanguageModel
from mambanorm.norms.base import Norm
from mambanorm_clinic.calling import (
    call_model,
    first_tensor,
    inspect_model,
    map_tensors,
    split_batch,
)
from mambanorm_clinic.diagnosis import diagnose
from mambanorm_clinic.surgery import relative_change
from mambanorm_clinic.symptoms import Symptom, Symptoms
from mambanorm_study.basics.settings import SMALL_BATCH
from mambanorm_study.basics.text import plural

KINDS = {
    "BatchNorm": "BN",
    "InstanceNorm": "IN",
    "GroupNorm": "GN",
    "LayerNorm": "LN",
    "RMSNorm": "RMSN",
}
TORCH_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
DROPOUTS = nn.modules.dropout._DropoutNd
# Modules whose output counts as that of the module before them.
TRANSPARENT = (DROPOUTS, nn.Flatten, nn.Unflatten, nn.Identity, nn.Softmax, nn.LogSoftmax)
ACTIVATIONS = re.compile("ReLU|ELU|GELU|SiLU|Tanh|Sigmoid|Hardswish|Softplus|Mish")
# Two outputs differ if their relative change is above this. Rounding changes them less.
SMALLEST_CHANGE = 1e-5
# A norm is constant if its output for noise and for −noise differ by less than this times its gain.
CONSTANT = 1e-3


def norm_kind(module: nn.Module) -> str:
    """Return BN, IN, GN, LN, RMSN, or the class of another norm of this kit; "" for no norm.

    Norms of other libraries are recognized by the name of their class. Subclasses of torch's may
    have modules inside, as timm's with an activation; others may not.
    """
    name = type(module).__name__
    if isinstance(module, Norm):
        return "" if name in ("NoNorm", "Scale") else KINDS.get(name, name)
    if not isinstance(module, TORCH_NORMS) and list(module.children()):
        return ""
    classes = " ".join(cls.__name__ for cls in type(module).__mro__)
    match = re.search("|".join(KINDS), classes)
    return KINDS[match[0]] if match else ""


@dataclass
class ModuleRun:
    """A module as it ran.

    inputs: kept for a norm. source: the run of the module that made its input. shape: of the input.
    """

    path: str
    module: nn.Module
    inputs: list
    source: ModuleRun | None
    shape: tuple[int, ...] = ()

    def output_for(self, inputs: list) -> Tensor:
        """Return the module's output in float64."""
        return first_tensor(self.module(*inputs)).double()


@torch.no_grad()
def mixes_rows(norm: ModuleRun) -> bool:
    """Return True if a row's output depends on the other rows of the batch."""
    try:
        more_rows = map_tensors(add_rows, norm.inputs)
        return differ(norm.output_for(norm.inputs), norm.output_for(more_rows))
    except (ValueError, RuntimeError):  # it takes no further rows, or in training no single row
        return False


def differ(one: Tensor, other: Tensor) -> bool:
    """Return True if two outputs differ by more than rounding, in the rows that both have."""
    change = float((other[: len(one)] - one).abs().max())
    return change > SMALLEST_CHANGE * float(one.abs().max().clamp(min=1e-3))


def add_rows(x: Tensor) -> Tensor:
    """Return a tensor with twice as many rows; added rows of a float tensor have other values."""
    return torch.cat([x, 1.7 * x.flip(0) + 0.3 if x.is_floating_point() else x])


def replace_second_half(x: Tensor) -> Tensor:
    """Return a tensor with the second half of its rows replaced by copies of the first row."""
    half = len(x) // 2
    return torch.cat([x[:half], x[:1].expand_as(x[half:])])


class ModelRun:
    """One pass through a model.

    norms: every norm as it ran. output: of the model. last: the run of the module that made it.
    """

    def __init__(self, model: nn.Module, batch: object):
        self.norms: list[ModuleRun] = []
        self._outputs: list[Tensor | None] = []  # kept, so that no other tensor gets their memory
        # by the memory of the output, so that a view of it is recognized as well
        self._made_by: dict[int, ModuleRun | None] = {}
        hooks = inspect_model(model, on_input=lambda *_: None, on_output=self._on_output)
        with hooks, torch.no_grad():
            self.output = first_tensor(call_model(model, batch))
        self.last = self._made_by.get(memory_of(self.output))

    def _on_output(self, path: str, module: nn.Module, inputs: list, output: object) -> None:
        x, y, is_norm = first_tensor(inputs), first_tensor(output), bool(norm_kind(module))
        source = self._made_by.get(memory_of(x))
        shape = () if x is None else tuple(x.shape)
        run = ModuleRun(path, module, inputs if is_norm else [], source, shape)
        self._outputs.append(y)
        if is_norm and x is not None:
            self.norms.append(run)
        if is_norm or not list(module.children()):
            self._made_by[memory_of(y)] = source if isinstance(module, TRANSPARENT) else run


def memory_of(value: Tensor | None) -> int:
    """Return the address of a tensor's storage, or a number of no other tensor if it has none."""
    if value is None or value.layout != torch.strided or not value.numel():
        return id(value)
    return value.untyped_storage().data_ptr()


def check_model(model: nn.Module, batch: object, *, evaluating: bool = False) -> Symptoms:
    """Return the faults of a model on one batch, the worst first.

    They are those that `diagnose` finds, and those of the guide's checks of norms. batch and
    errors: as of `diagnose`. evaluating: the model is about to predict, not to be trained. The
    model stays as it is.
    """
    diagnosed = diagnose(model, batch).findings
    symptoms = [*diagnosed, *unused_statistics(model, evaluating)]
    with torch.random.fork_rng(), preserve_state(model):
        run = ModelRun(model, batch)
        if evaluating:
            symptoms += training_mode(model, batch, run.norms)
        elif model.training:
            symptoms += small_batches(run.norms)
        for norm in run.norms:
            symptoms += [*order_of_norm(norm), *lost_input(norm)]
        symptoms += [*normalized_output(run), *sees_ahead(model, batch, run.output)]
    return Symptoms(symptoms, diagnosed.skipped)


def small_batches(norms: list[ModuleRun]) -> Iterator[Symptom]:
    """Find BatchNorm that learns from fewer than 8 rows (check 1)."""
    small = [norm for norm in norms if norm.shape[0] < SMALL_BATCH and mixes_rows(norm)]
    if small:
        n = small[0].shape[0]
        yield Symptom(
            "serious" if n <= 2 else "warning",
            small[0].path,
            f"BatchNorm learns from batches of {n} ({plural(len(small), 'such norm')})",
            "GroupNorm, or LN; or larger batches; or freeze the statistics of a pre-trained model",
            "check 1, mistake 1",
        )


def order_of_norm(norm: ModuleRun) -> Iterator[Symptom]:
    """Find convolution → activation → norm, instead of norm → activation (check 4)."""
    source = norm.source
    if source is None or source.source is None or norm_kind(norm.module) not in ("BN", "IN", "GN"):
        return
    activation, layer = type(source.module).__name__, source.source.module
    if ACTIVATIONS.search(activation) and isinstance(layer, nn.Linear | nn.modules.conv._ConvNd):
        yield Symptom(
            "note",
            norm.path,
            f"the order is convolution, activation ({activation}), norm",
            "convolution, norm, activation; or, in residual nets, norm, activation, convolution",
            "check 4",
        )


@torch.no_grad()
def lost_input(norm: ModuleRun) -> Iterator[Symptom]:
    """Find a norm whose output is the same for all inputs, because each statistic is of one value,
    and GroupNorm with one channel in each group.

    A norm whose gain begins at 0 has no fault.
    """
    gain = getattr(norm.module, "weight", None)
    size = float(gain.abs().max()) if isinstance(gain, Tensor) else 1.0
    noise = map_tensors(lambda x: torch.randn_like(x) if x.is_floating_point() else x, norm.inputs)
    negated = map_tensors(lambda x: -x if x.is_floating_point() else x, noise)
    change = float((norm.output_for(noise) - norm.output_for(negated)).abs().max())
    if change < CONSTANT * size:
        yield Symptom(
            "serious",
            norm.path,
            f"{norm_kind(norm.module)} of {norm.shape} returns the same output for every input",
            "no norm here, or one whose statistics are taken over more values (positions, "
            "channels, fewer groups)",
            "measured here",
        )
    elif isinstance(norm.module, nn.GroupNorm) and (
        1 < norm.module.num_groups == norm.module.num_channels
    ):
        yield Symptom(
            "note",
            norm.path,
            f"{norm.module.num_groups} groups of one channel each: this is InstanceNorm",
            "fewer groups, or call it InstanceNorm",
            "GroupNorm",
        )


@torch.no_grad()
def sees_ahead(model: nn.Module, batch: object, logits: Tensor) -> Iterator[Symptom]:
    """Find earlier logits that change when the last id of each row does.

    It applies to token models, ids (B, L) → logits (B, L, V), that are not masked models.
    """
    classes = " ".join(cls.__name__ for cls in type(model).__mro__)
    inputs = split_batch(batch)[0]
    ids = first_tensor(inputs)
    is_tokens = ids is not None and ids.dim() == 2 and not ids.is_floating_point()
    if not is_tokens or ids.shape[1] < 2 or "MaskedLM" in classes:
        return
    if logits.dim() != 3 or logits.shape[:2] != ids.shape or logits.shape[2] <= ids.max():
        return
    changed = ids.clone()
    changed[:, -1] = torch.where(ids[:, -1] == ids.min(), ids.max(), ids.min())
    changed_inputs = map_tensors(lambda x: changed if x is ids else x, inputs)
    one, other = (y[:, :-1] for y in outputs_for(model, inputs, changed_inputs))
    if not differ(one, other):
        return
    is_causal = re.search("CausalLM|LMHead", classes) or any(
        isinstance(part, LanguageModel) for part in model.modules()
    )
    change = float((other - one).abs().max() / one.abs().max())
    exception = "" if is_causal else ", which is fine only for a masked model or a tagger"
    yield Symptom(
        "serious" if is_causal else "warning",
        "",
        f"the logits of earlier positions change by {100 * change:.2g} % when the last id changes: "
        f"the model sees what it is to predict{exception}",
        "norms of each token (LN, RMSN) and causal layers; statistics or sums over L only up to "
        "each position",
        "measured here",
    )


def outputs_for(model: nn.Module, *batches: object) -> list[Tensor]:
    """Return the model's outputs for several batches, with the same dropout masks, in float64."""
    outputs = []
    for batch in batches:
        torch.manual_seed(0)
        outputs.append(first_tensor(call_model(model, batch), floating=True).double())
    return outputs


def unused_statistics(model: nn.Module, evaluating: bool) -> Iterator[Symptom]:
    """Find norms that use running statistics which no batch has updated (check 6)."""
    norms = {
        path: module
        for path, module in model.named_modules()
        if getattr(module, "running_mean", None) is not None
    }
    unused = [
        path
        for path, module in norms.items()
        if (evaluating or (model.training and not module.training))
        and not module.running_mean.any()
        and (module.running_var == 1).all()
    ]
    if unused:
        yield Symptom(
            "serious",
            unused[0],
            f"{len(unused)} of {len(norms)} norms have seen no batch: they evaluate with mean 0 "
            "and variance 1",
            "train first, load the buffers with the weights, or run some batches in train mode",
            "check 6",
        )


@torch.no_grad()
def training_mode(model: nn.Module, batch: object, runs: list[ModuleRun]) -> Iterator[Symptom]:
    """Find a model that is to predict, but depends on the other rows of the batch or draws at
    random (check 7).
    """
    norms = list(dict.fromkeys(run.path for run in runs if mixes_rows(run)))
    other_rows = map_tensors(replace_second_half, batch)
    one, other = (y[: len(y) // 2] for y in outputs_for(model, batch, other_rows))
    change = relative_change(other, one)
    norms = norms if change > SMALLEST_CHANGE else []
    dropouts = [
        path
        for path, module in model.named_modules()
        if isinstance(module, DROPOUTS) and module.p and module.training
    ]
    if not norms and not dropouts:
        return
    where, mode = "", "train mode"
    if not model.training:
        where, mode = (
            (norms + dropouts)[0],
            "eval mode, but this part acts as in training",
        )
    effect = f"{plural(len(dropouts), 'dropout layer')} on"
    if norms:
        effect = (
            "with other rows in its batch (its second half replaced by copies of its first row) "
            f"the same row's output changes by {100 * change:.2g} %"
        )
    yield Symptom(
        "serious",
        where,
        f"{mode}: {effect}",
        "model.eval() before predicting; a norm without running statistics needs "
        "track_running_stats=True, or use GroupNorm",
        "check 7, mistake 3",
    )


def normalized_output(run: ModelRun) -> Iterator[Symptom]:
    """Find a norm that makes the output (B, classes); features may end in one."""
    if run.last is not None and norm_kind(run.last.module) and run.output.dim() == 2:
        yield Symptom(
            "warning",
            run.last.path,
            f"the output {tuple(run.output.shape)} comes straight from a norm, so its scale is "
            "fixed: fine for features, not for logits or a regression",
            "no norm behind the last linear layer",
            "when not to, 1",
        )
