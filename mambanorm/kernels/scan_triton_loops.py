"""The kernels of the scan in Triton, forward and backward: any floating-point inputs, float32 inside.

Map of the file
---------------
1. `Rows`, `Steps`, `Cut`   what the kernels are given: memory with strides, and how the work is cut
2. `_softplus`, `_sigmoid`, `_place`   elementary functions; which channels a program has
3. `forward_kernel`, `backward_kernel`   one program each per batch row and block of channels, a loop over the steps

What starts them is in `mambanorm/kernels/scan_triton.py`, with the glossary and the source.

A program's tiles are (BLOCK, LANES): a block of channels, and N filled up to a power of two. Lanes beyond N or beyond
the block's channels are set to zero before they reach a sum: where an input is infinite, 0·∞ would make it NaN.
Steps and strides are multiplied in 64 bits, because B·L·D may exceed 2³¹.
"""

from typing import NamedTuple

import triton
import triton.language as tl


class Rows(NamedTuple):
    """A (B, D, L) tensor of any layout: its memory and its strides."""

    ptr: object
    batch: int
    channel: int
    step: int


class Steps(NamedTuple):
    """B or C: (B, G, N, L) and its strides. A constant is a contiguous (D, N); it has no group, and its step is 0."""

    ptr: object
    batch: int = 0
    group: int | None = None
    state: int = 0
    step: int = 0


class Cut(NamedTuple):
    """How the work is cut: blocks never cross the border of a `run` of channels that share one group of B and of C."""

    length: int
    chunk: int  # steps per chunk
    chunks: int
    channels: int
    run: int
    blocks: int  # per run
    per_b: int  # channels that share one group of B
    per_c: int


@triton.jit
def _softplus(x):
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
def _sigmoid(x):
    """1 / (1 + exp(-x)); the argument of exp is never positive, so nothing overflows."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, e) / (1.0 + e)


@triton.jit
def _place(cut, N: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr):
    """This program's batch row, first channel, channels (BLOCK,), state indices (LANES,); which channels, cells count.

    A cell is a place in the (BLOCK, LANES) tile.
    """
    block = tl.program_id(1)
    run = block // cut.blocks
    first = (run * cut.run + block % cut.blocks * BLOCK).to(tl.int64)
    d = first + tl.arange(0, BLOCK)
    inside = d < (run + 1) * cut.run
    n = tl.arange(0, LANES)
    cells = inside[:, None] & (n < N)[None, :]
    return tl.program_id(0).to(tl.int64), first, d, n.to(tl.int64), inside, cells


@triton.jit
def _columns(m, row, group, matrix, n, cells, N: tl.constexpr):
    """Pointers to B_t or C_t at step 0, and the mask of what counts: (1, LANES), or (BLOCK, LANES) for a constant."""
    if m.group is None:
        at = m.ptr + matrix
        counts = cells
    else:
        at = m.ptr + row * m.batch + group * m.group + (n * m.state)[None, :]
        counts = (n < N)[None, :]
    return at, counts


@triton.jit
def forward_kernel(
    u, delta, A, B, C, D, z, bias, out, states, last, cut,
    SOFTPLUS: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """out (B, L, D); h at the start of every chunk in `states` (B, chunks, D, N), at the end in `last` (B, D, N).

    D, z, bias, states and last may be None.
    """
    row, first, d, n, inside, cells = _place(cut, N, BLOCK, LANES)
    matrix = d[:, None] * N + n[None, :]  # places in a (D, N) matrix
    rate = tl.load(A + matrix, mask=cells, other=0.0)
    u_row = u.ptr + row * u.batch + d * u.channel
    delta_row = delta.ptr + row * delta.batch + d * delta.channel
    b_row, b_counts = _columns(B, row, first // cut.per_b, matrix, n, cells, N)
    c_row, c_counts = _columns(C, row, first // cut.per_c, matrix, n, cells, N)
    out_row = out + row * cut.length * cut.channels + d
    if bias is not None:
        shift = tl.load(bias + d, mask=inside, other=0.0)
    if D is not None:
        skip = tl.load(D + d, mask=inside, other=0.0)
    if z is not None:
        z_row = z.ptr + row * z.batch + d * z.channel

    h = tl.zeros((BLOCK, LANES), tl.float32)
    for chunk in range(0, cut.chunks):
        start = chunk * cut.chunk
        if states is not None:
            tl.store(states + (row * cut.chunks + chunk) * cut.channels * N + matrix, h, mask=cells)
        for step in range(start, tl.minimum(start + cut.chunk, cut.length)):
            t = tl.cast(step, tl.int64)
            x = tl.load(u_row + t * u.step, mask=inside, other=0.0).to(tl.float32)
            dt = tl.load(delta_row + t * delta.step, mask=inside, other=0.0).to(tl.float32)
            b = tl.load(b_row + t * B.step, mask=b_counts, other=0.0).to(tl.float32)
            c = tl.load(c_row + t * C.step, mask=c_counts, other=0.0).to(tl.float32)
            if bias is not None:
                dt += shift
            if SOFTPLUS:
                dt = _softplus(dt)
            h = tl.where(cells, tl.exp(dt[:, None] * rate) * h + (dt * x)[:, None] * b, 0.0)
            y = tl.sum(h * c, 1)
            if D is not None:
                y += skip * x
            if z is not None:
                gate = tl.load(z_row + t * z.step, mask=inside, other=0.0).to(tl.float32)
                y *= gate * _sigmoid(gate)
            tl.store(out_row + t * cut.channels, y, mask=inside)
    if last is not None:
        tl.store(last + row * cut.channels * N + matrix, h, mask=cells)


@triton.jit
def backward_kernel(
    u, delta, A, B, C, D, z, bias, grad, states, scratch, du, ddelta, dz, dA, dB, dC, dD, dbias, cut,
    SOFTPLUS: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """For each chunk, last to first: recomputes its states into `scratch`, then goes back in time. With g = dL/dh_t:

    g = a_(t+1)·g_(t+1) + dy·C_t where a = exp(Δ·A),  dC_t = Σ_d dy·h_t,  dB_t = Σ_d g·Δ·u,  d(Δ·u) = Σ_n g·B_t,
    dΔ = Σ_n g·a·h_(t-1)·A + d(Δ·u)·u,  dA += g·a·h_(t-1)·Δ.

    scratch (programs, chunk, BLOCK, LANES); du, ddelta, dz (B, L, D). Partial sums: dA (B, D, N), dD and dbias (B, D);
    dB and dC (B, blocks, L, N), or (B, D, N) if constant. D, z, bias and what belongs to them, dB and dC may be None.
    """
    row, first, d, n, inside, cells = _place(cut, N, BLOCK, LANES)
    matrix = d[:, None] * N + n[None, :]
    rate = tl.load(A + matrix, mask=cells, other=0.0)
    u_row = u.ptr + row * u.batch + d * u.channel
    delta_row = delta.ptr + row * delta.batch + d * delta.channel
    grad_row = grad.ptr + row * grad.batch + d * grad.channel
    b_row, b_counts = _columns(B, row, first // cut.per_b, matrix, n, cells, N)
    c_row, c_counts = _columns(C, row, first // cut.per_c, matrix, n, cells, N)
    if bias is not None:
        shift = tl.load(bias + d, mask=inside, other=0.0)
    if D is not None:
        skip = tl.load(D + d, mask=inside, other=0.0)
    if z is not None:
        z_row = z.ptr + row * z.batch + d * z.channel
    program = row * tl.num_programs(1) + tl.program_id(1)
    kept = scratch + program * cut.chunk * (BLOCK * LANES) + tl.arange(0, BLOCK)[:, None] * LANES + n[None, :]

    g = tl.zeros((BLOCK, LANES), tl.float32)  # between two steps a_(t+1)·g_(t+1)
    da, db, dc = g, g, g
    dskip = tl.zeros((BLOCK,), tl.float32)
    dshift = dskip
    for k in range(0, cut.chunks):
        chunk = cut.chunks - 1 - k
        start = chunk * cut.chunk
        end = tl.minimum(start + cut.chunk, cut.length)
        h = tl.load(states + (row * cut.chunks + chunk) * cut.channels * N + matrix, mask=cells, other=0.0)
        for step in range(start, end):
            t = tl.cast(step, tl.int64)
            tl.store(kept + (t - start) * (BLOCK * LANES), h)  # the state before the step
            x = tl.load(u_row + t * u.step, mask=inside, other=0.0).to(tl.float32)
            dt = tl.load(delta_row + t * delta.step, mask=inside, other=0.0).to(tl.float32)
            b = tl.load(b_row + t * B.step, mask=b_counts, other=0.0).to(tl.float32)
            if bias is not None:
                dt += shift
            if SOFTPLUS:
                dt = _softplus(dt)
            h = tl.exp(dt[:, None] * rate) * h + (dt * x)[:, None] * b
        tl.debug_barrier()  # what one thread has kept, another one loads
        for back in range(0, end - start):
            t = tl.cast(end - 1 - back, tl.int64)
            h = tl.load(kept + (t - start) * (BLOCK * LANES))
            x = tl.load(u_row + t * u.step, mask=inside, other=0.0).to(tl.float32)
            raw = tl.load(delta_row + t * delta.step, mask=inside, other=0.0).to(tl.float32)
            b = tl.load(b_row + t * B.step, mask=b_counts, other=0.0).to(tl.float32)
            c = tl.load(c_row + t * C.step, mask=c_counts, other=0.0).to(tl.float32)
            dy = tl.load(grad_row + t * grad.step, mask=inside, other=0.0).to(tl.float32)
            if bias is not None:
                raw += shift
            dt = raw
            if SOFTPLUS:
                dt = _softplus(raw)
            a, drive = tl.exp(dt[:, None] * rate), (dt * x)[:, None]
            decayed = tl.where(cells, a * h, 0.0)
            h = tl.where(cells, decayed + drive * b, 0.0)
            here = (row * cut.length + t) * cut.channels + d
            if z is not None:
                gate = tl.load(z_row + t * z.step, mask=inside, other=0.0).to(tl.float32)
                s, y = _sigmoid(gate), tl.sum(h * c, 1)
                if D is not None:
                    y += skip * x
                tl.store(dz + here, dy * y * s * (1.0 + gate * (1.0 - s)), mask=inside)
                dy *= gate * s

            g = tl.where(cells, g + dy[:, None] * c, 0.0)
            for_b, for_c, ga = g * drive, dy[:, None] * h, g * decayed
            if B.group is None:
                db += for_b
            elif dB is not None:
                tl.store(dB + (program * cut.length + t) * N + n, tl.sum(for_b, 0), mask=n < N)
            if C.group is None:
                dc += for_c
            elif dC is not None:
                tl.store(dC + (program * cut.length + t) * N + n, tl.sum(for_c, 0), mask=n < N)
            da += ga * dt[:, None]
            ddrive = tl.sum(g * b, 1)
            dx, ddt = ddrive * dt, tl.sum(ga * rate, 1) + ddrive * x
            if SOFTPLUS:
                ddt *= _sigmoid(raw)
            if D is not None:
                dx += dy * skip
                dskip += dy * x
            dshift += ddt
            tl.store(du + here, dx, mask=inside)
            tl.store(ddelta + here, ddt, mask=inside)
            g *= a
        tl.debug_barrier()  # before the next chunk overwrites what is kept

    matrix += row * cut.channels * N
    tl.store(dA + matrix, da, mask=cells)
    if B.group is None and dB is not None:
        tl.store(dB + matrix, db, mask=cells)
    if C.group is None and dC is not None:
        tl.store(dC + matrix, dc, mask=cells)
    if bias is not None:
        tl.store(dbias + row * cut.channels + d, dshift, mask=inside)
    if D is not None:
        tl.store(dD + row * cut.channels + d, dskip, mask=inside)


INTERPRETED = not isinstance(forward_kernel, triton.JITFunction)  # TRITON_INTERPRET=1: in NumPy, on the CPU
