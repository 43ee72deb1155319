"""What the kernels of the scan in Triton are made of: any floating-point inputs, float32 inside.

Map of the file
---------------
1. `Rows`, `Steps`, `Cut`   what the kernels are given: memory with strides, and how the work is cut
2. `softplus`, `sigmoid`, `load`, `store`, `only`, `place_of`   elementary functions; which channels a program has
3. `load_rows`, `load_columns`, `raw_delta`, `decay`, …   what a tile of steps is made of
4. `pick`, `walk`, `walk_back`   the two recurrences, h forward and g backward, inside one tile
5. `load_once`, `load_tile`   all of that, once for a program and for each tile

The kernels are in `mambanorm/kernels/scan_triton_loops.py`; `mambanorm/kernels/scan_triton.py` has the glossary.

A tile is (TILE, LANES, BLOCK): steps, N filled up to a power of two, a block of channels. Triton gives its last axis to
the lanes of a warp and its first to the registers of a thread. So a thread has all steps of a tile for its few cells,
and picking a step out of a tile, or putting one into it, costs no instruction: the comparison with a constant is
decided by the compiler. Where a tile is padded (`PADDED`), what lies beyond the steps, N or the channels is set to zero
before it reaches a sum: where an input is infinite, 0·∞ would make it NaN. Steps and strides are multiplied in 64 bits,
because B·L·D may exceed 2³¹.
"""

from typing import NamedTuple

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


class Rows(NamedTuple):
    """A (B, D, L) tensor of any layout: its memory and its strides."""

    ptr: object
    batch: int
    channel: int
    step: int


class Steps(NamedTuple):
    """B, C or Δ's low rank: (B, G, N, L) and its strides. A constant is a contiguous (D, N); it has no group."""

    ptr: object
    batch: int = 0
    group: int | None = None
    state: int = 0
    step: int = 0


class Cut(NamedTuple):
    """How the work is cut: blocks never cross the border of a `run` of channels that share one group of everything."""

    length: int
    chunk: int  # tiles per chunk
    tiles: int
    channels: int
    run: int
    blocks: int  # per run
    per_b: int  # channels that share one group of B
    per_c: int
    per_dt: int
    partial: int  # numbers a step in the partial sums over channels
    sums: int  # numbers a row in the sums over steps


# ------------------------------------------------------------------------------------------------ elementary functions
@triton.jit
def softplus(x):
    """max(x, 0) + log(1 + e), e = exp(-|x|); log(1 + e) = 2·artanh(s), s = e/(2 + e), as its series.

    s is at most 1/3, so that what is cut off the series is 2e-9 of the result. A logarithm of 1 + e would lose the
    digits of a small Δ; beyond x = 20, where torch returns x itself, e is under half a unit in the last place.
    """
    e = tl.exp(-tl.abs(x))
    s = e / (2.0 + e)
    q = s * s
    series = 1 / 9 + q * (1 / 11 + q * (1 / 13 + q * (1 / 15)))
    series = 1.0 + q * (1 / 3 + q * (1 / 5 + q * (1 / 7 + q * series)))
    return tl.where(x > 0, x, 0.0) + 2.0 * s * series


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)); the argument of exp is never positive, so nothing overflows."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, e) / (1.0 + e)


@triton.jit
def load(at, mask, PADDED: tl.constexpr):
    """In float32; zero where the mask is not, which is looked at only where something is padded."""
    if PADDED:
        value = tl.load(at, mask=mask, other=0.0)
    else:
        value = tl.load(at)
    return value.to(tl.float32)


@triton.jit
def store(at, value, mask, PADDED: tl.constexpr):
    if PADDED:
        tl.store(at, value, mask=mask)
    else:
        tl.store(at, value)


@triton.jit
def only(value, mask, PADDED: tl.constexpr):
    """Zero where the mask is not."""
    if PADDED:
        value = tl.where(mask, value, 0.0)
    return value


@triton.jit
def place_of(cut, BLOCK: tl.constexpr):
    """This program's batch row, first channel, channels (BLOCK,) and which of them count."""
    block = tl.program_id(1)
    run = block // cut.blocks
    first = (run * cut.run + block % cut.blocks * BLOCK).to(tl.int64)
    d = first + tl.arange(0, BLOCK)
    return tl.program_id(0).to(tl.int64), first, d, d < (run + 1) * cut.run


# ------------------------------------------------------------------------------------------------------ parts of a tile
@triton.jit
def load_rows(m, row, t, d, counts, PADDED: tl.constexpr):
    """u, Δ, z or dy of the steps t, (TILE, BLOCK)."""
    return load(m.ptr + row * m.batch + t[:, None] * m.step + d[None, :] * m.channel, counts, PADDED)


@triton.jit
def load_constant(m, matrix, cells, PADDED: tl.constexpr):
    """B or C where it is a constant, (1, LANES, BLOCK); else nothing is loaded once, and a number stands for it."""
    if m.group is None:
        return load(m.ptr + matrix, cells, PADDED)[None, :, :]
    else:
        return 0.0


@triton.jit
def load_columns(m, constant, row, group, t, n, counts, PADDED: tl.constexpr):
    """B or C of the steps t, (TILE, LANES, 1), or the constant."""
    if m.group is None:
        return constant
    else:
        at = m.ptr + row * m.batch + group * m.group + t[:, None] * m.step + n[None, :] * m.state
        return load(at, counts, PADDED)[:, :, None]


@triton.jit
def load_low_rank(delta, low, row, group, t, r, known):
    """The numbers that `low` makes Δ of, (RANKS, TILE); where Δ is given, a number stands for them."""
    if low is not None:
        at = delta.ptr + row * delta.batch + group * delta.group + t[None, :] * delta.step + r * delta.state
        return tl.load(at, mask=known, other=0.0).to(tl.float32)
    else:
        return 0.0


@triton.jit
def raw_delta(delta, low, narrow, weight, bias, shift, row, t, d, counts, PADDED: tl.constexpr):
    """Δ before softplus, (TILE, BLOCK), with its bias: given, or the product of its two narrow factors."""
    if low is None:
        raw = load_rows(delta, row, t, d, counts, PADDED)
    else:  # summed over the first axis: from a sum over the middle one Triton makes a matrix product in TF32
        raw = tl.sum(narrow[:, :, None] * weight[:, None, :], 0)
    if bias is not None:
        raw += shift[None, :]
    return raw


@triton.jit
def decay(dt, rate, alive, steps, PADDED: tl.constexpr):
    """exp(Δ·A) as a power of 2, (TILE, LANES, BLOCK). Padded steps keep h, padded cells are zero."""
    a = tl.exp2(dt[:, None, :] * (rate * LOG2E)[None, :, :])
    if PADDED:
        a = tl.where(alive, tl.where(steps, a, 1.0), 0.0)
    return a


# ------------------------------------------------------------------------------------------- inside one tile of steps
@triton.jit
def pick(tile, step, i: tl.constexpr):
    """Step i of a tile, (LANES, BLOCK). Adding −0 changes no number, and the compiler leaves it out."""
    return tl.sum(tl.where(step == i, tile, -0.0), 0)


@triton.jit
def walk(a, x, h, step, TILE: tl.constexpr):
    """h_t = a_t·h_(t-1) + x_t through a tile: the states before every step, and the one after the last."""
    before = tl.zeros_like(a)
    for i in tl.static_range(TILE):
        before = tl.where(step == i, h[None, :, :], before)
        h = pick(a, step, i) * h + pick(x, step, i)
    return before, h


@triton.jit
def walk_back(a, x, g, step, TILE: tl.constexpr):
    """g_t = x_t + a_(t+1)·g_(t+1) back through a tile: all of them, and a·g of its first step for the tile before."""
    all_g = tl.zeros_like(a)
    for k in tl.static_range(TILE):
        g += pick(x, step, TILE - 1 - k)
        all_g = tl.where(step == TILE - 1 - k, g[None, :, :], all_g)
        g *= pick(a, step, TILE - 1 - k)
    return all_g, g


@triton.jit
def load_once(
    low, A, D, bias, d, n, inside, LOG_A: tl.constexpr, PADDED: tl.constexpr,
    N: tl.constexpr, R: tl.constexpr, RANKS: tl.constexpr,
):  # fmt: skip
    """What a program loads once: A (LANES, BLOCK), low (RANKS, BLOCK), D and bias (BLOCK,), 0 where there is none."""
    rate = load(A + d[None, :] * N + n[:, None], inside[None, :] & (n < N)[:, None], PADDED)
    if LOG_A:
        rate = -tl.exp(rate)
    weight, skip, shift = 0.0, 0.0, 0.0  # a function of older Tritons cannot return None among others
    if low is not None:
        r = tl.arange(0, RANKS)[:, None]
        weight = load(low + d[None, :] * R + r, inside[None, :] & (r < R), True)
    if D is not None:
        skip = load(D + d, inside, PADDED)
    if bias is not None:
        shift = load(bias + d, inside, PADDED)
    return rate, weight, skip, shift


@triton.jit
def load_tile(
    u, delta, low, B, bias, rate, weight, b_constant, shift, cut, row, first, t, d, n, inside,
    SOFTPLUS: tl.constexpr, PADDED: tl.constexpr, N: tl.constexpr, R: tl.constexpr, RANKS: tl.constexpr,
):  # fmt: skip
    """A tile's u, Δ before and after softplus (TILE, BLOCK), low rank (RANKS, TILE), B, a = exp(Δ·A), and Δ·u·B."""
    there = t < cut.length
    rows, r = there[:, None] & inside[None, :], tl.arange(0, RANKS)[:, None].to(tl.int64)
    x = load_rows(u, row, t, d, rows, PADDED)
    narrow = load_low_rank(delta, low, row, first // cut.per_dt, t, r, (r < R) & there[None, :])
    b = load_columns(B, b_constant, row, first // cut.per_b, t, n, there[:, None] & (n < N)[None, :], PADDED)
    raw = raw_delta(delta, low, narrow, weight, bias, shift, row, t, d, rows, PADDED)
    dt = raw
    if SOFTPLUS:
        dt = softplus(raw)
    alive, steps = (inside[None, :] & (n < N)[:, None])[None, :, :], there[:, None, None]
    a = decay(dt, rate, alive, steps, PADDED)
    return x, raw, dt, narrow, b, a, only((dt * x)[:, None, :] * b, alive & steps, PADDED)
