"""The two operations of a Mamba block that contain a SiLU, fused on the CPU.

`conv_silu_cpu` computes a depthwise convolution of sequences or images and its SiLU; `gated_cpu`
computes the gate y·SiLU(z). Each takes one pass over memory forward and one backward; plain torch
takes up to a dozen passes.

The readable twins are `causal_conv`, `centred_conv` and the last line of `gated` in
operations/conv_gate.py. The convolution saves only its inputs for the backward pass and recomputes
everything else. A worker copies one image's channels, one block of up to LANES neighbouring
channels at a time, into a buffer with a border of zeros. A sequence is treated as an image of one
line, whose border is only on the left.

Glossary: operations/__init__.py; H and W are height and width of an image. A tap is one position in
the window of the convolution, with one weight per channel. The convolution of an image has K·K
taps. In the functions below, a block is a block of channels.
"""

import numpy as np
import torch

from mambanorm.kernels import backward_once
from mambanorm.kernels.runtime import (
    LANES,
    ONE,
    ZERO,
    add_product,
    empty,
    entry,
    flat,
    jit,
    load,
    run,
    sigmoid,
    store,
    sum_workers,
    zeros,
)
from mambanorm.kernels.threads import kernel_threads

# Least number of gate elements per worker: with fewer, starting a worker costs more than it saves.
MIN_PER_WORKER = 16_384


@jit()
def _load_taps(w, bias, taps, channels, d0, width, params):
    """Copy a block's biases to row 0 of `params`, and its weights of tap k to row 1 + k."""
    params[:] = ZERO
    load(params, 0, 0, bias, d0, width)
    for k in range(taps):
        load(params, 1 + k, 0, w, k * channels + d0, width)


@jit()
def _add_sums(taps, channels, worker, d0, width, block_sums, worker_sums):
    """Add a block's sums to the sums (taps + 1, E) of one worker.

    Row 0 of both sums holds the gradient of the bias; row 1 + k holds the gradient of tap k.
    """
    for k in range(taps + 1):
        for d in range(width):
            worker_sums[(worker * (taps + 1) + k) * channels + d0 + d] += block_sums[k, d]


@jit(inline="always")
def _apply_silu(row):
    """Replace the convolution in a row by SiLU of the convolution, in place."""
    for d in range(LANES):
        row[0, d] *= sigmoid(row[0, d])


@jit(inline="always")
def _silu_backward(row, ones, bias_sum):
    """Multiply the gradient in a row by SiLU's slope, and add the product to the bias's gradient.

    The first half of the row holds the convolution before SiLU, the second half the gradient.
    `ones` is a vector of LANES ones.
    """
    for d in range(LANES):
        a = row[0, d]
        s = sigmoid(a)
        row[0, LANES + d] *= s * (ONE + a * (ONE - s))
    add_product(bias_sum, 0, row, LANES, ones, 0)


@jit(inline="always")
def _convolve(corner, pitch, taps_down, taps_across, params, image, row):
    """Compute row = bias + Σ_ij w_ij · pixel (i, j), where pixel (0, 0) has the index `corner`.

    `params` holds the bias and the weights w. `image` has a border of zeros; `pitch` is the width
    of the image including the border.
    """
    load(row, 0, 0, params, 0, LANES)
    for i in range(taps_down):
        for j in range(taps_across):
            tap, pixel = 1 + i * taps_across + j, corner + i * pitch + j
            add_product(row, 0, params, tap * LANES, image, pixel * LANES)


@jit()
def _load_image(u, b, height, width, channels, d0, lanes, pitch, first_pixel, image):
    """Copy a block of channels of image b to `image`, inside its border of zeros.

    `first_pixel` is the index of the first pixel inside the border.
    """
    for py in range(height):
        for px in range(width):
            load(
                image,
                first_pixel + py * pitch + px,
                0,
                u,
                ((b * height + py) * width + px) * channels + d0,
                lanes,
            )


@entry
def _conv_forward(worker, workers, integers, buffers):
    """Compute SiLU of the convolution for one worker's images and blocks of channels.

    integers: B, H, W, E, the numbers of taps down and across, and the numbers of taps above and
    left of the output pixel. buffers: u (B, H, W, E), taps (number of taps, E), bias (E,);
    result: out (B, H, W, E).
    """
    batch, height, width, channels, taps_down, taps_across, taps_above, taps_left = integers
    u, w, bias, out = flat(buffers, 0), flat(buffers, 1), flat(buffers, 2), flat(buffers, 3)
    pitch, blocks, taps = (
        width + taps_across - 1,
        (channels + LANES - 1) // LANES,
        taps_down * taps_across,
    )
    image = np.zeros((pitch * (height + taps_down - 1), LANES), np.float32)
    params, row = np.empty((taps + 1, LANES), np.float32), np.zeros((1, LANES), np.float32)
    for item in range(batch * blocks * worker // workers, batch * blocks * (worker + 1) // workers):
        b, d0 = item // blocks, item % blocks * LANES
        lanes = min(LANES, channels - d0)
        _load_taps(w, bias, taps, channels, d0, lanes, params)
        _load_image(
            u, b, height, width, channels, d0, lanes, pitch, taps_above * pitch + taps_left, image
        )
        for py in range(height):
            for px in range(width):
                _convolve(py * pitch + px, pitch, taps_down, taps_across, params, image, row)
                _apply_silu(row)
                store(row, 0, 0, out, ((b * height + py) * width + px) * channels + d0, lanes)


@entry
def _conv_backward(worker, workers, integers, buffers):
    """Compute the gradients of `_conv_forward` for one worker's images and blocks of channels.

    integers: as in `_conv_forward`. buffers: u, taps, bias, and grad, the gradient of out;
    results: du, and worker_sums (workers, taps + 1, E), which `_add_sums` fills.
    """
    batch, height, width, channels, taps_down, taps_across, taps_above, taps_left = integers
    u, w, bias, grad = flat(buffers, 0), flat(buffers, 1), flat(buffers, 2), flat(buffers, 3)
    du, worker_sums = flat(buffers, 4), flat(buffers, 5)
    pitch, blocks, taps = (
        width + taps_across - 1,
        (channels + LANES - 1) // LANES,
        taps_down * taps_across,
    )
    last = (taps_down - 1) * pitch + taps_across - 1  # pixels of `image` from first to last tap
    image = np.zeros((pitch * (height + taps_down - 1), LANES), np.float32)
    # da: gradient with respect to the convolution before SiLU, with a border of zeros
    da = np.zeros((pitch * (height + taps_down - 1), LANES), np.float32)
    params, block_sums = (
        np.empty((taps + 1, LANES), np.float32),
        np.empty((taps + 1, LANES), np.float32),
    )
    row, ones = np.zeros((1, 2 * LANES), np.float32), np.ones(LANES, np.float32)
    for item in range(batch * blocks * worker // workers, batch * blocks * (worker + 1) // workers):
        b, d0 = item // blocks, item % blocks * LANES
        lanes = min(LANES, channels - d0)
        _load_taps(w, bias, taps, channels, d0, lanes, params)
        _load_image(
            u, b, height, width, channels, d0, lanes, pitch, taps_above * pitch + taps_left, image
        )
        block_sums[:] = ZERO
        for py in range(height):
            for px in range(width):
                corner = py * pitch + px
                _convolve(corner, pitch, taps_down, taps_across, params, image, row)
                load(row, 0, LANES, grad, ((b * height + py) * width + px) * channels + d0, lanes)
                _silu_backward(row, ones, block_sums)
                for i in range(taps_down):
                    for j in range(taps_across):
                        tap, pixel = 1 + i * taps_across + j, corner + i * pitch + j
                        add_product(block_sums, tap * LANES, image, pixel * LANES, row, LANES)
                store(
                    row,
                    0,
                    LANES,
                    da,
                    (corner + last - taps_above * pitch - taps_left) * LANES,
                    LANES,
                )
        for py in range(height):
            for px in range(width):
                row[0, :LANES] = ZERO
                for i in range(taps_down):
                    for j in range(taps_across):
                        tap, pixel = 1 + i * taps_across + j, py * pitch + px + last - i * pitch - j
                        add_product(row, 0, params, tap * LANES, da, pixel * LANES)
                store(row, 0, 0, du, ((b * height + py) * width + px) * channels + d0, lanes)
        _add_sums(taps, channels, worker, d0, lanes, block_sums, worker_sums)


def conv_silu_cpu(u, weight, bias):
    """Return SiLU of a depthwise convolution, for float32 tensors on the CPU.

    The shapes are those of `causal_conv` or, for images, of `centred_conv`. Differentiable once.
    """
    return _ConvSiLU.apply(u, weight, bias.contiguous())


class _ConvSiLU(torch.autograd.Function):
    """SiLU of a depthwise convolution of sequences or images.

    Either u is (B, L, E) and weight (E, 1, K), or u is (B, H, W, E) and weight (E, 1, K, K). The
    bias is (E,).
    """

    @staticmethod
    def forward(ctx, u, weight, bias):
        u, taps = u.detach().contiguous(), weight.detach().flatten(1).t().contiguous()
        out = empty(u.shape)
        ctx.workers = min(kernel_threads(), u.shape[0] * -(-u.shape[-1] // LANES))
        (batch, *size, channels), K = u.shape, weight.shape[-1]
        tap_counts = (1, K, 0, K - 1) if len(size) == 1 else (K, K, K // 2, K // 2)
        ctx.integers = batch, *([1] * (2 - len(size))), *size, channels, *tap_counts
        ctx.weight_shape = weight.shape
        run(_conv_forward, ctx.workers, ctx.integers, [u, taps, bias, out])
        ctx.save_for_backward(u, taps, bias)
        return out

    @staticmethod
    @backward_once
    def backward(ctx, grad):
        u, taps, bias = ctx.saved_tensors
        du, sums = empty(u.shape), zeros(ctx.workers, len(taps) + 1, u.shape[-1])
        run(_conv_backward, ctx.workers, ctx.integers, [u, taps, bias, grad.contiguous(), du, sums])
        sums = sum_workers(sums)
        return du, sums[1:].t().view(ctx.weight_shape), sums[0]


# ----------------------------------------------------------------------------------------- the gate
@entry
def _gate_forward(worker, workers, integers, buffers):
    """Compute out = y·SiLU(z) for one worker's share of the elements.

    integers: the number of elements. buffers: y, z; result: out.
    """
    y, z, out = flat(buffers, 0), flat(buffers, 1), flat(buffers, 2)
    elements = integers[0]
    for k in range(elements * worker // workers, elements * (worker + 1) // workers):
        i = np.uintp(k)  # LLVM vectorises the loop only if no index can be negative
        out[i] = y[i] * (z[i] * sigmoid(z[i]))


@entry
def _gate_backward(worker, workers, integers, buffers):
    """Compute the gradients of `_gate_forward` for one worker's share of the elements.

    integers: the number of elements. buffers: y, z, and grad, the gradient of out; results: dy, dz.
    """
    y, z, grad = flat(buffers, 0), flat(buffers, 1), flat(buffers, 2)
    dy, dz = flat(buffers, 3), flat(buffers, 4)
    elements = integers[0]
    for k in range(elements * worker // workers, elements * (worker + 1) // workers):
        i = np.uintp(k)
        s = sigmoid(z[i])
        dy[i] = grad[i] * (z[i] * s)
        dz[i] = grad[i] * y[i] * s * (ONE + z[i] * (ONE - s))


def gated_cpu(y, z):
    """Return y·SiLU(z) for float32 tensors of the same shape on the CPU. Differentiable once."""
    return _Gated.apply(y, z)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, z):
        y, z, out = y.detach().contiguous(), z.detach().contiguous(), empty(y.shape)
        ctx.workers = max(1, min(kernel_threads(), y.numel() // MIN_PER_WORKER))
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
