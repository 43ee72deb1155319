"""The selective scan on the CPU: fused Numba kernels for forward and backward, in float32.

The kernels are in scan_cpu_loops.py. The readable twins are operations/reference.py and the last
lines of `low_rank_scan` in operations/scan.py.

The channel axis is contiguous, so the inner loop runs over a block of `LANES` channels; in this
loop B and C are scalars. The state h of the block stays in the first-level cache. No tensor of
B·L·D·N numbers is stored: the forward pass stores h only at the start of each chunk of `STEPS`
steps. The backward pass goes from the last chunk to the first and recomputes the states of one
chunk in a small buffer per worker. The loops compute two state indices together, which halves the
traffic between registers and cache. Every state decays, so the exponential needs no guard against
overflow. Every worker computes a fixed range of batch rows and its own partial sums, and the
partial sums are added in a fixed order: the same inputs with the same number of threads give the
same bits.

Glossary: operations/__init__.py; here D is the number of channels, and R the rank of Δ's
projection. Source: Gu & Dao 2023, "Mamba", section 3.3 and algorithm 2; section 3.3.2 for storing
the states at chunk starts and recomputing the others.
"""

import functools
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mambanorm.kernels import backward_once, scan_cpu_loops
from mambanorm.kernels.runtime import EMPTY, LANES, empty, run, sum_workers, zeros
from mambanorm.kernels.threads import kernel_threads

# Steps per chunk. Stored states take B·L·D·N / STEPS numbers; scratch memory grows with STEPS.
STEPS = 44


def _int_rows(integers):
    """Return rows of integers as an int64 tensor (rows, columns), which kernels can read."""
    return torch.from_numpy(np.array([*integers], dtype=np.int64))


class Plan(NamedTuple):
    """The division of one scan among workers and into blocks, and the sizes of the buffers."""

    # Number of workers; each computes some rows of the batch.
    workers: int
    # Sizes that the kernels read: steps per chunk, B, L, D, N, R.
    integers: tuple[int, ...]
    # (blocks, 3), one row per block of channels: its first channel, its number of channels, and its
    # group of B and C. No block crosses the border of a group.
    blocks: Tensor
    # Number of floats in the stored states (B, chunks − 1, N, D): h at the start of every chunk
    # except the first.
    states_size: int
    # Shape (workers, floats per worker) of the scratch memory, for "forward" and "backward".
    scratch: dict[str, tuple[int, int]]


@functools.lru_cache(maxsize=256)
def make_plan(batch, length, channels, state_size, groups, rank, threads):
    """Return the plan of a scan of these sizes; the result is cached.

    `state_size` is N. `rank` is R if delta holds R numbers per step, and 0 if delta holds Δ itself.
    """
    per_group, workers = channels // groups, min(threads, batch)
    blocks = _int_rows(
        (d, min(LANES, start + per_group - d), start // per_group)
        for start in range(0, channels, per_group)
        for d in range(start, start + per_group, LANES)
    )
    scratch = {
        direction: (workers, scan_cpu_loops.scratch_floats(direction, STEPS, state_size, rank))
        for direction in ("forward", "backward")
    }
    return Plan(
        workers,
        (STEPS, batch, length, channels, state_size, rank),
        blocks,
        batch * ((length - 1) // STEPS) * state_size * channels,
        scratch,
    )


# --------------------------------------------------------------------------------------- torch side
@functools.lru_cache(maxsize=256)
def _stride_rows(*strides):
    """Return an int64 tensor with one row of four strides per tensor; the result is cached.

    A tensor with fewer than four strides gets zeros after them. The kernels use strides to index
    flat memory, so one compiled kernel takes every layout.
    """
    return _int_rows((*row, 0, 0, 0, 0)[:4] for row in strides)


class KernelInputs(NamedTuple):
    """The plan of one scan, and the tensors that its kernels read.

    tensors: u (B, L, D), delta (B, L, D) or (B, G, R, L), B and C (B, G, N, L), A·log₂e (N, D),
    dt_weight (R, D), D and bias (D,). EMPTY replaces a tensor that is None.
    """

    plan: Plan
    tensors: list[Tensor]

    @property
    def strides(self) -> tuple[tuple[int, ...], ...]:
        """Strides of u, delta, B and C.

        They are computed at each access, because a saved-tensor hook may change a tensor's layout.
        """
        u, delta, B, C = self.tensors[:4]
        if delta.dim() == 4:  # (B, G, R, L)
            by_row, by_group, by_rank, by_step = delta.stride()
            return u.stride(), (by_row, by_step, by_rank, by_group), B.stride(), C.stride()
        return u.stride(), delta.stride(), B.stride(), C.stride()


def _kernel_inputs(u, delta, A, B, C, dt_weight, D, bias):
    """Return the `KernelInputs` of a scan.

    All tensors are float32: u (B, L, D), A (D, N), B and C (B, G, N, L), D and bias (D,). If
    dt_weight is None, delta is (B, L, D). Otherwise dt_weight is (R, D) and delta (B, G, R, L): the
    kernel computes Δ from their product, and each group of B and C has its own R numbers per step.
    Channels must be contiguous in u, and in delta if it is (B, L, D).
    """
    rank, state_size = 0 if dt_weight is None else len(dt_weight), A.shape[1]
    plan = make_plan(*u.shape, state_size, B.shape[1], rank, kernel_threads())
    # the kernels compute exp as a power of two
    powers = (A.t() * float(scan_cpu_loops.LOG2E)).contiguous()
    contiguous_tensors = (
        EMPTY if t is None else t.contiguous() for t in (powers, dt_weight, D, bias)
    )
    return KernelInputs(plan, [u, delta, B, C, *contiguous_tensors])


def _forward(inputs, softplus, save_states, want_last):
    """Return out (B, L, D), the last state (B, N, D) and the states for the backward pass.

    The last state is EMPTY unless `want_last`; the states are EMPTY unless `save_states`.
    """
    (u, *_), plan = inputs.tensors, inputs.plan
    state_size = plan.integers[4]
    out, last = empty(u.shape), empty(len(u), state_size, u.shape[2]) if want_last else EMPTY
    states = empty(plan.states_size) if save_states else EMPTY
    scratch, strides = empty(plan.scratch["forward"]), _stride_rows(*inputs.strides)
    tensors = [*inputs.tensors, scratch, plan.blocks, strides, out, last, states]
    run(scan_cpu_loops.forward, plan.workers, (*plan.integers, softplus), tensors)
    return out, last, states


def _backward(inputs, softplus, grad, states):
    """Return the gradients of u, delta, A, B, C, dt_weight, D and bias, from grad = dL/dout.

    With dt_weight, the gradients of delta, B and C are views of one tensor. It holds, group after
    group, the three gradients of the group side by side, because one matrix product per group
    computed delta, B and C.
    """
    plan, groups = inputs.plan, inputs.tensors[2].shape[1]
    _, batch, length, channels, state_size, rank = plan.integers
    grad = grad if grad.stride(2) == 1 or channels == 1 else grad.contiguous()
    du = empty(batch, length, channels)
    if rank:
        width = rank + 2 * state_size
        joint = ddelta = zeros(batch, length, groups * width)
        db, dc = joint[..., rank:], joint[..., rank + state_size :]
        grad_strides = ((length * groups * width, width, groups * width),) * 3
    else:
        ddelta = empty(batch, length, channels)
        db, dc = (zeros(batch, groups, length, state_size) for _ in "BC")
        grad_strides = (
            (),
            *((groups * length * state_size, length * state_size, state_size) for _ in "BC"),
        )
    # rows of each worker: N of dA, one of dD, one of d(delta_bias), R of d(dt_weight)
    sums = zeros(plan.workers, state_size + 2 + rank, channels)
    strides = _stride_rows(*inputs.strides, grad.stride(), *grad_strides)
    scratch = empty(plan.scratch["backward"])
    tensors = [
        *inputs.tensors,
        scratch,
        plan.blocks,
        strides,
        grad,
        states,
        du,
        ddelta,
        db,
        dc,
        sums,
    ]
    run(scan_cpu_loops.backward, plan.workers, (*plan.integers, softplus), tensors)
    if rank:
        joint = joint.unflatten(2, (groups, -1)).permute(0, 2, 3, 1)  # (B, G, R + 2·N, L)
        ddelta, db, dc = joint.split_with_sizes([rank, state_size, state_size], 2)
    else:
        db, dc = db.transpose(2, 3), dc.transpose(2, 3)  # (B, G, N, L)
    dA, dD, dbias, ddt_weight = sum_workers(sums).split_with_sizes([state_size, 1, 1, rank])
    return du, ddelta, dA.t(), db, dc, ddt_weight, dD.view(-1), dbias.view(-1)


class _Scan(torch.autograd.Function):
    """The scan as an autograd function of the arguments of `_kernel_inputs`; no state may grow.

    It returns out (B, L, D) and the last state, which is (B, N, D) if `want_last`, else None.
    """

    @staticmethod
    def forward(ctx, save_states, want_last, softplus, *tensors):
        inputs = _kernel_inputs(*tensors)
        out, last, states = _forward(inputs, softplus, save_states, want_last)
        ctx.plan, ctx.softplus = inputs.plan, softplus
        if save_states:
            ctx.save_for_backward(*inputs.tensors, states)
        if want_last:
            ctx.mark_non_differentiable(last)
        return out, last if want_last else None

    @staticmethod
    @backward_once
    def backward(ctx, grad, _):
        *tensors, states = ctx.saved_tensors
        grads = _backward(KernelInputs(ctx.plan, tensors), ctx.softplus, grad, states)
        needed = zip(grads, ctx.needs_input_grad[3:], strict=True)
        return None, None, None, *(g if is_needed else None for g, is_needed in needed)


def _scan(tensors, softplus, want_last):
    if torch.compiler.is_compiling():
        out, last, _ = scan_operator(*tensors, bool(softplus))
        return out, last.detach().transpose(1, 2) if want_last else None
    save_states = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in tensors
    )
    out, last = _Scan.apply(save_states, bool(want_last), bool(softplus), *tensors)
    return out, None if last is None else last.transpose(1, 2)


# --------------------------------------------------- the scan as an operator, for torch.compile
# Only compiled and exported code uses the operator, because a call of the operator takes longer
# than a call of an autograd.Function.


@torch.library.custom_op("mambanorm::scan_cpu", mutates_args=())
def scan_operator(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, dt_weight: Tensor | None,
    D: Tensor | None, bias: Tensor | None, softplus: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return out (B, L, D), the last state (B, N, D) and the states for the backward pass.

    The tensors are the arguments of `_kernel_inputs`.
    """
    return _forward(
        _kernel_inputs(u.contiguous(), delta, A, B, C, dt_weight, D, bias),
        softplus,
        save_states=True,
        want_last=True,
    )


@scan_operator.register_fake
def _(u, delta, A, B, C, dt_weight, D, bias, softplus):
    batch, _, channels = u.shape
    # A size computed from L would add a guard on L, and torch.export could not vary L.
    states = torch.library.get_ctx().new_dynamic_size()
    return u.new_empty(u.shape), u.new_empty(batch, A.shape[1], channels), u.new_empty(states)


@torch.library.custom_op("mambanorm::scan_cpu_backward", mutates_args=())
def scan_operator_backward(
    grad: Tensor, states: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor,
    dt_weight: Tensor | None, D: Tensor | None, bias: Tensor | None, softplus: bool,
) -> list[Tensor]:  # fmt: skip
    """Return the gradients of the tensors from u to bias, except of those that are None.

    The gradients are copied, because the results of an operator must not share memory.
    """
    tensors = u.contiguous(), delta, A, B, C, dt_weight, D, bias
    grads = _backward(_kernel_inputs(*tensors), softplus, grad.contiguous(), states)
    return [
        g.clone(memory_format=torch.contiguous_format)
        for g, t in zip(grads, tensors)
        if t is not None
    ]


@scan_operator_backward.register_fake
def _(grad, states, *arguments):
    return [t.new_empty(t.shape) for t in arguments[:-1] if t is not None]


def _save_inputs(ctx, inputs, output):
    *tensors, ctx.softplus = inputs
    ctx.save_for_backward(output[2], *tensors)


def _operator_gradient(ctx, grad, _last, _states):
    states, *tensors = ctx.saved_tensors
    grads = iter(scan_operator_backward(grad, states, *tensors, ctx.softplus))
    return *(None if t is None else next(grads) for t in tensors), None


scan_operator.register_autograd(_operator_gradient, setup_context=_save_inputs)


def _channels_last(x):
    """Return x (B, D, L) as a float32 tensor (B, L, D) with contiguous channels.

    If x is a transposed view of such a tensor, nothing is copied.
    """
    x = x.transpose(1, 2).float()
    return x if x.stride(2) == 1 or x.shape[2] == 1 else x.contiguous()


def scan_cpu(u, delta, A, B, C, D=None, delta_bias=None, delta_softplus=False, want_last=True):
    """Compute the scan with the Numba kernels.

    The arguments are those of `selective_scan`, already checked: B and C vary along L, and no state
    grows. Returns out (B, D, L) in u's dtype, a transposed view of a contiguous (B, L, D) tensor;
    and last_state, which is (B, D, N) in float32 without gradient if `want_last`, else None.
    Differentiable once, with respect to every floating-point argument.
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
    """Compute `low_rank_scan` for float32 on the CPU.

    Δ = softplus(dt·dt_weightᵀ + dt_bias) is never stored. Returns y (B, L, E) and the last state,
    which is (B, E, N) without gradient if `want_last`, else None. Differentiable once.
    """
    dt, B, C = (part.permute(0, 2, 3, 1) for part in (dt, B, C))  # (B, G, ·, L)
    tensors = u.contiguous(), dt, -torch.exp(A_log), B, C, dt_weight.t().contiguous(), D, dt_bias
    return _scan(tensors, True, want_last)
