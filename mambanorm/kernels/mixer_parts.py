"""The mixer of a Mamba block in two parts, for norms between them: fused for float32 on the CPU.

    enter_mixer:  u, z = SiLU(Conv(h·W_mainᵀ)), h·W_gateᵀ
    leave_mixer:  Δ = softplus(dt·W_dtᵀ + bias)           y = Scan(u, Δ, A, B, C) + D·u,  ·SiLU(z) where a gate is given

Between them stand, in torch, what a norm may touch: u, z, and dt, B, C = split(u·W_xᵀ). Δ is never stored here either.
What is lost against mixer.py is one addition to the gradient of u. The readable twin is
`MambaBlock._forward_readable`.

Glossary: B rows, L positions, D = d_model, E = d_inner channels, N state size, R = dt_rank.
Source: as mixer.py.
"""

import torch
import torch.nn.functional as F

from mambanorm.kernels.conv import conv_backward, conv_forward, taps_of
from mambanorm.kernels.mixer import projected_backward
from mambanorm.kernels.once_differentiable import backward_once
from mambanorm.kernels.scan_cpu import Inputs, powers_of, scan_backward, scan_forward


def enter_mixer(h, in_proj, conv_weight, conv_bias):
    """h (B, L, D), parameters shaped as the block's → u and z, (B, L, E) each. Differentiable once."""
    return _Enter.apply(h, in_proj, conv_weight, conv_bias.contiguous())


def leave_mixer(u, dt, B, C, z, dt_weight, dt_bias, A_log, D):
    """u (B, L, E), dt (B, L, R), B and C (B, L, N), z (B, L, E) or None → y (B, L, E). Differentiable once."""
    tensors = u, dt, B, C, z, dt_weight, dt_bias, A_log, D
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    return _Leave.apply(keep, *tensors)


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, in_proj, conv_weight, conv_bias):
        h, taps = h.detach().contiguous(), taps_of(conv_weight)
        main, gate = in_proj.chunk(2)
        raw, z = F.linear(h, main), F.linear(h, gate)
        ctx.save_for_backward(h, raw, in_proj, taps, conv_bias)
        return conv_forward(raw, taps, conv_bias), z

    @staticmethod
    @backward_once
    def backward(ctx, du, dz):
        h, raw, in_proj, taps, conv_bias = ctx.saved_tensors
        draw, dconv, dconv_bias = conv_backward(raw, taps, conv_bias, du.contiguous())
        rows, (draw, dz) = h.flatten(0, 1), (grad.contiguous().flatten(0, 1) for grad in (draw, dz))
        dh, din_proj = projected_backward(rows, in_proj, draw, dz)
        return dh.view_as(h), din_proj, dconv, dconv_bias


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, keep, u, dt, B, C, z, dt_weight, dt_bias, A_log, D):
        dt, B, C = (part.transpose(1, 2).unsqueeze(1) for part in (dt, B, C))  # (B, 1, ·, L)
        A, low = -torch.exp(A_log), dt_weight.t().contiguous()
        inputs = Inputs(u.contiguous(), dt, powers_of(A), B, C, low, None, D, z, dt_bias)
        ctx.plan = inputs.plan(decaying=True)
        y, _, states = scan_forward(inputs, ctx.plan, keep, False)
        if keep:
            ctx.save_for_backward(A, states, *inputs[:-1])
        return y

    @staticmethod
    @backward_once
    def backward(ctx, dy):
        A, states, *tensors = ctx.saved_tensors
        inputs = Inputs(*tensors)
        grads = scan_backward(inputs, ctx.plan, dy, states)
        rank, size = inputs.low.shape[0], A.shape[1]
        dt, B, C = grads.delta.split_with_sizes([rank, size, size], -1)
        dz = None if inputs.z is None else grads.z
        return None, grads.u, dt, B, C, dz, grads.low.t(), grads.bias, grads.A * A, grads.D
