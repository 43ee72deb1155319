"""Mamba-2's scan in its own form: matrix products inside chunks, a recurrence only between them.

One decay rate a head makes the scan a masked matrix product (Dao & Gu 2024, "Transformers are SSMs", section 6):

(1)  a_t = Δ_t·A,   decay from s to t:  exp(a_(s+1) + … + a_t)
(2)  inside a chunk     y_t  = Σ_(s≤t) (C_t·B_s) · decay(s→t) · Δ_s·u_s
(3)  from before it     y_t += decay(start→t) · C_t·h,    h the state at the chunk's start
(4)  to the next chunk  h    = decay(start→end) · h + Σ_s decay(s→end) · Δ_s·u_s ⊗ B_s
(5)  y_t += D·u_t

Plain torch: what `Mamba2Block`, carried by the selective scan, is tested and measured against. It keeps T·T numbers a
head for each chunk of T positions, the selective scan none.

Glossary: B rows, L positions, H heads, P channels a head, N state size, G groups of heads that share B and C.
"""

from __future__ import annotations

import torch
from torch import Tensor


def scan_chunked(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, chunk: int = 64) -> Tensor:
    """u (B, L, H, P), delta (B, L, H) behind its softplus, A and D (H,), B and C (B, L, G, N) → y (B, L, H, P).

    Any L: the last chunk may be shorter. Differentiable. Arguments are not checked.
    """
    heads = u.shape[2] // B.shape[2]
    B, C = (m.repeat_interleave(heads, dim=2) for m in (B, C))  # (B, L, H, N)
    whole = (u * delta[..., None], delta * A, B, C)
    h, ys = u.new_zeros(len(u), *u.shape[2:], B.shape[-1]), []  # (B, H, P, N)
    for x, a, b, c in zip(*(tensor.split(chunk, dim=1) for tensor in whole), strict=True):
        since = a.cumsum(1)  # (B, T, H): log of the decay since the chunk's start (1)
        later = torch.ones(a.shape[1], a.shape[1], dtype=torch.bool, device=a.device).triu(1)
        # masked before exp: forward in time it overflows
        between = (since[:, :, None] - since[:, None]).masked_fill(later[..., None], -torch.inf).exp()  # (B, T, S, H)
        scores = torch.einsum("bthn,bshn->btsh", c, b) * between
        inside = torch.einsum("btsh,bshp->bthp", scores, x)  # (2)
        before = torch.einsum("bthn,bhpn->bthp", c * since.exp()[..., None], h)  # (3)
        left = (since[:, -1:] - since).exp()[..., None]  # (B, T, H, 1): decay to the chunk's end
        h = since[:, -1].exp()[..., None, None] * h + torch.einsum("bshp,bshn->bhpn", x * left, b)  # (4)
        ys.append(inside + before)
    return torch.cat(ys, dim=1) + D[:, None] * u  # (5)
