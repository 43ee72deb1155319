"""The causal depthwise convolution with its bias and SiLU, the step before the scan; fused on the CPU.

One pass over memory forward and one backward, where plain torch takes a dozen; `reference.causal_conv` is the readable
twin. Only u is kept for the backward pass, the rest is recomputed.

Glossary: B rows, L positions, E = d_inner channels, K taps of the kernel.
"""

import numba
import torch

from mambanorm.ssm.cpu import run, scan_threads
from mambanorm.ssm.kernels import ONE, jit, sigmoid
from mambanorm.ssm.once import backward_once


def conv_silu_cpu(u, weight, bias):
    """SiLU(causal_conv(u, weight, bias)) for float32 on the CPU; shapes as there. Differentiable once."""
    return _ConvSiLU.apply(u, weight, bias)


@jit()
def _convolve(u, weight, bias, b, t, low, high, row):
    """row = pre-activation of channels low…high at step t."""
    taps = weight.shape[0]
    row[:] = bias[low:high]
    for k in range(max(0, taps - 1 - t), taps):
        x, w = u[b, t - taps + 1 + k, low:high], weight[k, low:high]
        for d in range(row.size):
            row[d] += w[d] * x[d]


@jit()
def _forward_worker(worker, workers, segments, u, weight, bias, out):
    items, channels = u.shape[0] * segments, u.shape[2]
    for item in range(items * worker // workers, items * (worker + 1) // workers):
        b, segment = item // segments, item % segments
        low, high = channels * segment // segments, channels * (segment + 1) // segments
        for t in range(u.shape[1]):
            row = out[b, t, low:high]
            _convolve(u, weight, bias, b, t, low, high, row)
            for d in range(row.size):
                row[d] *= sigmoid(row[d])


@jit()
def _backward_worker(worker, workers, segments, u, weight, bias, grad, du, sums, scratch):
    """sums (workers, K + 1, E): the gradients of the taps, then of the bias."""
    items, channels, taps = u.shape[0] * segments, u.shape[2], weight.shape[0]
    for item in range(items * worker // workers, items * (worker + 1) // workers):
        b, segment = item // segments, item % segments
        low, high = channels * segment // segments, channels * (segment + 1) // segments
        da, dbias = scratch[worker, low:high], sums[worker, taps, low:high]
        for t in range(u.shape[1]):
            _convolve(u, weight, bias, b, t, low, high, da)
            g = grad[b, t, low:high]
            for d in range(da.size):
                s = sigmoid(da[d])
                da[d] = g[d] * s * (ONE + da[d] * (ONE - s))
                dbias[d] += da[d]
            for k in range(max(0, taps - 1 - t), taps):
                x, w = u[b, t - taps + 1 + k, low:high], weight[k, low:high]
                dx, dw = du[b, t - taps + 1 + k, low:high], sums[worker, k, low:high]
                for d in range(da.size):
                    dx[d] += w[d] * da[d]
                    dw[d] += x[d] * da[d]


@jit(parallel=True)
def _forward(workers, arguments):
    for worker in numba.prange(workers):
        _forward_worker(worker, workers, *arguments)


@jit(parallel=True)
def _backward(workers, arguments):
    for worker in numba.prange(workers):
        _backward_worker(worker, workers, *arguments)


class _ConvSiLU(torch.autograd.Function):
    """u (B, L, E), weight (E, 1, K), bias (E,), all float32 on the CPU."""

    @staticmethod
    def forward(ctx, u, weight, bias):
        u, taps = u.detach().contiguous(), weight.detach()[:, 0].t().contiguous()  # (K, E)
        threads = scan_threads()
        segments = 1 if u.shape[0] % threads == 0 else min(threads, u.shape[2])
        ctx.cut = min(threads, u.shape[0] * segments), segments
        ctx.save_for_backward(u, taps, bias)
        out = torch.empty_like(u)
        run(_forward, _forward_worker, ctx.cut[0], (segments, *_arrays(u, taps, bias, out)))
        return out

    @staticmethod
    @backward_once
    def backward(ctx, grad):
        u, taps, bias = ctx.saved_tensors
        workers, segments = ctx.cut
        du, scratch = torch.zeros_like(u), torch.empty(workers, u.shape[2])
        sums = torch.zeros(workers, taps.shape[0] + 1, u.shape[2])
        arguments = (segments, *_arrays(u, taps, bias, grad.contiguous(), du, sums, scratch))
        run(_backward, _backward_worker, workers, arguments)
        sums = sums.sum(0)  # in a fixed order: the same bits each time with the same number of threads
        return du, sums[:-1].t().unsqueeze(1), sums[-1]


def _arrays(*tensors):
    return tuple(tensor.detach().numpy() for tensor in tensors)
