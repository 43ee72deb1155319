"""Norms over the channels of one token, fused on the CPU: LN, RMSN and GN-token, with the gate behind them.

    y = γ·(x − μ)/√(σ² + ε) + β,   then · SiLU(z) where a gate z is given          (μ = 0 for RMSN)

One pass over memory forward and one backward. With `fork` the input comes back as a second result, for a residual
branch to take: its gradient then joins in the same pass instead of one of its own. The readable twin is `plain`; it
runs for other dtypes and devices, and the tests hold the two against each other.
"""

from __future__ import annotations

import numba
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mambanorm.ssm.cpu import run, scan_threads
from mambanorm.ssm.kernels import ONE, ZERO, jit, sigmoid
from mambanorm.ssm.once import backward_once

_f = np.float32


def plain(x, weight, bias, eps, centred=True, groups=1, gate=None):
    """The readable twin of `token_norm`, in plain torch."""
    rows, shape = x.unflatten(-1, (groups, -1)), (x.shape[-1] // groups,)
    y = (F.layer_norm(rows, shape, eps=eps) if centred else F.rms_norm(rows, shape, eps=eps)).flatten(-2)
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    return y if gate is None else y * F.silu(gate)


def token_norm(x, weight, bias, eps, centred=True, groups=1, gate=None, fork=False):
    """The norm of each token's channel groups, for float32 on the CPU; x and gate (B, L, D), weight and bias (D,).

    Returns y (B, L, D); with `fork` (y, x). Differentiable once.
    """
    ones, zeros = (torch.full((x.shape[-1],), fill) for fill in (1.0, 0.0))
    weight, bias = (ones if weight is None else weight), (zeros if bias is None else bias)
    y, same = _TokenNorm.apply(x, weight, bias, gate, eps, centred, groups)
    return (y, same) if fork else y


# Loops run from 0 over slices: for an index that could be negative the compiler would gather instead of load.
@jit("reassoc")
def _sums(x, centre):
    """Σ (x − centre) and Σ (x − centre)²; only here, and in `_dots`, may the compiler reorder a sum."""
    total, squares = ZERO, ZERO
    for d in range(x.size):
        c = x[d] - centre
        total += c
        squares += c * c
    return total, squares


@jit("reassoc")
def _dots(g, x, mean, scale):
    """Σ g and Σ g·x̂."""
    total, weighted = ZERO, ZERO
    for d in range(x.size):
        total += g[d]
        weighted += g[d] * (x[d] - mean)
    return total, weighted * scale


@jit()
def _statistics(x, eps, centred):
    """Mean (0 where it is not taken out) and 1/√(variance + ε); centred in a second pass, so no digits are lost."""
    n, mean = _f(x.size), ZERO
    if centred:
        mean = _sums(x, ZERO)[0] / n
    rest, squares = _sums(x, mean)
    var = squares / n
    if centred:
        mean += rest / n
        var -= (rest / n) * (rest / n)
    return mean, ONE / np.sqrt(var + eps)


@jit()
def _forward_worker(worker, workers, x, z, gamma, beta, eps, centred, groups, y, stats):
    tokens, channels = x.shape
    width = channels // groups
    for t in range(tokens * worker // workers, tokens * (worker + 1) // workers):
        for k in range(groups):
            part = slice(k * width, (k + 1) * width)
            row, out, weight, shift = x[t, part], y[t, part], gamma[part], beta[part]
            mean, scale = _statistics(row, eps, centred)
            stats[t, k, 0], stats[t, k, 1] = mean, scale
            for d in range(width):
                out[d] = (row[d] - mean) * scale * weight[d] + shift[d]
        if z.size:
            gate, out = z[t], y[t]
            for d in range(channels):
                out[d] *= gate[d] * sigmoid(gate[d])


@jit()
def _ungate(x, gate, weight, shift, mean, scale, g, dgate):
    """g = g·SiLU(gate) in place, and dgate = g·y·SiLU'(gate), y recomputed."""
    for d in range(g.size):
        s = sigmoid(gate[d])
        y = (x[d] - mean) * scale * weight[d] + shift[d]
        dgate[d] = g[d] * y * s * (ONE + gate[d] * (ONE - s))
        g[d] *= gate[d] * s


@jit()
def _backward_worker(worker, workers, x, z, gamma, beta, centred, groups, stats, grad, passed, dx, dz, sums):
    """dx, dz, and per worker the sums of dγ (`sums[0]`) and dβ (`sums[1]`); `passed` joins dx if there is one."""
    tokens, channels = x.shape
    width = channels // groups
    g = np.empty(width, np.float32)
    for t in range(tokens * worker // workers, tokens * (worker + 1) // workers):
        for k in range(groups):
            part = slice(k * width, (k + 1) * width)
            row, out, weight, mean, scale = x[t, part], dx[t, part], gamma[part], stats[t, k, 0], stats[t, k, 1]
            dgamma, dbeta = sums[worker, 0, part], sums[worker, 1, part]
            g[:] = grad[t, part]
            if z.size:
                _ungate(row, z[t, part], weight, beta[part], mean, scale, g, dz[t, part])
            for d in range(width):
                dbeta[d] += g[d]
                dgamma[d] += g[d] * ((row[d] - mean) * scale)
                g[d] *= weight[d]
            total, weighted = _dots(g, row, mean, scale)
            total, weighted = (total / _f(width) if centred else ZERO), weighted / _f(width)
            for d in range(width):
                out[d] = scale * (g[d] - total - (row[d] - mean) * scale * weighted)
            if passed.size:
                more = passed[t, part]
                for d in range(width):
                    out[d] += more[d]


@jit(parallel=True)
def _forward(workers, arguments):
    for worker in numba.prange(workers):
        _forward_worker(worker, workers, *arguments)


@jit(parallel=True)
def _backward(workers, arguments):
    for worker in numba.prange(workers):
        _backward_worker(worker, workers, *arguments)


class _TokenNorm(torch.autograd.Function):
    """x and z (B, L, D) or z None, weight and bias (D,), float32 on the CPU → (y, x)."""

    @staticmethod
    def forward(ctx, x, weight, bias, z, eps, centred, groups):
        rows, gate = _rows(x), _rows(z)
        tokens = len(rows)
        ctx.cut, ctx.form = min(scan_threads(), tokens), (bool(centred), groups)
        y, stats = torch.empty(x.shape), torch.empty(tokens, groups, 2)
        affine = weight.detach().contiguous(), bias.detach().contiguous()
        given = _arrays(rows, gate, *affine)
        run(_forward, _forward_worker, ctx.cut, (*given, _f(eps), *ctx.form, *_arrays(y.view(rows.shape), stats)))
        ctx.save_for_backward(rows, gate, *affine, stats)
        ctx.set_materialize_grads(False)
        return y, x.view_as(x)

    @staticmethod
    @backward_once
    def backward(ctx, grad, passed):
        if grad is None:
            return passed, *[None] * 6
        rows, gate, weight, bias, stats = ctx.saved_tensors
        dx, dz, sums = torch.empty(grad.shape), torch.empty_like(gate), torch.zeros(ctx.cut, 2, rows.shape[1])
        arguments = (
            *_arrays(rows, gate, weight, bias), *ctx.form,
            *_arrays(stats, _rows(grad), _rows(passed), dx.view(rows.shape), dz, sums),
        )  # fmt: skip
        run(_backward, _backward_worker, ctx.cut, arguments)
        sums = sums.sum(0)  # in a fixed order: the same bits each time with the same number of threads
        return dx, sums[0], sums[1], dz.view(grad.shape) if gate.numel() else None, None, None, None


def _rows(x: Tensor | None) -> Tensor:
    """(B, L, D) as (B·L, D); None as nothing."""
    return torch.empty(0, 0) if x is None else x.detach().contiguous().view(-1, x.shape[-1])


def _arrays(*tensors):
    return tuple(tensor.numpy() for tensor in tensors)
