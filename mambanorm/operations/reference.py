"""The selective scan as a loop over time: slow, readable, differentiable on every device.

Equations (per channel d and state index n; Gu & Dao 2023, "Mamba", equation 2 with the discretisation of the code):

(1)  Δ_t = delta_t + delta_bias, then softplus if asked for
(2)  h_t = exp(Δ_t·A) · h_(t-1) + Δ_t·B_t·u_t,   h_0 = 0     zero-order hold for the state, Euler for the input
(3)  y_t = Σ_n C_t·h_t
(4)  out_t = (y_t + D·u_t) · SiLU(z_t)

Glossary: B batch, L length, D channels, N state size, G groups of channels that share B and C; u input, delta (Δ) step
size, A decay rate, B_t and C_t input and output vectors, z gate, h state.

Source: state-spaces/mamba `ops/selective_scan_interface.py` (order of the operations, softplus threshold 20).
"""

import torch
import torch.nn.functional as F


def _at_step(m, t, channels):
    """B_t or C_t for every channel: constant (D, N), (B, N, L) or (B, G, N, L) -> broadcastable to (B, D, N)."""
    if m.dim() == 2:
        return m
    if m.dim() == 3:
        return m[:, None, :, t]
    return m[..., t].repeat_interleave(channels // m.shape[1], dim=1)


def scan_reference(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, want_last=True):
    """The scan, equation by equation; arguments as `selective_scan`, already checked.

    Computes in float64 if u is float64, else in float32. Returns out (B, D, L) in u's dtype and last_state (B, D, N) in
    the dtype of the computation, without gradient.
    """
    batch, channels, length = u.shape
    dtype = torch.float64 if u.dtype == torch.float64 else torch.float32
    x, delta, A, B, C = (tensor.to(dtype) for tensor in (u, delta, A, B, C))
    if delta_bias is not None:
        delta = delta + delta_bias.to(dtype)[:, None]
    if delta_softplus:
        delta = F.softplus(delta, threshold=20.0)  # (1)
    h = x.new_zeros(batch, channels, A.shape[1])
    ys = []
    for t in range(length):
        step = delta[:, :, t, None]  # (B, D, 1)
        h = torch.exp(step * A) * h + step * x[:, :, t, None] * _at_step(B, t, channels)  # (2)
        ys.append((_at_step(C, t, channels) * h).sum(-1))  # (3)
    out = torch.stack(ys, dim=-1)  # (B, D, L)
    if D is not None:
        out = out + D.to(dtype)[:, None] * x
    if z is not None:
        out = out * F.silu(z.to(dtype))  # (4)
    return out.to(u.dtype), h.detach() if want_last else None


def scan_step(h, u, delta, A, B, C, D, delta_bias):
    """One step of (1) to (3) from the state h (B, D, N), with softplus and D·u: u, delta (B, D); B, C (B, N).

    Computes in h's dtype. Returns y (B, D) in u's dtype and the next h.
    """
    x, delta, A, B, C = (tensor.to(h.dtype) for tensor in (u, delta, A, B, C))
    step = F.softplus(delta + delta_bias, threshold=20.0)[..., None]  # (B, D, 1)
    h = torch.exp(step * A) * h + step * x[..., None] * B[:, None]
    return ((C[:, None] * h).sum(-1) + D * x).to(u.dtype), h


def causal_conv(u, weight, bias):
    """Depthwise convolution that looks back only: y_l = bias + Σ_k weight_k · u_(l−K+1+k), K taps.

    u (B, L, E), weight (E, 1, K) as nn.Conv1d has it, bias (E,) → (B, L, E).
    """
    taps, length = weight.shape[-1], u.shape[1]
    padded = F.pad(u, (0, 0, taps - 1, 0))
    return bias + sum(padded[:, k : k + length] * weight[:, 0, k] for k in range(taps))
