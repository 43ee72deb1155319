"""The fused kernels of norms, block and scan, and the code that chooses and starts them.

    backends.py            chooses the back end of an operation; calls the scan of mamba-ssm
    runtime.py             starts CPU kernels; helper functions that all CPU kernels share
    threads.py             sets and returns the number of threads
    warm.py                compiles all CPU kernels before they are needed
    scan_cpu.py            selective scan on the CPU; its loops are in scan_cpu_loops.py
    scan_triton.py         selective scan on a GPU, in Triton; its loops: scan_triton_loops.py
    gluon.py               Triton's language with explicit layouts, also for Triton's interpreter
    graph_step.py          replays a training step on a GPU as CUDA graphs
    conv_gate.py           convolution with SiLU, and the gate y·SiLU(z), on the CPU
    conv_triton.py         causal convolution with SiLU on a GPU, in Triton
    norm.py                on the CPU: norms of single positions, norms along the sequence, and
                           mixtures of statistics (NormVary)

Each kernel computes the same as slow, readable code in plain torch, its readable twin. The module
docstring of the kernel names the twin. Tests compare outputs and gradients of kernel and twin.
"""

import functools

import torch


def backward_once(backward):
    """Return `backward` with a check: RuntimeError is raised if a second derivative is requested.

    The kernels have no second derivative. torch's `once_differentiable` is not enough: it raises
    only if the incoming gradient has a graph. If a loss is linear in a kernel's result, the
    incoming gradient has no graph, and the second derivative would silently lack the kernel's part.
    """

    @functools.wraps(backward)
    def checked(ctx, *grads):
        if torch.is_grad_enabled():  # True only with create_graph=True
            raise RuntimeError(
                "the fused kernels have no second derivative: use float64 tensors, "
                "which plain torch computes"
            )
        return backward(ctx, *grads)

    return checked
