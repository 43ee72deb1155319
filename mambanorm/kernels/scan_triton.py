"""The selective scan on NVIDIA GPUs in Triton, parallel over time, in float32.

The kernels are in scan_triton_loops.py. The readable twin is operations/reference.py.

How it works. The sequence is cut into chunks, and every program computes one chunk, so that a GPU
has enough programs. Forward, three kernels run:

1. `ends_kernel` computes h at the end of each chunk as if h were 0 before it, and Σ Δ of the chunk.
2. `join_kernel` goes from chunk to chunk, h = exp(A·Σ Δ)·h + end, and gives h before each chunk.
3. `output_kernel` computes the outputs of each chunk from h before it.

Backward, the first two kernels run from right to left for the gradient g = dL/dh after each chunk.
Then `gradient_kernel` recomputes h inside each chunk, tile by tile, and goes through the tiles from
right to left. No tensor of B·L·D·N numbers is stored: h and g are stored once per chunk. There are
no atomic additions, so the same inputs give the same bits.

Why. The scan has B·L·D·N cells, one per step, channel and state index. A cell takes 5 exponentials,
one per kernel that computes it and two in `gradient_kernel`, and about 60 instructions. A scan that
is sequential over time needs only 3 exponentials, but it has too few programs, and each of them
waits for its loads: it took 2.5 to 5 times as long on an H200.

The distribution of the cells of a tile to threads decides the speed (`Plan.tile`). All steps of a
cell belong to one thread. A thread has CELLS cells of each step, of several channels and states, so
that sums over channels (dB, dC) and over states (out, du, dΔ) are mostly sums inside a thread. The
lanes of a warp have further channels and states, and further warps have further states. The next
tile is loaded while the current tile is computed. The compiler keeps nearly everything in up to 255
registers per thread, so that 8 warps run at the same time on each multiprocessor.

Glossary and source: scan_cpu.py.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from mambanorm.kernels import backward_once
from mambanorm.kernels.gluon import BlockedLayout
from mambanorm.kernels.scan_triton_loops import (
    ChannelTensor,
    GroupTensor,
    Sizes,
    Tile,
    ends_kernel,
    gradient_kernel,
    join_kernel,
    output_kernel,
)

CHUNK = 64  # steps per chunk; twice as many for sequences longer than LONG
LONG = 4096
FORWARD_STEPS, BACKWARD_STEPS = 4, 2  # steps per tile; more would need more registers
CELLS = 16  # cells of one step per thread
N_LANES = 4  # at most this many lanes of a warp share the states of one channel,
N_REGISTERS = 8  # at most this many states of one channel are in one thread (more if N > 128),
N_WARPS = 4  # and at most this many warps share the states of one channel
WARPS_PER_MULTIPROCESSOR = 8  # of `gradient_kernel`, at the same time
LEAST_LOAD = 0.85  # smallest accepted items / (rounds · programs): how busy the GPU is
JOIN_CELLS = 128  # cells per program of `join_kernel`


@dataclass(frozen=True)
class Plan:
    """The division of one scan into chunks, blocks of channels, and tiles.

    Blocks of channels never cross the border of a group.
    """

    batch: int
    length: int
    channels: int
    state_size: int  # N
    groups_b: int = 1
    groups_c: int = 1
    multiprocessors: int = 1

    @property
    def group_channels(self):
        """Number of neighbouring channels that share the same groups of B and C."""
        return math.gcd(self.channels // self.groups_b, self.channels // self.groups_c)

    @cached_property
    def chunk(self):
        """Steps per chunk, a multiple of the steps of a tile.

        If possible it divides L, because kernels for incomplete tiles are slower.
        """
        target = CHUNK if self.length <= LONG else 2 * CHUNK
        if self.length <= target:
            return -(-self.length // FORWARD_STEPS) * FORWARD_STEPS
        sizes = range(CHUNK // 2, 2 * CHUNK + 1, FORWARD_STEPS)
        return min(
            (size for size in sizes if self.length % size == 0),
            key=lambda size: abs(size - target),
            default=target,
        )

    @property
    def chunks(self):
        """Number of chunks in a sequence."""
        return -(-self.length // self.chunk)

    def tile(self, steps):
        """Return the tile of a kernel: its sizes, and the layouts of its tensors."""
        states = power_of_two(self.state_size)
        n_lanes = min(N_LANES, states)
        n_warps = min(N_WARPS, max(1, states // (n_lanes * N_REGISTERS)))
        n_registers = states // (n_lanes * n_warps)
        d_lanes = 32 // n_lanes
        d_registers = min(
            max(1, CELLS // n_registers), max(1, power_of_two(self.group_channels) // d_lanes)
        )
        channels = d_registers * d_lanes
        cells = BlockedLayout(
            [steps, 1, n_registers], [1, d_lanes, n_lanes], [1, 1, n_warps], [2, 1, 0]
        )
        return Tile(
            steps, channels, states, cells, _rows(channels, n_warps), _rows(states, n_warps)
        )

    def blocks(self, tile):
        """Return the number of blocks of channels per group, and of all channels."""
        per_group = -(-self.group_channels // tile.channels)
        return per_group, self.channels // self.group_channels * per_group

    def is_padded(self, tile):
        """Return True if some tile extends beyond L, beyond a group's channels or beyond N."""
        return (
            self.length % self.chunk > 0
            or self.group_channels % tile.channels > 0
            or tile.states > self.state_size
        )

    def concurrent_programs(self, tile):
        """Return how many programs of `gradient_kernel` run at the same time."""
        return max(1, self.multiprocessors * WARPS_PER_MULTIPROCESSOR // warps(tile))

    def part_blocks(self, tile):
        """Return how many blocks of channels one program of `gradient_kernel` computes per chunk.

        They share one partial sum of dB and dC, so the most blocks that keep the GPU busy need the
        least memory.
        """
        per_group, blocks = self.blocks(tile)
        programs = self.concurrent_programs(tile)
        for size in range(per_group, 1, -1):
            items = self.batch * self.chunks * (blocks // size)
            rounds = -(-items // programs)
            if per_group % size == 0 and items >= LEAST_LOAD * rounds * programs:
                return size
        return 1

    def sizes(self, tile, part_blocks=1):
        """Return the sizes that the kernels need."""
        per_group, blocks = self.blocks(tile)
        return Sizes(
            length=self.length,
            chunk=self.chunk,
            chunks=self.chunks,
            channels=self.channels,
            group_channels=self.group_channels,
            group_blocks=per_group,
            blocks=blocks,
            per_b=self.channels // self.groups_b,
            per_c=self.channels // self.groups_c,
            part_blocks=part_blocks,
            items=self.batch * self.chunks * (blocks // part_blocks),
        )


def power_of_two(n):
    """Return the smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()


def warps(tile):
    """Return the number of warps per program."""
    return math.prod(tile.cells.warps_per_cta)


def _rows(width, n_warps):
    """Return the layout of a tensor (steps, width) whose rows are contiguous in memory."""
    lanes, across = min(32, width), min(n_warps, max(1, width // 32))
    return BlockedLayout([1, 1], [32 // lanes, lanes], [n_warps // across, across], [1, 0])


# --------------------------------------------------------------------------------------- torch side
class Inputs(NamedTuple):
    """The inputs of the kernels, of any floating-point dtype.

    u and delta are (B, D, L), B and C are (B, G, N, L), A is (D, N), D and bias are (D,) or None.
    u, delta, B and C may have any strides; A, D and bias must be contiguous.
    """

    u: Tensor
    delta: Tensor
    B: Tensor
    C: Tensor
    A: Tensor
    D: Tensor | None
    bias: Tensor | None
    softplus: bool

    def plan(self):
        """Return the plan of the scan of these inputs."""
        batch, channels, length = self.u.shape
        groups_b, groups_c = self.B.shape[1], self.C.shape[1]
        count = 1
        if self.u.is_cuda:
            count = torch.cuda.get_device_properties(self.u.device).multi_processor_count
        return Plan(batch, length, channels, self.A.shape[1], groups_b, groups_c, count)


def _channel_tensor(m):
    return ChannelTensor(m, *m.stride())


def _group_tensor(m):
    return GroupTensor(m, *m.stride())


def _states_between_chunks(inputs, plan, is_reversed, x, matrix):
    """Return h before each chunk (B, chunks, D, N), computed from x = u and matrix = B.

    If `is_reversed`, return a·g of the first step after each chunk, from x = dL/dout and
    matrix = C.
    """
    tile = plan.tile(FORWARD_STEPS)
    sizes = plan.sizes(tile)._replace(per_b=plan.channels // matrix.shape[1])
    N = plan.state_size
    ends = inputs.A.new_empty(plan.batch, plan.chunks, plan.channels, N)
    totals = inputs.A.new_empty(plan.batch, plan.chunks, plan.channels)
    ends_kernel[(plan.batch * plan.chunks * sizes.blocks,)](
        _channel_tensor(x), _channel_tensor(inputs.delta), inputs.A, _group_tensor(matrix),
        inputs.bias, ends, totals, sizes, is_reversed, inputs.softplus, plan.is_padded(tile), N,
        tile, num_warps=warps(tile),
    )  # fmt: skip
    layout = BlockedLayout([1], [32], [JOIN_CELLS // 32], [0])
    # one axis, because CUDA limits the others to 65,535
    join_kernel[(-(-N * plan.channels // JOIN_CELLS) * plan.batch,)](
        ends, totals, inputs.A, plan.chunks, plan.channels, is_reversed, N, JOIN_CELLS, layout,
        num_warps=JOIN_CELLS // 32,
    )  # fmt: skip
    return ends


def forward_pass(inputs, plan, want_last):
    """Return out (B, L, D) in u's dtype, h before each chunk, and the last state.

    h before each chunk is None if there is one chunk. The last state is (B, D, N) if `want_last`,
    else None.
    """
    u, delta, B, C, A, D, bias, softplus = inputs
    out = u.new_empty(plan.batch, plan.length, plan.channels)
    last = A.new_empty(plan.batch, plan.channels, plan.state_size) if want_last else None
    with torch.cuda.device_of(u):
        states = None if plan.chunks == 1 else _states_between_chunks(inputs, plan, False, u, B)
        tile = plan.tile(FORWARD_STEPS)
        sizes = plan.sizes(tile)
        output_kernel[(plan.batch * plan.chunks * sizes.blocks,)](
            _channel_tensor(u), _channel_tensor(delta), A, _group_tensor(B), _group_tensor(C), D,
            bias, out, states, last, sizes, softplus, plan.is_padded(tile), plan.state_size, tile,
            num_warps=warps(tile),
        )  # fmt: skip
    return out, states, last


def backward_pass(inputs, plan, grad, states):
    """Return the gradients of the tensors of `inputs`, from grad = dL/dout (B, D, L).

    grad may have any strides. For an input that is None, the gradient is None.
    """
    u, delta, B, C, A, D, bias, softplus = inputs
    N = plan.state_size
    tile = plan.tile(BACKWARD_STEPS)
    part_blocks = plan.part_blocks(tile)
    sizes = plan.sizes(tile, part_blocks)
    programs = min(sizes.items, plan.concurrent_programs(tile))
    du = u.new_empty(plan.batch, plan.length, plan.channels)
    ddelta = delta.new_empty(du.shape)
    parts = plan.batch, sizes.blocks // part_blocks, plan.length, N
    dB, dC = A.new_empty(parts), A.new_empty(parts)
    sums = A.new_empty(plan.batch, plan.chunks, 2, plan.channels)
    # h at the start of each tile of the current chunk
    scratch = A.new_empty(programs, plan.chunk // tile.steps, tile.channels, tile.states)
    with torch.cuda.device_of(u):
        if plan.chunks == 1:
            after = A.new_empty(plan.batch, 1, plan.channels, N)
        else:
            after = _states_between_chunks(inputs, plan, True, grad, C)
        gradient_kernel[(programs,)](
            _channel_tensor(u), _channel_tensor(delta), A, _group_tensor(B), _group_tensor(C), D,
            bias, _channel_tensor(grad), states, after, scratch, du, ddelta, dB, dC, sums, sizes,
            softplus, plan.is_padded(tile), N, tile, num_warps=warps(tile),
        )  # fmt: skip
    dbias, dD = sums.sum((0, 1))
    dA = after.sum((0, 1))  # the kernel has replaced a·g by dA of the chunk
    dB, dC = _sum_parts(dB, B), _sum_parts(dC, C)
    dD, dbias = (None if v is None else dv for v, dv in ((D, dD), (bias, dbias)))
    return du.transpose(1, 2), ddelta.transpose(1, 2), dB, dC, dA, dD, dbias


def _sum_parts(partial, matrix):
    """Return the gradient (B, G, N, L) of B or C from the sums of its parts, (B, parts, L, N)."""
    parts = partial.unflatten(1, (matrix.shape[1], -1))
    total = parts.sum(2) if parts.shape[2] > 1 else parts[:, :, 0]
    return total.to(matrix.dtype).transpose(2, 3)


class _Scan(torch.autograd.Function):
    """The scan as an autograd function of the tensors of `Inputs`.

    A, D and bias must be contiguous and float32. The kernels read u, delta, B and C in any layout
    without a copy, and write contiguous tensors (B, L, D).
    """

    @staticmethod
    def forward(ctx, want_last, softplus, *tensors):
        inputs = Inputs(*tensors, softplus)
        ctx.softplus, ctx.plan = softplus, inputs.plan()
        out, states, last = forward_pass(inputs, ctx.plan, want_last)
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
        needed = zip(grads, ctx.needs_input_grad[2:], strict=True)
        return None, None, *(g if is_needed else None for g, is_needed in needed)


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
    out, last = _Scan.apply(bool(want_last), bool(delta_softplus), u, delta, B, C, A, D, bias)
    return out.transpose(1, 2), last
