"""The two passes over memory that every norm along L needs, fused on the CPU: moments of x, and y = (x − μ)·s + β.

    moments(x, lengths)                              m, v (B, 1, D), as `moments.channel_moments` has them, and x
    centre_scale(x, mean, scale, shift, gate, fork)  (x − mean)·scale + shift, then · SiLU(gate) if there is one

Plain torch makes a temporary tensor for every operation, forward and backward; here each function is one loop that
stays in the cache. What lies between the two, the pooling of (B, 1, D) numbers into a norm's statistics, is left to
torch. Both hand x on as a result of their own (`centre_scale` with `fork`): whoever takes x from there sends its
gradient back through the same loop, which saves a pass to add the two. The readable twins are the plain lines of
`channel_moments` and `standardize` in moments.py: they run for other dtypes and devices, and the tests hold the two
against each other.
"""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from mambanorm.ssm.cpu import run, scan_threads
from mambanorm.ssm.kernels import ONE, ZERO, jit, sigmoid
from mambanorm.ssm.once import backward_once

_f = np.float32
_TWO = _f(2)


def moments(x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and centred second moment over the valid positions of each row and channel, (B, 1, D) each; and x."""
    return _Moments.apply(x, lengths)


def centre_scale(
    x: Tensor,
    mean: Tensor | None,
    scale: Tensor,
    shift: Tensor | None,
    gate: Tensor | None = None,
    fork: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """((x − mean)·scale + shift)·SiLU(gate); mean and scale broadcast to (B, 1, D), shift (D,), None = 0.

    x and gate (B, L, D), gate None = no gate. With `fork` returns (y, x).
    """
    y, same = _CentreScale.apply(x, mean, scale, shift, gate)
    return (y, same) if fork else y


@jit()
def _moments_worker(worker, workers, x, lengths, m, v):
    batch, channels = x.shape[0], x.shape[2]
    rest = np.empty(channels, np.float32)
    for b in range(batch * worker // workers, batch * (worker + 1) // workers):
        n, mean, square = lengths[b], m[b], v[b]
        for t in range(n):
            row = x[b, t]
            for d in range(channels):
                mean[d] += row[d]
        for d in range(channels):
            mean[d] /= _f(n)
        rest[:] = ZERO
        for t in range(n):  # a second pass, centred: no digits are lost at a mean far above the spread,
            row = x[b, t]
            for d in range(channels):
                c = row[d] - mean[d]
                rest[d] += c
                square[d] += c * c
        for d in range(channels):  # and what the first pass has lost of the mean is put back
            c = rest[d] / _f(n)
            mean[d] += c
            square[d] = square[d] / _f(n) - c * c


@jit()
def _moments_grad_worker(worker, workers, x, lengths, m, dm, dv, passed, dx):
    """dx = passed + (dm + 2·dv·(x − m)) / n at the valid positions; `passed` alone at the others."""
    batch, channels = x.shape[0], x.shape[2]
    for b in range(batch * worker // workers, batch * (worker + 1) // workers):
        n, mean, gm, gv = lengths[b], m[b], dm[b], dv[b]
        for t in range(x.shape[1]):
            row, out, more = x[b, t], dx[b, t], passed[b, t]
            if t >= n:
                out[:] = more
                continue
            for d in range(channels):
                out[d] = more[d] + (gm[d] + _TWO * gv[d] * (row[d] - mean[d])) / _f(n)


@jit()
def _apply_worker(worker, workers, x, gate, mean, scale, shift, y):
    batch, channels = x.shape[0], x.shape[2]
    for b in range(batch * worker // workers, batch * (worker + 1) // workers):
        mu, s = mean[b], scale[b]
        for t in range(x.shape[1]):
            row, out = x[b, t], y[b, t]
            for d in range(channels):
                out[d] = (row[d] - mu[d]) * s[d] + shift[d]
            if gate.size:
                z = gate[b, t]
                for d in range(channels):
                    out[d] *= z[d] * sigmoid(z[d])


@jit()
def _apply_grad_worker(worker, workers, x, gate, mean, scale, shift, grad, passed, dx, dgate, sum_g, sum_gx):
    """dx = g·scale + passed, dgate, and per row and channel Σ_l g and Σ_l g·(x − mean); g is grad · SiLU(gate)."""
    batch, channels = x.shape[0], x.shape[2]
    g = np.empty(channels, np.float32)
    for b in range(batch * worker // workers, batch * (worker + 1) // workers):
        mu, s, total, weighted = mean[b], scale[b], sum_g[b], sum_gx[b]
        for t in range(x.shape[1]):
            row, out = x[b, t], dx[b, t]
            g[:] = grad[b, t]
            if gate.size:
                z, target = gate[b, t], dgate[b, t]
                for d in range(channels):
                    p = sigmoid(z[d])
                    target[d] = g[d] * ((row[d] - mu[d]) * s[d] + shift[d]) * p * (ONE + z[d] * (ONE - p))
                    g[d] *= z[d] * p
            for d in range(channels):
                out[d] = g[d] * s[d]
                total[d] += g[d]
                weighted[d] += g[d] * (row[d] - mu[d])
            if passed.size:
                more = passed[b, t]
                for d in range(channels):
                    out[d] += more[d]


@jit(parallel=True)
def _moments_forward(workers, arguments):
    for worker in numba.prange(workers):
        _moments_worker(worker, workers, *arguments)


@jit(parallel=True)
def _moments_backward(workers, arguments):
    for worker in numba.prange(workers):
        _moments_grad_worker(worker, workers, *arguments)


@jit(parallel=True)
def _apply_forward(workers, arguments):
    for worker in numba.prange(workers):
        _apply_worker(worker, workers, *arguments)


@jit(parallel=True)
def _apply_backward(workers, arguments):
    for worker in numba.prange(workers):
        _apply_grad_worker(worker, workers, *arguments)


def _start(parallel, serial, batch: int, *tensors: Tensor) -> None:
    """Runs a kernel over the rows of the batch; each row is one worker's, so results do not depend on the threads."""
    run(parallel, serial, min(scan_threads(), batch), tuple(tensor.numpy() for tensor in tensors))


class _Moments(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lengths):
        rows = x.detach().contiguous()
        B, L, D = x.shape
        n = torch.full((B,), L) if lengths is None else lengths.long()
        m, v = torch.zeros(B, D), torch.zeros(B, D)
        _start(_moments_forward, _moments_worker, B, rows, n, m, v)
        ctx.save_for_backward(rows, n, m)
        return m[:, None], v[:, None], x.view_as(x)

    @staticmethod
    @backward_once
    def backward(ctx, dm, dv, passed):
        x, n, m = ctx.saved_tensors
        dm, dv = (g.expand(len(x), 1, x.shape[2])[:, 0].contiguous() for g in (dm, dv))
        dx = torch.empty_like(x)
        _start(_moments_backward, _moments_grad_worker, len(x), x, n, m, dm, dv, passed.contiguous(), dx)
        return dx, None


class _CentreScale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mean, scale, shift, gate):
        rows, z = _contiguous(x), _contiguous(gate)
        B, _, D = x.shape
        mu, s = (_per_row(t, B, D) for t in (mean, scale))
        beta = torch.zeros(D) if shift is None else shift.detach().contiguous()
        y = torch.empty_like(rows)
        _start(_apply_forward, _apply_worker, B, rows, z, mu, s, beta, y)
        ctx.save_for_backward(rows, z, mu, s, beta)
        ctx.shapes = [None if t is None else t.shape for t in (mean, scale, shift)]
        ctx.set_materialize_grads(False)
        return y, x.view_as(x)

    @staticmethod
    @backward_once
    def backward(ctx, grad, passed):
        if grad is None:
            return passed, None, None, None, None
        x, z, mu, s, beta = ctx.saved_tensors
        dx, dz, sum_g, sum_gx = torch.empty_like(x), torch.empty_like(z), torch.zeros_like(mu), torch.zeros_like(mu)
        given = x, z, mu, s, beta, grad.contiguous(), _contiguous(passed)
        _start(_apply_backward, _apply_grad_worker, len(x), *given, dx, dz, sum_g, sum_gx)
        parts = (-sum_g * s, sum_gx, sum_g)  # of mean, scale and shift, each (B, D)
        parts = (None if shape is None else _to_shape(p, shape) for p, shape in zip(parts, ctx.shapes))
        return dx, *parts, dz if z.numel() else None


def _contiguous(x: Tensor | None) -> Tensor:
    """(B, L, D) laid out in order; None as nothing."""
    return torch.empty(0, 0, 0) if x is None else x.detach().contiguous()


def _per_row(t: Tensor | None, B: int, D: int) -> Tensor:
    """Anything that broadcasts to (B, 1, D), as a contiguous (B, D); None as zeros."""
    return torch.zeros(B, D) if t is None else t.detach().expand(B, 1, D)[:, 0].contiguous()


def _to_shape(part: Tensor, shape: torch.Size) -> Tensor:
    """The gradient of what was broadcast to (B, D): summed over the axes that it did not have."""
    return part[:, None].sum_to_size(shape) if len(shape) == 3 else part.sum_to_size(shape)
