"""What one forward pass shows of a model's norms: which ran, on what, and which operation made their inputs.

Provenance comes from autograd's graph: the node behind a norm's input tells the operation that made it, whether it was
a module or a function. Reshapes and dropout are looked through.

    norms_of        path, module and kind of each norm, torch's, this kit's or by its name
    Ran, Trace      a norm as it ran; all of them, and what stands at the output;   trace(model, batch, forward)
    behind_sums     those that the residual stream passes through
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from mambanorm.clinic.batches import first_tensor
from mambanorm.diagnostics.recording import inspected
from mambanorm.norms.base import Norm

TORCH_KINDS = {
    nn.modules.batchnorm._BatchNorm: "BN",
    nn.modules.instancenorm._InstanceNorm: "IN",
    nn.GroupNorm: "GN",
    nn.LayerNorm: "LN",
    nn.RMSNorm: "RMSN",
}
BY_NAME = {"BatchNorm": "BN", "InstanceNorm": "IN", "GroupNorm": "GN", "LayerNorm": "LN", "RMSNorm": "RMSN"}
RESHAPES = re.compile(
    r"^(Unsafe)?(View|ReshapeAlias|Reshape|Transpose|Permute|T|Squeeze|Unsqueeze|Clone|Alias|ToCopy)B"
)
SCALES = re.compile(r"^(Mul|Div|NativeDropout)B")  # by a constant, where one of two factors has no node
SOFTMAX = re.compile(r"^(Log)?SoftmaxB|^SigmoidB")
DROPOUTS = nn.modules.dropout._DropoutNd
TRANSPARENT = (nn.Identity, nn.Flatten, nn.Unflatten, DROPOUTS)
ACTIVATIONS = re.compile(r"^(Relu|LeakyRelu|Gelu|Silu|Tanh|Sigmoid|Elu|Hardswish|Hardtanh|Softplus|Mish|PRelu|Thresh)")
WEIGHTED = re.compile(r"^(Convolution|MkldnnConvolution|SlowConv|ThnnConv|Addmm|Mm|Bmm|Linear)")
PADS = re.compile(r"^(ConstantPad|ReflectionPad|ReplicationPad)")


def norm_kind(module: nn.Module) -> str | None:
    """BN, IN, GN, LN, RMSN or the class name of another norm of this kit; None for what is no norm, as Scale."""
    for kind, name in TORCH_KINDS.items():
        if isinstance(module, kind):
            return name
    own = type(module).__name__
    if isinstance(module, Norm):
        return None if own in ("NoNorm", "Scale") else BY_NAME.get(own, own)
    by_name = re.search("|".join(BY_NAME), own)
    return BY_NAME[by_name[0]] if by_name and not list(module.children()) else None


def norms_of(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """path, module, kind of every norm, in the order of definition."""
    for path, module in model.named_modules():
        if kind := norm_kind(module):
            yield path, module, kind


def takes_batch_statistics(module: nn.Module, kind: str) -> bool:
    return kind == "BN" or (isinstance(module, Norm) and hasattr(module, "running_mean"))


@dataclass
class Ran:
    """A norm as it ran. made_by: the operation behind its input ("" = the model's input); before: the one behind that;
    source: the module that did it, if one did; behind: the same, looked through activations; adds: its input is a sum;
    skips: the norm whose output is that sum's residual stream, so that the stream passes through a norm; empty: the
    share of the positions that are zero in every channel; masked: it was told the lengths of its rows; node:
    autograd's, of its output."""

    path: str
    module: nn.Module
    kind: str
    shape: tuple[int, ...]
    made_by: str
    before: str
    source: str
    behind: str
    adds: bool
    skips: object
    empty: float
    masked: bool
    node: object = None


@dataclass
class Trace:
    """seen: every call of a norm. ends_in: path of the norm that makes the output, "" if none does."""

    seen: list[Ran] = field(default_factory=list)
    output: Tensor | None = None
    ends_in: str = ""


def trace(model: nn.Module, batch: object, forward: Callable[[nn.Module, object], object]) -> Trace:
    """One forward pass through the model, in its own mode, with autograd's graph.

    The model is a copy to be thrown away: its weights all ask for gradients, frozen ones too, and dropout is off, so
    that the graph shows what stands where.
    """
    result, made, kinds = Trace(), {}, {path: kind for path, _, kind in norms_of(model)}

    def entered(path: str, module: nn.Module, given: list) -> None:
        x = first_tensor(given)
        if path in kinds and x is not None:
            masked = isinstance(module, Norm) and any(isinstance(more, Tensor) for more in given[1:])
            result.seen.append(_look(path, module, kinds, x, made, masked))

    def left(path: str, module: nn.Module, output: object) -> None:
        node = getattr(first_tensor(output), "grad_fn", None)
        if node is not None and path and not isinstance(module, TRANSPARENT):
            made.setdefault(node, path)
        if path in kinds and node is not None:
            next(ran for ran in reversed(result.seen) if ran.path == path).node = node

    for weight in model.parameters():
        weight.requires_grad_(weight.is_floating_point())
    for module in model.modules():
        if isinstance(module, DROPOUTS):
            module.eval()
    with inspected(model, entered=entered, left=left), torch.enable_grad():
        result.output = first_tensor(forward(model, batch))
    path = None if result.output is None else made.get(_through(result.output.grad_fn, made, SOFTMAX))
    result.ends_in = path if path in kinds else ""
    return result


def _through(node, made: dict, also: re.Pattern | None = None):
    """The node behind reshapes and scalings that no module made, and behind what `also` matches, whoever made it."""
    while node is not None and (inputs := _inputs(node)):
        scales = len(inputs) == 1 and SCALES.match(node.name())
        if not ((also and also.match(node.name())) or (node not in made and (scales or RESHAPES.match(node.name())))):
            break
        node = inputs[0]
    return node


def _inputs(node) -> list:
    return [part for part, _ in node.next_functions if part is not None]


def _name(node) -> str:
    return "" if node is None else node.name()


def _look(path: str, module: nn.Module, kinds: dict, x: Tensor, made: dict, masked: bool) -> Ran:
    node = _through(x.grad_fn, made)
    parts = [_through(part, made) for part in _inputs(node)] if node is not None else []
    adds = _name(node).startswith("AddBackward")
    skips = [part for part in parts if made.get(part) in kinds and _feeds(part, [p for p in parts if p is not part])]
    behind = made.get(_through(node, made, ACTIVATIONS), "")
    before = _name(parts[0]) if parts else ""
    return Ran(path, module, kinds[path], tuple(x.shape), _name(node), before, made.get(node, ""), behind,
               adds, skips[0] if adds and skips else None, _empty(x, module), masked)  # fmt: skip


def _feeds(source, nodes: list) -> bool:
    """Whether the output of a node goes into any of these. What was made before it is not searched."""
    seen, first = set(), source._sequence_nr()
    while nodes:
        node = nodes.pop()
        if node is source:
            return True
        if node is not None and node not in seen and node._sequence_nr() > first:
            seen.add(node)
            nodes += _inputs(node)
    return False


def behind_sums(trace: Trace) -> list[Ran]:
    """The norms, call by call, that the residual stream passes through: each stands behind a sum, and is the residual
    path of the next sum, or the last of such a chain."""
    skipped = {ran.skips for ran in trace.seen if ran.skips is not None}
    return [ran for ran in trace.seen if ran.skips is not None or (ran.adds and ran.node in skipped)]


def channels_of(norm: nn.Module) -> int | None:
    """The number of channels that a norm has a statistic or a weight for; None if it does not say."""
    sizes = (getattr(norm, name, None) for name in ("num_features", "num_channels", "d"))
    return next((n for n in sizes if isinstance(n, int)), None)


def channel_axis(norm: nn.Module, shape: tuple[int, ...]) -> int:
    """The axis of the channels: 1 as in torch, or the last, as in this kit and where the sizes say so."""
    torchs = not isinstance(norm, Norm) and len(shape) > 1 and channels_of(norm) in (shape[1], None)
    return 1 if torchs else -1


def _empty(x: Tensor, norm: nn.Module) -> float:
    """The share of the positions of (B, C, …) or (B, …, C) that are zero in all of at least two channels."""
    axis = channel_axis(norm, tuple(x.shape))
    if x.dim() < 3 or x.shape[axis] < 2:
        return 0.0
    return float((x.detach() == 0).all(axis).float().mean())
