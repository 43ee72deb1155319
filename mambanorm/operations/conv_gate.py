"""The two operations of a block with a SiLU: `conv_silu`, SiLU(Conv(u)), and `gated`, y·SiLU(z)."""

import torch.nn.functional as F
from torch import Tensor

from mambanorm.kernels.backends import fused_on_cpu, runs_triton
from mambanorm.operations.checks import check_conv_silu, check_gated


def gated(y: Tensor, z: Tensor) -> Tensor:
    """Return y·SiLU(z), the product with the gate (Eq. 2 and 3 of the paper).

    Raises ValueError unless y and z have the same shape and device. Their dtypes may differ, as
    under autocast.
    """
    check_gated(y, z)
    if fused_on_cpu(y, z):
        from mambanorm.kernels.conv_gate import gated_cpu  # importing Numba takes a moment

        return gated_cpu(y, z)
    return y * F.silu(z)


def conv_silu(u: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return SiLU of a depthwise convolution: causal for a sequence, centred for images.

    u is a sequence (B, L, E) with weight (E, 1, K), or images (B, H, W, E) with weight (E, 1, K, K)
    and odd K; bias (E,). The result has u's shape. Raises ValueError for other shapes, for dtypes
    that are not real, and for tensors on different devices.
    """
    check_conv_silu(u, weight, bias)
    if fused_on_cpu(u, weight, bias):
        from mambanorm.kernels.conv_gate import conv_silu_cpu

        return conv_silu_cpu(u, weight, bias)
    if u.is_cuda and u.dim() == 3 and runs_triton(u):
        from mambanorm.kernels.conv_triton import conv_silu_triton

        return conv_silu_triton(u, weight, bias)
    convolve = causal_conv if u.dim() == 3 else centred_conv
    return F.silu(convolve(u, weight, bias))


def causal_conv(u: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the causal depthwise convolution of u, (B, L, E) → (B, L, E).

    y_l = bias + Σ_k weight_k · u_(l−K+1+k), where k counts from 0 and u is 0 before the first
    position.
    """
    taps, length = weight.shape[-1], u.shape[1]
    padded = F.pad(u, (0, 0, taps - 1, 0))
    return bias + sum(padded[:, k : k + length] * weight[:, 0, k] for k in range(taps))


def centred_conv(u: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the zero-padded depthwise convolution of images, (B, H, W, E) → (B, H, W, E)."""
    padding, channels = weight.shape[-1] // 2, len(weight)
    y = F.conv2d(u.permute(0, 3, 1, 2), weight, bias, padding=padding, groups=channels)
    return y.permute(0, 2, 3, 1)
