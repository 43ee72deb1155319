"""The Mamba-2 block with the sites of MambaBlock: Dao & Gu 2024, "Transformers are SSMs", section 7 and figure 6.

    z, xBC, dt = split(Lin(N1(x)))             u, B, C = split(SiLU(Conv(xBC)))
    Δ = softplus(dt + dt_bias)                 y = Scan(u, Δ, A, B, C) + D·u          one Δ, A and D a head
    out = x + Lin(N_gated(N2(y) · SiLU(z)))

The published block is the arm `RMSN>SSM>None+gated:RMSN`: its norm stands behind the gate (`norm_before_gate=False`).

Its scan is the selective scan whose Δ, A and D are the same for all channels of a head and whose A is the same for all
states; so `selective_scan` carries it, on every back end, and no (B, L, E, N) tensor is made. What is lost against
Mamba-2's own kernels: Δ and A are read once a channel and not once a head, exp(Δ·A) is computed P·N times and not once,
and nothing of it is a matrix product, which is what makes large N cheap on a GPU. `operations/chunked.py` has that
form; `benchmarks` measures the two side by side.

Glossary: B rows, L positions, D = d_model, E = d_inner = expand·D, H heads of P = head_dim channels, G = n_groups,
N = d_state, K = d_conv.
Source: state-spaces/mamba `modules/mamba2.py` (parameter names, initial values); huggingface/transformers
`models/mamba2/modeling_mamba2.py`. Deviations: all of E goes through the scan, D has one number a head, and Δ has no
limits, which are their defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mambanorm.basics.checks import check_beside, check_real, check_shapes
from mambanorm.block import NOT_YET, BlockCache, MambaBlock, check_sizes, init_dt_bias
from mambanorm.sites import SitedBlock, arm_of
from mambanorm.norms import NORMS, check_causal
from mambanorm.norms.base import check_groups
from mambanorm.norms.classic import RMSNorm
from mambanorm.operations import conv_silu, selective_scan

MIXER = ("in_proj.weight", "conv1d.weight", "conv1d.bias", "dt_bias", "A_log", "D", "out_proj.weight")
"""The parameters of what stands between the norms, in the order of `_mixer_parameters`."""

A_RANGE = (1.0, 16.0)  # mamba-ssm's range of the initial −A


class GroupedRMSNorm(RMSNorm):
    """RMSN of each group of a token's channels on its own: what Mamba-2 has behind its gate, mamba-ssm's RMSNormGated.

    y = γ_c · x / √(mean over the channels of c's group of x² + ε). ValueError unless the groups divide d.
    """

    def __init__(self, d: int, *, groups: int, **options: Any):
        check_groups(d, groups)
        super().__init__(d, **options)
        self.groups = groups

    def readable(self, x: Tensor) -> Tensor:
        y = F.rms_norm(x.unflatten(-1, (self.groups, -1)), (self.d // self.groups,), eps=self.eps).flatten(-2)
        y = y if self.weight is None else y * self.weight
        return y if self.bias is None else y + self.bias


class Mamba2Block(SitedBlock):
    """One block, residual included: x (B, L, d_model) → (B, L, d_model).

    n1, n2: names of norms (see NORMS) before the SSM and between SSM and gate. more: (site, norm) pairs of further
    norms, at "conv" (u alone), "B" and "C" (over G·N channels), "delta" (the H numbers before bias and softplus), "z",
    "gated", "branch" and "residual"; "gated" is Mamba-2's own, and RMSN there is taken over each of the n_groups.
    `norm_options` go to whichever norm knows them. Raises ValueError for an unknown norm, site or size, TypeError for
    an option that no norm has.
    """

    def __init__(
        self,
        d_model: int,
        n1: str | None = "RMSN",
        n2: str | None = "None",
        more: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        *,
        d_state: int = 128,
        d_conv: int = 4,
        expand: int = 2,
        head_dim: int = 64,
        n_groups: int = 1,
        norm_options: dict[str, Any] | None = None,
        scan_backend: str = "auto",
    ):
        super().__init__()
        sizes = dict(d_model=d_model, d_state=d_state, d_conv=d_conv, expand=expand)
        check_sizes(scan_backend, None, **sizes, head_dim=head_dim, n_groups=n_groups)
        self.d_model, self.d_state, self.head_dim, self.n_groups = d_model, d_state, head_dim, n_groups
        self.d_inner, self.scan_backend = expand * d_model, scan_backend
        self.n_heads = heads_of(self.d_inner, head_dim, n_groups)

        convolved = self.d_inner + 2 * n_groups * d_state  # u, B and C
        self.in_proj = nn.Linear(d_model, self.d_inner + convolved + self.n_heads, bias=False)
        self.conv1d = nn.Conv1d(convolved, convolved, d_conv, groups=convolved, padding=d_conv - 1)
        self.dt_bias = nn.Parameter(torch.empty(self.n_heads))
        init_dt_bias(self.dt_bias)
        self.A_log = nn.Parameter(torch.empty(self.n_heads).uniform_(*A_RANGE).log())
        self.D = nn.Parameter(torch.ones(self.n_heads))
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)
        bc, narrow = n_groups * d_state, ("n1", "branch", "residual")
        widths = dict.fromkeys(narrow, d_model) | dict(B=bc, C=bc, delta=self.n_heads)
        widths |= dict.fromkeys(("n2", "conv", "z", "gated"), self.d_inner)
        self._make_norms(arm_of(n1, n2, more), norm_options, widths)
        self.register_load_state_dict_pre_hook(_rename_from_mamba_ssm)
        self._shapes = [tuple(p.shape) for p in self._mixer_parameters()]

    def _plan(self) -> None:
        super()._plan()
        self.scan_gates = self.arm.n2 == "None" and "z" not in self.more  # nothing between SSM and gate

    def new_norm(self, site: str, name: str, options: Mapping[str, Any]) -> nn.Module:
        """RMSN behind the gate is taken over each group."""
        norm = super().new_norm(site, name, options)
        if (site, name) != ("gated", "RMSN") or self.n_groups == 1:
            return norm
        own = {key: value for key, value in options.items() if key in NORMS["RMSN"].own}
        return GroupedRMSNorm(self.d_inner, groups=self.n_groups, **own)

    def extra_repr(self) -> str:
        return f"d_state={self.d_state}, head_dim={self.head_dim}, n_groups={self.n_groups}"

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """x (B, L, D) → y (B, L, D). `lengths` (B,): how many positions of each row are no padding; None = all. Norms
        leave padding out; the scan is causal, so padding after a row changes nothing in it. ValueError for another x.
        """
        self._check(x)
        z, raw, dt = self._project(self._see("x", x), lengths)
        u, delta, B, C = self._select(self._convolve(raw), dt, lengths)
        for site, value in (("B", B), ("C", C), ("delta", delta)):
            self._see(site, value)
        if self.scan_gates and self.observer is None:
            return self._add(x, self._scan(u, delta, B, C, z), lengths)
        return self._close(x, self._scan(u, delta, B, C), z, lengths)

    def _check(self, x: Tensor) -> None:
        """Raises ValueError unless x is a non-empty (B, L, D) of the parameters' dtype and device, and for a parameter
        that was replaced by a tensor of another shape."""
        check_real("x", x, f"(B, L, {self.d_model})")
        if x.dim() != 3 or x.shape[-1] != self.d_model or 0 in x.shape:
            raise ValueError(f"Mamba2Block expects (B, L, D) with D = {self.d_model}, got shape {tuple(x.shape)}")
        parameters = self._mixer_parameters()
        check_beside("x", x, parameters[0], "Mamba2Block")
        check_shapes("Mamba2Block", MIXER, parameters, self._shapes)

    def _mixer_parameters(self) -> tuple[Tensor, ...]:
        conv = self.conv1d
        return self.in_proj.weight, conv.weight, conv.bias, self.dt_bias, self.A_log, self.D, self.out_proj.weight

    def _project(self, x: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, ...]:
        """The gate z (B, L, E), what is convolved (B, L, E + 2·G·N) and dt (B, L, H)."""
        h = self._see("n1", self.n1(x, lengths))
        return self.in_proj(h).split([self.d_inner, self.conv1d.in_channels, self.n_heads], dim=-1)

    def _convolve(self, raw: Tensor) -> Tensor:
        """Causal depthwise convolution, then SiLU; (B, L, E + 2·G·N) as it comes."""
        return conv_silu(raw, self.conv1d.weight, self.conv1d.bias)

    def _select(self, convolved: Tensor, dt: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, ...]:
        """u (B, L, E), Δ (B, L, H) behind its softplus, B and C (B, L, G·N)."""
        bc = self.n_groups * self.d_state
        u, B, C = convolved.split([self.d_inner, bc, bc], dim=-1)
        u, B, C, dt = (self._at(site, part, lengths) for site, part in (("conv", u), ("B", B), ("C", C), ("delta", dt)))
        return self._see("conv", u), F.softplus(dt + self.dt_bias), B, C

    def _scan(self, u: Tensor, delta: Tensor, B: Tensor, C: Tensor, z: Tensor | None = None, last: bool = False):
        """The scan, gated where z is given: y (B, L, E); with `last` (y, the state after the last position)."""
        A, D = self._per_channel()
        found = selective_scan(
            u.transpose(1, 2),
            self._widen(delta).transpose(1, 2),
            A,
            self._grouped(B),
            self._grouped(C),
            D,
            z=None if z is None else z.transpose(1, 2),
            return_last_state=last,
            backend=self.scan_backend,
        )
        return (found[0].transpose(1, 2), found[1]) if last else found.transpose(1, 2)

    def _per_channel(self) -> tuple[Tensor, Tensor]:
        """A (E, N) and D (E,): a head's number for each of its channels and states."""
        return self._widen(-torch.exp(self.A_log))[:, None].expand(-1, self.d_state), self._widen(self.D)

    def _widen(self, heads: Tensor) -> Tensor:
        """(…, H) → (…, E)."""
        return heads.repeat_interleave(self.head_dim, dim=-1)

    def _grouped(self, m: Tensor) -> Tensor:
        """B or C as the scan takes it: (B, L, G·N) → (B, G, N, L)."""
        return m.unflatten(-1, (self.n_groups, self.d_state)).permute(0, 2, 3, 1)

    def new_cache(self, rows: int) -> BlockCache:
        """The cache before the first position: conv (B, K − 1, E + 2·G·N), state (B, E, N)."""
        weight = self.conv1d.weight  # (E + 2·G·N, 1, K)
        dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32  # as the scan's last state
        conv = weight.new_zeros(rows, weight.shape[-1] - 1, len(weight))
        return BlockCache(conv, weight.new_zeros(rows, self.d_inner, self.d_state, dtype=dtype))

    @torch.no_grad()
    def prefill(self, x: Tensor) -> tuple[Tensor, BlockCache]:
        """`forward(x)` of all positions of the prompt at once, (B, L, D), and the cache for `step`.

        Without gradient: the scan's last state carries none. Raises ValueError where a norm is not causal.
        """
        self._check(x)
        check_causal(self.arm.norms, NOT_YET)
        z, raw, dt = self._project(x)
        y, state = self._scan(*self._select(self._convolve(raw), dt), last=True)
        cache = BlockCache(F.pad(raw, (0, 0, self.conv1d.kernel_size[0] - 1, 0))[:, x.shape[1] :], state)
        return self._close(x, y, z), cache

    @torch.no_grad()
    def step(self, x: Tensor, cache: BlockCache) -> Tensor:
        """What `forward` gives at the next position, x (B, D) → (B, D); updates the cache.

        Without gradient. Raises ValueError where a norm is not causal and for an x that does not fit the cache.
        """
        check_causal(self.arm.norms, NOT_YET)
        self._check_step(x, cache)
        z, raw, dt = self._project(x[:, None])  # (B, 1, …)
        window = torch.cat([cache.conv, raw], dim=1)  # (B, K, E + 2·G·N)
        taps = self.conv1d.weight[:, 0].t()  # (K, E + 2·G·N)
        convolved = F.silu((window * taps).sum(1, keepdim=True) + self.conv1d.bias)
        y, cache.state = self._scan_step(cache.state, *self._select(convolved, dt))
        cache.conv = window[:, 1:]
        return self._close(x[:, None], y[:, None], z)[:, 0]

    def _scan_step(self, h: Tensor, u: Tensor, delta: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
        """One step of the scan from the state h (B, E, N); u, delta, B and C of one position. Returns y (B, E) in u's
        dtype and the next h; computes in h's."""
        A, D = (t.to(h.dtype) for t in self._per_channel())
        now, step = u[:, 0].to(h.dtype), self._widen(delta[:, 0]).to(h.dtype)[..., None]  # (B, E), (B, E, 1)
        channels = self.d_inner // self.n_groups
        B, C = (self._grouped(m)[..., 0].to(h.dtype).repeat_interleave(channels, dim=1) for m in (B, C))  # (B, E, N)
        h = torch.exp(step * A) * h + step * now[..., None] * B
        return ((C * h).sum(-1) + D * now).to(u.dtype), h

    _check_step = MambaBlock._check_step


def heads_of(d_inner: int, head_dim: int, n_groups: int = 1) -> int:
    """The number of heads. ValueError unless head_dim divides d_inner and n_groups the heads."""
    if d_inner % head_dim:
        fits = [p for p in range(1, d_inner + 1) if d_inner % p == 0]
        raise ValueError(f"head_dim={head_dim} does not divide d_inner={d_inner}: it may be one of {fits}")
    heads = d_inner // head_dim
    if heads % n_groups:
        fits = [g for g in range(1, heads + 1) if heads % g == 0]
        raise ValueError(f"n_groups={n_groups} does not divide the {heads} heads: it may be one of {fits}")
    return heads


def _rename_from_mamba_ssm(block: Mamba2Block, state: dict[str, Tensor], prefix: str, *_) -> None:
    """Renames mamba-ssm's `norm.*`, its N1, and `mixer.*`, whose `norm` is behind the gate, to this block's names."""
    for theirs, ours in (("norm.", "n1."), ("mixer.norm.", "more.gated."), ("mixer.", "")):
        for key in [key for key in state if key.startswith(prefix + theirs)]:
            state[prefix + ours + key.removeprefix(prefix + theirs)] = state.pop(key)
