"""Plain twins of our code, to be timed beside it: Mamba-2 in chunked form, and a naive NormVary."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mambanorm_study import Mamba2Block


def scan_chunked(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, chunk: int = 64
) -> Tensor:
    """Return Mamba-2's scan in its chunked form, in plain torch: matrix products inside a chunk, a
    recurrence between chunks.

    One decay rate a head makes the scan a masked matrix product (Dao & Gu 2024, "Transformers are
    SSMs", section 6):

    (1)  a_t = Δ_t·A,   decay from s to t:  exp(a_(s+1) + … + a_t)
    (2)  inside a chunk     y_t  = Σ_(s≤t) (C_t·B_s) · decay(s→t) · Δ_s·u_s
    (3)  from before it     y_t += decay(start→t) · C_t·h,    h the state at the chunk's start
    (4)  to the next chunk  h    = decay(start→end) · h + Σ_s decay(s→end) · Δ_s·u_s ⊗ B_s
    (5)  y_t += D·u_t

    u is (B, L, H, P) for H heads of P channels, delta (B, L, H) after its softplus, A and D (H,), B
    and C (B, L, G, N); the result is (B, L, H, P). The last chunk may be shorter. The function
    stores T·T numbers a head for each chunk of T positions; the selective scan stores none.
    """
    heads = u.shape[2] // B.shape[2]
    B, C = (m.repeat_interleave(heads, dim=2) for m in (B, C))  # (B, L, H, N)
    whole = (u * delta[..., None], delta * A, B, C)
    h, ys = u.new_zeros(len(u), *u.shape[2:], B.shape[-1]), []  # (B, H, P, N)
    for x, a, b, c in zip(*(tensor.split(chunk, dim=1) for tensor in whole), strict=True):
        since = a.cumsum(1)  # (B, T, H): log of the decay since the chunk's start (1)
        later = torch.ones(a.shape[1], a.shape[1], dtype=torch.bool, device=a.device).triu(1)
        # masked before exp: a decay forward in time would overflow
        log_decay = (since[:, :, None] - since[:, None]).masked_fill(later[..., None], -torch.inf)
        scores = torch.einsum("bthn,bshn->btsh", c, b) * log_decay.exp()  # (B, T, S, H)
        inside = torch.einsum("btsh,bshp->bthp", scores, x)  # (2)
        before = torch.einsum("bthn,bhpn->bthp", c * since.exp()[..., None], h)  # (3)
        left = (since[:, -1:] - since).exp()[..., None]  # (B, T, H, 1): decay to the chunk's end
        added = torch.einsum("bshp,bshn->bhpn", x * left, b)
        h = since[:, -1].exp()[..., None, None] * h + added  # (4)
        ys.append(inside + before)
    return torch.cat(ys, dim=1) + D[:, None] * u  # (5)


class ChunkedMamba2(Mamba2Block):
    """Mamba-2's block with the plain chunked scan, `chunk` positions at a time."""

    chunk = 64

    def scan(
        self, u: Tensor, dt: Tensor, B: Tensor, C: Tensor, at: Callable, context: None
    ) -> Tensor:
        """Return the scan's result; see Mamba2Block."""
        delta = at("step_size", F.softplus(dt + self.dt_bias))
        u = u.unflatten(-1, (self.n_heads, self.head_dim))
        B, C = (m.unflatten(-1, (self.n_groups, self.d_state)) for m in (B, C))
        return scan_chunked(u, delta, -torch.exp(self.A_log), B, C, self.D, self.chunk).flatten(2)


class NaiveMixture(nn.Module):
    """NormVary written naively: five norms' statistics, each computed from x anew (Eq. 8–16)."""

    def __init__(self, d: int, *, eps: float = 1e-5, groups: int = 4, momentum: float = 0.1):
        super().__init__()
        self.eps, self.groups, self.momentum = eps, groups, momentum
        self.gamma, self.beta = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d))
        self.mean_logits = nn.Parameter(torch.zeros(5))
        self.var_logits = nn.Parameter(torch.zeros(5))
        self.register_buffer("running_mean", torch.zeros(d))
        self.register_buffer("running_var", torch.ones(d))

    def forward(self, x: Tensor) -> Tensor:
        """Return the norm of x (B, L, D)."""
        no_mean = 0.0, x.square().mean((1, 2), keepdim=True)  # Eq. 12
        members = [self.batch(x), self.group(x), moments(x, 1), moments(x, (1, 2)), no_mean]
        w_mean, w_var = self.mean_logits.softmax(0), self.var_logits.softmax(0)
        mean = sum(w * m for w, (m, _) in zip(w_mean, members, strict=True))
        var = sum(w * v for w, (_, v) in zip(w_var, members, strict=True))
        return (x - mean) / torch.sqrt(var + self.eps) * self.gamma + self.beta

    def batch(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance over B and L, and update the running ones."""
        mean, var = moments(x, (0, 1))
        with torch.no_grad():
            self.running_mean.lerp_(mean.view(-1), self.momentum)
            self.running_var.lerp_(var.view(-1), self.momentum)
        return mean, var

    def group(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance over L and a group of channels, for every channel."""
        B, L, D = x.shape
        per_group = moments(x.view(B, L, self.groups, D // self.groups), (1, 3))
        shape = B, 1, self.groups, D // self.groups
        mean, var = (statistic.expand(shape).reshape(B, 1, D) for statistic in per_group)
        return mean, var


def moments(x: Tensor, axes: int | tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return mean and variance over some axes."""
    return x.mean(axes, keepdim=True), x.var(axes, correction=0, keepdim=True)
