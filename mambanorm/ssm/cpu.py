"""The selective scan on the CPU: one fused Numba kernel each for forward and backward, in float32.

Map of the file
---------------
1. `_exp2`, `_softplus`, `_sigmoid`   elementary functions that LLVM can vectorise (llvmlite has no vector math library)
2. `_prepare`, `_advance`, `_replay`, `_reverse`   the four loops over one chunk of steps of one block of channels
3. `_forward_worker`, `_backward_worker`   walk over (batch row, channel block, chunk); `_run_*` start them in parallel
4. `Plan`   cuts the work and sizes every buffer, so that the memory it promises is the memory used
5. `_Scan`, `scan_cpu`   the autograd function and the way from mamba-ssm's layout to the kernel's

How it works. The channel axis is contiguous, so the inner loop runs over a block of `LANES` channels while B and C are
scalars of that loop; h of the block stays in the first-level cache. Nothing of size B·L·D·N is stored: the forward pass
keeps h every `STEPS` steps, and the backward pass goes from the last chunk to the first and recomputes the inside of
a chunk in a small buffer per worker. Every worker owns a fixed range of work and its own partial sums, added up in
a fixed order: the same inputs with the same number of threads give the same bits.

Glossary: B batch, L length, D channels, N state size, G groups of channels that share B and C; u input, delta (Δ) step
size, A decay rate, B_t and C_t input and output vectors, z gate, h state. Row: all channels of one step.

Source: Gu & Dao 2023, "Mamba", section 3.3 and algorithm 2 (arguments and results as state-spaces/mamba's
`selective_scan_fn`); storing chunk starts and recomputing is the paper's recomputation, section 3.3.2.
"""

import math
import os
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import event
from numba.extending import intrinsic
from torch.autograd.function import once_differentiable

LANES = 64  # channels per block: four AVX-512 or eight AVX2 registers; the inner loops have this constant trip count
STEPS = 44  # steps per chunk: stored states cost 1/STEPS of B·L·D·N, the per-worker buffers grow with STEPS

# Slots of LANES floats in a worker's buffers. Fixed distances from one base pointer: LLVM sees that they never overlap.
_DT, _DU, _Y, _DY, _DDT, _DDU, _PC = (k * LANES for k in range(7))  # per step
_PB = _Y  # y is used up before the products for dB are formed
_ROW = {"forward": 3 * LANES, "backward": 7 * LANES}
_A, _W, _H, _G, _DA, _DW = (k * LANES for k in range(6))  # per state index; _G holds dL/dh
_CELL = 6 * LANES

_PID = os.getpid()
_LOCK = threading.Lock()


def _jit(*flags, **options):
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
_ZERO, _ONE, _HALF, _TWO = _f(0), _f(1), _f(0.5), _f(2)
_EXP_MAX, _EXP_MIN = _f(128), _f(-126)
_ROUND = _f(1.5 * 2**23 + 126)  # adding it rounds to an integer k and leaves k + 126 in the lowest bits
_SHIFT = np.int32(23)
# 2^(q+1) on |q| <= 1/2: minimax, relative error 2e-9; the constant 2 is exact, so exp2(0) is exactly 1
_E1, _E2, _E3 = _f(1.3862944057119426), _f(0.4804529582699735), _f(0.1110066493938613)
_E4, _E5, _E6 = _f(0.019236874732904575), _f(0.0026797749733835064), _f(0.0003070672124478669)
# artanh(s)/s - 1 divided by s² on 0 <= s <= 1/3: minimax, error 1e-10
_P0, _P1, _P2 = _f(0.3333333781049196), _f(0.19999438936673292), _f(0.1430844017151561)
_P3, _P4 = _f(0.10713856868544232), _f(0.12150351064512585)
_LOG2E, _LN2 = _f(1 / math.log(2)), _f(math.log(2))


@_jit(inline="always")
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


@_jit(inline="always")
def _softplus(x):
    """max(x, 0) + log(1 + e), e = exp(-|x|), log(1 + e) = 2·artanh(e / (2 + e)).

    Beyond x = 20, where torch returns x itself, e is under half a unit in the last place: the two agree.
    """
    e = _exp2(-abs(x) * _LOG2E)
    s = e / (_TWO + e)
    q = s * s
    return (x if x > _ZERO else _ZERO) + _TWO * s * (_ONE + q * ((((_P4 * q + _P3) * q + _P2) * q + _P1) * q + _P0))


@_jit(inline="always")
def _sigmoid(x):
    """1 / (1 + exp(-x)); the argument of exp is never positive, so nothing overflows."""
    e = _exp2(-abs(x) * _LOG2E)
    return (_ONE if x >= _ZERO else e) / (_ONE + e)


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
@_jit()
def _cut(x, b, t, d0, width):
    """Channels d0 … d0 + width of one row; x is (flat memory, strides)."""
    start = b * x[1][0] + t * x[1][1] + d0
    return x[0][start : start + width]


@_jit()
def _read_scalars(m, b, group, t0, steps, size, values):
    """Copy B or C of one group, any strides, to `values` (steps · N)."""
    flat, strides = m
    base = b * strides[0] + group * strides[1] + t0 * strides[3]
    for t in range(steps):
        for n in range(size):
            values[t * size + n] = flat[base + t * strides[3] + n * strides[2]]


@_jit()
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


@_jit()
def _advance(steps, size, weighted, rows, cells, b_values, c_values):
    """h = exp(Δ·A)·h + Δ·u·B_t and y = Σ_n C_t·h over a chunk; with a weight, C_t·W instead of C_t."""
    for t in range(steps):
        row = rows[t * 3 * LANES : (t + 1) * 3 * LANES]
        for d in range(LANES):
            row[_Y + d] = _ZERO
        for n in range(size):
            cell = cells[n * _CELL : (n + 1) * _CELL]
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


@_jit()
def _replay(steps, size, weighted, rows, cells, b_values, c_values, history):
    """`_advance` over a chunk a second time, keeping exp(Δ·A) and the state before each step."""
    for t in range(steps):
        row = rows[t * 7 * LANES : (t + 1) * 7 * LANES]
        for d in range(LANES):
            row[_Y + d] = _ZERO
        for n in range(size):
            cell = cells[n * _CELL : (n + 1) * _CELL]
            b, c = b_values[t * size + n], c_values[t * size + n]
            kept = history[(t * size + n) * 2 * LANES : (t * size + n + 1) * 2 * LANES]
            for d in range(LANES):
                a = _exp2(row[_DT + d] * cell[_A + d])
                h = cell[_H + d]
                kept[d] = a
                kept[LANES + d] = h
                h = a * h + row[_DU + d] * b
                cell[_H + d] = h
                row[_Y + d] += h * c * (cell[_W + d] if weighted else _ONE)


@_jit()
def _reverse(steps, size, weighted, need_b, need_c, rows, cells, b_values, c_values, history, db, dc):
    """Backward through a chunk. With g = dL/dh_t (carried in the cell as exp(Δ·A)·g from the step after):

    g += dy·C_t,  dC_t = Σ_d dy·h_t,  dB_t = Σ_d g·Δ·u,  d(Δ·u) = Σ_n g·B_t,
    dΔ = Σ_n g·exp(Δ·A)·h_(t-1)·A,  dA += g·exp(Δ·A)·h_(t-1)·Δ.
    """
    for t in range(steps - 1, -1, -1):
        row = rows[t * 7 * LANES : (t + 1) * 7 * LANES]
        for d in range(LANES):
            row[_DDT + d] = _ZERO
            row[_DDU + d] = _ZERO
        for n in range(size):
            cell = cells[n * _CELL : (n + 1) * _CELL]
            b, c = b_values[t * size + n], c_values[t * size + n]
            kept = history[(t * size + n) * 2 * LANES : (t * size + n + 1) * 2 * LANES]
            for d in range(LANES):
                dt, du = row[_DT + d], row[_DU + d]
                a, h = kept[d], kept[LANES + d]
                dyw = row[_DY + d] * (cell[_W + d] if weighted else _ONE)
                g = cell[_G + d] + dyw * c
                dyh = row[_DY + d] * (a * h + du * b)
                row[_PC + d] = dyh * (cell[_W + d] if weighted else _ONE)
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
@_jit()
def _load_cells(a, weight, d0, width, cells):
    """Columns d0 … of A·log2(e) and of the weight (both (N, D)) into the cells; everything else in them is zero."""
    cells[:] = _ZERO
    for n in range(a.shape[0]):
        for d in range(width):
            cells[n * _CELL + _A + d] = a[n, d0 + d]
        if weight.size:
            for d in range(width):
                cells[n * _CELL + _W + d] = weight[n, d0 + d]


@_jit()
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
                row[_Y + d] *= gate[d] * _sigmoid(gate[d])
        target = out[b, t0 + t]
        for d in range(width):
            target[d0 + d] = row[_Y + d]


@_jit()
def _forward_worker(
    worker, workers, segments, blocks, steps, strides, u, delta, bm, cm, z, a, weight, skip, bias, softplus,
    out, last, states, scratch,
):  # fmt: skip
    """Forward pass of one worker's share of the batch · segments items."""
    size, length, batch = a.shape[0], out.shape[1], out.shape[0]
    u, delta, z = (u, strides[0]), (delta, strides[1]), (z, strides[4])
    bm, cm = (bm, strides[2]), (cm, strides[3])
    room = scratch[worker]
    rows = room[: steps * 3 * LANES]
    cells = room[rows.size : rows.size + size * _CELL]
    b_values = room[rows.size + cells.size : rows.size + cells.size + steps * size]
    c_values = room[rows.size + cells.size + steps * size :]
    for item in range(batch * segments * worker // workers, batch * segments * (worker + 1) // workers):
        b, segment = item // segments, item % segments
        for k in range(len(blocks) * segment // segments, len(blocks) * (segment + 1) // segments):
            d0, width = blocks[k, 0], blocks[k, 1]
            rows[:] = _ZERO
            _load_cells(a, weight, d0, width, cells)
            for t0 in range(0, length, steps):
                count = min(steps, length - t0)
                if t0 and states.size:
                    for n in range(size):
                        for d in range(width):
                            states[b, t0 // steps - 1, n, d0 + d] = cells[n * _CELL + _H + d]
                _read_scalars(bm, b, blocks[k, 2], t0, count, size, b_values)
                _read_scalars(cm, b, blocks[k, 3], t0, count, size, c_values)
                _prepare(b, t0, count, d0, width, u, delta, bias, softplus, rows, 3 * LANES)
                _advance(count, size, weight.size > 0, rows, cells, b_values, c_values)
                _finish(b, t0, count, d0, width, u, z, skip, rows, out)
            for n in range(size if last.size else 0):
                for d in range(width):
                    last[b, n, d0 + d] = cells[n * _CELL + _H + d]


@_jit()
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
            s = _sigmoid(gate[d])
            target[d] = row[_DY + d] * row[_Y + d] * s * (_ONE + gate[d] * (_ONE - s))
            row[_DY + d] *= gate[d] * s


@_jit()
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
                target[d] *= _sigmoid(raw[d] + (bias[d0 + d] if bias.size else _ZERO))
        if bias.size:
            total = sums[1, d0 : d0 + width]
            for d in range(width):
                total[d] += target[d]


@_jit()
def _backward_worker(
    worker, workers, segments, blocks, steps, strides, u, delta, bm, cm, z, a, weight, skip, bias, softplus,
    grad, grad_strides, states, need_b, need_c, du, ddelta, dz, db, dc, sums, scratch,
):  # fmt: skip
    """Backward pass of one worker's share; db and dc have one layer per segment, `sums` one per worker."""
    size, length, batch = a.shape[0], du.shape[1], du.shape[0]
    u, delta, z, grad = (u, strides[0]), (delta, strides[1]), (z, strides[4]), (grad, grad_strides)
    bm, cm = (bm, strides[2]), (cm, strides[3])
    room = scratch[worker]
    rows, room = room[: steps * 7 * LANES], room[steps * 7 * LANES :]
    cells, room = room[: size * _CELL], room[size * _CELL :]
    b_values, room = room[: steps * size], room[steps * size :]
    c_values, history = room[: steps * size], room[steps * size :]
    own = sums[worker]
    for item in range(batch * segments * worker // workers, batch * segments * (worker + 1) // workers):
        b, segment = item // segments, item % segments
        for k in range(len(blocks) * segment // segments, len(blocks) * (segment + 1) // segments):
            d0, width, group_b, group_c = blocks[k]
            rows[:] = _ZERO
            _load_cells(a, weight, d0, width, cells)
            for chunk in range((length - 1) // steps, -1, -1):
                t0 = chunk * steps
                count = min(steps, length - t0)
                for n in range(size):
                    for d in range(width):
                        cells[n * _CELL + _H + d] = states[b, chunk - 1, n, d0 + d] if chunk else _ZERO
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
                    own[n, d0 + d] += cells[n * _CELL + _DA + d]
                if weight.size:
                    for d in range(width):
                        own[size + n, d0 + d] += cells[n * _CELL + _DW + d]


@_jit(parallel=True)
def _run_forward(workers, arguments):
    for worker in numba.prange(workers):
        _forward_worker(worker, workers, *arguments)


@_jit(parallel=True)
def _run_backward(workers, arguments):
    for worker in numba.prange(workers):
        _backward_worker(worker, workers, *arguments)


# ----------------------------------------------------------------------------------------------------- plan and threads
def scan_threads():
    """Threads the next scan may use: torch's count, at most Numba's; 1 in a forked child, where OpenMP must not run."""
    if os.getpid() != _PID:
        return 1
    return max(1, min(torch.get_num_threads(), numba.get_num_threads()))


def set_numba_threads(n):
    """Set Numba's thread count to n, at least 1 and at most what Numba was started with; returns the count set."""
    n = max(1, min(int(n), numba.config.NUMBA_NUM_THREADS))
    numba.set_num_threads(n)
    return n


@dataclass(frozen=True)
class Plan:
    """How one scan is cut up, and the shape of every buffer beyond its inputs, outputs and gradients.

    A work item is one batch row × one of `segments` runs of channel blocks. Blocks never cross the border of a group.
    Channels are segmented only where the batch alone would leave threads idle, because every segment beyond the first
    needs partial sums of dB and dC of its own.
    """

    batch: int
    length: int
    channels: int
    size: int  # N
    groups_b: int = 1
    groups_c: int = 1
    threads: int = 1
    weighted: bool = False  # constant B or C, see `scan_cpu`

    @property
    def blocks(self):
        """(blocks, 4) int64: first channel, width, group of B, group of C."""
        per_b, per_c = self.channels // self.groups_b, self.channels // self.groups_c
        run = math.gcd(per_b, per_c)
        return np.array(
            [
                (d, min(LANES, end - d), d // per_b, d // per_c)
                for end in range(run, self.channels + 1, run)
                for d in range(end - run, end, LANES)
            ],
            dtype=np.int64,
        )

    @property
    def segments(self):
        """1 if the batch keeps all threads busy, else the fewest segments that do (at most one per LANES channels)."""
        if self.batch % self.threads == 0 or self.batch >= 4 * self.threads:
            return 1
        most = max(1, self.channels // LANES)
        return min(most, self.threads // math.gcd(self.batch, self.threads))

    @property
    def workers(self):
        return max(1, min(self.threads, self.batch * self.segments))

    @property
    def states_shape(self):
        """h at the start of every chunk but the first."""
        return self.batch, (self.length - 1) // STEPS, self.size, self.channels

    def scratch_shape(self, direction):
        """One row per worker, see `_forward_worker` and `_backward_worker` for its parts."""
        floats = STEPS * _ROW[direction] + self.size * _CELL + 2 * STEPS * self.size
        if direction == "backward":
            floats += STEPS * self.size * 2 * LANES
        return self.workers, floats

    @property
    def sums_shape(self):
        """Per worker: N rows for dA, N for the weight's gradient if there is one, one for dD, one for d(delta_bias)."""
        return self.workers, self.size * 2 + 2, self.channels

    def partial_shape(self, groups):
        """dB or dC, one layer per segment."""
        return self.segments, self.batch, groups, self.length * self.size

    @property
    def extra_bytes(self):
        """Peak bytes of forward plus backward beyond inputs, outputs and gradients: states and the larger scratch."""
        partial = sum(math.prod(self.partial_shape(g)) for g in (self.groups_b, self.groups_c))
        backward = math.prod(self.scratch_shape("backward")) + math.prod(self.sums_shape)
        backward += partial * (self.segments - 1) // self.segments  # one layer becomes the gradient itself
        forward = math.prod(self.scratch_shape("forward"))
        return 4 * (math.prod(self.states_shape) + max(forward, backward))


class _Announce(event.Listener):
    """Says on stderr that Numba compiles; a kernel found in the disk cache fires no such event."""

    said = False

    def on_start(self, event):
        if not _Announce.said:
            _Announce.said = True
            print("mambanorm: compiling the CPU scan, once (about 20 s) …", file=sys.stderr, flush=True)

    def on_end(self, event):
        pass


@contextmanager
def _announced(kernel):
    if kernel.signatures:
        yield
    else:
        with event.install_listener("numba:compile", _Announce()):
            yield


def _run(parallel, serial, workers, arguments):
    """Start a kernel. One at a time: Numba's simplest threading layer does not survive concurrent calls."""
    with _LOCK:
        if workers == 1:
            with _announced(serial):
                serial(0, 1, *arguments)
        else:
            with _announced(parallel):
                parallel(workers, arguments)


# ----------------------------------------------------------------------------------------------------------- torch side
_EMPTY = torch.empty(0)


def _flat(tensor):
    """The memory a tensor spans, first to last element, as a 1-D NumPy array (no copy)."""
    if tensor.numel() == 0:
        return _EMPTY.numpy()
    span = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.detach().as_strided((span,), (1,)).numpy()


def _strides(*tensors):
    """Strides as (tensors, 4) int64. Kernels take flat memory and strides: one compiled variant for every layout."""
    return np.array([(tuple(t.stride()) + (0,) * 4)[:4] for t in tensors], dtype=np.int64)


def _vector(tensor):
    return _flat(_EMPTY if tensor is None else tensor.contiguous())


def _common(plan, u, delta, A, B, C, weight, D, z, bias, softplus):
    """The arguments that both kernels share, as NumPy views."""
    scaled = (A.detach().t() * float(_LOG2E)).contiguous().numpy()  # (N, D); the kernel computes powers of two
    weight = (_EMPTY.view(0, 0) if weight is None else weight.detach().contiguous()).numpy()
    strided = (u, delta, B, C, _EMPTY if z is None else z)
    return (
        plan.segments, plan.blocks, STEPS, _strides(*strided), *map(_flat, strided),
        scaled, weight, _vector(D), _vector(bias), softplus,
    )  # fmt: skip


class _Scan(torch.autograd.Function):
    """u, delta, z (B, L, D) with contiguous channels, B and C (B, G, N, L), weight (N, D) or None, all float32."""

    @staticmethod
    def forward(ctx, keep, want_last, softplus, u, delta, A, B, C, weight, D, z, bias):
        batch, length, channels = u.shape
        plan = Plan(batch, length, channels, A.shape[1], B.shape[1], C.shape[1], scan_threads(), weight is not None)
        out = torch.empty(batch, length, channels)
        last = torch.empty(batch, A.shape[1], channels if want_last else 0)
        states = torch.empty(plan.states_shape if keep else 0).view(batch, -1, A.shape[1], channels)
        outputs = tuple(t.numpy() for t in (out, last, states, torch.empty(plan.scratch_shape("forward"))))
        common = _common(plan, u, delta, A, B, C, weight, D, z, bias, softplus)
        _run(_run_forward, _forward_worker, plan.workers, (*common, *outputs))
        if keep:
            ctx.save_for_backward(u, delta, A, B, C, weight, D, z, bias, states)
            ctx.plan, ctx.softplus = plan, softplus
        ctx.mark_non_differentiable(last)
        return out, last

    @staticmethod
    def backward(ctx, grad, grad_last):
        if torch.is_grad_enabled() and not grad.requires_grad:
            # once_differentiable refuses only where the incoming gradient has a graph; without this, a second
            # derivative of a loss linear in the result would silently miss the scan
            grad = grad.detach().requires_grad_()
        return _Scan.once(ctx, grad, grad_last)

    @staticmethod
    @once_differentiable
    def once(ctx, grad, _):
        u, delta, A, B, C, weight, D, z, bias, states = ctx.saved_tensors
        plan, size, need = ctx.plan, A.shape[1], ctx.needs_input_grad
        grad = grad if grad.stride(2) == 1 or grad.shape[2] == 1 else grad.contiguous()
        common = _common(plan, u, delta, A, B, C, weight, D, z, bias, ctx.softplus)
        du, ddelta = torch.empty(u.shape), torch.empty(u.shape)
        dz = torch.empty(u.shape if z is not None else (0, 0, 0))
        db, dc = (torch.zeros(plan.partial_shape(m.shape[1])) for m in (B, C))
        sums = torch.zeros(plan.sums_shape)
        scratch = torch.empty(plan.scratch_shape("backward"))
        outputs = tuple(t.numpy() for t in (du, ddelta, dz, db, dc, sums, scratch))
        arguments = (*common, _flat(grad), _strides(grad)[0], states.numpy(), need[6], need[7], *outputs)
        _run(_run_backward, _backward_worker, plan.workers, arguments)
        db, dc = (_join(part, m, size) if flag else None for part, m, flag in ((db, B, need[6]), (dc, C, need[7])))
        sums = sums.sum(0) if plan.workers > 1 else sums[0]
        result = [du, ddelta, sums[:size].t(), db, dc, sums[size : 2 * size], sums[2 * size], dz, sums[2 * size + 1]]
        return None, None, None, *(value if flag else None for value, flag in zip(result, need[3:], strict=True))


def _join(partial, like, size):
    """Add the segments' partial sums: (S, B, G, L·N) -> (B, G, N, L), a view of (B, G, L, N)."""
    total = partial.sum(0) if len(partial) > 1 else partial[0]
    return total.view(like.shape[0], like.shape[1], -1, size).transpose(2, 3)


def _channels_last(x):
    """(B, D, L) to float32 (B, L, D) with contiguous channels; a transposed view of such a tensor is taken as it is."""
    x = x.transpose(1, 2).float()
    return x if x.stride(2) == 1 or x.shape[2] == 1 else x.contiguous()


def _per_step(m, batch, length):
    """B or C as (B, G, N, L) without a copy; a constant one, (D, N), becomes ones and goes to the weight instead."""
    if m.dim() == 2:
        return torch.ones(1, 1, 1, 1).expand(batch, 1, m.shape[1], length)
    return (m.unsqueeze(1) if m.dim() == 3 else m).float()


def scan_cpu(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, want_last=True):
    """The scan with the Numba kernel; arguments as `selective_scan`, already checked.

    Constant B (D, N) factors out of the state, h = B·g with g driven by 1, so y = Σ_n W·C_t·g with the weight W = B
    (times C, if that is constant too): one kernel serves all forms. Where g overflows although B·g would not, the
    result is inf or NaN.

    Returns out (B, D, L) in u's dtype, a transposed view of a contiguous (B, L, D) tensor, and last_state (B, D, N)
    in float32, without gradient (None unless wanted). Differentiable once, in every floating-point argument.
    """
    constants = [m.float() for m in (B, C) if m.dim() == 2]
    weight = math.prod(constants[1:], start=constants[0]).t() if constants else None  # (N, D)
    rows = [None if x is None else _channels_last(x) for x in (u, delta, z)]
    vectors = [None if x is None else x.float() for x in (D, delta_bias)]
    per_step = [_per_step(m, u.shape[0], u.shape[2]) for m in (B, C)]
    tensors = (*rows[:2], A.float(), *per_step, weight, vectors[0], rows[2], vectors[1])
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    out, last = _Scan.apply(keep, bool(want_last), bool(delta_softplus), *tensors)
    if not want_last:
        return out.transpose(1, 2).to(u.dtype), None
    last = last.transpose(1, 2)
    if B.dim() == 2:
        last = last * B.detach().float()
    return out.transpose(1, 2).to(u.dtype), last
