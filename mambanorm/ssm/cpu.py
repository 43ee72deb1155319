"""The selective scan on the CPU: one fused Numba kernel each for forward and backward, in float32.

Map of the file
---------------
1. `Plan`   cuts the work and sizes every buffer, so that the memory it promises is the memory used
2. `scan_threads`, `set_numba_threads`, `run`   the number of threads; starting one kernel at a time, not in silence
3. `_Scan`, `scan_cpu`   the autograd function and the way from mamba-ssm's layout to the kernel's

The kernels themselves are in `mambanorm/ssm/kernels.py`.

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
from numba.core import event

from mambanorm.ssm import kernels
from mambanorm.ssm.kernels import LANES
from mambanorm.ssm.once import backward_once

STEPS = 44  # steps per chunk: stored states cost 1/STEPS of B·L·D·N, the per-worker buffers grow with STEPS

_PID = os.getpid()
_LOCK = threading.Lock()


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
        """One row per worker, see `forward_worker` and `backward_worker` for its parts."""
        floats = STEPS * kernels.ROW[direction] + self.size * kernels.CELL + 2 * STEPS * self.size
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
            print("mambanorm: compiling the CPU kernels, once (about 30 s) …", file=sys.stderr, flush=True)

    def on_end(self, event):
        pass


@contextmanager
def _announced(kernel):
    if kernel.signatures:
        yield
    else:
        with event.install_listener("numba:compile", _Announce()):
            yield


def run(parallel, serial, workers, arguments):
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
    scaled = (A.detach().t() * float(kernels.LOG2E)).contiguous().numpy()  # (N, D); the kernel computes powers of two
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
        run(kernels.run_forward, kernels.forward_worker, plan.workers, (*common, *outputs))
        if keep:
            ctx.save_for_backward(u, delta, A, B, C, weight, D, z, bias, states)
            ctx.plan, ctx.softplus = plan, softplus
        ctx.mark_non_differentiable(last)
        return out, last

    @staticmethod
    @backward_once
    def backward(ctx, grad, _):
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
        run(kernels.run_backward, kernels.backward_worker, plan.workers, arguments)
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
