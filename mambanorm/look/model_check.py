"""`check_model`: the guide's checklist (S4) on a real model: what `diagnose` finds, and what is wrong with the norms.

Lines 2, 3 and 10 of the checklist ask what one means to build: `recommend` answers them. What stands before a norm is
known where it is a module; a function such as F.relu is not seen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mambanorm.basics.settings import SMALL_BATCH
from mambanorm.basics.text import plural
from mambanorm.look.diagnosis import diagnose
from mambanorm.look.findings import Symptom, Symptoms
from mambanorm.look.recording import as_it_was, call, first_tensor, inspected, left_as_found
from mambanorm.norms.base import Norm

BY_NAME = {"BatchNorm": "BN", "InstanceNorm": "IN", "GroupNorm": "GN", "LayerNorm": "LN", "RMSNorm": "RMSN"}
DROPOUTS = nn.modules.dropout._DropoutNd
SEEN_THROUGH = (DROPOUTS, nn.Flatten, nn.Unflatten, nn.Identity, nn.Softmax, nn.LogSoftmax)
WEIGHTED = (nn.Linear, nn.modules.conv._ConvNd)
ACTIVATIONS = re.compile("ReLU|ELU|GELU|SiLU|Tanh|Sigmoid|Hardswish|Softplus|Mish")
OTHERS = "its second half replaced by copies of its first row"


def norm_kind(module: nn.Module) -> str:
    """BN, IN, GN, LN, RMSN or the class of another norm of this kit; "" for what is none. Norms of other houses are
    known by the name of their class."""
    own = type(module).__name__
    if isinstance(module, Norm):
        return "" if own in ("NoNorm", "Scale") else BY_NAME.get(own, own)
    found = re.search("|".join(BY_NAME), " ".join(kind.__name__ for kind in type(module).__mro__))
    return BY_NAME[found[0]] if found and not list(module.children()) else ""


def of_batch(module: nn.Module) -> bool:
    """Whether it takes statistics over the batch, in the mode in which it is."""
    if norm_kind(module) != "BN" and not (isinstance(module, Norm) and hasattr(module, "running_mean")):
        return False
    return module.training or getattr(module, "running_mean", None) is None


@dataclass
class Made:
    """A module as it ran: the shape of its input, and what made that."""

    path: str
    module: nn.Module
    shape: tuple[int, ...]
    behind: Made | None


def ran(model: nn.Module, batch: object) -> tuple[list[Made], Made | None, Tensor | None]:
    """Every norm as it ran, the module that made the output, and the output."""
    made, norms, inside, kept = {}, [], [], []

    def entered(path: str, module: nn.Module, given: list) -> None:
        x = first_tensor(given)
        inside.append(Made(path, module, () if x is None else tuple(x.shape), made.get(id(x))))
        if x is not None and norm_kind(module):
            norms.append(inside[-1])

    def left(_path: str, module: nn.Module, output: object) -> None:
        this, y = inside.pop(), first_tensor(output)
        kept.append(y)  # so that no other tensor gets its id
        if norm_kind(module) or not list(module.children()):
            made[id(y)] = this.behind if isinstance(module, SEEN_THROUGH) else this

    with inspected(model, entered=entered, left=left), torch.no_grad():
        output = first_tensor(call(model, batch))
    return norms, made.get(id(output)), output


def check_model(model: nn.Module, batch: object, *, evaluating: bool = False) -> Symptoms:
    """What is wrong with a model on one batch, the worst first: what `diagnose` finds, and the guide's checks of its
    norms. batch and errors: as of `diagnose`. evaluating: whether the model is about to predict. It stays as it is."""
    found, told = diagnose(model, batch).findings, [*fresh_statistics(model, evaluating)]
    with as_it_was(), left_as_found(model):
        norms, last, output = ran(model, batch)
        told += [*small_batches(norms, model.training, evaluating), *placement(norms), *groups(norms)]
        told += [*on_the_output(last, output), *(forgotten_eval(model, batch) if evaluating else ())]
    return Symptoms([*found, *told], found.skipped)


def small_batches(norms: list[Made], training: bool, evaluating: bool) -> Iterator[Symptom]:
    """Check 1: BatchNorm that learns from fewer than 8 rows."""
    small = [norm for norm in norms if norm.shape[0] < SMALL_BATCH and of_batch(norm.module)]
    if small and training and not evaluating:
        n = small[0].shape[0]
        found = f"BatchNorm learns from batches of {n} ({plural(len(small), 'such norm')})"
        mend = "GroupNorm, or LN; or larger batches; or freeze the statistics of a pre-trained model"
        yield Symptom("serious" if n <= 2 else "warning", small[0].path, found, mend, "check 1, mistake 1")


def placement(norms: list[Made]) -> Iterator[Symptom]:
    """Check 4: convolution → activation → norm, where norm → activation is meant."""
    for norm in norms:
        activation = norm.behind
        if norm_kind(norm.module) not in ("BN", "IN", "GN") or activation is None or activation.behind is None:
            continue
        name = type(activation.module).__name__
        if ACTIVATIONS.search(name) and isinstance(activation.behind.module, WEIGHTED):
            found = f"the norm stands behind the activation ({name}), and that behind the convolution"
            mend = "convolution, norm, activation; or, in residual nets, norm, activation, convolution"
            yield Symptom("note", norm.path, found, mend, "check 4")


def fresh_statistics(model: nn.Module, evaluating: bool) -> Iterator[Symptom]:
    """Check 6: running statistics that no batch has updated, of a norm that uses them."""
    tracked = {path: m for path, m in model.named_modules() if getattr(m, "running_mean", None) is not None}
    used = {path: m for path, m in tracked.items() if evaluating or (model.training and not m.training)}
    if fresh := [path for path, m in used.items() if not m.running_mean.any() and (m.running_var == 1).all()]:
        found = f"{len(fresh)} of {len(tracked)} norms have seen no batch: they evaluate with mean 0 and variance 1"
        mend = "train first, load the buffers with the weights, or run some batches in train mode"
        yield Symptom("serious", fresh[0], found, mend, "check 6")


@torch.no_grad()
def forgotten_eval(model: nn.Module, batch: object) -> list[Symptom]:
    """Check 7: a model that is to predict depends on who else is in the batch, or draws at random."""
    random = [path for path, m in model.named_modules() if isinstance(m, DROPOUTS) and m.p and m.training]
    norms = [path for path, m in model.named_modules() if of_batch(m)]
    if not norms and not random:
        return []
    mode, where, mend = "train mode", "", "model.eval() before predicting"
    if not model.training:
        mode, where = "the model is in eval mode, this part is not", (norms + random)[0]
        if norms and not model.get_submodule(where).training:
            mode, mend = "eval mode, but without running statistics", "track_running_stats=True, or GroupNorm"
    found = f"{plural(len(random), 'dropout layer')} on"
    if norms:
        outputs = []
        for given in (batch, with_mates(batch)):
            torch.manual_seed(0)  # dropout draws the same both times
            y = first_tensor(call(model, given)).double()
            outputs.append(y[: len(y) // 2] if y.dim() else y)
        change = float((outputs[1] - outputs[0]).norm() / outputs[0].norm().clamp(min=1e-12))
        found = f"with other rows in its batch ({OTHERS}) the same row's output changes by {100 * change:.0f} %"
    return [Symptom("serious", where, f"{mode}: {found}", mend, "check 7, mistake 3")]


def with_mates(batch: object) -> object:
    """The batch with the second half of its rows replaced by copies of the first row."""
    if isinstance(batch, Tensor) and batch.dim():
        half = len(batch) // 2
        return torch.cat([batch[:half], batch[:1].expand_as(batch[half:])])
    if isinstance(batch, dict):
        return {name: with_mates(part) for name, part in batch.items()}
    return tuple(map(with_mates, batch)) if isinstance(batch, tuple | list) else batch


def on_the_output(last: Made | None, output: Tensor | None) -> Iterator[Symptom]:
    """When not to normalize, case 1: a norm makes the (B, classes) that the model puts out. Features may end in one."""
    if last is not None and norm_kind(last.module) and output.dim() == 2:
        found = f"the output {tuple(output.shape)} comes straight from a norm, so its scale is fixed: fine for "
        found += "features, not for logits or what is regressed"
        yield Symptom("warning", last.path, found, "no norm behind the last linear layer", "when not to, 1")


def groups(norms: list[Made]) -> Iterator[Symptom]:
    """torch's GroupNorm with a statistic over one or two values, or with one channel in each group."""
    for norm in norms:
        if isinstance(norm.module, nn.GroupNorm):
            g, c = norm.module.num_groups, norm.module.num_channels
            values = c // g * math.prod(norm.shape[2:])
            if values <= 2:
                found = f"each statistic is taken over {plural(values, 'value')}: hardly anything is left of the input"
                yield Symptom("serious", norm.path, found, "fewer groups, or a norm over all channels", "GroupNorm")
            elif g > 1 and g == c:
                found = f"{g} groups of one channel each: this is InstanceNorm"
                yield Symptom("note", norm.path, found, "fewer groups, or say InstanceNorm", "GroupNorm")
