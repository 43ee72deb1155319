"""The kernels: the fused loops of norms, block and scan, and the code that starts them.

    backends.py            chooses the back end of an operation, and calls mamba-ssm's scan
    runtime.py             helper functions of the CPU kernels, and what launches them
    threads.py             the number of threads
    warm.py                compiles the CPU kernels, on two cores
    scan_cpu.py            the selective scan on the CPU; its loops are in scan_cpu_loops.py
    scan_triton.py         the same on a GPU, in Triton; its loops are in scan_triton_loops.py
    conv_gate.py           convolution with SiLU, and the gate y·SiLU(z), on the CPU
    conv_triton.py         the causal convolution with SiLU on a GPU, in Triton
    norm.py                norms of one position, norms along the sequence, and mixtures of
                           statistics (NormVary), on the CPU

Each kernel has a slow, readable twin, which its docstring names. Tests compare outputs and
gradients of the two.
"""

import functools

import torch


def backward_once(backward):
    """Return a backward pass that raises RuntimeError if a second derivative is asked for.

    No kernel has a second derivative. torch's `once_differentiable` raises only if the incoming
    gradient has a graph. A loss that is linear in the result has none, and its second derivative
    would silently omit the kernel.
    """

    @functools.wraps(backward)
    def checked(ctx, *grads):
        if torch.is_grad_enabled():  # only with create_graph=True
            raise RuntimeError(
                "the fused kernels have no second derivative: compute it in float64, without them"
            )
        return backward(ctx, *grads)

    return checked
