"""The selective scan on the CPU: one fused Numba kernel each for forward and backward, in float32.

Map of the file
---------------
1. `Plan`   cuts the work and sizes every buffer, so that the memory it promises is the memory used
2. `Inputs`, `scan_forward`, `scan_backward`   tensors in the kernel's layout; the two passes over them
3. `_Scan`, `scan_cpu`   the autograd function and the conversion from mamba-ssm's layout to the kernel's

The kernels themselves are in `mambanorm/kernels/scan_cpu_loops.py`. The readable twin is `mambanorm/ssm/reference.py`.

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
from mambanorm.kernels.runtime import LANES, empty, ones, places, run, zeros
from mambanorm.kernels.threads import scan_threads

STEPS = 44  # steps per chunk: stored states cost 1/STEPS of B·L·D·N, the per-worker buffers grow with STEPS


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
    def arguments(self):
        """What the kernels need to know of the shapes."""
        sizes = self.batch, self.length, self.channels, self.size, self.rank
        return self.segments, self.blocks, STEPS, np.array(sizes, dtype=np.int64)

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
        """One row per worker; `_rooms` and `_more_rooms` in scan_cpu_loops.py name its parts."""
        return self.workers, scan_cpu_loops.scratch_floats(direction, STEPS, self.size, self.rank)

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
        backward = math.prod(self.scratch_shape("backward")) + math.prod(self.sums_shape)
        backward += partial * (self.segments - 1) // self.segments  # one layer becomes the gradient itself
        forward = math.prod(self.scratch_shape("forward"))
        return 4 * (math.prod(self.states_shape) + max(forward, backward))


# ----------------------------------------------------------------------------------------------------------- torch side
_EMPTY = empty(0)


def _strides(tensors):
    """Strides as rows of four. Kernels take flat memory and strides: one compiled variant for every layout."""
    return [(*t.stride(), 0, 0, 0)[:4] for t in tensors]


class Inputs(NamedTuple):
    """What a scan takes, in the kernel's layout: float32, (B, L, …) with contiguous channels.

    `delta` is (B, L, D), or (B, L, R) beside its weight `low` (R, D): then Δ's projection is part of the kernel. Where
    B and C have G groups, each takes R numbers of its own, (B, L, R, G).
    """

    u: Tensor  # (B, L, D)
    delta: Tensor
    A: Tensor  # (D, N)
    B: Tensor  # (B, G, N, L)
    C: Tensor
    low: Tensor | None = None
    weight: Tensor | None = None  # (N, D), of constant B or C, see `scan_cpu`
    D: Tensor | None = None
    z: Tensor | None = None  # (B, L, D)
    bias: Tensor | None = None
    softplus: bool = True

    def plan(self):
        rank = 0 if self.low is None else len(self.low)
        groups = self.B.shape[1], self.C.shape[1]
        return plan_for(*self.u.shape, self.A.shape[1], *groups, scan_threads(), rank, self._decaying())

    def _decaying(self):
        if self.weight is not None or not bool((self.A <= 0).all()):
            return False
        return self.softplus or (self.low is None and self.bias is None and bool(self.delta.min() >= 0))

    def strided(self):
        """What comes in any layout."""
        return [self.u, self.delta, self.B, self.C, _EMPTY if self.z is None else self.z]

    def ordered(self):
        """What the kernel reads in order: A·log2(e) as (N, D), for it computes powers of two, and the parameters."""
        scaled = self.A.detach().t() * float(scan_cpu_loops.LOG2E)
        tensors = scaled, self.low, self.weight, self.D, self.bias
        return [_EMPTY if t is None else t.contiguous() for t in tensors]


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
    """Runs the forward kernel: out (B, L, D), last (B, N, D) or nothing, states for the backward pass or nothing."""
    batch, length, channels = inputs.u.shape
    out = empty(batch, length, channels)
    last = empty(batch, plan.size, channels if want_last else 0)
    states = empty(plan.states_shape if keep else 0).view(batch, -1, plan.size, channels)
    strided = inputs.strided()
    tensors = [*strided, *inputs.ordered(), empty(plan.scratch_shape("forward")), out, last, states]
    strides = np.array(_strides(strided), dtype=np.int64)
    arguments = (*plan.arguments, strides, places(tensors), inputs.softplus, plan.decaying)
    run(scan_cpu_loops.run_forward, scan_cpu_loops.forward_worker, plan.workers, arguments)
    return out, last, states


def scan_backward(inputs, plan, grad, states):
    """Runs the backward kernel → Gradients."""
    size, batch, length, segments = plan.size, plan.batch, plan.length, plan.segments
    grad = grad if grad.stride(2) == 1 or grad.shape[2] == 1 else grad.contiguous()
    du = empty(inputs.u.shape)
    dz = empty(inputs.u.shape if inputs.z is not None else (0, 0, 0))
    if plan.rank:
        own = plan.rank + 2 * size
        width = plan.groups_b * own
        joint = zeros(segments, batch, length, width)
        ddelta, db, dc = joint, joint[..., plan.rank :], joint[..., plan.rank + size :]
        layers = [(length * width, own, width, 0)] * 3
    else:
        ddelta = empty(1, batch, length, plan.channels)
        db, dc = (zeros(segments, batch, m.shape[1], length, size) for m in (inputs.B, inputs.C))
        layers = [(0, 0, 0, 0), *((m.shape[1] * length * size, length * size, size, 0) for m in (inputs.B, inputs.C))]
    sums = zeros(plan.sums_shape)
    strided, scratch = inputs.strided(), empty(plan.scratch_shape("backward"))
    tensors = [*strided, *inputs.ordered(), scratch, grad, states, du, ddelta, db, dc, dz, sums]
    strides = np.array([*_strides([*strided, grad]), *layers], dtype=np.int64)
    arguments = (*plan.arguments, strides, places(tensors), inputs.softplus, plan.decaying)
    run(scan_cpu_loops.run_backward, scan_cpu_loops.backward_worker, plan.workers, arguments)
    ddelta, sums = _add(ddelta), _add(sums)
    db, dc = (None, None) if plan.rank else (_add(d).transpose(2, 3) for d in (db, dc))  # (B, G, N, L)
    dlow, weight = sums[2 * size + 2 :], sums[size : 2 * size]
    dA, dD, dbias = sums[:size].t(), sums[2 * size], sums[2 * size + 1]
    return Gradients(du, ddelta, dA, db, dc, dlow, weight, dD, dz, dbias)


def _add(partial):
    """The sum over the first axis: of segments or workers, in a fixed order."""
    return partial.sum(0) if len(partial) > 1 else partial[0]


class _Scan(torch.autograd.Function):
    """The tensors of `Inputs` (float32) → out (B, L, D) and the last state (B, N, D)."""

    @staticmethod
    def forward(ctx, keep, want_last, softplus, *tensors):
        inputs = Inputs(*tensors, softplus)
        ctx.plan, ctx.softplus = inputs.plan(), softplus
        out, last, states = scan_forward(inputs, ctx.plan, keep, want_last)
        if keep:
            ctx.save_for_backward(*tensors, states)
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
    tensors = Inputs(*rows[:2], A.float(), *per_step, None, weight, vectors[0], rows[2], vectors[1])[:-1]
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    out, last = _Scan.apply(keep, bool(want_last), bool(delta_softplus), *tensors)
    if not want_last:
        return out.transpose(1, 2).to(u.dtype), None
    last = last.transpose(1, 2)
    if B.dim() == 2:
        last = last * B.detach().float()
    return out.transpose(1, 2).to(u.dtype), last
