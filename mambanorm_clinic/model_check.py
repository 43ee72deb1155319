"""`check_model`: find the faults that `diagnose` finds, and mistakes with norms.

The checks are those of the guide (source S4); its checks 2, 3 and 10 ask what the model is for, so
`recommend` answers them. Norms are recognized by their classes and judged by their effect: each is
run again on its input together with other rows, and on other inputs. To find the module before a
norm, tensors are traced by their memory, so F.relu, .contiguous() and pad_packed_sequence between
the two hide it.
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
# Modules that are skipped when the module before a norm is searched.
TRANSPARENT = (DROPOUTS, nn.Flatten, nn.Unflatten, nn.Identity, nn.Softmax, nn.LogSoftmax)
ACTIVATIONS = re.compile("ReLU|ELU|GELU|SiLU|Tanh|Sigmoid|Hardswish|Softplus|Mish")
# Two outputs differ if their relative change is above this. Rounding changes them less.
SMALLEST_CHANGE = 1e-5
# A norm is constant if its outputs for noise and for −noise differ by less than this, times the
# gain.
CONSTANT = 1e-3


def norm_kind(module: nn.Module) -> str:
    """Return BN, IN, GN, LN, RMSN, or the class name of another norm of this kit; "" for no norm.

    Norms of other libraries are recognized by the names of their classes. A module with children is
    no norm, unless its class is derived from a norm of torch (as timm's norms with an activation).
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
    """One call of a module.

    inputs: the inputs, stored for norms only. source: the call of the module that made the input,
    None if it is not known. shape: the shape of the input.
    """

    path: str
    module: nn.Module
    inputs: list
    source: ModuleRun | None
    shape: tuple[int, ...] = ()

    def output_for(self, inputs: list) -> Tensor:
        """Return the module's output for other inputs, in float64."""
        return first_tensor(self.module(*inputs)).double()


@torch.no_grad()
def mixes_rows(norm: ModuleRun) -> bool:
    """Return True if the norm's output for a row depends on the other rows of the batch."""
    try:
        more_rows = map_tensors(add_rows, norm.inputs)
        return differ(norm.output_for(norm.inputs), norm.output_for(more_rows))
    except (ValueError, RuntimeError):  # the number of rows is fixed, or too small for training
        return False


def differ(one: Tensor, other: Tensor) -> bool:
    """Return True if two outputs differ by more than rounding errors, in the rows of the first."""
    change = float((other[: len(one)] - one).abs().max())
    return change > SMALLEST_CHANGE * float(one.abs().max().clamp(min=1e-3))


def add_rows(x: Tensor) -> Tensor:
    """Return a tensor with twice as many rows; in a float tensor the new rows have new values."""
    return torch.cat([x, 1.7 * x.flip(0) + 0.3 if x.is_floating_point() else x])


def replace_second_half(x: Tensor) -> Tensor:
    """Return a tensor with the second half of its rows replaced by copies of the first row."""
    half = len(x) // 2
    return torch.cat([x[:half], x[:1].expand_as(x[half:])])


class ModelRun:
    """One forward pass through a model.

    norms: the calls of all norms. output: the model's output. last: the call of the module that
    made the output, None if it is not known.
    """

    def __init__(self, model: nn.Module, batch: object):
        self.norms: list[ModuleRun] = []
        self._outputs: list[Tensor | None] = []  # kept, so that their memory is not used again
        # maps the memory of an output to its call, so that views of the output are recognized
        self._made_by: dict[int, ModuleRun | None] = {}
        hooks = inspect_model(model, on_input=lambda *_: None, on_output=self._on_output)
        with hooks, torch.no_grad():
            self.output = first_tensor(call_model(model, batch))
        self.last = self._made_by.get(memory_of(self.output))

    def _on_output(self, path: str, module: nn.Module, inputs: list, output: object) -> None:
        x = first_tensor(inputs)
        y = first_tensor(output)
        is_norm = bool(norm_kind(module))
        source = self._made_by.get(memory_of(x))
        shape = () if x is None else tuple(x.shape)
        run = ModuleRun(path, module, inputs if is_norm else [], source, shape)
        self._outputs.append(y)
        if is_norm and x is not None:
            self.norms.append(run)
        if is_norm or not list(module.children()):
            self._made_by[memory_of(y)] = source if isinstance(module, TRANSPARENT) else run


def memory_of(value: Tensor | None) -> int:
    """Return the address of a tensor's storage, or a unique number if it has none."""
    if value is None or value.layout != torch.strided or not value.numel():
        return id(value)
    return value.untyped_storage().data_ptr()


def check_model(model: nn.Module, batch: object, *, evaluating: bool = False) -> Symptoms:
    """Return the faults of a model on one batch, the worst first.

    These are the faults that `diagnose` finds and mistakes with norms. batch: as for `diagnose`.
    evaluating: True if the model is to predict, False if it is to be trained. The model is not
    changed. Raises the errors of `diagnose`.
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
    """Find BatchNorm that is trained on batches of fewer than 8 rows (check 1)."""
    small = [norm for norm in norms if norm.shape[0] < SMALL_BATCH and mixes_rows(norm)]
    if small:
        n = small[0].shape[0]
        yield Symptom(
            "serious" if n <= 2 else "warning",
            small[0].path,
            f"BatchNorm is trained on batches of {n} ({plural(len(small), 'such norm')})",
            "GroupNorm, or LN; or larger batches; or freeze the statistics of a pre-trained model",
            "check 1, mistake 1",
        )


def order_of_norm(norm: ModuleRun) -> Iterator[Symptom]:
    """Find the order convolution, activation, norm (check 4)."""
    source = norm.source
    if source is None or source.source is None or norm_kind(norm.module) not in ("BN", "IN", "GN"):
        return
    activation = type(source.module).__name__
    layer = source.source.module
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
    """Find a norm whose output is the same for all inputs, because each statistic is computed from
    one value; and GroupNorm with one channel per group.

    A norm whose gain is initialized to 0 is not reported.
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
            "no norm here, or a norm whose statistics are computed from more values (positions, "
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
    """Find logits of earlier positions that change if the last id of each row is changed.

    Only models from ids (B, L) to logits (B, L, V) are checked, and no masked language models.
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
        f"the logits of earlier positions change by {100 * change:.2g} % if the last id is "
        f"changed: the model sees the ids that it is to predict{exception}",
        "norms of each token (LN, RMSN) and causal layers; statistics or sums over L only up to "
        "each position",
        "measured here",
    )


def outputs_for(model: nn.Module, *batches: object) -> list[Tensor]:
    """Return the model's outputs for several batches, with the same dropout masks, in float64."""
    outputs = []
    for batch in batches:
        torch.manual_seed(0)
        outputs.append(first_tensor(call_model(model, batch), skip_integers=True).double())
    return outputs


def unused_statistics(model: nn.Module, evaluating: bool) -> Iterator[Symptom]:
    """Find norms that use running statistics before any batch has updated them (check 6)."""
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
    """Find a model that is to predict, but whose output for a row depends on the other rows of the
    batch or on dropout (check 7).
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
    where = "" if model.training else [*norms, *dropouts][0]
    mode = "train mode" if model.training else "eval mode, but this part acts as in training"
    effect = f"{plural(len(dropouts), 'dropout layer')} on"
    if norms:
        effect = (
            f"the output for a row changes by {100 * change:.2g} % with other rows in the batch "
            "(its second half replaced by copies of its first row)"
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
    """Find an output (B, classes) that comes straight from a norm."""
    if run.last is not None and norm_kind(run.last.module) and run.output.dim() == 2:
        yield Symptom(
            "warning",
            run.last.path,
            f"the output {tuple(run.output.shape)} comes straight from a norm, so its scale is "
            "fixed: fine for features, not for logits or a regression",
            "no norm behind the last linear layer",
            "when not to, 1",
        )
