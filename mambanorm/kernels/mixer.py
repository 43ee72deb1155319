"""All of a Mamba block between its two norms, in one autograd function: fused for float32 on the CPU.

    u, z = SiLU(Conv(h·W_mainᵀ)), h·W_gateᵀ        dt, B, C = split(u·W_xᵀ)
    Δ = softplus(dt·W_dtᵀ + bias)                  y = Scan(u, Δ, A, B, C) + D·u,  ·SiLU(z) where nothing stands between

The matrix products are torch's, the loops between them are ours: convolution + bias + SiLU, and the scan with Δ's
projection, softplus, skip and gate. It is one autograd function and not a chain of them. So in the backward pass each
product can add to the result of the one before, and no tensor is made only to be added. Kept for the backward pass are
h, the two products of in_proj, u, and the narrow dt, B, C. Δ is never stored. The readable twin is
`MambaBlock._forward_readable`; the tests compare the two.

Glossary: B rows, L positions, T = B·L tokens, D = d_model, E = d_inner channels, K taps, N state size, R = dt_rank.
Source: Gu & Dao 2023, "Mamba", figure 3 and section 3.3. The same steps are joined as in `mamba_inner_fn` of
state-spaces/mamba.
"""

import torch
import torch.nn.functional as F

from mambanorm.kernels.conv import conv_backward, conv_forward, taps_of
from mambanorm.kernels.once_differentiable import backward_once
from mambanorm.kernels.runtime import empty
from mambanorm.kernels.scan_cpu import Inputs, powers_of, scan_backward, scan_forward, split_groups


def mixer_cpu(h, in_proj, conv_weight, conv_bias, x_proj, dt_weight, dt_bias, A_log, D, gated):
    """What stands between h = N1(x) and N2 in a block, for float32 on the CPU; parameters shaped as the block's.

    h (B, L, D) → y (B, L, E), gated. Without `gated`, where a norm comes before the gate: (y, z). Differentiable once.
    """
    parameters = in_proj, conv_weight, conv_bias.contiguous(), x_proj, dt_weight, dt_bias, A_log, D
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in (h, *parameters))
    y, z = _Mixer.apply(keep, bool(gated), h, *parameters)
    return y if gated else (y, z)


class _Mixer(torch.autograd.Function):
    """h (B, L, D) and the parameters → y and, unless the gate is applied here, z, (B, L, E) each."""

    @staticmethod
    def forward(ctx, keep, gated, h, in_proj, conv_weight, conv_bias, x_proj, dt_weight, dt_bias, A_log, D):
        h, taps, A = h.detach().contiguous(), taps_of(conv_weight), -torch.exp(A_log)
        main, gate = in_proj.chunk(2)
        raw, z = F.linear(h, main), F.linear(h, gate)
        u = conv_forward(raw, taps, conv_bias)
        dt, B, C = split_groups(F.linear(u, x_proj).unsqueeze(2), dt_weight.shape[1], A.shape[1])
        low = dt_weight.t().contiguous()
        inputs = Inputs(u, dt, powers_of(A), B, C, low, None, D, z if gated else None, dt_bias)
        ctx.gated, ctx.plan = gated, inputs.plan(decaying=True)
        y, _, states = scan_forward(inputs, ctx.plan, keep, False)
        if keep:
            ctx.save_for_backward(h, raw, in_proj, taps, conv_bias, x_proj, A, states, *inputs[:-1])
        return y, None if gated else z

    @staticmethod
    @backward_once
    def backward(ctx, dy, dz):
        h, raw, in_proj, taps, conv_bias, x_proj, A, states, *tensors = ctx.saved_tensors
        inputs = Inputs(*tensors)
        grads = scan_backward(inputs, ctx.plan, dy, states)
        rows, u, dnarrow = h.flatten(0, 1), inputs.u.flatten(0, 1), grads.delta.flatten(0, 1)  # (T, …) from here on
        grads.u.flatten(0, 1).addmm_(dnarrow, x_proj)
        draw, dconv, dconv_bias = conv_backward(raw, taps, conv_bias, grads.u)
        draw, dz = draw.flatten(0, 1), (grads.z if ctx.gated else dz.contiguous()).flatten(0, 1)
        dh, din_proj = projected_backward(rows, in_proj, draw, dz)
        dx_proj, dA_log = torch.mm(dnarrow.t(), u), grads.A * A
        own = din_proj, dconv, dconv_bias, dx_proj, grads.low.t(), grads.bias, dA_log, grads.D
        return None, None, dh.view_as(h), *own


def projected_backward(rows, in_proj, draw, dz):
    """The gradients of both halves' inputs, (T, E) each → those of rows, (T, D), and of in_proj, (2·E, D)."""
    (main, gate), din_proj = in_proj.chunk(2), empty(in_proj.shape)
    for part, grad in zip(din_proj.chunk(2), (draw, dz), strict=True):
        torch.mm(grad.t(), rows, out=part)
    return torch.mm(draw, main).addmm_(dz, gate), din_proj
