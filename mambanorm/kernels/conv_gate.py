"""The two operations of a block with a SiLU, fused on the CPU.

They are the depthwise convolutions of sequences and of images, and the gate y·SiLU(z). Each takes
one pass over memory forward and one backward; plain torch takes up to a dozen.

The readable twins are `causal_conv`, `centred_conv` and the last line of `gated` in
operations/conv_gate.py. A convolution saves only u for the backward pass and recomputes the rest. A
worker takes a block of LANES channels of one image and copies it into a border of zeros. A sequence
is an image of one line with its border on the left.

Glossary: operations/__init__.py; H and W are the sizes of the image, whose convolution has K·K
taps.
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
from mambanorm.kernels.threads import scan_threads

# With fewer numbers per worker, starting a worker of the gate costs more than it saves.
MIN_PER_WORKER = 16_384


@jit()
def _load_taps(w, bias, taps, channels, d0, width, params):
    """Copy the block's bias to the first row of `params`, and each of its taps to another row."""
    params[:] = ZERO
    load(params, 0, 0, bias, d0, width)
    for k in range(taps):
        load(params, 1 + k, 0, w, k * channels + d0, width)


@jit()
def _add_sums(taps, channels, worker, d0, width, sums, all_sums):
    """Add a block's sums to those of its worker, (K + 1, E).

    The sums are the gradients of the bias and then of the taps.
    """
    for k in range(taps + 1):
        for d in range(width):
            all_sums[(worker * (taps + 1) + k) * channels + d0 + d] += sums[k, d]


@jit(inline="always")
def _apply_silu(row):
    """Replace the convolution in a row by its SiLU."""
    for d in range(LANES):
        row[0, d] *= sigmoid(row[0, d])


@jit(inline="always")
def _silu_backward(row, one, sums):
    """Multiply the gradient in a row by the slope of SiLU, and add it to the bias's gradient.

    The first half of the row holds the convolution, the second half the gradient.
    """
    for d in range(LANES):
        a = row[0, d]
        s = sigmoid(a)
        row[0, LANES + d] *= s * (ONE + a * (ONE - s))
    add_product(sums, 0, row, LANES, one, 0)


@jit(inline="always")
def _convolve(corner, pitch, down, across, params, image, row):
    """Compute row = bias + Σ_ij w_ij · pixel (i, j), counted from a corner.

    `image` has a border of zeros; `pitch` is its width with the border.
    """
    load(row, 0, 0, params, 0, LANES)
    for i in range(down):
        for j in range(across):
            tap, pixel = 1 + i * across + j, corner + i * pitch + j
            add_product(row, 0, params, tap * LANES, image, pixel * LANES)


@jit()
def _load_image(u, b, height, width, channels, d0, lanes, pitch, first, image):
    """Copy a block of channels of image b inside its border of zeros.

    Pixel `first` of the bordered image is the first pixel inside the border.
    """
    for y in range(height):
        for x in range(width):
            load(
                image,
                first + y * pitch + x,
                0,
                u,
                ((b * height + y) * width + x) * channels + d0,
                lanes,
            )


@entry
def _conv_forward(worker, workers, integers, buffers):
    """Compute SiLU of the convolution for one worker's images and blocks of channels.

    integers: B, H, W, E, the numbers of taps down and across, and how many of them are above and
    left of the middle. buffers: u (B, H, W, E), taps, bias; result out.
    """
    batch, height, width, channels, down, across, above, left = integers
    u, w, bias, out = flat(buffers, 0), flat(buffers, 1), flat(buffers, 2), flat(buffers, 3)
    pitch, blocks, taps = width + across - 1, (channels + LANES - 1) // LANES, down * across
    image = np.zeros((pitch * (height + down - 1), LANES), np.float32)
    params, row = np.empty((taps + 1, LANES), np.float32), np.zeros((1, LANES), np.float32)
    for item in range(batch * blocks * worker // workers, batch * blocks * (worker + 1) // workers):
        b, d0 = item // blocks, item % blocks * LANES
        lanes = min(LANES, channels - d0)
        _load_taps(w, bias, taps, channels, d0, lanes, params)
        _load_image(u, b, height, width, channels, d0, lanes, pitch, above * pitch + left, image)
        for y in range(height):
            for x in range(width):
                _convolve(y * pitch + x, pitch, down, across, params, image, row)
                _apply_silu(row)
                store(row, 0, 0, out, ((b * height + y) * width + x) * channels + d0, lanes)


@entry
def _conv_backward(worker, workers, integers, buffers):
    """Compute the gradients of `_conv_forward`.

    integers: as in `_conv_forward`. buffers: u, taps, bias, grad; results du and the sums of each
    worker.
    """
    batch, height, width, channels, down, across, above, left = integers
    u, w, bias, grad = flat(buffers, 0), flat(buffers, 1), flat(buffers, 2), flat(buffers, 3)
    du, all_sums = flat(buffers, 4), flat(buffers, 5)
    pitch, blocks, taps = width + across - 1, (channels + LANES - 1) // LANES, down * across
    last = (down - 1) * pitch + across - 1  # distance of the last tap from the corner
    image = np.zeros((pitch * (height + down - 1), LANES), np.float32)
    # da: gradient of the convolution before its SiLU, with a border of zeros
    da = np.zeros((pitch * (height + down - 1), LANES), np.float32)
    params, sums = np.empty((taps + 1, LANES), np.float32), np.empty((taps + 1, LANES), np.float32)
    row, one = np.zeros((1, 2 * LANES), np.float32), np.ones(LANES, np.float32)
    for item in range(batch * blocks * worker // workers, batch * blocks * (worker + 1) // workers):
        b, d0 = item // blocks, item % blocks * LANES
        lanes = min(LANES, channels - d0)
        _load_taps(w, bias, taps, channels, d0, lanes, params)
        _load_image(u, b, height, width, channels, d0, lanes, pitch, above * pitch + left, image)
        sums[:] = ZERO
        for y in range(height):
            for x in range(width):
                corner = y * pitch + x
                _convolve(corner, pitch, down, across, params, image, row)
                load(row, 0, LANES, grad, ((b * height + y) * width + x) * channels + d0, lanes)
                _silu_backward(row, one, sums)
                for i in range(down):
                    for j in range(across):
                        tap, pixel = 1 + i * across + j, corner + i * pitch + j
                        add_product(sums, tap * LANES, image, pixel * LANES, row, LANES)
                store(row, 0, LANES, da, (corner + last - above * pitch - left) * LANES, LANES)
        for y in range(height):
            for x in range(width):
                row[0, :LANES] = ZERO
                for i in range(down):
                    for j in range(across):
                        tap, pixel = 1 + i * across + j, y * pitch + x + last - i * pitch - j
                        add_product(row, 0, params, tap * LANES, da, pixel * LANES)
                store(row, 0, 0, du, ((b * height + y) * width + x) * channels + d0, lanes)
        _add_sums(taps, channels, worker, d0, lanes, sums, all_sums)


def conv_silu_cpu(u, weight, bias):
    """Return SiLU of a convolution for float32 on the CPU.

    The shapes are those of `causal_conv` and `centred_conv`. Differentiable once.
    """
    return _ConvSiLU.apply(u, weight, bias.contiguous())


class _ConvSiLU(torch.autograd.Function):
    """SiLU of a convolution of sequences or images, with bias (E,).

    u (B, L, E) and weight (E, 1, K), or u (B, H, W, E) and weight (E, 1, K, K).
    """

    @staticmethod
    def forward(ctx, u, weight, bias):
        u, taps = u.detach().contiguous(), weight.detach().flatten(1).t().contiguous()
        out = empty(u.shape)
        ctx.workers = min(scan_threads(), u.shape[0] * -(-u.shape[-1] // LANES))
        (batch, *size, channels), K = u.shape, weight.shape[-1]
        taps_position = (1, K, 0, K - 1) if len(size) == 1 else (K, K, K // 2, K // 2)
        ctx.integers = batch, *([1] * (2 - len(size))), *size, channels, *taps_position
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
    """Compute out = y·SiLU(z).

    integers: the size. buffers: y, z; result out.
    """
    y, z, out = flat(buffers, 0), flat(buffers, 1), flat(buffers, 2)
    size = integers[0]
    for k in range(size * worker // workers, size * (worker + 1) // workers):
        i = np.uintp(k)  # with an index that could be negative the loop is not vectorised
        out[i] = y[i] * (z[i] * sigmoid(z[i]))


@entry
def _gate_backward(worker, workers, integers, buffers):
    """Compute the gradients of the gate.

    integers: the size. buffers: y, z, grad; results dy and dz.
    """
    y, z, grad = flat(buffers, 0), flat(buffers, 1), flat(buffers, 2)
    dy, dz = flat(buffers, 3), flat(buffers, 4)
    size = integers[0]
    for k in range(size * worker // workers, size * (worker + 1) // workers):
        i = np.uintp(k)
        s = sigmoid(z[i])
        dy[i] = grad[i] * (z[i] * s)
        dz[i] = grad[i] * y[i] * s * (ONE + z[i] * (ONE - s))


def gated_cpu(y, z):
    """Return y·SiLU(z) for float32 tensors of one shape on the CPU. Differentiable once."""
    return _Gated.apply(y, z)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, z):
        y, z, out = y.detach().contiguous(), z.detach().contiguous(), empty(y.shape)
        ctx.workers = max(1, min(scan_threads(), y.numel() // MIN_PER_WORKER))
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
