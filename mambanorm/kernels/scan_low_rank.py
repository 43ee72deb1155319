"""The scan with Δ's projection inside, fused on the CPU: Δ = softplus(dt·Wᵀ + bias) is never stored.

Around the kernels of scan_cpu.py, which take Δ as R numbers a step. The readable twin is the last lines of
`low_rank_scan` in operations/scan.py.

Glossary: B rows, L positions, E channels, N state size, R = dt_rank, G groups of channels that share dt, B and C.
"""

import torch

from mambanorm.kernels.once_differentiable import backward_once
from mambanorm.kernels.scan_cpu import Inputs, powers_of, scan_backward, scan_forward


def low_rank_scan_cpu(u, dt, B, C, dt_weight, dt_bias, A_log, D, want_last=False):
    """As `low_rank_scan`, for float32 on the CPU: y (B, L, E) and, if wanted, the last state (B, E, N) or None.
    Differentiable once; the last state carries no gradient."""
    tensors = u, dt, B, C, dt_weight, dt_bias, A_log, D
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    y, last = _LowRankScan.apply(keep, want_last, *tensors)
    return y, None if last is None else last.transpose(1, 2)


class _LowRankScan(torch.autograd.Function):
    """u (B, L, E), dt (B, L, G, R), B and C (B, L, G, N), dt_weight (E, R), dt_bias and D (E,), A_log (E, N)."""

    @staticmethod
    def forward(ctx, keep, want_last, u, dt, B, C, dt_weight, dt_bias, A_log, D):
        dt, B, C = (part.permute(0, 2, 3, 1) for part in (dt, B, C))  # (B, G, ·, L)
        A, low = -torch.exp(A_log), dt_weight.t().contiguous()
        inputs = Inputs(u.contiguous(), dt, powers_of(A), B, C, low, None, D, None, dt_bias)
        ctx.plan = inputs.plan(decaying=True)
        y, last, states = scan_forward(inputs, ctx.plan, keep, want_last)
        if keep:
            ctx.save_for_backward(A, states, *inputs[:-1])
        if not want_last:
            return y, None
        ctx.mark_non_differentiable(last)
        return y, last

    @staticmethod
    @backward_once
    def backward(ctx, dy, _):
        A, states, *tensors = ctx.saved_tensors
        inputs = Inputs(*tensors)
        grads = scan_backward(inputs, ctx.plan, dy, states)
        rank, size = inputs.low.shape[0], A.shape[1]
        joint = grads.delta.unflatten(2, (inputs.B.shape[1], -1))  # (B, L, G, R + 2·N)
        ddt, dB, dC = joint.split_with_sizes([rank, size, size], -1)
        return None, None, grads.u, ddt, dB, dC, grads.low.t(), grads.bias, grads.A * A, grads.D
