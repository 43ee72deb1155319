"""The kernels: the fused loops of norms, block and scan, and what starts them. Nothing here knows a config.

    runtime.py               helpers of every CPU kernel, and what starts it;   threads.py: how many threads
    warm.py                  compiles them all, on two cores
    once_differentiable.py   backward passes without a second derivative: asking for one is an error
    scan_cpu.py              the selective scan on the CPU, its interface to torch;   scan_cpu_loops.py: its loops
    scan_triton.py           the selective scan on a GPU, in Triton;   scan_triton_plan.py, _parts.py, _loops.py: of it
    conv.py                  the causal convolution with its SiLU;   conv_triton.py: the same on a GPU, in Triton
    scan_low_rank.py         the scan that projects Δ itself;   backends.py: which back end computes an operation
    conv_2d.py, cross.py     of images: the convolution with its SiLU; the four directions and back
    gate.py                  y·SiLU(z)
    norm_token.py            LN, RMSN, GN-token: norms of one position;   norm_sequence.py: norms along the sequence
    norm_mixture.py          NormVary's and SwitchNorm's mixture of statistics: the one kernel that is given its module
    cuda.py                  the kernels of the packages mamba-ssm and torch

Each has a slow, readable twin, named in its docstring. The tests compare the two: forward and gradients.
"""
