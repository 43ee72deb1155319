"""The selective scan on CUDA with our own Triton kernels, forward and backward, in float32.

Map of the file
---------------
1. `obstacle`   why the kernels cannot run on a device, or None
2. `Given`, `Gradients`, `forward_pass`, `backward_pass`   the two passes, from a whole Δ or from its two factors
3. `_Scan`, `scan_triton`   the autograd function and the conversion from mamba-ssm's layout to the kernels'
4. `_LowRankScan`, `low_rank_scan_triton`   the same with Δ in two factors

The kernels are in `mambanorm/kernels/scan_triton_loops.py`; how the work is cut, in `scan_triton_plan.py`. The readable
twin is `mambanorm/operations/reference.py`.

How it works. One program has one batch row and one block of channels. It walks through time tile by tile, up to 8 steps
at once, with h in registers. Nothing of size B·L·D·N is stored: the forward pass keeps h every `chunk` of tiles, about
√L steps. The backward pass goes from the last chunk to the first, recomputes h at the start of the chunk's tiles into
a small buffer per program, and the inside of a tile in registers. There are no atomic additions. Where several programs
add to one result, each writes a partial sum, and these are added up in a fixed order. So the same inputs give the same
bits.

Why so. Each of the B·L·D·N cells needs one exponential, of which a multiprocessor makes 16 a clock, and 128 products:
on an H200, with 132 of them at 1.98 GHz, B·L·D·N/4.2e12 s. That is for (32, 2048, 256) 0.26 ms at N = 64 and 0.06 ms
at N = 16. The bytes of u, z and out in bfloat16, 0.1 GB, take 0.03 ms. So the scan is bound by its instructions at
every N of use, and the design saves instructions, not bytes. A scan in parallel over time would need more of them, and
is left out: at B·D/16 of some 500 and more the programs fill a GPU. Three things count. Loads, softplus and gate are
done for a whole tile, once for each step and channel and not once for each n. The sum over N stays within a thread but
for its last additions. And the next tile is loaded while this one is computed, where a tile has four bytes a thread
and more; at N = 64 in bfloat16 a tile is two steps, too small for that, and each waits for its loads (seen in what the
compiler writes; to be mended where a GPU can say by what).

What the compiler makes of it for sm_90, at N = 16 in bfloat16, counted in its output: 20 instructions a cell in the
forward loop, and in the backward pass 23 to recompute and 82 to go back, of which 25 belong to sums over lanes, most
for dB and dC. No register is spilled. At one instruction a clock and scheduler that is 0.16 ms forward and 0.85 ms
backward for (32, 2048, 256) at N = 16: an estimate, not a measurement. AHEAD, BACK, STAGES and the plan's constants are
where to tune on a GPU.

Δ in two factors. With `low` (D, R), Δ = low·dt is made in registers from the R numbers of each step, and never stored.
It takes R products for each step and channel, against 5·N for the scan: cheap while R is small (`MOST_RANKS`). Stored,
Δ would be written and read in the forward pass, and read, its gradient written, and that read twice in the backward
pass: 6·B·L·D numbers, where the rest of the scan moves 8. Above MOST_RANKS a matrix product is the better way to Δ.

Glossary: B batch, L length, D channels, N state size, R rank of Δ's projection, G groups of channels that share B and C
(and dt); u input, delta (Δ) step size, A decay rate, B_t and C_t input and output vectors, z gate, h state.

Source: Gu & Dao 2023, "Mamba", section 3.3 and algorithm 2 (arguments and results as state-spaces/mamba's
`selective_scan_fn`); storing chunk starts and recomputing is the paper's recomputation, section 3.3.2.
"""

import functools
import importlib
from typing import NamedTuple

import torch
from torch import Tensor

from mambanorm.kernels.once_differentiable import backward_once
from mambanorm.kernels.scan_triton_plan import Plan

AHEAD, BACK = 64, 16  # cells of a tile a thread has, forward and backward: as many as the compiler keeps in registers
STAGES = 2  # tiles in flight: the next one is loaded while this one is computed
MOST_RANKS = 16  # R up to which Δ is made inside the kernel


# -------------------------------------------------------------------------------------------------- can it run, and how
@functools.cache
def obstacle(device_type):
    """Why no kernel can run on such a device, to follow "backend 'triton'"; None if one can (tried once)."""
    try:
        importlib.import_module("triton.language")
    except Exception as error:  # a build for another Python fails with what it likes
        return f"needs the package triton, which cannot be imported ({error}): pip install triton, on Linux"
    if _interpreted() and device_type in ("cpu", "cuda"):
        return None
    if device_type != "cuda":
        return "runs on CUDA; on the CPU only in Triton's slow interpreter: set TRITON_INTERPRET=1 before Python starts"
    try:
        importlib.import_module("triton.runtime").driver.active.get_current_target()
    except Exception as error:
        return f"cannot start here ({error}): Triton builds its launcher with a C compiler, gcc or clang"
    return None


def _interpreted():
    """Whether the kernels run in Triton's interpreter, in NumPy on the CPU."""
    from mambanorm.kernels import scan_triton_loops

    return scan_triton_loops.INTERPRETED


# ----------------------------------------------------------------------------------------------------------- torch side
class Given(NamedTuple):
    """What the kernels read, of any floating-point dtype and, but for the last five, of any strides.

    u, z (B, D, L). delta (B, D, L); with `low` (D, R) the R numbers of each step instead, (B, G, R, L). B and C
    (B, G, N, L) or constant (D, N). A (D, N), or log(−A) with `log_a`; D and bias (D,). low, D, z and bias may be None.
    """

    u: Tensor
    delta: Tensor
    B: Tensor
    C: Tensor
    z: Tensor | None
    low: Tensor | None
    A: Tensor
    D: Tensor | None
    bias: Tensor | None
    softplus: bool = True
    log_a: bool = False

    def plan(self):
        (batch, channels, length), groups = self.u.shape, [m.shape[1] if m.dim() == 4 else 1 for m in (self.B, self.C)]
        rank, groups_dt = (0, 1) if self.low is None else (self.low.shape[1], self.delta.shape[1])
        return Plan(batch, length, channels, self.A.shape[1], *groups, groups_dt, rank)


class Gradients(NamedTuple):
    """u (B, L, D), contiguous; delta and z likewise, None where there is none; A, low, D, bias and constant B and C in
    float32. `partial` (B, blocks, L, R + N + N): what is to be added up over blocks for dt, B and C, side by side."""

    u: Tensor
    delta: Tensor | None
    z: Tensor | None
    A: Tensor
    low: Tensor | None
    bias: Tensor | None
    D: Tensor | None
    constants: list[Tensor]
    partial: Tensor | None


def _launch(kernel, plan, given, cells, *arguments):
    """Start a kernel on u's device: one program for each batch row and block of channels."""
    from mambanorm.kernels.scan_triton_parts import Cut

    per = [plan.channels // groups for groups in (plan.groups_b, plan.groups_c, plan.groups_dt)]
    blocks = plan.blocks * plan.run // plan.channels
    vary = (given.B.dim() == 4) + (given.C.dim() == 4)
    widths = plan.partial_shape(vary)[-1], plan.sums_shape(2 - vary)[-1]
    cut = Cut(plan.length, plan.chunk, plan.tiles, plan.channels, plan.run, blocks, *per, *widths)
    constants = given.softplus, given.log_a, plan.padded, plan.size, plan.rank
    tile = plan.tile, plan.block, plan.lanes, plan.ranks, STAGES
    with torch.cuda.device_of(given.u):
        kernel[plan.batch, plan.blocks](*arguments, cut, *constants, *tile, num_warps=plan.warps(cells))


def _inputs(given):
    """What both kernels read, with strides where they take any layout."""
    u, z = (None if x is None else rows(x) for x in (given.u, given.z))
    delta = rows(given.delta) if given.low is None else _steps(given.delta)
    return u, delta, given.low, given.A, _steps(given.B), _steps(given.C), given.D, z, given.bias


def rows(x):
    """A (B, D, L) tensor as kernels read it."""
    from mambanorm.kernels.scan_triton_parts import Rows

    return Rows(x, *x.stride())


def _steps(m):
    from mambanorm.kernels.scan_triton_parts import Steps

    return Steps(m, *(m.stride() if m.dim() == 4 else ()))


def forward_pass(given, plan, keep, want_last):
    """out (B, L, D) in u's dtype; the states for the backward pass and the last one (B, D, N), None unless wanted."""
    from mambanorm.kernels.scan_triton_loops import forward_kernel

    def floats(shape):
        return given.u.new_empty(shape, dtype=torch.float32)

    out = given.u.new_empty(plan.batch, plan.length, plan.channels)
    states = floats(plan.states_shape) if keep else None
    last = floats((plan.batch, plan.channels, plan.size)) if want_last else None
    _launch(forward_kernel, plan, given, AHEAD, *_inputs(given), out, states, last)
    return out, states, last


def backward_pass(given, plan, grad, states):
    """`Gradients` from that of out, (B, D, L) of any strides."""
    from mambanorm.kernels.scan_triton_loops import backward_kernel

    u, low = given.u, given.low
    constants = [m.dim() == 2 for m in (given.B, given.C)]
    like_rows = plan.batch, plan.length, plan.channels
    du, ddelta = u.new_empty(like_rows), None if low is not None else given.delta.new_empty(like_rows)
    dz = None if given.z is None else given.z.new_empty(like_rows)

    scratch = states.new_empty(plan.scratch_shape)
    partial = states.new_empty(plan.partial_shape(2 - sum(constants)))
    sums = states.new_empty(plan.sums_shape(sum(constants)))
    per_row = plan.channels * plan.size, plan.channels * plan.rank, plan.channels, plan.channels
    dA, dlow, dbias, dD, *dconstants = sums.split([*per_row, *[per_row[0]] * sum(constants)], 1)
    columns = list(partial.split([plan.rank, *[plan.size] * (2 - sum(constants))], -1))
    if low is not None:
        ddelta = columns[0]
    columns, places = columns[1:], list(dconstants)
    dB, dC = (places.pop(0) if constant else columns.pop(0) for constant in constants)
    buffers = du, ddelta, None if dz is None else rows(dz.transpose(1, 2)), dA, dlow, dB, dC, dD, dbias
    _launch(backward_kernel, plan, given, BACK, *_inputs(given), rows(grad), states, scratch, *buffers)

    added = sums.sum(0) if plan.batch > 1 else sums[0]
    dA, dlow, dbias, dD, *dconstants = added.split([*per_row, *[per_row[0]] * sum(constants)])
    shape = plan.channels, plan.size
    return Gradients(
        du,
        ddelta if low is None else None,
        dz,
        dA.view(shape),
        None if low is None else dlow.view(plan.channels, plan.rank),
        None if given.bias is None else dbias,
        None if given.D is None else dD,
        [d.view(shape) for d in dconstants],
        partial,
    )


class _Scan(torch.autograd.Function):
    """The tensors of `Given`: u, delta, z (B, D, L), B and C (B, G, N, L) of any dtype; A, constant B and C (D, N), D
    and bias contiguous in float32.

    The kernels read every layout where it lies; what they write is (B, L, D), contiguous.
    """

    @staticmethod
    def forward(ctx, keep, want_last, softplus, *tensors):
        given = Given(*tensors, softplus)
        ctx.softplus, ctx.plan = softplus, given.plan()
        out, states, last = forward_pass(given, ctx.plan, keep, want_last)
        if keep:
            ctx.save_for_backward(*tensors, states)
        if want_last:
            ctx.mark_non_differentiable(last)
        return out, last

    @staticmethod
    @backward_once
    def backward(ctx, grad, _):
        *tensors, states = ctx.saved_tensors
        given, need = Given(*tensors, ctx.softplus), ctx.needs_input_grad[3:]
        grads = backward_pass(given, ctx.plan, grad.transpose(1, 2), states)
        du, ddelta, dz = (None if x is None else x.transpose(1, 2) for x in (grads.u, grads.delta, grads.z))
        columns = list(grads.partial.split(ctx.plan.size, -1)) if grads.partial.shape[-1] else []
        dB, dC = (grads.constants.pop(0) if m.dim() == 2 else _join(columns.pop(0), m) for m in (given.B, given.C))
        result = du, ddelta, dB, dC, dz, grads.low, grads.A, grads.D, grads.bias
        return None, None, None, *(value if needed else None for value, needed in zip(result, need, strict=True))


def _join(partial, m):
    """Add up partial sums (B, blocks, L, N) to (B, G, N, L), a view of (B, G, L, N)."""
    return partial.unflatten(1, (m.shape[1], -1)).sum(2).transpose(2, 3).to(m.dtype)


def _matrix(m):
    """B or C with its groups, (B, G, N, L), without a copy; a constant one contiguous in float32."""
    if m.dim() == 2:
        return m.float().contiguous()
    return m.unsqueeze(1) if m.dim() == 3 else m


def scan_triton(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, want_last=True):
    """The scan with the Triton kernels; arguments as `selective_scan`, already checked. Takes any strides, no copies.

    Returns out (B, D, L) in u's dtype, a transposed view of a contiguous (B, L, D) tensor, and last_state (B, D, N)
    in float32, without gradient (None unless wanted). Differentiable once, in every floating-point argument.
    """
    D, bias = (None if v is None else v.float().contiguous() for v in (D, delta_bias))
    tensors = u, delta, _matrix(B), _matrix(C), z, None, _matrix(A), D, bias
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    out, last = _Scan.apply(keep, bool(want_last), bool(delta_softplus), *tensors)
    return out.transpose(1, 2), last


def low_rank_scan_triton(u, dt, B, C, dt_weight, dt_bias, A_log, D, want_last=False):
    """As `low_rank_scan`, already checked, for at most MOST_RANKS numbers of Δ a step: Δ is made in registers.

    u (B, L, E), dt (B, L, G, R), B and C (B, L, G, N) → y (B, L, E) in u's dtype and, if wanted, the last state
    (B, E, N) in float32 or None. Differentiable once; the last state carries no gradient.
    """
    A, D, bias, low = (v.float().contiguous() for v in (-torch.exp(A_log), D, dt_bias, dt_weight))
    tensors = u.transpose(1, 2), *(m.permute(0, 2, 3, 1) for m in (dt, B, C)), low, A, D, bias
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    return _LowRankScan.apply(keep, want_last, *tensors)


class _LowRankScan(torch.autograd.Function):
    """u (B, E, L), dt (B, G, R, L), B and C (B, G, N, L) of any strides; low (E, R), A (E, N), D and bias (E,)."""

    @staticmethod
    def _given(u, dt, B, C, low, A, D, bias):
        return Given(u, dt, B, C, None, low, A, D, bias)

    @staticmethod
    def forward(ctx, keep, want_last, *tensors):
        given = _LowRankScan._given(*tensors)
        y, states, last = forward_pass(given, given.plan(), keep, want_last)
        if keep:
            ctx.save_for_backward(*tensors, states)
        if want_last:
            ctx.mark_non_differentiable(last)
        return y, last

    @staticmethod
    @backward_once
    def backward(ctx, grad, _):
        *tensors, states = ctx.saved_tensors
        given = _LowRankScan._given(*tensors)
        plan = given.plan()
        grads = backward_pass(given, plan, grad.transpose(1, 2), states)
        joint = grads.partial.unflatten(1, (given.delta.shape[1], -1)).sum(2).transpose(2, 3)  # (B, G, R + 2·N, L)
        narrow = joint.split([plan.rank, plan.size, plan.size], 2)
        ddt, dB, dC = (d.to(m.dtype) for d, m in zip(narrow, (given.delta, given.B, given.C), strict=True))
        return None, None, grads.u.transpose(1, 2), ddt, dB, dC, grads.low, grads.A, grads.D, grads.bias
