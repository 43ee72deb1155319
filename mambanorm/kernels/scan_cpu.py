"""The selective scan on the CPU: one fused Numba kernel each for forward and backward, in float32.

Map of the file
---------------
1. `Plan`   cuts the work and sizes every buffer, so that the memory it promises is the memory used
2. `Inputs`, `scan_forward`, `scan_backward`   tensors in the kernel's layout; the two passes over them
3. `_Scan`, `scan_cpu`   the autograd function and the conversion from mamba-ssm's layout to the kernel's

The kernels themselves are in `scan_cpu_loops.py` beside it. The readable twin is `operations/reference.py`.

How it works. The channel axis is contiguous, so the inner loop runs over a block of `LANES` channels while B and C are
scalars of that loop; h of the block stays in the first-level cache. Nothing of size B·L·D·N is stored: the forward pass
keeps h every `STEPS` steps, and the backward pass goes from the last chunk to the first and recomputes the inside of
a chunk in a small buffer per worker. Two state indices go through the loops together, which halves the traffic between
registers and cache; where every state decays, the exponential needs no guard against overflow. Every worker owns a
fixed range of work and its own partial sums, added up in a fixed order: the same inputs with the same number of threads
give the same bits.

Glossary: B batch, L length, D channels, N state size, G groups of channels that share B and C; u input, delta (Δ) step
size, A decay rate, B_t and C_t input and output vectors, z gate, h state. Row: all channels of one step.

Source: Gu & Dao 2023, "Mamba", section 3.3 and algorithm 2 (arguments and results as state-spaces/mamba's
`selective_scan_fn`); storing chunk starts and recomputing is the paper's recomputation, section 3.3.2.
"""

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mambanorm.kernels import scan_cpu_loops
from mambanorm.kernels.once_differentiable import backward_once
from mambanorm.kernels.runtime import EMPTY, LANES, added_up, empty, ones, run, zeros
from mambanorm.kernels.threads import scan_threads

STEPS = 44  # steps per chunk: stored states cost 1/STEPS of B·L·D·N, the per-worker buffers grow with STEPS


def _rows(numbers):
    """Rows of whole numbers as a kernel takes them, (rows, columns) int64."""
    return torch.from_numpy(np.array([*numbers], dtype=np.int64))


@functools.lru_cache(maxsize=256)
def plan_for(*fields):
    """The plan with these fields, made once."""
    return Plan(*fields)


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
    rank: int = 0  # R where delta is given as R numbers a step, see `Inputs`
    decaying: bool = False  # every state decays and none is weighted: the kernels leave out what only the others need

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
        """By direction: one row per worker; `_rooms` and `_more_rooms` in scan_cpu_loops.py name its parts."""
        floats = scan_cpu_loops.scratch_floats
        return {d: (self.workers, floats(d, STEPS, self.size, self.rank)) for d in ("forward", "backward")}

    @property
    def sums_shape(self):
        """Per worker: N rows for dA, N for the weight, one for dD, one for d(delta_bias), R for the weight of Δ."""
        return self.workers, self.size * 2 + 2 + self.rank, self.channels

    def partial_shape(self, groups):
        """dB or dC, one layer per segment."""
        return self.segments, self.batch, groups, self.length * self.size

    @property
    def extra_bytes(self):
        """Peak bytes of forward plus backward beyond inputs, outputs and gradients: states and the larger scratch."""
        partial = sum(math.prod(self.partial_shape(g)) for g in (self.groups_b, self.groups_c))
        backward = math.prod(self.scratch_shapes["backward"]) + math.prod(self.sums_shape)
        backward += partial * (self.segments - 1) // self.segments  # one layer becomes the gradient itself
        forward = math.prod(self.scratch_shapes["forward"])
        return 4 * (math.prod(self.states_shape) + max(forward, backward))


# ----------------------------------------------------------------------------------------------------------- torch side
@functools.lru_cache(maxsize=256)
def _rows_of_four(strides):
    """Strides as the kernels take them, beside flat memory: one compiled variant for every layout. Made once."""
    return _rows((*row, 0, 0, 0, 0)[:4] for row in strides)


def powers_of(A):
    """A·log2(e), (D, N) → (N, D) in order: the kernels compute powers of two."""
    return (A.detach().t() * float(scan_cpu_loops.LOG2E)).contiguous()


def split_groups(narrow, rank, size):
    """Δ's R numbers, B and C as views (B, G, ·, L) of what one product a group gave, (B, L, G, R + 2N)."""
    return narrow.permute(0, 2, 3, 1).split_with_sizes([rank, size, size], 2)


class Inputs(NamedTuple):
    """What a scan takes, in the kernel's layout: float32, (B, L, …) with contiguous channels.

    `delta` is (B, L, D), or (B, G, R, L) beside its weight `low` (R, D): then Δ's projection is part of the kernel, and
    each group of B and C has R numbers of its own.
    """

    u: Tensor  # (B, L, D)
    delta: Tensor
    powers: Tensor  # (N, D), `powers_of` A
    B: Tensor  # (B, G, N, L)
    C: Tensor
    low: Tensor | None = None
    weight: Tensor | None = None  # (N, D), of constant B or C, see `scan_cpu`
    D: Tensor | None = None
    z: Tensor | None = None  # (B, L, D)
    bias: Tensor | None = None
    softplus: bool = True

    def plan(self, decaying):
        """How to cut the scan; `decaying`: whether A and softplus leave no state that could grow."""
        rank = 0 if self.low is None else len(self.low)
        groups = self.B.shape[1], self.C.shape[1]
        return plan_for(*self.u.shape, len(self.powers), *groups, scan_threads(), rank, decaying)

    def decaying(self):
        if self.weight is not None or not bool((self.powers <= 0).all()):
            return False
        return self.softplus or (self.low is None and self.bias is None and bool(self.delta.min() >= 0))

    def strided(self):
        """What comes in any layout."""
        return [self.u, self.delta, self.B, self.C, EMPTY if self.z is None else self.z]

    def strides(self):
        """Those of `strided`; Δ's R numbers of a step as (B, L, R, G)."""
        by_row, by_group, by_rank, by_step = (*self.delta.stride(), 0)[:4]
        delta = self.delta.stride() if self.low is None else (by_row, by_step, by_rank, by_group)
        return self.u.stride(), delta, self.B.stride(), self.C.stride(), () if self.z is None else self.z.stride()

    def ordered(self):
        """What the kernel reads in order: the powers and the parameters."""
        tensors = self.powers, self.low, self.weight, self.D, self.bias
        return [EMPTY if t is None else t.contiguous() for t in tensors]


class Gradients(NamedTuple):
    """The gradients of a scan's inputs, in their order and shapes; None or empty where there is no such input.

    With `low`, the gradients of delta, B and C are one tensor (B, L, G·(R + 2N)), group after group, as one product a
    group made the three. It stands in delta's place, and B and C are None.
    """

    u: Tensor
    delta: Tensor
    A: Tensor
    B: Tensor | None
    C: Tensor | None
    low: Tensor
    weight: Tensor
    D: Tensor
    z: Tensor
    bias: Tensor


def scan_forward(inputs, plan, keep, want_last):
    """Runs the forward kernel: out (B, L, D), last (B, N, D) or empty, states for the backward pass or empty."""
    out = empty(inputs.u.shape)
    last = empty(plan.batch, plan.size, plan.channels) if want_last else EMPTY
    states = empty(plan.states_shape) if keep else EMPTY
    scratch, strides = empty(plan.scratch_shapes["forward"]), _rows_of_four(inputs.strides())
    tensors = [*inputs.strided(), *inputs.ordered(), scratch, plan.blocks, strides, out, last, states]
    run(scan_cpu_loops.forward, plan.workers, (*plan.numbers, inputs.softplus), tensors)
    return out, last, states


def scan_backward(inputs, plan, grad, states):
    """Runs the backward kernel → Gradients."""
    size, batch, length, segments = plan.size, plan.batch, plan.length, plan.segments
    grad = grad if grad.stride(2) == 1 or grad.shape[2] == 1 else grad.contiguous()
    du = empty(inputs.u.shape)
    dz = EMPTY if inputs.z is None else empty(inputs.u.shape)
    if plan.rank:
        own = plan.rank + 2 * size
        width = plan.groups_b * own
        joint = zeros(segments, batch, length, width)
        ddelta, db, dc = joint, joint[..., plan.rank :], joint[..., plan.rank + size :]
        layers = ((length * width, own, width),) * 3
    else:
        ddelta = empty(1, batch, length, plan.channels)
        db, dc = (zeros(segments, batch, m.shape[1], length, size) for m in (inputs.B, inputs.C))
        layers = (), *((m.shape[1] * length * size, length * size, size) for m in (inputs.B, inputs.C))
    sums, scratch = zeros(plan.sums_shape), empty(plan.scratch_shapes["backward"])
    strides = _rows_of_four((*inputs.strides(), grad.stride(), *layers))
    given = [*inputs.strided(), *inputs.ordered(), scratch, plan.blocks, strides, grad, states]
    tensors = [*given, du, ddelta, db, dc, dz, sums]
    run(scan_cpu_loops.backward, plan.workers, (*plan.numbers, inputs.softplus), tensors)
    ddelta, sums = added_up(ddelta), added_up(sums)
    db, dc = (None, None) if plan.rank else (added_up(d).transpose(2, 3) for d in (db, dc))  # (B, G, N, L)
    dA, dweight, dD, dbias, dlow = sums.split_with_sizes([size, size, 1, 1, plan.rank])
    return Gradients(du, ddelta, dA.t(), db, dc, dlow, dweight, dD.view(-1), dz, dbias.view(-1))


class _Scan(torch.autograd.Function):
    """u, delta, A (D, N) and the further tensors of `Inputs` (float32) → out (B, L, D) and, if wanted, the last state
    (B, N, D)."""

    @staticmethod
    def forward(ctx, keep, want_last, softplus, u, delta, A, *others):
        inputs = Inputs(u, delta, powers_of(A), *others, softplus)
        ctx.plan, ctx.softplus = inputs.plan(inputs.decaying()), softplus
        out, last, states = scan_forward(inputs, ctx.plan, keep, want_last)
        if keep:
            ctx.save_for_backward(*inputs[:-1], states)
        if not want_last:
            return out, None
        ctx.mark_non_differentiable(last)
        return out, last

    @staticmethod
    @backward_once
    def backward(ctx, grad, _):
        *tensors, states = ctx.saved_tensors
        grads = scan_backward(Inputs(*tensors, ctx.softplus), ctx.plan, grad, states)
        return None, None, None, *(g if flag else None for g, flag in zip(grads, ctx.needs_input_grad[3:], strict=True))


def _channels_last(x):
    """(B, D, L) to float32 (B, L, D) with contiguous channels; a transposed view of such a tensor is taken as it is."""
    x = x.transpose(1, 2).float()
    return x if x.stride(2) == 1 or x.shape[2] == 1 else x.contiguous()


def _per_step(m, batch, length):
    """B or C as (B, G, N, L) without a copy; a constant one, (D, N), becomes ones and goes to the weight instead."""
    if m.dim() == 2:
        return ones(1, 1, 1, 1).expand(batch, 1, m.shape[1], length)
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
    tensors = *rows[:2], A.float(), *per_step, None, weight, vectors[0], rows[2], vectors[1]
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    out, last = _Scan.apply(keep, bool(want_last), bool(delta_softplus), *tensors)
    if not want_last:
        return out.transpose(1, 2).to(u.dtype), None
    last = last.transpose(1, 2)
    if B.dim() == 2:
        last = last * B.detach().float()
    return out.transpose(1, 2).to(u.dtype), last
