"""The selective scan on the CPU: one fused Numba kernel each for forward and backward, in float32.

The kernels themselves are in `scan_cpu_loops.py` beside it. The readable twins are
`operations/reference.py` and the last lines of `low_rank_scan` in operations/scan.py.

How it works. The channel axis is contiguous, so the inner loop runs over a block of `LANES`
channels while B and C are scalars of that loop; h of the block stays in the first-level cache.
Nothing of size B·L·D·N is stored: the forward pass keeps h every `STEPS` steps, and the backward
pass goes from the last chunk to the first and recomputes the inside of a chunk in a small buffer
per worker. Two state indices go through the loops together, which halves the traffic between
registers and cache; every state decays, so the exponential needs no guard against overflow. Every
worker owns a fixed range of rows of the batch and its own partial sums, added up in a fixed order:
the same inputs with the same number of threads give the same bits.

Glossary: operations/__init__.py; here D channels, R rank of Δ's projection. Row: all channels of
one step. Source: Gu & Dao 2023, "Mamba", section 3.3 and algorithm 2; storing chunk starts and
recomputing is section 3.3.2.
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

# steps per chunk: stored states take 1/STEPS of B·L·D·N, the buffer of each worker grows with it
STEPS = 44


def _rows(numbers):
    """Rows of whole numbers as a kernel takes them, (rows, columns) int64."""
    return torch.from_numpy(np.array([*numbers], dtype=np.int64))


class Cut(NamedTuple):
    """How one scan is cut up, and the shapes of the buffers whose size depends on that."""

    # Each takes some rows of the batch.
    workers: int
    # What the kernels need to know of the shapes: steps of a chunk, B, L, D, N, R.
    numbers: tuple[int, ...]
    # (blocks, 3): first channel, width, group of B and C. Blocks never cross the border of a group.
    blocks: Tensor
    # Size of the stored states: h at the start of every chunk except the first, (B, chunks − 1, N,
    # D).
    states: int
    # By direction: one row per worker, whose parts the two passes in scan_cpu_loops.py name.
    scratch: dict[str, tuple[int, int]]


@functools.lru_cache(maxsize=256)
def cut(batch, length, channels, size, groups, rank, threads):
    """How to cut a scan of these sizes; `rank`: R where delta is given as R numbers a step, else 0.
    Made once."""
    per_group, workers = channels // groups, min(threads, batch)
    blocks = _rows(
        (d, min(LANES, start + per_group - d), start // per_group)
        for start in range(0, channels, per_group)
        for d in range(start, start + per_group, LANES)
    )
    floats = {
        way: scan_cpu_loops.scratch_floats(way, STEPS, size, rank)
        for way in ("forward", "backward")
    }
    return Cut(
        workers,
        (STEPS, batch, length, channels, size, rank),
        blocks,
        batch * ((length - 1) // STEPS) * size * channels,
        {way: (workers, count) for way, count in floats.items()},
    )


# --------------------------------------------------------------------------------------- torch side
@functools.lru_cache(maxsize=256)
def _rows_of_four(*strides):
    """Strides as the kernels take them, beside flat memory: one compiled variant for every layout.
    Made once."""
    return _rows((*row, 0, 0, 0, 0)[:4] for row in strides)


class Prepared(NamedTuple):
    """The plan of a scan, and its tensors as the kernels read them.

    tensors: u (B, L, D), delta, B and C (B, G, N, L), the powers A·log₂e (N, D), low, D and bias;
    EMPTY for None.
    """

    plan: Cut
    tensors: list[Tensor]

    @property
    def strides(self) -> tuple[tuple[int, ...], ...]:
        """Strides of u, delta, B and C. They are not stored: a saved-tensor hook may return another
        layout."""
        u, delta, B, C = self.tensors[:4]
        if delta.dim() == 4:  # Δ's R numbers
            by_row, by_group, by_rank, by_step = delta.stride()
            return u.stride(), (by_row, by_step, by_rank, by_group), B.stride(), C.stride()
        return u.stride(), delta.stride(), B.stride(), C.stride()


def _prepared(u, delta, A, B, C, low, D, bias):
    """Return the `Prepared` of a scan: u (B, L, D), delta, A (D, N), B and C (B, G, N, L), low, D
    and bias.

    All are float32, with contiguous channels. `delta` is (B, L, D), or (B, G, R, L) beside its
    weight `low` (R, D): then Δ's projection is part of the kernel, and each group of B and C has
    its own R numbers.
    """
    rank, size = 0 if low is None else len(low), A.shape[1]
    plan = cut(*u.shape, size, B.shape[1], rank, scan_threads())
    powers = (
        A.t() * float(scan_cpu_loops.LOG2E)
    ).contiguous()  # (N, D): the kernels compute powers of two
    fixed = (EMPTY if t is None else t.contiguous() for t in (powers, low, D, bias))
    return Prepared(plan, [u, delta, B, C, *fixed])


def _forward(scan, softplus, keep, want_last):
    """Return out (B, L, D), the last state (B, N, D) and the states for the backward pass; EMPTY if
    not wanted."""
    (u, *_), plan = scan.tensors, scan.plan
    size = plan.numbers[4]
    out, last = empty(u.shape), empty(len(u), size, u.shape[2]) if want_last else EMPTY
    states = empty(plan.states) if keep else EMPTY
    used = [
        *scan.tensors,
        empty(plan.scratch["forward"]),
        plan.blocks,
        _rows_of_four(*scan.strides),
        out,
        last,
        states,
    ]
    run(scan_cpu_loops.forward, plan.workers, (*plan.numbers, softplus), used)
    return out, last, states


def _backward(scan, softplus, grad, states):
    """Return the gradients of u, delta, A, B, C, low, D and bias from that of out, (B, L, D).

    With `low` those of delta, B and C are views of one tensor, group after group, as one product a
    group made the three.
    """
    (_, batch, length, channels, size, rank), groups = scan.plan.numbers, scan.tensors[2].shape[1]
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
    sums = zeros(
        scan.plan.workers, size + 2 + rank, channels
    )  # N rows for dA, dD, d(delta_bias), R for low
    strides = _rows_of_four(*scan.strides, grad.stride(), *layers)
    used = [
        *scan.tensors,
        empty(scan.plan.scratch["backward"]),
        scan.plan.blocks,
        strides,
        grad,
        states,
    ]
    made = du, ddelta, db, dc, sums
    run(scan_cpu_loops.backward, scan.plan.workers, (*scan.plan.numbers, softplus), [*used, *made])
    if rank:
        joint = joint.unflatten(2, (groups, -1)).permute(0, 2, 3, 1)  # (B, G, R + 2·N, L)
        ddelta, db, dc = joint.split_with_sizes([rank, size, size], 2)
    else:
        db, dc = db.transpose(2, 3), dc.transpose(2, 3)  # (B, G, N, L)
    dA, dD, dbias, dlow = added_up(sums).split_with_sizes([size, 1, 1, rank])
    return du, ddelta, dA.t(), db, dc, dlow, dD.view(-1), dbias.view(-1)


class _Scan(torch.autograd.Function):
    """Compute out (B, L, D) and, if wanted, the last state (B, N, D) from the arguments of
    `_prepared`. A state must not grow."""

    @staticmethod
    def forward(ctx, keep, want_last, softplus, *tensors):
        scan = _prepared(*tensors)
        out, last, states = _forward(scan, softplus, keep, want_last)
        ctx.plan, ctx.softplus = scan.plan, softplus
        if keep:
            ctx.save_for_backward(*scan.tensors, states)
        if want_last:
            ctx.mark_non_differentiable(last)
        return out, last if want_last else None

    @staticmethod
    @backward_once
    def backward(ctx, grad, _):
        *tensors, states = ctx.saved_tensors
        grads = _backward(Prepared(ctx.plan, tensors), ctx.softplus, grad, states)
        asked = zip(grads, ctx.needs_input_grad[3:], strict=True)
        return None, None, None, *(g if flag else None for g, flag in asked)


def _scan(tensors, softplus, want_last):
    if torch.compiler.is_compiling():
        out, last, _ = scan_operator(*tensors, bool(softplus))
        return out, last.detach().transpose(1, 2) if want_last else None
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    out, last = _Scan.apply(keep, bool(want_last), bool(softplus), *tensors)
    return out, None if last is None else last.transpose(1, 2)


# ------------------------------------------------------- the same as an operator, for torch.compile
# Only compiled and exported code uses it: calling an operator takes longer than calling an
# autograd.Function.


@torch.library.custom_op("mambanorm::scan_cpu", mutates_args=())
def scan_operator(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, low: Tensor | None, D: Tensor | None,
    bias: Tensor | None, softplus: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return out (B, L, D), the last state (B, N, D) and the states for the backward pass;
    arguments as `_prepared`."""
    return _forward(
        _prepared(u.contiguous(), delta, A, B, C, low, D, bias), softplus, keep=True, want_last=True
    )


@scan_operator.register_fake
def _(u, delta, A, B, C, low, D, bias, softplus):
    batch, _, channels = u.shape
    states = (
        torch.library.get_ctx().new_dynamic_size()
    )  # of the length, but a guard on it would narrow torch.export's L
    return u.new_empty(u.shape), u.new_empty(batch, A.shape[1], channels), u.new_empty(states)


@torch.library.custom_op("mambanorm::scan_cpu_backward", mutates_args=())
def scan_operator_backward(
    grad: Tensor, states: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor,
    low: Tensor | None, D: Tensor | None, bias: Tensor | None, softplus: bool,
) -> list[Tensor]:  # fmt: skip
    """Return the gradients of the tensors that are given, u to bias. An operator's results must not
    share memory."""
    tensors = u.contiguous(), delta, A, B, C, low, D, bias
    grads = _backward(_prepared(*tensors), softplus, grad.contiguous(), states)
    return [
        g.clone(memory_format=torch.contiguous_format)
        for g, t in zip(grads, tensors)
        if t is not None
    ]


@scan_operator_backward.register_fake
def _(grad, states, *arguments):
    return [t.new_empty(t.shape) for t in arguments[:-1] if t is not None]


def _keep(ctx, inputs, output):
    *tensors, ctx.softplus = inputs
    ctx.save_for_backward(output[2], *tensors)


def _operator_gradient(ctx, grad, _last, _states):
    states, *tensors = ctx.saved_tensors
    grads = iter(scan_operator_backward(grad, states, *tensors, ctx.softplus))
    return *(None if t is None else next(grads) for t in tensors), None


scan_operator.register_autograd(_operator_gradient, setup_context=_keep)


def _channels_last(x):
    """(B, D, L) to float32 (B, L, D) with contiguous channels; a transposed view of such a tensor
    is taken as it is."""
    x = x.transpose(1, 2).float()
    return x if x.stride(2) == 1 or x.shape[2] == 1 else x.contiguous()


def scan_cpu(u, delta, A, B, C, D=None, delta_bias=None, delta_softplus=False, want_last=True):
    """The scan with the Numba kernel; arguments as `selective_scan`, already checked: B and C vary
    along L, and no state grows.

    Returns out (B, D, L) in u's dtype, a transposed view of a contiguous (B, L, D) tensor, and
    last_state (B, D, N) in float32, without gradient (None unless wanted). Differentiable once, in
    every floating-point argument.
    """
    B, C = ((m.unsqueeze(1) if m.dim() == 3 else m).float() for m in (B, C))  # (B, G, N, L)
    groups = math.lcm(B.shape[1], C.shape[1])
    B, C = (
        m if m.shape[1] == groups else m.repeat_interleave(groups // m.shape[1], 1) for m in (B, C)
    )
    D, bias = (None if x is None else x.float() for x in (D, delta_bias))
    tensors = _channels_last(u), _channels_last(delta), A.float(), B, C, None, D, bias
    out, last = _scan(tensors, delta_softplus, want_last)
    return out.transpose(1, 2).to(u.dtype), last


def low_rank_scan_cpu(u, dt, B, C, dt_weight, dt_bias, A_log, D, want_last=False):
    """As `low_rank_scan`, for float32 on the CPU: y (B, L, E) and, if wanted, the last state (B, E,
    N) or None. Δ = softplus(dt·Wᵀ + bias) is never stored. Differentiable once; the last state
    carries no gradient."""
    dt, B, C = (part.permute(0, 2, 3, 1) for part in (dt, B, C))  # (B, G, ·, L)
    tensors = u.contiguous(), dt, -torch.exp(A_log), B, C, dt_weight.t().contiguous(), D, dt_bias
    return _scan(tensors, True, want_last)
