"""All of a VSS block between its two norms, in one autograd function: fused for float32 on the CPU.

    u, z = SiLU(Conv(h·W_mainᵀ)), h·W_gateᵀ               the convolution goes over the image, depthwise
    u_g = u in the order of direction g = 0…3              rows, columns, and both from the end
    dt_g, B_g, C_g = split(u_g·W_x,gᵀ)                     y = Σ_g Scan(u_g, …) + D_g·u_g, each put back in its place

The four directions are one call of the scan's kernels: its channels are g·E + e, and each direction is a group with B,
C and Δ of its own. No copy is made only to reorder: the convolution writes its result directly to the four places, and
its backward pass reads the four gradients there. The readable twin is `VSSBlock._forward_readable`; the tests compare
the two.

Map: `cross_mixer_cpu`; `_place`, where a direction has a pixel; the loops; `conv_forward`, `conv_backward`, `spread`
and `merge`, which start them; `_CrossMixer`, the autograd function.

Glossary: B rows of the batch, H and W of the image, L = H·W, T = B·L tokens, D = d_model, E = d_inner channels, K×K
taps, N state size, R = dt_rank.
Source: Liu et al. 2024, "VMamba" (SS2D, the scan in four directions); MzeroMiko/VMamba v0 (their order, shapes).
"""

import numba
import numpy as np
import torch

from mambanorm.kernels.conv import load_taps
from mambanorm.kernels.mixer import projected_backward
from mambanorm.kernels.once_differentiable import backward_once
from mambanorm.kernels.runtime import (
    LANES,
    ONE,
    ZERO,
    add_product,
    added_up,
    empty,
    jit,
    load,
    memory,
    places,
    run,
    sigmoid,
    store,
    zeros,
)
from mambanorm.kernels.scan_cpu import Inputs, powers_of, scan_backward, scan_forward, split_groups
from mambanorm.kernels.threads import scan_threads

DIRECTIONS = 4


def cross_mixer_cpu(h, size, in_proj, conv_weight, conv_bias, x_proj, dt_weight, dt_bias, A_logs, Ds):
    """What stands between h = N1(x) and N2 in a VSS block, for float32 on the CPU; parameters shaped as the block's.

    h (B, H·W, D), size (H, W) → y and z, (B, H·W, E) each; y is not gated. Differentiable once.
    """
    parameters = in_proj, conv_weight, conv_bias.contiguous(), x_proj, dt_weight, dt_bias, A_logs, Ds
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in (h, *parameters))
    return _CrossMixer.apply(keep, tuple(size), h, *parameters)


# --------------------------------------------------------------------------------------------------------------- loops
@jit(inline="always")
def _place(b, g, y, x, height, width, channels):
    """Offset of direction g's channels of pixel (y, x) in flat memory (B, L, 4, E)."""
    t = x * height + y if g % 2 else y * width + x
    t = height * width - 1 - t if g >= 2 else t
    return ((b * height * width + t) * DIRECTIONS + g) * channels


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


@jit()
def _conv_worker(worker, workers, batch, height, width, channels, reach, places):
    """SiLU of the convolution of (B, L, E), into the places of the four directions."""
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
                for g in range(DIRECTIONS):
                    store(row, 0, 0, out, _place(b, g, y, x, height, width, channels) + d0, lanes)


@jit(inline="always")
def _gather(b, y, x, height, width, channels, d0, lanes, four, part, one, row, slot):
    """row += the sum of a pixel's values in the four directions."""
    for g in range(DIRECTIONS):
        load(part, 0, 0, four, _place(b, g, y, x, height, width, channels) + d0, lanes)
        add_product(row, slot, part, 0, one, 0)


@jit()
def _conv_backward_worker(worker, workers, batch, height, width, channels, reach, places):
    """Writes du from the gradients in the four places; adds those of bias and taps to its own sums (K·K + 1, E)."""
    u, w, bias, grad = memory(places, 0), memory(places, 1), memory(places, 2), memory(places, 3)
    du, all_sums = memory(places, 4), memory(places, 5)
    side, blocks, across = width + 2 * reach, (channels + LANES - 1) // LANES, 2 * reach + 1
    taps, middle = across**2, reach * side + reach
    image = np.zeros((side * (height + 2 * reach), LANES), np.float32)
    back = np.zeros((side * (height + 2 * reach), LANES), np.float32)  # dL/d(before SiLU), with a border of zeros
    fixed, sums = np.empty((taps + 1, LANES), np.float32), np.empty((taps + 1, LANES), np.float32)
    row, part, one = np.zeros((1, 2 * LANES), np.float32), np.zeros((1, LANES), np.float32), np.ones(LANES, np.float32)
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
                row[0, LANES:] = ZERO
                _gather(b, y, x, height, width, channels, d0, lanes, grad, part, one, row, LANES)
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


@jit()
def _order_worker(worker, workers, batch, height, width, channels, merging, places):
    """If merging, the image (B, L, E) is the sum of its four directions (B, L, 4, E); else it is copied to all four."""
    image, four = memory(places, 0), memory(places, 1)
    blocks = (channels + LANES - 1) // LANES
    row, part, one = np.zeros((1, LANES), np.float32), np.zeros((1, LANES), np.float32), np.ones(LANES, np.float32)
    for item in range(batch * blocks * worker // workers, batch * blocks * (worker + 1) // workers):
        b, d0 = item // blocks, item % blocks * LANES
        lanes = min(LANES, channels - d0)
        for y in range(height):
            for x in range(width):
                start = ((b * height + y) * width + x) * channels + d0
                if merging:
                    row[0, :] = ZERO
                    _gather(b, y, x, height, width, channels, d0, lanes, four, part, one, row, 0)
                    store(row, 0, 0, image, start, lanes)
                else:
                    load(row, 0, 0, image, start, lanes)
                    for g in range(DIRECTIONS):
                        store(row, 0, 0, four, _place(b, g, y, x, height, width, channels) + d0, lanes)


@jit(parallel=True)
def _conv(workers, arguments):
    for worker in numba.prange(workers):
        _conv_worker(worker, workers, *arguments)


@jit(parallel=True)
def _conv_backward(workers, arguments):
    for worker in numba.prange(workers):
        _conv_backward_worker(worker, workers, *arguments)


@jit(parallel=True)
def _order(workers, arguments):
    for worker in numba.prange(workers):
        _order_worker(worker, workers, *arguments)


# ---------------------------------------------------------------------------------------------------------- torch side
def conv_forward(u, size, taps, bias):
    """SiLU of the convolution of u (B, L, E) with the taps (K·K, E), in the order of each direction: (B, L, 4, E)."""
    batch, length, channels = u.shape
    out = empty(batch, length, DIRECTIONS, channels)
    arguments = (batch, *size, channels, _reach(taps), places([u, taps, bias, out]))
    run(_conv, _conv_worker, _workers(u), arguments)
    return out


def conv_backward(u, size, taps, bias, grad):
    """The gradients of u (B, L, E), taps (K·K, E) and bias (E,) from those of the four directions (B, L, 4, E)."""
    workers, du = _workers(u), empty(u.shape)
    sums = zeros(workers, len(taps) + 1, u.shape[2])
    arguments = (len(u), *size, u.shape[2], _reach(taps), places([u, taps, bias, grad, du, sums]))
    run(_conv_backward, _conv_backward_worker, workers, arguments)
    sums = added_up(sums)
    return du, sums[1:], sums[0]


def spread(image, size):
    """(B, L, E) → (B, L, 4, E): the image in the order of each direction."""
    four = empty(*image.shape[:2], DIRECTIONS, image.shape[2])
    run(_order, _order_worker, _workers(image), (len(image), *size, image.shape[2], False, places([image, four])))
    return four


def merge(four, size):
    """(B, L, 4, E) → (B, L, E): the sum of the directions, each put back in the order of the image."""
    batch, length, _, channels = four.shape
    image = empty(batch, length, channels)
    run(_order, _order_worker, _workers(image), (batch, *size, channels, True, places([image, four])))
    return image


def _reach(taps):
    """How many pixels the kernel of K·K taps reaches beyond its middle."""
    return int(len(taps) ** 0.5) // 2


def _workers(image):
    return min(scan_threads(), image.shape[0] * -(-image.shape[2] // LANES))


class _CrossMixer(torch.autograd.Function):
    """h (B, L, D) and the parameters → y and z, (B, L, E) each."""

    @staticmethod
    def forward(ctx, keep, size, h, in_proj, conv_weight, conv_bias, x_proj, dt_weight, dt_bias, A_logs, Ds):
        batch, length, width = h.shape
        rows, A = h.detach().reshape(-1, width), -torch.exp(A_logs)
        taps = conv_weight.detach().flatten(1).t().contiguous()  # (K·K, E)
        raw, z = (torch.mm(rows, part.t()).view(batch, length, -1) for part in in_proj.chunk(2))
        u = conv_forward(raw, size, taps, conv_bias)
        narrow = empty(len(rows), DIRECTIONS, x_proj.shape[1])
        for g, weight in enumerate(x_proj):
            torch.mm(u.view(len(rows), DIRECTIONS, -1)[:, g], weight.t(), out=narrow[:, g])
        dt, B, C = split_groups(narrow.view(batch, length, DIRECTIONS, -1), dt_weight.shape[2], A.shape[1])
        low = dt_weight.flatten(0, 1).t().contiguous()  # (R, 4·E)
        inputs = Inputs(u.flatten(2), dt, powers_of(A), B, C, low, None, Ds, None, dt_bias.flatten())
        ctx.size, ctx.plan, ctx.shape = size, inputs.plan(decaying=True), dt_weight.shape
        y, _, states = scan_forward(inputs, ctx.plan, keep, False)
        if keep:
            ctx.save_for_backward(rows, raw, in_proj, taps, conv_bias, x_proj, A, states, *inputs[:-1])
        return merge(y.view_as(u), size), z

    @staticmethod
    @backward_once
    def backward(ctx, dy, dz):
        rows, raw, in_proj, taps, conv_bias, x_proj, A, states, *tensors = ctx.saved_tensors
        tokens, channels, size, inputs = len(rows), raw.shape[2], ctx.size, Inputs(*tensors)
        dy = spread(dy.contiguous(), size).flatten(2)
        grads = scan_backward(inputs, ctx.plan, dy, states)
        u, du = (t.view(tokens, DIRECTIONS, channels) for t in (inputs.u, grads.u))
        dnarrow, dx_proj = grads.delta.view(tokens, DIRECTIONS, -1), empty(x_proj.shape)
        for g in range(DIRECTIONS):
            du[:, g].addmm_(dnarrow[:, g], x_proj[g])
            torch.mm(dnarrow[:, g].t(), u[:, g], out=dx_proj[g])
        draw, dtaps, dconv_bias = conv_backward(raw, size, taps, conv_bias, du)
        draw, dz = draw.view(tokens, channels), dz.contiguous().view(tokens, channels)
        dh, din_proj = projected_backward(rows, in_proj, draw, dz)
        across = 2 * _reach(taps) + 1
        dconv = dtaps.t().reshape(channels, 1, across, across)
        ddt_weight = grads.low.t().reshape(ctx.shape)
        return (
            None,
            None,
            dh.view(*raw.shape[:2], -1),
            din_proj,
            dconv,
            dconv_bias,
            dx_proj,
            ddt_weight,
            grads.bias.view(ctx.shape[:2]),
            grads.A * A,
            grads.D,
        )
