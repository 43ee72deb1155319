"""The two passes over memory that every norm along L needs, fused on the CPU: moments of x, and y = (x − μ)·s + β.

    moments(x, lengths)                  m, v (B, 1, D), as `moments.channel_moments` has them
    centre_scale(x, mean, scale, shift)  (x − mean)·scale + shift

Plain torch makes a temporary tensor for every operation, forward and backward; here each function is one loop that
stays in the cache. What lies between the two, the pooling of (B, 1, D) numbers into a norm's statistics, is left to
torch. The readable twins are the plain lines of `channel_moments` and `standardize` in moments.py: they run for other
dtypes and devices, and the tests hold the two against each other.
"""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from mambanorm.ssm.cpu import run, scan_threads
from mambanorm.ssm.kernels import ZERO, jit
from mambanorm.ssm.once import backward_once

_f = np.float32
_TWO = _f(2)


def moments(x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and centred second moment over the valid positions of each row and channel, (B, 1, D) each."""
    return _Moments.apply(x, lengths)


def centre_scale(x: Tensor, mean: Tensor | None, scale: Tensor, shift: Tensor | None) -> Tensor:
    """(x − mean)·scale + shift; mean and scale broadcast to (B, 1, D), shift (D,), None = 0."""
    return _CentreScale.apply(x, mean, scale, shift)


def warm_up() -> None:
    """Compiles the kernels, if the disk cache has not got them, for one thread and for several."""
    x, before = torch.zeros(2, 1, 1, requires_grad=True), torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        m, v = moments(x, None)
        centre_scale(x, m, v, None).sum().backward()
    torch.set_num_threads(before)


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
def _moments_grad_worker(worker, workers, x, lengths, m, dm, dv, dx):
    batch, channels = x.shape[0], x.shape[2]
    for b in range(batch * worker // workers, batch * (worker + 1) // workers):
        n, mean, gm, gv = lengths[b], m[b], dm[b], dv[b]
        for t in range(n):
            row, out = x[b, t], dx[b, t]
            for d in range(channels):
                out[d] = (gm[d] + _TWO * gv[d] * (row[d] - mean[d])) / _f(n)


@jit()
def _apply_worker(worker, workers, x, mean, scale, shift, y):
    batch, channels = x.shape[0], x.shape[2]
    for b in range(batch * worker // workers, batch * (worker + 1) // workers):
        mu, s = mean[b], scale[b]
        for t in range(x.shape[1]):
            row, out = x[b, t], y[b, t]
            for d in range(channels):
                out[d] = (row[d] - mu[d]) * s[d] + shift[d]


@jit()
def _apply_grad_worker(worker, workers, x, mean, scale, grad, dx, sum_g, sum_gx):
    """dx = g·scale, and per row and channel Σ_l g and Σ_l g·(x − mean)."""
    batch, channels = x.shape[0], x.shape[2]
    for b in range(batch * worker // workers, batch * (worker + 1) // workers):
        mu, s, total, weighted = mean[b], scale[b], sum_g[b], sum_gx[b]
        for t in range(x.shape[1]):
            row, g, out = x[b, t], grad[b, t], dx[b, t]
            for d in range(channels):
                out[d] = g[d] * s[d]
                total[d] += g[d]
                weighted[d] += g[d] * (row[d] - mu[d])


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
        x = x.detach().contiguous()
        B, L, D = x.shape
        n = torch.full((B,), L) if lengths is None else lengths.long()
        m, v = torch.zeros(B, D), torch.zeros(B, D)
        _start(_moments_forward, _moments_worker, B, x, n, m, v)
        ctx.save_for_backward(x, n, m)
        return m[:, None], v[:, None]

    @staticmethod
    @backward_once
    def backward(ctx, dm, dv):
        x, n, m = ctx.saved_tensors
        dm, dv = (g.expand(len(x), 1, x.shape[2])[:, 0].contiguous() for g in (dm, dv))
        dx = torch.zeros_like(x)
        _start(_moments_backward, _moments_grad_worker, len(x), x, n, m, dm, dv, dx)
        return dx, None


class _CentreScale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mean, scale, shift):
        x = x.detach().contiguous()
        B, _, D = x.shape
        mu, s = (_per_row(t, B, D) for t in (mean, scale))
        beta = torch.zeros(D) if shift is None else shift.detach().contiguous()
        y = torch.empty_like(x)
        _start(_apply_forward, _apply_worker, B, x, mu, s, beta, y)
        ctx.save_for_backward(x, mu, s)
        ctx.shapes = [None if t is None else t.shape for t in (mean, scale, shift)]
        return y

    @staticmethod
    @backward_once
    def backward(ctx, grad):
        x, mu, s = ctx.saved_tensors
        dx, sum_g, sum_gx = torch.empty_like(x), torch.zeros_like(mu), torch.zeros_like(mu)
        _start(_apply_backward, _apply_grad_worker, len(x), x, mu, s, grad.contiguous(), dx, sum_g, sum_gx)
        parts = (-sum_g * s, sum_gx, sum_g)  # of mean, scale and shift, each (B, D)
        return dx, *(None if shape is None else _to_shape(p, shape) for p, shape in zip(parts, ctx.shapes))


def _per_row(t: Tensor | None, B: int, D: int) -> Tensor:
    """Anything that broadcasts to (B, 1, D), as a contiguous (B, D); None as zeros."""
    return torch.zeros(B, D) if t is None else t.detach().expand(B, 1, D)[:, 0].contiguous()


def _to_shape(part: Tensor, shape: torch.Size) -> Tensor:
    """The gradient of what was broadcast to (B, D): summed over the axes that it did not have."""
    return part[:, None].sum_to_size(shape) if len(shape) == 3 else part.sum_to_size(shape)
