"""`check_model`: find mistakes in the use of norms, besides the faults that `diagnose` finds.

The checks are numbered as in the guide S4 of docs/sources.md. Checks 2, 3 and 10 depend on what
the model is used for, so they are left to `recommend` (mambanorm_study). Norms are recognized by
their classes. To see what a norm does, `check_model` runs the norm again, on its input with added
rows and on other inputs. To find the module before a norm, `check_model` compares the memory
addresses of tensors. This fails if a function that is not a module, such as F.relu, .contiguous()
or pad_packed_sequence, is called between the module and the norm.
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

# Part of a norm's class name → the kind of norm.
KINDS = {
    "BatchNorm": "BN",
    "InstanceNorm": "IN",
    "GroupNorm": "GN",
    "LayerNorm": "LN",
    "RMSNorm": "RMSN",
}
TORCH_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
DROPOUTS = nn.modules.dropout._DropoutNd
# Modules that are skipped in the search for the module before a norm.
TRANSPARENT = (DROPOUTS, nn.Flatten, nn.Unflatten, nn.Identity, nn.Softmax, nn.LogSoftmax)
ACTIVATIONS = re.compile("ReLU|ELU|GELU|SiLU|Tanh|Sigmoid|Hardswish|Softplus|Mish")
# Two outputs differ if their relative change is above this value. Rounding errors are smaller.
SMALLEST_CHANGE = 1e-5
# A norm is called constant if its outputs for noise and for −noise differ by less than this value
# times the norm's gain.
CONSTANT_LIMIT = 1e-3


def norm_kind(module: nn.Module) -> str:
    """Return "BN", "IN", "GN", "LN" or "RMSN" for a norm of these kinds, the class name for another
    norm of this kit, and "" for a module that is not a norm.

    A norm of another library is recognized by the names of its class and base classes. A module
    with children does not count as a norm, unless its class is derived from a norm of torch, such
    as timm's norms with an activation.
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
    """One call of a module in a forward pass.

    inputs: a list of the values of all arguments; [] if the module is not a norm. source: the
    ModuleRun of the module that computed the input, None if this module is not known. shape: the
    shape of the input.
    """

    path: str
    module: nn.Module
    inputs: list
    source: ModuleRun | None
    shape: tuple[int, ...] = ()

    def output_for(self, inputs: list) -> Tensor:
        """Run the module on the given inputs, and return its output in float64."""
        return first_tensor(self.module(*inputs)).double()


@torch.no_grad()
def mixes_rows(norm: ModuleRun) -> bool:
    """Return True if the norm's output for one row depends on the other rows of the batch."""
    try:
        more_rows = map_tensors(add_rows, norm.inputs)
        return differ(norm.output_for(norm.inputs), norm.output_for(more_rows))
    except (
        ValueError,
        RuntimeError,
    ):  # the norm takes no other number of rows, or has too few values to train on
        return False


def differ(output: Tensor, other_output: Tensor) -> bool:
    """Return True if two outputs differ by more than rounding errors.

    If other_output has more rows than output, the additional rows are ignored.
    """
    change = float((other_output[: len(output)] - output).abs().max())
    return change > SMALLEST_CHANGE * float(output.abs().max().clamp(min=1e-3))


def add_rows(x: Tensor) -> Tensor:
    """Return x followed by new rows, as many as x has.

    In a float tensor the new rows differ from the rows of x; in an integer tensor they are copies.
    """
    return torch.cat([x, 1.7 * x.flip(0) + 0.3 if x.is_floating_point() else x])


def replace_second_half(x: Tensor) -> Tensor:
    """Return x with each row in the second half replaced by a copy of the first row of x."""
    half = len(x) // 2
    return torch.cat([x[:half], x[:1].expand_as(x[half:])])


class ModelRun:
    """The record of one forward pass through a model. The constructor runs this pass.

    norms: one ModuleRun per call of a norm. output: the first tensor of the model's output. last:
    the ModuleRun of the module that computed this output, None if this module is not known.
    """

    def __init__(self, model: nn.Module, batch: object):
        self.norms: list[ModuleRun] = []
        # keeps the outputs alive, so that no memory address is used twice
        self._outputs: list[Tensor | None] = []
        # maps the memory address of an output and its views to the call that computed the output
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
    """Return the memory address of a tensor's storage, or `id(value)` if there is no address."""
    if value is None or value.layout != torch.strided or not value.numel():
        return id(value)
    return value.untyped_storage().data_ptr()


def check_model(model: nn.Module, batch: object, *, evaluating: bool = False) -> Symptoms:
    """Return the faults that `diagnose` finds in a model, and mistakes in the use of norms.

    The result is one list, the worst fault first. batch: as for `diagnose`. evaluating: True if the
    model is about to predict, False if it is about to be trained. The model is not changed. Raises
    the same errors as `diagnose`.
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
    """Yield one Symptom if norms that mix rows, such as BatchNorm, train on fewer than 8 rows.

    norms: all calls of norms in one pass. This is check 1 of the guide (S4 in
    docs/sources.md).
    """
    small_runs = [norm for norm in norms if norm.shape[0] < SMALL_BATCH and mixes_rows(norm)]
    if small_runs:
        n = small_runs[0].shape[0]
        yield Symptom(
            "serious" if n <= 2 else "warning",
            small_runs[0].path,
            f"BatchNorm is trained on batches of {n} ({plural(len(small_runs), 'such norm')})",
            "use GroupNorm, LN or larger batches; or freeze the statistics of a pre-trained model",
            "check 1, mistake 1",
        )


def order_of_norm(norm: ModuleRun) -> Iterator[Symptom]:
    """Yield a Symptom if the order is convolution or nn.Linear, activation, norm (BN, IN or GN).

    This is check 4 of the guide (source S4 in docs/sources.md).
    """
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
            "use the order convolution, norm, activation or, in residual nets, norm, activation, "
            "convolution",
            "check 4",
        )


@torch.no_grad()
def lost_input(norm: ModuleRun) -> Iterator[Symptom]:
    """Yield a Symptom if a norm loses its input, or if each group of a GroupNorm is one channel.

    A norm loses its input if its output is the same for every input. This happens if each statistic
    is computed from a single value. A norm whose gain is initialized to 0 yields no Symptom.
    """
    gain = getattr(norm.module, "weight", None)
    gain_size = float(gain.abs().max()) if isinstance(gain, Tensor) else 1.0
    noise = map_tensors(lambda x: torch.randn_like(x) if x.is_floating_point() else x, norm.inputs)
    negated_noise = map_tensors(lambda x: -x if x.is_floating_point() else x, noise)
    change = float((norm.output_for(noise) - norm.output_for(negated_noise)).abs().max())
    if change < CONSTANT_LIMIT * gain_size:
        yield Symptom(
            "serious",
            norm.path,
            f"{norm_kind(norm.module)} of {norm.shape} returns the same output for every input",
            "remove this norm, or use one whose statistics are computed from more values (over "
            "positions, over channels, or with fewer groups)",
            "measured on this batch",
        )
    elif isinstance(norm.module, nn.GroupNorm) and (
        1 < norm.module.num_groups == norm.module.num_channels
    ):
        yield Symptom(
            "note",
            norm.path,
            f"{norm.module.num_groups} groups of one channel each: this is InstanceNorm",
            "use fewer groups, or nn.InstanceNorm to make the choice visible",
            "GroupNorm",
        )


@torch.no_grad()
def sees_ahead(model: nn.Module, batch: object, logits: Tensor) -> Iterator[Symptom]:
    """Yield a Symptom if a model's logits at earlier positions depend on the last id of each row.

    Only models that map ids (B, L) to logits (B, L, V) are checked, except masked language models.
    logits: the model's output for the batch.
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
    before, after = (y[:, :-1] for y in outputs_for(model, inputs, changed_inputs))
    if not differ(before, after):
        return
    is_causal = re.search("CausalLM|LMHead", classes) or any(
        isinstance(part, LanguageModel) for part in model.modules()
    )
    change = float((after - before).abs().max() / before.abs().max())
    exception = "" if is_causal else ", which is fine only for a masked model or a tagger"
    yield Symptom(
        "serious" if is_causal else "warning",
        "",
        f"the logits of earlier positions change by {100 * change:.2g} % if the last id is "
        f"changed: the model sees the ids that it is to predict{exception}",
        "use norms over each token (LN, RMSN) and causal layers; compute statistics or sums over L "
        "only up to the current position",
        "measured on this batch",
    )


def outputs_for(model: nn.Module, *batches: object) -> list[Tensor]:
    """Return a list of the model's outputs, in float64, one per batch.

    The random seed is the same for every batch, so that dropout masks are equal.
    """
    outputs = []
    for batch in batches:
        torch.manual_seed(0)
        outputs.append(first_tensor(call_model(model, batch), skip_integers=True).double())
    return outputs


def unused_statistics(model: nn.Module, evaluating: bool) -> Iterator[Symptom]:
    """Yield one Symptom if norms would use running statistics that no batch has updated yet.

    This is check 6 of the guide (source S4 in docs/sources.md).
    """
    norms = {
        path: module
        for path, module in model.named_modules()
        if getattr(module, "running_mean", None) is not None
    }
    unused_paths = [
        path
        for path, module in norms.items()
        if (evaluating or (model.training and not module.training))
        and not module.running_mean.any()
        and (module.running_var == 1).all()
    ]
    if unused_paths:
        yield Symptom(
            "serious",
            unused_paths[0],
            f"{len(unused_paths)} of {len(norms)} norms have seen no batch: in evaluation they use "
            "mean 0 and variance 1",
            "train first, load the buffers with the weights, or run some batches in train mode",
            "check 6",
        )


@torch.no_grad()
def training_mode(model: nn.Module, batch: object, runs: list[ModuleRun]) -> Iterator[Symptom]:
    """Yield one Symptom if the output for a row depends on other rows of the batch or on dropout.

    This is check 7 of the guide (source S4 in docs/sources.md), for a model before it predicts.
    runs: all calls of norms in one pass.
    """
    norms = list(dict.fromkeys(run.path for run in runs if mixes_rows(run)))
    other_rows = map_tensors(replace_second_half, batch)
    before, after = (y[: len(y) // 2] for y in outputs_for(model, batch, other_rows))
    change = relative_change(after, before)
    norms = norms if change > SMALLEST_CHANGE else []
    dropouts = [
        path
        for path, module in model.named_modules()
        if isinstance(module, DROPOUTS) and module.p and module.training
    ]
    if not norms and not dropouts:
        return
    where = "" if model.training else [*norms, *dropouts][0]
    mode = "train mode" if model.training else "eval mode, but this module acts as in training"
    effect = f"{plural(len(dropouts), 'dropout layer')} on"
    if norms:
        effect = (
            f"the output for a row changes by {100 * change:.2g} % if other rows of the batch "
            "change (the second half of the batch was replaced by copies of the first row)"
        )
    yield Symptom(
        "serious",
        where,
        f"{mode}: {effect}",
        "call model.eval() before predicting; if a norm has no running statistics, create it with "
        "track_running_stats=True, or use GroupNorm",
        "check 7, mistake 3",
    )


def normalized_output(run: ModelRun) -> Iterator[Symptom]:
    """Yield a Symptom if the model's output (B, classes) is directly the output of a norm."""
    if run.last is not None and norm_kind(run.last.module) and run.output.dim() == 2:
        yield Symptom(
            "warning",
            run.last.path,
            f"the output {tuple(run.output.shape)} comes straight from a norm, so the scale of the "
            "output is fixed: fine for features, not for logits or a regression",
            "use no norm after the last linear layer",
            "when not to, 1",
        )
