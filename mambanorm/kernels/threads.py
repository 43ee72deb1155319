"""Set and return the number of threads that torch and the CPU kernels use.

Numba starts its threads when its thread count is first read. Numba then also sets OpenMP's thread
count for the whole process, torch included. Importing this module does not start Numba's threads.
`_start_numba` starts them at the first need and restores torch's thread count.
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
    """Start Numba's threads, only once, and restore torch's thread count."""
    before = torch.get_num_threads()
    numba.get_num_threads()
    torch.set_num_threads(before)


def kernel_threads():
    """Return the number of threads that the next kernel may use.

    This is torch's thread count, but at most Numba's. In a forked child process it is 1, because
    OpenMP cannot run there.
    """
    if torch.get_num_threads() == 1 or os.getpid() != _PID:
        return 1  # Numba's count is not read here, because that takes a moment
    _start_numba()
    return max(1, min(torch.get_num_threads(), numba.get_num_threads()))


def set_threads(n):
    """Set the thread counts of torch and of the CPU kernels to n, and return both counts.

    The second count, that of the kernels, is at most the number of threads that Numba was started
    with: NUMBA_NUM_THREADS if set, else the number of cores. Raises ValueError if n is not an
    integer of at least 1.
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

    The last digits of a sum depend on the number of threads that compute the sum. Raises ValueError
    if Numba was started with fewer than n threads; the message says what to do.
    """
    _start_numba()
    most_threads = numba.config.NUMBA_NUM_THREADS
    if n > most_threads:
        raise ValueError(
            f"threads={n}, but the CPU kernels have at most {most_threads} threads: "
            f"set NUMBA_NUM_THREADS={n} in the environment before Python starts"
        )
    before = torch.get_num_threads(), numba.get_num_threads()
    set_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        numba.set_num_threads(before[1])
