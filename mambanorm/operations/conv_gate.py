"""The two places of a block that have a SiLU: `conv_silu`, SiLU(Conv(u)), and `gated`,
y·SiLU(z)."""

import torch.nn.functional as F
from torch import Tensor

from mambanorm.checks import check_real, check_shapes, check_together
from mambanorm.kernels.backends import fused_on_cpu, runs_triton


def gated(y: Tensor, z: Tensor) -> Tensor:
    """y·SiLU(z), what the gate z lets through of y (Eq. 2 and 3); both of one shape and on one
    device. ValueError for others. Under autocast their dtypes may differ."""
    check_real("y", y)
    if not isinstance(z, Tensor):
        check_real(
            "z", z, str(tuple(y.shape))
        )  # here, for torch.compile cannot put sizes that vary into a text
    check_real("z", z)
    if z.shape != y.shape or z.device != y.device:
        given, needed = (f"{tuple(t.shape)} on {t.device}" for t in (z, y))
        raise ValueError(f"z must be as y, {needed}, got {given}")
    if fused_on_cpu(y, z):
        from mambanorm.kernels.conv_gate import gated_cpu  # here: importing Numba takes a moment

        return gated_cpu(y, z)
    return y * F.silu(z)


def conv_silu(u: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """SiLU of a depthwise convolution, with its bias: causal along a sequence, centred on an image.

    u (B, L, E), weight (E, 1, K), bias (E,) → (B, L, E); or u (B, H, W, E), weight (E, 1, K, K)
    with K odd → the same. Raises ValueError for other shapes, dtypes that are not real, and tensors
    on several devices.
    """
    _check_conv(u, weight, bias)
    if fused_on_cpu(u, weight, bias):
        from mambanorm.kernels.conv_gate import conv_silu_cpu

        return conv_silu_cpu(u, weight, bias)
    if u.is_cuda and u.dim() == 3 and runs_triton(u):
        from mambanorm.kernels.conv_triton import conv_silu_triton

        return conv_silu_triton(u, weight, bias)
    return F.silu((causal_conv if u.dim() == 3 else centred_conv)(u, weight, bias))


def causal_conv(u: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Depthwise convolution that looks back only: y_l = bias + Σ_k weight_k · u_(l−K+1+k), K
    taps."""
    taps, length = weight.shape[-1], u.shape[1]
    padded = F.pad(u, (0, 0, taps - 1, 0))
    return bias + sum(padded[:, k : k + length] * weight[:, 0, k] for k in range(taps))


def centred_conv(u: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Depthwise convolution of images (B, H, W, E), zero outside."""
    y = F.conv2d(
        u.permute(0, 3, 1, 2), weight, bias, padding=weight.shape[-1] // 2, groups=len(weight)
    )
    return y.permute(0, 2, 3, 1)


def _check_conv(u: Tensor, weight: Tensor, bias: Tensor) -> None:
    check_together(u=u, weight=weight, bias=bias)
    if u.dim() not in (3, 4) or 0 in u.shape:
        raise ValueError(
            f"u has shape {tuple(u.shape)}; (B, L, E) or (B, H, W, E) is needed, each at least 1"
        )
    taps = max(weight.shape[-1], 1) if weight.dim() == u.dim() else 1
    if u.dim() == 4 and taps % 2 == 0:
        raise ValueError(
            f"the taps of an image's convolution must be odd in number, to keep its size, got {taps}"
        )
    shapes = (u.shape[-1], 1, *[taps] * (u.dim() - 2)), (u.shape[-1],)
    check_shapes("conv_silu", ("weight", "bias"), (weight, bias), shapes)
