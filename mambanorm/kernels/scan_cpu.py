"""The selective scan on the CPU: one fused Numba kernel each for forward and backward, in float32.

    Plan                                    cuts the work and sizes every buffer
    Inputs, scan_forward, scan_backward     tensors in the kernel's layout; the two passes over them
    scan_cpu, low_rank_scan_cpu             the scan in mamba-ssm's layout; that of a block, with Δ's projection inside

The kernels themselves are in `scan_cpu_loops.py` beside it. The readable twins are `operations/reference.py` and the
last lines of `low_rank_scan` in operations/scan.py.

How it works. The channel axis is contiguous, so the inner loop runs over a block of `LANES` channels while B and C are
scalars of that loop; h of the block stays in the first-level cache. Nothing of size B·L·D·N is stored: the forward pass
keeps h every `STEPS` steps, and the backward pass goes from the last chunk to the first and recomputes the inside of
a chunk in a small buffer per worker. Two state indices go through the loops together, which halves the traffic between
registers and cache; where every state decays, the exponential needs no guard against overflow. Every worker owns a
fixed range of work and its own partial sums, added up in a fixed order: the same inputs with the same number of threads
give the same bits.

Glossary: operations/__init__.py; here D channels, R rank of Δ's projection. Row: all channels of one step.
Source: Gu & Dao 2023, "Mamba", section 3.3 and algorithm 2; storing chunk starts and recomputing is section 3.3.2.
"""

import functools
import math
from dataclasses import dataclass
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


@functools.lru_cache(maxsize=256)
def _plan_for(*fields):
    """The plan with these fields, made once."""
    return Plan(*fields)


@dataclass(frozen=True)
class Plan:
    """How one scan is cut up, and the shapes of the buffers whose size depends on that.

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
    rank: int = 0  # R where delta is given as R numbers a step, see `Inputs`
    decaying: bool = False  # every state decays: the kernels leave out what only a growing one needs

    @functools.cached_property
    def numbers(self):
        """What the kernels need to know of the shapes, and what they may leave out."""
        sizes = self.batch, self.length, self.channels, self.size, self.rank
        return self.segments, STEPS, *sizes, self.decaying

    @functools.cached_property
    def blocks(self):
        """(blocks, 4) int64: first channel, width, group of B, group of C."""
        per_b, per_c = self.channels // self.groups_b, self.channels // self.groups_c
        run = math.gcd(per_b, per_c)
        return _rows(
            (d, min(LANES, end - d), d // per_b, d // per_c)
            for end in range(run, self.channels + 1, run)
            for d in range(end - run, end, LANES)
        )

    @functools.cached_property
    def segments(self):
        """1 if the batch keeps all threads busy, else the fewest segments that do (at most one per LANES channels)."""
        if self.batch % self.threads == 0 or self.batch >= 4 * self.threads:
            return 1
        most = max(1, self.channels // LANES)
        return min(most, self.threads // math.gcd(self.batch, self.threads))

    @functools.cached_property
    def workers(self):
        return max(1, min(self.threads, self.batch * self.segments))

    @property
    def states_shape(self):
        """h at the start of every chunk but the first."""
        return self.batch, (self.length - 1) // STEPS, self.size, self.channels

    @functools.cached_property
    def scratch_shapes(self):
        """By direction: one row per worker, whose parts the two passes in scan_cpu_loops.py name."""
        floats = scan_cpu_loops.scratch_floats
        return {d: (self.workers, floats(d, STEPS, self.size, self.rank)) for d in ("forward", "backward")}


# ----------------------------------------------------------------------------------------------------------- torch side
@functools.lru_cache(maxsize=256)
def _rows_of_four(strides):
    """Strides as the kernels take them, beside flat memory: one compiled variant for every layout. Made once."""
    return _rows((*row, 0, 0, 0, 0)[:4] for row in strides)


def _powers_of(A):
    """A·log2(e), (D, N) → (N, D) in order: the kernels compute powers of two."""
    return (A.detach().t() * float(scan_cpu_loops.LOG2E)).contiguous()


class Inputs(NamedTuple):
    """What a scan takes, in the kernel's layout: float32, (B, L, …) with contiguous channels.

    `delta` is (B, L, D), or (B, G, R, L) beside its weight `low` (R, D): then Δ's projection is part of the kernel, and
    each group of B and C has R numbers of its own.
    """

    u: Tensor  # (B, L, D)
    delta: Tensor
    powers: Tensor  # (N, D), `_powers_of` A
    B: Tensor  # (B, G, N, L)
    C: Tensor
    low: Tensor | None
    D: Tensor | None
    bias: Tensor | None
    softplus: bool = True

    def plan(self, decaying):
        """How to cut the scan; `decaying`: whether A and softplus leave no state that could grow."""
        rank = 0 if self.low is None else len(self.low)
        groups = self.B.shape[1], self.C.shape[1]
        return _plan_for(*self.u.shape, len(self.powers), *groups, scan_threads(), rank, decaying)

    def strided(self):
        """What comes in any layout."""
        return [self.u, self.delta, self.B, self.C]

    def strides(self):
        """Those of `strided`; Δ's R numbers of a step as (B, L, R, G)."""
        by_row, by_group, by_rank, by_step = (*self.delta.stride(), 0)[:4]
        delta = self.delta.stride() if self.low is None else (by_row, by_step, by_rank, by_group)
        return self.u.stride(), delta, self.B.stride(), self.C.stride()

    def ordered(self):
        """What the kernel reads in order: the powers and the parameters."""
        tensors = self.powers, self.low, self.D, self.bias
        return [EMPTY if t is None else t.contiguous() for t in tensors]


def scan_forward(inputs, plan, keep, want_last):
    """Runs the forward kernel: out (B, L, D), last (B, N, D) or None, states for the backward pass or empty."""
    out = empty(inputs.u.shape)
    last = empty(plan.batch, plan.size, plan.channels) if want_last else EMPTY
    states = empty(plan.states_shape) if keep else EMPTY
    scratch, strides = empty(plan.scratch_shapes["forward"]), _rows_of_four(inputs.strides())
    tensors = [*inputs.strided(), *inputs.ordered(), scratch, plan.blocks, strides, out, last, states]
    run(scan_cpu_loops.forward, plan.workers, (*plan.numbers, inputs.softplus), tensors)
    return out, last if want_last else None, states


def scan_backward(inputs, plan, grad, states):
    """Runs the backward kernel: the gradients of u, delta, A, B, C, low, D and bias, in their shapes; empty where there
    is no such input. With `low` those of delta, B and C are views of one tensor, group after group, as one product a
    group made the three.
    """
    size, batch, length, segments = plan.size, plan.batch, plan.length, plan.segments
    grad = grad if grad.stride(2) == 1 or grad.shape[2] == 1 else grad.contiguous()
    du = empty(inputs.u.shape)
    if plan.rank:
        own = plan.rank + 2 * size
        width = plan.groups_b * own
        joint = zeros(segments, batch, length, width)
        ddelta, db, dc = joint, joint[..., plan.rank :], joint[..., plan.rank + size :]
        layers = ((length * width, own, width),) * 3
    else:
        ddelta = empty(1, batch, length, plan.channels)
        db, dc = (zeros(segments, batch, m.shape[1], length, size) for m in (inputs.B, inputs.C))  # a layer a segment
        layers = (), *((m.shape[1] * length * size, length * size, size) for m in (inputs.B, inputs.C))
    sums = zeros(plan.workers, size + 2 + plan.rank, plan.channels)  # N rows for dA, dD, d(delta_bias), R for low
    scratch = empty(plan.scratch_shapes["backward"])
    strides = _rows_of_four((*inputs.strides(), grad.stride(), *layers))
    given = [*inputs.strided(), *inputs.ordered(), scratch, plan.blocks, strides, grad, states]
    run(scan_cpu_loops.backward, plan.workers, (*plan.numbers, inputs.softplus), [*given, du, ddelta, db, dc, sums])
    ddelta, sums = added_up(ddelta), added_up(sums)
    if plan.rank:
        joint = ddelta.unflatten(2, (plan.groups_b, -1)).permute(0, 2, 3, 1)  # (B, G, R + 2·N, L)
        ddelta, db, dc = joint.split_with_sizes([plan.rank, size, size], 2)
    else:
        db, dc = (added_up(d).transpose(2, 3) for d in (db, dc))  # (B, G, N, L)
    dA, dD, dbias, dlow = sums.split_with_sizes([size, 1, 1, plan.rank])
    return du, ddelta, dA.t(), db, dc, dlow, dD.view(-1), dbias.view(-1)


class _Scan(torch.autograd.Function):
    """u, delta, A (D, N), B, C, low, D and bias as of `Inputs` (float32) → out (B, L, D) and, if wanted, the last state
    (B, N, D)."""

    @staticmethod
    def forward(ctx, keep, want_last, softplus, u, delta, A, B, C, low, D, bias):
        inputs = Inputs(u, delta, _powers_of(A), B, C, low, D, bias, softplus)
        decaying = low is not None or (
            bool((inputs.powers <= 0).all()) and (softplus or (bias is None and bool(delta.min() >= 0)))
        )
        ctx.plan, ctx.softplus = inputs.plan(decaying), softplus
        out, last, states = scan_forward(inputs, ctx.plan, keep, want_last)
        if keep:
            ctx.save_for_backward(*inputs[:-1], states)
        if want_last:
            ctx.mark_non_differentiable(last)
        return out, last

    @staticmethod
    @backward_once
    def backward(ctx, grad, _):
        *tensors, states = ctx.saved_tensors
        grads = scan_backward(Inputs(*tensors, ctx.softplus), ctx.plan, grad, states)
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
    """The scan with the Numba kernel; arguments as `selective_scan`, already checked; B and C vary along L.

    Returns out (B, D, L) in u's dtype, a transposed view of a contiguous (B, L, D) tensor, and last_state (B, D, N)
    in float32, without gradient (None unless wanted). Differentiable once, in every floating-point argument.
    """
    B, C = ((m.unsqueeze(1) if m.dim() == 3 else m).float() for m in (B, C))  # (B, G, N, L)
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
