"""The causal depthwise convolution with its bias and SiLU, the step before the scan; fused on the CPU.

It takes one pass over memory forward and one backward, where plain torch takes a dozen. The readable twin is
`causal_conv` in operations/conv_gate.py. Only u is kept for the backward pass, the rest is recomputed. As in the scan,
a worker walks through the steps of a block of LANES channels. A ring buffer of K rows holds the last K inputs, or
gradients.

Glossary: B rows, L positions, E = d_inner channels, K taps of the kernel.
"""

import numpy as np
import torch

from mambanorm.kernels.once_differentiable import backward_once
from mambanorm.kernels.runtime import (
    LANES,
    ONE,
    ZERO,
    add_product,
    added_up,
    empty,
    entry,
    jit,
    load,
    memory,
    run,
    sigmoid,
    store,
    zeros,
)
from mambanorm.kernels.threads import scan_threads


def conv_silu_cpu(u, weight, bias):
    """SiLU(causal_conv(u, weight, bias)) for float32 on the CPU; shapes as there. Differentiable once."""
    return _ConvSiLU.apply(u, weight, bias.contiguous())


@jit()
def load_taps(w, bias, taps, channels, d0, width, fixed):
    """Copies to `fixed`: the block's bias in the first row, then its taps, a row each."""
    fixed[:] = ZERO
    load(fixed, 0, 0, bias, d0, width)
    for k in range(taps):
        load(fixed, 1 + k, 0, w, k * channels + d0, width)


@jit(inline="always")
def _convolve(t, taps, fixed, ring, row):
    """row = bias + Σ_k w_k · u_(t−K+1+k); the ring holds u of the last K steps, zero before the first."""
    load(row, 0, 0, fixed, 0, LANES)
    for k in range(taps):
        add_product(row, 0, fixed, (1 + k) * LANES, ring, (t + 1 + k) % taps * LANES)


@entry
def _forward(worker, workers, numbers, places):
    """numbers: B, L, E, K. places: u, taps, bias, and the result."""
    batch, length, channels, taps = numbers
    u, w, bias, out = memory(places, 0), memory(places, 1), memory(places, 2), memory(places, 3)
    blocks = (channels + LANES - 1) // LANES
    ring, fixed = np.empty((taps, LANES), np.float32), np.empty((taps + 1, LANES), np.float32)
    row = np.zeros((1, LANES), np.float32)
    for item in range(batch * blocks * worker // workers, batch * blocks * (worker + 1) // workers):
        b, d0 = item // blocks, item % blocks * LANES
        width = min(LANES, channels - d0)
        load_taps(w, bias, taps, channels, d0, width, fixed)
        ring[:] = ZERO
        for t in range(length):
            place = (b * length + t) * channels + d0
            load(ring, t % taps, 0, u, place, width)
            _convolve(t, taps, fixed, ring, row)
            for d in range(LANES):
                row[0, d] *= sigmoid(row[0, d])
            store(row, 0, 0, out, place, width)


@entry
def _backward(worker, workers, numbers, places):
    """numbers: B, L, E, K. places: u, taps, bias, grad, and the results du and sums: each worker adds the gradients of
    the bias, then of the taps, to its own sums (K + 1, E)."""
    batch, length, channels, taps = numbers
    u, w, bias, grad = memory(places, 0), memory(places, 1), memory(places, 2), memory(places, 3)
    du, all_sums = memory(places, 4), memory(places, 5)
    share, blocks = (taps + 1) * channels, (channels + LANES - 1) // LANES
    ring, fixed = np.empty((taps, LANES), np.float32), np.empty((taps + 1, LANES), np.float32)
    back, row = np.empty((taps, LANES), np.float32), np.zeros((1, 2 * LANES), np.float32)
    sums = np.empty((taps + 1, LANES), np.float32)
    one = np.ones(LANES, np.float32)
    for item in range(batch * blocks * worker // workers, batch * blocks * (worker + 1) // workers):
        b, d0 = item // blocks, item % blocks * LANES
        width = min(LANES, channels - d0)
        load_taps(w, bias, taps, channels, d0, width, fixed)
        ring[:] = ZERO
        back[:] = ZERO
        sums[:] = ZERO
        for t in range(length + taps - 1):  # du of a step is complete K − 1 steps after it
            place, now = (b * length + t) * channels + d0, t % taps
            row[0, LANES:] = ZERO
            if t < length:
                load(ring, now, 0, u, place, width)
                _convolve(t, taps, fixed, ring, row)
                load(row, 0, LANES, grad, place, width)
                for d in range(LANES):
                    a = row[0, d]
                    s = sigmoid(a)
                    row[0, LANES + d] *= s * (ONE + a * (ONE - s))
                add_product(sums, 0, row, LANES, one, 0)
                for k in range(taps):
                    add_product(sums, (1 + k) * LANES, ring, (t + 1 + k) % taps * LANES, row, LANES)
            store(row, 0, LANES, back, now * LANES, LANES)
            if t >= taps - 1:
                row[0, :LANES] = ZERO
                for k in range(taps):
                    add_product(row, 0, fixed, (1 + k) * LANES, back, (t - k) % taps * LANES)
                store(row, 0, 0, du, place - (taps - 1) * channels, width)
        for k in range(taps + 1):
            for d in range(width):
                all_sums[worker * share + k * channels + d0 + d] += sums[k, d]


def conv_forward(u, taps, bias):
    """SiLU of the convolution, (B, L, E) → (B, L, E), from the taps (K, E)."""
    out = empty(u.shape)
    run(_forward, _workers(u), [*u.shape, len(taps)], [u, taps, bias, out])
    return out


def conv_backward(u, taps, bias, grad):
    """The gradients of u (B, L, E), weight (E, 1, K) and bias (E,) from that of the result."""
    workers, du = _workers(u), empty(u.shape)
    sums = zeros(workers, len(taps) + 1, u.shape[2])
    run(_backward, workers, [*u.shape, len(taps)], [u, taps, bias, grad, du, sums])
    sums = added_up(sums)
    return du, sums[1:].t().unsqueeze(1), sums[0]


def taps_of(weight):
    """The kernel (E, 1, K) as the loops read it, (K, E)."""
    return weight.detach()[:, 0].t().contiguous()


def _workers(u):
    return min(scan_threads(), u.shape[0] * -(-u.shape[2] // LANES))


class _ConvSiLU(torch.autograd.Function):
    """u (B, L, E), weight (E, 1, K), bias (E,), all float32 on the CPU."""

    @staticmethod
    def forward(ctx, u, weight, bias):
        u, taps = u.detach().contiguous(), taps_of(weight)
        ctx.save_for_backward(u, taps, bias)
        return conv_forward(u, taps, bias)

    @staticmethod
    @backward_once
    def backward(ctx, grad):
        u, taps, bias = ctx.saved_tensors
        return conv_backward(u, taps, bias, grad.contiguous())
