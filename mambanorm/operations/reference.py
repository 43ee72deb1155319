"""The selective scan as a loop over time: slow, readable, differentiable on every device.

Equations (for each channel d and state index n; Gu & Dao 2023, "Mamba", equation 2 with the
discretization of the authors' code):

(1)  Δ_t = delta_t + delta_bias, then softplus if delta_softplus is True
(2)  h_t = exp(Δ_t·A) · h_(t-1) + Δ_t·B_t·u_t,   h_0 = 0 or the given state
(3)  y_t = Σ_n C_t·h_t
(4)  out_t = y_t + D·u_t

(2) discretizes the state by zero-order hold and the input by Euler's rule. Glossary:
operations/__init__.py. Source: state-spaces/mamba `ops/selective_scan_interface.py` (order of the
operations, softplus threshold 20).
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def _at_step(m: Tensor, t: int, channels: int) -> Tensor:
    """Return B_t or C_t at position t, broadcastable to (B, D, N).

    m: all of B or C, as (D, N) if it is constant along the sequence, (B, N, L) or (B, G, N, L).
    """
    if m.dim() == 2:
        return m
    if m.dim() == 3:
        return m[:, None, :, t]
    return m[..., t].repeat_interleave(channels // m.shape[1], dim=1)


def scan_reference(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    want_last: bool = True,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute the scan, equation by equation.

    The arguments are those of `selective_scan`, which has already checked them; `state` is h_0,
    None means zero. Computes in float64 if u is float64, otherwise in float32. Returns out
    (B, D, L) in u's dtype, and the last state (B, D, N), which has the dtype of the computation and
    no gradient. Without `want_last`, None is returned instead of the last state.
    """
    batch, channels, length = u.shape
    dtype = torch.float64 if u.dtype == torch.float64 else torch.float32
    x, delta, A, B, C = (tensor.to(dtype) for tensor in (u, delta, A, B, C))
    if delta_bias is not None:
        delta = delta + delta_bias.to(dtype)[:, None]
    if delta_softplus:
        delta = F.softplus(delta, threshold=20.0)  # (1)
    h = x.new_zeros(batch, channels, A.shape[1]) if state is None else state.to(dtype)
    ys = []
    for t in range(length):
        step = delta[:, :, t, None]  # (B, D, 1)
        h = torch.exp(step * A) * h + step * x[:, :, t, None] * _at_step(B, t, channels)  # (2)
        ys.append((_at_step(C, t, channels) * h).sum(-1))  # (3)
    out = torch.stack(ys, dim=-1)  # (B, D, L)
    if D is not None:
        out = out + D.to(dtype)[:, None] * x  # (4)
    return out.to(u.dtype), h.detach() if want_last else None
