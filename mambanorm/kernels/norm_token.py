"""Norms over the channels of one token, fused on the CPU: LN, RMSN and GN-token.

    y = γ·(x − μ)/√(σ² + ε) + β          (μ = 0 for RMSN)

One pass over memory forward and one backward. The readable twin is `readable` of each norm in norms/classic.py. It runs
for other dtypes and devices, and the tests compare the two.
"""

from __future__ import annotations

import numpy as np
import torch

from mambanorm.kernels.once_differentiable import backward_once
from mambanorm.kernels.runtime import ONE, ZERO, added_up, constant, empty, entry, in_order, jit, memory, run, zeros
from mambanorm.kernels.threads import scan_threads

_f = np.float32


def token_norm(x, weight, bias, eps, centred=True, groups=1):
    """The norm of each token's channel groups, for float32 on the CPU; x (B, L, D) → (B, L, D), weight and bias (D,),
    None = 1 and 0. Differentiable once."""
    D = x.shape[-1]
    weight, bias = (constant(D, 1.0) if weight is None else weight), (constant(D, 0.0) if bias is None else bias)
    return _TokenNorm.apply(x, weight, bias, eps, centred, groups)


# Arrays are flat memory and offsets unsigned: for an index that could be negative the compiler would gather instead of
# load, and a slice would cost Numba two atomic updates of a reference count.
_u = np.uintp


@jit("reassoc")
def _sums(x, start, width, centre):
    """Σ (x − centre) and Σ (x − centre)²; only here, and in `_dots`, may the compiler reorder a sum."""
    total, squares = ZERO, ZERO
    for d in range(width):
        c = x[start + _u(d)] - centre
        total += c
        squares += c * c
    return total, squares


@jit("reassoc")
def _dots(g, x, start, width, mean, scale):
    """Σ g and Σ g·x̂."""
    total, weighted = ZERO, ZERO
    for d in range(width):
        total += g[d]
        weighted += g[d] * (x[start + _u(d)] - mean)
    return total, weighted * scale


@jit()
def _statistics(x, start, width, eps, centred):
    """Mean (0 where it is not subtracted) and 1/√(variance + ε); centred in a second pass, so no digits are lost."""
    n, mean = _f(width), ZERO
    if centred:
        mean = _sums(x, start, width, ZERO)[0] / n
    rest, squares = _sums(x, start, width, mean)
    var = squares / n
    if centred:
        mean += rest / n
        var -= (rest / n) * (rest / n)
    return mean, ONE / np.sqrt(var + eps)


@entry
def _forward(worker, workers, numbers, places):
    """numbers: tokens, groups, channels of a group, centred. places: x, γ, β, ε, and the results y and the statistics
    (tokens, groups, 2)."""
    tokens, groups, width, centred = numbers
    x, gamma, beta, eps = memory(places, 0), memory(places, 1), memory(places, 2), memory(places, 3)[0]
    y, stats = memory(places, 4), memory(places, 5)
    for t in range(tokens * worker // workers, tokens * (worker + 1) // workers):
        for k in range(groups):
            low, start, place = _u(k * width), _u((t * groups + k) * width), _u(2 * (t * groups + k))
            mean, scale = _statistics(x, start, width, eps, centred)
            stats[place], stats[place + _u(1)] = mean, scale
            for d in range(width):
                y[start + _u(d)] = (x[start + _u(d)] - mean) * scale * gamma[low + _u(d)] + beta[low + _u(d)]


@entry
def _backward(worker, workers, numbers, places):
    """numbers: as forward. places: x, γ, the statistics, grad, and the results dx and per worker the sums of dγ and
    dβ."""
    tokens, groups, width, centred = numbers
    x, gamma, stats, grad = memory(places, 0), memory(places, 1), memory(places, 2), memory(places, 3)
    dx, sums = memory(places, 4), memory(places, 5)
    g, dgamma = np.empty(width, np.float32), _u(worker * 2 * groups * width)
    dbeta = dgamma + _u(groups * width)
    for t in range(tokens * worker // workers, tokens * (worker + 1) // workers):
        for k in range(groups):
            low, start, place = _u(k * width), _u((t * groups + k) * width), _u(2 * (t * groups + k))
            mean, scale = stats[place], stats[place + _u(1)]
            for d in range(width):
                g[d] = grad[start + _u(d)]
            for d in range(width):
                sums[dbeta + low + _u(d)] += g[d]
                sums[dgamma + low + _u(d)] += g[d] * ((x[start + _u(d)] - mean) * scale)
                g[d] *= gamma[low + _u(d)]
            total, weighted = _dots(g, x, start, width, mean, scale)
            total, weighted = (total / _f(width) if centred else ZERO), weighted / _f(width)
            for d in range(width):
                dx[start + _u(d)] = scale * (g[d] - total - (x[start + _u(d)] - mean) * scale * weighted)


class _TokenNorm(torch.autograd.Function):
    """x (B, L, D), weight and bias (D,), float32 on the CPU → y."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps, centred, groups):
        x, weight, bias = (in_order(t) for t in (x, weight, bias))
        tokens = x.shape[0] * x.shape[1]
        ctx.workers, ctx.numbers = min(scan_threads(), tokens), (tokens, groups, x.shape[2] // groups, centred)
        y, stats = empty(x.shape), empty(tokens, groups, 2)
        run(_forward, ctx.workers, ctx.numbers, [x, weight, bias, constant(1, eps), y, stats])
        ctx.save_for_backward(x, weight, stats)
        return y

    @staticmethod
    @backward_once
    def backward(ctx, grad):
        dx, sums = empty(grad.shape), zeros(ctx.workers, 2, grad.shape[2])
        run(_backward, ctx.workers, ctx.numbers, [*ctx.saved_tensors, in_order(grad), dx, sums])
        dweight, dbias = added_up(sums).unbind()
        return dx, dweight, dbias, None, None, None
