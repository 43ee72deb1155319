"""The selective scan on CUDA with our own Triton kernels, forward and backward, in float32, where mamba-ssm is missing.

Map of the file
---------------
1. `obstacle`   why the kernels cannot run on a device, or None if they can
2. `Plan`   cuts the work and sizes every buffer, so that the memory it promises is the memory used
3. `_Scan`, `scan_triton`   the autograd function and the conversion from mamba-ssm's layout to the kernels'

The kernels are in `mambanorm/kernels/scan_triton_loops.py`. The readable twin is `mambanorm/ssm/reference.py`.

How it works. One program has one batch row and one block of channels and walks through time with h in registers.
Nothing of size B·L·D·N is stored: the forward pass keeps h every `chunk` steps, about √L, and the backward pass goes
from the last chunk to the first and recomputes the inside of a chunk into a buffer per program. There are no atomic
additions. Where several programs add to one result, each writes a partial sum, and these are added up in a fixed order.
So the same inputs give the same bits.

Glossary: B batch, L length, D channels, N state size, G groups of channels that share B and C; u input, delta (Δ) step
size, A decay rate, B_t and C_t input and output vectors, z gate, h state.

Source: Gu & Dao 2023, "Mamba", section 3.3 and algorithm 2 (arguments and results as state-spaces/mamba's
`selective_scan_fn`); storing chunk starts and recomputing is the paper's recomputation, section 3.3.2.
"""

import functools
import importlib
import math
from dataclasses import dataclass

import torch

from mambanorm.kernels.once_differentiable import backward_once

PROGRAMS = 256  # blocks get narrower until there are so many programs: about two per multiprocessor of a large GPU
WIDEST, NARROWEST = 32, 16  # channels per block
CELLS_PER_WARP, MOST_CELLS = 256, 4096  # of a tile, block × N: 8 a thread, so that all its tiles fit into registers


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


@dataclass(frozen=True)
class Plan:
    """How one scan is cut up, and the shape of every buffer beyond its inputs, outputs and gradients.

    Blocks of channels never cross the border of a group. In units of a tensor of B·L·D·N the buffers take 1/chunk for
    the states at chunk starts, chunk/L for the recomputed ones, 1/block each for the partial sums of dB and of dC where
    they vary in time, and 1/L each for the other sums: at L = 1024 13 % with blocks of 32 channels, 19 % with 16.
    """

    batch: int
    length: int
    channels: int
    size: int  # N
    groups_b: int = 1
    groups_c: int = 1

    @property
    def run(self):
        """Channels that share one group of B and one of C."""
        return math.gcd(self.channels // self.groups_b, self.channels // self.groups_c)

    def blocks_of(self, width):
        """Blocks of that many channels."""
        return self.channels // self.run * -(-self.run // width)

    @property
    def block(self):
        """Channels per block, a power of two."""
        width = WIDEST
        while width > NARROWEST and self.batch * self.blocks_of(width) < PROGRAMS:
            width //= 2
        return min(width, _power_of_two(self.run), max(1, MOST_CELLS // self.lanes))

    @property
    def blocks(self):
        return self.blocks_of(self.block)

    @property
    def lanes(self):
        """N filled up to a power of two."""
        return _power_of_two(self.size)

    @property
    def chunk(self):
        """Steps per chunk, a power of two near √L: what is stored and what is recomputed take the same memory."""
        return 2 ** max(2, round(math.log2(self.length) / 2))

    @property
    def chunks(self):
        return -(-self.length // self.chunk)

    @property
    def warps(self):
        return min(16, max(1, self.block * self.lanes // CELLS_PER_WARP))

    @property
    def states_shape(self):
        """h at the start of every chunk."""
        return self.batch, self.chunks, self.channels, self.size

    @property
    def scratch_shape(self):
        """The states of one chunk, for every program."""
        return self.batch, self.blocks, self.chunk, self.block, self.lanes

    @property
    def partial_shape(self):
        """dB or dC that varies in time, one layer per block of channels."""
        return self.batch, self.blocks, self.length, self.size

    @property
    def sums_shape(self):
        """dA, or dB or dC of a constant, one layer per batch row; without N: dD and d(delta_bias)."""
        return self.batch, self.channels, self.size

    @property
    def extra_bytes(self):
        """Bytes of forward plus backward beyond inputs, outputs and gradients, B and C varying in time."""
        partial = 2 * math.prod(self.partial_shape) + math.prod(self.sums_shape) + 2 * self.batch * self.channels
        return 4 * (math.prod(self.states_shape) + math.prod(self.scratch_shape) + partial)


def _power_of_two(n):
    """The smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()


# ----------------------------------------------------------------------------------------------------------- torch side
def _launch(kernel, plan, softplus, u, *arguments):
    """Start a kernel on u's device: one program for each batch row and block of channels."""
    from mambanorm.kernels.scan_triton_loops import Cut

    per_b, per_c = plan.channels // plan.groups_b, plan.channels // plan.groups_c
    blocks = plan.blocks * plan.run // plan.channels
    cut = Cut(plan.length, plan.chunk, plan.chunks, plan.channels, plan.run, blocks, per_b, per_c)
    constants = bool(softplus), plan.size, plan.block, plan.lanes
    with torch.cuda.device_of(u):
        kernel[plan.batch, plan.blocks](*arguments, cut, *constants, num_warps=plan.warps)


def _inputs(u, delta, A, B, C, D, z, bias):
    """What both kernels read, with strides where they take any layout."""
    from mambanorm.kernels.scan_triton_loops import Rows, Steps

    rows = [None if x is None else Rows(x, *x.stride()) for x in (u, delta, z)]
    steps = [Steps(m, *(m.stride() if m.dim() == 4 else ())) for m in (B, C)]
    return *rows[:2], A, *steps, D, rows[2], bias


class _Scan(torch.autograd.Function):
    """u, delta, z (B, D, L), B and C (B, G, N, L) of any dtype; A, constant B and C (D, N), D and bias in float32.

    The kernels read every layout where it lies; what they write is (B, L, D), contiguous.
    """

    @staticmethod
    def forward(ctx, keep, want_last, softplus, u, delta, A, B, C, D, z, bias):
        from mambanorm.kernels.scan_triton_loops import forward_kernel

        batch, channels, length = u.shape
        plan = Plan(batch, length, channels, A.shape[1], *(m.shape[1] if m.dim() == 4 else 1 for m in (B, C)))
        out = u.new_empty(batch, length, channels)
        states = A.new_empty(plan.states_shape) if keep else None
        last = A.new_empty(plan.sums_shape) if want_last else None
        inputs = _inputs(u, delta, A, B, C, D, z, bias)
        _launch(forward_kernel, plan, softplus, u, *inputs, out, states, last)
        if keep:
            ctx.save_for_backward(u, delta, A, B, C, D, z, bias, states)
            ctx.plan, ctx.softplus = plan, softplus
        if want_last:
            ctx.mark_non_differentiable(last)
        return out, last

    @staticmethod
    @backward_once
    def backward(ctx, grad, _):
        from mambanorm.kernels.scan_triton_loops import Rows, backward_kernel

        u, delta, A, B, C, D, z, bias, states = ctx.saved_tensors
        plan, need = ctx.plan, ctx.needs_input_grad[3:]
        like_rows = plan.batch, plan.length, plan.channels
        du, ddelta, dz = (None if x is None else x.new_empty(like_rows) for x in (u, delta, z))
        dA, scratch = A.new_empty(plan.sums_shape), A.new_empty(plan.scratch_shape)
        dB, dC = (
            A.new_empty(plan.partial_shape if m.dim() == 4 else plan.sums_shape) if needed else None
            for m, needed in ((B, need[3]), (C, need[4]))
        )
        dD, dbias = (None if v is None else A.new_empty(plan.sums_shape[:2]) for v in (D, bias))
        inputs = *_inputs(u, delta, A, B, C, D, z, bias), Rows(grad, *(grad.stride(k) for k in (0, 2, 1)))
        _launch(backward_kernel, plan, ctx.softplus, u, *inputs, states, scratch, du, ddelta, dz, dA, dB, dC, dD, dbias)
        du, ddelta, dz = (None if x is None else x.transpose(1, 2) for x in (du, ddelta, dz))
        dA, dD, dbias = (None if x is None else x.sum(0) for x in (dA, dD, dbias))
        dB, dC = (None if x is None else _join(x, m) for x, m in ((dB, B), (dC, C)))
        result = du, ddelta, dA, dB, dC, dD, dz, dbias
        return None, None, None, *(value if needed else None for value, needed in zip(result, need, strict=True))


def _join(partial, m):
    """Add up partial sums: to (D, N) for a constant, else (B, blocks, L, N) to (B, G, N, L), a view of (B, G, L, N)."""
    if m.dim() == 2:
        return partial.sum(0)
    batch, groups = m.shape[:2]
    return partial.view(batch, groups, -1, *partial.shape[2:]).sum(2).transpose(2, 3).to(m.dtype)


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
    tensors = u, delta, _matrix(A), _matrix(B), _matrix(C), D, z, bias
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    out, last = _Scan.apply(keep, bool(want_last), bool(delta_softplus), *tensors)
    return out.transpose(1, 2), last
