"""The kernels of the CPU scan: fused loops that Numba compiles, forward and backward, in float32.

Map of the file
---------------
1. `_exp2`, `_softplus`, `sigmoid`   elementary functions that LLVM can vectorise (llvmlite has no vector math library)
2. `_prepare`, `_advance`, `_replay`, `_reverse`, `_finish`   the loops over one chunk of steps of one block of channels
3. `forward_worker`, `backward_worker`   walk over (batch row, channel block, chunk); `run_*` start them in parallel

What calls them, and how the work is cut up, is in `mambanorm/ssm/cpu.py`, with the glossary and the source.

All that is compiled stays in this one file: Numba's disk cache notices a change of the file that a kernel stands in,
but not of another one whose functions it has taken in.
"""

import math

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

LANES = 64  # channels per block: four AVX-512 or eight AVX2 registers; the inner loops have this constant trip count

# Slots of LANES floats in a worker's buffers. Fixed distances from one base pointer: LLVM sees that they never overlap.
_DT, _DU, _Y, _X, _DY, _DDT, _DDU, _SLOPE = (k * LANES for k in range(8))  # per step; forward: the first four
ROW = {"forward": 4 * LANES, "backward": 8 * LANES}
_FORWARD, _BACKWARD = ROW["forward"], ROW["backward"]
_A, _W, _H, _G, _DA, _DW = (k * LANES for k in range(6))  # per state index; _G holds dL/dh
CELL = 6 * LANES
_BIAS, _SKIP, _LOW = (k * LANES for k in range(3))  # per block: delta_bias, D, from _LOW on the R rows of Δ's weight


def fixed_floats(rank):
    """What a block keeps besides its cells."""
    return _LOW + rank * LANES


def jit(*flags, **options):
    """`numba.njit` without the flags that would hide inf or NaN; without a disk cache where none can be written."""
    options = {"fastmath": {"contract", *flags}, "error_model": "numpy", "nogil": True, **options}

    def decorate(function):
        try:
            return numba.njit(cache=True, **options)(function)
        except RuntimeError:  # "no locator available": neither the package's folder nor the user's can be written
            return numba.njit(**options)(function)

    return decorate


# ---------------------------------------------------------------------------------------------- elementary functions
@intrinsic
def _float_to_bits(typingctx, x):
    return types.int32(types.float32), lambda c, b, sig, args: b.bitcast(args[0], c.get_value_type(types.int32))


@intrinsic
def _bits_to_float(typingctx, x):
    return types.float32(types.int32), lambda c, b, sig, args: b.bitcast(args[0], c.get_value_type(types.float32))


_f = np.float32
ZERO, ONE, _HALF, _TWO = _f(0), _f(1), _f(0.5), _f(2)
_EXP_MAX, _EXP_MIN = _f(128), _f(-126)
_ROUND = _f(1.5 * 2**23 + 126)  # adding it rounds to an integer k and leaves k + 126 in the lowest bits
_SHIFT = np.int32(23)
# 2^(q+1) on |q| <= 1/2: minimax, relative error 1.1e-7; value and slope at 0 are exact, and so is a slow decay
_E1, _E2, _E3 = _f(1.3862943649291992), _f(0.48044565320014954), _f(0.11101117730140686)
_E4, _E5 = _f(0.019339319318532944), _f(0.0026600733399391174)
# artanh(s)/s - 1 divided by s² on 0 <= s <= 1/3: minimax, error 1e-10
_P0, _P1, _P2 = _f(0.3333333781049196), _f(0.19999438936673292), _f(0.1430844017151561)
_P3, _P4 = _f(0.10713856868544232), _f(0.12150351064512585)
LOG2E, _LN2 = _f(1 / math.log(2)), _f(math.log(2))


@jit(inline="always")
def _exp2_below(x):
    """2^x in float32 for x <= 127.5: 0 below -125.5 (results under 2^-125 are flushed), NaN stays NaN.

    x = k + q with k the nearest integer; 2^x = 2^(q+1) · 2^(k-1). The 1 moves to the polynomial so that 2^(k-1) is
    finite for every finite result and the product overflows exactly where 2^x does.
    """
    x = _EXP_MIN if x < _EXP_MIN else x  # written so that NaN passes
    r = x + _ROUND
    q = x - (r - _ROUND)
    p = ((((_E5 * q + _E4) * q + _E3) * q + _E2) * q + _E1) * q + _TWO
    return p * _bits_to_float(_float_to_bits(r) << _SHIFT)


@jit(inline="always")
def _exp2(x):
    """2^x in float32 for every x: +inf from x = 128 on."""
    return _exp2_below(_EXP_MAX if x > _EXP_MAX else x)


@jit(inline="always")
def _softplus(x, e):
    """max(x, 0) + log(1 + e), where e = exp(-|x|); log(1 + e) = 2·artanh(e / (2 + e)).

    Beyond x = 20, where torch returns x itself, e is under half a unit in the last place: the two agree.
    """
    s = e / (_TWO + e)
    q = s * s
    return (x if x > ZERO else ZERO) + _TWO * s * (ONE + q * ((((_P4 * q + _P3) * q + _P2) * q + _P1) * q + _P0))


@jit(inline="always")
def sigmoid(x):
    """1 / (1 + exp(-x)); the argument of exp is never positive, so nothing overflows."""
    e = _exp2_below(-abs(x) * LOG2E)
    return (ONE if x >= ZERO else e) / (ONE + e)


# ------------------------------------------------------------------------------------------------- loops over a chunk
@jit()
def _load(row, slot, x, start, width):
    """x[start : start + width] into a slot; lanes past `width` are left as they are."""
    if width == LANES:  # the usual case, with a constant trip count
        target, source = row[slot : slot + LANES], x[start : start + LANES]
        for d in range(LANES):
            target[d] = source[d]
    else:
        for d in range(width):
            row[slot + d] = x[start + d]


@jit()
def _store(row, slot, x, start, width):
    """A slot into x[start : start + width]."""
    if width == LANES:
        source, target = row[slot : slot + LANES], x[start : start + LANES]
        for d in range(LANES):
            target[d] = source[d]
    else:
        for d in range(width):
            x[start + d] = row[slot + d]


@jit()
def _place(x, b, t, d0):
    """Where channel d0 of a row stands in flat memory; x is (flat memory, strides)."""
    return b * x[1][0] + t * x[1][1] + d0


@jit()
def _read_scalars(m, b, group, t0, steps, size, even, values):
    """Copy B or C of one group, any strides, to `values` (steps · even); an odd N is made even with a zero."""
    flat, strides = m
    base = b * strides[0] + group * strides[1] + t0 * strides[3]
    for t in range(steps):
        for n in range(size):
            values[t * even + n] = flat[base + t * strides[3] + n * strides[2]]
        if even > size:
            values[t * even + size] = ZERO


@jit()
def _prepare(b, t0, steps, d0, width, u, delta, rank, fixed, softplus, rows, step):
    """Fill u, Δ, Δ·u and, in the backward pass, softplus' of a chunk: Δ = softplus(delta + bias).

    With a rank the rows of delta hold R numbers, and delta is their product with the weight in `fixed`. Lanes past the
    width keep u = 0, so their state stays 0.
    """
    for t in range(steps):
        row = rows[t * step : t * step + step]
        _load(row, _X, u[0], _place(u, b, t0 + t, d0), width)
        if rank:
            start = b * delta[1][0] + (t0 + t) * delta[1][1]
            for d in range(LANES):
                row[_DT + d] = fixed[_BIAS + d]
            for r in range(rank):
                factor, weight = delta[0][start + r * delta[1][2]], fixed[_LOW + r * LANES : _LOW + (r + 1) * LANES]
                for d in range(LANES):
                    row[_DT + d] += factor * weight[d]
        else:
            _load(row, _DT, delta[0], _place(delta, b, t0 + t, d0), width)
            for d in range(LANES):
                row[_DT + d] += fixed[_BIAS + d]
        if softplus and step == _BACKWARD:
            for d in range(LANES):
                x = row[_DT + d]
                e = _exp2_below(-abs(x) * LOG2E)
                row[_SLOPE + d] = (ONE if x >= ZERO else e) / (ONE + e)
                row[_DT + d] = _softplus(x, e)
        elif softplus:
            for d in range(LANES):
                x = row[_DT + d]
                row[_DT + d] = _softplus(x, _exp2_below(-abs(x) * LOG2E))
        for d in range(LANES):
            row[_DU + d] = row[_DT + d] * row[_X + d]


@jit()
def _advance(steps, even, plain, rows, cells, b_values, c_values):
    """h = exp(Δ·A)·h + Δ·u·B_t and y = Σ_n C_t·W·h over a chunk, two state indices at a time.

    `plain` says that Δ·A <= 0 and W = 1 throughout.
    """
    for t in range(steps):
        row = rows[t * _FORWARD : (t + 1) * _FORWARD]
        for d in range(LANES):
            row[_Y + d] = ZERO
        for n in range(0, even, 2):
            cell = cells[n * CELL : (n + 2) * CELL]
            b0, b1 = b_values[t * even + n], b_values[t * even + n + 1]
            c0, c1 = c_values[t * even + n], c_values[t * even + n + 1]
            if plain:
                for d in range(LANES):
                    dt, du = row[_DT + d], row[_DU + d]
                    h0 = _exp2_below(dt * cell[_A + d]) * cell[_H + d] + du * b0
                    h1 = _exp2_below(dt * cell[CELL + _A + d]) * cell[CELL + _H + d] + du * b1
                    cell[_H + d], cell[CELL + _H + d] = h0, h1
                    row[_Y + d] = row[_Y + d] + h0 * c0 + h1 * c1
            else:
                for d in range(LANES):
                    dt, du = row[_DT + d], row[_DU + d]
                    h0 = _exp2(dt * cell[_A + d]) * cell[_H + d] + du * b0
                    h1 = _exp2(dt * cell[CELL + _A + d]) * cell[CELL + _H + d] + du * b1
                    cell[_H + d], cell[CELL + _H + d] = h0, h1
                    row[_Y + d] = row[_Y + d] + h0 * cell[_W + d] * c0 + h1 * cell[CELL + _W + d] * c1


@jit()
def _replay(steps, even, plain, rows, cells, b_values, c_values, history):
    """`_advance` over a chunk a second time, keeping exp(Δ·A) and exp(Δ·A)·h_(t-1) of each step."""
    for t in range(steps):
        row = rows[t * _BACKWARD : (t + 1) * _BACKWARD]
        for d in range(LANES):
            row[_Y + d] = ZERO
        for n in range(0, even, 2):
            cell = cells[n * CELL : (n + 2) * CELL]
            b0, b1 = b_values[t * even + n], b_values[t * even + n + 1]
            c0, c1 = c_values[t * even + n], c_values[t * even + n + 1]
            kept = history[(t * even + n) * 2 * LANES : (t * even + n + 2) * 2 * LANES]
            if plain:
                for d in range(LANES):
                    dt, du = row[_DT + d], row[_DU + d]
                    a0, a1 = _exp2_below(dt * cell[_A + d]), _exp2_below(dt * cell[CELL + _A + d])
                    h0, h1 = a0 * cell[_H + d], a1 * cell[CELL + _H + d]
                    kept[d], kept[LANES + d], kept[2 * LANES + d], kept[3 * LANES + d] = a0, h0, a1, h1
                    h0 += du * b0
                    h1 += du * b1
                    cell[_H + d], cell[CELL + _H + d] = h0, h1
                    row[_Y + d] = row[_Y + d] + h0 * c0 + h1 * c1
            else:
                for d in range(LANES):
                    dt, du = row[_DT + d], row[_DU + d]
                    a0, a1 = _exp2(dt * cell[_A + d]), _exp2(dt * cell[CELL + _A + d])
                    h0, h1 = a0 * cell[_H + d], a1 * cell[CELL + _H + d]
                    kept[d], kept[LANES + d], kept[2 * LANES + d], kept[3 * LANES + d] = a0, h0, a1, h1
                    h0 += du * b0
                    h1 += du * b1
                    cell[_H + d], cell[CELL + _H + d] = h0, h1
                    row[_Y + d] = row[_Y + d] + h0 * cell[_W + d] * c0 + h1 * cell[CELL + _W + d] * c1


@jit("reassoc")
def _reverse(steps, size, even, weighted, rows, cells, b_values, c_values, history, db, dc):
    """Backward through a chunk. With g = dL/dh_t (carried in the cell as exp(Δ·A)·g from the step after):

    g += dy·W·C_t,  dC_t = Σ_d dy·W·h_t,  dB_t = Σ_d g·Δ·u,  d(Δ·u) = Σ_n g·B_t,  dW += dy·h_t·C_t,
    dΔ = Σ_n g·exp(Δ·A)·h_(t-1)·A,  dA += g·exp(Δ·A)·h_(t-1)·Δ.

    Only here may the compiler reorder sums: those over d, which it could not vectorise otherwise.
    """
    for t in range(steps - 1, -1, -1):
        row = rows[t * _BACKWARD : (t + 1) * _BACKWARD]
        for d in range(LANES):
            row[_DDT + d] = ZERO
            row[_DDU + d] = ZERO
        for n in range(0, even, 2):
            cell = cells[n * CELL : (n + 2) * CELL]
            b0, b1 = b_values[t * even + n], b_values[t * even + n + 1]
            c0, c1 = c_values[t * even + n], c_values[t * even + n + 1]
            kept = history[(t * even + n) * 2 * LANES : (t * even + n + 2) * 2 * LANES]
            db0, dc0, db1, dc1 = ZERO, ZERO, ZERO, ZERO
            if weighted:
                for d in range(LANES):
                    dt, du, dy = row[_DT + d], row[_DU + d], row[_DY + d]
                    ah0, ah1 = kept[LANES + d], kept[3 * LANES + d]
                    h0, h1 = ah0 + du * b0, ah1 + du * b1
                    cell[_DW + d] += dy * h0 * c0
                    cell[CELL + _DW + d] += dy * h1 * c1
                    dy0, dy1 = dy * cell[_W + d], dy * cell[CELL + _W + d]
                    dc0 += dy0 * h0
                    dc1 += dy1 * h1
                    g0, g1 = cell[_G + d] + dy0 * c0, cell[CELL + _G + d] + dy1 * c1
                    db0 += g0 * du
                    db1 += g1 * du
                    row[_DDU + d] += g0 * b0 + g1 * b1
                    cell[_G + d], cell[CELL + _G + d] = g0 * kept[d], g1 * kept[2 * LANES + d]
                    row[_DDT + d] += g0 * ah0 * cell[_A + d] + g1 * ah1 * cell[CELL + _A + d]
                    cell[_DA + d] += g0 * ah0 * dt
                    cell[CELL + _DA + d] += g1 * ah1 * dt
            else:
                for d in range(LANES):
                    dt, du, dy = row[_DT + d], row[_DU + d], row[_DY + d]
                    ah0, ah1 = kept[LANES + d], kept[3 * LANES + d]
                    dc0 += dy * (ah0 + du * b0)
                    dc1 += dy * (ah1 + du * b1)
                    g0, g1 = cell[_G + d] + dy * c0, cell[CELL + _G + d] + dy * c1
                    db0 += g0 * du
                    db1 += g1 * du
                    row[_DDU + d] += g0 * b0 + g1 * b1
                    cell[_G + d], cell[CELL + _G + d] = g0 * kept[d], g1 * kept[2 * LANES + d]
                    g0 *= ah0
                    g1 *= ah1
                    row[_DDT + d] += g0 * cell[_A + d] + g1 * cell[CELL + _A + d]
                    cell[_DA + d] += g0 * dt
                    cell[CELL + _DA + d] += g1 * dt
            db[t * size + n] += db0
            dc[t * size + n] += dc0
            if n + 1 < size:
                db[t * size + n + 1] += db1
                dc[t * size + n + 1] += dc1


# ---------------------------------------------------------------------------------------------------- walks over blocks
@jit()
def _load_block(a, weight, low, skip, bias, d0, width, cells, fixed):
    """What a block of channels keeps for all its steps: A·log2(e), weight (1 if none), D, bias and Δ's weight."""
    cells[:] = ZERO
    fixed[:] = ZERO
    for n in range(a.shape[0]):
        _load(cells, n * CELL + _A, a[n], d0, width)
        if weight.size:
            _load(cells, n * CELL + _W, weight[n], d0, width)
        else:
            cells[n * CELL + _W : n * CELL + _W + LANES] = ONE
    for r in range(low.shape[0]):
        _load(fixed, _LOW + r * LANES, low[r], d0, width)
    if skip.size:
        _load(fixed, _SKIP, skip, d0, width)
    if bias.size:
        _load(fixed, _BIAS, bias, d0, width)


@jit()
def _finish(b, t0, steps, d0, width, z, fixed, rows, out):
    """out = (y + D·u) · SiLU(z) for a chunk."""
    for t in range(steps):
        row = rows[t * _FORWARD : (t + 1) * _FORWARD]
        for d in range(LANES):
            row[_Y + d] += fixed[_SKIP + d] * row[_X + d]
        if z[0].size:
            _load(row, _DU, z[0], _place(z, b, t0 + t, d0), width)  # Δ·u is used up
            for d in range(LANES):
                row[_Y + d] *= row[_DU + d] * sigmoid(row[_DU + d])
        _store(row, _Y, out[b, t0 + t], d0, width)


@jit()
def forward_worker(
    worker, workers, segments, blocks, steps, strides, u, delta, bm, cm, z, a, low, weight, skip, bias, softplus, plain,
    out, last, states, scratch,
):  # fmt: skip
    """Forward pass of one worker's share of the batch · segments items."""
    size, length, batch, rank = a.shape[0], out.shape[1], out.shape[0], low.shape[0]
    even = size + size % 2
    u, delta, z = (u, strides[0]), (delta, strides[1]), (z, strides[4])
    bm, cm = (bm, strides[2]), (cm, strides[3])
    rows, room = scratch[worker, : steps * _FORWARD], scratch[worker, steps * _FORWARD :]
    cells, room = room[: even * CELL], room[even * CELL :]
    fixed, room = room[: _LOW + rank * LANES], room[_LOW + rank * LANES :]
    b_values, c_values = room[: steps * even], room[steps * even :]
    for item in range(batch * segments * worker // workers, batch * segments * (worker + 1) // workers):
        b, segment = item // segments, item % segments
        for k in range(len(blocks) * segment // segments, len(blocks) * (segment + 1) // segments):
            d0, width = blocks[k, 0], blocks[k, 1]
            rows[:] = ZERO
            _load_block(a, weight, low, skip, bias, d0, width, cells, fixed)
            for t0 in range(0, length, steps):
                count = min(steps, length - t0)
                if t0 and states.size:
                    for n in range(size):
                        _store(cells, n * CELL + _H, states[b, t0 // steps - 1, n], d0, width)
                _read_scalars(bm, b, blocks[k, 2], t0, count, size, even, b_values)
                _read_scalars(cm, b, blocks[k, 3], t0, count, size, even, c_values)
                _prepare(b, t0, count, d0, width, u, delta, rank, fixed, softplus, rows, _FORWARD)
                _advance(count, even, plain, rows, cells, b_values, c_values)
                _finish(b, t0, count, d0, width, z, fixed, rows, out)
            for n in range(size if last.size else 0):
                _store(cells, n * CELL + _H, last[b, n], d0, width)


@jit()
def _prepare_dy(b, t0, steps, d0, width, z, fixed, grad, rows, dz):
    """dy = dout · SiLU(z) for a chunk, and dz = dout · (y + D·u) · SiLU'(z)."""
    for t in range(steps):
        row = rows[t * _BACKWARD : (t + 1) * _BACKWARD]
        _load(row, _DY, grad[0], _place(grad, b, t0 + t, d0), width)
        if z[0].size:
            _load(row, _DDT, z[0], _place(z, b, t0 + t, d0), width)  # this slot and the next are not in use yet
            for d in range(LANES):
                gate, y, dy = row[_DDT + d], row[_Y + d] + fixed[_SKIP + d] * row[_X + d], row[_DY + d]
                s = sigmoid(gate)
                row[_DDU + d] = dy * y * s * (ONE + gate * (ONE - s))
                row[_DY + d] = dy * gate * s
            _store(row, _DDU, dz[b, t0 + t], d0, width)


@jit()
def _finish_du(b, t0, steps, d0, width, fixed, softplus, rows, du, totals):
    """du, ddelta in the slot of dΔ, and the sums of d(delta_bias) and dD over a chunk."""
    for t in range(steps):
        row = rows[t * _BACKWARD : (t + 1) * _BACKWARD]
        for d in range(LANES):
            dy, x = row[_DY + d], row[_X + d]
            row[_Y + d] = row[_DDU + d] * row[_DT + d] + fixed[_SKIP + d] * dy
            row[_DDT + d] = row[_DDT + d] * _LN2 + row[_DDU + d] * x  # A carries log2(e)
            totals[_SKIP + d] += dy * x
        if softplus:
            for d in range(LANES):
                row[_DDT + d] *= row[_SLOPE + d]
        for d in range(LANES):
            totals[_BIAS + d] += row[_DDT + d]
        _store(row, _Y, du[b, t0 + t], d0, width)


@jit("reassoc")
def _finish_ddelta(b, t0, steps, d0, width, channels, delta, rank, fixed, rows, ddelta, totals):
    """ddelta of one batch row to where it belongs: as it is, or through Δ's weight to the R numbers it came from."""
    for t in range(steps):
        row = rows[t * _BACKWARD : (t + 1) * _BACKWARD]
        if rank == 0:
            _store(row, _DDT, ddelta, (t0 + t) * channels + d0, width)
        start = b * delta[1][0] + (t0 + t) * delta[1][1]
        for r in range(rank):
            weight = fixed[_LOW + r * LANES : _LOW + (r + 1) * LANES]
            total = totals[_LOW + r * LANES : _LOW + (r + 1) * LANES]
            factor, dot = delta[0][start + r * delta[1][2]], ZERO
            for d in range(LANES):
                dot += row[_DDT + d] * weight[d]
            for d in range(LANES):
                total[d] += row[_DDT + d] * factor
            ddelta[(t0 + t) * rank + r] += dot


@jit()
def _add_sums(size, rank, d0, width, cells, totals, sums):
    """A block's sums over its steps into the worker's: N rows of dA, N of the weight, dD, d(delta_bias), R of low."""
    for n in range(size):
        for d in range(width):
            sums[n, d0 + d] += cells[n * CELL + _DA + d]
            sums[size + n, d0 + d] += cells[n * CELL + _DW + d]
    for d in range(width):
        sums[2 * size, d0 + d] += totals[_SKIP + d]
        sums[2 * size + 1, d0 + d] += totals[_BIAS + d]
    for r in range(rank):
        for d in range(width):
            sums[2 * size + 2 + r, d0 + d] += totals[_LOW + r * LANES + d]


@jit()
def backward_worker(
    worker, workers, segments, blocks, steps, strides, u, delta, bm, cm, z, a, low, weight, skip, bias, softplus, plain,
    grad, grad_strides, states, du, ddelta, dz, db, dc, sums, scratch,
):  # fmt: skip
    """Backward pass of one worker's share; db, dc and, with `low`, ddelta have a layer per segment, sums per worker."""
    size, length, batch, rank = a.shape[0], du.shape[1], du.shape[0], low.shape[0]
    even = size + size % 2
    u, delta, z, grad = (u, strides[0]), (delta, strides[1]), (z, strides[4]), (grad, grad_strides)
    bm, cm = (bm, strides[2]), (cm, strides[3])
    rows, room = scratch[worker, : steps * _BACKWARD], scratch[worker, steps * _BACKWARD :]
    cells, room = room[: even * CELL], room[even * CELL :]
    fixed, room = room[: _LOW + rank * LANES], room[_LOW + rank * LANES :]
    totals, room = room[: fixed.size], room[fixed.size :]
    b_values, room = room[: steps * even], room[steps * even :]
    c_values, history = room[: steps * even], room[steps * even :]
    for item in range(batch * segments * worker // workers, batch * segments * (worker + 1) // workers):
        b, segment = item // segments, item % segments
        for k in range(len(blocks) * segment // segments, len(blocks) * (segment + 1) // segments):
            d0, width, group_b, group_c = blocks[k]
            layer = segment if rank else 0
            rows[:] = ZERO
            totals[:] = ZERO
            _load_block(a, weight, low, skip, bias, d0, width, cells, fixed)
            for chunk in range((length - 1) // steps, -1, -1):
                t0 = chunk * steps
                count = min(steps, length - t0)
                for n in range(size):
                    if chunk:
                        _load(cells, n * CELL + _H, states[b, chunk - 1, n], d0, width)
                    else:
                        cells[n * CELL + _H : n * CELL + _H + LANES] = ZERO
                _read_scalars(bm, b, group_b, t0, count, size, even, b_values)
                _read_scalars(cm, b, group_c, t0, count, size, even, c_values)
                _prepare(b, t0, count, d0, width, u, delta, rank, fixed, softplus, rows, _BACKWARD)
                _replay(count, even, plain, rows, cells, b_values, c_values, history)
                _prepare_dy(b, t0, count, d0, width, z, fixed, grad, rows, dz)
                _reverse(
                    count, size, even, weight.size > 0, rows, cells, b_values, c_values, history,
                    db[segment, b, group_b, t0 * size :], dc[segment, b, group_c, t0 * size :],
                )  # fmt: skip
                _finish_du(b, t0, count, d0, width, fixed, softplus, rows, du, totals)
                _finish_ddelta(b, t0, count, d0, width, du.shape[2], delta, rank, fixed, rows, ddelta[layer, b], totals)
            _add_sums(size, rank, d0, width, cells, totals, sums[worker])


@jit(parallel=True)
def run_forward(workers, arguments):
    for worker in numba.prange(workers):
        forward_worker(worker, workers, *arguments)


@jit(parallel=True)
def run_backward(workers, arguments):
    for worker in numba.prange(workers):
        backward_worker(worker, workers, *arguments)
