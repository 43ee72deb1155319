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
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules import batchnorm, instancenorm

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
from mambanorm_clinic.mixers import parent_of
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
TORCH_NORMS = (
    batchnorm._NormBase,
    instancenorm._InstanceNorm,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
)
DROPOUTS = nn.modules.dropout._DropoutNd
# Modules whose output counts as that of the module before them.
TRANSPARENT = (DROPOUTS, nn.Flatten, nn.Unflatten, nn.Identity, nn.Softmax, nn.LogSoftmax)
WEIGHTED = (nn.Linear, nn.modules.conv._ConvNd)
ACTIVATIONS = re.compile("ReLU|ELU|GELU|SiLU|Tanh|Sigmoid|Hardswish|Softplus|Mish")
# Two outputs differ if their relative change is above this. Rounding changes them less.
SMALLEST_CHANGE = 1e-5
# A norm is constant if its output for noise and for −noise differ by less than this times its gain.
CONSTANT = 1e-3
# Number of layers from which the guide calls post-norm hard to train.
DEEP = 12
OTHER_ROWS = "its second half replaced by copies of its first row"


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

    inputs: kept for a norm. source: the run of the module that made its input.
    """

    path: str
    module: nn.Module
    inputs: list
    source: ModuleRun | None

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the input."""
        return tuple(first_tensor(self.inputs).shape)

    def output_for(self, inputs: list) -> Tensor:
        """Return the module's output in float64."""
        return first_tensor(self.module(*inputs)).double()


@torch.no_grad()
def mixes_rows(norm: ModuleRun, training: bool | None = None) -> bool:
    """Return True if a row's output depends on the other rows of the batch.

    training: the mode to test, None = the norm's own.
    """
    mode = norm.module.training
    try:
        norm.module.train(mode if training is None else training)
        more_rows = map_tensors(add_rows, norm.inputs)
        return differ(norm.output_for(norm.inputs), norm.output_for(more_rows))
    except (ValueError, RuntimeError):  # it takes no further rows, or in training no single row
        return False
    finally:
        norm.module.train(mode)


def differ(one: Tensor, other: Tensor) -> bool:
    """Return True if two outputs differ by more than rounding, in the rows that both have."""
    change = float((other[: len(one)] - one).abs().max())
    return change > SMALLEST_CHANGE * float(one.abs().max().clamp(min=1e-3))


def add_rows(x: Tensor) -> Tensor:
    """Return a tensor with twice as many rows; added rows of a float tensor have other values."""
    if not x.dim():
        return x
    return torch.cat([x, 1.7 * x.flip(0) + 0.3 if x.is_floating_point() else x])


def replace_second_half(x: Tensor) -> Tensor:
    """Return a tensor with the second half of its rows replaced by copies of the first row."""
    if not x.dim():
        return x
    half = len(x) // 2
    return torch.cat([x[:half], x[:1].expand_as(x[half:])])


class ModelRun:
    """One pass through a model.

    norms: every norm as it ran. last: the module that made the output. post_norm: the paths of
    layers with attention whose output comes straight from a norm in them.
    """

    def __init__(self, model: nn.Module, batch: object):
        self.norms: list[ModuleRun] = []
        self.post_norm: list[str] = []
        self._open: list[ModuleRun] = []
        self._outputs: list[Tensor | None] = []  # kept, so that no other tensor gets their memory
        # by the memory of the output, so that a view of it is recognized as well
        self._made_by: dict[int, ModuleRun | None] = {}
        with inspect_model(model, on_input=self._enter, on_output=self._leave), torch.no_grad():
            self.output = first_tensor(call_model(model, batch))
        self.last = self._made_by.get(memory_of(self.output))

    def _enter(self, path: str, module: nn.Module, inputs: list) -> None:
        x, is_norm = first_tensor(inputs), bool(norm_kind(module))
        source = self._made_by.get(memory_of(x))
        self._open.append(ModuleRun(path, module, inputs if is_norm else [], source))
        if x is not None and is_norm:
            self.norms.append(self._open[-1])

    def _leave(self, path: str, module: nn.Module, output: object) -> None:
        run, y = self._open.pop(), first_tensor(output)
        self._outputs.append(y)
        memory = memory_of(y)
        if norm_kind(module) or not list(module.children()):
            self._made_by[memory] = run.source if isinstance(module, TRANSPARENT) else run
            return
        maker = self._made_by.get(memory)
        attends = any("Attention" in type(part).__name__ for part in module.modules())
        if maker is not None and norm_kind(maker.module) and attends:
            self.post_norm.append(path)


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
            symptoms += [*small_batches(run.norms), *deep_post_norm(run.post_norm)]
        for norm in run.norms:
            symptoms += [*order_of_norm(norm), *lost_input(norm)]
        symptoms += [*normalized_output(run), *sees_ahead(model, batch)]
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


def deep_post_norm(paths: list[str]) -> Iterator[Symptom]:
    """Find many layers with attention that each end in a norm (mistake 4)."""
    for parent, count in Counter(map(parent_of, paths)).items():
        if count >= DEEP:
            yield Symptom(
                "warning",
                parent,
                f"post-norm: {count} layers with attention end in a norm, which is hard to train "
                f"from {DEEP} layers on",
                "pre-norm (norm_first=True, with a last norm); or a warm-up, or trained weights to "
                "begin with",
                "mistake 4",
            )


def order_of_norm(norm: ModuleRun) -> Iterator[Symptom]:
    """Find convolution → activation → norm, instead of norm → activation (check 4), and BatchNorm
    over all time steps of an LSTM, a GRU or an RNN (mistake 2).
    """
    before = norm.source.module if norm.source else None
    source = norm.source.source if norm.source else None
    name, kind = type(before).__name__, norm_kind(norm.module)
    is_weighted = source is not None and isinstance(source.module, WEIGHTED)
    if is_weighted and kind in ("BN", "IN", "GN") and ACTIVATIONS.search(name):
        yield Symptom(
            "note",
            norm.path,
            f"the order is convolution, activation ({name}), norm",
            "convolution, norm, activation; or, in residual nets, norm, activation, convolution",
            "check 4",
        )
    is_sequence = isinstance(before, nn.RNNBase) and len(norm.shape) == 3
    if is_sequence and mixes_rows(norm, training=True):
        yield Symptom(
            "warning",
            norm.path,
            f"BatchNorm follows an {name}: its statistics mix rows and time steps, so they do not "
            "fit sequences of another length",
            "LayerNorm over each time step",
            "mistake 2",
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
def sees_ahead(model: nn.Module, batch: object) -> Iterator[Symptom]:
    """Find earlier logits that change when the last id of each row does.

    It applies to token models, ids (B, L) → (B, L, V), that are not masked models.
    """
    classes = " ".join(cls.__name__ for cls in type(model).__mro__)
    ids = first_tensor(split_batch(batch)[0])
    is_tokens = ids is not None and ids.dim() == 2 and not ids.is_floating_point()
    if not is_tokens or ids.shape[1] < 2 or "MaskedLM" in classes:
        return
    other_ids = ids.clone()
    other_ids[:, -1] = torch.where(ids[:, -1] == ids.min(), ids.max(), ids.min())
    outputs = [earlier_logits(model, batch, ids, each) for each in (ids, other_ids)]
    if any(y is None for y in outputs) or not differ(*outputs):
        return
    is_causal = re.search("CausalLM|LMHead", classes) or any(
        isinstance(part, LanguageModel) for part in model.modules()
    )
    change = float((outputs[1] - outputs[0]).abs().max() / outputs[0].abs().max())
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


def earlier_logits(model: nn.Module, batch: object, ids: Tensor, other: Tensor) -> Tensor | None:
    """Return the logits (B, L − 1, V) of all positions but the last, with other ids in the batch.

    None if the output has another form or is not finite.
    """
    torch.manual_seed(0)  # so that dropout draws the same for all ids
    inputs = map_tensors(lambda x: other if x is ids else x, split_batch(batch)[0])
    y = first_tensor(call_model(model, inputs), floating=True)
    if y is None or y.dim() != 3 or y.shape[:2] != ids.shape or y.shape[2] <= ids.max():
        return None
    return y[:, :-1].double() if y.isfinite().all() else None


def unused_statistics(model: nn.Module, evaluating: bool) -> Iterator[Symptom]:
    """Find norms that use running statistics which no batch has updated (check 6)."""
    norms = dict(model.named_modules())
    norms = {p: m for p, m in norms.items() if getattr(m, "running_mean", None) is not None}
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
    change = change_with_other_rows(model, batch) if norms else 0.0
    norms = norms if change > SMALLEST_CHANGE else []
    dropouts = [
        path
        for path, module in model.named_modules()
        if isinstance(module, DROPOUTS) and module.p and module.training
    ]
    if not norms and not dropouts:
        return
    where, mode, advice = "", "train mode", "model.eval() before predicting"
    if not model.training:
        where, mode = (norms + dropouts)[0], "the model is in eval mode, this part is not"
        if norms and not model.get_submodule(where).training:
            mode = "eval mode, but without running statistics"
            advice = "track_running_stats=True, or GroupNorm"
    effect = f"{plural(len(dropouts), 'dropout layer')} on"
    if norms:
        effect = (
            f"with other rows in its batch ({OTHER_ROWS}) the same row's output changes by "
            f"{100 * change:.2g} %"
        )
    yield Symptom("serious", where, f"{mode}: {effect}", advice, "check 7, mistake 3")


def change_with_other_rows(model: nn.Module, batch: object) -> float:
    """Return the relative change of the first half's output when the other half is replaced."""
    outputs = []
    for rows in (batch, map_tensors(replace_second_half, batch)):
        torch.manual_seed(0)  # so that dropout draws the same both times
        y = first_tensor(call_model(model, rows)).double()
        outputs.append(y[: len(y) // 2] if y.dim() else y)
    return float((outputs[1] - outputs[0]).norm() / outputs[0].norm().clamp(min=1e-12))


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
