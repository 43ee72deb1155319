"""`check_model`: the guide's checklist (S4) on a real model: what `diagnose` finds, and what is
wrong with the norms.

Lines 2, 3 and 10 of the checklist ask what one means to build: `recommend` answers them. What
stands before a norm is known where it is a module whose output arrives unchanged or as a view;
behind F.relu, .contiguous() or pad_packed_sequence it is not. Norms are found by their classes, and
judged by what they do: each is run again on its input beside other rows, and on other inputs. That
a model is to transfer style cannot be seen: mistake 5 is a note on every model from image to image,
and a warning only where its class is named so.
"""

from __future__ import annotations

import math
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
from mambanorm_clinic.calling import call, first_tensor, inspected, preserve_random_state, split
from mambanorm_clinic.diagnosis import diagnose
from mambanorm_clinic.findings import Symptom, Symptoms
from mambanorm_study.basics.settings import SMALL_BATCH
from mambanorm_study.basics.text import plural

BY_NAME = {
    "BatchNorm": "BN",
    "InstanceNorm": "IN",
    "GroupNorm": "GN",
    "LayerNorm": "LN",
    "RMSNorm": "RMSN",
}
TORCHS = (batchnorm._NormBase, instancenorm._InstanceNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
DROPOUTS = nn.modules.dropout._DropoutNd
SEEN_THROUGH = (DROPOUTS, nn.Flatten, nn.Unflatten, nn.Identity, nn.Softmax, nn.LogSoftmax)
WEIGHTED = (nn.Linear, nn.modules.conv._ConvNd)
ACTIVATIONS = re.compile("ReLU|ELU|GELU|SiLU|Tanh|Sigmoid|Hardswish|Softplus|Mish")
MOVED = 1e-5
"""Change by size above which an output is told to depend on something: rounding moves it less."""
DEEP = 12
"""Layers from which the guide calls post-norm hard to train."""
OTHERS = "its second half replaced by copies of its first row"


def norm_kind(module: nn.Module) -> str:
    """BN, IN, GN, LN, RMSN or the class of another norm of this kit; "" for what is none. Norms of
    other houses are known by the name of their class; those that are torch's may have modules
    inside, as timm's with an activation."""
    own = type(module).__name__
    if isinstance(module, Norm):
        return "" if own in ("NoNorm", "Scale") else BY_NAME.get(own, own)
    found = re.search("|".join(BY_NAME), " ".join(kind.__name__ for kind in type(module).__mro__))
    return (
        BY_NAME[found[0]]
        if found and (isinstance(module, TORCHS) or not list(module.children()))
        else ""
    )


@dataclass
class Made:
    """A module as it ran: what went in, and what made that."""

    path: str
    module: nn.Module
    given: list
    behind: Made | None

    @property
    def shape(self) -> tuple[int, ...]:
        x = first_tensor(self.given)
        return () if x is None else tuple(x.shape)

    def again(self, given: list) -> Tensor:
        return first_tensor(self.module(*given)).double()


@torch.no_grad()
def of_batch(norm: Made, training: bool | None = None) -> bool:
    """Return True if a row's output depends on the other rows of the batch, in the norm's mode or
    in another."""
    mode = norm.module.training
    try:
        norm.module.train(mode if training is None else training)
        return differ(norm.again(norm.given), norm.again(beside(norm.given)))
    except (
        ValueError,
        RuntimeError,
    ):  # one that takes no further rows, or no single one in training
        return False
    finally:
        norm.module.train(mode)


def differ(one: Tensor, other: Tensor) -> bool:
    """Return True if two outputs differ by more than rounding, in the rows that both have."""
    return float((other[: len(one)] - one).abs().max()) > MOVED * float(
        one.abs().max().clamp(min=1e-3)
    )


def beside(given: object) -> object:
    """Return the input with as many further rows behind it, of other values if they are real
    numbers."""
    if isinstance(given, Tensor) and given.dim():
        return torch.cat([given, 1.7 * given.flip(0) + 0.3 if given.is_floating_point() else given])
    return type(given)(map(beside, given)) if isinstance(given, tuple | list) else given


class Seen:
    """What one pass has shown. norms: every norm as it ran; last: the module that made the output;
    post: the paths of layers with attention whose output comes straight from a norm in them."""

    def __init__(self, model: nn.Module, batch: object):
        self.norms, self.post, self._inside, self._kept = [], [], [], []
        self._made: dict[
            int, Made
        ] = {}  # by the memory of what came out, so that a view is known as well
        with inspected(model, entered=self._entered, left=self._left), torch.no_grad():
            self.output = first_tensor(call(model, batch))
        self.last = self._made.get(memory(self.output))

    def _entered(self, path: str, module: nn.Module, given: list) -> None:
        x = first_tensor(given)
        this = Made(path, module, given if norm_kind(module) else [], self._made.get(memory(x)))
        self._inside.append(this)
        if x is not None and norm_kind(module):
            self.norms.append(this)

    def _left(self, path: str, module: nn.Module, output: object) -> None:
        this, y = self._inside.pop(), first_tensor(output)
        self._kept.append(y)  # so that no other tensor gets its memory
        where = memory(y)
        if norm_kind(module) or not list(module.children()):
            if where:
                self._made[where] = this.behind if isinstance(module, SEEN_THROUGH) else this
            return
        maker, attends = (
            self._made.get(where),
            any("Attention" in type(part).__name__ for part in module.modules()),
        )
        if maker is not None and norm_kind(maker.module) and attends:
            self.post.append(path)


def memory(value: Tensor | None) -> int:
    """Return the address of a tensor's storage, 0 if it has none."""
    strided = value is not None and value.layout == torch.strided and value.numel()
    return value.untyped_storage().data_ptr() if strided else 0


def check_model(model: nn.Module, batch: object, *, evaluating: bool = False) -> Symptoms:
    """What is wrong with a model on one batch, the worst first: what `diagnose` finds, and the
    guide's checks of its norms. batch and errors: as of `diagnose`. evaluating: whether the model
    is about to predict. It stays as it is."""
    found, told = diagnose(model, batch).findings, [*fresh_statistics(model, evaluating)]
    with preserve_random_state(), preserve_state(model):
        seen = Seen(model, batch)
        if model.training and not evaluating:
            told += [*small_batches(seen.norms), *post_norm(seen.post)]
        told += [
            *placement(seen.norms),
            *groups(seen.norms),
            *constant(seen.norms),
            *recurrent(seen.norms),
        ]
        told += [
            *on_the_output(seen.last, seen.output),
            *style(model, batch, seen),
            *looks_ahead(model, batch),
        ]
        told += forgotten_eval(model, batch, seen.norms) if evaluating else []
    return Symptoms([*found, *told], found.skipped)


def small_batches(norms: list[Made]) -> Iterator[Symptom]:
    """Check 1: BatchNorm that learns from fewer than 8 rows."""
    small = [norm for norm in norms if norm.shape[0] < SMALL_BATCH and of_batch(norm)]
    if small:
        n = small[0].shape[0]
        found = f"BatchNorm learns from batches of {n} ({plural(len(small), 'such norm')})"
        mend = (
            "GroupNorm, or LN; or larger batches; or freeze the statistics of a pre-trained model"
        )
        yield Symptom(
            "serious" if n <= 2 else "warning", small[0].path, found, mend, "check 1, mistake 1"
        )


def recurrent(norms: list[Made]) -> Iterator[Symptom]:
    """Mistake 2: BatchNorm takes in all time steps of an LSTM, a GRU or an RNN."""
    for norm in norms:
        behind = norm.behind and norm.behind.module
        if (
            isinstance(behind, nn.RNNBase)
            and len(norm.shape) == 3
            and of_batch(norm, training=True)
        ):
            found = f"BatchNorm stands behind an {type(behind).__name__}: its statistics mix rows and time steps, so "
            found += "that those of other lengths do not fit"
            yield Symptom("warning", norm.path, found, "LayerNorm over each time step", "mistake 2")


def post_norm(paths: list[str]) -> Iterator[Symptom]:
    """Mistake 4: many layers with attention that each end in a norm."""
    layers = Counter(path.rpartition(".")[0] for path in paths)
    for parent, count in layers.items():
        if count >= DEEP:
            found = f"post-norm: {count} layers with attention end in a norm, which is hard to train from {DEEP} on"
            mend = "pre-norm (norm_first=True, with a last norm); or warm up, or begin from trained weights"
            yield Symptom("warning", parent, found, mend, "mistake 4")


def style(model: nn.Module, batch: object, seen: Seen) -> Iterator[Symptom]:
    """Mistake 5: BatchNorm in a model from image to image, where it is to transfer style."""
    x, named = (
        first_tensor(split(batch)[0]),
        bool(re.search("style", type(model).__name__, re.IGNORECASE)),
    )
    if x is None or x.dim() != 4 or seen.output.shape != x.shape:
        return
    if norm := next((norm for norm in seen.norms if of_batch(norm, training=True)), None):
        found = "BatchNorm in a model from image to image: if it is to transfer style, styles mix within a batch"
        mend = "InstanceNorm to transfer style; to denoise or restore, BatchNorm may stay"
        yield Symptom("warning" if named else "note", norm.path, found, mend, "mistake 5")


@torch.no_grad()
def constant(norms: list[Made]) -> Iterator[Symptom]:
    """A norm whose output is the same whatever comes in, as its statistics are taken over one
    value. Not one whose gain begins at 0; torch's GroupNorm is told by `groups`."""
    for norm in norms:
        gain = getattr(norm.module, "weight", None)
        if isinstance(norm.module, nn.GroupNorm) or (isinstance(gain, Tensor) and not gain.any()):
            continue
        if not any(
            differ(norm.again(norm.given), norm.again(given))
            for given in (turned(norm.given), drawn(norm.given))
        ):
            found = f"{norm_kind(norm.module)} of {norm.shape} puts out the same whatever comes in"
            mend = "no norm here, or one whose statistics are taken over more values (positions, channels)"
            yield Symptom("serious", norm.path, found, mend, "measured here")


@torch.no_grad()
def looks_ahead(model: nn.Module, batch: object) -> Iterator[Symptom]:
    """Earlier logits of a token model, ids (B, L) → (B, L, V), that move when the last id of each
    row does."""
    names = " ".join(kind.__name__ for kind in type(model).__mro__)
    ids = first_tensor(split(batch)[0])
    if (
        ids is None
        or ids.dim() != 2
        or ids.is_floating_point()
        or ids.shape[1] < 2
        or "MaskedLM" in names
    ):
        return
    low, high, last = ids.min(), ids.max(), ids[:, -1]
    changed = torch.cat([ids[:, :-1], torch.where(last == low, high, low)[:, None]], dim=1)
    outputs = []
    for value in (ids, changed):
        torch.manual_seed(0)  # dropout draws the same both times
        y = first_tensor(call(model, replaced(batch, ids, value)), real=True)
        if y.dim() != 3 or y.shape[:2] != ids.shape or y.shape[2] <= high or not y.isfinite().all():
            return
        outputs.append(y[:, :-1].double())
    if differ(*outputs):
        causal = re.search("CausalLM|LMHead", names) or any(
            isinstance(m, LanguageModel) for m in model.modules()
        )
        change = float((outputs[1] - outputs[0]).abs().max() / outputs[0].abs().max())
        found = f"the logits of earlier positions move by {100 * change:.2g} % when the last id changes: what is to be "
        found += "predicted is seen" + (
            "" if causal else ", which is fine for a masked model or a tagger only"
        )
        mend = "norms of each token (LN, RMSN) and causal layers; statistics or sums over L only up to each position"
        yield Symptom("serious" if causal else "warning", "", found, mend, "measured here")


def replaced(batch: object, ids: Tensor, value: Tensor) -> object:
    """Return the batch's input with other ids."""
    given, _ = split(batch)
    return (
        {k: value if part is ids else part for k, part in given.items()}
        if isinstance(given, dict)
        else value
    )


def placement(norms: list[Made]) -> Iterator[Symptom]:
    """Check 4: convolution → activation → norm, where norm → activation is meant."""
    for norm in norms:
        activation = norm.behind
        if (
            norm_kind(norm.module) not in ("BN", "IN", "GN")
            or activation is None
            or activation.behind is None
        ):
            continue
        name = type(activation.module).__name__
        if ACTIVATIONS.search(name) and isinstance(activation.behind.module, WEIGHTED):
            found = (
                f"the norm stands behind the activation ({name}), and that behind the convolution"
            )
            mend = (
                "convolution, norm, activation; or, in residual nets, norm, activation, convolution"
            )
            yield Symptom("note", norm.path, found, mend, "check 4")


def fresh_statistics(model: nn.Module, evaluating: bool) -> Iterator[Symptom]:
    """Check 6: running statistics that no batch has updated, of a norm that uses them."""
    tracked = {
        path: m for path, m in model.named_modules() if getattr(m, "running_mean", None) is not None
    }
    used = {
        path: m for path, m in tracked.items() if evaluating or (model.training and not m.training)
    }
    if fresh := [
        path for path, m in used.items() if not m.running_mean.any() and (m.running_var == 1).all()
    ]:
        found = f"{len(fresh)} of {len(tracked)} norms have seen no batch: they evaluate with mean 0 and variance 1"
        mend = "train first, load the buffers with the weights, or run some batches in train mode"
        yield Symptom("serious", fresh[0], found, mend, "check 6")


@torch.no_grad()
def forgotten_eval(model: nn.Module, batch: object, ran: list[Made]) -> list[Symptom]:
    """Check 7: a model that is to predict depends on who else is in the batch, or draws at
    random."""
    random = [
        path for path, m in model.named_modules() if isinstance(m, DROPOUTS) and m.p and m.training
    ]
    change = 0.0
    if norms := list(dict.fromkeys(norm.path for norm in ran if of_batch(norm))):
        outputs = []
        for given in (batch, with_mates(batch)):
            torch.manual_seed(0)  # dropout draws the same both times
            y = first_tensor(call(model, given)).double()
            outputs.append(y[: len(y) // 2] if y.dim() else y)
        change = float((outputs[1] - outputs[0]).norm() / outputs[0].norm().clamp(min=1e-12))
    norms = norms if change > MOVED else []
    if not norms and not random:
        return []
    mode, where, mend = "train mode", "", "model.eval() before predicting"
    if not model.training:
        mode, where = "the model is in eval mode, this part is not", (norms + random)[0]
        if norms and not model.get_submodule(where).training:
            mode, mend = (
                "eval mode, but without running statistics",
                "track_running_stats=True, or GroupNorm",
            )
    found = f"{plural(len(random), 'dropout layer')} on"
    if norms:
        found = f"with other rows in its batch ({OTHERS}) the same row's output changes by {100 * change:.2g} %"
    return [Symptom("serious", where, f"{mode}: {found}", mend, "check 7, mistake 3")]


def turned(given: object) -> list:
    """Return the input with the sign of its real numbers changed."""
    return [-x if isinstance(x, Tensor) and x.is_floating_point() else x for x in given]


def drawn(given: object) -> list:
    """Return the input with its real numbers drawn at random."""
    return [
        torch.randn_like(x) if isinstance(x, Tensor) and x.is_floating_point() else x for x in given
    ]


def with_mates(batch: object) -> object:
    """The batch with the second half of its rows replaced by copies of the first row."""
    if isinstance(batch, Tensor) and batch.dim():
        half = len(batch) // 2
        return torch.cat([batch[:half], batch[:1].expand_as(batch[half:])])
    if isinstance(batch, dict):
        return {name: with_mates(part) for name, part in batch.items()}
    return tuple(map(with_mates, batch)) if isinstance(batch, tuple | list) else batch


def on_the_output(last: Made | None, output: Tensor | None) -> Iterator[Symptom]:
    """When not to normalize, case 1: a norm makes the (B, classes) that the model puts out.
    Features may end in one."""
    if last is not None and norm_kind(last.module) and output.dim() == 2:
        found = f"the output {tuple(output.shape)} comes straight from a norm, so its scale is fixed: fine for "
        found += "features, not for logits or what is regressed"
        yield Symptom(
            "warning", last.path, found, "no norm behind the last linear layer", "when not to, 1"
        )


def groups(norms: list[Made]) -> Iterator[Symptom]:
    """torch's GroupNorm with a statistic over one or two values, or with one channel in each
    group."""
    for norm in norms:
        if isinstance(norm.module, nn.GroupNorm):
            g, c = norm.module.num_groups, norm.module.num_channels
            values = c // g * math.prod(norm.shape[2:])
            if values <= 2:
                found = f"each statistic is taken over {plural(values, 'value')}: hardly anything is left of the input"
                yield Symptom(
                    "serious",
                    norm.path,
                    found,
                    "fewer groups, or a norm over all channels",
                    "GroupNorm",
                )
            elif g > 1 and g == c:
                found = f"{g} groups of one channel each: this is InstanceNorm"
                yield Symptom(
                    "note", norm.path, found, "fewer groups, or say InstanceNorm", "GroupNorm"
                )
