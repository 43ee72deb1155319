"""Norms over the channels of one token on CUDA: LN, RMSN and GN-token, with the gate after them, in Triton.

    y = γ·(x − μ)/√(σ² + ε) + β,   then · SiLU(z) where a gate z is given          (μ = 0 for RMSN)

One kernel forward and one backward, as norm_token.py on the CPU; what plain torch takes two to three of each for, and
one more for the residual's gradient. With `fork` the input is returned as a second result, for the residual connection,
and its gradient is added in the same pass. Nothing but the inputs is kept: μ and σ are computed again, from values that
are loaded anyway. The statistics are taken in float32, centred in a second pass over registers, whatever the dtype.
The sums for γ and β are written once per program and added up in a fixed order: the same inputs give the same bits.
The readable twin is `readable` of each norm in norms/classic.py.

Bytes per number, in bfloat16: forward 2 for x, 2 for y, and 2 for a gate; backward 2 each for x, dy, dx, with a gate 2
each for z and dz, with `fork` 2 for the gradient that came with x.
"""

import torch
import triton
import triton.language as tl

from mambanorm.kernels.once_differentiable import backward_once
from mambanorm.kernels.scan_triton import rows
from mambanorm.kernels.scan_triton_parts import sigmoid
from mambanorm.kernels.scan_triton_plan import power_of_two

CELLS = 2048  # of a tile, tokens × channels, unless one token has more
PROGRAMS = 512  # of the backward kernel at most, and so rows of partial sums


@triton.jit
def _tokens(m, token, length, c, counts):
    """x, z or a gradient of these tokens, (TOKENS, WIDTH) in float32."""
    batch, t = token // length, token % length
    place = (batch * m.batch + t * m.step)[:, None] + c[None, :] * m.channel
    return tl.load(m.ptr + place, mask=counts, other=0.0).to(tl.float32)


@triton.jit
def _standard(x, counts, width, eps, CENTRED: tl.constexpr):
    """(x − μ)/√(σ² + ε), zero beyond the width, and 1/√(σ² + ε) (TOKENS,)."""
    centred = x
    if CENTRED:
        centred = tl.where(counts, x - (tl.sum(x, 1) / width)[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / width + eps)
    return centred * scale[:, None], scale


@triton.jit
def _affine(weight, bias, c, inside):
    """γ and β of the channels c, (1, WIDTH); 1 and 0 where there is none."""
    gamma, beta = 1.0, 0.0
    if weight is not None:
        gamma = tl.load(weight + c, mask=inside, other=0.0).to(tl.float32)[None, :]
    if bias is not None:
        beta = tl.load(bias + c, mask=inside, other=0.0).to(tl.float32)[None, :]
    return gamma, beta


@triton.jit
def forward_kernel(
    x, z, weight, bias, y, length, tokens, width, eps,
    CENTRED: tl.constexpr, TOKENS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """y (B, L, D); one program per group of channels and tile of tokens. z, weight and bias may be None."""
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    inside = tl.arange(0, WIDTH) < width
    c = tl.program_id(1).to(tl.int64) * width + tl.arange(0, WIDTH)
    counts = (token < tokens)[:, None] & inside[None, :]
    gamma, beta = _affine(weight, bias, c, inside)
    value, _ = _standard(_tokens(x, token, length, c, counts), counts, width, eps, CENTRED)
    value = value * gamma + beta
    if z is not None:
        gate = _tokens(z, token, length, c, counts)
        value *= gate * sigmoid(gate)
    tl.store(y + token[:, None] * (width * tl.num_programs(1)) + c[None, :], value, mask=counts)


@triton.jit
def backward_kernel(
    x, z, weight, bias, grad, passed, dx, dz, sums, length, tokens, width, eps, tiles,
    CENTRED: tl.constexpr, TOKENS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """dx and dz (B, L, D); sums (programs, 2, D): dγ and dβ of each program's `tiles` tiles of tokens.

    z, weight, bias and `passed`, the gradient that came with the forked x, may be None.
    """
    inside = tl.arange(0, WIDTH) < width
    c = tl.program_id(1).to(tl.int64) * width + tl.arange(0, WIDTH)
    channels = width * tl.num_programs(1)
    gamma, beta = _affine(weight, bias, c, inside)
    dgamma = tl.zeros((WIDTH,), tl.float32)
    dbeta = dgamma
    for tile in range(0, tiles):
        token = (tl.program_id(0).to(tl.int64) * tiles + tile) * TOKENS + tl.arange(0, TOKENS)
        counts = (token < tokens)[:, None] & inside[None, :]
        place = token[:, None] * channels + c[None, :]
        hat, scale = _standard(_tokens(x, token, length, c, counts), counts, width, eps, CENTRED)
        g = _tokens(grad, token, length, c, counts)
        if z is not None:
            gate = _tokens(z, token, length, c, counts)
            s = sigmoid(gate)
            tl.store(dz + place, g * (hat * gamma + beta) * s * (1.0 + gate * (1.0 - s)), mask=counts)
            g *= gate * s
        dgamma += tl.sum(tl.where(counts, g * hat, 0.0), 0)
        dbeta += tl.sum(tl.where(counts, g, 0.0), 0)
        g = tl.where(counts, g * gamma, 0.0)
        result = g - hat * (tl.sum(g * hat, 1) / width)[:, None]
        if CENTRED:
            result -= (tl.sum(g, 1) / width)[:, None]
        result *= scale[:, None]
        if passed is not None:
            result += _tokens(passed, token, length, c, counts)
        tl.store(dx + place, result, mask=counts)
    layer = sums + tl.program_id(0).to(tl.int64) * 2 * channels + c
    tl.store(layer, dgamma, mask=inside)
    tl.store(layer + channels, dbeta, mask=inside)


class _Cut:
    """How tokens (B, L, D) in `groups` are cut: tokens of a tile, width filled up to a power of two, warps."""

    def __init__(self, x, groups):
        batch, self.length, channels = x.shape
        self.tokens, self.width, self.groups = batch * self.length, channels // groups, groups
        self.full = power_of_two(self.width)
        self.at_once = min(max(1, CELLS // self.full), power_of_two(self.tokens))
        self.tiles = -(-self.tokens // self.at_once)
        self.warps = min(16, max(1, self.at_once * self.full // 512))


def token_norm_triton(x, weight, bias, eps, centred=True, groups=1, gate=None, fork=False, dtype=None):
    """The norm of each token's channel groups: x and gate (B, L, D) of any strides, weight and bias (D,) or None.

    Returns y (B, L, D) in `dtype`, x's unless given; with `fork` (y, x). Differentiable once.
    """
    y, same = _TokenNorm.apply(x, weight, bias, gate, float(eps), bool(centred), groups, fork, dtype or x.dtype)
    return (y, same) if fork else y


def _given(*tensors):
    return [None if x is None else rows(x.transpose(1, 2)) for x in tensors]


class _TokenNorm(torch.autograd.Function):
    """x and z (B, L, D) or z None, weight and bias (D,) or None → y and, with `fork`, x."""

    @staticmethod
    def forward(ctx, x, weight, bias, z, eps, centred, groups, fork, dtype):
        cut, y = _Cut(x, groups), x.new_empty(x.shape, dtype=dtype)
        arguments = *_given(x, z), weight, bias, y, cut.length, cut.tokens, cut.width, eps
        with torch.cuda.device_of(x):
            forward_kernel[cut.tiles, groups](*arguments, centred, cut.at_once, cut.full, num_warps=cut.warps)
        ctx.save_for_backward(x, weight, bias, z)
        ctx.options = eps, centred, groups
        ctx.set_materialize_grads(False)
        return y, x.view_as(x) if fork else None

    @staticmethod
    @backward_once
    def backward(ctx, grad, passed):
        if grad is None:
            return passed, *[None] * 8
        (x, weight, bias, z), (eps, centred, groups) = ctx.saved_tensors, ctx.options
        cut = _Cut(x, groups)
        tiles = -(-cut.tiles // PROGRAMS)
        programs = -(-cut.tiles // tiles)
        dx, dz = x.new_empty(x.shape), None if z is None else z.new_empty(z.shape)
        sums = x.new_empty(programs, 2, x.shape[2], dtype=torch.float32)
        arguments = *_given(x, z), weight, bias, *_given(grad, passed), dx, dz, sums
        sizes = cut.length, cut.tokens, cut.width, eps, tiles
        with torch.cuda.device_of(x):
            backward_kernel[programs, groups](*arguments, *sizes, centred, cut.at_once, cut.full, num_warps=cut.warps)
        dweight, dbias = _parameters(sums, weight, bias)
        return dx, dweight, dbias, dz, None, None, None, None, None


def _parameters(sums, weight, bias):
    """dγ and dβ from the sums of each program, None where there is none."""
    if weight is None and bias is None:
        return None, None
    return (None if v is None else d.to(v.dtype) for v, d in zip((weight, bias), sums.sum(0), strict=True))
