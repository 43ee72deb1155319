"""The named operations of a block. Whatever is fused is fused inside one of them.

    scan.py        selective_scan, mamba-ssm's; low_rank_scan, which projects Δ itself conv_gate.py
    conv_silu, the convolution with its SiLU; gated, y·SiLU(z) layers.py      a block's layers:
    fused if they are torch's own, called if LoRA or a hook must be noticed reference.py   the
    scan's equations as a loop to read

Each chooses its back end by device and dtype: loops of mambanorm/kernels for float32 on the CPU,
Triton or mamba-ssm on CUDA, else plain torch, the readable twin that tests compare the others with.
Arguments are checked here and nowhere below, because the kernels read plain memory.

Glossary: B batch, L length, E channels (the scan's own D), N state size, R = dt_rank, G groups of
channels that share B and C, K taps of the convolution; u input, delta (Δ) step size, A decay rate,
B_t and C_t input and output vectors, z gate, h state. Source: Gu & Dao 2023, "Mamba", section 3;
state-spaces/mamba `ops/selective_scan_interface.py`.
"""

from mambanorm.kernels.backends import BACKENDS, scan_backend
from mambanorm.operations.conv_gate import conv_silu, gated
from mambanorm.operations.scan import low_rank_scan, selective_scan

__all__ = [
    "BACKENDS",
    "conv_silu",
    "gated",
    "low_rank_scan",
    "scan_backend",
    "selective_scan",
]
