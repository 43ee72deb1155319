"""Helpers that every CPU kernel uses: Numba's `jit`, blocks of LANES numbers, and how a kernel is
started."""

import functools
import hashlib
import math
import sys
import threading
from pathlib import Path

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils, event
from numba.extending import intrinsic
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

# channels per block: four AVX-512 or eight AVX2 registers; the trip count of the inner loops
LANES = 64


def fingerprint(folder):
    """Checksum of the source of all kernels: of every file in a subfolder of `folder` that has
    `@entry` or `@jit`."""
    digest = hashlib.sha256()
    for source in sorted(folder.glob("*/*.py")):
        if b"\n@entry\n" in (text := source.read_bytes()) or b"\n@jit(" in text:
            digest.update(text)
    return digest.hexdigest()[:8]


FINGERPRINT = fingerprint(Path(__file__).resolve().parents[1])
OPTIONS = {"error_model": "numpy", "nogil": True}


def jit(*flags, **options):
    """`numba.njit` for what kernels call, without the flags that would hide inf or NaN. Python
    cannot call it: it has no wrapper for that and no machine code of its own, which would take a
    third of the time to compile."""
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, **OPTIONS, **options}
    return numba.njit(fastmath={"contract", *flags}, **options)


def entry(function, **options):
    """`numba.njit` for a kernel that `run` starts; without a disk cache where none can be written.

    Numba's disk cache notices a change in the file that defines a kernel, but not in another file
    whose functions the kernel calls. The cache files are named after the function's qualified name.
    That name holds the fingerprint, so a change in any kernel changes the name, and what was
    compiled before is not used.
    """
    function.__qualname__ += f"_{FINGERPRINT}"
    options = {"fastmath": {"contract"}, "no_cfunc_wrapper": True, **OPTIONS, **options}
    try:
        return numba.njit(cache=True, **options)(function)
    except (
        RuntimeError
    ):  # "no locator available": neither the package's folder nor the user's can be written
        return numba.njit(**options)(function)


# ----------------------------------------------------------------------------- elementary functions
@intrinsic
def _float_to_bits(typingctx, x):
    return types.int32(types.float32), lambda c, b, sig, args: b.bitcast(
        args[0], c.get_value_type(types.int32)
    )


@intrinsic
def _bits_to_float(typingctx, x):
    return types.float32(types.int32), lambda c, b, sig, args: b.bitcast(
        args[0], c.get_value_type(types.float32)
    )


_f = np.float32
ZERO, ONE, TWO = _f(0), _f(1), _f(2)
_EXP_MIN = _f(-126)
_ROUND = _f(
    1.5 * 2**23 + 126
)  # adding it rounds to an integer k and leaves k + 126 in the lowest bits
_SHIFT = np.int32(23)
# 2^(q+1) on |q| <= 1/2: minimax, relative error 1.1e-7; value and slope at 0 are exact, and so is a
# slow decay
_E1, _E2, _E3 = _f(1.3862943649291992), _f(0.48044565320014954), _f(0.11101117730140686)
_E4, _E5 = _f(0.019339319318532944), _f(0.0026600733399391174)
LOG2E, LN2 = _f(1 / math.log(2)), _f(math.log(2))


@jit(inline="always")
def exp2(x):
    """2^x in float32 for x <= 127.5: 0 below -125.5 (results under 2^-125 are flushed), NaN stays
    NaN.

    x = k + q with k the nearest integer; 2^x = 2^(q+1) · 2^(k-1). The 1 moves to the polynomial so
    that 2^(k-1) is finite for every finite result.
    """
    x = _EXP_MIN if x < _EXP_MIN else x  # written so that NaN passes
    r = x + _ROUND
    q = x - (r - _ROUND)
    p = ((((_E5 * q + _E4) * q + _E3) * q + _E2) * q + _E1) * q + TWO
    return p * _bits_to_float(_float_to_bits(r) << _SHIFT)


@jit(inline="always")
def sigmoid(x):
    """1 / (1 + exp(-x)); the argument of exp is never positive, so nothing overflows."""
    e = exp2(-abs(x) * LOG2E)
    return (ONE if x >= ZERO else e) / (ONE + e)


# ---------------------------------------------------------------------------------- blocks of LANES
def _lanes_at(context, builder, kind, array, start):
    """A pointer to LANES numbers of an array's memory, from `start` on."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(
        builder.gep(data, [start]), ir.VectorType(ir.FloatType(), LANES).as_pointer()
    )


@intrinsic
def _move(typingctx, target, to, source, start):
    """LANES numbers from one array's memory to another's, in one piece; a loop would become single
    moves here."""

    def codegen(context, builder, signature, args):
        place, origin = (
            _lanes_at(context, builder, signature.args[k], *args[k : k + 2]) for k in (0, 2)
        )
        builder.store(builder.load(origin, align=4), place, align=4)
        return context.get_dummy_value()

    return types.none(target, types.intp, source, types.intp), codegen


@intrinsic
def add_product(typingctx, target, to, first, at, second, there):
    """target += first · second, LANES numbers from each array's memory, in one piece."""

    def codegen(context, builder, signature, args):
        places = [
            _lanes_at(context, builder, signature.args[k], *args[k : k + 2]) for k in (0, 2, 4)
        ]
        total, a, b = (builder.load(place, align=4) for place in places)
        builder.store(
            builder.fadd(total, builder.fmul(a, b, ("contract",)), ("contract",)),
            places[0],
            align=4,
        )
        return context.get_dummy_value()

    return types.none(target, types.intp, first, types.intp, second, types.intp), codegen


@intrinsic
def in_wide_registers(typingctx):
    """Called in a function, lets LLVM vectorise its loops with 64 bytes where the processor has
    such registers: of its own it takes half of them on some. Only for loops without sums: in those
    the width decides the order of adding."""

    def codegen(context, builder, signature, args):
        set.add(
            builder.function.attributes, '"prefer-vector-width"="512"'
        )  # llvmlite's own add knows only some
        return context.get_dummy_value()

    return types.none(), codegen


def _pointer_to(kind):
    """An address as a pointer to numbers of a kind."""

    @intrinsic
    def pointer(typingctx, address):
        def codegen(context, builder, signature, args):
            return builder.inttoptr(args[0], context.get_value_type(kind).as_pointer())

        return types.CPointer(kind)(address), codegen

    return pointer


_float_pointer, _whole_pointer = _pointer_to(types.float32), _pointer_to(types.int64)


@jit(inline="always")
def memory(places, k):
    """The numbers of tensor k as a flat array; `places` (tensors, 2) holds addresses and sizes.

    An array passed from Python takes a microsecond to unpack, and the loops count references to it.
    This avoids both. Of a strided tensor the array reaches beyond its size: only ask whether that
    is 0, for a tensor that is not there.
    """
    return numba.carray(_float_pointer(places[k, 0]), places[k, 1])


@jit(inline="always")
def table(places, k, columns):
    """The numbers of tensor k as rows of so many columns."""
    return numba.carray(_float_pointer(places[k, 0]), (places[k, 1] // columns, columns))


@jit(inline="always")
def room_for(address, rows, columns):
    """A table of a worker's own at an address, and the address behind it."""
    return numba.carray(_float_pointer(address), (rows, columns)), address + 4 * rows * columns


@jit(inline="always")
def whole_numbers(places, k, columns):
    """`table` of an int64 tensor."""
    return numba.carray(_whole_pointer(places[k, 0]), (places[k, 1] // columns, columns))


@jit(inline="always")
def load(rows, t, slot, x, start, width):
    """x[start : start + width] into a slot of row t; lanes past `width` are left as they are."""
    if width == LANES:
        _move(rows, t * rows.shape[1] + slot, x, start)
    else:
        for d in range(width):
            rows[t, slot + d] = x[start + d]


@jit(inline="always")
def store(rows, t, slot, x, start, width):
    """A slot of row t into x[start : start + width]."""
    if width == LANES:
        _move(x, start, rows, t * rows.shape[1] + slot)
    else:
        for d in range(width):
            x[start + d] = rows[t, slot + d]


_FLAT = dict(
    dtype=torch.float32, device="cpu"
)  # what the kernels read and write, whatever torch's defaults are
empty, zeros = (functools.partial(make, **_FLAT) for make in (torch.empty, torch.zeros))


@functools.lru_cache(maxsize=256)
def constant(size, number):
    """A vector of `size` times one number, made once: only to be read."""
    with (
        torch.inference_mode(False),
        _disable_current_modes(),
    ):  # a later training keeps it for its backward pass
        return torch.full((size,), number, **_FLAT)


EMPTY = constant(0, 0.0)
_LOCK = threading.Lock()


class _Announce(event.Listener):
    """Says on stderr that Numba compiles; a kernel found in the disk cache fires no such event."""

    said = False

    def on_start(self, event):
        if not _Announce.said:
            _Announce.said = True
            print(
                "mambanorm: compiling the CPU kernels, once (about half a minute) …",
                file=sys.stderr,
                flush=True,
            )

    def on_end(self, event):
        pass


# Every kernel's: the worker, how many there are, whole numbers such as sizes, and where the tensors
# lie.
SIGNATURE = types.int64, types.int64, types.int64[::1], types.int64[:, ::1]


@intrinsic
def _call(typingctx, address, worker, workers, numbers, places):
    """The kernel at an address, called with what follows."""

    def codegen(context, builder, signature, args):
        kind = context.call_conv.get_function_type(types.none, SIGNATURE).as_pointer()
        kernel = builder.inttoptr(args[0], kind)
        status, _ = context.call_conv.call_function(
            builder, kernel, types.none, SIGNATURE, args[1:]
        )
        with cgutils.if_unlikely(builder, status.is_error):
            context.call_conv.return_status_propagate(builder, status)
        return context.get_dummy_value()

    return types.none(types.int64, *SIGNATURE), codegen


@functools.partial(entry, parallel=True)
def _side_by_side(address, workers, numbers, places):
    """The one parallel loop: a kernel with such a loop of its own would take Numba thrice as
    long."""
    for worker in numba.prange(workers):
        _call(address, worker, workers, numbers, places)


@functools.cache
def address_of(kernel):
    """Where the machine code of a kernel lies; it is compiled if it must be."""
    with event.install_listener("numba:compile", _Announce()):
        kernel.compile(SIGNATURE)
    compiled = kernel.overloads[SIGNATURE]
    return compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)


def run(kernel, workers, numbers, tensors):
    """Start a kernel with whole numbers and contiguous tensors, which the kernel finds at the same
    places in `numbers` and `places`. One at a time: Numba's simplest threading layer does not
    survive concurrent calls."""
    numbers = np.array(numbers, dtype=np.int64)
    places = np.array(
        [(t.data_ptr(), t.numel()) for t in tensors], dtype=np.int64
    )  # an empty one has the address 0
    with _LOCK:
        address = address_of(kernel)
        if workers == 1:
            kernel(0, 1, numbers, places)
        else:
            _side_by_side(address, workers, numbers, places)


def added_up(partial: Tensor) -> Tensor:
    """The sum over the first axis, the workers, in a fixed order: the same bits each time with the
    same number of threads."""
    return partial.sum(0) if len(partial) > 1 else partial[0]
