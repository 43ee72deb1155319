"""The layers of a block: a plain torch layer is fused, any other layer is called.

A fused operation uses a layer's weights and never calls the layer. That is right only for a plain
layer: LoRA, quantization, FSDP, parametrizations and hooks replace, wrap or observe a layer, and
have an effect only if the layer is called.
"""

from typing import TypeGuard, TypeVar

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from mambanorm.operations.conv_gate import conv_silu

Layer = TypeVar("Layer", bound=nn.Module)
FORWARD = {kind: kind.forward for kind in (nn.Linear, nn.Conv1d, nn.Conv2d)}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_plain(layer: nn.Module, kind: type[Layer]) -> TypeGuard[Layer]:
    """Return True if using the layer's weights is equivalent to calling the layer.

    That is the case if the layer's type is exactly `kind` (no subclass), it has no hooks, `forward`
    is overridden neither in the class nor in the instance, and its weight is an ordinary tensor.
    """
    if type(layer) is not kind or kind.forward is not FORWARD[kind]:  # type: ignore[index]
        return False
    if type(layer.weight) not in (nn.Parameter, Tensor):
        return False
    attributes = vars(layer)
    has_hooks = any([attributes[name] for name in HOOKS]) or _has_any_global_hook()
    return "forward" not in attributes and not has_hooks


def split_linear(layer: nn.Module, x: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
    """Return the output of a linear layer, split into parts of the given sizes along the last axis.

    For a plain layer without bias, each part is a matrix product of its own, because slices of one
    product would not be contiguous.
    """
    if is_plain(layer, nn.Linear) and layer.bias is None:
        return tuple(F.linear(x, weight) for weight in layer.weight.split(sizes))
    return tuple(layer(x).split(sizes, dim=-1))


def causal_conv_silu(layer: nn.Module, u: Tensor) -> Tensor:
    """Return SiLU of a causal depthwise convolution, u (B, L, E) → (B, L, E).

    A layer that must be called pads u on both sides, as mamba-ssm's conv1d does; its first L
    outputs are the causal convolution.
    """
    if is_plain(layer, nn.Conv1d) and _fits_conv_silu(layer):
        return conv_silu(u, layer.weight, layer.bias)  # type: ignore[arg-type]
    return F.silu(layer(u.transpose(1, 2))[..., : u.shape[1]].transpose(1, 2))


def image_conv_silu(layer: nn.Module, u: Tensor) -> Tensor:
    """Return SiLU of a depthwise convolution of images, u (B, H, W, E) → (B, H, W, E)."""
    if is_plain(layer, nn.Conv2d) and _fits_conv_silu(layer):
        return conv_silu(u, layer.weight, layer.bias)  # type: ignore[arg-type]
    return F.silu(layer(u.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))


def _fits_conv_silu(conv: nn.Conv1d | nn.Conv2d) -> bool:
    """Return True if `conv_silu` can compute the convolution.

    The convolution must be depthwise, with a bias, zero padding, stride 1 and dilation 1.
    """
    if conv.bias is None or conv.padding_mode != "zeros":
        return False
    is_grouped = conv.groups == conv.in_channels == conv.out_channels
    return is_grouped and {*conv.stride, *conv.dilation} == {1}
