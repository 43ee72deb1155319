"""How many threads the CPU kernels use, and torch with them.

Numba starts its threads when it is first asked about them. It then sets OpenMP's thread count for
the whole process, torch included. Importing this module does not do so. `_start` does it once, and
restores torch's count.
"""

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
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
