"""The mixed statistics of NormVary and SwitchNorm from the moments, fused on the CPU: pooling, mixing and their
derivative in a short loop each.

The moments are a few thousand numbers, (B, D). Torch would need about a hundred tiny operations. Each takes longer to
launch than to run. The readable twins are their `member_statistics` with `mix` in norms/normvary.py. They run for other
dtypes and devices, and the tests compare them with this.

The loops know NormVary's five members. SwitchNorm has three of them: the others have the weight 0 there.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mambanorm.basics.checks import check_shapes
from mambanorm.kernels.once_differentiable import backward_once
from mambanorm.kernels.runtime import ZERO, constant, empty, entry, jit, memory, run, table, zeros

_TWO = np.float32(2)
MEMBERS = ("BN", "GN", "IN", "LN", "RMSN")
"""In the order of the weights in the loops."""


def mixed_statistics(norm, moments) -> tuple[Tensor, Tensor]:
    """μ and σ² of Eq. 13, (B, 1, D) each, for float32 on the CPU; in training it updates the running statistics."""
    count, (rows, _, D) = moments.count, moments.m.shape
    names, n = ("mean_logits", "var_logits", "running_mean", "running_var"), len(norm.members)
    check_shapes(type(norm).__name__, names, [getattr(norm, name) for name in names], ((n,), (n,), (D,), (D,)))
    weighted = norm.statistics == "total" and not isinstance(count, int)
    share = (count / count.sum()).view(-1) if weighted else constant(rows, 1 / rows)
    return _Mix.apply(moments.m, moments.v, *norm.mixture(), share, norm)


@jit()
def _pool(share, training, m, v, total, batch, group, whole):
    """The members' statistics: batch (2, D), group (B, 2·G), whole (B, 3) with LN's mean and variance and RMSN's."""
    B, D = m.shape
    groups = group.shape[1] // 2
    width = D // groups
    if training:
        batch[:] = ZERO
        for b in range(B):
            for d in range(D):
                batch[0, d] += share[b] * m[b, d]
        for b in range(B):
            for d in range(D):
                c = m[b, d] - batch[0, d] if total else ZERO
                batch[1, d] += share[b] * (v[b, d] + c * c)
    for b in range(B):
        for k in range(groups):
            mean, var = ZERO, ZERO
            for d in range(k * width, (k + 1) * width):
                mean += m[b, d]
            mean /= np.float32(width)
            for d in range(k * width, (k + 1) * width):
                c = m[b, d] - mean
                var += v[b, d] + c * c
            group[b, 2 * k], group[b, 2 * k + 1] = mean, var / np.float32(width)
        mean, var, square = ZERO, ZERO, ZERO
        for d in range(D):
            mean += m[b, d]
        mean /= np.float32(D)
        for d in range(D):
            c = m[b, d] - mean if total else ZERO
            var += v[b, d] + c * c
            square += v[b, d] + m[b, d] * m[b, d]
        whole[b, 0], whole[b, 1], whole[b, 2] = mean, var / np.float32(D), square / np.float32(D)


# numbers: D, G, training, total. places: m, v (B, D), the weights of means and variances (5,), share (B,), batch, group
# and whole of `_pool`, and what the kernel names. One worker does it all.
@entry
def _forward(worker, workers, numbers, places):
    """The results are mean and var (B, D)."""
    D, groups, training, total = numbers
    m, v, mean, var = table(places, 0, D), table(places, 1, D), table(places, 8, D), table(places, 9, D)
    w_mean, w_var, share = memory(places, 2), memory(places, 3), memory(places, 4)
    batch, group, whole = table(places, 5, D), table(places, 6, 2 * groups), table(places, 7, 3)
    _pool(share, training, m, v, total, batch, group, whole)
    width = D // groups
    for b in range(len(m)):
        ln, ln_var, rms = whole[b, 0], whole[b, 1], whole[b, 2]
        for d in range(D):
            k = d // width
            mu = w_mean[0] * batch[0, d] + w_mean[1] * group[b, 2 * k]
            mean[b, d] = mu + w_mean[2] * m[b, d] + w_mean[3] * ln
            s = w_var[0] * batch[1, d] + w_var[1] * group[b, 2 * k + 1] + w_var[2] * v[b, d]
            var[b, d] = s + w_var[3] * ln_var + w_var[4] * rms


@entry
def _backward(worker, workers, numbers, places):
    """P is the pooling of a member: an average over a set, given to every element of it. With p = dL/dμ and q = dL/dσ²:

    dL/dm = Σ_i w^μ_i Pᵢᵀp + Σ_i 2·w^σ_i (m − μ_i)·Pᵢᵀq,   dL/dv = Σ_i w^σ_i Pᵢᵀq

    RMSN subtracts no mean: it has m for m − μ_i. The second term is missing where `literal` (not `total`) leaves out
    the variance of the means. The results are dm, dv (B, D), dw (2, 5), of the weights of means and variances, and sums
    (2, D), Σ_b p and q.
    """
    D, groups, training, total = numbers
    m, v, p, q = table(places, 0, D), table(places, 1, D), table(places, 8, D), table(places, 9, D)
    w_mean, w_var, share = memory(places, 2), memory(places, 3), memory(places, 4)
    batch, group, whole = table(places, 5, D), table(places, 6, 2 * groups), table(places, 7, 3)
    dm, dv, dw, sums = table(places, 10, D), table(places, 11, D), table(places, 12, 5), table(places, 13, D)
    B, width = len(m), D // groups
    dw[:] = ZERO
    sums[:] = ZERO
    for b in range(B):
        for d in range(D):
            sums[0, d] += p[b, d]
            sums[1, d] += q[b, d]
    for b in range(B):
        p_row, q_row = ZERO, ZERO
        for d in range(D):
            p_row += p[b, d]
            q_row += q[b, d]
        dw[0, 3] += p_row * whole[b, 0]
        dw[1, 3] += q_row * whole[b, 1]
        dw[1, 4] += q_row * whole[b, 2]
        p_row, q_row = p_row / np.float32(D), q_row / np.float32(D)
        for k in range(groups):
            p_group, q_group = ZERO, ZERO
            for d in range(k * width, (k + 1) * width):
                p_group += p[b, d]
                q_group += q[b, d]
            dw[0, 1] += p_group * group[b, 2 * k]
            dw[1, 1] += q_group * group[b, 2 * k + 1]
            p_group, q_group = p_group / np.float32(width), q_group / np.float32(width)
            for d in range(k * width, (k + 1) * width):
                x = m[b, d]
                p_batch = share[b] * sums[0, d] if training else ZERO
                q_batch = share[b] * sums[1, d] if training else ZERO
                g = w_mean[0] * p_batch + w_mean[1] * p_group + w_mean[2] * p[b, d] + w_mean[3] * p_row
                spread = w_var[1] * (x - group[b, 2 * k]) * q_group + w_var[4] * x * q_row
                if total:
                    spread += w_var[0] * (x - batch[0, d]) * q_batch + w_var[3] * (x - whole[b, 0]) * q_row
                dm[b, d] = g + _TWO * spread
                s = w_var[0] * q_batch + w_var[1] * q_group + w_var[2] * q[b, d]
                dv[b, d] = s + (w_var[3] + w_var[4]) * q_row
                dw[0, 2] += p[b, d] * x
                dw[1, 2] += q[b, d] * v[b, d]
    for d in range(D):
        dw[0, 0] += sums[0, d] * batch[0, d]
        dw[1, 0] += sums[1, d] * batch[1, d]


class _Mix(torch.autograd.Function):
    """m and v (B, 1, D), the members' weights and each row's share of the batch (B,) → mean and variance (B, 1, D)."""

    @staticmethod
    def forward(ctx, m, v, w_mean, w_var, share, norm):
        ctx.places = [MEMBERS.index(name) for name in norm.members]
        weights = [_of_all(weight.detach(), ctx.places) for weight in (w_mean, w_var)]
        given = [t.detach().contiguous() for t in (m[:, 0], v[:, 0], *weights, share)]
        batch = torch.stack([norm.running_mean, norm.running_var])
        group, whole = empty(len(m), norm.groups, 2), empty(len(m), 3)
        mean, var = torch.empty_like(given[0]), torch.empty_like(given[0])
        ctx.numbers = m.shape[2], norm.groups, norm.training, norm.statistics == "total"
        run(_forward, 1, ctx.numbers, [*given, batch, group, whole, mean, var])
        if norm.training:
            norm.track(*batch)
        ctx.save_for_backward(*given, batch, group, whole)
        return mean[:, None], var[:, None]

    @staticmethod
    @backward_once
    def backward(ctx, p, q):
        given = *ctx.saved_tensors, p[:, 0].contiguous(), q[:, 0].contiguous()
        rows, size = given[0].shape
        made = dm, dv, dw, _ = [empty(shape) for shape in ((rows, size), (rows, size), (2, len(MEMBERS)), (2, size))]
        run(_backward, 1, ctx.numbers, [*given, *made])
        of_means, of_vars = torch.from_numpy(dw.numpy()[:, ctx.places])
        return dm[:, None], dv[:, None], of_means, of_vars, None, None


def _of_all(weight: Tensor, places: list[int]) -> Tensor:
    """The weights of some members at their places among all, (5,), 0 at the others."""
    found = zeros(len(MEMBERS))
    found.numpy()[places] = weight.numpy()
    return found
