"""The kernels: the fused loops of norms, block and scan, and what starts them. Nothing here knows a
config.

    backends.py                     which back end computes an operation; the scan of the package
    mamba-ssm runtime.py                      helpers of every CPU kernel, and what starts it;
    threads.py: how many threads warm.py                         compiles them all, on two cores
    scan_cpu.py, scan_cpu_loops.py  the selective scan on the CPU: its interface to torch, and its
    loops scan_triton.py, ..._loops.py    the same on a GPU, in Triton;   conv_triton.py: the causal
    convolution there conv_gate.py                    the convolutions with their SiLU, of sequences
    and images; the gate y·SiLU(z) norm.py                         norms of one position, norms
    along the sequence, NormVary's mixture of statistics

Each has a slow, readable twin, named in its docstring. The tests compare the two: forward and
gradients.
"""

import functools

import torch


def backward_once(backward):
    """Decorator of a backward pass without a second derivative, as every kernel has it: asking for
    one is an error.

    torch's own once_differentiable refuses only where the incoming gradient has a graph. For a loss
    that is linear in the result it has none, and the second derivative would silently leave out the
    kernel.
    """

    @functools.wraps(backward)
    def checked(ctx, *grads):
        if torch.is_grad_enabled():  # create_graph=True
            raise RuntimeError(
                "the fused kernels have no second derivative: compute it in float64, without them"
            )
        return backward(ctx, *grads)

    return checked
