"""The operations of a block. All fused code is called inside one of these operations.

    scan.py        selective_scan, as in mamba-ssm; low_rank_scan, which takes dt and computes Δ
    conv_gate.py   conv_silu, the convolution with its SiLU; gated, y·SiLU(z)
    layers.py      a block's layers: fused if plain, called if wrapped by LoRA or hooked
    reference.py   the scan's equations as a readable loop
    checks.py      checks of arguments: kernels read raw memory and check nothing

Each operation chooses its back end by device and dtype: the loops of mambanorm/kernels for float32
on the CPU, Triton or mamba-ssm on CUDA, otherwise plain torch. The tests compare each fused back
end with the readable plain torch.

Glossary: B rows, L positions, E channels (called D in `selective_scan`), N state size, R = dt_rank,
G groups of channels that share B and C, K taps of the convolution; u input, delta (Δ) step size,
A decay rate, B_t and C_t input and output vectors of the SSM, z gate, h state.
Source: Gu & Dao 2023, "Mamba", section 3; state-spaces/mamba `ops/selective_scan_interface.py`.
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
