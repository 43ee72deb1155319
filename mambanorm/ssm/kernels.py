"""The kernels of the CPU scan: fused loops that Numba compiles, forward and backward, in float32.

Map of the file
---------------
1. `_exp2`, `_softplus`, `sigmoid`   elementary functions that LLVM can vectorise (llvmlite has no vector math library)
2. `_prepare`, `_advance`, `_replay`, `_reverse`   the four loops over one chunk of steps of one block of channels
3. `forward_worker`, `backward_worker`   walk over (batch row, channel block, chunk); `run_*` start them in parallel

What calls them, and how the work is cut up, is in `mambanorm/ssm/cpu.py`, with the glossary and the source.

All that is compiled stays in this one file: Numba's disk cache notices a change of the file that a kernel stands in,
but not of another one whose functions it has taken in.
"""

import math

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES = 64  # channels per block: four AVX-512 or eight AVX2 registers; the inner loops have this constant trip count

# Slots of LANES floats in a worker's buffers. Fixed distances from one base pointer: LLVM sees that they never overlap.
_DT, _DU, _Y, _DY, _DDT, _DDU, _PC = (k * LANES for k in range(7))  # per step
_PB = _Y  # y is used up before the products for dB are formed
ROW = {"forward": 3 * LANES, "backward": 7 * LANES}
_A, _W, _H, _G, _DA, _DW = (k * LANES for k in range(6))  # per state index; _G holds dL/dh
CELL = 6 * LANES


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
# 2^(q+1) on |q| <= 1/2: minimax, relative error 2e-9; the constant 2 is exact, so exp2(0) is exactly 1
_E1, _E2, _E3 = _f(1.3862944057119426), _f(0.4804529582699735), _f(0.1110066493938613)
_E4, _E5, _E6 = _f(0.019236874732904575), _f(0.0026797749733835064), _f(0.0003070672124478669)
# artanh(s)/s - 1 divided by s² on 0 <= s <= 1/3: minimax, error 1e-10
_P0, _P1, _P2 = _f(0.3333333781049196), _f(0.19999438936673292), _f(0.1430844017151561)
_P3, _P4 = _f(0.10713856868544232), _f(0.12150351064512585)
LOG2E, _LN2 = _f(1 / math.log(2)), _f(math.log(2))


@jit(inline="always")
def _exp2(x):
    """2^x in float32: +inf from x = 128 on, 0 below -125.5 (results under 2^-125 are flushed), NaN stays NaN.

    x = k + q with k the nearest integer; 2^x = 2^(q+1) · 2^(k-1). The 1 moves to the polynomial so that 2^(k-1) is
    finite for every finite result and the product overflows exactly where 2^x does.
    """
    x = _EXP_MAX if x > _EXP_MAX else x  # written so that NaN passes
    x = _EXP_MIN if x < _EXP_MIN else x
    r = x + _ROUND
    q = x - (r - _ROUND)
    p = (((((_E6 * q + _E5) * q + _E4) * q + _E3) * q + _E2) * q + _E1) * q + _TWO
    return p * _bits_to_float(_float_to_bits(r) << _SHIFT)


@jit(inline="always")
def _softplus(x):
    """max(x, 0) + log(1 + e), e = exp(-|x|), log(1 + e) = 2·artanh(e / (2 + e)).

    Beyond x = 20, where torch returns x itself, e is under half a unit in the last place: the two agree.
    """
    e = _exp2(-abs(x) * LOG2E)
    s = e / (_TWO + e)
    q = s * s
    return (x if x > ZERO else ZERO) + _TWO * s * (ONE + q * ((((_P4 * q + _P3) * q + _P2) * q + _P1) * q + _P0))


@jit(inline="always")
def sigmoid(x):
    """1 / (1 + exp(-x)); the argument of exp is never positive, so nothing overflows."""
    e = _exp2(-abs(x) * LOG2E)
    return (ONE if x >= ZERO else e) / (ONE + e)


@intrinsic
def _sum_lanes(typingctx, row, start):
    """Sum of the slot that begins at `start`, as a tree of vector additions (Numba leaves a loop for it scalar)."""

    def codegen(context, builder, signature, args):
        lane = context.get_value_type(types.float32)
        array = context.make_array(signature.args[0])(context, builder, args[0])
        place = builder.gep(array.data, [args[1]])
        vector = builder.load(builder.bitcast(place, ir.VectorType(lane, LANES).as_pointer()), align=4)
        width = LANES
        while width > 1:
            width //= 2
            lanes = ir.VectorType(ir.IntType(32), width)
            index = [ir.Constant(lanes, [*range(k, k + width)]) for k in (0, width)]
            vector = builder.fadd(*(builder.shuffle_vector(vector, vector, half) for half in index))
        return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))

    return types.float32(row, types.intp), codegen


# ------------------------------------------------------------------------------------------------- loops over a chunk
@jit()
def _cut(x, b, t, d0, width):
    """Channels d0 … d0 + width of one row; x is (flat memory, strides)."""
    start = b * x[1][0] + t * x[1][1] + d0
    return x[0][start : start + width]


@jit()
def _read_scalars(m, b, group, t0, steps, size, values):
    """Copy B or C of one group, any strides, to `values` (steps · N)."""
    flat, strides = m
    base = b * strides[0] + group * strides[1] + t0 * strides[3]
    for t in range(steps):
        for n in range(size):
            values[t * size + n] = flat[base + t * strides[3] + n * strides[2]]


@jit()
def _prepare(b, t0, steps, d0, width, u, delta, bias, softplus, rows, step):
    """Fill Δ and Δ·u of a chunk: Δ = softplus(delta + bias). Lanes past `width` keep u = 0, so their state stays 0."""
    for t in range(steps):
        row = rows[t * step : t * step + step]
        source = _cut(delta, b, t0 + t, d0, width)
        for d in range(width):
            row[_DT + d] = source[d]
        if bias.size:
            shift = bias[d0 : d0 + width]
            for d in range(width):
                row[_DT + d] += shift[d]
        if softplus:
            for d in range(LANES):
                row[_DT + d] = _softplus(row[_DT + d])
        source = _cut(u, b, t0 + t, d0, width)
        for d in range(width):
            row[_DU + d] = row[_DT + d] * source[d]


@jit()
def _advance(steps, size, weighted, rows, cells, b_values, c_values):
    """h = exp(Δ·A)·h + Δ·u·B_t and y = Σ_n C_t·h over a chunk; with a weight, C_t·W instead of C_t."""
    for t in range(steps):
        row = rows[t * 3 * LANES : (t + 1) * 3 * LANES]
        for d in range(LANES):
            row[_Y + d] = ZERO
        for n in range(size):
            cell = cells[n * CELL : (n + 1) * CELL]
            b, c = b_values[t * size + n], c_values[t * size + n]
            if weighted:
                for d in range(LANES):
                    h = _exp2(row[_DT + d] * cell[_A + d]) * cell[_H + d] + row[_DU + d] * b
                    cell[_H + d] = h
                    row[_Y + d] += h * cell[_W + d] * c
            else:
                for d in range(LANES):
                    h = _exp2(row[_DT + d] * cell[_A + d]) * cell[_H + d] + row[_DU + d] * b
                    cell[_H + d] = h
                    row[_Y + d] += h * c


@jit()
def _replay(steps, size, weighted, rows, cells, b_values, c_values, history):
    """`_advance` over a chunk a second time, keeping exp(Δ·A) and the state before each step."""
    for t in range(steps):
        row = rows[t * 7 * LANES : (t + 1) * 7 * LANES]
        for d in range(LANES):
            row[_Y + d] = ZERO
        for n in range(size):
            cell = cells[n * CELL : (n + 1) * CELL]
            b, c = b_values[t * size + n], c_values[t * size + n]
            kept = history[(t * size + n) * 2 * LANES : (t * size + n + 1) * 2 * LANES]
            for d in range(LANES):
                a = _exp2(row[_DT + d] * cell[_A + d])
                h = cell[_H + d]
                kept[d] = a
                kept[LANES + d] = h
                h = a * h + row[_DU + d] * b
                cell[_H + d] = h
                row[_Y + d] += h * c * (cell[_W + d] if weighted else ONE)


@jit()
def _reverse(steps, size, weighted, need_b, need_c, rows, cells, b_values, c_values, history, db, dc):
    """Backward through a chunk. With g = dL/dh_t (carried in the cell as exp(Δ·A)·g from the step after):

    g += dy·C_t,  dC_t = Σ_d dy·h_t,  dB_t = Σ_d g·Δ·u,  d(Δ·u) = Σ_n g·B_t,
    dΔ = Σ_n g·exp(Δ·A)·h_(t-1)·A,  dA += g·exp(Δ·A)·h_(t-1)·Δ.
    """
    for t in range(steps - 1, -1, -1):
        row = rows[t * 7 * LANES : (t + 1) * 7 * LANES]
        for d in range(LANES):
            row[_DDT + d] = ZERO
            row[_DDU + d] = ZERO
        for n in range(size):
            cell = cells[n * CELL : (n + 1) * CELL]
            b, c = b_values[t * size + n], c_values[t * size + n]
            kept = history[(t * size + n) * 2 * LANES : (t * size + n + 1) * 2 * LANES]
            for d in range(LANES):
                dt, du = row[_DT + d], row[_DU + d]
                a, h = kept[d], kept[LANES + d]
                dyw = row[_DY + d] * (cell[_W + d] if weighted else ONE)
                g = cell[_G + d] + dyw * c
                dyh = row[_DY + d] * (a * h + du * b)
                row[_PC + d] = dyh * (cell[_W + d] if weighted else ONE)
                if weighted:
                    cell[_DW + d] += dyh * c
                row[_PB + d] = g * du
                row[_DDU + d] += g * b
                g *= a
                cell[_G + d] = g
                g *= h
                row[_DDT + d] += g * cell[_A + d]
                cell[_DA + d] += g * dt
            if need_b:
                db[t * size + n] += _sum_lanes(row, _PB)
            if need_c:
                dc[t * size + n] += _sum_lanes(row, _PC)


# ---------------------------------------------------------------------------------------------------- walks over blocks
@jit()
def _load_cells(a, weight, d0, width, cells):
    """Columns d0 … of A·log2(e) and of the weight (both (N, D)) into the cells; everything else in them is zero."""
    cells[:] = ZERO
    for n in range(a.shape[0]):
        for d in range(width):
            cells[n * CELL + _A + d] = a[n, d0 + d]
        if weight.size:
            for d in range(width):
                cells[n * CELL + _W + d] = weight[n, d0 + d]


@jit()
def _finish(b, t0, steps, d0, width, u, z, skip, rows, out):
    """out = (y + D·u) · SiLU(z) for a chunk."""
    for t in range(steps):
        row = rows[t * 3 * LANES : (t + 1) * 3 * LANES]
        if skip.size:
            source, scale = _cut(u, b, t0 + t, d0, width), skip[d0 : d0 + width]
            for d in range(width):
                row[_Y + d] += scale[d] * source[d]
        if z[0].size:
            gate = _cut(z, b, t0 + t, d0, width)
            for d in range(width):
                row[_Y + d] *= gate[d] * sigmoid(gate[d])
        target = out[b, t0 + t]
        for d in range(width):
            target[d0 + d] = row[_Y + d]


@jit()
def forward_worker(
    worker, workers, segments, blocks, steps, strides, u, delta, bm, cm, z, a, weight, skip, bias, softplus,
    out, last, states, scratch,
):  # fmt: skip
    """Forward pass of one worker's share of the batch · segments items."""
    size, length, batch = a.shape[0], out.shape[1], out.shape[0]
    u, delta, z = (u, strides[0]), (delta, strides[1]), (z, strides[4])
    bm, cm = (bm, strides[2]), (cm, strides[3])
    room = scratch[worker]
    rows = room[: steps * 3 * LANES]
    cells = room[rows.size : rows.size + size * CELL]
    b_values = room[rows.size + cells.size : rows.size + cells.size + steps * size]
    c_values = room[rows.size + cells.size + steps * size :]
    for item in range(batch * segments * worker // workers, batch * segments * (worker + 1) // workers):
        b, segment = item // segments, item % segments
        for k in range(len(blocks) * segment // segments, len(blocks) * (segment + 1) // segments):
            d0, width = blocks[k, 0], blocks[k, 1]
            rows[:] = ZERO
            _load_cells(a, weight, d0, width, cells)
            for t0 in range(0, length, steps):
                count = min(steps, length - t0)
                if t0 and states.size:
                    for n in range(size):
                        for d in range(width):
                            states[b, t0 // steps - 1, n, d0 + d] = cells[n * CELL + _H + d]
                _read_scalars(bm, b, blocks[k, 2], t0, count, size, b_values)
                _read_scalars(cm, b, blocks[k, 3], t0, count, size, c_values)
                _prepare(b, t0, count, d0, width, u, delta, bias, softplus, rows, 3 * LANES)
                _advance(count, size, weight.size > 0, rows, cells, b_values, c_values)
                _finish(b, t0, count, d0, width, u, z, skip, rows, out)
            for n in range(size if last.size else 0):
                for d in range(width):
                    last[b, n, d0 + d] = cells[n * CELL + _H + d]


@jit()
def _prepare_dy(b, t0, steps, d0, width, u, z, skip, grad, rows, dz):
    """dy = dout · SiLU(z) for a chunk, and dz = dout · (y + D·u) · SiLU'(z)."""
    for t in range(steps):
        row = rows[t * 7 * LANES : (t + 1) * 7 * LANES]
        source = _cut(grad, b, t0 + t, d0, width)
        for d in range(width):
            row[_DY + d] = source[d]
        if z[0].size == 0:
            continue
        if skip.size:
            source, scale = _cut(u, b, t0 + t, d0, width), skip[d0 : d0 + width]
            for d in range(width):
                row[_Y + d] += scale[d] * source[d]
        gate, target = _cut(z, b, t0 + t, d0, width), dz[b, t0 + t, d0 : d0 + width]
        for d in range(width):
            s = sigmoid(gate[d])
            target[d] = row[_DY + d] * row[_Y + d] * s * (ONE + gate[d] * (ONE - s))
            row[_DY + d] *= gate[d] * s


@jit()
def _finish_du(b, t0, steps, d0, width, u, delta, skip, bias, softplus, rows, du, ddelta, sums):
    """du, ddelta, and the sums of dD (`sums[0]`) and d(delta_bias) (`sums[1]`), from dΔ and d(Δ·u) of a chunk."""
    for t in range(steps):
        row = rows[t * 7 * LANES : (t + 1) * 7 * LANES]
        x = _cut(u, b, t0 + t, d0, width)
        target = du[b, t0 + t, d0 : d0 + width]
        for d in range(width):
            target[d] = row[_DDU + d] * row[_DT + d]
        if skip.size:
            scale, total = skip[d0 : d0 + width], sums[0, d0 : d0 + width]
            for d in range(width):
                target[d] += scale[d] * row[_DY + d]
                total[d] += row[_DY + d] * x[d]
        raw, target = _cut(delta, b, t0 + t, d0, width), ddelta[b, t0 + t, d0 : d0 + width]
        for d in range(width):
            target[d] = row[_DDT + d] * _LN2 + row[_DDU + d] * x[d]  # A carries log2(e)
        if softplus:
            for d in range(width):
                target[d] *= sigmoid(raw[d] + (bias[d0 + d] if bias.size else ZERO))
        if bias.size:
            total = sums[1, d0 : d0 + width]
            for d in range(width):
                total[d] += target[d]


@jit()
def backward_worker(
    worker, workers, segments, blocks, steps, strides, u, delta, bm, cm, z, a, weight, skip, bias, softplus,
    grad, grad_strides, states, need_b, need_c, du, ddelta, dz, db, dc, sums, scratch,
):  # fmt: skip
    """Backward pass of one worker's share; db and dc have one layer per segment, `sums` one per worker."""
    size, length, batch = a.shape[0], du.shape[1], du.shape[0]
    u, delta, z, grad = (u, strides[0]), (delta, strides[1]), (z, strides[4]), (grad, grad_strides)
    bm, cm = (bm, strides[2]), (cm, strides[3])
    room = scratch[worker]
    rows, room = room[: steps * 7 * LANES], room[steps * 7 * LANES :]
    cells, room = room[: size * CELL], room[size * CELL :]
    b_values, room = room[: steps * size], room[steps * size :]
    c_values, history = room[: steps * size], room[steps * size :]
    own = sums[worker]
    for item in range(batch * segments * worker // workers, batch * segments * (worker + 1) // workers):
        b, segment = item // segments, item % segments
        for k in range(len(blocks) * segment // segments, len(blocks) * (segment + 1) // segments):
            d0, width, group_b, group_c = blocks[k]
            rows[:] = ZERO
            _load_cells(a, weight, d0, width, cells)
            for chunk in range((length - 1) // steps, -1, -1):
                t0 = chunk * steps
                count = min(steps, length - t0)
                for n in range(size):
                    for d in range(width):
                        cells[n * CELL + _H + d] = states[b, chunk - 1, n, d0 + d] if chunk else ZERO
                _read_scalars(bm, b, group_b, t0, count, size, b_values)
                _read_scalars(cm, b, group_c, t0, count, size, c_values)
                _prepare(b, t0, count, d0, width, u, delta, bias, softplus, rows, 7 * LANES)
                _replay(count, size, weight.size > 0, rows, cells, b_values, c_values, history)
                _prepare_dy(b, t0, count, d0, width, u, z, skip, grad, rows, dz)
                _reverse(
                    count, size, weight.size > 0, need_b, need_c, rows, cells, b_values, c_values, history,
                    db[segment, b, group_b, t0 * size :], dc[segment, b, group_c, t0 * size :],
                )  # fmt: skip
                _finish_du(b, t0, count, d0, width, u, delta, skip, bias, softplus, rows, du, ddelta, own[2 * size :])
            for n in range(size):
                for d in range(width):
                    own[n, d0 + d] += cells[n * CELL + _DA + d]
                if weight.size:
                    for d in range(width):
                        own[size + n, d0 + d] += cells[n * CELL + _DW + d]


@jit(parallel=True)
def run_forward(workers, arguments):
    for worker in numba.prange(workers):
        forward_worker(worker, workers, *arguments)


@jit(parallel=True)
def run_backward(workers, arguments):
    for worker in numba.prange(workers):
        backward_worker(worker, workers, *arguments)
