"""The number of threads that torch and the CPU kernels use.

Numba starts its threads when its thread count is first read. It then sets OpenMP's thread count for
the whole process, torch included. Importing this module does not do so: `_start_numba` does it
once, and restores torch's count.
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
def _start_numba():
    """Start Numba's threads, once, and restore torch's thread count."""
    before = torch.get_num_threads()
    numba.get_num_threads()
    torch.set_num_threads(before)


def scan_threads():
    """Return the number of threads that the next kernel may use.

    It is torch's count, at most Numba's, and 1 in a forked child, where OpenMP cannot run.
    """
    if torch.get_num_threads() == 1 or os.getpid() != _PID:
        return 1  # without reading Numba's count, which takes a moment
    _start_numba()
    return max(1, min(torch.get_num_threads(), numba.get_num_threads()))


def set_threads(n):
    """Set the threads of torch and the CPU kernels to n; return (torch's count, the kernels'
    count).

    The kernels' count is at most what Numba was started with: the number of cores, or
    NUMBA_NUM_THREADS. Raises ValueError if n is not an integer of at least 1.
    """
    if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
        raise ValueError(f"threads: {shown(n)} given, a whole number of at least 1 is needed")
    _start_numba()
    torch.set_num_threads(int(n))
    numba.set_num_threads(min(int(n), numba.config.NUMBA_NUM_THREADS))
    return torch.get_num_threads(), numba.get_num_threads()


@contextmanager
def exactly_threads(n: int) -> Iterator[None]:
    """Use exactly n threads in torch and the CPU kernels while the context is open.

    The last digits of a sum depend on the number of threads that compute it. Raises ValueError if
    Numba was started with fewer than n; the message says what to do.
    """
    _start_numba()
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
