"""The kernels: the fused loops of norms, block and scan, and what starts them. Nothing here knows a config.

    runtime.py               helpers of every CPU kernel, and what starts it;   threads.py: how many threads
    once_differentiable.py   backward passes without a second derivative: asking for one is an error
    scan.py, scan_cpu.py     the selective scan on the CPU: the loops, and their interface to torch
    conv.py                  the causal convolution with its SiLU
    mixer.py, mixer_2d.py    all of a block between its two norms; the same for images, in four directions
    norm_token.py            LN, RMSN, GN-token: norms of one position;   norm_sequence.py: norms along the sequence
    norm_mixture.py          NormVary's mixture of statistics: the one kernel that is given its module
    triton_loops.py, triton_scan.py   the scan on a GPU, in Triton
    cuda.py                  the kernels of the packages mamba-ssm and torch

Each has a slow, readable twin, named in its docstring. The tests compare the two: forward and gradients.
"""
