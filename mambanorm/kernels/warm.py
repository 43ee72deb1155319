"""Compiles the CPU kernels that Numba's disk cache does not hold: `python -m mambanorm.kernels.warm`.

On two cores the scan's are compiled in a second process meanwhile, which takes half the time.
"""

import subprocess
import sys
from importlib import import_module

import numba
from numba.core.dispatcher import Dispatcher

from mambanorm.kernels.runtime import address_of

SCAN = "scan_cpu_loops"
OTHERS = "cross", "conv_gate", "norm", "runtime"


def warm_up() -> None:
    """Loads every kernel, or compiles it. Call it before worker processes start: otherwise each of them compiles the
    same kernels at the same time."""
    second = None
    if _load(OTHERS[0]) and numba.config.NUMBA_NUM_THREADS > 1:
        command = [sys.executable, "-m", "mambanorm.kernels.warm", SCAN]
        second = subprocess.Popen(command, stderr=subprocess.DEVNULL)  # this process says that it compiles
    for name in OTHERS[1:]:
        _load(name)
    if second is not None:
        second.wait()
    _load(SCAN)


def _load(module: str) -> bool:
    """Whether one of a module's kernels had to be compiled."""
    module = import_module(f"mambanorm.kernels.{module}")
    compiled = [value for value in vars(module).values() if isinstance(value, Dispatcher)]
    kernels = [one for one in compiled if "no_cpython_wrapper" not in one.targetoptions]  # the others are parts of them
    for kernel in kernels:
        address_of(kernel)
    return any(kernel.stats.cache_misses for kernel in kernels)


if __name__ == "__main__":
    _load(sys.argv[1]) if sys.argv[1:] else warm_up()
