"""Triton's language with explicit layouts (Gluon), which also runs in Triton's interpreter.

A layout says which thread holds which element of a tensor. The interpreter computes whole tensors
in NumPy, so there layouts have no meaning and are ignored.
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language
from triton.experimental.gluon.language import BlockedLayout, SliceLayout

# With TRITON_INTERPRET=1 kernels run in NumPy, on the CPU.
INTERPRETED = not isinstance(tl.cdiv, triton.JITFunction)


class _Interpreted:
    """Gluon's functions in terms of `triton.language`, whose functions the interpreter replaces."""

    BlockedLayout, SliceLayout = BlockedLayout, SliceLayout

    def __getattr__(self, name):
        return getattr(tl, name)

    def arange(self, start, end, layout):
        return tl.arange(start, end)

    def zeros(self, shape, dtype, layout):
        return tl.zeros(shape, dtype)

    def convert_layout(self, x, layout):
        return x


gl = _Interpreted() if INTERPRETED else language
jit = triton.jit if INTERPRETED else gluon.jit
