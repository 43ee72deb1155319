"""The kernels of the scan in Triton, forward and backward.

The kernels take inputs of any floating-point dtype and compute in float32. Each program computes
one batch row and one block of channels. scan_triton.py starts the kernels and gives the reasons for
the design.

A tile has the shape (TILE, PADDED_N, BLOCK): steps, N rounded up to a power of two, and the
channels of a block. A cell is one element of a tile. Triton assigns the last axis of a tile to the
lanes of a warp and the first axis to the registers of a thread. So a thread has all steps of a tile
for a few pairs of state index and channel. Selecting one step of a tile costs no instruction,
because the step is compared with a constant, and the compiler evaluates this comparison. If tiles
are padded (`PADDED`), the cells beyond L, N or the group's channels are set to zero before they
enter a sum, because 0·∞ would be NaN where an input is infinite. Steps and strides are multiplied
in 64 bits, because B·L·D may exceed 2³¹.
"""

from typing import NamedTuple

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


class ChannelTensor(NamedTuple):
    """The memory and strides of a tensor (B, D, L) of any layout: u, delta or a gradient."""

    ptr: object
    batch: int
    channel: int
    step: int


class GroupTensor(NamedTuple):
    """The memory and strides of a tensor (B, G, N, L): B, C, or delta with R numbers per step."""

    ptr: object
    batch: int
    group: int
    state: int
    step: int


class Sizes(NamedTuple):
    """The sizes that a kernel needs. Blocks of channels never cross the border of a group."""

    length: int
    chunk: int  # tiles per chunk
    tiles: int  # tiles per sequence
    channels: int
    group_channels: int  # neighbouring channels that share the same groups of B, C and dt
    blocks: int  # blocks per `group_channels` channels
    per_b: int  # channels per group of B
    per_c: int  # channels per group of C
    per_dt: int  # channels per group of dt
    partial: int  # numbers per step in the partial sums over channels
    sums: int  # numbers per batch row in the sums over steps


# ----------------------------------------------------------------------------- elementary functions
@triton.jit
def softplus(x):
    """Return log(1 + exp(x)), computed as max(x, 0) + log(1 + e) where e = exp(-|x|).

    log(1 + e) is computed as the series of 2·artanh(s) with s = e/(2 + e). s is at most 1/3, so the
    omitted terms are at most 2e-9 of the result. Taking the logarithm of the rounded sum 1 + e
    would lose the digits of a small Δ. For x > 20 torch returns x itself; there e is less than half
    a unit in the last place of x, so this function returns x too.
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

    exp is only computed for -|x|, which is never positive, so nothing overflows.
    """
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, e) / (1.0 + e)


@triton.jit
def load(pointers, mask, PADDED: tl.constexpr):
    """Return float32 numbers from the pointers; if PADDED, return 0 where the mask is False."""
    if PADDED:
        value = tl.load(pointers, mask=mask, other=0.0)
    else:
        value = tl.load(pointers)
    return value.to(tl.float32)


@triton.jit
def store(pointers, value, mask, PADDED: tl.constexpr):
    """Store `value` at the pointers. If PADDED, store only where the mask is True."""
    if PADDED:
        tl.store(pointers, value, mask=mask)
    else:
        tl.store(pointers, value)


@triton.jit
def apply_mask(value, mask, PADDED: tl.constexpr):
    """Return `value`. If PADDED, replace it by 0 where the mask is False."""
    if PADDED:
        value = tl.where(mask, value, 0.0)
    return value


@triton.jit
def program_channels(sizes, BLOCK: tl.constexpr):
    """Return a program's batch row, its first channel, its channels (BLOCK,), and their mask.

    The mask is False for channels beyond the group.
    """
    block = tl.program_id(1)
    group = block // sizes.blocks
    first = (group * sizes.group_channels + block % sizes.blocks * BLOCK).to(tl.int64)
    d = first + tl.arange(0, BLOCK)
    return tl.program_id(0).to(tl.int64), first, d, d < (group + 1) * sizes.group_channels


# ---------------------------------------------------------------------------------- parts of a tile
@triton.jit
def load_channel_tensor(m, row, t, d, mask, PADDED: tl.constexpr):
    """Return m, which is u, delta or dy, at the steps t: (TILE, BLOCK)."""
    return load(m.ptr + row * m.batch + t[:, None] * m.step + d[None, :] * m.channel, mask, PADDED)


@triton.jit
def load_group_tensor(m, row, group, t, n, mask, PADDED: tl.constexpr):
    """Return m, which is B or C, at the steps t: (TILE, PADDED_N, 1)."""
    pointers = m.ptr + row * m.batch + group * m.group + t[:, None] * m.step + n[None, :] * m.state
    return load(pointers, mask, PADDED)[:, :, None]


@triton.jit
def raw_delta(
    delta, dt_weight, dt_numbers, weight, bias, shift, row, t, d, mask, PADDED: tl.constexpr
):
    """Return Δ before softplus, including the bias, (TILE, BLOCK).

    Without dt_weight, Δ is loaded from `delta`. With dt_weight, Δ is the product of `weight`, the
    values of dt_weight, and `dt_numbers`, the R numbers of each step. `shift` holds the values of
    `bias`.
    """
    if dt_weight is None:
        raw = load_channel_tensor(delta, row, t, d, mask, PADDED)
    else:  # Triton would compute a sum over the middle axis as a TF32 matrix product
        raw = tl.sum(dt_numbers[:, :, None] * weight[:, None, :], 0)
    if bias is not None:
        raw += shift[None, :]
    return raw


# ------------------------------------------------------------------------- inside one tile of steps
@triton.jit
def select_step(tile, step, i: tl.constexpr):
    """Return step i of a tile, (PADDED_N, BLOCK).

    The other steps are replaced by −0 and added. Adding −0 changes no number, so the compiler omits
    the additions.
    """
    return tl.sum(tl.where(step == i, tile, -0.0), 0)


@triton.jit
def scan_tile(a, x, h, step, TILE: tl.constexpr):
    """Compute h_t = a_t·h_(t-1) + x_t for all steps of a tile.

    Returns the states before every step, and the state after the last step.
    """
    h_before = tl.zeros_like(a)
    for i in tl.static_range(TILE):
        h_before = tl.where(step == i, h[None, :, :], h_before)
        h = select_step(a, step, i) * h + select_step(x, step, i)
    return h_before, h


@triton.jit
def scan_tile_backward(a, x, g, step, TILE: tl.constexpr):
    """Compute g_t = x_t + a_(t+1)·g_(t+1) from the last step of a tile to its first.

    Returns g of all steps, and a·g of the first step, which the preceding tile needs.
    """
    all_g = tl.zeros_like(a)
    for k in tl.static_range(TILE):
        g += select_step(x, step, TILE - 1 - k)
        all_g = tl.where(step == TILE - 1 - k, g[None, :, :], all_g)
        g *= select_step(a, step, TILE - 1 - k)
    return all_g, g


@triton.jit
def load_parameters(
    dt_weight, A, D, bias, d, n, channel_mask,
    PADDED: tl.constexpr, N: tl.constexpr, R: tl.constexpr, PADDED_R: tl.constexpr,
):  # fmt: skip
    """Load the parameters that a program needs at all steps.

    Returns A (PADDED_N, BLOCK), dt_weight (PADDED_R, BLOCK), D (BLOCK,) and bias (BLOCK,). 0.0
    replaces a parameter that is None.
    """
    A_block = load(
        A + d[None, :] * N + n[:, None], channel_mask[None, :] & (n < N)[:, None], PADDED
    )
    # functions in older versions of Triton cannot return None in a tuple
    weight, skip, shift = 0.0, 0.0, 0.0
    if dt_weight is not None:
        r = tl.arange(0, PADDED_R)[:, None]
        weight = load(dt_weight + d[None, :] * R + r, channel_mask[None, :] & (r < R), True)
    if D is not None:
        skip = load(D + d, channel_mask, PADDED)
    if bias is not None:
        shift = load(bias + d, channel_mask, PADDED)
    return A_block, weight, skip, shift


@triton.jit
def load_tile(
    u, delta, dt_weight, B, bias, A_block, weight, shift, sizes, row, first, t, d, n, channel_mask,
    SOFTPLUS: tl.constexpr, PADDED: tl.constexpr, N: tl.constexpr, R: tl.constexpr,
    PADDED_R: tl.constexpr,
):  # fmt: skip
    """Load one tile and compute what both the forward and the backward pass need.

    `weight` and `shift` are the values of `dt_weight` and `bias` that `load_parameters` returned.
    Returns u, Δ before softplus and Δ after softplus, (TILE, BLOCK) each; the R numbers that
    dt_weight multiplies at each step, (PADDED_R, TILE); B (TILE, PADDED_N, 1); and a = exp(Δ·A) and
    Δ·u·B, each of a tile's shape.
    """
    valid_steps = t < sizes.length
    row_mask, r = (
        valid_steps[:, None] & channel_mask[None, :],
        tl.arange(0, PADDED_R)[:, None].to(tl.int64),
    )
    x = load_channel_tensor(u, row, t, d, row_mask, PADDED)
    group, dt_mask = first // sizes.per_dt, (r < R) & valid_steps[None, :]
    dt_numbers = 0.0
    if dt_weight is not None:
        pointers = delta.ptr + row * delta.batch + group * delta.group
        pointers = pointers + t[None, :] * delta.step + r * delta.state
        dt_numbers = tl.load(pointers, mask=dt_mask, other=0.0).to(tl.float32)
    b = load_group_tensor(
        B, row, first // sizes.per_b, t, n, valid_steps[:, None] & (n < N)[None, :], PADDED
    )
    raw = raw_delta(delta, dt_weight, dt_numbers, weight, bias, shift, row, t, d, row_mask, PADDED)
    dt = raw
    if SOFTPLUS:
        dt = softplus(raw)
    state_mask, steps = (
        (channel_mask[None, :] & (n < N)[:, None])[None, :, :],
        valid_steps[:, None, None],
    )
    a = tl.exp2(dt[:, None, :] * (A_block * LOG2E)[None, :, :])
    if PADDED:  # a padded step keeps h; other padded cells are 0
        a = tl.where(state_mask, tl.where(steps, a, 1.0), 0.0)
    return (
        x,
        raw,
        dt,
        dt_numbers,
        b,
        a,
        apply_mask((dt * x)[:, None, :] * b, state_mask & steps, PADDED),
    )


# ---------------------------------------------------------------------------------- the two kernels
@triton.jit
def forward_kernel(
    u, delta, dt_weight, A, B, C, D, bias, out, states, last, sizes,
    SOFTPLUS: tl.constexpr, PADDED: tl.constexpr, N: tl.constexpr, R: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr, PADDED_N: tl.constexpr, PADDED_R: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Compute out (B, L, D) for one batch row and one block of channels.

    `states` (B, chunks, N, D) receives h at the start of each chunk; `last` (B, D, N) receives h
    after the last step of the sequence. With dt_weight (D, R), Δ is the product of dt_weight and
    `delta` (B, G, R, L). dt_weight, D, bias, states and last may be None.
    """
    row, first, d, channel_mask = program_channels(sizes, BLOCK)
    n, step = tl.arange(0, PADDED_N).to(tl.int64), tl.arange(0, TILE)[:, None, None]
    state_mask = channel_mask[None, :] & (n < N)[:, None]  # (PADDED_N, BLOCK)
    A_block, weight, skip, shift = load_parameters(
        dt_weight, A, D, bias, d, n, channel_mask, PADDED, N, R, PADDED_R
    )

    h = tl.zeros((PADDED_N, BLOCK), tl.float32)
    for tile in tl.range(0, sizes.tiles, num_stages=STAGES):
        t = tl.cast(tile, tl.int64) * TILE + tl.arange(0, TILE)
        valid_steps = t < sizes.length
        row_mask = valid_steps[:, None] & channel_mask[None, :]
        x, _, _, _, _, a, drive = load_tile(
            u, delta, dt_weight, B, bias, A_block, weight, shift, sizes, row, first, t, d, n,
            channel_mask, SOFTPLUS, PADDED, N, R, PADDED_R,
        )  # fmt: skip
        c = load_group_tensor(
            C, row, first // sizes.per_c, t, n, valid_steps[:, None] & (n < N)[None, :], PADDED
        )
        if states is not None:  # noqa: SIM102  (decided when the kernel is compiled)
            if tile % sizes.chunk == 0:
                chunk = row * ((sizes.tiles + sizes.chunk - 1) // sizes.chunk) + tile // sizes.chunk
                store(
                    states + (chunk * N + n[:, None]) * sizes.channels + d[None, :],
                    h,
                    state_mask,
                    PADDED,
                )
        h_before, h = scan_tile(a, drive, h, step, TILE)
        y = tl.sum((a * h_before + drive) * c, 1)
        if D is not None:
            y += skip[None, :] * x
        store(
            out + (row * sizes.length + t[:, None]) * sizes.channels + d[None, :],
            y,
            row_mask,
            PADDED,
        )
    if last is not None:
        store(
            last + row * sizes.channels * N + (d[None, :] * N + n[:, None]), h, state_mask, PADDED
        )


@triton.jit
def backward_kernel(
    u, delta, dt_weight, A, B, C, D, bias, grad, states, scratch, du, ddelta, dA, ddt_weight, dB,
    dC, dD, dbias, sizes,
    SOFTPLUS: tl.constexpr, PADDED: tl.constexpr, N: tl.constexpr, R: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr, PADDED_N: tl.constexpr, PADDED_R: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of all inputs, chunk by chunk from the last chunk to the first.

    For each chunk, the kernel recomputes h at the start of every tile into `scratch`, then goes
    from the last tile to the first. With g = dL/dh_t:

        g = a_(t+1)·g_(t+1) + dy·C_t where a = exp(Δ·A),  dC_t = Σ_d dy·h_t,  dB_t = Σ_d g·Δ·u,
        d(Δ·u) = Σ_n g·B_t,  dΔ = Σ_n g·a·h_(t-1)·A + d(Δ·u)·u,  dA += g·a·h_(t-1)·Δ;
        for Δ = dt_weight·dt_numbers:  d dt_numbers = Σ_d dΔ·dt_weight.

    scratch is (programs, tiles per chunk, PADDED_N, BLOCK). du and, without dt_weight, ddelta are
    (B, L, D). The buffer (B, blocks, L, `sizes.partial`) receives sums over a block's channels: dB,
    dC and, with dt_weight, ddelta. The buffer (B, `sizes.sums`) receives sums over steps: dA
    (D, N), ddt_weight (D, R), dbias (D,) and dD (D,). dt_weight, D, bias and their gradients may be
    None.
    """
    row, first, d, channel_mask = program_channels(sizes, BLOCK)
    n, step = tl.arange(0, PADDED_N).to(tl.int64), tl.arange(0, TILE)[:, None, None]
    state_mask = channel_mask[None, :] & (n < N)[:, None]
    A_block, weight, skip, shift = load_parameters(
        dt_weight, A, D, bias, d, n, channel_mask, PADDED, N, R, PADDED_R
    )
    r = tl.arange(0, PADDED_R)[:, None].to(tl.int64)
    program = row * tl.num_programs(1) + tl.program_id(1)
    tile_states = (
        scratch
        + program * sizes.chunk * (PADDED_N * BLOCK)
        + n[:, None] * BLOCK
        + tl.arange(0, BLOCK)[None, :]
    )

    g = tl.zeros((PADDED_N, BLOCK), tl.float32)  # between tiles, g holds a_(t+1)·g_(t+1)
    da = g
    dskip = tl.zeros((BLOCK,), tl.float32)
    dshift, dweight = dskip, tl.zeros((PADDED_R, BLOCK), tl.float32)
    chunks = (sizes.tiles + sizes.chunk - 1) // sizes.chunk
    for k in range(0, chunks):
        start = (chunks - 1 - k) * sizes.chunk
        tiles = tl.minimum(sizes.chunk, sizes.tiles - start)
        chunk = row * chunks + chunks - 1 - k
        h = load(
            states + (chunk * N + n[:, None]) * sizes.channels + d[None, :], state_mask, PADDED
        )
        tl.store(tile_states, h)
        for tile in tl.range(0, tiles - 1, num_stages=STAGES):
            t = tl.cast(start + tile, tl.int64) * TILE + tl.arange(0, TILE)
            _, _, _, _, _, a, drive = load_tile(
                u, delta, dt_weight, B, bias, A_block, weight, shift, sizes, row, first, t, d, n,
                channel_mask, SOFTPLUS, PADDED, N, R, PADDED_R,
            )  # fmt: skip
            _, h = scan_tile(a, drive, h, step, TILE)
            tl.store(tile_states + (tile + 1) * (PADDED_N * BLOCK), h)
        tl.debug_barrier()  # a thread may load states that another thread has stored

        for from_end in tl.range(0, tiles, num_stages=STAGES):
            tile = tiles - 1 - from_end
            t = tl.cast(start + tile, tl.int64) * TILE + tl.arange(0, TILE)
            valid_steps = t < sizes.length
            row_mask = valid_steps[:, None] & channel_mask[None, :]
            column_mask = valid_steps[:, None] & (n < N)[None, :]
            valid_cells = state_mask[None, :, :] & valid_steps[:, None, None]
            x, raw, dt, dt_numbers, b, a, drive = load_tile(
                u, delta, dt_weight, B, bias, A_block, weight, shift, sizes, row, first, t, d, n,
                channel_mask, SOFTPLUS, PADDED, N, R, PADDED_R,
            )  # fmt: skip
            c = load_group_tensor(C, row, first // sizes.per_c, t, n, column_mask, PADDED)
            dy = load_channel_tensor(grad, row, t, d, row_mask, PADDED)
            h_before, _ = scan_tile(
                a, drive, tl.load(tile_states + tile * (PADDED_N * BLOCK)), step, TILE
            )
            decayed_h = a * h_before
            h_after = decayed_h + drive
            offsets = (program * sizes.length + t[:, None]) * sizes.partial + n[None, :]
            dc_terms = apply_mask(dy[:, None, :] * h_after, valid_cells, PADDED)
            store(dC + offsets, tl.sum(dc_terms, 2), column_mask, PADDED)
            all_g, g = scan_tile_backward(
                a, apply_mask(dy[:, None, :] * c, valid_cells, PADDED), g, step, TILE
            )
            db_terms = all_g * (dt * x)[:, None, :]
            store(dB + offsets, tl.sum(db_terms, 2), column_mask, PADDED)
            ga = apply_mask(all_g * decayed_h, valid_cells, PADDED)
            da += tl.sum(ga * dt[:, None, :], 0)
            ddrive = tl.sum(all_g * b, 1)
            dx, ddt = ddrive * dt, tl.sum(ga * A_block[None, :, :], 1) + ddrive * x
            if SOFTPLUS:
                ddt *= sigmoid(raw)
            if D is not None:
                dx += dy * skip[None, :]
                dskip += tl.sum(dy * x, 0)
            ddt = apply_mask(ddt, row_mask, PADDED)
            dshift += tl.sum(ddt, 0)
            offsets_bld = (row * sizes.length + t[:, None]) * sizes.channels + d[None, :]
            store(du + offsets_bld, dx, row_mask, PADDED)
            if dt_weight is None:
                store(ddelta + offsets_bld, ddt, row_mask, PADDED)
            else:
                pointers = ddelta + (program * sizes.length + t[None, :]) * sizes.partial + r
                ddt_numbers = tl.sum(ddt[None, :, :] * weight[:, None, :], 2)
                tl.store(pointers, ddt_numbers, mask=(r < R) & valid_steps[None, :])
                dweight += tl.sum(tl.trans(dt_numbers)[:, :, None] * ddt[:, None, :], 0)
        tl.debug_barrier()  # wait before the next chunk overwrites the states

    sums = row * sizes.sums
    store(dA + sums + (d[None, :] * N + n[:, None]), da, state_mask, PADDED)
    if dt_weight is not None:
        tl.store(
            ddt_weight + sums + d[None, :] * R + r, dweight, mask=channel_mask[None, :] & (r < R)
        )
    if bias is not None:
        store(dbias + sums + d, dshift, channel_mask, PADDED)
    if D is not None:
        store(dD + sums + d, dskip, channel_mask, PADDED)


# With TRITON_INTERPRET=1 the kernels run in NumPy, on the CPU.
INTERPRETED = not isinstance(forward_kernel, triton.JITFunction)
