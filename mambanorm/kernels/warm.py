"""Compile the CPU kernels into Numba's disk cache: `python -m mambanorm.kernels.warm`.

With two or more cores, a second process compiles the kernels of the scan, which halves the time.
"""

import subprocess
import sys
from importlib import import_module

import numba
from numba.core.dispatcher import Dispatcher

from mambanorm.kernels.conv_gate import _gate_forward
from mambanorm.kernels.runtime import kernel_address

SCAN_MODULE = "scan_cpu_loops"


def warm_up() -> None:
    """Load every CPU kernel; compile it first if necessary.

    Call this before worker processes start. Otherwise each of them compiles the same kernels.
    """
    second_process = None
    kernel_address(_gate_forward)
    if _gate_forward.stats.cache_misses and numba.config.NUMBA_NUM_THREADS > 1:
        second_process = subprocess.Popen(
            [sys.executable, "-m", "mambanorm.kernels.warm", SCAN_MODULE],
            stderr=subprocess.DEVNULL,  # the first process already prints the notice
        )
    for name in ("conv_gate", "norm", "runtime"):
        _compile_module(name)
    if second_process is not None:
        second_process.wait()
    _compile_module(SCAN_MODULE)


def _compile_module(name: str) -> None:
    """Load every kernel of a module; compile the kernel first if necessary."""
    module = import_module(f"mambanorm.kernels.{name}")
    for value in vars(module).values():
        # skip `@jit` functions: they are compiled as parts of kernels
        if isinstance(value, Dispatcher) and "no_cpython_wrapper" not in value.targetoptions:
            kernel_address(value)


if __name__ == "__main__":
    _compile_module(sys.argv[1]) if sys.argv[1:] else warm_up()
