"""Moments of each channel along the sequence, without padding, and their pooling.

Every norm of this kit with statistics along L (BN, IN, GN, LN-DL, RMSN-DL, NormVary) computes these
statistics by *pooling* (averaging over rows or channels) two moments of each row and channel, as in
Eq. 10 of the paper:

    m  (B, 1, D)  mean over the valid positions                            (left of Eq. 10)
    v  (B, 1, D)  centred second moment over the valid positions, biased   (right of Eq. 10)

The pooled variance follows the law of total variance: var = mean(v) + mean((m − mean(m))²).
Variances are computed from centred values, so they stay precise where the mean is far larger than
the standard deviation. (In float32, E[x²] − μ² is wrong by 100 % at mean 3,000.)
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mambanorm.checks import HALF
from mambanorm.kernels.backends import fused_on_cpu


class Moments(NamedTuple):
    """Mean `m` and centred second moment `v`, (B, 1, D), over `n` positions, (B, 1, 1) or int.

    `x` is the input again. Normalize this x, not the input itself: the gradient through the moments
    and the direct gradient are then added in one pass.
    """

    x: Tensor
    m: Tensor
    v: Tensor
    n: Tensor | int


def valid_positions(lengths: Tensor, L: int) -> Tensor:
    """Return a mask (B, L, 1), True at valid positions."""
    return (torch.arange(L, device=lengths.device) < lengths[:, None])[..., None]


def blank_padding(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Return x (B, L, D) with zeros at the padding.

    After this, not even a NaN in the padding of x can reach a statistic or a gradient.
    """
    return x if lengths is None else x.masked_fill(~valid_positions(lengths, x.shape[1]), 0.0)


def channel_moments(x: Tensor, lengths: Tensor | None = None) -> Moments:
    """Return the moments of x (B, L, D) over the valid positions of each row.

    x must be zero at the padding (`blank_padding`). The moments of a 16-bit x are float32.
    """
    B, L, _ = x.shape
    if x.dtype in HALF:
        x = x.float()
    count: Tensor | int = L if lengths is None else lengths.to(x.dtype).view(B, 1, 1)
    if fused_on_cpu(x):
        from mambanorm.kernels import norm  # importing Numba takes a moment

        m, v, x = norm.moments(x, lengths)
        return Moments(x, m, v, count)
    if lengths is None:
        m = x.mean(1, keepdim=True)
        return Moments(x, m, (x - m).square().mean(1, keepdim=True), count)
    m = x.sum(1, keepdim=True) / count
    centred = (x - m).masked_fill(~valid_positions(lengths, L), 0.0)
    return Moments(x, m, centred.square().sum(1, keepdim=True) / count, count)


def standardize(
    x: Tensor,
    mean: Tensor | None,
    var: Tensor,
    eps: float,
    gamma: Tensor | None,
    beta: Tensor | None,
) -> Tensor:
    """Return γ·(x − μ)/√(σ² + ε) + β (Eq. 14 of the paper).

    The mean is subtracted before x is scaled, so no digits are lost. x (B, L, D); mean and var
    broadcast to (B, 1, D), and a mean of None is not subtracted; gamma and beta (D,) default to 1
    and 0 if they are None.
    """
    scale = torch.rsqrt(var + eps)
    if gamma is not None:
        scale = scale * gamma
    if fused_on_cpu(x, mean, scale, beta):
        from mambanorm.kernels import norm

        return norm.centre_scale(x, mean, scale, beta)
    y = (x if mean is None else x - mean) * scale
    return y if beta is None else y + beta


def pool_batch(moments: Moments) -> tuple[Tensor, Tensor]:
    """Return mean and total variance of each channel over all rows, (1, 1, D) each.

    Every valid position has the same weight.
    """
    _, m, v, count = moments
    weights = 1 / m.shape[0] if isinstance(count, int) else count / count.sum()
    mean = (m * weights).sum(0, keepdim=True)
    return mean, ((v + (m - mean).square()) * weights).sum(0, keepdim=True)


def pool_channels(moments: Moments, groups: int) -> tuple[Tensor, Tensor]:
    """Return mean and total variance of each channel group of each row, (B, 1, D) each.

    All channels of a group get the group's values. See Eq. 9 of the paper; with one group, the
    result is its Π_LN (Eq. 11).
    """
    _, m, v, _ = moments
    B, _, D = m.shape
    m, v = m.view(B, 1, groups, D // groups), v.view(B, 1, groups, D // groups)
    mean = m.mean(-1, keepdim=True)
    var = (v + (m - mean).square()).mean(-1, keepdim=True)
    return mean.expand_as(m).reshape(B, 1, D), var.expand_as(m).reshape(B, 1, D)


def update_running(running: Tensor, new: Tensor, momentum: float) -> None:
    """Set running ← (1 − momentum)·running + momentum·new in place; running (D,), new (1, 1, D)."""
    running.lerp_(new.view(-1).to(running.dtype), momentum)


def is_recomputed() -> bool:
    """Return True if activation checkpointing is repeating the forward pass in a backward pass.

    If so, the first forward pass has already added the batch to the running statistics. (torch's
    own norms add the batch twice, pytorch/pytorch#96136.)
    """
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
