"""The causal depthwise convolution with bias, followed by SiLU, on CUDA: two Triton kernels.

    a_t = bias + Σ_k w_k · x_(t−K+1+k),   u_t = SiLU(a_t)

Each program computes one batch row and one block of channels: in the forward kernel for STEPS
steps, in the backward kernel for a span of several times STEPS. A thread has a few channels, and
loads all steps that these need, K − 1 more than it computes, before it uses them. The gradient of
x_t depends on da_t … da_(t+K−1), where da_t = dL/da_t. The backward kernel recomputes each da_t in
registers, so no tensor da is written or read. Each program of the backward kernel writes its
partial sums of dweight and dbias once, and these partial sums are added in a fixed order, so the
same inputs give the same bits.

On the CPU, conv_gate.py computes the same operation. The readable twin is `causal_conv` in
operations/conv_gate.py.
"""

import torch
import triton
import triton.language as tl

from mambanorm.kernels import backward_once
from mambanorm.kernels.scan_triton import power_of_two
from mambanorm.kernels.scan_triton_loops import ChannelTensor

CHANNELS = 256  # most channels per block
FORWARD_STEPS, BACKWARD_STEPS = 16, 8  # most steps that a program loads at once
CHANNELS_PER_WARP = 64
SPAN = 256  # most steps in a span of the backward kernel; each span has one row of partial sums


@triton.jit
def sigmoid(x):
    """Return 1 / (1 + exp(-x)).

    exp is only computed for -|x|, which is never positive, so nothing overflows.
    """
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, e) / (1.0 + e)


@triton.jit
def _load_rows(source, row, first, d, channel_mask, length, COUNT: tl.constexpr):
    """Return `source` (x or grad) at COUNT steps from `first` on, as a tuple of (CHANNELS,).

    Steps before the first and after the last of the sequence are 0.
    """
    rows = ()
    for i in tl.static_range(COUNT):
        t = first + i
        pointers = source.ptr + row * source.batch + t * source.step + d * source.channel
        value = tl.load(pointers, mask=channel_mask & (t >= 0) & (t < length), other=0.0)
        rows = rows + (value.to(tl.float32),)
    return rows


@triton.jit
def _load_taps(weight, d, channel_mask, TAPS: tl.constexpr):
    """Return the weights of all taps, as a tuple of (CHANNELS,)."""
    taps = ()
    for k in tl.static_range(TAPS):
        value = tl.load(weight + d * TAPS + k, mask=channel_mask, other=0.0)
        taps = taps + (value.to(tl.float32),)
    return taps


@triton.jit
def forward_kernel(
    x, weight, bias, out, length, channels,
    TAPS: tl.constexpr, STEPS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Compute out = SiLU(a), (B, L, E), for one batch row, block of channels and STEPS steps."""
    row = tl.program_id(2).to(tl.int64)
    d = tl.program_id(1).to(tl.int64) * CHANNELS + tl.arange(0, CHANNELS)
    first = tl.program_id(0).to(tl.int64) * STEPS
    channel_mask = d < channels
    shift = tl.load(bias + d, mask=channel_mask, other=0.0).to(tl.float32)
    taps = _load_taps(weight, d, channel_mask, TAPS)
    rows = _load_rows(x, row, first - (TAPS - 1), d, channel_mask, length, STEPS + TAPS - 1)
    for i in tl.static_range(STEPS):
        a = shift
        for k in tl.static_range(TAPS):
            a += taps[k] * rows[i + k]
        offsets = out + (row * length + first + i) * channels + d
        tl.store(offsets, a * sigmoid(a), mask=channel_mask & (first + i < length))


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
    shift = tl.load(bias + d, mask=channel_mask, other=0.0).to(tl.float32)
    taps = _load_taps(weight, d, channel_mask, TAPS)
    # one line per tap and one for the bias; their number is rounded up to a power of two
    line = tl.arange(0, 1 << TAPS.bit_length())[:, None]
    total = tl.zeros((1 << TAPS.bit_length(), CHANNELS), tl.float32)
    for tile in range(0, TILES):
        first = (tl.program_id(0).to(tl.int64) * TILES + tile) * STEPS
        count: tl.constexpr = STEPS + TAPS - 1  # x_t contributes to a_t … a_(t+K−1)
        rows = _load_rows(x, row, first - (TAPS - 1), d, channel_mask, length, count + TAPS - 1)
        grads = _load_rows(grad, row, first, d, channel_mask, length, count)
        da = ()
        for i in tl.static_range(count):
            a = shift
            for k in tl.static_range(TAPS):
                a += taps[k] * rows[i + k]
            s = sigmoid(a)
            slope = s * (1.0 + a * (1.0 - s))
            # a is not 0 in a padded step, and 0·∞ would be NaN
            inside = channel_mask & (first + i < length)
            da = da + (tl.where(inside, grads[i] * slope, 0.0),)
        for i in tl.static_range(STEPS):
            value = da[i] * taps[TAPS - 1]
            for j in tl.static_range(1, TAPS):
                value += da[i + j] * taps[TAPS - 1 - j]
            offsets = dx.ptr + row * dx.batch + (first + i) * dx.step + d * dx.channel
            tl.store(offsets, value, mask=channel_mask & (first + i < length))
        for k in tl.static_range(TAPS + 1):
            part = tl.zeros((CHANNELS,), tl.float32)
            for i in tl.static_range(STEPS):
                if k < TAPS:
                    part += da[i] * rows[i + k]
                else:
                    part += da[i]
            total += tl.where(line == k, part[None, :], 0.0)
    partial = sums + (row * tl.num_programs(0) + tl.program_id(0)) * (TAPS + 1) * channels
    offsets = tl.where(line < TAPS, d[None, :] * TAPS + line, channels * TAPS + d[None, :])
    tl.store(partial + offsets, total, mask=channel_mask[None, :] & (line <= TAPS))


def _tile_sizes(x, most_steps):
    """Return the number of channels and the number of steps of a tile, for x (B, L, E)."""
    _, length, channels = x.shape
    return min(CHANNELS, power_of_two(channels)), min(most_steps, power_of_two(length))


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
        width, steps = _tile_sizes(x, FORWARD_STEPS)
        out = x.new_empty(x.shape)
        # steps are the grid's first axis: CUDA limits the others to 65,535
        grid = -(-length // steps), -(-channels // width), batch
        with torch.cuda.device_of(x):
            forward_kernel[grid](
                ChannelTensor(x, *x.transpose(1, 2).stride()), weight, bias, out,
                length, channels, weight.shape[-1], steps, width,
                num_warps=max(1, width // CHANNELS_PER_WARP),
            )  # fmt: skip
        return out

    @staticmethod
    @backward_once
    def backward(ctx, grad):
        x, weight, bias = ctx.saved_tensors
        (batch, length, channels), taps = x.shape, weight.shape[-1]
        width, steps = _tile_sizes(x, BACKWARD_STEPS)
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
                num_warps=max(1, width // CHANNELS_PER_WARP),
            )  # fmt: skip
        dweight, dbias = sums.sum(0).split([channels * taps, channels])
        return dx, dweight.view(weight.shape).to(weight.dtype), dbias.to(bias.dtype)
