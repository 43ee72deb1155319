"""How many threads the CPU kernels use, and torch with them; and torch's other settings while a run
is trained.

Numba starts its threads when it is first asked about them. It then sets OpenMP's thread count for
the whole process, torch included. Importing this module does not do so. `_start` does it once, and
restores torch's count.
"""

import functools
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from numbers import Integral

import numba
import torch

from mambanorm.errors import shown

_PID = os.getpid()


@functools.cache
def _start():
    """Starts Numba's threads, once, and leaves torch as many as it had."""
    before = torch.get_num_threads()
    numba.get_num_threads()
    torch.set_num_threads(before)


def scan_threads():
    """Threads the next kernel may use: torch's count, at most Numba's; 1 in a forked child, where
    OpenMP cannot run."""
    if (
        torch.get_num_threads() == 1 or os.getpid() != _PID
    ):  # nobody has to ask Numba, which takes a moment
        return 1
    _start()
    return max(1, min(torch.get_num_threads(), numba.get_num_threads()))


def set_threads(n):
    """Let torch and the CPU scan use n threads; returns (torch's count, the scan's count).

    The scan's count is at most what Numba was started with (the number of cores, or
    NUMBA_NUM_THREADS). Raises ValueError if n is no whole number or less than 1.
    """
    if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
        raise ValueError(f"threads: {shown(n)} given, a whole number of at least 1 is needed")
    _start()
    torch.set_num_threads(int(n))
    numba.set_num_threads(min(int(n), numba.config.NUMBA_NUM_THREADS))
    return torch.get_num_threads(), numba.get_num_threads()


@contextmanager
def exactly_threads(n: int) -> Iterator[None]:
    """While open, torch and the CPU kernels of this thread use exactly n threads: the last digits
    of a sum depend on how many threads compute it.

    ValueError if Numba was started with fewer than n; the message says what to do.
    """
    _start()
    most = numba.config.NUMBA_NUM_THREADS
    if n > most:
        raise ValueError(
            f"threads={n}, but the CPU kernels of this process were started with at most {most}: "
            f"set NUMBA_NUM_THREADS={n} in the environment before Python starts"
        )
    before = torch.get_num_threads(), numba.get_num_threads()
    set_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        numba.set_num_threads(before[1])


@contextmanager
def plain_torch() -> Iterator[None]:
    """While open, torch is as it comes, whatever the caller has set: new tensors are float32 on the
    CPU, gradients are kept, nothing is autocast, oneDNN computes, and float32 is not rounded to
    TensorFloat-32, as cuDNN else does."""
    with ExitStack() as after:
        backends = torch.backends
        for owner, name, value in (
            (backends.cudnn, "allow_tf32", False),
            (backends.mkldnn, "enabled", True),
        ):
            after.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        after.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        for kind in ("cpu", "cuda", "mps"):
            after.callback(torch.set_autocast_enabled, kind, torch.is_autocast_enabled(kind))
            torch.set_autocast_enabled(kind, False)
        depth = (
            torch.autocast_increment_nesting()
        )  # within another, a run's autocast keeps casts of old weights
        for _ in range(depth):
            torch.autocast_decrement_nesting()
        for _ in range(depth - 1):
            after.callback(torch.autocast_increment_nesting)
        after.enter_context(torch.inference_mode(False))
        after.enter_context(torch.enable_grad())
        if (
            torch.get_default_device().type != "cpu"
        ):  # else not, for it makes every call of torch slower
            after.enter_context(torch.device("cpu"))
        yield
