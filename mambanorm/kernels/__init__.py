"""The kernels: every fused loop of the kit, and what starts it. Nothing here knows a module or a config.

    runtime.py               what every kernel of the CPU is written with and started by;   threads.py: how many threads
    once_differentiable.py   a backward pass without a second derivative: asking for one is an error
    scan.py, scan_cpu.py     the selective scan on the CPU: the loops, and their way from and to torch
    conv.py                  the causal convolution with its SiLU
    mixer.py, mixer_2d.py    all of a block between its two norms; the same for images, in four directions
    norm_token.py            LN, RMSN, GN-token: norms of one position;   norm_sequence.py: norms along the sequence
    norm_mixture.py          NormVary's mixture of statistics
    triton_loops.py, triton_scan.py   the scan on a GPU, in Triton
    cuda.py                  the kernels of the packages mamba-ssm and torch

Each has a slow, readable twin, named in its docstring, that the tests hold it against: forward and gradients.
"""
