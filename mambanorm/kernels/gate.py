"""The gate of a block, y·SiLU(z), fused on the CPU: one pass over memory forward and one backward.

Plain torch takes two passes forward and four backward, and keeps SiLU(z). The readable twin is the last line of `gated`
in operations/conv_gate.py.
"""

import numpy as np
import torch

from mambanorm.kernels.once_differentiable import backward_once
from mambanorm.kernels.runtime import ONE, empty, entry, in_order, memory, run, sigmoid
from mambanorm.kernels.threads import scan_threads

LEAST = 16_384  # numbers a worker has at least: below, starting it costs more than it saves


def gated_cpu(y, z):
    """y·SiLU(z) for float32 tensors of one shape on the CPU. Differentiable once."""
    return _Gated.apply(y, z)


@entry
def _forward(worker, workers, numbers, places):
    """numbers: the size. places: y, z, and the result."""
    y, z, out = memory(places, 0), memory(places, 1), memory(places, 2)
    size = numbers[0]
    for k in range(size * worker // workers, size * (worker + 1) // workers):
        i = np.uintp(k)  # unsigned: an index that could be negative would keep the loop from being vectorised
        out[i] = y[i] * (z[i] * sigmoid(z[i]))


@entry
def _backward(worker, workers, numbers, places):
    """numbers: the size. places: y, z, grad, and the results dy and dz."""
    y, z, grad = memory(places, 0), memory(places, 1), memory(places, 2)
    dy, dz = memory(places, 3), memory(places, 4)
    size = numbers[0]
    for k in range(size * worker // workers, size * (worker + 1) // workers):
        i = np.uintp(k)
        s = sigmoid(z[i])
        dy[i] = grad[i] * (z[i] * s)
        dz[i] = grad[i] * y[i] * s * (ONE + z[i] * (ONE - s))


def _workers(size):
    return max(1, min(scan_threads(), size // LEAST))


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, z):
        y, z = in_order(y.detach()), in_order(z.detach())
        size, out = y.numel(), empty(y.shape)
        run(_forward, _workers(size), [size], [y, z, out])
        ctx.save_for_backward(y, z)
        return out

    @staticmethod
    @backward_once
    def backward(ctx, grad):
        y, z = ctx.saved_tensors
        size, dy, dz = y.numel(), empty(y.shape), empty(y.shape)
        run(_backward, _workers(size), [size], [y, z, in_order(grad), dy, dz])
        return dy, dz
