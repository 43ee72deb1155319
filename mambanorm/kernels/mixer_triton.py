"""All of a Mamba block between its two norms, in one autograd function: fused on CUDA, with Triton.

    u, z = SiLU(Conv(h·W_mainᵀ)), h·W_gateᵀ        dt, B, C = split(u·W_xᵀ)
    Δ = softplus(dt·W_dtᵀ + bias)                  y = Scan(u, Δ, A, B, C) + D·u,  ·SiLU(z) where nothing stands between

The same steps as mixer.py and mixer_parts.py on the CPU. The matrix products are torch's (cuBLAS). The loops between
them are ours: conv_triton.py, and scan_triton.py with Δ's projection, softplus, skip and gate. Kept for the backward
pass are h, the product of in_proj, u, the narrow dt, B, C, and the scan's states at chunk starts. Δ is stored only if
its rank is above MOST_RANKS (see scan_triton.py). The readable twin is `MambaBlock._forward_readable`.

Precision. h and the matrix products are in h's dtype, under autocast in autocast's; all between is computed in float32
and stored in that dtype. Parameters may stay in float32: those of the two products are cast, as autocast does, the
others are read as they are. Gradients come back in each parameter's dtype.

Launches of kernels, gated, R ≤ MOST_RANKS: forward 4 (product, convolution, product, scan), backward 9 (scan and the
sum of its partial sums over blocks; two products for x_proj; convolution and its sum; two products for in_proj; the sum
over rows), and below float32 a cast of dB and dC. Autocast adds four casts, of two weights and their gradients. Nothing
waits for the device and no size depends on data: a CUDA graph can hold all of it.

Bytes a token and channel E in bfloat16, in numbers of 2 bytes. Forward 8: xz written 2, convolution 2, x_proj reads 1,
the scan reads u and z and writes y, 3. Backward 15: the scan reads u, z, dy and writes du, dz, 5; x_proj's products
read u and du and write du, 3; the convolution reads raw and du and writes, 3; in_proj's products read dxz twice, 4. To
these come the states at chunk starts, 2·N/√L written forward and read backward, 0.7 each at N = 16 and L = 2048; and
the partial sums of dB and dC in float32, written and read, 8·N/block, 4 at N = 16 and blocks of 32 channels.

Glossary: B rows, L positions, T = B·L tokens, D = d_model, E = d_inner channels, K taps, N state size, R = dt_rank.
Source: as mixer.py.
"""

import torch
import torch.nn.functional as F

from mambanorm.kernels.conv_triton import conv_backward, conv_forward
from mambanorm.kernels.once_differentiable import backward_once
from mambanorm.kernels.scan_triton import MOST_RANKS, Given, backward_pass, forward_pass


def mixer_triton(h, in_proj, conv_weight, conv_bias, x_proj, dt_weight, dt_bias, A_log, D, gated):
    """What stands between h = N1(x) and N2 in a block; parameters shaped as the block's.

    h (B, L, D) → y (B, L, E), gated. Without `gated`, where a norm comes before the gate: (y, z). Differentiable once.
    """
    parameters = in_proj, *_dense(conv_weight, conv_bias), x_proj, *_dense(dt_weight, dt_bias, A_log, D)
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in (h, *parameters))
    y, z = _apply(_Mixer, h, keep, bool(gated), _dtype(h), h, *parameters)
    return y if gated else (y, z)


def enter_mixer_triton(h, in_proj, conv_weight, conv_bias):
    """The first part, for norms in between: h (B, L, D) → u and z, (B, L, E) each. Differentiable once."""
    return _apply(_Enter, h, _dtype(h), h, in_proj, *_dense(conv_weight, conv_bias))


def leave_mixer_triton(u, dt, B, C, z, dt_weight, dt_bias, A_log, D):
    """The second part: u and z (B, L, E), dt (B, L, R), B and C (B, L, N) → y (B, L, E); z None: without a gate.
    Differentiable once."""
    tensors = u, dt, B, C, z, *_dense(dt_weight, dt_bias, A_log, D)
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    return _apply(_Leave, u, keep, _dtype(u), *tensors)


def _dense(*parameters):
    return (p.contiguous() for p in parameters)


def _dtype(h):
    """Of the matrix products, and of all that is stored: autocast's where it is on."""
    kind = h.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else h.dtype


def _apply(function, like, *arguments):
    """Without autocast inside: every cast is written out, so that autocast need not find and keep any."""
    with torch.autocast(like.device.type, enabled=False):
        return function.apply(*arguments)


def _without_autocast(backward):
    """Decorator of a backward pass that may be asked for within autocast."""

    def plain(ctx, *grads):
        with torch.autocast(grads[0].device.type, enabled=False):
            return backward(ctx, *grads)

    return plain


# ------------------------------------------------------------------------------------------------- into and out of it
def _entered(h, weight, conv_weight, conv_bias):
    """h (B, L, D) → the product of in_proj, (B, L, 2·E), and u (B, L, E)."""
    both = F.linear(h, weight)
    return both, conv_forward(both.chunk(2, -1)[0], conv_weight, conv_bias)


def _enter_backward(h, weight, both, conv_weight, conv_bias, du, dboth):
    """Gradients of h, weight and convolution; dboth (B, L, 2·E) has z's in its second half, its first is written."""
    raw, draw = both.chunk(2, -1)[0], dboth.chunk(2, -1)[0]
    _, dconv, dconv_bias = conv_backward(raw, conv_weight, conv_bias, du, draw)
    flat = dboth.flatten(0, 1)  # (T, 2·E)
    return torch.mm(flat, weight).view_as(h), torch.mm(flat.t(), h.flatten(0, 1)), dconv, dconv_bias


def _scan_of(u, dt, B, C, z, dt_weight, dt_bias, A_log, D):
    """What the scan is given: Δ as its two factors while they are narrow, else their product."""
    B, C = (m.transpose(1, 2).unsqueeze(1) for m in (B, C))  # (B, 1, N, L)
    if dt_weight.shape[1] <= MOST_RANKS:
        low, delta = dt_weight, dt.transpose(1, 2).unsqueeze(1)
    else:
        low, delta = None, F.linear(dt.to(u.dtype), dt_weight.to(u.dtype)).transpose(1, 2)
    rows = [None if x is None else x.transpose(1, 2) for x in (u, z)]
    return Given(rows[0], delta, B, C, rows[1], low, A_log, D, dt_bias, True, True)


def _scan_backward(given, dt, dt_weight, dy, states, dz):
    """The scan's gradients; those of dt, B and C side by side, (B, L, R + 2·N), in float32; and that of dt_weight."""
    grads = backward_pass(given, given.plan(), dy.transpose(1, 2), states, dz)
    narrow = grads.partial[:, 0] if grads.partial.shape[1] == 1 else grads.partial.sum(1)
    if given.low is not None:
        return grads, narrow, grads.low
    ddelta, dt = grads.delta.flatten(0, 1), dt.flatten(0, 1).to(grads.delta.dtype)
    ddt = torch.mm(ddelta, dt_weight.to(ddelta.dtype)).view(*narrow.shape[:2], -1)
    return grads, torch.cat([ddt.float(), narrow], -1), torch.mm(ddelta.t(), dt)


def _like(grads, parameters):
    """Each gradient in its parameter's dtype."""
    return (grad.to(p.dtype) for grad, p in zip(grads, parameters, strict=True))


class _Mixer(torch.autograd.Function):
    """h (B, L, D) and the parameters → y and, unless the gate is applied here, z, (B, L, E) each."""

    @staticmethod
    def forward(ctx, keep, gated, dtype, h, in_proj, conv_weight, conv_bias, x_proj, dt_weight, *rest):
        ctx.source = h.dtype
        h, w_in, w_x = (t.to(dtype) for t in (h, in_proj, x_proj))
        both, u = _entered(h, w_in, conv_weight, conv_bias)
        narrow, z = F.linear(u, w_x), both.chunk(2, -1)[1]
        ctx.gated, sizes = gated, [dt_weight.shape[1], *[rest[1].shape[1]] * 2]
        given = _scan_of(u, *narrow.split(sizes, -1), z if gated else None, dt_weight, *rest)
        y, states, _ = forward_pass(given, given.plan(), keep, False)
        if keep:
            parameters = in_proj, conv_weight, conv_bias, x_proj, dt_weight, *rest
            ctx.save_for_backward(h, w_in, w_x, both, u, narrow, states, *parameters)
        return y, None if gated else z

    @staticmethod
    @backward_once
    @_without_autocast
    def backward(ctx, dy, dz):
        h, w_in, w_x, both, u, narrow, states, *parameters = ctx.saved_tensors
        _, conv_weight, conv_bias, _, dt_weight, *rest = parameters
        dt, B, C = narrow.split([dt_weight.shape[1], *[rest[1].shape[1]] * 2], -1)
        gate, dboth = both.chunk(2, -1)[1] if ctx.gated else None, torch.empty_like(both)
        dgate = dboth.chunk(2, -1)[1]
        given = _scan_of(u, dt, B, C, gate, dt_weight, *rest)
        grads, dnarrow, dlow = _scan_backward(given, dt, dt_weight, dy, states, dgate if ctx.gated else None)
        if not ctx.gated:
            dgate.copy_(dz)
        dnarrow = dnarrow.to(u.dtype).flatten(0, 1)  # (T, R + 2·N)
        grads.u.flatten(0, 1).addmm_(dnarrow, w_x)
        dx_proj = torch.mm(dnarrow.t(), u.flatten(0, 1))
        dh, din_proj, *dconv = _enter_backward(h, w_in, both, conv_weight, conv_bias, grads.u, dboth)
        own = din_proj, *dconv, dx_proj, dlow, grads.bias, grads.A, grads.D
        return None, None, None, dh.to(ctx.source), *_like(own, parameters)


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, dtype, h, in_proj, conv_weight, conv_bias):
        ctx.source = h.dtype
        h, weight = h.to(dtype), in_proj.to(dtype)
        both, u = _entered(h, weight, conv_weight, conv_bias)
        ctx.save_for_backward(h, weight, both, in_proj, conv_weight, conv_bias)
        return u, both.chunk(2, -1)[1]

    @staticmethod
    @backward_once
    @_without_autocast
    def backward(ctx, du, dz):
        h, weight, both, *parameters = ctx.saved_tensors
        dboth = torch.empty_like(both)
        dboth.chunk(2, -1)[1].copy_(dz)
        dh, *own = _enter_backward(h, weight, both, *parameters[1:], du, dboth)
        return None, dh.to(ctx.source), *_like(own, parameters)


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, keep, dtype, u, dt, B, C, z, *parameters):
        ctx.sources = [None if t is None else t.dtype for t in (u, dt, B, C, z)]
        u = u.to(dtype)
        given = _scan_of(u, dt, B, C, z, *parameters)
        y, states, _ = forward_pass(given, given.plan(), keep, False)
        if keep:
            ctx.save_for_backward(u, dt, B, C, z, states, *parameters)
        return y

    @staticmethod
    @backward_once
    @_without_autocast
    def backward(ctx, dy):
        u, dt, B, C, z, states, dt_weight, *rest = ctx.saved_tensors
        given = _scan_of(u, dt, B, C, z, dt_weight, *rest)
        grads, dnarrow, dlow = _scan_backward(given, dt, dt_weight, dy, states, None)
        narrow = dnarrow.split([dt.shape[-1], B.shape[-1], C.shape[-1]], -1)
        inputs = (
            None if grad is None else grad.to(source)
            for grad, source in zip((grads.u, *narrow, grads.z), ctx.sources, strict=True)
        )
        own = _like((dlow, grads.bias, grads.A, grads.D), (dt_weight, *rest))
        return None, None, *inputs, *own
