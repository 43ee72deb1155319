"""The selective scan on CUDA in Triton, forward and backward, in float32.

The kernels are in scan_triton_loops.py. The readable twin is operations/reference.py.

How it works. One program has one batch row and one block of channels. It walks through time tile by
tile, up to 8 steps at once, with h in registers. Nothing of size B·L·D·N is stored: the forward
pass stores h every `chunk` of tiles, about √L steps. The backward pass goes from the last chunk to
the first. It recomputes h at the start of the chunk's tiles into a small buffer per program, and
the states inside a tile in registers. There are no atomic additions. Where several programs add to
one result, each writes a partial sum, and these are added in a fixed order. So the same inputs give
the same bits.

Why. Each of the B·L·D·N cells needs one exponential, of which a multiprocessor computes 16 per
clock, and 128 products. An H200 has 132 multiprocessors at 1.98 GHz, so this takes B·L·D·N/4.2e12
s: for (32, 2048, 256) 0.26 ms at N = 64 and 0.06 ms at N = 16. The bytes of u, z and out in
bfloat16, 0.1 GB, take 0.03 ms. So instructions limit the scan at every N in use, and the design
saves instructions, not bytes. A scan in parallel over time would need more instructions. It is left
out, because about 500 programs (B·D/16) fill a GPU. Three things count. Loads, softplus and gate
are computed for a whole tile, once for each step and channel and not once for each n. The sum over
N stays within a thread except for its last additions. And the next tile is loaded while one is
computed, if a tile has at least four bytes per thread. At N = 64 in bfloat16 a tile is two steps,
too small for that, and each tile waits for its loads. No register is spilled. To tune on a GPU,
change FORWARD_CELLS, BACKWARD_CELLS, STAGES and the constants after them.

Δ in two factors. With dt_weight (D, R), Δ = dt_weight·dt is computed in registers from R numbers
per step and never stored. It takes R products for each step and channel, and the scan takes 5·N:
cheap while R is small (`MAX_RANK`). A stored Δ would be written and read in the forward pass, and
read again in the backward pass, where its gradient is written once and read twice. That is 6·B·L·D
numbers; the rest of the scan moves 8·B·L·D. Above MAX_RANK a matrix product is the better way to Δ.

Glossary and source: scan_cpu.py.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mambanorm.kernels import backward_once
from mambanorm.kernels.scan_triton_loops import Rows, Sizes, Steps, backward_kernel, forward_kernel

# Cells of a tile per thread: as many as the compiler keeps in registers.
FORWARD_CELLS, BACKWARD_CELLS = 64, 16
STAGES = 2  # tiles in flight: the next tile is loaded while one is computed
MAX_RANK = 16  # largest R for which the kernel computes Δ
# Blocks get narrower until there are so many programs: two per multiprocessor of a large GPU.
MIN_PROGRAMS = 256
MAX_BLOCK, MIN_BLOCK = 32, 16  # channels per block
MAX_CELLS = 4096  # of a tile, so also of a block × N
MAX_STEPS = 8  # of a tile
STATE_CELLS = 16  # cells of one step per thread, at most: their h and A stay in registers
# With more warps per program, a thread of the backward kernel would have too few registers.
MAX_WARPS = 8


@dataclass(frozen=True)
class Plan:
    """How one scan is divided, and the shape of every buffer beyond inputs, outputs and gradients.

    Blocks of channels never cross the border of a group. In units of a tensor of B·L·D·N numbers,
    the buffers take 1/chunk for the states at chunk starts, chunk/(tile·L) for those at the starts
    of a chunk's tiles, 1/block each for the partial sums of dB and of dC, and 1/L for the sums over
    time. At L = 1024 these are 9 % with blocks of 32 channels and 16 % with 16.
    """

    batch: int
    length: int
    channels: int
    size: int  # N
    groups_b: int = 1
    groups_c: int = 1
    groups_dt: int = 1
    rank: int = 0  # R, or 0 if delta is Δ itself

    @property
    def group_channels(self):
        """Number of channels that share one group of B, one of C and one of dt."""
        return math.gcd(
            *(self.channels // groups for groups in (self.groups_b, self.groups_c, self.groups_dt))
        )

    def blocks_of(self, width):
        """Return the number of blocks of `width` channels."""
        return self.channels // self.group_channels * -(-self.group_channels // width)

    @property
    def block(self):
        """Channels per block, a power of two."""
        width = MAX_BLOCK
        while width > MIN_BLOCK and self.batch * self.blocks_of(width) < MIN_PROGRAMS:
            width //= 2
        return min(width, power_of_two(self.group_channels), max(1, MAX_CELLS // self.lanes))

    @property
    def blocks(self):
        """Number of blocks of channels."""
        return self.blocks_of(self.block)

    @property
    def lanes(self):
        """N filled up to a power of two."""
        return power_of_two(self.size)

    @property
    def ranks(self):
        """R filled up to a power of two; 1 if delta is Δ itself."""
        return power_of_two(max(1, self.rank))

    @property
    def tile(self):
        """Steps per tile, a power of two."""
        return min(
            MAX_STEPS, power_of_two(self.length), max(1, MAX_CELLS // (self.block * self.lanes))
        )

    @property
    def tiles(self):
        """Number of tiles."""
        return -(-self.length // self.tile)

    @property
    def chunk(self):
        """Tiles per chunk, which has about √L steps.

        Then both the stored and the recomputed states take little memory.
        """
        return max(1, 2 ** round(math.log2(self.length) / 2) // self.tile)

    @property
    def padded(self):
        """True if some tile has steps, channels or lanes beyond those of the tensors."""
        return (
            self.length % self.tile > 0
            or self.group_channels % self.block > 0
            or self.lanes > self.size
        )

    def warps(self, cells):
        """Return the warps per program.

        A thread has at most `cells` cells of a tile, and STATE_CELLS of one step.
        """
        state = self.block * max(self.lanes, self.ranks)
        return min(
            MAX_WARPS, max(1, self.tile * state // (32 * cells), state // (32 * STATE_CELLS))
        )

    @property
    def partial_shape(self):
        """Shape of the gradients of dt, B and C side by side, for each block of channels."""
        return self.batch, self.blocks, self.length, self.rank + 2 * self.size

    @property
    def sums_widths(self):
        """Numbers of dA, d(dt_weight), d(bias) and dD per batch row, in the sums over time."""
        return self.channels * self.size, self.channels * self.rank, self.channels, self.channels


def power_of_two(n):
    """Return the smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()


# --------------------------------------------------------------------------------------- torch side
class Inputs(NamedTuple):
    """The inputs of the kernels: any floating-point dtype, any strides except in the last five.

    u (B, D, L). delta (B, D, L); with dt_weight (D, R), the R numbers of each step instead, (B, G,
    R, L). B and C (B, G, N, L). A (D, N), D and bias (D,). dt_weight, D and bias may be None.
    """

    u: Tensor
    delta: Tensor
    B: Tensor
    C: Tensor
    dt_weight: Tensor | None
    A: Tensor
    D: Tensor | None
    bias: Tensor | None
    softplus: bool

    def plan(self):
        """Return the plan for these sizes."""
        (batch, channels, length), groups = self.u.shape, (self.B.shape[1], self.C.shape[1])
        rank, groups_dt = (
            (0, 1) if self.dt_weight is None else (self.dt_weight.shape[1], self.delta.shape[1])
        )
        return Plan(batch, length, channels, self.A.shape[1], *groups, groups_dt, rank)


def _launch(kernel, plan, inputs, cells, *arguments):
    """Start a kernel on the device of u: one program for each batch row and block of channels.

    Both kernels take the inputs first, with strides if any layout is allowed.
    """
    sizes = Sizes(
        length=plan.length,
        chunk=plan.chunk,
        tiles=plan.tiles,
        channels=plan.channels,
        group_channels=plan.group_channels,
        blocks=plan.blocks * plan.group_channels // plan.channels,
        per_b=plan.channels // plan.groups_b,
        per_c=plan.channels // plan.groups_c,
        per_dt=plan.channels // plan.groups_dt,
        partial=plan.partial_shape[-1],
        sums=sum(plan.sums_widths),
    )
    u, delta, B, C, dt_weight, A, D, bias, softplus = inputs
    delta = (Rows if dt_weight is None else Steps)(delta, *delta.stride())
    u, B, C = Rows(u, *u.stride()), Steps(B, *B.stride()), Steps(C, *C.stride())
    constants = (
        softplus, plan.padded, plan.size, plan.rank,
        plan.tile, plan.block, plan.lanes, plan.ranks, STAGES,
    )  # fmt: skip
    with torch.cuda.device_of(inputs.u):
        kernel[plan.batch, plan.blocks](
            u, delta, dt_weight, A, B, C, D, bias, *arguments, sizes, *constants,
            num_warps=plan.warps(cells),
        )  # fmt: skip


def forward_pass(inputs, plan, save_states, want_last):
    """Return out (B, L, D) in u's dtype, the states for the backward pass, and the last state.

    The last state is (B, D, N). The latter two are None unless wanted.
    """
    out = inputs.u.new_empty(plan.batch, plan.length, plan.channels)
    # h at the start of every chunk
    shape = plan.batch, -(-plan.tiles // plan.chunk), plan.size, plan.channels
    states = inputs.A.new_empty(shape) if save_states else None
    last = inputs.A.new_empty(plan.batch, plan.channels, plan.size) if want_last else None
    _launch(forward_kernel, plan, inputs, FORWARD_CELLS, out, states, last)
    return out, states, last


def backward_pass(inputs, plan, grad, states):
    """Return the gradients of the inputs from that of out, (B, D, L) of any strides.

    The gradient of an input that is None is None.
    """
    u, dt_weight = inputs.u, inputs.dt_weight
    du = u.new_empty(plan.batch, plan.length, plan.channels)
    partial = states.new_empty(plan.partial_shape)
    # h at the start of each tile of a chunk
    scratch = states.new_empty(plan.batch, plan.blocks, plan.chunk, plan.lanes, plan.block)
    sums = states.new_empty(plan.batch, sum(plan.sums_widths))
    ddelta, dB, dC = partial.split([plan.rank, plan.size, plan.size], -1)
    if dt_weight is None:
        ddelta = inputs.delta.new_empty(du.shape)
    dA, ddt_weight, dbias, dD = sums.split(plan.sums_widths, 1)
    buffers = scratch, du, ddelta, dA, ddt_weight, dB, dC, dD, dbias
    _launch(
        backward_kernel, plan, inputs, BACKWARD_CELLS, Rows(grad, *grad.stride()), states, *buffers
    )

    dA, ddt_weight, dbias, dD = (sums.sum(0) if plan.batch > 1 else sums[0]).split(plan.sums_widths)
    if dt_weight is None:
        ddelta, ddt_weight = ddelta.transpose(1, 2), None
        dB, dC = _join(partial, [inputs.B, inputs.C])
    else:
        ddelta, dB, dC = _join(partial, [inputs.delta, inputs.B, inputs.C])
        ddt_weight = ddt_weight.view(dt_weight.shape)
    dD, dbias = (None if v is None else dv for v, dv in ((inputs.D, dD), (inputs.bias, dbias)))
    return du.transpose(1, 2), ddelta, dB, dC, ddt_weight, dA.view(inputs.A.shape), dD, dbias


def _join(partial, like):
    """Return the gradients (B, G, ·, L) of the tensors `like`, in their dtypes.

    `partial` (B, blocks, L, ·) holds partial sums, those of the tensors side by side. They are
    added over the blocks of each group.
    """
    # group count → (B, G, L, ·)
    sums = {
        groups: partial.unflatten(1, (groups, -1)).sum(2) for groups in {m.shape[1] for m in like}
    }
    ends = [sum(m.shape[2] for m in like[: k + 1]) for k in range(len(like))]
    return [
        sums[m.shape[1]][..., end - m.shape[2] : end].transpose(2, 3).to(m.dtype)
        for m, end in zip(like, ends)
    ]


class _Scan(torch.autograd.Function):
    """The scan as an autograd function of the tensors of `Inputs`.

    A, dt_weight, D and bias are contiguous and float32. The kernels read any layout of the others
    without a copy, and write (B, L, D), contiguous.
    """

    @staticmethod
    def forward(ctx, save_states, want_last, softplus, *tensors):
        inputs = Inputs(*tensors, softplus)
        ctx.softplus, ctx.plan = softplus, inputs.plan()
        out, states, last = forward_pass(inputs, ctx.plan, save_states, want_last)
        if save_states:
            ctx.save_for_backward(*tensors, states)
        if want_last:
            ctx.mark_non_differentiable(last)
        return out, last

    @staticmethod
    @backward_once
    def backward(ctx, grad, _):
        *tensors, states = ctx.saved_tensors
        inputs = Inputs(*tensors, ctx.softplus)
        grads = backward_pass(inputs, ctx.plan, grad.transpose(1, 2), states)
        needed = zip(grads, ctx.needs_input_grad[3:], strict=True)
        return None, None, None, *(g if is_needed else None for g, is_needed in needed)


def _scan(tensors, softplus, want_last):
    save_states = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in tensors
    )
    return _Scan.apply(save_states, bool(want_last), bool(softplus), *tensors)


def scan_triton(u, delta, A, B, C, D=None, delta_bias=None, delta_softplus=False, want_last=True):
    """Compute the scan with the Triton kernels, for any strides, without copies.

    The arguments are those of `selective_scan`, already checked; B and C vary along L. Returns out
    (B, D, L) in u's dtype, a transposed view of a contiguous (B, L, D) tensor, and last_state (B,
    D, N) in float32, without gradient (None unless wanted). Differentiable once, in every
    floating-point argument.
    """
    A, D, bias = (None if v is None else v.float().contiguous() for v in (A, D, delta_bias))
    B, C = (m.unsqueeze(1) if m.dim() == 3 else m for m in (B, C))  # (B, G, N, L)
    out, last = _scan((u, delta, B, C, None, A, D, bias), delta_softplus, want_last)
    return out.transpose(1, 2), last


def low_rank_scan_triton(u, dt, B, C, dt_weight, dt_bias, A_log, D, want_last=False):
    """Compute `low_rank_scan` with Δ in registers, for R up to MAX_RANK; arguments already checked.

    u (B, L, E), dt (B, L, G, R), B and C (B, L, G, N). Returns y (B, L, E) in u's dtype and the
    last state (B, E, N) in float32, which carries no gradient, or None unless wanted.
    Differentiable once.
    """
    dt_weight, A, D, bias = (
        v.float().contiguous() for v in (dt_weight, -torch.exp(A_log), D, dt_bias)
    )
    dt, B, C = (m.permute(0, 2, 3, 1) for m in (dt, B, C))  # (B, G, ·, L)
    return _scan((u.transpose(1, 2), dt, B, C, dt_weight, A, D, bias), True, want_last)
