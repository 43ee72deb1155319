"""The two kernels of the scan in Triton, forward and backward: one program for each batch row and block of channels.

What they are made of is in `mambanorm/kernels/scan_triton_parts.py`. What starts them is in
`mambanorm/kernels/scan_triton.py`, with the glossary, the source and the reasons for the design.
"""

import triton
import triton.language as tl

from mambanorm.kernels.scan_triton_parts import (
    load,
    load_columns,
    load_constant,
    load_once,
    load_rows,
    load_tile,
    only,
    place_of,
    sigmoid,
    store,
    walk,
    walk_back,
)


@triton.jit
def forward_kernel(
    u, delta, low, A, B, C, D, z, bias, out, states, last, cut,
    SOFTPLUS: tl.constexpr, LOG_A: tl.constexpr, PADDED: tl.constexpr, N: tl.constexpr, R: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, RANKS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """out (B, L, D); h at the start of every chunk in `states` (B, chunks, N, D), at the end in `last` (B, D, N).

    low, D, z, bias, states and last may be None. With `low` (D, R), Δ is `low` times what `delta` (B, G, R, L) holds.
    """
    row, first, d, inside = place_of(cut, BLOCK)
    n, step = tl.arange(0, LANES).to(tl.int64), tl.arange(0, TILE)[:, None, None]
    cells = inside[None, :] & (n < N)[:, None]  # (LANES, BLOCK)
    matrix = d[None, :] * N + n[:, None]  # places in a (D, N) matrix
    rate, weight, skip, shift = load_once(low, A, D, bias, d, n, inside, LOG_A, PADDED, N, R, RANKS)
    b_constant, c_constant = load_constant(B, matrix, cells, PADDED), load_constant(C, matrix, cells, PADDED)

    h = tl.zeros((LANES, BLOCK), tl.float32)
    for tile in tl.range(0, cut.tiles, num_stages=STAGES):
        t = tl.cast(tile, tl.int64) * TILE + tl.arange(0, TILE)
        there = t < cut.length
        rows = there[:, None] & inside[None, :]
        x, _, _, _, _, a, drive = load_tile(
            u, delta, low, B, bias, rate, weight, b_constant, shift, cut, row, first, t, d, n, inside,
            SOFTPLUS, PADDED, N, R, RANKS,
        )  # fmt: skip
        c = load_columns(C, c_constant, row, first // cut.per_c, t, n, there[:, None] & (n < N)[None, :], PADDED)
        if z is not None:
            gate = load_rows(z, row, t, d, rows, PADDED)
        if states is not None:  # noqa: SIM102, one is decided by the compiler, the other by the device
            if tile % cut.chunk == 0:
                chunk = row * ((cut.tiles + cut.chunk - 1) // cut.chunk) + tile // cut.chunk
                store(states + (chunk * N + n[:, None]) * cut.channels + d[None, :], h, cells, PADDED)
        before, h = walk(a, drive, h, step, TILE)
        y = tl.sum((a * before + drive) * c, 1)
        if D is not None:
            y += skip[None, :] * x
        if z is not None:
            y *= gate * sigmoid(gate)
        store(out + (row * cut.length + t[:, None]) * cut.channels + d[None, :], y, rows, PADDED)
    if last is not None:
        store(last + row * cut.channels * N + matrix, h, cells, PADDED)


@triton.jit
def backward_kernel(
    u, delta, low, A, B, C, D, z, bias, grad, states, scratch, du, ddelta, dz, dA, dlow, dB, dC, dD, dbias, cut,
    SOFTPLUS: tl.constexpr, LOG_A: tl.constexpr, PADDED: tl.constexpr, N: tl.constexpr, R: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, RANKS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """For each chunk, last to first: recomputes h at the start of its tiles into `scratch`, goes back tile by tile.

    With g = dL/dh_t:
    g = a_(t+1)·g_(t+1) + dy·C_t where a = exp(Δ·A),  dC_t = Σ_d dy·h_t,  dB_t = Σ_d g·Δ·u,  d(Δ·u) = Σ_n g·B_t,
    dΔ = Σ_n g·a·h_(t-1)·A + d(Δ·u)·u,  dA += g·a·h_(t-1)·Δ;  for Δ = low·narrow:  d narrow = Σ_d dΔ·low.

    scratch (programs, tiles of a chunk, LANES, BLOCK); du and, without `low`, ddelta (B, L, D); dz as `Rows`. Sums over
    a block's channels, (B, blocks, L, `cut.partial`): dB, dC and, with `low`, ddelta. Sums over steps, (B, `cut.sums`):
    dA (D, N), dlow (D, R), dbias and dD (D,), and dB or dC (D, N) of a constant. low, D, z, bias and what belongs to
    them, dB and dC may be None.
    """
    row, first, d, inside = place_of(cut, BLOCK)
    n, step = tl.arange(0, LANES).to(tl.int64), tl.arange(0, TILE)[:, None, None]
    cells = inside[None, :] & (n < N)[:, None]
    matrix = d[None, :] * N + n[:, None]
    rate, weight, skip, shift = load_once(low, A, D, bias, d, n, inside, LOG_A, PADDED, N, R, RANKS)
    b_constant, c_constant = load_constant(B, matrix, cells, PADDED), load_constant(C, matrix, cells, PADDED)
    r = tl.arange(0, RANKS)[:, None].to(tl.int64)
    program = row * tl.num_programs(1) + tl.program_id(1)
    kept = scratch + program * cut.chunk * (LANES * BLOCK) + n[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]

    g = tl.zeros((LANES, BLOCK), tl.float32)  # between two tiles a_(t+1)·g_(t+1)
    da, db, dc = g, g, g
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
                u, delta, low, B, bias, rate, weight, b_constant, shift, cut, row, first, t, d, n, inside,
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
                u, delta, low, B, bias, rate, weight, b_constant, shift, cut, row, first, t, d, n, inside,
                SOFTPLUS, PADDED, N, R, RANKS,
            )  # fmt: skip
            c = load_columns(C, c_constant, row, first // cut.per_c, t, n, columns, PADDED)
            dy = load_rows(grad, row, t, d, rows, PADDED)
            before, _ = walk(a, drive, tl.load(kept + tile * (LANES * BLOCK)), step, TILE)
            decayed = a * before
            here = decayed + drive
            if z is not None:
                gate = load_rows(z, row, t, d, rows, PADDED)
                s, y = sigmoid(gate), tl.sum(here * c, 1)
                if D is not None:
                    y += skip[None, :] * x
                dgate = dy * y * s * (1.0 + gate * (1.0 - s))
                store(dz.ptr + row * dz.batch + t[:, None] * dz.step + d[None, :] * dz.channel, dgate, rows, PADDED)
                dy *= gate * s

            place = (program * cut.length + t[:, None]) * cut.partial + n[None, :]
            for_c = only(dy[:, None, :] * here, alive, PADDED)
            if C.group is None:
                dc += tl.sum(for_c, 0)
            elif dC is not None:
                store(dC + place, tl.sum(for_c, 2), columns, PADDED)
            all_g, g = walk_back(a, only(dy[:, None, :] * c, alive, PADDED), g, step, TILE)
            for_b = all_g * (dt * x)[:, None, :]
            if B.group is None:
                db += tl.sum(for_b, 0)
            elif dB is not None:
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
    if LOG_A:
        da *= rate
    store(dA + sums + matrix, da, cells, PADDED)
    if low is not None:
        tl.store(dlow + sums + d[None, :] * R + r, dweight, mask=inside[None, :] & (r < R))
    if B.group is None and dB is not None:
        store(dB + sums + matrix, db, cells, PADDED)
    if C.group is None and dC is not None:
        store(dC + sums + matrix, dc, cells, PADDED)
    if bias is not None:
        store(dbias + sums + d, dshift, inside, PADDED)
    if D is not None:
        store(dD + sums + d, dskip, inside, PADDED)


INTERPRETED = not isinstance(forward_kernel, triton.JITFunction)  # TRITON_INTERPRET=1: in NumPy, on the CPU
