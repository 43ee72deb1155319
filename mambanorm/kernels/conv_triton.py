"""The causal depthwise convolution with bias, followed by SiLU, on CUDA: two Triton kernels.

    a_t = bias + Σ_k w_k · x_(t−K+1+k),   u_t = SiLU(a_t)

Each program computes one batch row and one block of channels: in the forward kernel for one tile of
steps, in the backward kernel for a span of several tiles. The forward kernel reads x once from
memory; the K − 1 shifted reads of x come from the cache. The gradient of x_t depends on
da_t … da_(t+K−1), where da_t = dL/da_t. The backward kernel recomputes these K numbers for each t.
That is K times the arithmetic of computing each da_t once, but memory limits the kernel's speed,
and this way no tensor da is written or read. Each program of the backward kernel writes its partial
sums of dweight and dbias once, and these partial sums are added in a fixed order, so the same
inputs give the same bits.

On the CPU, conv_gate.py computes the same operation. The readable twin is `causal_conv` in
operations/conv_gate.py.
"""

import torch
import triton
import triton.language as tl

from mambanorm.kernels import backward_once
from mambanorm.kernels.scan_triton import power_of_two
from mambanorm.kernels.scan_triton_loops import ChannelTensor

CHANNELS, STEPS = 64, 16  # size of the largest tile
SPAN = 256  # most steps in a span of the backward kernel; each span has one row of partial sums


@triton.jit
def sigmoid(x):
    """Return 1 / (1 + exp(-x)).

    exp is only computed for -|x|, which is never positive, so nothing overflows.
    """
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, e) / (1.0 + e)


@triton.jit
def _convolve(x, weight, bias, row, t, d, channel_mask, length, TAPS: tl.constexpr):
    """Return the convolution, without SiLU, at the steps t: (STEPS, CHANNELS)."""
    a = tl.load(bias + d, mask=channel_mask, other=0.0).to(tl.float32)[None, :]
    for k in tl.static_range(TAPS):
        a += _tap(weight, d, channel_mask, k, TAPS) * _read(
            x, row, t - (TAPS - 1) + k, d, channel_mask, length
        )
    return a


@triton.jit
def _tap(weight, d, channel_mask, k: tl.constexpr, TAPS: tl.constexpr):
    # the weights of tap k, (1, CHANNELS)
    return tl.load(weight + d * TAPS + k, mask=channel_mask, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _read(source, row, t, d, channel_mask, length):
    """Return `source` (x or grad) at the steps t: 0 before the first step and after the last."""
    mask = ((t >= 0) & (t < length))[:, None] & channel_mask[None, :]
    offsets = (
        source.ptr + row * source.batch + t[:, None] * source.step + d[None, :] * source.channel
    )
    return tl.load(offsets, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def forward_kernel(
    x, weight, bias, out, length, channels,
    TAPS: tl.constexpr, STEPS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Compute out = SiLU(a), (B, L, E), for one batch row, block of channels and tile of steps."""
    row = tl.program_id(2).to(tl.int64)
    d = tl.program_id(1).to(tl.int64) * CHANNELS + tl.arange(0, CHANNELS)
    t = tl.program_id(0).to(tl.int64) * STEPS + tl.arange(0, STEPS)
    channel_mask = d < channels
    a = _convolve(x, weight, bias, row, t, d, channel_mask, length, TAPS)
    offsets = out + (row * length + t[:, None]) * channels + d[None, :]
    tl.store(offsets, a * sigmoid(a), mask=(t < length)[:, None] & channel_mask[None, :])


@triton.jit
def backward_kernel(
    x, weight, bias, grad, dx, sums, length, channels,
    TAPS: tl.constexpr, STEPS: tl.constexpr, CHANNELS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Compute dx, and the partial sums of dweight (E, K) and dbias (E,), for one span of steps.

    sums (B · spans, E·K + E) has one row per batch row and span of TILES·STEPS steps. x, grad and
    dx are `ChannelTensor`s.
    """
    row = tl.program_id(2).to(tl.int64)
    d = tl.program_id(1).to(tl.int64) * CHANNELS + tl.arange(0, CHANNELS)
    channel_mask = d < channels
    # one column per tap and one for the bias; their number is rounded up to a power of two
    column = tl.arange(0, 1 << TAPS.bit_length())[None, :]
    total = tl.zeros((CHANNELS, 1 << TAPS.bit_length()), tl.float32)
    for tile in range(0, TILES):
        t = (tl.program_id(0).to(tl.int64) * TILES + tile) * STEPS + tl.arange(0, STEPS)
        dx_tile = tl.zeros((STEPS, CHANNELS), tl.float32)
        for j in tl.static_range(TAPS):  # x_t contributes to a_t … a_(t+K−1)
            a = _convolve(x, weight, bias, row, t + j, d, channel_mask, length, TAPS)
            s = sigmoid(a)
            da = _read(grad, row, t + j, d, channel_mask, length) * s * (1.0 + a * (1.0 - s))
            da = tl.where((t + j < length)[:, None] & channel_mask[None, :], da, 0.0)
            dx_tile += da * _tap(weight, d, channel_mask, TAPS - 1 - j, TAPS)
            if j == 0:
                total += tl.where(column == TAPS, tl.sum(da, 0)[:, None], 0.0)
                for k in tl.static_range(TAPS):
                    part = tl.sum(
                        da * _read(x, row, t - (TAPS - 1) + k, d, channel_mask, length), 0
                    )
                    total += tl.where(column == k, part[:, None], 0.0)
        offsets = dx.ptr + row * dx.batch + t[:, None] * dx.step + d[None, :] * dx.channel
        tl.store(offsets, dx_tile, mask=(t < length)[:, None] & channel_mask[None, :])
    partial = sums + (row * tl.num_programs(0) + tl.program_id(0)) * (TAPS + 1) * channels
    offsets = tl.where(column < TAPS, d[:, None] * TAPS + column, channels * TAPS + d[:, None])
    tl.store(partial + offsets, total, mask=channel_mask[:, None] & (column <= TAPS))


def _tile_sizes(x):
    """Return the number of channels and the number of steps of a tile, for x (B, L, E)."""
    _, length, channels = x.shape
    return min(CHANNELS, power_of_two(channels)), min(STEPS, power_of_two(length))


def conv_silu_triton(x, weight, bias):
    """Return SiLU(causal_conv(x, weight, bias)), computed by the Triton kernels.

    The shapes are those of `causal_conv`; strides and floating-point dtypes may be any.
    Differentiable once.
    """
    return _ConvSiLU.apply(x, weight.contiguous(), bias.contiguous())


class _ConvSiLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight, bias)
        batch, length, channels = x.shape
        width, steps = _tile_sizes(x)
        out = x.new_empty(x.shape)
        # steps are the grid's first axis: CUDA limits the others to 65,535
        grid = -(-length // steps), -(-channels // width), batch
        with torch.cuda.device_of(x):
            forward_kernel[grid](
                ChannelTensor(x, *x.transpose(1, 2).stride()), weight, bias, out,
                length, channels, weight.shape[-1], steps, width,
            )  # fmt: skip
        return out

    @staticmethod
    @backward_once
    def backward(ctx, grad):
        x, weight, bias = ctx.saved_tensors
        (batch, length, channels), taps = x.shape, weight.shape[-1]
        width, steps = _tile_sizes(x)
        tiles = min(SPAN // steps, power_of_two(-(-length // steps)))
        spans = -(-length // (steps * tiles))
        dx = x.new_empty(x.shape)
        sums = x.new_empty(batch * spans, channels * (taps + 1), dtype=torch.float32)
        x_rows, grad_rows, dx_rows = (
            ChannelTensor(t, *t.transpose(1, 2).stride()) for t in (x, grad, dx)
        )
        with torch.cuda.device_of(x):
            backward_kernel[spans, -(-channels // width), batch](
                x_rows, weight, bias, grad_rows, dx_rows, sums,
                length, channels, taps, steps, width, tiles,
            )  # fmt: skip
        dweight, dbias = sums.sum(0).split([channels * taps, channels])
        return dx, dweight.view(weight.shape).to(weight.dtype), dbias.to(bias.dtype)
