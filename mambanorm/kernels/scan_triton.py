"""The selective scan on CUDA in Triton, forward and backward, in float32.

The kernels are in scan_triton_loops.py. The readable twin is operations/reference.py.

How it works. Each program computes one batch row and one block of channels. The program goes
through time tile by tile, up to 8 steps per tile, with h in registers. Several tiles, together
about √L steps, are a chunk. No tensor of B·L·D·N numbers is stored: the forward pass stores h only
at the start of each chunk. The backward pass goes from the last chunk to the first. For each chunk
it recomputes h at the start of every tile into a small buffer per program, and then the states
inside a tile in registers. There are no atomic additions. Where several programs contribute to one
result, each program writes a partial sum, and the partial sums are added in a fixed order. So the
same inputs give the same bits.

Why. The scan has B·L·D·N cells, one per step, channel and state index. Each cell needs one
exponential. A multiprocessor computes 16 exponentials per clock, but 128 products. An H200 has 132
multiprocessors at 1.98 GHz, so the exponentials take B·L·D·N/4.2e12 s: for (B, L, D) = (32, 2048,
256) this is 0.26 ms at N = 64 and 0.06 ms at N = 16. The bytes of u, z and out in bfloat16, 0.1 GB,
take 0.03 ms. So instructions limit the scan at every N in use, and the design saves instructions,
not bytes. A scan in parallel over time would need more instructions than this one, and it would not
help, because about 500 programs (B·D/16) already fill a GPU.

Three choices save time. Loads and softplus are computed for a whole tile, once per step and channel
instead of once per cell. The sum over N stays within a thread except for its last additions. And
the next tile is loaded while the current tile is computed, if a tile has at least four bytes per
thread. At N = 64 in bfloat16 a tile has only two steps and less than that, so each tile waits for
its loads. No register is spilled. To tune on a GPU, change FORWARD_CELLS, BACKWARD_CELLS, STAGES
and the constants after them.

Δ from two factors. With dt_weight (D, R), the kernels compute Δ = dt_weight·dt in registers from R
numbers per step, and never store Δ. This takes R products per step and channel, while the scan
takes 5·N, so it is cheap for R up to MAX_RANK. A stored Δ would be written and read in the forward
pass and read again in the backward pass; its gradient would be written once and read twice. That is
6·B·L·D numbers, compared with 8·B·L·D for the rest of the scan. Above MAX_RANK a matrix product is
the better way to compute Δ.

Glossary and source: scan_cpu.py.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mambanorm.kernels import backward_once
from mambanorm.kernels.scan_triton_loops import (
    ChannelTensor,
    GroupTensor,
    Sizes,
    backward_kernel,
    forward_kernel,
)

# Cells of a tile per thread: as many as the compiler keeps in registers. A tile has one cell per
# step, channel and state index.
FORWARD_CELLS, BACKWARD_CELLS = 64, 16
STAGES = 2  # tiles in flight: the next tile is loaded while the current one is computed
MAX_RANK = 16  # largest R for which the kernels compute Δ
# Blocks are narrowed until at least this many programs run: two per multiprocessor of a large GPU.
MIN_PROGRAMS = 256
MAX_BLOCK, MIN_BLOCK = 32, 16  # most and fewest channels per block
MAX_CELLS = 4096  # most cells per tile, and so the largest product of block and N
MAX_STEPS = 8  # most steps per tile
STATE_CELLS = 16  # most cells of one step per thread; their h and A stay in registers
# With more warps per program, a thread of the backward kernel would have too few registers.
MAX_WARPS = 8


@dataclass(frozen=True)
class Plan:
    """The division of one scan into blocks, chunks and tiles, and the shapes of its buffers.

    Blocks of channels never cross the border of a group.

    The buffers take these fractions of a tensor of B·L·D·N numbers, with c steps per chunk: 1/c for
    the states at chunk starts; c/(tile·L) for the states at the starts of one chunk's tiles;
    1/block for the partial sums of dB and as much for those of dC; 1/L for the sums over time. At
    L = 1024 the total is 10 % with blocks of 32 channels and 16 % with blocks of 16.
    """

    batch: int
    length: int
    channels: int
    state_size: int  # N
    groups_b: int = 1
    groups_c: int = 1
    groups_dt: int = 1
    rank: int = 0  # R, or 0 if delta is Δ itself

    @property
    def group_channels(self):
        """Number of neighbouring channels that share the same groups of B, C and dt."""
        return math.gcd(
            *(self.channels // groups for groups in (self.groups_b, self.groups_c, self.groups_dt))
        )

    def count_blocks(self, width):
        """Return the number of blocks if a block has at most `width` channels."""
        return self.channels // self.group_channels * -(-self.group_channels // width)

    @property
    def block(self):
        """Channels per block, a power of two."""
        width = MAX_BLOCK
        while width > MIN_BLOCK and self.batch * self.count_blocks(width) < MIN_PROGRAMS:
            width //= 2
        return min(width, power_of_two(self.group_channels), max(1, MAX_CELLS // self.padded_n))

    @property
    def blocks(self):
        """Number of blocks of channels."""
        return self.count_blocks(self.block)

    @property
    def padded_n(self):
        """N rounded up to a power of two."""
        return power_of_two(self.state_size)

    @property
    def padded_rank(self):
        """R rounded up to a power of two; 1 if delta is Δ itself."""
        return power_of_two(max(1, self.rank))

    @property
    def tile(self):
        """Steps per tile, a power of two."""
        return min(
            MAX_STEPS, power_of_two(self.length), max(1, MAX_CELLS // (self.block * self.padded_n))
        )

    @property
    def tiles(self):
        """Number of tiles in a sequence."""
        return -(-self.length // self.tile)

    @property
    def chunk(self):
        """Tiles per chunk.

        A chunk has about √L steps, so both the stored and the recomputed states take little memory.
        """
        return max(1, 2 ** round(math.log2(self.length) / 2) // self.tile)

    @property
    def is_padded(self):
        """True if some tile extends beyond L, beyond a group's channels or beyond N."""
        return (
            self.length % self.tile > 0
            or self.group_channels % self.block > 0
            or self.padded_n > self.state_size
        )

    def warps(self, max_cells):
        """Return the number of warps per program.

        There are at most MAX_WARPS. Up to this limit, a thread has at most `max_cells` cells of a
        tile, and at most STATE_CELLS cells of one step.
        """
        state = self.block * max(self.padded_n, self.padded_rank)
        return min(
            MAX_WARPS, max(1, self.tile * state // (32 * max_cells), state // (32 * STATE_CELLS))
        )

    @property
    def partial_shape(self):
        """Shape of the partial sums per block of channels: d(dt), dB and dC side by side."""
        return self.batch, self.blocks, self.length, self.rank + 2 * self.state_size

    @property
    def sums_widths(self):
        """Sizes, per batch row, of the sums over time: of dA, d(dt_weight), d(bias) and dD."""
        return (
            self.channels * self.state_size,
            self.channels * self.rank,
            self.channels,
            self.channels,
        )


def power_of_two(n):
    """Return the smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()


# --------------------------------------------------------------------------------------- torch side
class Inputs(NamedTuple):
    """The inputs of the kernels, of any floating-point dtype.

    u is (B, D, L), B and C are (B, G, N, L), A is (D, N), D and bias are (D,). Without dt_weight,
    delta is (B, D, L). With dt_weight (D, R), delta holds R numbers per step, (B, G, R, L).
    dt_weight, D and bias may be None. u, delta, B and C may have any strides; dt_weight, A, D and
    bias must be contiguous.
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
        """Return the plan of the scan of these inputs."""
        (batch, channels, length), groups = self.u.shape, (self.B.shape[1], self.C.shape[1])
        rank, groups_dt = (
            (0, 1) if self.dt_weight is None else (self.dt_weight.shape[1], self.delta.shape[1])
        )
        return Plan(batch, length, channels, self.A.shape[1], *groups, groups_dt, rank)


def _launch(kernel, plan, inputs, max_cells, *arguments):
    """Start a kernel on the device of u, with one program per batch row and block of channels.

    Both kernels take the inputs first, and then `arguments`. u, delta, B and C are passed with
    their strides.
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
    delta = (ChannelTensor if dt_weight is None else GroupTensor)(delta, *delta.stride())
    u, B, C = (
        ChannelTensor(u, *u.stride()),
        GroupTensor(B, *B.stride()),
        GroupTensor(C, *C.stride()),
    )
    constants = (
        softplus, plan.is_padded, plan.state_size, plan.rank,
        plan.tile, plan.block, plan.padded_n, plan.padded_rank, STAGES,
    )  # fmt: skip
    with torch.cuda.device_of(inputs.u):
        kernel[plan.batch, plan.blocks](
            u, delta, dt_weight, A, B, C, D, bias, *arguments, sizes, *constants,
            num_warps=plan.warps(max_cells),
        )  # fmt: skip


def forward_pass(inputs, plan, save_states, want_last):
    """Return out (B, L, D) in u's dtype, the states for the backward pass, and the last state.

    The states are None unless `save_states`. The last state is (B, D, N) if `want_last`, else None.
    """
    out = inputs.u.new_empty(plan.batch, plan.length, plan.channels)
    # h at the start of every chunk
    shape = plan.batch, -(-plan.tiles // plan.chunk), plan.state_size, plan.channels
    states = inputs.A.new_empty(shape) if save_states else None
    last = inputs.A.new_empty(plan.batch, plan.channels, plan.state_size) if want_last else None
    _launch(forward_kernel, plan, inputs, FORWARD_CELLS, out, states, last)
    return out, states, last


def backward_pass(inputs, plan, grad, states):
    """Return the gradients of the inputs, from grad = dL/dout (B, D, L) with any strides.

    For an input that is None, the gradient is None.
    """
    u, dt_weight = inputs.u, inputs.dt_weight
    du = u.new_empty(plan.batch, plan.length, plan.channels)
    partial = states.new_empty(plan.partial_shape)
    # h at the start of each tile of the current chunk
    scratch = states.new_empty(plan.batch, plan.blocks, plan.chunk, plan.padded_n, plan.block)
    sums = states.new_empty(plan.batch, sum(plan.sums_widths))
    ddelta, dB, dC = partial.split([plan.rank, plan.state_size, plan.state_size], -1)
    if dt_weight is None:
        ddelta = inputs.delta.new_empty(du.shape)
    dA, ddt_weight, dbias, dD = sums.split(plan.sums_widths, 1)
    buffers = scratch, du, ddelta, dA, ddt_weight, dB, dC, dD, dbias
    _launch(
        backward_kernel,
        plan,
        inputs,
        BACKWARD_CELLS,
        ChannelTensor(grad, *grad.stride()),
        states,
        *buffers,
    )

    dA, ddt_weight, dbias, dD = (sums.sum(0) if plan.batch > 1 else sums[0]).split(plan.sums_widths)
    if dt_weight is None:
        ddelta, ddt_weight = ddelta.transpose(1, 2), None
        dB, dC = _sum_partial(partial, [inputs.B, inputs.C])
    else:
        ddelta, dB, dC = _sum_partial(partial, [inputs.delta, inputs.B, inputs.C])
        ddt_weight = ddt_weight.view(dt_weight.shape)
    dD, dbias = (None if v is None else dv for v, dv in ((inputs.D, dD), (inputs.bias, dbias)))
    return du.transpose(1, 2), ddelta, dB, dC, ddt_weight, dA.view(inputs.A.shape), dD, dbias


def _sum_partial(partial, tensors):
    """Return the gradients (B, G, ·, L) of `tensors`, each in the dtype of its tensor.

    `partial` (B, blocks, L, ·) holds the gradients' partial sums side by side, in the order of
    `tensors`. The partial sums are added over the blocks of each group.
    """
    # a map from the number of groups G to the sums (B, G, L, ·)
    sums = {
        groups: partial.unflatten(1, (groups, -1)).sum(2)
        for groups in {m.shape[1] for m in tensors}
    }
    ends = [sum(m.shape[2] for m in tensors[: k + 1]) for k in range(len(tensors))]
    return [
        sums[m.shape[1]][..., end - m.shape[2] : end].transpose(2, 3).to(m.dtype)
        for m, end in zip(tensors, ends)
    ]


class _Scan(torch.autograd.Function):
    """The scan as an autograd function of the tensors of `Inputs`.

    A, dt_weight, D and bias must be contiguous and float32. The kernels read u, delta, B and C in
    any layout without a copy, and write contiguous tensors (B, L, D).
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
    """Compute the scan with the Triton kernels.

    The arguments are those of `selective_scan`, already checked; B and C vary along L. u, delta, B
    and C may have any strides and are not copied. Returns out (B, D, L) in u's dtype, a transposed
    view of a contiguous (B, L, D) tensor; and last_state, which is (B, D, N) in float32 without
    gradient if `want_last`, else None. Differentiable once, with respect to every floating-point
    argument.
    """
    A, D, bias = (None if v is None else v.float().contiguous() for v in (A, D, delta_bias))
    B, C = (m.unsqueeze(1) if m.dim() == 3 else m for m in (B, C))  # (B, G, N, L)
    out, last = _scan((u, delta, B, C, None, A, D, bias), delta_softplus, want_last)
    return out.transpose(1, 2), last


def low_rank_scan_triton(u, dt, B, C, dt_weight, dt_bias, A_log, D, want_last=False):
    """Compute `low_rank_scan` with the Triton kernels, for R up to MAX_RANK, without storing Δ.

    The arguments are already checked: u (B, L, E), dt (B, L, G, R), B and C (B, L, G, N). Returns
    y (B, L, E) in u's dtype and the last state, which is (B, E, N) in float32 without gradient if
    `want_last`, else None. Differentiable once.
    """
    dt_weight, A, D, bias = (
        v.float().contiguous() for v in (dt_weight, -torch.exp(A_log), D, dt_bias)
    )
    dt, B, C = (m.permute(0, 2, 3, 1) for m in (dt, B, C))  # (B, G, ·, L)
    return _scan((u.transpose(1, 2), dt, B, C, dt_weight, A, D, bias), True, want_last)
