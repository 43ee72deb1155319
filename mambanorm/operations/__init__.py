"""The selective scan: one function with mamba-ssm's arguments, several back ends.

    scan.py        selective_scan and the convolution before it: checks every argument once, hands it to a back end
    backends.py    which back end: the one asked for, or the fastest that fits
    reference.py   the equations as a loop to read: what every kernel is tested against
    chunked.py     Mamba-2's own form of the same scan, in plain torch: what Mamba2Block is tested against

The kernels themselves are in mambanorm/kernels.

Glossary: B batch, L length, D channels, N state size, G groups of channels that share B and C; u input, delta (Δ) step
size, A decay rate, B_t and C_t input and output vectors, z gate, h state.

Source: Gu & Dao 2023, "Mamba", section 3; state-spaces/mamba `ops/selective_scan_interface.py`.
"""

from mambanorm.kernels.threads import set_threads
from mambanorm.operations.backends import BACKENDS, scan_backend
from mambanorm.operations.scan import conv_silu, selective_scan

__all__ = ["BACKENDS", "conv_silu", "scan_backend", "selective_scan", "set_threads"]
