"""The kernels of the scan in Triton, forward and backward: any floating-point inputs, float32
inside. One program has one batch row and one block of channels.

What starts them is in `scan_triton.py` beside it, with the reasons for the design.

A tile is (TILE, LANES, BLOCK): steps, N filled up to a power of two, a block of channels. Triton
gives its last axis to the lanes of a warp and its first to the registers of a thread. So a thread
has all steps of a tile for its few cells, and picking a step out of a tile, or putting one into it,
costs no instruction: the comparison with a constant is decided by the compiler. Where a tile is
padded (`PADDED`), what lies beyond the steps, N or the channels is set to zero before it reaches a
sum: where an input is infinite, 0·∞ would make it NaN. Steps and strides are multiplied in 64 bits,
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
    """B, C or Δ's low rank: (B, G, N, L) and its strides."""

    ptr: object
    batch: int
    group: int
    state: int
    step: int


class Cut(NamedTuple):
    """How the work is cut: blocks never cross the border of a `run` of channels that share one
    group of everything."""

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


# ----------------------------------------------------------------------------- elementary functions
@triton.jit
def softplus(x):
    """max(x, 0) + log(1 + e), e = exp(-|x|); log(1 + e) = 2·artanh(s), s = e/(2 + e), as its
    series.

    s is at most 1/3, so that what is cut off the series is 2e-9 of the result. A logarithm of 1 + e
    would lose the digits of a small Δ; beyond x = 20, where torch returns x itself, e is under half
    a unit in the last place.
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


# ---------------------------------------------------------------------------------- parts of a tile
@triton.jit
def load_rows(m, row, t, d, counts, PADDED: tl.constexpr):
    """u, Δ or dy of the steps t, (TILE, BLOCK)."""
    return load(
        m.ptr + row * m.batch + t[:, None] * m.step + d[None, :] * m.channel, counts, PADDED
    )


@triton.jit
def load_columns(m, row, group, t, n, counts, PADDED: tl.constexpr):
    """B or C of the steps t, (TILE, LANES, 1)."""
    at = m.ptr + row * m.batch + group * m.group + t[:, None] * m.step + n[None, :] * m.state
    return load(at, counts, PADDED)[:, :, None]


@triton.jit
def load_low_rank(delta, low, row, group, t, r, known):
    """The numbers that `low` makes Δ of, (RANKS, TILE); where Δ is given, a number stands for
    them."""
    if low is not None:
        at = (
            delta.ptr
            + row * delta.batch
            + group * delta.group
            + t[None, :] * delta.step
            + r * delta.state
        )
        return tl.load(at, mask=known, other=0.0).to(tl.float32)
    else:
        return 0.0


@triton.jit
def raw_delta(delta, low, narrow, weight, bias, shift, row, t, d, counts, PADDED: tl.constexpr):
    """Δ before softplus, (TILE, BLOCK), with its bias: given, or the product of its two narrow
    factors."""
    if low is None:
        raw = load_rows(delta, row, t, d, counts, PADDED)
    else:  # over the first axis: of a sum over the middle one Triton makes a TF32 matrix product
        raw = tl.sum(narrow[:, :, None] * weight[:, None, :], 0)
    if bias is not None:
        raw += shift[None, :]
    return raw


@triton.jit
def decay(dt, rate, alive, steps, PADDED: tl.constexpr):
    """exp(Δ·A) as a power of 2, (TILE, LANES, BLOCK). Padded steps keep h, padded cells are
    zero."""
    a = tl.exp2(dt[:, None, :] * (rate * LOG2E)[None, :, :])
    if PADDED:
        a = tl.where(alive, tl.where(steps, a, 1.0), 0.0)
    return a


# ------------------------------------------------------------------------- inside one tile of steps
@triton.jit
def pick(tile, step, i: tl.constexpr):
    """Step i of a tile, (LANES, BLOCK). Adding −0 changes no number, and the compiler leaves it
    out."""
    return tl.sum(tl.where(step == i, tile, -0.0), 0)


@triton.jit
def walk(a, x, h, step, TILE: tl.constexpr):
    """h_t = a_t·h_(t-1) + x_t through a tile: the states before every step, and the one after the
    last."""
    before = tl.zeros_like(a)
    for i in tl.static_range(TILE):
        before = tl.where(step == i, h[None, :, :], before)
        h = pick(a, step, i) * h + pick(x, step, i)
    return before, h


@triton.jit
def walk_back(a, x, g, step, TILE: tl.constexpr):
    """g_t = x_t + a_(t+1)·g_(t+1) back through a tile: all of them, and a·g of its first step for
    the tile before."""
    all_g = tl.zeros_like(a)
    for k in tl.static_range(TILE):
        g += pick(x, step, TILE - 1 - k)
        all_g = tl.where(step == TILE - 1 - k, g[None, :, :], all_g)
        g *= pick(a, step, TILE - 1 - k)
    return all_g, g


@triton.jit
def load_once(
    low,
    A,
    D,
    bias,
    d,
    n,
    inside,
    PADDED: tl.constexpr,
    N: tl.constexpr,
    R: tl.constexpr,
    RANKS: tl.constexpr,
):
    """What a program loads once: A (LANES, BLOCK), low (RANKS, BLOCK), D and bias (BLOCK,), 0 where
    there is none."""
    rate = load(A + d[None, :] * N + n[:, None], inside[None, :] & (n < N)[:, None], PADDED)
    weight, skip, shift = (
        0.0,
        0.0,
        0.0,
    )  # a function of older Tritons cannot return None among others
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
    u, delta, low, B, bias, rate, weight, shift, cut, row, first, t, d, n, inside,
    SOFTPLUS: tl.constexpr, PADDED: tl.constexpr, N: tl.constexpr, R: tl.constexpr,
    RANKS: tl.constexpr,
):  # fmt: skip
    """A tile's u, Δ before and after softplus (TILE, BLOCK), low rank (RANKS, TILE), B, a =
    exp(Δ·A), and Δ·u·B."""
    there = t < cut.length
    rows, r = there[:, None] & inside[None, :], tl.arange(0, RANKS)[:, None].to(tl.int64)
    x = load_rows(u, row, t, d, rows, PADDED)
    narrow = load_low_rank(delta, low, row, first // cut.per_dt, t, r, (r < R) & there[None, :])
    b = load_columns(B, row, first // cut.per_b, t, n, there[:, None] & (n < N)[None, :], PADDED)
    raw = raw_delta(delta, low, narrow, weight, bias, shift, row, t, d, rows, PADDED)
    dt = raw
    if SOFTPLUS:
        dt = softplus(raw)
    alive, steps = (inside[None, :] & (n < N)[:, None])[None, :, :], there[:, None, None]
    a = decay(dt, rate, alive, steps, PADDED)
    return x, raw, dt, narrow, b, a, only((dt * x)[:, None, :] * b, alive & steps, PADDED)


# ---------------------------------------------------------------------------------- the two kernels
@triton.jit
def forward_kernel(
    u, delta, low, A, B, C, D, bias, out, states, last, cut,
    SOFTPLUS: tl.constexpr, PADDED: tl.constexpr, N: tl.constexpr, R: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, RANKS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """out (B, L, D); h at the start of every chunk in `states` (B, chunks, N, D), at the end in
    `last` (B, D, N).

    low, D, bias, states and last may be None. With `low` (D, R), Δ is `low` times what `delta` (B,
    G, R, L) holds.
    """
    row, first, d, inside = place_of(cut, BLOCK)
    n, step = tl.arange(0, LANES).to(tl.int64), tl.arange(0, TILE)[:, None, None]
    cells = inside[None, :] & (n < N)[:, None]  # (LANES, BLOCK)
    matrix = d[None, :] * N + n[:, None]  # places in a (D, N) matrix
    rate, weight, skip, shift = load_once(low, A, D, bias, d, n, inside, PADDED, N, R, RANKS)

    h = tl.zeros((LANES, BLOCK), tl.float32)
    for tile in tl.range(0, cut.tiles, num_stages=STAGES):
        t = tl.cast(tile, tl.int64) * TILE + tl.arange(0, TILE)
        there = t < cut.length
        rows = there[:, None] & inside[None, :]
        x, _, _, _, _, a, drive = load_tile(
            u, delta, low, B, bias, rate, weight, shift, cut, row, first, t, d, n, inside,
            SOFTPLUS, PADDED, N, R, RANKS,
        )  # fmt: skip
        c = load_columns(
            C, row, first // cut.per_c, t, n, there[:, None] & (n < N)[None, :], PADDED
        )
        if states is not None:
            if tile % cut.chunk == 0:
                chunk = row * ((cut.tiles + cut.chunk - 1) // cut.chunk) + tile // cut.chunk
                store(
                    states + (chunk * N + n[:, None]) * cut.channels + d[None, :], h, cells, PADDED
                )
        before, h = walk(a, drive, h, step, TILE)
        y = tl.sum((a * before + drive) * c, 1)
        if D is not None:
            y += skip[None, :] * x
        store(out + (row * cut.length + t[:, None]) * cut.channels + d[None, :], y, rows, PADDED)
    if last is not None:
        store(last + row * cut.channels * N + matrix, h, cells, PADDED)


@triton.jit
def backward_kernel(
    u, delta, low, A, B, C, D, bias, grad, states, scratch, du, ddelta, dA, dlow, dB, dC, dD,
    dbias, cut,
    SOFTPLUS: tl.constexpr, PADDED: tl.constexpr, N: tl.constexpr, R: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, RANKS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """For each chunk, last to first: recomputes h at the start of its tiles into `scratch`, goes
    back tile by tile.

    With g = dL/dh_t: g = a_(t+1)·g_(t+1) + dy·C_t where a = exp(Δ·A),  dC_t = Σ_d dy·h_t,  dB_t =
    Σ_d g·Δ·u,  d(Δ·u) = Σ_n g·B_t, dΔ = Σ_n g·a·h_(t-1)·A + d(Δ·u)·u,  dA += g·a·h_(t-1)·Δ;  for Δ
    = low·narrow:  d narrow = Σ_d dΔ·low.

    scratch (programs, tiles of a chunk, LANES, BLOCK); du and, without `low`, ddelta (B, L, D).
    Sums over a block's channels, (B, blocks, L, `cut.partial`): dB, dC and, with `low`, ddelta.
    Sums over steps, (B, `cut.sums`): dA (D, N), dlow (D, R), dbias and dD (D,). low, D, bias and
    what belongs to them may be None.
    """
    row, first, d, inside = place_of(cut, BLOCK)
    n, step = tl.arange(0, LANES).to(tl.int64), tl.arange(0, TILE)[:, None, None]
    cells = inside[None, :] & (n < N)[:, None]
    matrix = d[None, :] * N + n[:, None]
    rate, weight, skip, shift = load_once(low, A, D, bias, d, n, inside, PADDED, N, R, RANKS)
    r = tl.arange(0, RANKS)[:, None].to(tl.int64)
    program = row * tl.num_programs(1) + tl.program_id(1)
    kept = (
        scratch
        + program * cut.chunk * (LANES * BLOCK)
        + n[:, None] * BLOCK
        + tl.arange(0, BLOCK)[None, :]
    )

    g = tl.zeros((LANES, BLOCK), tl.float32)  # between two tiles a_(t+1)·g_(t+1)
    da = g
    dskip = tl.zeros((BLOCK,), tl.float32)
    dshift, dweight = dskip, tl.zeros((RANKS, BLOCK), tl.float32)
    chunks = (cut.tiles + cut.chunk - 1) // cut.chunk
    for k in range(0, chunks):
        start = (chunks - 1 - k) * cut.chunk
        tiles = tl.minimum(cut.chunk, cut.tiles - start)
        chunk = row * chunks + chunks - 1 - k
        h = load(states + (chunk * N + n[:, None]) * cut.channels + d[None, :], cells, PADDED)
        tl.store(kept, h)
        for tile in tl.range(0, tiles - 1, num_stages=STAGES):
            t = tl.cast(start + tile, tl.int64) * TILE + tl.arange(0, TILE)
            _, _, _, _, _, a, drive = load_tile(
                u, delta, low, B, bias, rate, weight, shift, cut, row, first, t, d, n, inside,
                SOFTPLUS, PADDED, N, R, RANKS,
            )  # fmt: skip
            _, h = walk(a, drive, h, step, TILE)
            tl.store(kept + (tile + 1) * (LANES * BLOCK), h)
        tl.debug_barrier()  # what one thread has kept, another one may load

        for back in tl.range(0, tiles, num_stages=STAGES):
            tile = tiles - 1 - back
            t = tl.cast(start + tile, tl.int64) * TILE + tl.arange(0, TILE)
            there = t < cut.length
            rows, columns = there[:, None] & inside[None, :], there[:, None] & (n < N)[None, :]
            alive = cells[None, :, :] & there[:, None, None]
            x, raw, dt, narrow, b, a, drive = load_tile(
                u, delta, low, B, bias, rate, weight, shift, cut, row, first, t, d, n, inside,
                SOFTPLUS, PADDED, N, R, RANKS,
            )  # fmt: skip
            c = load_columns(C, row, first // cut.per_c, t, n, columns, PADDED)
            dy = load_rows(grad, row, t, d, rows, PADDED)
            before, _ = walk(a, drive, tl.load(kept + tile * (LANES * BLOCK)), step, TILE)
            decayed = a * before
            here = decayed + drive
            place = (program * cut.length + t[:, None]) * cut.partial + n[None, :]
            for_c = only(dy[:, None, :] * here, alive, PADDED)
            store(dC + place, tl.sum(for_c, 2), columns, PADDED)
            all_g, g = walk_back(a, only(dy[:, None, :] * c, alive, PADDED), g, step, TILE)
            for_b = all_g * (dt * x)[:, None, :]
            store(dB + place, tl.sum(for_b, 2), columns, PADDED)
            ga = only(all_g * decayed, alive, PADDED)
            da += tl.sum(ga * dt[:, None, :], 0)
            ddrive = tl.sum(all_g * b, 1)
            dx, ddt = ddrive * dt, tl.sum(ga * rate[None, :, :], 1) + ddrive * x
            if SOFTPLUS:
                ddt *= sigmoid(raw)
            if D is not None:
                dx += dy * skip[None, :]
                dskip += tl.sum(dy * x, 0)
            ddt = only(ddt, rows, PADDED)
            dshift += tl.sum(ddt, 0)
            dense = (row * cut.length + t[:, None]) * cut.channels + d[None, :]
            store(du + dense, dx, rows, PADDED)
            if low is None:
                store(ddelta + dense, ddt, rows, PADDED)
            else:
                at = ddelta + (program * cut.length + t[None, :]) * cut.partial + r
                dnarrow = tl.sum(ddt[None, :, :] * weight[:, None, :], 2)
                tl.store(at, dnarrow, mask=(r < R) & there[None, :])
                dweight += tl.sum(tl.trans(narrow)[:, :, None] * ddt[:, None, :], 0)
        tl.debug_barrier()  # before the next chunk overwrites what is kept

    sums = row * cut.sums
    store(dA + sums + matrix, da, cells, PADDED)
    if low is not None:
        tl.store(dlow + sums + d[None, :] * R + r, dweight, mask=inside[None, :] & (r < R))
    if bias is not None:
        store(dbias + sums + d, dshift, inside, PADDED)
    if D is not None:
        store(dD + sums + d, dskip, inside, PADDED)


INTERPRETED = not isinstance(
    forward_kernel, triton.JITFunction
)  # TRITON_INTERPRET=1: in NumPy, on the CPU
