"""The selective scan on the CPU: one fused Numba kernel each for forward and backward, in float32.

The kernels themselves are in `scan_cpu_loops.py` beside it. The readable twins are `operations/reference.py` and the
last lines of `low_rank_scan` in operations/scan.py.

How it works. The channel axis is contiguous, so the inner loop runs over a block of `LANES` channels while B and C are
scalars of that loop; h of the block stays in the first-level cache. Nothing of size B·L·D·N is stored: the forward pass
keeps h every `STEPS` steps, and the backward pass goes from the last chunk to the first and recomputes the inside of
a chunk in a small buffer per worker. Two state indices go through the loops together, which halves the traffic between
registers and cache; every state decays, so the exponential needs no guard against overflow. Every worker owns a
fixed range of rows of the batch and its own partial sums, added up in a fixed order: the same inputs with the same
number of threads give the same bits.

Glossary: operations/__init__.py; here D channels, R rank of Δ's projection. Row: all channels of one step.
Source: Gu & Dao 2023, "Mamba", section 3.3 and algorithm 2; storing chunk starts and recomputing is section 3.3.2.
"""

import functools
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mambanorm.kernels import backward_once, scan_cpu_loops
from mambanorm.kernels.runtime import EMPTY, LANES, added_up, empty, run, zeros
from mambanorm.kernels.threads import scan_threads

STEPS = 44  # steps per chunk: stored states cost 1/STEPS of B·L·D·N, the per-worker buffers grow with STEPS


def _rows(numbers):
    """Rows of whole numbers as a kernel takes them, (rows, columns) int64."""
    return torch.from_numpy(np.array([*numbers], dtype=np.int64))


class Cut(NamedTuple):
    """How one scan is cut up, and the shapes of the buffers whose size depends on that."""

    workers: int
    """Each takes some rows of the batch."""
    numbers: tuple[int, ...]
    """What the kernels need to know of the shapes: steps of a chunk, B, L, D, N, R."""
    blocks: Tensor
    """(blocks, 3): first channel, width, group of B and C. Blocks never cross the border of a group."""
    states: tuple[int, ...]
    """The shape of h at the start of every chunk but the first."""
    scratch: dict[str, tuple[int, int]]
    """By direction: one row per worker, whose parts the two passes in scan_cpu_loops.py name."""


@functools.lru_cache(maxsize=256)
def cut(batch, length, channels, size, groups, rank, threads):
    """How to cut a scan of these sizes; `rank`: R where delta is given as R numbers a step, else 0. Made once."""
    per_group, workers = channels // groups, min(threads, batch)
    blocks = _rows(
        (d, min(LANES, start + per_group - d), start // per_group)
        for start in range(0, channels, per_group)
        for d in range(start, start + per_group, LANES)
    )
    floats = {way: scan_cpu_loops.scratch_floats(way, STEPS, size, rank) for way in ("forward", "backward")}
    return Cut(
        workers,
        (STEPS, batch, length, channels, size, rank),
        blocks,
        (batch, (length - 1) // STEPS, size, channels),
        {way: (workers, count) for way, count in floats.items()},
    )


# ----------------------------------------------------------------------------------------------------------- torch side
@functools.lru_cache(maxsize=256)
def _rows_of_four(*strides):
    """Strides as the kernels take them, beside flat memory: one compiled variant for every layout. Made once."""
    return _rows((*row, 0, 0, 0, 0)[:4] for row in strides)


class _Scan(torch.autograd.Function):
    """u (B, L, D), delta, A (D, N), B and C (B, G, N, L), low, D and bias, float32 with contiguous channels → out
    (B, L, D) and, if wanted, the last state (B, N, D). A state must not grow.

    `delta` is (B, L, D), or (B, G, R, L) beside its weight `low` (R, D): then Δ's projection is part of the kernel, and
    each group of B and C has R numbers of its own.
    """

    @staticmethod
    def forward(ctx, keep, want_last, softplus, u, delta, A, B, C, low, D, bias):
        rank, size = 0 if low is None else len(low), A.shape[1]
        plan = cut(*u.shape, size, B.shape[1], rank, scan_threads())
        powers = (A.t() * float(scan_cpu_loops.LOG2E)).contiguous()  # (N, D): the kernels compute powers of two
        given = [u, delta, B, C, *(EMPTY if t is None else t.contiguous() for t in (powers, low, D, bias))]
        by_row, by_group, by_rank, by_step = (*delta.stride(), 0)[:4]
        of_delta = (by_row, by_step, by_rank, by_group) if rank else delta.stride()
        strides = u.stride(), of_delta, B.stride(), C.stride()
        out, last = empty(u.shape), empty(len(u), size, u.shape[2]) if want_last else EMPTY
        states = empty(plan.states) if keep else EMPTY
        used = [*given, empty(plan.scratch["forward"]), plan.blocks, _rows_of_four(*strides), out, last, states]
        run(scan_cpu_loops.forward, plan.workers, (*plan.numbers, softplus), used)
        ctx.plan, ctx.softplus, ctx.strides = plan, softplus, strides
        if keep:
            ctx.save_for_backward(*given, states)
        if want_last:
            ctx.mark_non_differentiable(last)
        return out, last if want_last else None

    @staticmethod
    @backward_once
    def backward(ctx, grad, _):
        """With `low` the gradients of delta, B and C are views of one tensor, group after group, as one product a group
        made the three."""
        *given, states = ctx.saved_tensors
        (_, batch, length, channels, size, rank), groups = ctx.plan.numbers, given[2].shape[1]
        grad = grad if grad.stride(2) == 1 or channels == 1 else grad.contiguous()
        du = empty(batch, length, channels)
        if rank:
            own = rank + 2 * size
            joint = ddelta = zeros(batch, length, groups * own)
            db, dc = joint[..., rank:], joint[..., rank + size :]
            layers = ((length * groups * own, own, groups * own),) * 3
        else:
            ddelta = empty(batch, length, channels)
            db, dc = (zeros(batch, groups, length, size) for _ in "BC")
            layers = (), *((groups * length * size, length * size, size) for _ in "BC")
        sums = zeros(ctx.plan.workers, size + 2 + rank, channels)  # N rows for dA, dD, d(delta_bias), R for low
        strides = _rows_of_four(*ctx.strides, grad.stride(), *layers)
        used = [*given, empty(ctx.plan.scratch["backward"]), ctx.plan.blocks, strides, grad, states]
        made = du, ddelta, db, dc, sums
        run(scan_cpu_loops.backward, ctx.plan.workers, (*ctx.plan.numbers, ctx.softplus), [*used, *made])
        if rank:
            joint = joint.unflatten(2, (groups, -1)).permute(0, 2, 3, 1)  # (B, G, R + 2·N, L)
            ddelta, db, dc = joint.split_with_sizes([rank, size, size], 2)
        else:
            db, dc = db.transpose(2, 3), dc.transpose(2, 3)  # (B, G, N, L)
        dA, dD, dbias, dlow = added_up(sums).split_with_sizes([size, 1, 1, rank])
        grads = du, ddelta, dA.t(), db, dc, dlow, dD.view(-1), dbias.view(-1)
        asked = zip(grads, ctx.needs_input_grad[3:], strict=True)
        return None, None, None, *(g if flag else None for g, flag in asked)


def _scan(tensors, softplus, want_last):
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    out, last = _Scan.apply(keep, bool(want_last), bool(softplus), *tensors)
    return out, None if last is None else last.transpose(1, 2)


def _channels_last(x):
    """(B, D, L) to float32 (B, L, D) with contiguous channels; a transposed view of such a tensor is taken as it is."""
    x = x.transpose(1, 2).float()
    return x if x.stride(2) == 1 or x.shape[2] == 1 else x.contiguous()


def scan_cpu(u, delta, A, B, C, D=None, delta_bias=None, delta_softplus=False, want_last=True):
    """The scan with the Numba kernel; arguments as `selective_scan`, already checked: B and C vary along L, and no
    state grows.

    Returns out (B, D, L) in u's dtype, a transposed view of a contiguous (B, L, D) tensor, and last_state (B, D, N)
    in float32, without gradient (None unless wanted). Differentiable once, in every floating-point argument.
    """
    B, C = ((m.unsqueeze(1) if m.dim() == 3 else m).float() for m in (B, C))  # (B, G, N, L)
    groups = math.lcm(B.shape[1], C.shape[1])
    B, C = (m if m.shape[1] == groups else m.repeat_interleave(groups // m.shape[1], 1) for m in (B, C))
    D, bias = (None if x is None else x.float() for x in (D, delta_bias))
    tensors = _channels_last(u), _channels_last(delta), A.float(), B, C, None, D, bias
    out, last = _scan(tensors, delta_softplus, want_last)
    return out.transpose(1, 2).to(u.dtype), last


def low_rank_scan_cpu(u, dt, B, C, dt_weight, dt_bias, A_log, D, want_last=False):
    """As `low_rank_scan`, for float32 on the CPU: y (B, L, E) and, if wanted, the last state (B, E, N) or None.
    Δ = softplus(dt·Wᵀ + bias) is never stored. Differentiable once; the last state carries no gradient."""
    dt, B, C = (part.permute(0, 2, 3, 1) for part in (dt, B, C))  # (B, G, ·, L)
    tensors = u.contiguous(), dt, -torch.exp(A_log), B, C, dt_weight.t().contiguous(), D, dt_bias
    return _scan(tensors, True, want_last)
