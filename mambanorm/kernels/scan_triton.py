"""The selective scan on CUDA with our own Triton kernels, forward and backward, in float32.

The kernels are in `scan_triton_loops.py` beside it. The readable twin is
`mambanorm/operations/reference.py`.

How it works. One program has one batch row and one block of channels. It walks through time tile by
tile, up to 8 steps at once, with h in registers. Nothing of size B·L·D·N is stored: the forward
pass keeps h every `chunk` of tiles, about √L steps. The backward pass goes from the last chunk to
the first, recomputes h at the start of the chunk's tiles into a small buffer per program, and the
inside of a tile in registers. There are no atomic additions. Where several programs add to one
result, each writes a partial sum, and these are added up in a fixed order. So the same inputs give
the same bits.

Why so. Each of the B·L·D·N cells needs one exponential, of which a multiprocessor makes 16 a clock,
and 128 products: on an H200, with 132 of them at 1.98 GHz, B·L·D·N/4.2e12 s. That is for (32, 2048,
256) 0.26 ms at N = 64 and 0.06 ms at N = 16. The bytes of u, z and out in bfloat16, 0.1 GB, take
0.03 ms. So the scan is bound by its instructions at every N of use, and the design saves
instructions, not bytes. A scan in parallel over time would need more of them, and is left out: at
B·D/16 of some 500 and more the programs fill a GPU. Three things count. Loads, softplus and gate
are done for a whole tile, once for each step and channel and not once for each n. The sum over N
stays within a thread but for its last additions. And the next tile is loaded while this one is
computed, where a tile has four bytes a thread and more; at N = 64 in bfloat16 a tile is two steps,
too small for that, and each waits for its loads. No register is spilled. AHEAD, BACK, STAGES and
the plan's constants are where to tune on a GPU.

Δ in two factors. With `low` (D, R), Δ = low·dt is made in registers from the R numbers of each
step, and never stored. It takes R products for each step and channel, against 5·N for the scan:
cheap while R is small (`MOST_RANKS`). Stored, Δ would be written and read in the forward pass, and
read, its gradient written, and that read twice in the backward pass: 6·B·L·D numbers, where the
rest of the scan moves 8. Above MOST_RANKS a matrix product is the better way to Δ.

Glossary and source: as in `scan_cpu.py`.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mambanorm.kernels import backward_once
from mambanorm.kernels.scan_triton_loops import Cut, Rows, Steps, backward_kernel, forward_kernel

AHEAD, BACK = (
    64,
    16,
)  # cells of a tile a thread has, forward and backward: as many as the compiler keeps in registers
STAGES = 2  # tiles in flight: the next one is loaded while this one is computed
MOST_RANKS = 16  # R up to which Δ is made inside the kernel
# blocks get narrower until there are so many programs: two per multiprocessor of a large GPU
PROGRAMS = 256
WIDEST, NARROWEST = 32, 16  # channels per block
MOST_CELLS = 4096  # of a tile, and so of a block × N
STEPS = 8  # of a tile at most
OF_STATE = 16  # cells of one step a thread has at most: h and A stay in registers for all of them
MOST_WARPS = (
    8  # of a program: with more, a thread of the backward kernel would have too few registers
)


@dataclass(frozen=True)
class Plan:
    """How one scan is cut up, and the shape of every buffer beyond its inputs, outputs and
    gradients.

    Blocks of channels never cross the border of a group. In units of a tensor of B·L·D·N the
    buffers take 1/chunk for the states at chunk starts, chunk/(tile·L) for those at the starts of a
    chunk's tiles, 1/block each for the partial sums of dB and of dC, and 1/L for the sums over
    time: at L = 1024 9 % with blocks of 32 channels, 16 % with 16.
    """

    batch: int
    length: int
    channels: int
    size: int  # N
    groups_b: int = 1
    groups_c: int = 1
    groups_dt: int = 1
    rank: int = 0  # R, 0 where Δ comes whole

    @property
    def run(self):
        """Channels that share one group of B, one of C and one of dt."""
        return math.gcd(
            *(self.channels // groups for groups in (self.groups_b, self.groups_c, self.groups_dt))
        )

    def blocks_of(self, width):
        """Blocks of that many channels."""
        return self.channels // self.run * -(-self.run // width)

    @property
    def block(self):
        """Channels per block, a power of two."""
        width = WIDEST
        while width > NARROWEST and self.batch * self.blocks_of(width) < PROGRAMS:
            width //= 2
        return min(width, power_of_two(self.run), max(1, MOST_CELLS // self.lanes))

    @property
    def blocks(self):
        return self.blocks_of(self.block)

    @property
    def lanes(self):
        """N filled up to a power of two."""
        return power_of_two(self.size)

    @property
    def ranks(self):
        """R filled up to a power of two; 1 where Δ comes whole."""
        return power_of_two(max(1, self.rank))

    @property
    def tile(self):
        """Steps per tile, a power of two."""
        return min(
            STEPS, power_of_two(self.length), max(1, MOST_CELLS // (self.block * self.lanes))
        )

    @property
    def tiles(self):
        return -(-self.length // self.tile)

    @property
    def chunk(self):
        """Tiles per chunk: of about √L steps, so that what is stored and what is recomputed take
        little memory."""
        return max(1, 2 ** round(math.log2(self.length) / 2) // self.tile)

    @property
    def chunks(self):
        return -(-self.tiles // self.chunk)

    @property
    def padded(self):
        """Whether a tile anywhere has steps, channels or lanes that do not count."""
        return self.length % self.tile > 0 or self.run % self.block > 0 or self.lanes > self.size

    def warps(self, cells):
        """Warps of a program whose threads have at most so many cells of a tile, and OF_STATE of
        one step."""
        state = self.block * max(self.lanes, self.ranks)
        return min(MOST_WARPS, max(1, self.tile * state // (32 * cells), state // (32 * OF_STATE)))

    @property
    def partial_shape(self):
        """The gradients of dt, B and C side by side, one layer per block of channels."""
        return self.batch, self.blocks, self.length, self.rank + 2 * self.size

    @property
    def sums_widths(self):
        """Numbers of dA, d low, d bias and dD in the sums over time, of which each batch row has
        its own."""
        return self.channels * self.size, self.channels * self.rank, self.channels, self.channels


def power_of_two(n):
    """The smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()


# --------------------------------------------------------------------------------------- torch side
class Given(NamedTuple):
    """What the kernels read, of any floating-point dtype and, but for the last five, of any
    strides.

    u (B, D, L). delta (B, D, L); with `low` (D, R) the R numbers of each step instead, (B, G, R,
    L). B and C (B, G, N, L). A (D, N), D and bias (D,). low, D and bias may be None.
    """

    u: Tensor
    delta: Tensor
    B: Tensor
    C: Tensor
    low: Tensor | None
    A: Tensor
    D: Tensor | None
    bias: Tensor | None
    softplus: bool

    def plan(self):
        (batch, channels, length), groups = self.u.shape, (self.B.shape[1], self.C.shape[1])
        rank, groups_dt = (0, 1) if self.low is None else (self.low.shape[1], self.delta.shape[1])
        return Plan(batch, length, channels, self.A.shape[1], *groups, groups_dt, rank)

    def varying(self):
        """What has groups of channels, in the order of their partial sums."""
        return [self.B, self.C] if self.low is None else [self.delta, self.B, self.C]


def _launch(kernel, plan, given, cells, *arguments):
    """Start a kernel on u's device: one program for each batch row and block of channels. Both
    kernels read what is given first, with strides where they take any layout."""
    per = [plan.channels // groups for groups in (plan.groups_b, plan.groups_c, plan.groups_dt)]
    blocks = plan.blocks * plan.run // plan.channels
    widths = plan.partial_shape[-1], sum(plan.sums_widths)
    cut = Cut(plan.length, plan.chunk, plan.tiles, plan.channels, plan.run, blocks, *per, *widths)
    delta = rows(given.delta) if given.low is None else _steps(given.delta)
    read = (
        rows(given.u),
        delta,
        given.low,
        given.A,
        _steps(given.B),
        _steps(given.C),
        given.D,
        given.bias,
    )
    constants = given.softplus, plan.padded, plan.size, plan.rank
    tile = plan.tile, plan.block, plan.lanes, plan.ranks, STAGES
    with torch.cuda.device_of(given.u):
        kernel[plan.batch, plan.blocks](
            *read, *arguments, cut, *constants, *tile, num_warps=plan.warps(cells)
        )


def rows(x):
    """A (B, D, L) tensor as kernels read it."""
    return Rows(x, *x.stride())


def _steps(m):
    return Steps(m, *m.stride())


def forward_pass(given, plan, keep, want_last):
    """out (B, L, D) in u's dtype; the states for the backward pass and the last one (B, D, N), None
    unless wanted."""
    out = given.u.new_empty(plan.batch, plan.length, plan.channels)
    shape = plan.batch, plan.chunks, plan.size, plan.channels  # h at the start of every chunk
    states = given.A.new_empty(shape) if keep else None
    last = given.A.new_empty(plan.batch, plan.channels, plan.size) if want_last else None
    _launch(forward_kernel, plan, given, AHEAD, out, states, last)
    return out, states, last


def backward_pass(given, plan, grad, states):
    """The gradients of what is given, from that of out, (B, D, L) of any strides; None where there
    is none."""
    u, low = given.u, given.low
    du = u.new_empty(plan.batch, plan.length, plan.channels)
    partial = states.new_empty(plan.partial_shape)
    scratch = states.new_empty(
        plan.batch, plan.blocks, plan.chunk, plan.lanes, plan.block
    )  # h, tile by tile
    sums = states.new_empty(plan.batch, sum(plan.sums_widths))
    ddelta, dB, dC = partial.split([plan.rank, plan.size, plan.size], -1)
    if low is None:
        ddelta = given.delta.new_empty(du.shape)
    dA, dlow, dbias, dD = sums.split(plan.sums_widths, 1)
    buffers = scratch, du, ddelta, dA, dlow, dB, dC, dD, dbias
    _launch(backward_kernel, plan, given, BACK, rows(grad), states, *buffers)

    dA, dlow, dbias, dD = (sums.sum(0) if plan.batch > 1 else sums[0]).split(plan.sums_widths)
    narrow = _join(partial, given.varying())
    delta = ddelta.transpose(1, 2) if low is None else narrow.pop(0)
    dlow = None if low is None else dlow.view(low.shape)
    dD, dbias = (None if v is None else dv for v, dv in ((given.D, dD), (given.bias, dbias)))
    return du.transpose(1, 2), delta, *narrow, dlow, dA.view(given.A.shape), dD, dbias


def _join(partial, like):
    """Adds up partial sums (B, blocks, L, ·) over the blocks of each group to gradients (B, G, ·,
    L) of what stands side by side in them."""
    sums = {
        groups: partial.unflatten(1, (groups, -1)).sum(2) for groups in {m.shape[1] for m in like}
    }  # (B, G, L, ·)
    ends = [sum(m.shape[2] for m in like[: k + 1]) for k in range(len(like))]
    return [
        sums[m.shape[1]][..., end - m.shape[2] : end].transpose(2, 3).to(m.dtype)
        for m, end in zip(like, ends)
    ]


class _Scan(torch.autograd.Function):
    """The tensors of `Given`, A, low, D and bias contiguous in float32.

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
        grads = backward_pass(Given(*tensors, ctx.softplus), ctx.plan, grad.transpose(1, 2), states)
        asked = zip(grads, ctx.needs_input_grad[3:], strict=True)
        return None, None, None, *(value if needed else None for value, needed in asked)


def _scan(tensors, softplus, want_last):
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    return _Scan.apply(keep, bool(want_last), bool(softplus), *tensors)


def scan_triton(u, delta, A, B, C, D=None, delta_bias=None, delta_softplus=False, want_last=True):
    """The scan with the Triton kernels; arguments as `selective_scan`, already checked; B and C
    vary along L. Takes any strides, no copies.

    Returns out (B, D, L) in u's dtype, a transposed view of a contiguous (B, L, D) tensor, and
    last_state (B, D, N) in float32, without gradient (None unless wanted). Differentiable once, in
    every floating-point argument.
    """
    A, D, bias = (None if v is None else v.float().contiguous() for v in (A, D, delta_bias))
    B, C = (m.unsqueeze(1) if m.dim() == 3 else m for m in (B, C))  # (B, G, N, L)
    out, last = _scan((u, delta, B, C, None, A, D, bias), delta_softplus, want_last)
    return out.transpose(1, 2), last


def low_rank_scan_triton(u, dt, B, C, dt_weight, dt_bias, A_log, D, want_last=False):
    """As `low_rank_scan`, already checked, for at most MOST_RANKS numbers of Δ a step: Δ is made in
    registers.

    u (B, L, E), dt (B, L, G, R), B and C (B, L, G, N) → y (B, L, E) in u's dtype and, if wanted,
    the last state (B, E, N) in float32 or None. Differentiable once; the last state carries no
    gradient.
    """
    low, A, D, bias = (v.float().contiguous() for v in (dt_weight, -torch.exp(A_log), D, dt_bias))
    dt, B, C = (m.permute(0, 2, 3, 1) for m in (dt, B, C))  # (B, G, ·, L)
    return _scan((u.transpose(1, 2), dt, B, C, low, A, D, bias), True, want_last)
