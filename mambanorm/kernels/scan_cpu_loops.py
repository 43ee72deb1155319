"""The loops of the CPU scan: Numba kernels, forward and backward, in float32.

scan_cpu.py starts the kernels and divides the work.
"""

import numpy as np

from mambanorm.kernels.runtime import (
    LANES,
    LN2,
    LOG2E,
    ONE,
    TWO,
    ZERO,
    _f,
    entry,
    exp2,
    flat,
    int_table,
    jit,
    load,
    scratch_table,
    store,
    use_wide_registers,
)

# The tables in a worker's scratch memory. A slot is LANES neighbouring floats of a table's row; the
# constants below are the columns where the slots start. The slots are at fixed distances, so LLVM
# sees that they never overlap. Tables are indexed, never sliced, because a slice costs Numba two
# atomic updates of a reference count.
#
# The table `rows` has one row per step: Δ, Δ·u, y and u; in the backward pass also dL/dy, dΔ,
# d(Δ·u) and the slope of softplus.
_DT, _DU, _Y, _X, _DY, _DDT, _DDU, _SLOPE = (k * LANES for k in range(8))
_FORWARD, _BACKWARD = 4 * LANES, 8 * LANES
# The table `cells` has one cell of four slots per state index: A·log2(e), h, dL/dh and dA. The
# loops compute two state indices at a time, so a row holds two cells.
_A, _H, _G, _DA = (k * LANES for k in range(4))
CELL = 4 * LANES
# The table `history` has one row per step and pair of state indices: exp(Δ·A) and exp(Δ·A)·h_(t-1)
# for each index of the pair.
_A0, _AH0, _A1, _AH1 = (k * LANES for k in range(4))
HISTORY = 4 * LANES
# The table `params` holds the parameters of one block of channels, in rows: delta_bias, D, and R
# rows of dt_weight.
_BIAS, _SKIP, _DT_WEIGHT = 0, 1, 2


def scratch_floats(direction, steps, state_size, rank):
    """Return the number of floats in one worker's tables for the pass "forward" or "backward"."""
    pairs = (state_size + 1) // 2
    scalars = (_DT_WEIGHT + rank) * LANES + 2 * steps * 2 * pairs
    if direction == "forward":
        return steps * _FORWARD + pairs * 2 * CELL + scalars
    return steps * (_BACKWARD + pairs * HISTORY) + pairs * 2 * CELL + 2 * scalars


# Minimax polynomial in s² for (artanh(s)/s - 1) / s² on 0 <= s <= 1/3; its error is 1e-10.
_P0, _P1, _P2 = _f(0.3333333781049196), _f(0.19999438936673292), _f(0.1430844017151561)
_P3, _P4 = _f(0.10713856868544232), _f(0.12150351064512585)


@jit(inline="always")
def _softplus(x, e):
    """Return softplus(x) = max(x, 0) + log(1 + e), given e = exp(-|x|).

    log(1 + e) is computed as 2·artanh(e / (2 + e)). For x > 20 torch returns x itself. There e is
    less than half a unit in the last place of x, so this function returns x too.
    """
    s = e / (TWO + e)
    q = s * s
    return (x if x > ZERO else ZERO) + TWO * s * (
        ONE + q * ((((_P4 * q + _P3) * q + _P2) * q + _P1) * q + _P0)
    )


@jit(inline="always")
def _offset(x, b, t, d0):
    """Return the flat index of batch row b, step t and channel d0 in x = (flat memory, strides)."""
    return b * x[1][0] + t * x[1][1] + d0


@jit()
def _read_scalars(m, b, group, t0, steps, state_size, values):
    """Copy one group's B or C in one chunk to `values` (steps, N rounded up to an even number).

    m = (flat memory, strides) is the whole B or C; the strides may be any. If N is odd, the last
    column becomes 0.
    """
    data, strides = m
    base = b * strides[0] + group * strides[1] + t0 * strides[3]
    for t in range(steps):
        for n in range(state_size):
            values[t, n] = data[base + t * strides[3] + n * strides[2]]
        for n in range(state_size, values.shape[1]):
            values[t, n] = ZERO


@jit()
def _fill_rows(b, group, t0, steps, d0, width, u, delta, rank, params, softplus, rows):
    """Fill `rows` for one chunk with u, Δ = softplus(delta + bias) and Δ·u.

    In the backward pass, also fill in the slope of softplus. If `rank` is not 0, delta holds R
    numbers per step and group, and is multiplied by dt_weight in `params`. Lanes from `width` on
    have u = 0, so their states stay 0.
    """
    for t in range(steps):
        load(rows, t, _X, u[0], _offset(u, b, t0 + t, d0), width)
        if rank:
            start = _offset(delta, b, t0 + t, group * delta[1][3])
            for d in range(LANES):
                rows[t, _DT + d] = params[_BIAS, d]
            for r in range(rank):
                factor = delta[0][start + r * delta[1][2]]
                for d in range(LANES):
                    rows[t, _DT + d] += factor * params[_DT_WEIGHT + r, d]
        else:
            load(rows, t, _DT, delta[0], _offset(delta, b, t0 + t, d0), width)
            for d in range(LANES):
                rows[t, _DT + d] += params[_BIAS, d]
        if softplus and rows.shape[1] == _BACKWARD:
            for d in range(LANES):
                x = rows[t, _DT + d]
                e = exp2(-abs(x) * LOG2E)
                rows[t, _SLOPE + d] = (ONE if x >= ZERO else e) / (ONE + e)
                rows[t, _DT + d] = _softplus(x, e)
        elif softplus:
            for d in range(LANES):
                x = rows[t, _DT + d]
                rows[t, _DT + d] = _softplus(x, exp2(-abs(x) * LOG2E))
        for d in range(LANES):
            rows[t, _DU + d] = rows[t, _DT + d] * rows[t, _X + d]


def _make_chunk_scan(save_history):
    """Return a function that scans one chunk: h = exp(Δ·A)·h + Δ·u·B_t and y = Σ_n C_t·h.

    The function computes two state indices at a time and requires Δ·A <= 0. With `save_history` it
    also saves exp(Δ·A) and exp(Δ·A)·h_(t-1) of every step.
    """

    @jit()
    def scan_chunk(steps, rows, cells, b_values, c_values, history):
        use_wide_registers()
        for t in range(steps):
            for d in range(LANES):
                rows[t, _Y + d] = ZERO
            for p in range(len(cells)):
                row = t * len(cells) + p
                b0, b1 = b_values[t, 2 * p], b_values[t, 2 * p + 1]
                c0, c1 = c_values[t, 2 * p], c_values[t, 2 * p + 1]
                for d in range(LANES):
                    dt, du = rows[t, _DT + d], rows[t, _DU + d]
                    a0, a1 = exp2(dt * cells[p, _A + d]), exp2(dt * cells[p, CELL + _A + d])
                    h0, h1 = a0 * cells[p, _H + d], a1 * cells[p, CELL + _H + d]
                    if save_history:
                        history[row, _A0 + d], history[row, _AH0 + d] = a0, h0
                        history[row, _A1 + d], history[row, _AH1 + d] = a1, h1
                    h0 += du * b0
                    h1 += du * b1
                    cells[p, _H + d], cells[p, CELL + _H + d] = h0, h1
                    rows[t, _Y + d] = rows[t, _Y + d] + h0 * c0 + h1 * c1

    return scan_chunk


_scan_chunk, _scan_and_save_chunk = _make_chunk_scan(False), _make_chunk_scan(True)


@jit("reassoc")
def _scan_chunk_backward(steps, rows, cells, b_values, c_values, history, db, dc):
    """Compute the gradients of one chunk from its last step to its first, with g = dL/dh_t.

    The slot _G of `cells` carries exp(Δ·A)·g from each step to the preceding step.

        g += dy·C_t,  dC_t = Σ_d dy·h_t,  dB_t = Σ_d g·Δ·u,  d(Δ·u) = Σ_n g·B_t,
        dΔ = Σ_n g·exp(Δ·A)·h_(t-1)·A,  dA += g·exp(Δ·A)·h_(t-1)·Δ.

    dB and dC of the chunk are written to db and dc (steps, N rounded up to an even number). dΔ
    lacks the gradient through Δ·u, which `_write_du` adds. The compiler may reorder the additions
    of a sum only in this function and in `_write_ddelta`. Without this permission it could not
    vectorise the sums over d.
    """
    for t in range(steps - 1, -1, -1):
        for d in range(LANES):
            rows[t, _DDT + d] = ZERO
            rows[t, _DDU + d] = ZERO
        for p in range(len(cells)):
            row = t * len(cells) + p
            b0, b1 = b_values[t, 2 * p], b_values[t, 2 * p + 1]
            c0, c1 = c_values[t, 2 * p], c_values[t, 2 * p + 1]
            db0, dc0, db1, dc1 = ZERO, ZERO, ZERO, ZERO
            for d in range(LANES):
                dt, du, dy = rows[t, _DT + d], rows[t, _DU + d], rows[t, _DY + d]
                ah0, ah1 = history[row, _AH0 + d], history[row, _AH1 + d]
                dc0 += dy * (ah0 + du * b0)
                dc1 += dy * (ah1 + du * b1)
                g0, g1 = cells[p, _G + d] + dy * c0, cells[p, CELL + _G + d] + dy * c1
                db0 += g0 * du
                db1 += g1 * du
                rows[t, _DDU + d] += g0 * b0 + g1 * b1
                cells[p, _G + d] = g0 * history[row, _A0 + d]
                cells[p, CELL + _G + d] = g1 * history[row, _A1 + d]
                g0 *= ah0
                g1 *= ah1
                rows[t, _DDT + d] += g0 * cells[p, _A + d] + g1 * cells[p, CELL + _A + d]
                cells[p, _DA + d] += g0 * dt
                cells[p, CELL + _DA + d] += g1 * dt
            db[t, 2 * p], db[t, 2 * p + 1], dc[t, 2 * p], dc[t, 2 * p + 1] = db0, db1, dc0, dc1


@jit()
def _add_scalars(t0, steps, state_size, values, total, start, strides):
    """Add `values` (one chunk's dB or dC) to `total`, where step 0 has the index `start`."""
    for t in range(steps):
        for n in range(state_size):
            total[start + (t0 + t) * strides[2] + n] += values[t, n]


# -------------------------------------------------------------------------- kernels and their parts
@jit()
def _load_block(a, dt_weight, skip, bias, state_size, rank, channels, d0, width, cells, params):
    """Load a block's parameters: A·log2(e) into `cells`; bias, D and dt_weight into `params`.

    The other slots of `cells`, h included, become 0.
    """
    cells[:] = ZERO
    params[:] = ZERO
    for n in range(state_size):
        load(cells, n // 2, n % 2 * CELL + _A, a, n * channels + d0, width)
    for r in range(rank):
        load(params, _DT_WEIGHT + r, 0, dt_weight, r * channels + d0, width)
    if skip.size:
        load(params, _SKIP, 0, skip, d0, width)
    if bias.size:
        load(params, _BIAS, 0, bias, d0, width)


@jit()
def _write_out(steps, width, start, channels, params, rows, out):
    """Write out = y + D·u of one chunk to `out`, from index `start` on."""
    for t in range(steps):
        for d in range(LANES):
            rows[t, _Y + d] += params[_SKIP, d] * rows[t, _X + d]
        store(rows, t, _Y, out, start + t * channels, width)


@entry
def forward(worker, workers, integers, buffers):
    """Compute the forward pass of one worker's rows of the batch.

    integers: steps per chunk, B, L, D, N, R, softplus. buffers: u, delta, B, C, A·log2(e),
    dt_weight, D, bias, scratch, blocks, and strides (one row each for u, delta, B and C);
    results: out, last, states.
    """
    steps, batch, length, channels, state_size, rank, softplus = integers
    blocks, strides = int_table(buffers, 9, 3), int_table(buffers, 10, 4)
    pairs, chunks = (state_size + 1) // 2, (length - 1) // steps
    u, delta = (flat(buffers, 0), strides[0]), (flat(buffers, 1), strides[1])
    bm, cm = (flat(buffers, 2), strides[2]), (flat(buffers, 3), strides[3])
    a, dt_weight, skip, bias = (
        flat(buffers, 4),
        flat(buffers, 5),
        flat(buffers, 6),
        flat(buffers, 7),
    )
    out, last, states = flat(buffers, 11), flat(buffers, 12), flat(buffers, 13)
    rows, address = scratch_table(
        buffers[8, 0] + 4 * (buffers[8, 1] // workers) * worker, steps, _FORWARD
    )
    cells, address = scratch_table(address, pairs, 2 * CELL)
    params, address = scratch_table(address, _DT_WEIGHT + rank, LANES)
    b_values, address = scratch_table(address, steps, 2 * pairs)
    c_values, address = scratch_table(address, steps, 2 * pairs)
    for b in range(batch * worker // workers, batch * (worker + 1) // workers):
        for k in range(len(blocks)):
            d0, width, group = blocks[k]
            if width < LANES:  # lanes from `width` on must be 0
                rows[:] = ZERO
            _load_block(
                a, dt_weight, skip, bias, state_size, rank, channels, d0, width, cells, params
            )
            for t0 in range(0, length, steps):
                count = min(steps, length - t0)
                if t0 and states.size:
                    state = (b * chunks + t0 // steps - 1) * state_size
                    for n in range(state_size):
                        store(
                            cells,
                            n // 2,
                            n % 2 * CELL + _H,
                            states,
                            (state + n) * channels + d0,
                            width,
                        )
                _read_scalars(bm, b, group, t0, count, state_size, b_values)
                _read_scalars(cm, b, group, t0, count, state_size, c_values)
                _fill_rows(b, group, t0, count, d0, width, u, delta, rank, params, softplus, rows)
                _scan_chunk(count, rows, cells, b_values, c_values, rows)
                _write_out(
                    count, width, (b * length + t0) * channels + d0, channels, params, rows, out
                )
            for n in range(state_size if last.size else 0):
                store(
                    cells,
                    n // 2,
                    n % 2 * CELL + _H,
                    last,
                    (b * state_size + n) * channels + d0,
                    width,
                )


@jit()
def _write_du(steps, width, start, channels, params, softplus, rows, du, block_sums):
    """Write du of one chunk to `du`, and replace dΔ in `rows` by ddelta.

    ddelta is the gradient with respect to Δ before softplus. Also add the chunk's sums of
    d(delta_bias) and dD to `block_sums`.
    """
    for t in range(steps):
        for d in range(LANES):
            dy, x = rows[t, _DY + d], rows[t, _X + d]
            rows[t, _Y + d] = rows[t, _DDU + d] * rows[t, _DT + d] + params[_SKIP, d] * dy
            # LN2 cancels the factor log2(e) in the slot of A
            rows[t, _DDT + d] = rows[t, _DDT + d] * LN2 + rows[t, _DDU + d] * x
            block_sums[_SKIP, d] += dy * x
        if softplus:
            for d in range(LANES):
                rows[t, _DDT + d] *= rows[t, _SLOPE + d]
        for d in range(LANES):
            block_sums[_BIAS, d] += rows[t, _DDT + d]
        store(rows, t, _Y, du, start + t * channels, width)


@jit("reassoc")
def _write_ddelta(
    b,
    group,
    t0,
    steps,
    width,
    start,
    rank,
    channels,
    strides,
    delta,
    params,
    rows,
    ddelta,
    block_sums,
):
    """Write ddelta of one chunk to `ddelta`.

    If `rank` is not 0, instead add the gradient of delta's R numbers per step to `ddelta`, and the
    gradient of dt_weight to `block_sums`.
    """
    for t in range(steps):
        if rank == 0:
            store(rows, t, _DDT, ddelta, start + t * channels, width)
        source = _offset(delta, b, t0 + t, group * delta[1][3])
        target = b * strides[0] + group * strides[1] + (t0 + t) * strides[2]
        for r in range(rank):
            factor, dot = delta[0][source + r * delta[1][2]], ZERO
            for d in range(LANES):
                dot += rows[t, _DDT + d] * params[_DT_WEIGHT + r, d]
                block_sums[_DT_WEIGHT + r, d] += rows[t, _DDT + d] * factor
            ddelta[target + r] += dot


@jit()
def _add_sums(state_size, rank, channels, d0, width, cells, block_sums, sums):
    """Add a block's sums over all steps to `sums`, in the rows of this worker.

    A worker has N rows for dA, one for dD, one for d(delta_bias), and R for d(dt_weight). Here
    d0 is an index into `sums`: that of the block's first channel in the first of these rows.
    """
    for n in range(state_size):
        for d in range(width):
            sums[np.uintp(n * channels + d0) + np.uintp(d)] += cells[n // 2, n % 2 * CELL + _DA + d]
    for d in range(width):
        sums[np.uintp(state_size * channels + d0) + np.uintp(d)] += block_sums[_SKIP, d]
        sums[np.uintp((state_size + 1) * channels + d0) + np.uintp(d)] += block_sums[_BIAS, d]
    for r in range(rank):
        for d in range(width):
            sums[np.uintp((state_size + 2 + r) * channels + d0) + np.uintp(d)] += block_sums[
                _DT_WEIGHT + r, d
            ]


@entry
def backward(worker, workers, integers, buffers):
    """Compute the backward pass of one worker's rows of the batch.

    integers: as in `forward`. buffers: those of `forward` up to strides, then grad (the gradient of
    out) and states, then the results du, ddelta, dB, dC and sums (for its rows see `_add_sums`).
    `strides` has four further rows: of grad, ddelta, dB and dC. The rows of ddelta, dB and dC hold
    distances between batch rows, between groups, and between steps.
    """
    steps, batch, length, channels, state_size, rank, softplus = integers
    blocks, strides = int_table(buffers, 9, 3), int_table(buffers, 10, 4)
    pairs, chunks = (state_size + 1) // 2, (length - 1) // steps
    u, delta = (flat(buffers, 0), strides[0]), (flat(buffers, 1), strides[1])
    grad = flat(buffers, 11)
    bm, cm = (flat(buffers, 2), strides[2]), (flat(buffers, 3), strides[3])
    a, dt_weight, skip, bias = (
        flat(buffers, 4),
        flat(buffers, 5),
        flat(buffers, 6),
        flat(buffers, 7),
    )
    states, du, ddelta = flat(buffers, 12), flat(buffers, 13), flat(buffers, 14)
    db, dc, sums = flat(buffers, 15), flat(buffers, 16), flat(buffers, 17)
    first_sum = sums.size // workers * worker
    rows, address = scratch_table(
        buffers[8, 0] + 4 * (buffers[8, 1] // workers) * worker, steps, _BACKWARD
    )
    cells, address = scratch_table(address, pairs, 2 * CELL)
    params, address = scratch_table(address, _DT_WEIGHT + rank, LANES)
    block_sums, address = scratch_table(address, _DT_WEIGHT + rank, LANES)
    b_values, address = scratch_table(address, steps, 2 * pairs)
    c_values, address = scratch_table(address, steps, 2 * pairs)
    db_values, address = scratch_table(address, steps, 2 * pairs)
    dc_values, address = scratch_table(address, steps, 2 * pairs)
    history, address = scratch_table(address, steps * pairs, HISTORY)
    for b in range(batch * worker // workers, batch * (worker + 1) // workers):
        for k in range(len(blocks)):
            d0, width, group = blocks[k]
            if width < LANES:
                rows[:] = ZERO
            block_sums[:] = ZERO
            _load_block(
                a, dt_weight, skip, bias, state_size, rank, channels, d0, width, cells, params
            )
            for chunk in range(chunks, -1, -1):
                t0 = chunk * steps
                count = min(steps, length - t0)
                state = (b * chunks + chunk - 1) * state_size
                for n in range(state_size):
                    p, slot = n // 2, n % 2 * CELL + _H
                    if chunk:
                        load(cells, p, slot, states, (state + n) * channels + d0, width)
                    else:
                        for d in range(LANES):
                            cells[p, slot + d] = ZERO
                _read_scalars(bm, b, group, t0, count, state_size, b_values)
                _read_scalars(cm, b, group, t0, count, state_size, c_values)
                _fill_rows(b, group, t0, count, d0, width, u, delta, rank, params, softplus, rows)
                _scan_and_save_chunk(count, rows, cells, b_values, c_values, history)
                for t in range(count):
                    load(rows, t, _DY, grad, _offset((grad, strides[4]), b, t0 + t, d0), width)
                _scan_chunk_backward(
                    count, rows, cells, b_values, c_values, history, db_values, dc_values
                )
                start = (b * length + t0) * channels + d0
                first_b = b * strides[6, 0] + group * strides[6, 1]
                first_c = b * strides[7, 0] + group * strides[7, 1]
                _add_scalars(t0, count, state_size, db_values, db, first_b, strides[6])
                _add_scalars(t0, count, state_size, dc_values, dc, first_c, strides[7])
                _write_du(count, width, start, channels, params, softplus, rows, du, block_sums)
                _write_ddelta(
                    b,
                    group,
                    t0,
                    count,
                    width,
                    start,
                    rank,
                    channels,
                    strides[5],
                    delta,
                    params,
                    rows,
                    ddelta,
                    block_sums,
                )
            _add_sums(state_size, rank, channels, first_sum + d0, width, cells, block_sums, sums)
