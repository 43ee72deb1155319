"""How the work of the scan in Triton is cut, so that the memory it promises is the memory used.

Glossary: see scan_triton.py.
"""

import math
from dataclasses import dataclass

PROGRAMS = 256  # blocks get narrower until there are so many programs: about two per multiprocessor of a large GPU
WIDEST, NARROWEST = 32, 16  # channels per block
MOST_CELLS = 4096  # of a tile, and so of a block × N
STEPS = 8  # of a tile at most
OF_STATE = 16  # cells of one step a thread has at most: h and A stay in registers for all of them
MOST_WARPS = 8  # of a program: with more, a thread of the backward kernel would have too few registers


@dataclass(frozen=True)
class Plan:
    """How one scan is cut up, and the shape of every buffer beyond its inputs, outputs and gradients.

    Blocks of channels never cross the border of a group. In units of a tensor of B·L·D·N the buffers take 1/chunk for
    the states at chunk starts, chunk/(tile·L) for those at the starts of a chunk's tiles, 1/block each for the partial
    sums of dB and of dC where they vary in time, and 1/L for the sums over time: at L = 1024 9 % with blocks of 32
    channels, 16 % with 16.
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
        return math.gcd(*(self.channels // groups for groups in (self.groups_b, self.groups_c, self.groups_dt)))

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
        return min(STEPS, power_of_two(self.length), max(1, MOST_CELLS // (self.block * self.lanes)))

    @property
    def tiles(self):
        return -(-self.length // self.tile)

    @property
    def chunk(self):
        """Tiles per chunk: of about √L steps, so that what is stored and what is recomputed take little memory."""
        return max(1, 2 ** round(math.log2(self.length) / 2) // self.tile)

    @property
    def chunks(self):
        return -(-self.tiles // self.chunk)

    @property
    def padded(self):
        """Whether a tile anywhere has steps, channels or lanes that do not count."""
        return self.length % self.tile > 0 or self.run % self.block > 0 or self.lanes > self.size

    def warps(self, cells):
        """Warps of a program whose threads have at most so many cells of a tile, and OF_STATE of one step."""
        state = self.block * max(self.lanes, self.ranks)
        return min(MOST_WARPS, max(1, self.tile * state // (32 * cells), state // (32 * OF_STATE)))

    @property
    def states_shape(self):
        """h at the start of every chunk."""
        return self.batch, self.chunks, self.size, self.channels

    @property
    def scratch_shape(self):
        """h at the start of every tile of one chunk, for every program."""
        return self.batch, self.blocks, self.chunk, self.lanes, self.block

    def partial_shape(self, vary=2):
        """The gradients of dt and of what varies in time of B and C, side by side, one layer per block of channels."""
        return self.batch, self.blocks, self.length, self.rank + vary * self.size

    def sums_shape(self, constant=0):
        """One row for each batch row: dA, d low, d bias and dD, then dB or dC of a constant."""
        return self.batch, self.channels * (self.size + self.rank + 2 + constant * self.size)

    @property
    def extra_bytes(self):
        """Bytes of forward plus backward beyond inputs, outputs and gradients, B and C varying in time."""
        shapes = self.states_shape, self.scratch_shape, self.partial_shape(), self.sums_shape()
        return 4 * sum(math.prod(shape) for shape in shapes)


def power_of_two(n):
    """The smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()
