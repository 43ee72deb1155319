"""The two places of a block that have a SiLU, fused on the CPU: the depthwise convolutions of
sequences and of images, and the gate y·SiLU(z). Each takes one pass over memory forward and one
backward, where plain torch takes up to a dozen.

The readable twins are `causal_conv`, `centred_conv` and the last line of `gated` in
operations/conv_gate.py. Of a convolution only u is kept for the backward pass, the rest is
recomputed. A worker takes a block of LANES channels of an image, which it copies into a border of
zeros; a sequence is an image of one line, with its border on the left.

Glossary: operations/__init__.py; H and W of the image, whose convolution has K·K taps.
"""

import numpy as np
import torch

from mambanorm.kernels import backward_once
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

LEAST = (
    16_384  # numbers a worker of the gate has at least: below, starting it costs more than it saves
)


@jit()
def _load_taps(w, bias, taps, channels, d0, width, fixed):
    """Copies to `fixed`: the block's bias in the first row, then its taps, a row each."""
    fixed[:] = ZERO
    load(fixed, 0, 0, bias, d0, width)
    for k in range(taps):
        load(fixed, 1 + k, 0, w, k * channels + d0, width)


@jit()
def _add_sums(taps, channels, worker, d0, width, sums, all_sums):
    """Adds a block's sums to the worker's own (K + 1, E): the gradients of the bias, then of the
    taps."""
    for k in range(taps + 1):
        for d in range(width):
            all_sums[(worker * (taps + 1) + k) * channels + d0 + d] += sums[k, d]


@jit(inline="always")
def _silu(row):
    """SiLU of the convolution in a row."""
    for d in range(LANES):
        row[0, d] *= sigmoid(row[0, d])


@jit(inline="always")
def _through_silu(row, one, sums):
    """The gradient in the second half of a row, past the SiLU of the first half; and the bias's
    part of it."""
    for d in range(LANES):
        a = row[0, d]
        s = sigmoid(a)
        row[0, LANES + d] *= s * (ONE + a * (ONE - s))
    add_product(sums, 0, row, LANES, one, 0)


@jit(inline="always")
def _convolve(corner, side, down, across, fixed, image, row):
    """row = bias + Σ_ij w_ij · the pixel (i, j) down and right of a corner; image has a border of
    zeros."""
    load(row, 0, 0, fixed, 0, LANES)
    for i in range(down):
        for j in range(across):
            add_product(
                row, 0, fixed, (1 + i * across + j) * LANES, image, (corner + i * side + j) * LANES
            )


@jit()
def _load_image(u, b, height, width, channels, d0, lanes, side, first, image):
    """A block of channels of image b, row after row, from pixel `first` on inside its border of
    zeros."""
    for y in range(height):
        for x in range(width):
            load(
                image,
                first + y * side + x,
                0,
                u,
                ((b * height + y) * width + x) * channels + d0,
                lanes,
            )


@entry
def _conv_forward(worker, workers, numbers, places):
    """numbers: B, H, W, E, the taps down and across, and how many of them lie above and left of the
    middle. places: u (B, H, W, E), taps, bias, and the result."""
    batch, height, width, channels, down, across, above, left = numbers
    u, w, bias, out = memory(places, 0), memory(places, 1), memory(places, 2), memory(places, 3)
    side, blocks, taps = width + across - 1, (channels + LANES - 1) // LANES, down * across
    image = np.zeros((side * (height + down - 1), LANES), np.float32)
    fixed, row = np.empty((taps + 1, LANES), np.float32), np.zeros((1, LANES), np.float32)
    for item in range(batch * blocks * worker // workers, batch * blocks * (worker + 1) // workers):
        b, d0 = item // blocks, item % blocks * LANES
        lanes = min(LANES, channels - d0)
        _load_taps(w, bias, taps, channels, d0, lanes, fixed)
        _load_image(u, b, height, width, channels, d0, lanes, side, above * side + left, image)
        for y in range(height):
            for x in range(width):
                _convolve(y * side + x, side, down, across, fixed, image, row)
                _silu(row)
                store(row, 0, 0, out, ((b * height + y) * width + x) * channels + d0, lanes)


@entry
def _conv_backward(worker, workers, numbers, places):
    """numbers: as forward. places: u, taps, bias, grad, and the results du and each worker's
    sums."""
    batch, height, width, channels, down, across, above, left = numbers
    u, w, bias, grad = memory(places, 0), memory(places, 1), memory(places, 2), memory(places, 3)
    du, all_sums = memory(places, 4), memory(places, 5)
    side, blocks, taps = width + across - 1, (channels + LANES - 1) // LANES, down * across
    last = (down - 1) * side + across - 1  # of the taps, from a corner
    image = np.zeros((side * (height + down - 1), LANES), np.float32)
    back = np.zeros(
        (side * (height + down - 1), LANES), np.float32
    )  # dL/d(before SiLU), with a border of zeros
    fixed, sums = np.empty((taps + 1, LANES), np.float32), np.empty((taps + 1, LANES), np.float32)
    row, one = np.zeros((1, 2 * LANES), np.float32), np.ones(LANES, np.float32)
    for item in range(batch * blocks * worker // workers, batch * blocks * (worker + 1) // workers):
        b, d0 = item // blocks, item % blocks * LANES
        lanes = min(LANES, channels - d0)
        _load_taps(w, bias, taps, channels, d0, lanes, fixed)
        _load_image(u, b, height, width, channels, d0, lanes, side, above * side + left, image)
        sums[:] = ZERO
        for y in range(height):
            for x in range(width):
                corner = y * side + x
                _convolve(corner, side, down, across, fixed, image, row)
                load(row, 0, LANES, grad, ((b * height + y) * width + x) * channels + d0, lanes)
                _through_silu(row, one, sums)
                for i in range(down):
                    for j in range(across):
                        to, pixel = (1 + i * across + j) * LANES, corner + i * side + j
                        add_product(sums, to, image, pixel * LANES, row, LANES)
                store(row, 0, LANES, back, (corner + last - above * side - left) * LANES, LANES)
        for y in range(height):
            for x in range(width):
                row[0, :LANES] = ZERO
                for i in range(down):
                    for j in range(across):
                        pixel = y * side + x + last - i * side - j
                        add_product(
                            row, 0, fixed, (1 + i * across + j) * LANES, back, pixel * LANES
                        )
                store(row, 0, 0, du, ((b * height + y) * width + x) * channels + d0, lanes)
        _add_sums(taps, channels, worker, d0, lanes, sums, all_sums)


def conv_silu_cpu(u, weight, bias):
    """SiLU of a convolution for float32 on the CPU, `causal_conv` or `centred_conv`; shapes as
    there. Differentiable once."""
    return _ConvSiLU.apply(u, weight, bias.contiguous())


class _ConvSiLU(torch.autograd.Function):
    """u (B, L, E) and weight (E, 1, K), or u (B, H, W, E) and weight (E, 1, K, K); bias (E,)."""

    @staticmethod
    def forward(ctx, u, weight, bias):
        u, taps, out = (
            u.detach().contiguous(),
            weight.detach().flatten(1).t().contiguous(),
            empty(u.shape),
        )
        ctx.workers = min(scan_threads(), u.shape[0] * -(-u.shape[-1] // LANES))
        (batch, *size, channels), K = u.shape, weight.shape[-1]
        kernel = (1, K, 0, K - 1) if len(size) == 1 else (K, K, K // 2, K // 2)
        ctx.cut = batch, *([1] * (2 - len(size))), *size, channels, *kernel
        ctx.kernel = weight.shape
        run(_conv_forward, ctx.workers, ctx.cut, [u, taps, bias, out])
        ctx.save_for_backward(u, taps, bias)
        return out

    @staticmethod
    @backward_once
    def backward(ctx, grad):
        u, taps, bias = ctx.saved_tensors
        du, sums = empty(u.shape), zeros(ctx.workers, len(taps) + 1, u.shape[-1])
        run(_conv_backward, ctx.workers, ctx.cut, [u, taps, bias, grad.contiguous(), du, sums])
        sums = added_up(sums)
        return du, sums[1:].t().view(ctx.kernel), sums[0]


# ----------------------------------------------------------------------------------------- the gate
@entry
def _gate_forward(worker, workers, numbers, places):
    """numbers: the size. places: y, z, and the result."""
    y, z, out = memory(places, 0), memory(places, 1), memory(places, 2)
    size = numbers[0]
    for k in range(size * worker // workers, size * (worker + 1) // workers):
        i = np.uintp(
            k
        )  # unsigned: an index that could be negative would keep the loop from being vectorised
        out[i] = y[i] * (z[i] * sigmoid(z[i]))


@entry
def _gate_backward(worker, workers, numbers, places):
    """numbers: the size. places: y, z, grad, and the results dy and dz."""
    y, z, grad = memory(places, 0), memory(places, 1), memory(places, 2)
    dy, dz = memory(places, 3), memory(places, 4)
    size = numbers[0]
    for k in range(size * worker // workers, size * (worker + 1) // workers):
        i = np.uintp(k)
        s = sigmoid(z[i])
        dy[i] = grad[i] * (z[i] * s)
        dz[i] = grad[i] * y[i] * s * (ONE + z[i] * (ONE - s))


def gated_cpu(y, z):
    """y·SiLU(z) for float32 tensors of one shape on the CPU. Differentiable once."""
    return _Gated.apply(y, z)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, z):
        y, z, out = y.detach().contiguous(), z.detach().contiguous(), empty(y.shape)
        ctx.workers = max(1, min(scan_threads(), y.numel() // LEAST))
        run(_gate_forward, ctx.workers, [y.numel()], [y, z, out])
        ctx.save_for_backward(y, z)
        return out

    @staticmethod
    @backward_once
    def backward(ctx, grad):
        y, z = ctx.saved_tensors
        dy, dz = empty(y.shape), empty(y.shape)
        run(_gate_backward, ctx.workers, [y.numel()], [y, z, grad.contiguous(), dy, dz])
        return dy, dz
