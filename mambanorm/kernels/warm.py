"""Compiles the CPU kernels that Numba's disk cache does not hold: `python -m
mambanorm.kernels.warm`.

On two cores the scan's are compiled in a second process meanwhile, which takes half the time.
"""

import subprocess
import sys
from importlib import import_module

import numba
from numba.core.dispatcher import Dispatcher

from mambanorm.kernels.conv_gate import _gate_forward
from mambanorm.kernels.runtime import address_of

SCAN = "scan_cpu_loops"
OTHERS = "conv_gate", "norm", "runtime"


def warm_up() -> None:
    """Loads every kernel, or compiles it. Call it before worker processes start: otherwise each of
    them compiles the same kernels at the same time."""
    second = None
    address_of(_gate_forward)
    if _gate_forward.stats.cache_misses and numba.config.NUMBA_NUM_THREADS > 1:
        command = [sys.executable, "-m", "mambanorm.kernels.warm", SCAN]
        second = subprocess.Popen(
            command, stderr=subprocess.DEVNULL
        )  # this process says that it compiles
    for name in OTHERS:
        _load(name)
    if second is not None:
        second.wait()
    _load(SCAN)


def _load(module: str) -> None:
    """Loads or compiles a module's kernels."""
    module = import_module(f"mambanorm.kernels.{module}")
    compiled = [value for value in vars(module).values() if isinstance(value, Dispatcher)]
    for kernel in (
        one for one in compiled if "no_cpython_wrapper" not in one.targetoptions
    ):  # the others are parts
        address_of(kernel)


if __name__ == "__main__":
    _load(sys.argv[1]) if sys.argv[1:] else warm_up()
