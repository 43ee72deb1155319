"""The Mamba block with its normalization sites (Eq. 1–3), as in `Gu & Dao 2023` and state-spaces/mamba.

    f = N2(SSM(SiLU(Conv(Lin(N1(x))))))        (1)   main branch
    p = SiLU(Lin(N1(x)))                       (2)   gate: the same N1(x) feeds both branches
    y = Lin(f ⊗ p) ⊕ x                         (3)

Glossary: B rows, L positions, D = d_model, E = d_inner = expand·D, N = d_state, R = dt_rank, K = d_conv,
`delta` Δ, `A_log` log(−A). N2's input includes D·u, as mamba-ssm's scan returns it. Further norms can stand at the
sites of MORE_SITES (arms.py); sites.py has what all blocks share of that.

For generation: `prefill` runs the prompt and returns a BlockCache as well; `step` takes one more position.

A block is implemented twice, with equal results. The fused version is fast, for float32 on the CPU. The readable
one runs everywhere else and while diagnostics record, because there every site of SITES is a tensor.
Parameter names and initial values are mamba-ssm's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mambanorm.arms import PRESETS, Arm
from mambanorm.basics.checks import check_beside, check_real, check_shapes, check_size, check_tensor, shown
from mambanorm.basics.errors import unknown
from mambanorm.sites import SITES, SitedBlock, arm_of, site_widths
from mambanorm.norms import check_causal
from mambanorm.norms.masked_moments import fusible
from mambanorm.operations import BACKENDS, conv_silu, selective_scan
from mambanorm.operations.reference import scan_step

__all__ = ["PRESETS", "SITES", "Arm", "BlockCache", "MambaBlock"]

MIXER = (
    "in_proj.weight", "conv1d.weight", "conv1d.bias", "x_proj.weight", "dt_proj.weight", "dt_proj.bias", "A_log", "D"
)  # fmt: skip
"""The parameters of what stands between the norms, in the order of `_mixer_parameters`."""

NOT_YET = "which a block that goes step by step does not have yet"
DT_MIN, DT_MAX, DT_FLOOR = 1e-3, 1e-1, 1e-4  # mamba-ssm's range of the initial Δ


@dataclass
class BlockCache:
    """All that a block keeps of earlier positions: the last d_conv − 1 inputs and one state, however long the text.

    conv (B, d_conv − 1, E): the last inputs of the convolution, zero before the first position. state (B, E, N): the
    scan's h. A step replaces both tensors and never writes into them: a shallow copy is enough to branch.
    """

    conv: Tensor
    state: Tensor


INSIDE = ("conv", "B", "C", "delta", "delta_after", "z")
"""Further sites within what one fused function computes where there is no norm."""


class MambaBlock(SitedBlock):
    """One block, residual included: x (B, L, d_model) → (B, L, d_model).

    n1, n2: names of norms (see NORMS) before the SSM and between SSM and gate; more: (site, norm) pairs, or a dict,
    of norms at further sites, see MORE_SITES. `norm_options` go to whichever norm knows them; those under the name of a
    site, {"B": {"affine": False}}, to the norm there. Raises ValueError for an unknown norm, site or size, TypeError
    for an option that no norm has.
    """

    def __init__(
        self,
        d_model: int,
        n1: str | None = "RMSN",
        n2: str | None = "None",
        more: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        *,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 2,
        dt_rank: int | None = None,
        norm_options: dict[str, Any] | None = None,
        scan_backend: str = "auto",
    ):
        super().__init__()
        check_sizes(scan_backend, dt_rank, d_model=d_model, d_state=d_state, d_conv=d_conv, expand=expand)
        self.d_inner = d_inner = expand * d_model
        self.d_state = d_state
        self.dt_rank = dt_rank or math.ceil(d_model / 16)
        self.scan_backend = scan_backend

        self.in_proj = nn.Linear(d_model, 2 * d_inner, bias=False)
        self.conv1d = nn.Conv1d(d_inner, d_inner, d_conv, groups=d_inner, padding=d_conv - 1)
        self.x_proj = nn.Linear(d_inner, self.dt_rank + 2 * d_state, bias=False)
        self.dt_proj = nn.Linear(self.dt_rank, d_inner)
        self.A_log = nn.Parameter(initial_A_log(d_inner, d_state))
        self.D = nn.Parameter(torch.ones(d_inner))
        self.out_proj = nn.Linear(d_inner, d_model, bias=False)
        init_dt(self.dt_proj.weight, self.dt_proj.bias)
        self.d_model = d_model
        widths = site_widths(d_model, d_inner, d_state, self.dt_rank)
        self._make_norms(arm_of(n1, n2, more), norm_options, widths)
        self.register_load_state_dict_pre_hook(_rename_from_mamba_ssm)
        self._shapes = [tuple(p.shape) for p in self._mixer_parameters()]

    def _plan(self) -> None:
        super()._plan()
        self.scan_gates = self.arm.n2 == "None"  # with nothing between SSM and gate, the scan gates as well
        self.mixes_at_once = not any(site in self.more for site in INSIDE)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """x (B, L, D) → y (B, L, D). `lengths` (B,): how many positions of each row are no padding; None = all. Norms
        leave padding out; the scan is causal, so padding after a row changes nothing in it. ValueError for another x.
        """
        parameters = self._check(x)
        if (kernels := fused_kernels(self, x, parameters)) is not None:
            return self._forward_fused(x, lengths, parameters, kernels)
        return self._forward_readable(x, lengths)

    def _check(self, x: Tensor) -> tuple[Tensor, ...]:
        """Returns the mixer's parameters. Raises ValueError unless x is a non-empty (B, L, D) of their dtype and
        device, and for a parameter that was replaced by a tensor of another shape."""
        check_real("x", x, f"(B, L, {self.d_model})")
        if x.dim() != 3 or x.shape[-1] != self.d_model or 0 in x.shape:
            raise ValueError(f"MambaBlock expects (B, L, D) with D = {self.d_model}, got shape {tuple(x.shape)}")
        parameters = self._mixer_parameters()
        check_beside("x", x, parameters[0], "MambaBlock")
        check_shapes("MambaBlock", MIXER, parameters, self._shapes)
        return parameters

    def _mixer_parameters(self) -> tuple[Tensor, ...]:
        conv, dt = self.conv1d, self.dt_proj
        return self.in_proj.weight, conv.weight, conv.bias, self.x_proj.weight, dt.weight, dt.bias, self.A_log, self.D

    def _forward_fused(
        self, x: Tensor, lengths: Tensor | None, parameters: tuple[Tensor, ...], kernels: tuple[Callable, ...]
    ) -> Tensor:
        """The fused twin: norms, mixer and gate in as few passes over memory as the norms allow; `kernels` as
        `fused_kernels` gives them."""
        mixer, *parts = kernels
        h, x = self.n1(x, lengths, fork=True) if self.n1_forks else (self.n1(x, lengths), x)
        if self.mixes_at_once:
            y = mixer(h, *parameters, gated=self.scan_gates)
            y, z = (y, None) if self.scan_gates else y
        else:
            y, z = self._mix_with_norms(h, lengths, parameters, *parts)
        return self._close_fused(x, y, z, lengths)

    def _mix_with_norms(
        self,
        h: Tensor,
        lengths: Tensor | None,
        parameters: tuple[Tensor, ...],
        enter_mixer: Callable,
        leave_mixer: Callable,
    ):
        """As the mixer at once, in two parts with the norms between them: y (B, L, E), and z, None if y is gated."""
        in_proj, conv_weight, conv_bias, _, *rest = parameters
        u, z = enter_mixer(h, in_proj, conv_weight, conv_bias)
        u, z = self._at("conv", u, lengths), self._at("z", z, lengths)
        gate = z if self.scan_gates else None
        if "delta_after" in self.more:
            y = self._scan(u, *self._select(u, lengths), z=gate)
        else:
            y = leave_mixer(u, *self._narrow(u, lengths), gate, *rest)
        return y, None if self.scan_gates else z

    def _forward_readable(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """The readable twin: the same values step by step, each site shown to the observer if there is one."""
        see = self._see
        h = see("n1", self.n1(see("x", x), lengths))
        w_main, w_gate = self.in_proj.weight.chunk(2)
        u = see("conv", self._at("conv", self._convolve(F.linear(h, w_main)), lengths))  # (B, L, E)
        z = F.linear(h, w_gate)
        delta, B, C = self._select(u, lengths)
        if self.observer is None and self.scan_gates:
            return self._add(x, self._scan(u, delta, B, C, self._at("z", z, lengths)), lengths)
        see("B", B), see("C", C), see("delta", F.softplus(delta + self.dt_proj.bias))
        return self._close(x, self._scan(u, delta, B, C), z, lengths)

    def _convolve(self, u: Tensor) -> Tensor:
        """Causal depthwise convolution, then SiLU; u (B, L, E) → (B, L, E)."""
        return conv_silu(u, self.conv1d.weight, self.conv1d.bias)

    def _narrow(self, u: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, ...]:
        """Δ's R numbers, B and C (B, L, N), each behind its norm."""
        narrow = self.x_proj(u).split([self.dt_rank, self.d_state, self.d_state], dim=-1)
        return tuple(self._at(site, part, lengths) for site, part in zip(("delta", "B", "C"), narrow))

    def _select(self, u: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """The input-dependent Δ (B, L, E; before bias and softplus), B and C (B, L, N)."""
        dt, B, C = self._narrow(u, lengths)
        return self._at("delta_after", F.linear(dt, self.dt_proj.weight), lengths), B, C

    def _scan(self, u: Tensor, delta: Tensor, B: Tensor, C: Tensor, z: Tensor | None = None, last: bool = False):
        """The scan, gated where z is given: y (B, L, E); with `last` (y, the state after the last position)."""
        found = selective_scan(
            u.transpose(1, 2),
            delta.transpose(1, 2),
            -torch.exp(self.A_log),
            B.transpose(1, 2),
            C.transpose(1, 2),
            self.D,
            z=None if z is None else z.transpose(1, 2),
            delta_bias=self.dt_proj.bias,
            delta_softplus=True,
            return_last_state=last,
            backend=self.scan_backend,
        )
        return (found[0].transpose(1, 2), found[1]) if last else found.transpose(1, 2)

    def new_cache(self, rows: int) -> BlockCache:
        """The cache before the first position."""
        weight = self.conv1d.weight  # (E, 1, K)
        dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32  # as the scan's last state
        conv = weight.new_zeros(rows, weight.shape[-1] - 1, self.d_inner)
        return BlockCache(conv, weight.new_zeros(rows, self.d_inner, self.d_state, dtype=dtype))

    @torch.no_grad()
    def prefill(self, x: Tensor) -> tuple[Tensor, BlockCache]:
        """`forward(x)` of all positions of the prompt at once, (B, L, D), and the cache for `step`.

        Without gradient: the scan's last state carries none. Raises ValueError where a norm is not causal.
        """
        self._check(x)
        check_causal(self.arm.norms, NOT_YET)
        raw, z = self.in_proj(self.n1(x)).chunk(2, dim=-1)  # (B, L, E)
        u = self._at("conv", self._convolve(raw))
        y, state = self._scan(u, *self._select(u), last=True)
        cache = BlockCache(F.pad(raw, (0, 0, self.conv1d.kernel_size[0] - 1, 0))[:, x.shape[1] :], state)
        return self._close(x, y, z), cache

    @torch.no_grad()
    def step(self, x: Tensor, cache: BlockCache) -> Tensor:
        """What `forward` gives at the next position, x (B, D) → (B, D); updates the cache.

        Without gradient. Raises ValueError where a norm is not causal and for an x that does not fit the cache.
        """
        check_causal(self.arm.norms, NOT_YET)
        self._check_step(x, cache)
        raw, z = self.in_proj(self.n1(x[:, None])).chunk(2, dim=-1)  # (B, 1, E)
        window = torch.cat([cache.conv, raw], dim=1)  # (B, K, E)
        taps = self.conv1d.weight[:, 0].t()  # (K, E)
        u = self._at("conv", F.silu((window * taps).sum(1, keepdim=True) + self.conv1d.bias))  # (B, 1, E)
        u, delta, B, C = (value[:, 0] for value in (u, *self._select(u)))
        y, cache.state = scan_step(cache.state, u, delta, -torch.exp(self.A_log), B, C, self.D, self.dt_proj.bias)
        cache.conv = window[:, 1:]
        return self._close(x[:, None], y[:, None], z)[:, 0]

    def _check_step(self, x: Tensor, cache: BlockCache) -> None:
        if not isinstance(cache, BlockCache):
            raise ValueError(f"a step needs the BlockCache of prefill or new_cache, got {shown(cache)}")
        check_tensor("x", x, f"(B, {self.d_model})")
        if x.shape != (fits := (len(cache.state), self.d_model)):
            raise ValueError(f"with this cache a step takes (B, D) = {fits}, got {tuple(x.shape)}")
        self._check(x[:, None])
        mine = self.new_cache(len(x))
        for name, given, own in (("conv", cache.conv, mine.conv), ("state", cache.state, mine.state)):
            check_shapes("this cache is of another block", [name], [given], [own.shape])
            check_beside(f"the cache's {name}", given, own, "what this block keeps")


def can_fuse(block: nn.Module, x: Tensor, parameters: tuple[Tensor, ...]) -> bool:
    """Whether a MambaBlock or VSSBlock runs its fused version on x: float32 on the CPU like the mixer's parameters, by
    the CPU's scan, without autocast and without an observer."""
    return (
        block.observer is None
        and block.scan_backend in ("auto", "cpu")
        and fusible(x, *parameters)
        and not torch.is_autocast_enabled("cpu")
    )


def fused_kernels(block: nn.Module, x: Tensor, parameters: tuple[Tensor, ...]) -> tuple[Callable, ...] | None:
    """The mixer of a MambaBlock for x: at once, its first and its second part; None where nothing is fused."""
    if can_fuse(block, x, parameters):
        from mambanorm.kernels.mixer import mixer_cpu  # here: importing Numba takes a moment
        from mambanorm.kernels.mixer_parts import enter_mixer, leave_mixer

        return mixer_cpu, enter_mixer, leave_mixer
    return None


def init_dt(weight: Tensor, bias: Tensor) -> None:
    """Δ's projection as mamba-ssm starts it, weight (…, E, R) and bias (…, E): weights ± R^−½, bias so that
    softplus(bias) ~ log-uniform."""
    reach = weight.shape[-1] ** -0.5
    nn.init.uniform_(weight, -reach, reach)
    init_dt_bias(bias)


def init_dt_bias(bias: Tensor) -> None:
    """Of any shape, so that softplus(bias) ~ log-uniform on DT_MIN…DT_MAX."""
    low, high = math.log(DT_MIN), math.log(DT_MAX)
    dt = torch.exp(torch.rand(bias.shape) * (high - low) + low).clamp(min=DT_FLOOR)
    with torch.no_grad():
        bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # the inverse of softplus


def initial_A_log(channels: int, d_state: int) -> Tensor:
    """log(−A) of S4D-real, (channels, N): every channel decays at the rates 1…N."""
    return torch.log(torch.arange(1.0, d_state + 1)).repeat(channels, 1)


def check_sizes(scan_backend: str, dt_rank: int | None, **sizes: object) -> None:
    """Raises ValueError for an unknown back end or a size that is no positive whole number; dt_rank may be None."""
    if scan_backend not in BACKENDS:
        raise unknown("scan_backend", scan_backend, BACKENDS)
    for name, size in (sizes if dt_rank is None else sizes | {"dt_rank": dt_rank}).items():
        check_size(name, size)


def _rename_from_mamba_ssm(block: MambaBlock, state: dict[str, Tensor], prefix: str, *_) -> None:
    """Renames mamba-ssm's `mixer.*` and `norm.*`, its N1, to this block's names: its weights load as they are."""
    for key in [key for key in state if key.startswith((f"{prefix}mixer.", f"{prefix}norm."))]:
        own = key.removeprefix(prefix)
        renamed = own.removeprefix("mixer.") if own.startswith("mixer.") else f"n1.{own.removeprefix('norm.')}"
        state[prefix + renamed] = state.pop(key)
