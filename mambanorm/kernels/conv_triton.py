"""The causal depthwise convolution with its bias and SiLU on CUDA, in one Triton kernel forward and
one backward.

    a_t = bias + Σ_k w_k · x_(t−K+1+k),   u_t = SiLU(a_t)

A program has one batch row, a block of channels and a span of steps. Forward it reads x once from
memory; the K − 1 shifted reads come from the cache. Backward it needs da of K − 1 later steps and
computes those again: K times the arithmetic of a kernel that would be bound by its bytes otherwise,
and no tensor da is written and read. The sums for weight and bias are written once per program and
added up in a fixed order: the same inputs give the same bits. On the CPU the loops of conv_gate.py
compute the same. The readable twin is `causal_conv` in operations/conv_gate.py.
"""

import torch
import triton
import triton.language as tl

from mambanorm.kernels import backward_once
from mambanorm.kernels.scan_triton import power_of_two, rows
from mambanorm.kernels.scan_triton_loops import sigmoid

CHANNELS, STEPS = 64, 16  # of a tile
SPAN = 256  # steps of a program in the backward pass: one row of partial sums each


@triton.jit
def _before(x, weight, bias, row, t, d, inside, length, TAPS: tl.constexpr):
    """The convolution before its SiLU at the steps t, (STEPS, CHANNELS)."""
    a = tl.load(bias + d, mask=inside, other=0.0).to(tl.float32)[None, :]
    for k in tl.static_range(TAPS):
        a += _tap(weight, d, inside, k, TAPS) * _at(x, row, t - (TAPS - 1) + k, d, inside, length)
    return a


@triton.jit
def _tap(weight, d, inside, k: tl.constexpr, TAPS: tl.constexpr):
    return tl.load(weight + d * TAPS + k, mask=inside, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _at(x, row, t, d, inside, length):
    """x or a gradient at the steps t, zero before the first and after the last."""
    there = ((t >= 0) & (t < length))[:, None] & inside[None, :]
    place = x.ptr + row * x.batch + t[:, None] * x.step + d[None, :] * x.channel
    return tl.load(place, mask=there, other=0.0).to(tl.float32)


@triton.jit
def forward_kernel(
    x,
    weight,
    bias,
    out,
    length,
    channels,
    TAPS: tl.constexpr,
    STEPS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """out (B, L, E); one program per batch row, block of channels and tile of steps."""
    row = tl.program_id(2).to(tl.int64)
    d = tl.program_id(1).to(tl.int64) * CHANNELS + tl.arange(0, CHANNELS)
    t = tl.program_id(0).to(tl.int64) * STEPS + tl.arange(0, STEPS)
    inside = d < channels
    a = _before(x, weight, bias, row, t, d, inside, length, TAPS)
    place = out + (row * length + t[:, None]) * channels + d[None, :]
    tl.store(place, a * sigmoid(a), mask=(t < length)[:, None] & inside[None, :])


@triton.jit
def backward_kernel(
    x, weight, bias, grad, dx, sums, length, channels,
    TAPS: tl.constexpr, STEPS: tl.constexpr, CHANNELS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """dx as `Rows`; sums (B · spans, E·K + E): dweight (E, K) and dbias (E,) of each span of
    TILES·STEPS steps."""
    row = tl.program_id(2).to(tl.int64)
    d = tl.program_id(1).to(tl.int64) * CHANNELS + tl.arange(0, CHANNELS)
    inside = d < channels
    k_all = tl.arange(0, 1 << TAPS.bit_length())[None, :]  # room for TAPS and the bias in one tile
    total = tl.zeros((CHANNELS, 1 << TAPS.bit_length()), tl.float32)
    for tile in range(0, TILES):
        t = (tl.program_id(0).to(tl.int64) * TILES + tile) * STEPS + tl.arange(0, STEPS)
        back = tl.zeros((STEPS, CHANNELS), tl.float32)
        for j in tl.static_range(TAPS):  # x_t took part in a_t … a_(t+K−1)
            a = _before(x, weight, bias, row, t + j, d, inside, length, TAPS)
            s = sigmoid(a)
            da = _at(grad, row, t + j, d, inside, length) * s * (1.0 + a * (1.0 - s))
            da = tl.where((t + j < length)[:, None] & inside[None, :], da, 0.0)
            back += da * _tap(weight, d, inside, TAPS - 1 - j, TAPS)
            if j == 0:
                total += tl.where(k_all == TAPS, tl.sum(da, 0)[:, None], 0.0)
                for k in tl.static_range(TAPS):
                    part = tl.sum(da * _at(x, row, t - (TAPS - 1) + k, d, inside, length), 0)
                    total += tl.where(k_all == k, part[:, None], 0.0)
        place = dx.ptr + row * dx.batch + t[:, None] * dx.step + d[None, :] * dx.channel
        tl.store(place, back, mask=(t < length)[:, None] & inside[None, :])
    layer = sums + (row * tl.num_programs(0) + tl.program_id(0)) * (TAPS + 1) * channels
    place = tl.where(k_all < TAPS, d[:, None] * TAPS + k_all, channels * TAPS + d[:, None])
    tl.store(layer + place, total, mask=inside[:, None] & (k_all <= TAPS))


def _cut(x):
    """Channels and steps of a tile for x (B, L, E)."""
    _, length, channels = x.shape
    return min(CHANNELS, power_of_two(channels)), min(STEPS, power_of_two(length))


def conv_silu_triton(x, weight, bias):
    """SiLU(causal_conv(x, weight, bias)), shapes as there, any strides and floating dtypes.
    Differentiable once."""
    return _ConvSiLU.apply(x, weight.contiguous(), bias.contiguous())


class _ConvSiLU(torch.autograd.Function):
    """x (B, L, E), weight (E, 1, K), bias (E,)."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight, bias)
        batch, length, channels = x.shape
        width, steps = _cut(x)
        out = x.new_empty(x.shape)
        grid = -(-length // steps), -(-channels // width), batch  # the first may be above 65,535
        with torch.cuda.device_of(x):
            forward_kernel[grid](
                rows(x.transpose(1, 2)),
                weight,
                bias,
                out,
                length,
                channels,
                weight.shape[-1],
                steps,
                width,
            )
        return out

    @staticmethod
    @backward_once
    def backward(ctx, grad):
        x, weight, bias = ctx.saved_tensors
        (batch, length, channels), taps = x.shape, weight.shape[-1]
        width, steps = _cut(x)
        tiles = min(SPAN // steps, power_of_two(-(-length // steps)))
        spans = -(-length // (steps * tiles))
        dx = x.new_empty(x.shape)
        sums = x.new_empty(batch * spans, channels * (taps + 1), dtype=torch.float32)
        x_rows, grad_rows, dx_rows = (rows(t.transpose(1, 2)) for t in (x, grad, dx))
        with torch.cuda.device_of(x):
            backward_kernel[spans, -(-channels // width), batch](
                x_rows,
                weight,
                bias,
                grad_rows,
                dx_rows,
                sums,
                length,
                channels,
                taps,
                steps,
                width,
                tiles,
            )
        dweight, dbias = sums.sum(0).split([channels * taps, channels])
        return dx, dweight.view(weight.shape).to(weight.dtype), dbias.to(bias.dtype)
