"""Code that all CPU kernels share: decorators, exp and sigmoid, memory access, and `run`."""

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

# Channels per block, and length of the inner loops: four AVX-512 or eight AVX2 registers.
LANES = 64


def fingerprint(folder):
    """Return a checksum of the Python files folder/*/*.py that use `@entry` or `@jit`."""
    digest = hashlib.sha256()
    for source in sorted(folder.glob("*/*.py")):
        text = source.read_bytes()
        if b"\n@entry\n" in text or b"\n@jit(" in text:
            digest.update(text)
    return digest.hexdigest()[:8]


FINGERPRINT = fingerprint(Path(__file__).resolve().parents[1])
NUMBA_OPTIONS = {"error_model": "numpy", "nogil": True}


def jit(*flags, **options):
    """Return a decorator that compiles, with `numba.njit`, a function that only kernels call.

    `flags` are fastmath flags in addition to "contract". The flags that assume that no number is
    inf or NaN are not set. `options` are options of `numba.njit`. Python cannot call the compiled
    function, because the function has no Python wrapper and no machine code of its own. Leaving
    these out saves a third of the compile time.
    """
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, **NUMBA_OPTIONS, **options}
    return numba.njit(fastmath={"contract", *flags}, **options)


def entry(function, **options):
    """Decorate a kernel that `run` starts: compile it with Numba, cached on disk if possible.

    Numba notices a change in the file that defines a kernel, but not in other files whose functions
    the kernel calls. Numba names its cache files after the function's qualified name. Therefore the
    fingerprint of all kernel files is added to that name: after a change in any of these files,
    every kernel is compiled again.
    """
    function.__qualname__ += f"_{FINGERPRINT}"
    options = {"fastmath": {"contract"}, "no_cfunc_wrapper": True, **NUMBA_OPTIONS, **options}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache is writable
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
# In float32, the sum x + _ROUND rounds x to an integer k; the sum's lowest bits hold k + 126.
_ROUND = _f(1.5 * 2**23 + 126)
# Coefficients of a minimax polynomial for 2^(q+1) on |q| <= 1/2, with a relative error of 1.1e-7.
# The value and slope at 0 are exact, so a slow decay (an exponent near 0) is exact too.
_E1, _E2, _E3 = _f(1.3862943649291992), _f(0.48044565320014954), _f(0.11101117730140686)
_E4, _E5 = _f(0.019339319318532944), _f(0.0026600733399391174)
LOG2E, LN2 = _f(1 / math.log(2)), _f(math.log(2))


@jit(inline="always")
def exp2(x):
    """Return 2^x in float32 for x <= 127.5.

    For x < -125.5 the result is 0. NaN stays NaN.

    Let k be the integer nearest to x, and q = x - k. Then 2^x = 2^(q+1) · 2^(k-1). The polynomial
    computes 2^(q+1), not 2^q, so that 2^(k-1) is finite whenever the result is finite.
    """
    x = _f(-126) if x < _f(-126) else x  # NaN < -126 is False, so NaN stays NaN
    r = x + _ROUND
    q = x - (r - _ROUND)
    p = ((((_E5 * q + _E4) * q + _E3) * q + _E2) * q + _E1) * q + TWO
    return p * _bits_to_float(_float_to_bits(r) << np.int32(23))


@jit(inline="always")
def sigmoid(x):
    """Return 1 / (1 + exp(-x)).

    exp is only computed for -|x|, which is never positive, so nothing overflows.
    """
    e = exp2(-abs(x) * LOG2E)
    return (ONE if x >= ZERO else e) / (ONE + e)


# ---------------------------------------------------------------------------------- blocks of LANES
def _lanes_pointer(context, builder, kind, array, start):
    """Return a pointer to the LANES numbers of an array that start at index `start`."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(
        builder.gep(data, [start]), ir.VectorType(ir.FloatType(), LANES).as_pointer()
    )


@intrinsic
def _copy_lanes(typingctx, target, target_start, source, source_start):
    """Copy LANES numbers from one array to another in one instruction.

    LLVM would compile an ordinary loop to copies of single numbers.
    """

    def codegen(context, builder, signature, args):
        target_lanes, source_lanes = (
            _lanes_pointer(context, builder, signature.args[k], *args[k : k + 2]) for k in (0, 2)
        )
        builder.store(builder.load(source_lanes, align=4), target_lanes, align=4)
        return context.get_dummy_value()

    return types.none(target, types.intp, source, types.intp), codegen


@intrinsic
def add_product(typingctx, target, target_start, a, a_start, b, b_start):
    """Add a · b to target in one instruction, for LANES numbers of each array."""

    def codegen(context, builder, signature, args):
        pointers = [
            _lanes_pointer(context, builder, signature.args[k], *args[k : k + 2]) for k in (0, 2, 4)
        ]
        total, left, right = (builder.load(pointer, align=4) for pointer in pointers)
        total = builder.fadd(total, builder.fmul(left, right, ("contract",)), ("contract",))
        builder.store(total, pointers[0], align=4)
        return context.get_dummy_value()

    return types.none(target, types.intp, a, types.intp, b, types.intp), codegen


@intrinsic
def use_wide_registers(typingctx):
    """Let LLVM vectorise the calling function with 64-byte registers if the processor has them.

    By default LLVM uses only 32 bytes of these registers on some processors. Do not call this in a
    function that sums over lanes: the order of the additions would depend on the width of the
    registers.
    """

    def codegen(context, builder, signature, args):
        # llvmlite's own `attributes.add` refuses names that it does not know
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.none(), codegen


def _pointer_to(kind):
    """Return an intrinsic that converts an address to a pointer to numbers of type `kind`."""

    @intrinsic
    def pointer(typingctx, address):
        def codegen(context, builder, signature, args):
            return builder.inttoptr(args[0], context.get_value_type(kind).as_pointer())

        return types.CPointer(kind)(address), codegen

    return pointer


_float_pointer, _int_pointer = _pointer_to(types.float32), _pointer_to(types.int64)


@jit(inline="always")
def flat(buffers, k):
    """Return tensor k of `buffers`, which is float32, as a flat array.

    `buffers` (number of tensors, 2) holds an address and a size for each tensor. If Python passed
    arrays instead, Numba would take a microsecond to unpack each array and would count references
    in loops. `.size` of the array is the tensor's number of elements. The memory of a strided
    tensor extends beyond `.size`, so only compare `.size` with 0, which marks a missing tensor.
    """
    return numba.carray(_float_pointer(buffers[k, 0]), buffers[k, 1])


@jit(inline="always")
def table(buffers, k, columns):
    """Return tensor k of `buffers`, which is float32, as rows of `columns` numbers."""
    return numba.carray(_float_pointer(buffers[k, 0]), (buffers[k, 1] // columns, columns))


@jit(inline="always")
def scratch_table(address, rows, columns):
    """Return a float32 table at `address` in scratch memory, and the address after the table."""
    return numba.carray(_float_pointer(address), (rows, columns)), address + 4 * rows * columns


@jit(inline="always")
def int_table(buffers, k, columns):
    """Return tensor k of `buffers`, which is int64, as rows of `columns` numbers."""
    return numba.carray(_int_pointer(buffers[k, 0]), (buffers[k, 1] // columns, columns))


@jit(inline="always")
def load(rows, t, slot, x, start, width):
    """Copy x[start : start + width] to row t of `rows`, from column `slot` on."""
    if width == LANES:
        _copy_lanes(rows, t * rows.shape[1] + slot, x, start)
    else:
        for d in range(width):
            rows[t, slot + d] = x[start + d]


@jit(inline="always")
def store(rows, t, slot, x, start, width):
    """Copy row t of `rows`, from column `slot` on, to x[start : start + width]."""
    if width == LANES:
        _copy_lanes(x, start, rows, t * rows.shape[1] + slot)
    else:
        for d in range(width):
            x[start + d] = rows[t, slot + d]


# Kernels use float32 on the CPU, whatever torch's default dtype and device are.
_FLOATS = dict(dtype=torch.float32, device="cpu")
empty, zeros = (functools.partial(create, **_FLOATS) for create in (torch.empty, torch.zeros))


@functools.lru_cache(maxsize=256)
def constant(size, number):
    """Return a vector of length `size` filled with `number`; it is cached: do not change it."""
    # The first call may be under inference mode, but later calls may save the vector for backward.
    with torch.inference_mode(False), _disable_current_modes():
        return torch.full((size,), number, **_FLOATS)


EMPTY = constant(0, 0.0)
_LOCK = threading.Lock()


class _CompileNotice(event.Listener):
    """A listener that prints to stderr, once, that Numba compiles kernels.

    Loading a kernel from the disk cache does not trigger the event that the listener waits for.
    """

    has_printed = False

    def on_start(self, event):
        if not _CompileNotice.has_printed:
            _CompileNotice.has_printed = True
            print(
                "mambanorm: compiling the CPU kernels, once (about half a minute) …",
                file=sys.stderr,
                flush=True,
            )

    def on_end(self, event):
        pass


# The types of every kernel's arguments: index of the worker, number of workers, integers such as
# sizes, and `buffers` with one row (address, size) per tensor.
SIGNATURE = types.int64, types.int64, types.int64[::1], types.int64[:, ::1]


@intrinsic
def _call(typingctx, address, worker, workers, integers, buffers):
    """Call the kernel whose machine code is at `address`, with arguments of SIGNATURE's types."""

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
def _run_parallel(address, workers, integers, buffers):
    """Call the kernel at `address` once for each worker, in parallel.

    No kernel contains a parallel loop itself, because Numba would take three times as long to
    compile it.
    """
    for worker in numba.prange(workers):
        _call(address, worker, workers, integers, buffers)


@functools.cache
def kernel_address(kernel):
    """Return the address of a kernel's machine code; compile the kernel first if necessary."""
    with event.install_listener("numba:compile", _CompileNotice()):
        kernel.compile(SIGNATURE)
    compiled = kernel.overloads[SIGNATURE]
    return compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)


def run(kernel, workers, integers, tensors):
    """Run a kernel with `workers` workers and wait until it ends.

    The kernel reads integers and tensors by position, from its arguments `integers` and `buffers`.
    A tensor must be contiguous unless the kernel also gets its strides. Only one kernel runs at a
    time, because Numba's simplest threading layer does not survive concurrent calls.
    """
    integers = np.array(integers, dtype=np.int64)
    # An empty tensor has the address 0.
    buffers = np.array([(t.data_ptr(), t.numel()) for t in tensors], dtype=np.int64)
    with _LOCK:
        address = kernel_address(kernel)
        if workers == 1:
            kernel(0, 1, integers, buffers)
        else:
            _run_parallel(address, workers, integers, buffers)


def sum_workers(partial: Tensor) -> Tensor:
    """Return the sum of `partial` over its first axis, the workers, in a fixed order.

    With the same number of threads, the result has the same bits every time.
    """
    return partial.sum(0) if len(partial) > 1 else partial[0]
