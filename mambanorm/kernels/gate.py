"""The gate of a block, y·SiLU(z), fused on the CPU: one pass over memory forward and one backward.

Plain torch takes two passes forward and four backward, and keeps SiLU(z). The readable twin is the last line of `gated`
in operations/conv_gate.py.
"""

import numba
import numpy as np
import torch

from mambanorm.kernels.once_differentiable import backward_once
from mambanorm.kernels.runtime import ONE, empty, in_order, jit, memory, places, run, sigmoid
from mambanorm.kernels.threads import scan_threads

LEAST = 16_384  # numbers a worker has at least: below, starting it costs more than it saves


def gated_cpu(y, z):
    """y·SiLU(z) for float32 tensors of one shape on the CPU. Differentiable once."""
    return _Gated.apply(y, z)


@jit()
def _forward_worker(worker, workers, size, places):
    y, z, out = memory(places, 0), memory(places, 1), memory(places, 2)
    for k in range(size * worker // workers, size * (worker + 1) // workers):
        i = np.uintp(k)  # unsigned: an index that could be negative would keep the loop from being vectorised
        out[i] = y[i] * (z[i] * sigmoid(z[i]))


@jit()
def _backward_worker(worker, workers, size, places):
    """places: y, z, grad, and the results dy and dz."""
    y, z, grad = memory(places, 0), memory(places, 1), memory(places, 2)
    dy, dz = memory(places, 3), memory(places, 4)
    for k in range(size * worker // workers, size * (worker + 1) // workers):
        i = np.uintp(k)
        s = sigmoid(z[i])
        dy[i] = grad[i] * (z[i] * s)
        dz[i] = grad[i] * y[i] * s * (ONE + z[i] * (ONE - s))


@jit(parallel=True)
def _forward(workers, arguments):
    for worker in numba.prange(workers):
        _forward_worker(worker, workers, *arguments)


@jit(parallel=True)
def _backward(workers, arguments):
    for worker in numba.prange(workers):
        _backward_worker(worker, workers, *arguments)


def _workers(size):
    return max(1, min(scan_threads(), size // LEAST))


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, z):
        y, z = in_order(y.detach()), in_order(z.detach())
        size, out = y.numel(), empty(y.shape)
        run(_forward, _forward_worker, _workers(size), (size, places([y, z, out])))
        ctx.save_for_backward(y, z)
        return out

    @staticmethod
    @backward_once
    def backward(ctx, grad):
        (y, z), grad = ctx.saved_tensors, in_order(grad)  # held by a name until the kernel has read its memory
        size, dy, dz = y.numel(), empty(y.shape), empty(y.shape)
        run(_backward, _backward_worker, _workers(size), (size, places([y, z, grad, dy, dz])))
        return dy, dz
