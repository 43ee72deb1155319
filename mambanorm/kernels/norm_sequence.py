"""The two passes over memory that every norm along L needs, fused on the CPU: moments of x, and y = (x − μ)·s + β.

    moments(x, lengths)                    m, v (B, 1, D), as in norms/masked_moments.py, and x
    centre_scale(x, mean, scale, shift)    (x − mean)·scale + shift

Plain torch makes a temporary tensor for every operation, forward and backward; here each function is one loop that
stays in the cache. What lies between the two, the pooling of (B, 1, D) numbers into a norm's statistics, is left to
torch. `moments` also returns x. What takes this x sends its gradient back through the same loop, which saves a pass to
add the two gradients. The readable twins are the plain lines of `channel_moments` and `standardize` in
norms/masked_moments.py. They run for other dtypes and devices, and the tests compare the two.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mambanorm.kernels.once_differentiable import backward_once
from mambanorm.kernels.runtime import EMPTY, ZERO, constant, empty, entry, in_order, memory, run, whole_numbers
from mambanorm.kernels.threads import scan_threads

_f = np.float32
_TWO, _u = _f(2), np.uintp


def moments(x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and centred second moment over the valid positions of each row and channel, (B, 1, D) each; and x."""
    return _Moments.apply(x, lengths)


def centre_scale(x: Tensor, mean: Tensor | None, scale: Tensor, shift: Tensor | None) -> Tensor:
    """(x − mean)·scale + shift, (B, L, D); mean and scale broadcast to (B, 1, D), shift (D,), None = 0."""
    return _CentreScale.apply(x, mean, scale, shift)


# All arrays are flat memory, offsets unsigned: see norm_token. A row's (B, D) numbers start at `own`, a step at `at`.
# numbers: B, L, D. `lengths` are the valid positions of each row; of size 0 if all are.
@entry
def _moments_forward(worker, workers, numbers, places):
    """places: lengths, x, and the results m and v."""
    batch, length, channels = numbers
    lengths, x, m, v = whole_numbers(places, 0, 1), memory(places, 1), memory(places, 2), memory(places, 3)
    mean, rest, square = np.empty(channels, np.float32), np.empty(channels, np.float32), np.empty(channels, np.float32)
    for b in range(batch * worker // workers, batch * (worker + 1) // workers):
        n, own = lengths[b, 0] if lengths.size else length, _u(b * channels)
        mean[:] = ZERO
        rest[:] = ZERO
        square[:] = ZERO
        for t in range(n):
            at = _u((b * length + t) * channels)
            for d in range(channels):
                mean[d] += x[at + _u(d)]
        for d in range(channels):
            mean[d] /= _f(n)
        for t in range(n):  # a second pass, centred: no digits are lost at a mean far above the spread,
            at = _u((b * length + t) * channels)
            for d in range(channels):
                c = x[at + _u(d)] - mean[d]
                rest[d] += c
                square[d] += c * c
        for d in range(channels):  # and what the first pass has lost of the mean is put back
            c = rest[d] / _f(n)
            m[own + _u(d)] = mean[d] + c
            v[own + _u(d)] = square[d] / _f(n) - c * c


@entry
def _moments_backward(worker, workers, numbers, places):
    """places: lengths, x, m, dm, dv, passed, and the result dx = passed + (dm + 2·dv·(x − m)) / n; at the padding
    passed."""
    batch, length, channels = numbers
    lengths, x, m, dm = whole_numbers(places, 0, 1), memory(places, 1), memory(places, 2), memory(places, 3)
    dv, passed, dx = memory(places, 4), memory(places, 5), memory(places, 6)
    shift, slope = np.empty(channels, np.float32), np.empty(channels, np.float32)
    for b in range(batch * worker // workers, batch * (worker + 1) // workers):
        n, own = lengths[b, 0] if lengths.size else length, _u(b * channels)
        for d in range(channels):
            slope[d] = _TWO * dv[own + _u(d)] / _f(n)
            shift[d] = dm[own + _u(d)] / _f(n)
        for t in range(length):
            at = _u((b * length + t) * channels)
            if t < n:
                for d in range(channels):
                    dx[at + _u(d)] = passed[at + _u(d)] + (shift[d] + slope[d] * (x[at + _u(d)] - m[own + _u(d)]))
            else:
                for d in range(channels):
                    dx[at + _u(d)] = passed[at + _u(d)]


@entry
def _apply_forward(worker, workers, numbers, places):
    """places: x, mean, scale, shift, and the result y."""
    batch, length, channels = numbers
    x, mean, scale = memory(places, 0), memory(places, 1), memory(places, 2)
    shift, y = memory(places, 3), memory(places, 4)
    for b in range(batch * worker // workers, batch * (worker + 1) // workers):
        own = _u(b * channels)
        for t in range(length):
            at = _u((b * length + t) * channels)
            for d in range(channels):
                y[at + _u(d)] = (x[at + _u(d)] - mean[own + _u(d)]) * scale[own + _u(d)] + shift[_u(d)]


@entry
def _apply_backward(worker, workers, numbers, places):
    """places: x, mean, scale, grad g, and the results dx = g·scale and, per row and channel, Σ_l g and
    Σ_l g·(x − mean)."""
    batch, length, channels = numbers
    x, mean, scale, grad = memory(places, 0), memory(places, 1), memory(places, 2), memory(places, 3)
    dx, sum_g, sum_gx = memory(places, 4), memory(places, 5), memory(places, 6)
    total, weighted = np.empty(channels, np.float32), np.empty(channels, np.float32)
    for b in range(batch * worker // workers, batch * (worker + 1) // workers):
        own = _u(b * channels)
        total[:] = ZERO
        weighted[:] = ZERO
        for t in range(length):
            at = _u((b * length + t) * channels)
            for d in range(channels):
                g = grad[at + _u(d)]
                dx[at + _u(d)] = g * scale[own + _u(d)]
                total[d] += g
                weighted[d] += g * (x[at + _u(d)] - mean[own + _u(d)])
        for d in range(channels):
            sum_g[own + _u(d)] = total[d]
            sum_gx[own + _u(d)] = weighted[d]


def _start(kernel, shape, tensors: list[Tensor]) -> None:
    """Runs a kernel over the rows of the batch; a row has one worker, so results do not depend on the thread count."""
    run(kernel, min(scan_threads(), shape[0]), shape, tensors)


class _Moments(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lengths):
        rows, (B, _, D) = in_order(x), x.shape
        ctx.lengths = EMPTY if lengths is None else lengths.long().contiguous()
        m, v = empty(B, 1, D), empty(B, 1, D)
        _start(_moments_forward, x.shape, [ctx.lengths, rows, m, v])
        ctx.save_for_backward(rows, m)
        return m, v, x.view_as(x)

    @staticmethod
    @backward_once
    def backward(ctx, dm, dv, passed):
        x, m = ctx.saved_tensors
        dx = torch.empty_like(x)
        _start(_moments_backward, x.shape, [ctx.lengths, x, m, in_order(dm), in_order(dv), in_order(passed), dx])
        return dx, None


class _CentreScale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mean, scale, shift):
        rows, (B, _, D) = in_order(x), x.shape
        mu, s = (t.expand(B, 1, D).contiguous() for t in (constant(D, 0.0) if mean is None else mean, scale))
        beta = constant(D, 0.0) if shift is None else in_order(shift)
        y = torch.empty_like(rows)
        _start(_apply_forward, x.shape, [rows, mu, s, beta, y])
        ctx.save_for_backward(rows, mu, s)
        ctx.shapes = [None if t is None else t.shape for t in (mean, scale, shift)]
        return y

    @staticmethod
    @backward_once
    def backward(ctx, grad):
        x, mu, s = ctx.saved_tensors
        dx, sum_g, sum_gx = torch.empty_like(x), torch.empty_like(mu), torch.empty_like(mu)
        _start(_apply_backward, x.shape, [x, mu, s, in_order(grad), dx, sum_g, sum_gx])
        of_mean, of_scale, of_shift = ctx.shapes  # each was broadcast to (B, 1, D): its gradient is the sum over that
        dmean = None if of_mean is None else (-sum_g * s).sum_to_size(of_mean)
        dshift = None if of_shift is None else sum_g.sum_to_size(of_shift)
        return dx, dmean, sum_gx.sum_to_size(of_scale), dshift
