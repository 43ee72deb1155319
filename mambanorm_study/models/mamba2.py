"""The Mamba-2 block, with norms at the same sites as in MambaBlock.

    z, xBC, dt = split(Lin(N1(x)))
    u, B, C = split(SiLU(Conv(xBC)))
    Δ = softplus(dt + dt_bias)
    y = Scan(u, Δ, A, B, C) + D·u                  one Δ, A and D for each head
    out = x + Lin(N_gated(N2(y) · SiLU(z)))

The published block is the arm `RMSN>SSM>None+gated:RMSN`: its second norm is after the gate
(mamba-ssm's `norm_before_gate=False`).

The scan of Mamba-2 is a selective scan in which all channels of a head share Δ, A and D, and all
states share A. So `selective_scan` computes it on every back end, without a (B, L, E, N) tensor.
`selective_scan` is slower than Mamba-2's kernels: it reads Δ and A for each channel instead of for
each head, and computes exp(Δ·A) P·N times per head instead of once. It also uses no matrix
products, which make large N cheap on a GPU. `benchmarks/twins.py` has the form with matrix
products; tests compare this block with that form, and benchmarks time both.

Glossary: B rows, L positions, D = d_model, E = d_inner = expand·D, H heads of P = head_dim
channels, G = n_groups, N = d_state, K = d_conv.

Sources: Dao & Gu 2024, "Transformers are SSMs", section 7 and figure 6; state-spaces/mamba
`modules/mamba2.py` (parameter names, initial values); huggingface/transformers
`models/mamba2/modeling_mamba2.py`. Three options of mamba-ssm are fixed at their defaults here:
all E channels go through the scan, D has one number per head, and Δ has no limits.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mambanorm.arms import Arm
from mambanorm.block import BlockCache, CausalBlock, check_sizes, init_dt_bias
from mambanorm.checks import check_shapes
from mambanorm.operations import selective_scan
from mambanorm.operations.layers import split_linear
from mambanorm_study.models.registry import register_model

A_RANGE = (1.0, 16.0)  # −A is initialized uniformly in this range, as in mamba-ssm


def number_of_heads(d_inner: int, head_dim: int, n_groups: int = 1) -> int:
    """Return the number of heads, d_inner / head_dim.

    Raises ValueError unless head_dim divides d_inner and n_groups divides the number of heads.
    """
    heads, remainder = divmod(d_inner, head_dim)
    if remainder:
        raise ValueError(f"head_dim={head_dim} does not divide d_inner={d_inner}")
    if heads % n_groups:
        raise ValueError(f"n_groups={n_groups} does not divide the {heads} heads")
    return heads


class Mamba2Block(CausalBlock):
    """The Mamba-2 block, residual included: x (B, L, d_model) → (B, L, d_model).

    n1: name of the norm at the block's input. n2: name of the norm between the SSM and the gate.
    See NORMS for the names. more: (site, norm) pairs of further norms, at "conv" (u alone), "B" and
    "C" (over G·N channels), "delta" (the H values of dt, before bias and softplus), "z", "gated",
    "branch" and "residual". The published Mamba-2 has RMSN at "gated"; at this site RMSN is
    computed over each of the n_groups groups of channels. Each norm gets those of the
    `norm_options` that it accepts. Raises ValueError for an unknown norm or site or an invalid
    size, and TypeError for an option that no norm of the block accepts.
    """

    missing_sites = ("delta_after",)

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
        check_sizes(
            scan_backend,
            None,
            d_model=d_model,
            d_state=d_state,
            d_conv=d_conv,
            expand=expand,
            head_dim=head_dim,
            n_groups=n_groups,
        )
        self.d_model, self.d_state, self.scan_backend = d_model, d_state, scan_backend
        self.head_dim, self.n_groups = head_dim, n_groups
        self.d_inner = expand * d_model
        self.n_heads = number_of_heads(self.d_inner, head_dim, n_groups)

        convolved = self.d_inner + 2 * n_groups * d_state  # u, B and C
        self.in_proj = nn.Linear(d_model, self.d_inner + convolved + self.n_heads, bias=False)
        self._make_conv(convolved, d_conv)
        self.dt_bias = nn.Parameter(torch.empty(self.n_heads))
        init_dt_bias(self.dt_bias)
        self.A_log = nn.Parameter(torch.empty(self.n_heads).uniform_(*A_RANGE).log())
        self.D = nn.Parameter(torch.ones(self.n_heads))
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)
        self._make_norms(
            Arm(n1, n2, more),
            norm_options,
            D=d_model,
            E=self.d_inner,
            N=n_groups * d_state,
            R=self.n_heads,
        )
        self.register_load_state_dict_pre_hook(_rename_from_mamba_ssm)

    def new_norm(self, site: str, name: str, options: Mapping[str, Any]) -> nn.Module:
        """Return a new norm for a site. RMSN at "gated" is computed over each group of channels."""
        if (site, name) == ("gated", "RMSN") and self.n_groups > 1:
            options = {"group_size": self.d_inner // self.n_groups, **options}
        return super().new_norm(site, name, options)

    def project(self, h: Tensor) -> tuple[Tensor, ...]:
        """Return the convolution's input (B, L, E + 2·G·N), gate z (B, L, E) and dt (B, L, H)."""
        z, xBC, dt = split_linear(self.in_proj, h, [self.d_inner, self.conv_channels, self.n_heads])
        return xBC, z, dt

    def select(
        self, u: Tensor, dt: Tensor, at: Callable, context: BlockCache | None
    ) -> tuple[Tensor, ...]:
        """Return u (B, L, E), dt (B, L, H), B (B, L, G·N) and C (B, L, G·N), after their norms.

        The argument u is the convolution's output (B, L, E + 2·G·N), which contains u, B and C.
        """
        bc = self.n_groups * self.d_state
        u, B, C = u.split([self.d_inner, bc, bc], dim=-1)
        u, B, C = at("conv", u), at("B", B), at("C", C)
        return u, at("delta", dt), B, C

    def scan(
        self, u: Tensor, dt: Tensor, B: Tensor, C: Tensor, at: Callable, context: BlockCache | None
    ) -> Tensor:
        """Return the output y of the SSM (B, L, E). If `context` is a cache, update its state."""
        per_head = self.dt_bias, self.A_log, self.D
        # otherwise a parameter of the wrong shape would be broadcast silently
        check_shapes("Mamba2Block", ("dt_bias", "A_log", "D"), per_head, [(self.n_heads,)] * 3)
        delta = at("step_size", nn.functional.softplus(dt + self.dt_bias))
        state = None if context is None else context.state
        result = selective_scan(
            u.transpose(1, 2),
            self._repeat_for_channels(delta).transpose(1, 2),
            self._repeat_for_channels(-torch.exp(self.A_log))[:, None].expand(-1, self.d_state),
            self._split_groups(B),
            self._split_groups(C),
            self._repeat_for_channels(self.D),
            return_last_state=state is not None,
            initial_state=state,
            backend=self.scan_backend,
        )
        if state is None:
            return result.transpose(1, 2)
        y, context.state = result
        return y.transpose(1, 2)

    def _repeat_for_channels(self, per_head: Tensor) -> Tensor:
        """Repeat the value of each head for every channel of the head: (…, H) → (…, E)."""
        return per_head.repeat_interleave(self.head_dim, dim=-1)

    def _split_groups(self, m: Tensor) -> Tensor:
        """Return m (B or C) in the layout of the scan: (B, L, G·N) → (B, G, N, L)."""
        return m.unflatten(-1, (self.n_groups, self.d_state)).permute(0, 2, 3, 1)


def _rename_from_mamba_ssm(block: Mamba2Block, state: dict[str, Tensor], prefix: str, *_) -> None:
    """Rename the keys of mamba-ssm's state dict: `norm.*` is N1, `mixer.norm.*` is the norm after
    the gate, and all other `mixer.*` keep their names without `mixer.`.
    """
    for theirs, ours in (("norm.", "n1."), ("mixer.norm.", "more.gated."), ("mixer.", "")):
        for key in [key for key in state if key.startswith(prefix + theirs)]:
            state[prefix + ours + key.removeprefix(prefix + theirs)] = state.pop(key)


register_model(
    "mamba2",
    Mamba2Block,
    check=lambda config: number_of_heads(
        config.expand * config.d_model, config.head_dim, config.n_groups
    ),
)
