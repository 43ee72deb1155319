"""The depthwise convolution of an image with its bias and SiLU, fused on the CPU.

As conv.py, in two dimensions and centred: a worker takes a block of LANES channels of an image, with a border of zeros.
The readable twin is `centred_conv` in operations/conv_gate.py.

Glossary: B rows of the batch, H and W of the image, L = H·W, E channels, K×K taps, K odd.
"""

import numpy as np
import torch

from mambanorm.kernels.conv import load_taps
from mambanorm.kernels.once_differentiable import backward_once
from mambanorm.kernels.runtime import (
    LANES,
    ONE,
    ZERO,
    add_product,
    added_up,
    empty,
    entry,
    in_order,
    jit,
    load,
    memory,
    run,
    sigmoid,
    store,
    zeros,
)
from mambanorm.kernels.threads import scan_threads


def conv_silu_2d_cpu(u, weight, bias):
    """SiLU(centred_conv(u, weight, bias)) for float32 on the CPU; shapes as there. Differentiable once."""
    return _ConvSiLU2d.apply(u, weight, bias.contiguous())


@jit(inline="always")
def _convolve(corner, side, reach, fixed, image, row):
    """row = bias + Σ_ij w_ij · the pixel (i, j) down and right of a corner; image has a border of zeros."""
    taps = 2 * reach + 1
    load(row, 0, 0, fixed, 0, LANES)
    for i in range(taps):
        for j in range(taps):
            add_product(row, 0, fixed, (1 + i * taps + j) * LANES, image, (corner + i * side + j) * LANES)


@jit()
def _load_image(u, b, height, width, channels, d0, lanes, reach, image):
    """A block of channels of image b, row after row, inside its border of zeros."""
    for y in range(height):
        for x in range(width):
            start = ((b * height + y) * width + x) * channels + d0
            load(image, (y + reach) * (width + 2 * reach) + x + reach, 0, u, start, lanes)


@entry
def _forward(worker, workers, numbers, places):
    """numbers: B, H, W, E, (K − 1) / 2. places: u (B, H, W, E), taps, bias, and the result."""
    batch, height, width, channels, reach = numbers
    u, w, bias, out = memory(places, 0), memory(places, 1), memory(places, 2), memory(places, 3)
    side, blocks, taps = width + 2 * reach, (channels + LANES - 1) // LANES, (2 * reach + 1) ** 2
    image = np.zeros((side * (height + 2 * reach), LANES), np.float32)
    fixed, row = np.empty((taps + 1, LANES), np.float32), np.zeros((1, LANES), np.float32)
    for item in range(batch * blocks * worker // workers, batch * blocks * (worker + 1) // workers):
        b, d0 = item // blocks, item % blocks * LANES
        lanes = min(LANES, channels - d0)
        load_taps(w, bias, taps, channels, d0, lanes, fixed)
        _load_image(u, b, height, width, channels, d0, lanes, reach, image)
        for y in range(height):
            for x in range(width):
                _convolve(y * side + x, side, reach, fixed, image, row)
                for d in range(LANES):
                    row[0, d] *= sigmoid(row[0, d])
                store(row, 0, 0, out, ((b * height + y) * width + x) * channels + d0, lanes)


@entry
def _backward(worker, workers, numbers, places):
    """numbers: as forward. places: u, taps, bias, grad, and the results du and sums: each worker adds the gradients of
    the bias, then of the taps, to its own sums (K·K + 1, E)."""
    batch, height, width, channels, reach = numbers
    u, w, bias, grad = memory(places, 0), memory(places, 1), memory(places, 2), memory(places, 3)
    du, all_sums = memory(places, 4), memory(places, 5)
    side, blocks, across = width + 2 * reach, (channels + LANES - 1) // LANES, 2 * reach + 1
    taps, middle = across**2, reach * side + reach
    image = np.zeros((side * (height + 2 * reach), LANES), np.float32)
    back = np.zeros((side * (height + 2 * reach), LANES), np.float32)  # dL/d(before SiLU), with a border of zeros
    fixed, sums = np.empty((taps + 1, LANES), np.float32), np.empty((taps + 1, LANES), np.float32)
    row, one = np.zeros((1, 2 * LANES), np.float32), np.ones(LANES, np.float32)
    for item in range(batch * blocks * worker // workers, batch * blocks * (worker + 1) // workers):
        b, d0 = item // blocks, item % blocks * LANES
        lanes = min(LANES, channels - d0)
        load_taps(w, bias, taps, channels, d0, lanes, fixed)
        _load_image(u, b, height, width, channels, d0, lanes, reach, image)
        sums[:] = ZERO
        for y in range(height):
            for x in range(width):
                corner = y * side + x
                _convolve(corner, side, reach, fixed, image, row)
                load(row, 0, LANES, grad, ((b * height + y) * width + x) * channels + d0, lanes)
                for d in range(LANES):
                    a = row[0, d]
                    s = sigmoid(a)
                    row[0, LANES + d] *= s * (ONE + a * (ONE - s))
                add_product(sums, 0, row, LANES, one, 0)
                for i in range(across):
                    for j in range(across):
                        to, pixel = (1 + i * across + j) * LANES, corner + i * side + j
                        add_product(sums, to, image, pixel * LANES, row, LANES)
                store(row, 0, LANES, back, (corner + middle) * LANES, LANES)
        for y in range(height):
            for x in range(width):
                row[0, :LANES] = ZERO
                for i in range(across):
                    for j in range(across):
                        pixel = (y + 2 * reach - i) * side + x + 2 * reach - j
                        add_product(row, 0, fixed, (1 + i * across + j) * LANES, back, pixel * LANES)
                store(row, 0, 0, du, ((b * height + y) * width + x) * channels + d0, lanes)
        for k in range(taps + 1):
            for d in range(lanes):
                all_sums[(worker * (taps + 1) + k) * channels + d0 + d] += sums[k, d]


class _ConvSiLU2d(torch.autograd.Function):
    """u (B, H, W, E), weight (E, 1, K, K), bias (E,), all float32 on the CPU."""

    @staticmethod
    def forward(ctx, u, weight, bias):
        u, taps, out = in_order(u.detach()), weight.detach().flatten(1).t().contiguous(), empty(u.shape)  # (K·K, E)
        ctx.cut, ctx.across = (*u.shape, weight.shape[-1] // 2), weight.shape[-1]
        run(_forward, _workers(u), ctx.cut, [u, taps, bias, out])
        ctx.save_for_backward(u, taps, bias)
        return out

    @staticmethod
    @backward_once
    def backward(ctx, grad):
        u, taps, bias = ctx.saved_tensors
        workers, du = _workers(u), empty(u.shape)
        sums = zeros(workers, len(taps) + 1, u.shape[-1])
        run(_backward, workers, ctx.cut, [u, taps, bias, in_order(grad), du, sums])
        sums = added_up(sums)
        return du, sums[1:].t().unflatten(1, (1, ctx.across, ctx.across)), sums[0]


def _workers(u):
    return min(scan_threads(), u.shape[0] * -(-u.shape[-1] // LANES))
