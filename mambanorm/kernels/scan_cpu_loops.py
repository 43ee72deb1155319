"""The loops of the CPU scan: Numba kernels, forward and backward, in float32.

scan_cpu.py calls them and divides the work.
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
    in_wide_registers,
    ints,
    jit,
    load,
    scratch_table,
    store,
)

# Slots of LANES floats in a worker's tables. A row of a table holds its slots at fixed distances,
# so LLVM sees that they never overlap. Rows are indexed, never sliced: a slice costs Numba two
# atomic updates of a reference count.
#
# `rows`, one row per step; the forward pass has only the first four slots.
_DT, _DU, _Y, _X, _DY, _DDT, _DDU, _SLOPE = (k * LANES for k in range(8))
_FORWARD, _BACKWARD = 4 * LANES, 8 * LANES
# `cells`, per state index; _G holds dL/dh. The loops take two state indices at a time, so a row
# holds two cells.
_A, _H, _G, _DA = (k * LANES for k in range(4))
CELL = 4 * LANES
# `history`, one row per step and pair of state indices: exp(Δ·A), and exp(Δ·A)·h_(t-1).
_A0, _AH0, _A1, _AH1 = (k * LANES for k in range(4))
HISTORY = 4 * LANES
# `params`, rows per block of channels: delta_bias, D, and R rows of Δ's weight.
_BIAS, _SKIP, _DT_WEIGHT = 0, 1, 2


def scratch_floats(direction, steps, size, rank):
    """Return the number of floats in a worker's scratch buffer, for the tables of a pass."""
    pairs = (size + 1) // 2
    scalars = (_DT_WEIGHT + rank) * LANES + 2 * steps * 2 * pairs
    if direction == "forward":
        return steps * _FORWARD + pairs * 2 * CELL + scalars
    return steps * (_BACKWARD + pairs * HISTORY) + pairs * 2 * CELL + 2 * scalars


# (artanh(s)/s - 1) / s² on 0 <= s <= 1/3: minimax, error 1e-10
_P0, _P1, _P2 = _f(0.3333333781049196), _f(0.19999438936673292), _f(0.1430844017151561)
_P3, _P4 = _f(0.10713856868544232), _f(0.12150351064512585)


@jit(inline="always")
def _softplus(x, e):
    """Return max(x, 0) + log(1 + e), where e = exp(-|x|); log(1 + e) = 2·artanh(e / (2 + e)).

    torch returns x itself for x > 20. There e is less than half a unit in the last place, so both
    agree.
    """
    s = e / (TWO + e)
    q = s * s
    return (x if x > ZERO else ZERO) + TWO * s * (
        ONE + q * ((((_P4 * q + _P3) * q + _P2) * q + _P1) * q + _P0)
    )


@jit(inline="always")
def _offset(x, b, t, d0):
    """Return the index of channel d0 at a step, for x = (flat memory, strides)."""
    return b * x[1][0] + t * x[1][1] + d0


@jit()
def _read_scalars(m, b, group, t0, steps, size, values):
    """Copy B or C of one group, of any strides, to `values` (steps, even N).

    An odd N is filled up with a zero.
    """
    data, strides = m
    base = b * strides[0] + group * strides[1] + t0 * strides[3]
    for t in range(steps):
        for n in range(size):
            values[t, n] = data[base + t * strides[3] + n * strides[2]]
        for n in range(size, values.shape[1]):
            values[t, n] = ZERO


@jit()
def _prepare(b, group, t0, steps, d0, width, u, delta, rank, params, softplus, rows):
    """Fill `rows` for a chunk with u, Δ = softplus(delta + bias) and Δ·u.

    The backward pass also needs the slope of softplus. With a rank, delta holds R numbers per step
    and group, and Δ is their product with the weight in `params`. Lanes after the width have u = 0,
    so their state stays 0.
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


def _make_walk(save_history):
    """Return the loop over a chunk: h = exp(Δ·A)·h + Δ·u·B_t and y = Σ_n C_t·h.

    Two state indices are computed at a time. Δ·A <= 0 throughout. With `save_history` it saves
    exp(Δ·A) and exp(Δ·A)·h_(t-1) of each step.
    """

    @jit()
    def walk(steps, rows, cells, b_values, c_values, history):
        in_wide_registers()
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

    return walk


_advance, _replay = _make_walk(False), _make_walk(True)


@jit("reassoc")
def _reverse(steps, rows, cells, b_values, c_values, history, db, dc):
    """Compute the backward pass of a chunk, with g = dL/dh_t.

    The cell carries exp(Δ·A)·g from the later step.

        g += dy·C_t,  dC_t = Σ_d dy·h_t,  dB_t = Σ_d g·Δ·u,  d(Δ·u) = Σ_n g·B_t,
        dΔ = Σ_n g·exp(Δ·A)·h_(t-1)·A,  dA += g·exp(Δ·A)·h_(t-1)·Δ.

    dB and dC of the chunk are written to db and dc (steps, even N). Only here and in
    `_finish_ddelta` may the compiler reorder sums, those over d, which it could not vectorise
    otherwise.
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
def _add_scalars(t0, steps, size, values, total, start, strides):
    """Add a chunk's dB or dC (steps, even N) to `total`; the first step of all is at `start`."""
    for t in range(steps):
        for n in range(size):
            total[start + (t0 + t) * strides[2] + n] += values[t, n]


# -------------------------------------------------------------------------------- walks over blocks
@jit()
def _load_block(a, dt_weight, skip, bias, size, rank, channels, d0, width, cells, params):
    """Load what a block of channels needs at all steps: A·log2(e), D, bias and Δ's weight."""
    cells[:] = ZERO
    params[:] = ZERO
    for n in range(size):
        load(cells, n // 2, n % 2 * CELL + _A, a, n * channels + d0, width)
    for r in range(rank):
        load(params, _DT_WEIGHT + r, 0, dt_weight, r * channels + d0, width)
    if skip.size:
        load(params, _SKIP, 0, skip, d0, width)
    if bias.size:
        load(params, _BIAS, 0, bias, d0, width)


@jit()
def _finish(steps, width, start, channels, params, rows, out):
    """Write out = y + D·u of a chunk; its first step goes to index `start`."""
    for t in range(steps):
        for d in range(LANES):
            rows[t, _Y + d] += params[_SKIP, d] * rows[t, _X + d]
        store(rows, t, _Y, out, start + t * channels, width)


@entry
def forward(worker, workers, integers, buffers):
    """Compute the forward pass of one worker's rows of the batch.

    integers: steps of a chunk, B, L, D, N, R, softplus. buffers: u, delta, B, C (with a row of
    strides each), A, Δ's weight, D, bias, scratch, blocks, strides; results out, last and states.
    """
    steps, batch, length, channels, size, rank, softplus = integers
    blocks, strides = ints(buffers, 9, 3), ints(buffers, 10, 4)
    pairs, chunks = (size + 1) // 2, (length - 1) // steps
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
            if width < LANES:  # lanes after the width must be 0
                rows[:] = ZERO
            _load_block(a, dt_weight, skip, bias, size, rank, channels, d0, width, cells, params)
            for t0 in range(0, length, steps):
                count = min(steps, length - t0)
                if t0 and states.size:
                    state = (b * chunks + t0 // steps - 1) * size
                    for n in range(size):
                        store(
                            cells,
                            n // 2,
                            n % 2 * CELL + _H,
                            states,
                            (state + n) * channels + d0,
                            width,
                        )
                _read_scalars(bm, b, group, t0, count, size, b_values)
                _read_scalars(cm, b, group, t0, count, size, c_values)
                _prepare(b, group, t0, count, d0, width, u, delta, rank, params, softplus, rows)
                _advance(count, rows, cells, b_values, c_values, rows)
                _finish(
                    count, width, (b * length + t0) * channels + d0, channels, params, rows, out
                )
            for n in range(size if last.size else 0):
                store(cells, n // 2, n % 2 * CELL + _H, last, (b * size + n) * channels + d0, width)


@jit()
def _finish_du(steps, width, start, channels, params, softplus, rows, du, totals):
    """Write du of a chunk, and ddelta to the slot of dΔ.

    Add the sums of d(delta_bias) and dD over the chunk to `totals`.
    """
    for t in range(steps):
        for d in range(LANES):
            dy, x = rows[t, _DY + d], rows[t, _X + d]
            rows[t, _Y + d] = rows[t, _DDU + d] * rows[t, _DT + d] + params[_SKIP, d] * dy
            rows[t, _DDT + d] = (
                rows[t, _DDT + d] * LN2 + rows[t, _DDU + d] * x
            )  # A contains log2(e)
            totals[_SKIP, d] += dy * x
        if softplus:
            for d in range(LANES):
                rows[t, _DDT + d] *= rows[t, _SLOPE + d]
        for d in range(LANES):
            totals[_BIAS, d] += rows[t, _DDT + d]
        store(rows, t, _Y, du, start + t * channels, width)


@jit("reassoc")
def _finish_ddelta(
    b, group, t0, steps, width, start, rank, channels, strides, delta, params, rows, ddelta, totals
):
    """Write ddelta of a chunk.

    With a rank, write the gradient of the R numbers instead, and add that of Δ's weight to
    `totals`.
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
                totals[_DT_WEIGHT + r, d] += rows[t, _DDT + d] * factor
            ddelta[target + r] += dot


@jit()
def _add_sums(size, rank, channels, d0, width, cells, totals, sums):
    """Add a block's sums over its steps to the worker's sums, from channel d0.

    The rows of `sums` are N of dA, dD, d(delta_bias), and R of Δ's weight.
    """
    for n in range(size):
        for d in range(width):
            sums[np.uintp(n * channels + d0) + np.uintp(d)] += cells[n // 2, n % 2 * CELL + _DA + d]
    for d in range(width):
        sums[np.uintp(size * channels + d0) + np.uintp(d)] += totals[_SKIP, d]
        sums[np.uintp((size + 1) * channels + d0) + np.uintp(d)] += totals[_BIAS, d]
    for r in range(rank):
        for d in range(width):
            sums[np.uintp((size + 2 + r) * channels + d0) + np.uintp(d)] += totals[
                _DT_WEIGHT + r, d
            ]


@entry
def backward(worker, workers, integers, buffers):
    """Compute the backward pass of one worker's rows of the batch.

    integers: as in `forward`. buffers: as in `forward` up to strides; then grad (with strides),
    states; results du, ddelta, dB, dC and sums. The last three rows of strides are those of ddelta,
    dB and dC: from row to row of the batch, group to group, and step to step.
    """
    steps, batch, length, channels, size, rank, softplus = integers
    blocks, strides = ints(buffers, 9, 3), ints(buffers, 10, 4)
    pairs, chunks = (size + 1) // 2, (length - 1) // steps
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
    totals, address = scratch_table(address, _DT_WEIGHT + rank, LANES)
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
            totals[:] = ZERO
            _load_block(a, dt_weight, skip, bias, size, rank, channels, d0, width, cells, params)
            for chunk in range(chunks, -1, -1):
                t0 = chunk * steps
                count = min(steps, length - t0)
                state = (b * chunks + chunk - 1) * size
                for n in range(size):
                    p, slot = n // 2, n % 2 * CELL + _H
                    if chunk:
                        load(cells, p, slot, states, (state + n) * channels + d0, width)
                    else:
                        for d in range(LANES):
                            cells[p, slot + d] = ZERO
                _read_scalars(bm, b, group, t0, count, size, b_values)
                _read_scalars(cm, b, group, t0, count, size, c_values)
                _prepare(b, group, t0, count, d0, width, u, delta, rank, params, softplus, rows)
                _replay(count, rows, cells, b_values, c_values, history)
                for t in range(count):
                    load(rows, t, _DY, grad, _offset((grad, strides[4]), b, t0 + t, d0), width)
                _reverse(count, rows, cells, b_values, c_values, history, db_values, dc_values)
                start = (b * length + t0) * channels + d0
                first_b = b * strides[6, 0] + group * strides[6, 1]
                first_c = b * strides[7, 0] + group * strides[7, 1]
                _add_scalars(t0, count, size, db_values, db, first_b, strides[6])
                _add_scalars(t0, count, size, dc_values, dc, first_c, strides[7])
                _finish_du(count, width, start, channels, params, softplus, rows, du, totals)
                _finish_ddelta(
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
                    totals,
                )
            _add_sums(size, rank, channels, first_sum + d0, width, cells, totals, sums)
