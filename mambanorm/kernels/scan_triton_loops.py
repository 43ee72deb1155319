"""The kernels of the scan in Triton, forward and backward.

They take any floating-point inputs and compute in float32. One program has one batch row and one
block of channels. scan_triton.py starts them and gives the reasons for the design.

A tile is (TILE, LANES, BLOCK): steps, N filled up to a power of two, a block of channels. Triton
assigns its last axis to the lanes of a warp and its first to the registers of a thread. So a thread
has all steps of a tile for its few cells. Selecting a step of a tile costs no instruction, because
the compiler evaluates the comparison with a constant. Where a tile is padded (`PADDED`), the cells
beyond the steps, N or the channels are set to zero before they reach a sum: 0·∞ would be NaN where
an input is infinite. Steps and strides are multiplied in 64 bits, because B·L·D may exceed 2³¹.
"""

from typing import NamedTuple

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


class Rows(NamedTuple):
    """The memory and strides of a (B, D, L) tensor of any layout."""

    ptr: object
    batch: int
    channel: int
    step: int


class Steps(NamedTuple):
    """The memory and strides of a (B, G, N, L) tensor: B, C or the R numbers of Δ."""

    ptr: object
    batch: int
    group: int
    state: int
    step: int


class Sizes(NamedTuple):
    """The sizes that a kernel needs. Blocks of channels never cross a group's border."""

    length: int
    chunk: int  # tiles per chunk
    tiles: int
    channels: int
    group_channels: int  # channels that share one group of each of B, C and dt
    blocks: int  # per group_channels
    per_b: int  # channels that share one group of B; likewise of C and dt
    per_c: int
    per_dt: int
    partial: int  # numbers per step in the partial sums over channels
    sums: int  # numbers per row in the sums over steps


# ----------------------------------------------------------------------------- elementary functions
@triton.jit
def softplus(x):
    """Return max(x, 0) + log(1 + e), e = exp(-|x|).

    log(1 + e) = 2·artanh(s), s = e/(2 + e), computed as its series. s is at most 1/3, so the terms
    that are cut off are 2e-9 of the result. A logarithm of 1 + e would lose the digits of a small
    Δ. For x > 20 torch returns x itself; there e is less than half a unit in the last place.
    """
    e = tl.exp(-tl.abs(x))
    s = e / (2.0 + e)
    q = s * s
    series = 1 / 9 + q * (1 / 11 + q * (1 / 13 + q * (1 / 15)))
    series = 1.0 + q * (1 / 3 + q * (1 / 5 + q * (1 / 7 + q * series)))
    return tl.where(x > 0, x, 0.0) + 2.0 * s * series


@triton.jit
def sigmoid(x):
    """Return 1 / (1 + exp(-x)).

    The argument of exp is never positive, so nothing overflows.
    """
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, e) / (1.0 + e)


@triton.jit
def load(at, mask, PADDED: tl.constexpr):
    """Load in float32; 0 where the mask is False. The mask is used only if something is padded."""
    if PADDED:
        value = tl.load(at, mask=mask, other=0.0)
    else:
        value = tl.load(at)
    return value.to(tl.float32)


@triton.jit
def store(at, value, mask, PADDED: tl.constexpr):
    """Store where the mask is True. The mask is used only if something is padded."""
    if PADDED:
        tl.store(at, value, mask=mask)
    else:
        tl.store(at, value)


@triton.jit
def masked(value, mask, PADDED: tl.constexpr):
    """Return the value, set to 0 where the mask is False."""
    if PADDED:
        value = tl.where(mask, value, 0.0)
    return value


@triton.jit
def program_channels(sizes, BLOCK: tl.constexpr):
    """Return batch row, first channel and channels (BLOCK,) of the program, and a mask of them.

    The mask is False for channels beyond the group.
    """
    block = tl.program_id(1)
    group = block // sizes.blocks
    first = (group * sizes.group_channels + block % sizes.blocks * BLOCK).to(tl.int64)
    d = first + tl.arange(0, BLOCK)
    return tl.program_id(0).to(tl.int64), first, d, d < (group + 1) * sizes.group_channels


# ---------------------------------------------------------------------------------- parts of a tile
@triton.jit
def load_rows(m, row, t, d, mask, PADDED: tl.constexpr):
    """Load u, Δ or dy of the steps t, (TILE, BLOCK)."""
    return load(m.ptr + row * m.batch + t[:, None] * m.step + d[None, :] * m.channel, mask, PADDED)


@triton.jit
def load_columns(m, row, group, t, n, mask, PADDED: tl.constexpr):
    """Load B or C of the steps t, (TILE, LANES, 1)."""
    at = m.ptr + row * m.batch + group * m.group + t[:, None] * m.step + n[None, :] * m.state
    return load(at, mask, PADDED)[:, :, None]


@triton.jit
def raw_delta(
    delta, dt_weight, dt_numbers, weight, bias, shift, row, t, d, mask, PADDED: tl.constexpr
):
    """Return Δ before softplus, with its bias, (TILE, BLOCK).

    It is loaded, or computed as the product of `dt_weight` and its R numbers.
    """
    if dt_weight is None:
        raw = load_rows(delta, row, t, d, mask, PADDED)
    else:  # Triton would turn a sum over the middle axis into a TF32 matrix product
        raw = tl.sum(dt_numbers[:, :, None] * weight[:, None, :], 0)
    if bias is not None:
        raw += shift[None, :]
    return raw


# ------------------------------------------------------------------------- inside one tile of steps
@triton.jit
def select_step(tile, step, i: tl.constexpr):
    """Return step i of a tile, (LANES, BLOCK).

    Adding −0 changes no number, so the compiler omits the additions.
    """
    return tl.sum(tl.where(step == i, tile, -0.0), 0)


@triton.jit
def walk(a, x, h, step, TILE: tl.constexpr):
    """Compute h_t = a_t·h_(t-1) + x_t through a tile.

    Returns the states before every step, and the state after the last.
    """
    before = tl.zeros_like(a)
    for i in tl.static_range(TILE):
        before = tl.where(step == i, h[None, :, :], before)
        h = select_step(a, step, i) * h + select_step(x, step, i)
    return before, h


@triton.jit
def walk_back(a, x, g, step, TILE: tl.constexpr):
    """Compute g_t = x_t + a_(t+1)·g_(t+1) backward through a tile.

    Returns g of all steps, and a·g of the first step for the tile before.
    """
    all_g = tl.zeros_like(a)
    for k in tl.static_range(TILE):
        g += select_step(x, step, TILE - 1 - k)
        all_g = tl.where(step == TILE - 1 - k, g[None, :, :], all_g)
        g *= select_step(a, step, TILE - 1 - k)
    return all_g, g


@triton.jit
def load_once(
    dt_weight, A, D, bias, d, n, inside,
    PADDED: tl.constexpr, N: tl.constexpr, R: tl.constexpr, RANKS: tl.constexpr,
):  # fmt: skip
    """Load what a program needs at all steps.

    Returns A (LANES, BLOCK), dt_weight (RANKS, BLOCK), D and bias (BLOCK,); 0.0 for None.
    """
    A_block = load(A + d[None, :] * N + n[:, None], inside[None, :] & (n < N)[:, None], PADDED)
    # functions in older versions of Triton cannot return None in a tuple
    weight, skip, shift = 0.0, 0.0, 0.0
    if dt_weight is not None:
        r = tl.arange(0, RANKS)[:, None]
        weight = load(dt_weight + d[None, :] * R + r, inside[None, :] & (r < R), True)
    if D is not None:
        skip = load(D + d, inside, PADDED)
    if bias is not None:
        shift = load(bias + d, inside, PADDED)
    return A_block, weight, skip, shift


@triton.jit
def load_tile(
    u, delta, dt_weight, B, bias, A_block, weight, shift, sizes, row, first, t, d, n, inside,
    SOFTPLUS: tl.constexpr, PADDED: tl.constexpr, N: tl.constexpr, R: tl.constexpr,
    RANKS: tl.constexpr,
):  # fmt: skip
    """Load a tile and compute what both passes need of it.

    Returns u, Δ before and after softplus (TILE, BLOCK), the R numbers of Δ (RANKS, TILE), B, a =
    exp(Δ·A), and Δ·u·B.
    """
    valid = t < sizes.length
    row_mask, r = valid[:, None] & inside[None, :], tl.arange(0, RANKS)[:, None].to(tl.int64)
    x = load_rows(u, row, t, d, row_mask, PADDED)
    group, dt_mask = first // sizes.per_dt, (r < R) & valid[None, :]
    dt_numbers = 0.0
    if dt_weight is not None:
        at = delta.ptr + row * delta.batch + group * delta.group
        at = at + t[None, :] * delta.step + r * delta.state
        dt_numbers = tl.load(at, mask=dt_mask, other=0.0).to(tl.float32)
    b = load_columns(B, row, first // sizes.per_b, t, n, valid[:, None] & (n < N)[None, :], PADDED)
    raw = raw_delta(delta, dt_weight, dt_numbers, weight, bias, shift, row, t, d, row_mask, PADDED)
    dt = raw
    if SOFTPLUS:
        dt = softplus(raw)
    alive, steps = (inside[None, :] & (n < N)[:, None])[None, :, :], valid[:, None, None]
    a = tl.exp2(dt[:, None, :] * (A_block * LOG2E)[None, :, :])
    if PADDED:  # padded steps keep h, padded cells are 0
        a = tl.where(alive, tl.where(steps, a, 1.0), 0.0)
    return x, raw, dt, dt_numbers, b, a, masked((dt * x)[:, None, :] * b, alive & steps, PADDED)


# ---------------------------------------------------------------------------------- the two kernels
@triton.jit
def forward_kernel(
    u, delta, dt_weight, A, B, C, D, bias, out, states, last, sizes,
    SOFTPLUS: tl.constexpr, PADDED: tl.constexpr, N: tl.constexpr, R: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, RANKS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Compute out (B, L, D).

    `states` (B, chunks, N, D) receives h at the start of each chunk, `last` (B, D, N) receives h
    after the last step of the sequence. dt_weight, D, bias, states and last may be None.
    With dt_weight (D, R), Δ is its product with the numbers in `delta` (B, G, R, L).
    """
    row, first, d, inside = program_channels(sizes, BLOCK)
    n, step = tl.arange(0, LANES).to(tl.int64), tl.arange(0, TILE)[:, None, None]
    cells = inside[None, :] & (n < N)[:, None]  # (LANES, BLOCK)
    A_block, weight, skip, shift = load_once(
        dt_weight, A, D, bias, d, n, inside, PADDED, N, R, RANKS
    )

    h = tl.zeros((LANES, BLOCK), tl.float32)
    for tile in tl.range(0, sizes.tiles, num_stages=STAGES):
        t = tl.cast(tile, tl.int64) * TILE + tl.arange(0, TILE)
        valid = t < sizes.length
        row_mask = valid[:, None] & inside[None, :]
        x, _, _, _, _, a, drive = load_tile(
            u, delta, dt_weight, B, bias, A_block, weight, shift, sizes, row, first, t, d, n,
            inside, SOFTPLUS, PADDED, N, R, RANKS,
        )  # fmt: skip
        c = load_columns(
            C, row, first // sizes.per_c, t, n, valid[:, None] & (n < N)[None, :], PADDED
        )
        if states is not None:  # noqa: SIM102  (decided when the kernel is compiled)
            if tile % sizes.chunk == 0:
                chunk = row * ((sizes.tiles + sizes.chunk - 1) // sizes.chunk) + tile // sizes.chunk
                store(
                    states + (chunk * N + n[:, None]) * sizes.channels + d[None, :],
                    h,
                    cells,
                    PADDED,
                )
        before, h = walk(a, drive, h, step, TILE)
        y = tl.sum((a * before + drive) * c, 1)
        if D is not None:
            y += skip[None, :] * x
        store(
            out + (row * sizes.length + t[:, None]) * sizes.channels + d[None, :],
            y,
            row_mask,
            PADDED,
        )
    if last is not None:
        store(last + row * sizes.channels * N + (d[None, :] * N + n[:, None]), h, cells, PADDED)


@triton.jit
def backward_kernel(
    u, delta, dt_weight, A, B, C, D, bias, grad, states, scratch, du, ddelta, dA, ddt_weight, dB,
    dC, dD, dbias, sizes,
    SOFTPLUS: tl.constexpr, PADDED: tl.constexpr, N: tl.constexpr, R: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, RANKS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Compute all gradients, chunk by chunk from the last to the first.

    For each chunk it recomputes h at the start of the tiles into `scratch`, then goes back tile by
    tile. With g = dL/dh_t:

        g = a_(t+1)·g_(t+1) + dy·C_t where a = exp(Δ·A),  dC_t = Σ_d dy·h_t,  dB_t = Σ_d g·Δ·u,
        d(Δ·u) = Σ_n g·B_t,  dΔ = Σ_n g·a·h_(t-1)·A + d(Δ·u)·u,  dA += g·a·h_(t-1)·Δ;
        for Δ = dt_weight·dt_numbers:  d dt_numbers = Σ_d dΔ·dt_weight.

    scratch (programs, tiles of a chunk, LANES, BLOCK); du and, without dt_weight, ddelta (B, L, D).
    Sums over a block's channels, (B, blocks, L, `sizes.partial`): dB, dC and, with dt_weight,
    ddelta. Sums over steps, (B, `sizes.sums`): dA (D, N), ddt_weight (D, R), dbias and dD (D,).
    dt_weight, D, bias and their gradients may be None.
    """
    row, first, d, inside = program_channels(sizes, BLOCK)
    n, step = tl.arange(0, LANES).to(tl.int64), tl.arange(0, TILE)[:, None, None]
    cells = inside[None, :] & (n < N)[:, None]
    A_block, weight, skip, shift = load_once(
        dt_weight, A, D, bias, d, n, inside, PADDED, N, R, RANKS
    )
    r = tl.arange(0, RANKS)[:, None].to(tl.int64)
    program = row * tl.num_programs(1) + tl.program_id(1)
    saved = (
        scratch
        + program * sizes.chunk * (LANES * BLOCK)
        + n[:, None] * BLOCK
        + tl.arange(0, BLOCK)[None, :]
    )

    g = tl.zeros((LANES, BLOCK), tl.float32)  # between tiles: a_(t+1)·g_(t+1)
    da = g
    dskip = tl.zeros((BLOCK,), tl.float32)
    dshift, dweight = dskip, tl.zeros((RANKS, BLOCK), tl.float32)
    chunks = (sizes.tiles + sizes.chunk - 1) // sizes.chunk
    for k in range(0, chunks):
        start = (chunks - 1 - k) * sizes.chunk
        tiles = tl.minimum(sizes.chunk, sizes.tiles - start)
        chunk = row * chunks + chunks - 1 - k
        h = load(states + (chunk * N + n[:, None]) * sizes.channels + d[None, :], cells, PADDED)
        tl.store(saved, h)
        for tile in tl.range(0, tiles - 1, num_stages=STAGES):
            t = tl.cast(start + tile, tl.int64) * TILE + tl.arange(0, TILE)
            _, _, _, _, _, a, drive = load_tile(
                u, delta, dt_weight, B, bias, A_block, weight, shift, sizes, row, first, t, d, n,
                inside, SOFTPLUS, PADDED, N, R, RANKS,
            )  # fmt: skip
            _, h = walk(a, drive, h, step, TILE)
            tl.store(saved + (tile + 1) * (LANES * BLOCK), h)
        tl.debug_barrier()  # one thread may load what another has saved

        for back in tl.range(0, tiles, num_stages=STAGES):
            tile = tiles - 1 - back
            t = tl.cast(start + tile, tl.int64) * TILE + tl.arange(0, TILE)
            valid = t < sizes.length
            row_mask = valid[:, None] & inside[None, :]
            column_mask = valid[:, None] & (n < N)[None, :]
            alive = cells[None, :, :] & valid[:, None, None]
            x, raw, dt, dt_numbers, b, a, drive = load_tile(
                u, delta, dt_weight, B, bias, A_block, weight, shift, sizes, row, first, t, d, n,
                inside, SOFTPLUS, PADDED, N, R, RANKS,
            )  # fmt: skip
            c = load_columns(C, row, first // sizes.per_c, t, n, column_mask, PADDED)
            dy = load_rows(grad, row, t, d, row_mask, PADDED)
            before, _ = walk(a, drive, tl.load(saved + tile * (LANES * BLOCK)), step, TILE)
            decayed = a * before
            after = decayed + drive
            offsets = (program * sizes.length + t[:, None]) * sizes.partial + n[None, :]
            for_c = masked(dy[:, None, :] * after, alive, PADDED)
            store(dC + offsets, tl.sum(for_c, 2), column_mask, PADDED)
            all_g, g = walk_back(a, masked(dy[:, None, :] * c, alive, PADDED), g, step, TILE)
            for_b = all_g * (dt * x)[:, None, :]
            store(dB + offsets, tl.sum(for_b, 2), column_mask, PADDED)
            ga = masked(all_g * decayed, alive, PADDED)
            da += tl.sum(ga * dt[:, None, :], 0)
            ddrive = tl.sum(all_g * b, 1)
            dx, ddt = ddrive * dt, tl.sum(ga * A_block[None, :, :], 1) + ddrive * x
            if SOFTPLUS:
                ddt *= sigmoid(raw)
            if D is not None:
                dx += dy * skip[None, :]
                dskip += tl.sum(dy * x, 0)
            ddt = masked(ddt, row_mask, PADDED)
            dshift += tl.sum(ddt, 0)
            dense = (row * sizes.length + t[:, None]) * sizes.channels + d[None, :]
            store(du + dense, dx, row_mask, PADDED)
            if dt_weight is None:
                store(ddelta + dense, ddt, row_mask, PADDED)
            else:
                at = ddelta + (program * sizes.length + t[None, :]) * sizes.partial + r
                ddt_numbers = tl.sum(ddt[None, :, :] * weight[:, None, :], 2)
                tl.store(at, ddt_numbers, mask=(r < R) & valid[None, :])
                dweight += tl.sum(tl.trans(dt_numbers)[:, :, None] * ddt[:, None, :], 0)
        tl.debug_barrier()  # before the next chunk overwrites the saved states

    sums = row * sizes.sums
    store(dA + sums + (d[None, :] * N + n[:, None]), da, cells, PADDED)
    if dt_weight is not None:
        tl.store(ddt_weight + sums + d[None, :] * R + r, dweight, mask=inside[None, :] & (r < R))
    if bias is not None:
        store(dbias + sums + d, dshift, inside, PADDED)
    if D is not None:
        store(dD + sums + d, dskip, inside, PADDED)


# With TRITON_INTERPRET=1 the kernels run in NumPy, on the CPU.
INTERPRETED = not isinstance(forward_kernel, triton.JITFunction)
