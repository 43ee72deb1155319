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

from mambanorm.kernels.conv import conv_backward, conv_forward, taps_of
from mambanorm.kernels.once_differentiable import backward_once
from mambanorm.kernels.runtime import empty
from mambanorm.kernels.scan_cpu import Inputs, scan_backward, scan_forward


def mixer_cpu(h, in_proj, conv_weight, conv_bias, x_proj, dt_weight, dt_bias, A, D, gated):
    """What stands between h = N1(x) and N2 in a block, for float32 on the CPU; parameters shaped as the block's.

    h (B, L, D), A (E, N) negative → y (B, L, E), gated. Without `gated`, where a norm comes before the gate: (y, z).
    Differentiable once.
    """
    parameters = in_proj, conv_weight, conv_bias.contiguous(), x_proj, dt_weight, dt_bias, A, D
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in (h, *parameters))
    y, z = _Mixer.apply(keep, bool(gated), h, *parameters)
    return y if gated else (y, z)


def _scan_inputs(u, z, narrow, dt_weight, dt_bias, A, D):
    """The scan's inputs from u and z (B, L, E) and the narrow product (B, L, R + 2N)."""
    size, rank = A.shape[1], dt_weight.shape[1]
    dt, B, C = narrow.split([rank, size, size], dim=-1)
    B, C = (m.transpose(1, 2).unsqueeze(1) for m in (B, C))
    return Inputs(u, dt, A, B, C, low=dt_weight.detach().t().contiguous(), D=D, z=z, bias=dt_bias)


class _Mixer(torch.autograd.Function):
    """h (B, L, D) and the parameters → y and, unless the gate is applied here, z, (B, L, E) each."""

    @staticmethod
    def forward(ctx, keep, gated, h, in_proj, conv_weight, conv_bias, x_proj, dt_weight, dt_bias, A, D):
        batch, length, width = h.shape
        rows, taps = h.detach().reshape(-1, width), taps_of(conv_weight)
        raw, z = (torch.mm(rows, part.t()).view(batch, length, -1) for part in in_proj.chunk(2))
        u = conv_forward(raw, taps, conv_bias)
        narrow = torch.mm(u.view(len(rows), -1), x_proj.t()).view(batch, length, -1)
        inputs = _scan_inputs(u, z if gated else None, narrow, dt_weight, dt_bias, A, D)
        ctx.gated, ctx.plan = gated, inputs.plan()
        y, _, states = scan_forward(inputs, ctx.plan, keep, False)
        if keep:
            kept = (rows, raw, u, narrow, states, z if gated else None)
            ctx.save_for_backward(*kept, in_proj, taps, conv_bias, x_proj, dt_weight, dt_bias, A, D)
        return y, None if gated else z

    @staticmethod
    @backward_once
    def backward(ctx, dy, dz):
        rows, raw, u, narrow, states, z, in_proj, taps, conv_bias, x_proj, dt_weight, dt_bias, A, D = ctx.saved_tensors
        tokens, channels = len(rows), u.shape[2]
        inputs = _scan_inputs(u, z, narrow, dt_weight, dt_bias, A, D)
        grads = scan_backward(inputs, ctx.plan, dy, states)
        dz, dnarrow = grads.z if ctx.gated else dz.contiguous(), grads.delta.view(tokens, -1)
        du = grads.u
        du.view(tokens, channels).addmm_(dnarrow, x_proj)
        draw, dconv, dconv_bias = conv_backward(raw, taps, conv_bias, du)
        draw, dz = draw.view(tokens, channels), dz.view(tokens, channels)
        main, gate = in_proj.chunk(2)
        dh = torch.mm(draw, main).addmm_(dz, gate)
        din_proj = empty(in_proj.shape)
        torch.mm(draw.t(), rows, out=din_proj[:channels])
        torch.mm(dz.t(), rows, out=din_proj[channels:])
        dx_proj = torch.mm(dnarrow.t(), u.view(tokens, channels))
        dh = dh.view(*u.shape[:2], -1)
        return None, None, dh, din_proj, dconv, dconv_bias, dx_proj, grads.low.t(), grads.bias, grads.A, grads.D
