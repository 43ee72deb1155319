"""What the checks of `check_model` look at: a copy of the model, some batches, and what one forward pass shows of its
norms: which ran, on what, and which operation made their inputs.

That comes from autograd's graph: the node behind a norm's input tells the operation that made it, whether it was a
module or a function. Reshapes and dropout are looked through.

    norms_of        path, module and kind of each norm, torch's, this kit's or by its name
    Ran, Trace      a norm as it ran; all of them, and what stands at the output;   trace(model, batch)
    Exam, twin_of   the copy, and all that a check may ask
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from mambanorm.look.recording import call, first_tensor, inspected
from mambanorm.norms.base import Norm

BY_NAME = {"BatchNorm": "BN", "InstanceNorm": "IN", "GroupNorm": "GN", "LayerNorm": "LN", "RMSNorm": "RMSN"}
RESHAPES = re.compile(
    r"^(Unsafe)?(View|ReshapeAlias|Reshape|Transpose|Permute|T|Squeeze|Unsqueeze|Clone|Alias|ToCopy)B"
)
SCALES = re.compile(r"^(Mul|Div|NativeDropout)B")  # by a constant, where one of two factors has no node
SOFTMAX = re.compile(r"^(Log)?SoftmaxB|^SigmoidB")
DROPOUTS = nn.modules.dropout._DropoutNd
ACTIVATIONS = re.compile(r"^(Relu|LeakyRelu|Gelu|Silu|Tanh|Sigmoid|Elu|Hardswish|Hardtanh|Softplus|Mish|PRelu|Thresh)")
WEIGHTED = re.compile(r"^(Convolution|MkldnnConvolution|SlowConv|ThnnConv|Addmm|Mm|Bmm|Linear)")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def norm_kind(module: nn.Module) -> str | None:
    """BN, IN, GN, LN, RMSN or the class name of another norm of this kit; None for what is no norm, as Scale. A norm of
    torch or of another house is known by the name of its class, or of one that it is derived from."""
    own = type(module).__name__
    if isinstance(module, Norm):
        return None if own in ("NoNorm", "Scale") else BY_NAME.get(own, own)
    found = re.search("|".join(BY_NAME), " ".join(kind.__name__ for kind in type(module).__mro__))
    return BY_NAME[found[0]] if found and not list(module.children()) else None


def norms_of(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """path, module, kind of every norm, in the order of definition."""
    for path, module in model.named_modules():
        if kind := norm_kind(module):
            yield path, module, kind


def takes_batch_statistics(module: nn.Module, kind: str) -> bool:
    return kind == "BN" or (isinstance(module, Norm) and hasattr(module, "running_mean"))


@dataclass
class Ran:
    """A norm as it ran. made_by: the operation behind its input ("" = the model's input); before: that behind it."""

    path: str
    module: nn.Module
    kind: str
    shape: tuple[int, ...]
    made_by: str
    before: str


@dataclass
class Trace:
    """seen: every call of a norm. ends_in: path of the norm that makes the output, "" if none does."""

    seen: list[Ran] = field(default_factory=list)
    output: Tensor | None = None
    ends_in: str = ""


def trace(model: nn.Module, batch: object) -> Trace:
    """One forward pass through the model, in its own mode, with autograd's graph.

    The model is a copy to be thrown away: its weights all ask for gradients, frozen ones too, and dropout is off, so
    that the graph shows what stands where.
    """
    result, norms, kinds = Trace(), {}, {path: kind for path, _, kind in norms_of(model)}

    def entered(path: str, module: nn.Module, given: list) -> None:
        x = first_tensor(given)
        if path in kinds and x is not None:
            node = _through(x.grad_fn, norms)
            before = next((_through(part, norms) for part in _inputs(node)), None)
            result.seen.append(Ran(path, module, kinds[path], tuple(x.shape), _name(node), _name(before)))

    def left(path: str, _module: nn.Module, output: object) -> None:
        if path in kinds and (node := getattr(first_tensor(output), "grad_fn", None)) is not None:
            norms[node] = path

    for weight in model.parameters():
        weight.requires_grad_(weight.is_floating_point())
    for module in model.modules():
        if isinstance(module, DROPOUTS):
            module.eval()
    with inspected(model, entered=entered, left=left), torch.enable_grad():
        result.output = first_tensor(call(model, batch))
    if result.output is not None:
        result.ends_in = norms.get(_through(result.output.grad_fn, norms, SOFTMAX), "")
    return result


def _through(node, norms: dict, also: re.Pattern | None = None):
    """The node behind reshapes and scalings that no norm made, and behind what `also` matches."""
    while node is not None and node not in norms and (inputs := _inputs(node)):
        scales = len(inputs) == 1 and SCALES.match(node.name())
        if not (scales or RESHAPES.match(node.name()) or (also and also.match(node.name()))):
            break
        node = inputs[0]
    return node


def _inputs(node) -> list:
    return [] if node is None else [part for part, _ in node.next_functions if part is not None]


def _name(node) -> str:
    return "" if node is None else node.name()


def channels_of(norm: nn.Module) -> int | None:
    """The number of channels that a norm has a statistic or a weight for; None if it does not say."""
    sizes = (getattr(norm, name, None) for name in ("num_features", "num_channels", "d"))
    return next((n for n in sizes if isinstance(n, int)), None)


# ---------------------------------------------------------------------------------------------------------------------
# the exam


class NotSeen(Exception):
    """A check could not be made; its text says why, and goes to `skipped`."""


@dataclass
class Exam:
    """A copy of the model and what is known of it. Without a batch the trace is empty.

    rows: of the batch. training: the mode in which the model was handed in; the rest as the caller says. The copy
    is never run: a check runs a copy of its own, `twin` in the mode in which the model was handed in, or `learner` in
    train mode, in which what was frozen in a model that was handed in in train mode stays frozen.
    """

    model: nn.Module
    loss: Callable[[object, object], Tensor] | None = None
    lr: float | None = None
    evaluating: bool = False
    training: bool = True
    batch: object = None
    trace: Trace = field(default_factory=Trace)
    rows: int | None = None

    def twin(self) -> nn.Module:
        return copy.deepcopy(self.model)

    def learner(self) -> nn.Module:
        return self.twin() if self.training else self.twin().train()

    @property
    def batch_norms(self) -> list[tuple[str, nn.Module]]:
        """path, module of the norms that take statistics over the batch."""
        return [(path, norm) for path, norm, kind in norms_of(self.model) if takes_batch_statistics(norm, kind)]

    def ran(self, path: str) -> Ran | None:
        """The first call of a norm."""
        return next((ran for ran in self.trace.seen if ran.path == path), None)


def twin_of(model: nn.Module) -> nn.Module:
    """A copy of the model without the caller's hooks; ValueError for a model that cannot be copied.

    Hooks of torch itself stay, for by them weight_norm and spectral_norm compute. Tensors that the model keeps of an
    earlier pass are copied without their graph.
    """
    own = [value for m in model.modules() for value in [*vars(m).values(), *m._buffers.values()]]
    kept = [value for value in own if isinstance(value, Tensor) and not value.is_leaf]
    try:
        twin = copy.deepcopy(model, {id(value): value.detach().clone() for value in kept})
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        mend = "remove what it keeps of earlier passes, or build it anew and load its state_dict"
        raise ValueError(f"the model cannot be copied, and only a copy is looked at ({why}): {mend}") from error
    for hooks in (getattr(module, name) for module in twin.modules() for name in HOOKS):
        for key, hook in list(hooks.items()):
            if (getattr(hook, "__module__", None) or "").split(".")[0] != "torch":
                del hooks[key]
    return twin
