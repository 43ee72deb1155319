"""The kernels of the scan in Triton.

scan_triton.py starts them and gives the reasons for the design.

    ends_kernel       h at the end of each chunk if h were 0 before it
    join_kernel       h before each chunk, from these ends
    output_kernel     the outputs of each chunk, from h before it
    gradient_kernel   the gradients, from h before and the gradient of h after each chunk

The kernels take inputs of any floating-point dtype and compute in float32. A tile has the shape
(steps, channels, states): a few steps, the channels of a block, and N rounded up to a power of two.
A cell is one element of a tile. Inputs are loaded as (steps, channels) or (steps, states) and then
distributed to the threads that hold the cells. Selecting one step of a tile costs no instruction,
because all steps of a cell belong to one thread and the step is compared with a constant.

If tiles are padded (`PADDED`), the cells beyond L, N or the group's channels are set to zero before
they enter a sum, because 0·∞ would be NaN where an input is infinite. The address of a tile is
computed in 64 bits, because B·L·D may exceed 2³¹; the places inside a tile are computed in 32 bits.
"""

from typing import Any, NamedTuple

import triton.language as tl

from mambanorm.kernels.gluon import INTERPRETED, gl, jit

LOG2E = tl.constexpr(1.4426950408889634)
INF = tl.constexpr(float("inf"))
IN_NUMPY = tl.constexpr(INTERPRETED)


class ChannelTensor(NamedTuple):
    """The memory and strides of a tensor (B, D, L) of any layout: u, delta or a gradient."""

    ptr: object
    batch: int
    channel: int
    step: int


class GroupTensor(NamedTuple):
    """The memory and strides of a tensor (B, G, N, L): B or C."""

    ptr: object
    batch: int
    group: int
    state: int
    step: int


class Sizes(NamedTuple):
    """The sizes that a kernel needs. Blocks of channels never cross the border of a group."""

    length: int
    chunk: int  # steps per chunk, a multiple of a tile's
    chunks: int
    channels: int
    group_channels: int  # neighbouring channels that share the same groups of B and C
    group_blocks: int  # blocks per `group_channels` channels
    blocks: int  # blocks of all channels
    per_b: int  # channels per group of B
    per_c: int  # channels per group of C
    part_blocks: int  # blocks that share one partial sum
    items: int  # pieces of work of gradient_kernel


class Tile(NamedTuple):
    """The sizes of a tile, and the layouts of its tensors."""

    steps: int
    channels: int
    states: int  # N rounded up to a power of two
    cells: Any  # of (steps, channels, states)
    inputs: Any  # of (steps, channels): u, Δ, dy, out
    matrices: Any  # of (steps, states): B, C


# ----------------------------------------------------------------------------- elementary functions
@jit
def exp2(x):
    """Return 2^x. The result is 0 where a float32 would be subnormal."""
    if IN_NUMPY:
        return gl.exp2(x)
    else:  # noqa: RET505  (decided when the kernel is compiled)
        # gl.exp2 takes four instructions, because it keeps subnormal numbers
        return gl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
        )


@jit
def softplus(x):
    """Return log(1 + exp(x)), computed as max(x, 0) + log(1 + e) where e = exp(-|x|).

    log(1 + e) is computed as the series of 2·artanh(s) with s = e/(2 + e). s is at most 1/3, so the
    omitted terms are at most 2e-9 of the result. Taking the logarithm of the rounded sum 1 + e
    would lose the digits of a small Δ. For x > 20 torch returns x itself; there e is less than half
    a unit in the last place of x, so this function returns x too.
    """
    e = gl.exp(-gl.abs(x))
    s = e / (2.0 + e)
    q = s * s
    series = 1 / 9 + q * (1 / 11 + q * (1 / 13 + q * (1 / 15)))
    series = 1.0 + q * (1 / 3 + q * (1 / 5 + q * (1 / 7 + q * series)))
    return gl.where(x > 0, x, 0.0) + 2.0 * s * series


@jit
def sigmoid(x):
    """Return 1 / (1 + exp(-x)).

    exp is only computed for -|x|, which is never positive, so nothing overflows.
    """
    e = gl.exp(-gl.abs(x))
    return gl.where(x >= 0, 1.0, e) / (1.0 + e)


@jit
def load(pointers, mask, PADDED: tl.constexpr):
    """Return the numbers at the pointers; if PADDED, 0 where the mask is False."""
    if PADDED:
        value = gl.load(pointers, mask=mask, other=0.0)
    else:
        value = gl.load(pointers)
    return value


@jit
def store(pointers, value, mask, PADDED: tl.constexpr):
    """Store `value` at the pointers. If PADDED, store only where the mask is True."""
    value = value.to(pointers.dtype.element_ty)
    if PADDED:
        gl.store(pointers, value, mask=mask)
    else:
        gl.store(pointers, value)


@jit
def apply_mask(value, mask, PADDED: tl.constexpr):
    """Return `value`. If PADDED, replace it by 0 where the mask is False."""
    if PADDED:
        value = gl.where(mask, value, 0.0)
    return value


# ----------------------------------------------------------------------------------- axes of a tile
@jit
def cell_axes(T: tl.constexpr):
    """Return the steps (steps, 1, 1), channels (channels, 1) and states (1, states) of cells."""
    STEPS: tl.constexpr = T.steps
    CHANNELS: tl.constexpr = T.channels
    STATES: tl.constexpr = T.states
    STEP_LAYOUT: tl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, T.cells))
    CHANNEL_LAYOUT: tl.constexpr = gl.SliceLayout(1, gl.SliceLayout(0, T.cells))
    STATE_LAYOUT: tl.constexpr = gl.SliceLayout(0, gl.SliceLayout(0, T.cells))
    step = gl.arange(0, STEPS, layout=STEP_LAYOUT)[:, None][:, :, None]
    d = gl.arange(0, CHANNELS, layout=CHANNEL_LAYOUT)[:, None]
    return step, d, gl.arange(0, STATES, layout=STATE_LAYOUT)[None, :]


@jit
def input_axes(T: tl.constexpr):
    """Return the steps (steps, 1) and channels (1, channels) of u, Δ and dy."""
    STEPS: tl.constexpr = T.steps
    CHANNELS: tl.constexpr = T.channels
    STEP_LAYOUT: tl.constexpr = gl.SliceLayout(1, T.inputs)
    CHANNEL_LAYOUT: tl.constexpr = gl.SliceLayout(0, T.inputs)
    step = gl.arange(0, STEPS, layout=STEP_LAYOUT)[:, None]
    return step, gl.arange(0, CHANNELS, layout=CHANNEL_LAYOUT)[None, :]


@jit
def matrix_axes(T: tl.constexpr):
    """Return the steps (steps, 1) and states (1, states) of B and C."""
    STEPS: tl.constexpr = T.steps
    STATES: tl.constexpr = T.states
    STEP_LAYOUT: tl.constexpr = gl.SliceLayout(1, T.matrices)
    STATE_LAYOUT: tl.constexpr = gl.SliceLayout(0, T.matrices)
    step = gl.arange(0, STEPS, layout=STEP_LAYOUT)[:, None]
    return step, gl.arange(0, STATES, layout=STATE_LAYOUT)[None, :]


@jit
def channels_to_cells(x, T: tl.constexpr):
    """Return x (steps, channels) as (steps, channels, 1)."""
    LAYOUT: tl.constexpr = gl.SliceLayout(2, T.cells)
    return gl.convert_layout(x, LAYOUT)[:, :, None]


@jit
def states_to_cells(x, T: tl.constexpr):
    """Return x (steps, states) as (steps, 1, states)."""
    LAYOUT: tl.constexpr = gl.SliceLayout(1, T.cells)
    return gl.convert_layout(x, LAYOUT)[:, None, :]


@jit
def sum_states(x, T: tl.constexpr):
    """Return the sum of a tile over states, (steps, channels)."""
    LAYOUT: tl.constexpr = T.inputs
    return gl.convert_layout(gl.sum(x, 2), LAYOUT)


@jit
def sum_channels(x, T: tl.constexpr):
    """Return the sum of a tile over channels, (steps, states)."""
    LAYOUT: tl.constexpr = T.matrices
    return gl.convert_layout(gl.sum(x, 1), LAYOUT)


@jit
def select_step(tile, step, i: tl.constexpr):
    """Return step i of a tile.

    The other steps are replaced by −0 and added. Adding −0 changes no number, so the compiler omits
    the additions.
    """
    return gl.sum(gl.where(step == i, tile, -0.0), 0)


# --------------------------------------------------------------------------------- parts of a tile
@jit
def block_channels(sizes, block, T: tl.constexpr):
    """Return the first channel of a block, and the end of its group."""
    group = block // sizes.group_blocks
    first = group * sizes.group_channels + block % sizes.group_blocks * T.channels
    return first.to(gl.int64), ((group + 1) * sizes.group_channels).to(gl.int64)


@jit
def input_mask(sizes, begin, first, end, T: tl.constexpr):
    """Return where a tile (steps, channels) lies inside the sequence and the group."""
    step, d = input_axes(T)
    return (step < sizes.length - begin) & (d < end - first)


@jit
def matrix_mask(sizes, begin, N: tl.constexpr, T: tl.constexpr):
    """Return where a tile (steps, states) lies inside the sequence and N."""
    step, n = matrix_axes(T)
    return (step < sizes.length - begin) & (n < N)


@jit
def load_channels(m, sizes, row, begin, first, end, PADDED: tl.constexpr, T: tl.constexpr):
    """Return m, which is u, delta or dy, from step `begin` and channel `first` on.

    Only the address of the tile is computed in 64 bits.
    """
    step, d = input_axes(T)
    tile = m.ptr + (row * m.batch + begin * m.step + first * m.channel)
    mask = input_mask(sizes, begin, first, end, T)
    return load(tile + (step * m.step + d * m.channel), mask, PADDED)


@jit
def load_states(
    m, sizes, row, begin, group, PADDED: tl.constexpr, N: tl.constexpr, T: tl.constexpr
):
    """Return m, which is B or C, of one group, from step `begin` on: (steps, states)."""
    step, n = matrix_axes(T)
    tile = m.ptr + (row * m.batch + group * m.group + begin * m.step)
    mask = matrix_mask(sizes, begin, N, T)
    return load(tile + (step * m.step + n * m.state), mask, PADDED)


@jit
def load_tile(
    u, delta, B, sizes, row, begin, first, end, PADDED: tl.constexpr, N: tl.constexpr,
    T: tl.constexpr,
):  # fmt: skip
    """Return u, delta (steps, channels) and B (steps, states) of a tile, in their own dtypes."""
    x = load_channels(u, sizes, row, begin, first, end, PADDED, T)
    raw = load_channels(delta, sizes, row, begin, first, end, PADDED, T)
    return x, raw, load_states(B, sizes, row, begin, first // sizes.per_b, PADDED, N, T)


@jit
def load_vector(vector, first, end, T: tl.constexpr):
    """Return a parameter (D,) of a block, (1, channels), or 0.0 if it is None."""
    _, d = input_axes(T)
    if vector is None:
        return 0.0
    else:  # noqa: RET505
        return load(vector + first + d, d < end - first, True)


@jit
def step_size(raw, bias, SOFTPLUS: tl.constexpr):
    """Return Δ before and after softplus."""
    raw = raw.to(gl.float32) + bias
    if SOFTPLUS:
        return raw, softplus(raw)
    else:  # noqa: RET505
        return raw, raw


@jit
def decay(dt, A_log2, cells, valid, T: tl.constexpr, PADDED: tl.constexpr):
    """Return a = exp(Δ·A) as a tile; `A_log2` is A·log₂e.

    In a padded step a is 1, so that the step keeps the state; other padded cells are 0.
    """
    a = exp2(channels_to_cells(dt, T) * A_log2[None, :, :])
    if PADDED:
        a = gl.where(cells[None, :, :], gl.where(valid, a, 1.0), 0.0)
    return a


@jit
def count_tiles(sizes, chunk, T: tl.constexpr, PADDED: tl.constexpr):
    """Return how many tiles a chunk has. The last chunk may have fewer."""
    STEPS: tl.constexpr = T.steps
    tiles = sizes.chunk // STEPS
    if PADDED:
        tiles = gl.minimum(tiles, gl.cdiv(sizes.length - chunk * sizes.chunk, STEPS))
    return tiles


# ------------------------------------------------------------------------------------------ kernels
@jit
def ends_kernel(
    u, delta, A, B, bias, ends, totals, sizes,
    REVERSED: tl.constexpr, SOFTPLUS: tl.constexpr, PADDED: tl.constexpr, N: tl.constexpr,
    T: tl.constexpr,
):  # fmt: skip
    """Compute h at the end of each chunk from h = 0 before the chunk, and the chunk's Σ Δ.

    `ends` (B, chunks, D, N) receives the states, `totals` (B, chunks, D) the sums: the decay over a
    chunk is exp(A·Σ Δ). If REVERSED, u is dy and B is C, and the kernel computes, from right to
    left, what the chunk adds to the gradient of the state before it: g ← a·(g + dy·C).
    """
    STEPS: tl.constexpr = T.steps
    CHANNELS: tl.constexpr = T.channels
    INPUTS: tl.constexpr = T.inputs
    ONE_STEP: tl.constexpr = gl.SliceLayout(0, T.cells)
    block = gl.program_id(0) % sizes.blocks
    chunk = gl.program_id(0) // sizes.blocks % sizes.chunks
    row = (gl.program_id(0) // sizes.blocks // sizes.chunks).to(gl.int64)
    first, end = block_channels(sizes, block, T)
    step, d, n = cell_axes(T)
    cells = (d < end - first) & (n < N)
    A_log2 = load(A + first * N + (d * N + n), cells, PADDED) * LOG2E
    shift = load_vector(bias, first, end, T)
    h = gl.zeros(A_log2.shape, gl.float32, ONE_STEP)
    total = gl.zeros((STEPS, CHANNELS), gl.float32, INPUTS)
    tiles = count_tiles(sizes, chunk, T, PADDED)
    begin, stride = (chunk * sizes.chunk).to(gl.int64), STEPS
    if REVERSED:
        begin += (tiles - 1) * STEPS
        stride = -STEPS
    next_x, next_raw, next_b = load_tile(u, delta, B, sizes, row, begin, first, end, PADDED, N, T)
    for k in range(0, tiles):
        x, raw, b = next_x.to(gl.float32), next_raw, next_b.to(gl.float32)
        # load the next tile while this one is computed
        following = begin
        if k + 1 < tiles:
            following = begin + stride
        next_x, next_raw, next_b = load_tile(
            u, delta, B, sizes, row, following, first, end, PADDED, N, T
        )
        raw, dt = step_size(raw, shift, SOFTPLUS)
        dt = apply_mask(dt, input_mask(sizes, begin, first, end, T), PADDED)
        total += dt
        valid = step < sizes.length - begin
        a = decay(dt, A_log2, cells, valid, T, PADDED)
        if not REVERSED:
            x = x * dt
        drive = channels_to_cells(x, T) * states_to_cells(b, T)
        drive = apply_mask(drive, cells[None, :, :] & valid, PADDED)
        for i in gl.static_range(STEPS):
            if REVERSED:
                h += select_step(drive, step, STEPS - 1 - i)
                h *= select_step(a, step, STEPS - 1 - i)
            else:
                h = h * select_step(a, step, i) + select_step(drive, step, i)
        begin = following
    chunk_start = (row * sizes.chunks + chunk) * sizes.channels + first
    store(ends + chunk_start * N + (d * N + n), h, cells, PADDED)
    SUMS: tl.constexpr = gl.SliceLayout(0, T.inputs)
    total_d = gl.arange(0, CHANNELS, layout=SUMS)
    store(totals + chunk_start + total_d, gl.sum(total, 0), total_d < end - first, PADDED)


@jit
def join_kernel(
    ends, totals, A, chunks, channels, REVERSED: tl.constexpr, N: tl.constexpr,
    CELLS: tl.constexpr, LAYOUT: tl.constexpr,
):  # fmt: skip
    """Replace in `ends` (B, chunks, D, N) the end of each chunk by the state before it.

    h before the next chunk = exp(A·Σ Δ)·(h before this chunk) + this chunk's end. `totals` (B,
    chunks, D) holds Σ Δ. If REVERSED, the kernel goes from the last chunk to the first and computes
    the gradient after each chunk.
    """
    blocks = gl.cdiv(N * channels, CELLS)
    cell = gl.program_id(0) % blocks * CELLS + gl.arange(0, CELLS, layout=LAYOUT)
    row, mask = (gl.program_id(0) // blocks).to(gl.int64), cell < N * channels
    d = cell // N
    A_log2 = gl.load(A + cell, mask=mask, other=0.0) * LOG2E
    h = gl.zeros((CELLS,), gl.float32, LAYOUT)
    chunk, direction = row * chunks, 1
    if REVERSED:
        chunk += chunks - 1
        direction = -1
    end = gl.load(ends + chunk * channels * N + cell, mask=mask, other=0.0)
    total = gl.load(totals + chunk * channels + d, mask=mask, other=0.0)
    for k in range(0, chunks):
        following, has_next = chunk + direction, mask & (k + 1 < chunks)
        next_end = gl.load(ends + following * channels * N + cell, mask=has_next, other=0.0)
        next_total = gl.load(totals + following * channels + d, mask=has_next, other=0.0)
        gl.store(ends + chunk * channels * N + cell, h, mask=mask)
        # step by step, 0 stays 0 and ∞ stays ∞; the product would be NaN if the factor over the
        # whole chunk is ∞ or 0
        decayed = gl.where((h == 0.0) | (gl.abs(h) == INF), h, exp2(A_log2 * total) * h)
        h = decayed + end
        end, total, chunk = next_end, next_total, following


@jit
def output_kernel(
    u, delta, A, B, C, D, bias, out, states, last, sizes,
    SOFTPLUS: tl.constexpr, PADDED: tl.constexpr, N: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Compute out (B, L, D) of one chunk.

    `states` (B, chunks, D, N) holds the state before each chunk; None stands for 0. `last` (B, D,
    N) receives the state after the last step of the sequence. D, bias and last may be None.
    """
    STEPS: tl.constexpr = T.steps
    ONE_STEP: tl.constexpr = gl.SliceLayout(0, T.cells)
    block = gl.program_id(0) % sizes.blocks
    chunk = gl.program_id(0) // sizes.blocks % sizes.chunks
    row = (gl.program_id(0) // sizes.blocks // sizes.chunks).to(gl.int64)
    first, end = block_channels(sizes, block, T)
    group_c = first // sizes.per_c
    step, d, n = cell_axes(T)
    input_step, input_d = input_axes(T)
    cells = (d < end - first) & (n < N)
    A_log2 = load(A + first * N + (d * N + n), cells, PADDED) * LOG2E
    shift, skip = load_vector(bias, first, end, T), load_vector(D, first, end, T)
    h = gl.zeros(A_log2.shape, gl.float32, ONE_STEP)
    if states is not None:
        chunk_start = (row * sizes.chunks + chunk) * sizes.channels + first
        h = load(states + chunk_start * N + (d * N + n), cells, PADDED)
    tiles = count_tiles(sizes, chunk, T, PADDED)
    begin = (chunk * sizes.chunk).to(gl.int64)
    next_x, next_raw, next_b = load_tile(u, delta, B, sizes, row, begin, first, end, PADDED, N, T)
    next_c = load_states(C, sizes, row, begin, group_c, PADDED, N, T)
    for k in range(0, tiles):
        x, raw, b, c = next_x.to(gl.float32), next_raw, next_b.to(gl.float32), next_c.to(gl.float32)
        # load the next tile while this one is computed
        following = begin
        if k + 1 < tiles:
            following = begin + STEPS
        next_x, next_raw, next_b = load_tile(
            u, delta, B, sizes, row, following, first, end, PADDED, N, T
        )
        next_c = load_states(C, sizes, row, following, group_c, PADDED, N, T)
        raw, dt = step_size(raw, shift, SOFTPLUS)
        valid = step < sizes.length - begin
        a = decay(dt, A_log2, cells, valid, T, PADDED)
        drive = channels_to_cells(dt * x, T) * states_to_cells(b, T)
        drive = apply_mask(drive, cells[None, :, :] & valid, PADDED)
        all_h = drive
        for i in gl.static_range(STEPS):
            h = h * select_step(a, step, i) + select_step(drive, step, i)
            all_h = gl.where(step == i, h[None, :, :], all_h)
        y = sum_states(all_h * states_to_cells(c, T), T)
        if D is not None:
            y += skip * x
        tile_out = out + ((row * sizes.length + begin) * sizes.channels + first)
        mask = input_mask(sizes, begin, first, end, T)
        store(tile_out + (input_step * sizes.channels + input_d), y, mask, PADDED)
        begin = following
    if last is not None:  # noqa: SIM102  (decided when the kernel is compiled)
        if chunk == sizes.chunks - 1:
            row_start = row * sizes.channels + first
            store(last + row_start * N + (d * N + n), h, cells, PADDED)


@jit
def gradient_kernel(
    u, delta, A, B, C, D, bias, grad, states, after, scratch, du, ddelta, dB, dC, sums, sizes,
    SOFTPLUS: tl.constexpr, PADDED: tl.constexpr, N: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of all inputs, chunk by chunk.

    For each chunk and block, the kernel recomputes h at the start of every tile into `scratch`,
    then goes from the last tile to the first. With g = dL/dh_t:

        g = a_(t+1)·g_(t+1) + dy·C_t where a = exp(Δ·A),  dC_t = Σ_d dy·h_t,  dB_t = Σ_d g·Δ·u,
        d(Δ·u) = Σ_n g·B_t,  dΔ = Σ_n g·a·h_(t-1)·A + d(Δ·u)·u,  dA += g·a·h_(t-1)·Δ.

    `states` (B, chunks, D, N) holds the state before each chunk, or is None for 0. `after`, of the
    same shape, holds a·g of the first step after each chunk; the chunk's dA replaces it. scratch is
    (programs, tiles per chunk, cells of a step). du and ddelta are (B, L, D). dB and dC (B, parts,
    L, N) receive sums over the channels of a part. `sums` (B, chunks, 2, D) receives the other sums
    over the steps of a chunk: of dbias and dD.
    """
    STEPS: tl.constexpr = T.steps
    CHANNELS: tl.constexpr = T.channels
    CELLS: tl.constexpr = T.channels * T.states
    STATES: tl.constexpr = T.states
    INPUTS: tl.constexpr = T.inputs
    SUMS: tl.constexpr = gl.SliceLayout(0, T.inputs)
    ONE_STEP: tl.constexpr = gl.SliceLayout(0, T.cells)
    step, d, n = cell_axes(T)
    input_step, input_d = input_axes(T)
    matrix_step, matrix_n = matrix_axes(T)
    parts = sizes.blocks // sizes.part_blocks
    tile_states = scratch + gl.program_id(0).to(gl.int64) * (sizes.chunk // STEPS) * CELLS
    tile_states = tile_states + (d * STATES + n)
    for item in range(gl.program_id(0), sizes.items, gl.num_programs(0)):
        part = item % parts
        chunk = item // parts % sizes.chunks
        row = (item // parts // sizes.chunks).to(gl.int64)
        tiles = count_tiles(sizes, chunk, T, PADDED)
        chunk_begin = (chunk * sizes.chunk).to(gl.int64)
        for block in range(part * sizes.part_blocks, (part + 1) * sizes.part_blocks):
            first, end = block_channels(sizes, block, T)
            group_c = first // sizes.per_c
            cells = (d < end - first) & (n < N)
            A_log2 = load(A + first * N + (d * N + n), cells, PADDED) * LOG2E
            shift, skip = load_vector(bias, first, end, T), load_vector(D, first, end, T)
            chunk_start = (row * sizes.chunks + chunk) * sizes.channels + first
            h = gl.zeros(A_log2.shape, gl.float32, ONE_STEP)
            g = h  # between tiles, g holds a_(t+1)·g_(t+1)
            da = h
            if states is not None:
                h = load(states + chunk_start * N + (d * N + n), cells, PADDED)
                g = load(after + chunk_start * N + (d * N + n), cells, PADDED)
            next_x, next_raw, next_b = load_tile(
                u, delta, B, sizes, row, chunk_begin, first, end, PADDED, N, T
            )
            for tile in range(0, tiles - 1):
                gl.store(tile_states + tile * CELLS, h)
                x, raw, b = next_x.to(gl.float32), next_raw, next_b.to(gl.float32)
                begin = chunk_begin + tile * STEPS
                next_x, next_raw, next_b = load_tile(
                    u, delta, B, sizes, row, begin + STEPS, first, end, PADDED, N, T
                )
                raw, dt = step_size(raw, shift, SOFTPLUS)
                valid = step < sizes.length - begin
                a = decay(dt, A_log2, cells, valid, T, PADDED)
                drive = channels_to_cells(dt * x, T) * states_to_cells(b, T)
                drive = apply_mask(drive, cells[None, :, :] & valid, PADDED)
                for i in gl.static_range(STEPS):
                    h = h * select_step(a, step, i) + select_step(drive, step, i)

            dskip = gl.zeros((STEPS, CHANNELS), gl.float32, INPUTS)
            dshift = dskip
            next_h = h  # of the last tile; its inputs are loaded
            begin = chunk_begin + (tiles - 1) * STEPS
            next_c = load_states(C, sizes, row, begin, group_c, PADDED, N, T)
            next_dy = load_channels(grad, sizes, row, begin, first, end, PADDED, T)
            for from_end in range(0, tiles):
                x, raw, dy = next_x.to(gl.float32), next_raw, next_dy.to(gl.float32)
                b, c, h = next_b.to(gl.float32), next_c.to(gl.float32), next_h
                # load the preceding tile while this one is computed
                tile = gl.maximum(tiles - 2 - from_end, 0)
                previous = chunk_begin + tile * STEPS
                next_x, next_raw, next_b = load_tile(
                    u, delta, B, sizes, row, previous, first, end, PADDED, N, T
                )
                next_dy = load_channels(grad, sizes, row, previous, first, end, PADDED, T)
                next_c = load_states(C, sizes, row, previous, group_c, PADDED, N, T)
                next_h = gl.load(tile_states + tile * CELLS)

                raw, dt = step_size(raw, shift, SOFTPLUS)
                valid = step < sizes.length - begin
                valid_cells = cells[None, :, :] & valid
                a = decay(dt, A_log2, cells, valid, T, PADDED)
                x_cells, dt_cells = channels_to_cells(dt * x, T), channels_to_cells(dt, T)
                dy_cells, b_cells = channels_to_cells(dy, T), states_to_cells(b, T)
                drive = apply_mask(x_cells * b_cells, valid_cells, PADDED)
                dy_c = apply_mask(dy_cells * states_to_cells(c, T), valid_cells, PADDED)
                h_before = drive
                h_after = drive
                for i in gl.static_range(STEPS):
                    h_before = gl.where(step == i, h[None, :, :], h_before)
                    h = h * select_step(a, step, i) + select_step(drive, step, i)
                    h_after = gl.where(step == i, h[None, :, :], h_after)
                dc_tile = sum_channels(apply_mask(dy_cells * h_after, valid_cells, PADDED), T)
                all_g = dy_c
                ga = dy_c
                for k in gl.static_range(STEPS):
                    g += select_step(dy_c, step, STEPS - 1 - k)
                    all_g = gl.where(step == STEPS - 1 - k, g[None, :, :], all_g)
                    g *= select_step(a, step, STEPS - 1 - k)
                    ga = gl.where(step == STEPS - 1 - k, g[None, :, :], ga)
                ga = apply_mask(ga * h_before, valid_cells, PADDED)
                da += gl.sum(ga * dt_cells, 0)
                db_tile = sum_channels(apply_mask(all_g * x_cells, valid_cells, PADDED), T)
                ddrive = sum_states(all_g * b_cells, T)
                ddt = sum_states(ga * (A_log2 * (1 / LOG2E))[None, :, :], T) + ddrive * x

                mask = input_mask(sizes, begin, first, end, T)
                state_mask = matrix_mask(sizes, begin, N, T)
                # add the sums of the part's blocks before this one
                earlier = state_mask & (block > part * sizes.part_blocks)
                offsets = ((row * parts + part) * sizes.length + begin) * N
                offsets = offsets + (matrix_step * N + matrix_n)
                dc_tile += load(dC + offsets, earlier, True)
                db_tile += load(dB + offsets, earlier, True)
                store(dC + offsets, dc_tile, state_mask, PADDED)
                store(dB + offsets, db_tile, state_mask, PADDED)
                if SOFTPLUS:
                    ddt *= sigmoid(raw)
                ddt = apply_mask(ddt, mask, PADDED)
                dshift += ddt
                dskip += dy * x
                tile_start = (row * sizes.length + begin) * sizes.channels + first
                offsets = input_step * sizes.channels + input_d
                dx = ddrive * dt
                if D is not None:
                    dx += dy * skip
                store(du + tile_start + offsets, dx, mask, PADDED)
                store(ddelta + tile_start + offsets, ddt, mask, PADDED)
                begin = previous
            store(after + chunk_start * N + (d * N + n), da, cells, PADDED)
            sum_d = gl.arange(0, CHANNELS, layout=SUMS)
            chunk_sums = sums + (row * sizes.chunks + chunk) * 2 * sizes.channels + first + sum_d
            sum_mask = sum_d < end - first
            store(chunk_sums, gl.sum(dshift, 0), sum_mask, PADDED)
            store(chunk_sums + sizes.channels, gl.sum(dskip, 0), sum_mask, PADDED)
