"""The Mamba block with its normalization sites (Eq. 1–3), as in `Gu & Dao 2023` and
state-spaces/mamba.

    f = N2(SSM(SiLU(Conv(Lin(N1(x))))))        (1)   main branch
    p = SiLU(Lin(N1(x)))                       (2)   gate: the same N1(x) feeds both branches
    y = Lin(f ⊗ p) ⊕ x                         (3)

`Block.forward` is the one forward pass: it trains, evaluates, records and generates, on every
device and in every dtype. What is fast about it is inside the named operations (operations/).
Change a line, and that is what is trained. MambaBlock, Mamba2Block and VSSBlock (models/mamba2.py,
vision.py) differ in what they project, convolve and scan.

Glossary: B rows, L positions, D = d_model, E = d_inner = expand·D, N = d_state, R = dt_rank, K =
d_conv, `delta` Δ, `A_log` log(−A). N2's input includes D·u, as mamba-ssm's scan returns it.
Parameter names and initial values are mamba-ssm's. The sites, their order and widths are SITES
(arms.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mambanorm.arms import MORE_SITES, SITES, Arm, further_norms
from mambanorm.checks import check_beside, check_shapes, check_size, check_tensor, shown
from mambanorm.errors import unknown
from mambanorm.norms import check_causal, check_options, create_norm, known_options
from mambanorm.operations import BACKENDS, gated, low_rank_scan, selective_scan
from mambanorm.operations.layers import causal_conv_silu, is_plain, split_linear
from mambanorm.operations.scan import project_delta

NOT_YET = "which a block that goes step by step does not have yet"
DT_MIN, DT_MAX, DT_FLOOR = 1e-3, 1e-1, 1e-4  # mamba-ssm's range of the initial Δ
UNDECAYED = ("A_log", "D", "dt_bias", "dt_projs_bias")
"""Prefixes of the parameters that mamba-ssm marks `_no_weight_decay`. Some optimizers read the
mark."""
OWN_OPTIONS = ("n1", "n2", *MORE_SITES)
"""Under these names norm_options hold the options of one site: `{"eps": 1e-6, "B": {"affine":
False}}`."""


@dataclass
class BlockCache:
    """All that a block keeps of earlier positions: the last d_conv − 1 inputs and one state,
    however long the text.

    conv (B, d_conv − 1, E): the last inputs of the convolution, zero before the first position.
    state (B, E, N): the scan's h. A step replaces both tensors and never writes into them: a
    shallow copy is enough to branch.
    """

    conv: Tensor
    state: Tensor


class ObservedBlock(nn.Module):
    """Base of all blocks: calls `observer(site, value)`, if there is one, at each of its `sites`.

    The observer sees the values that are computed and changes nothing (inside.py).
    """

    observer: Callable[[str, Tensor], None] | None = None
    sites: tuple[str, ...] = ()


class Block(ObservedBlock):
    """The forward pass that all Mamba blocks share, and their norms `n1`, `n2` and `more`.

    `more` holds the norms at further sites. A subclass has `in_proj`, `conv1d` and `out_proj` and
    calls `_make_norms` last.
    """

    sites = tuple(SITES)

    def forward(
        self,
        x: Tensor,
        lengths: Tensor | None = None,
        context: BlockCache | torch.Size | None = None,
    ) -> Tensor:
        """x (B, L, D) → y (B, L, D).

        lengths (B,): how many positions of each row are no padding, None = all. Norms leave padding
        out; the scan is causal, so padding after a row changes nothing in it. context: what
        convolution and scan know besides, the cache of earlier positions, or the size (H, W) of an
        image.
        """
        at = self._sites(lengths)
        h = at("n1", at("x", x))  # one N1(x) for both branches
        u, z, dt = self.project(h)  # Lin
        u = self.convolve(u, context)  # SiLU(Conv(·))
        u, dt, B, C = self.select(u, dt, at, context)  # what the SSM reads at each position
        y = at("scan", self.scan(u, dt, B, C, at, context))  # SSM
        f = at("n2", y)  # Eq. 1
        f = at("gated", gated(f, at("z", z)))  # Eq. 2, p = SiLU(z), and f ⊗ p
        return at("residual", x + at("branch", self.out_proj(f)))  # Eq. 3

    def _sites(self, lengths: Tensor | None) -> Callable[[str, Tensor], Tensor]:
        """at(site, value): what goes on from a site, the value behind the norm that stands there;
        and the observer."""
        norms, observer = {"n1": self.n1, "n2": self.n2, **self.more._modules}, self.observer

        def at(site: str, value: Tensor) -> Tensor:
            if site in norms:
                value = norms[site](value, lengths)
            if observer is not None:
                observer(site, value)
            return value

        return at

    def _make_norms(self, arm: Arm, norm_options: Mapping[str, Any] | None, **widths: int) -> None:
        """widths: those of SITES that this block has. ValueError for a site that it does not
        have."""
        self.site_widths = {
            name: widths[site.width] for name, site in SITES.items() if site.width in widths
        }
        for missing in self.lacks:
            del self.site_widths[missing]
        if missing := [site for site, _ in arm.more if site not in self.site_widths]:
            valid = [site for site in MORE_SITES if site in self.site_widths]
            raise unknown(f"site of {type(self).__name__}", missing[0], valid)
        check_arm_options(arm, norm_options)
        self.arm = arm
        with torch.random.fork_rng(devices=[]):  # all arms start equal
            norms = {
                at: self.new_norm(at, name, site_options(at, name, norm_options))
                for at, name in arm.sites.items()
            }
        self.n1, self.n2 = norms.pop("n1"), norms.pop("n2")
        self.more = nn.ModuleDict(norms)
        for name, parameter in self._parameters.items():
            if name.startswith(
                UNDECAYED
            ):  # no mark at all on others: some optimizers ask only whether there is one
                parameter._no_weight_decay = True

    lacks: Sequence[str] = ()
    """Sites at which this block can have no norm."""

    def new_norm(self, site: str, name: str, options: Mapping[str, Any]) -> nn.Module:
        """A norm as this block has it at a site."""
        return create_norm(name, self.site_widths[site], **options)

    def put_norm(self, site: str, name: str, norm: nn.Module | None) -> nn.Module | None:
        """Puts a norm, and its name into the arm, at a site of `site_widths`; returns what stood
        there. For further sites None means none."""
        if site in ("n1", "n2"):
            before = getattr(self, site)
            setattr(self, site, norm)
            self.arm = self.arm._replace(**{site: name})
            return before
        before = dict(self.more).get(site)
        if norm is not None:
            self.more[site] = norm
        elif before is not None:
            del self.more[site]
        self.arm = self.arm._replace(more=further_norms({**dict(self.arm.more), site: name}))
        return before

    def project(self, h: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return what goes to the convolution, and the gate z, (B, L, E) each. Δ comes later, from
        u."""
        return *split_linear(self.in_proj, h, [self.d_inner, self.d_inner]), None

    def scan(
        self, u: Tensor, dt: Tensor, B: Tensor, C: Tensor, at: Callable, context: BlockCache | None
    ) -> Tensor:
        """Return the SSM's output (B, L, E). Δ is projected inside the scan, and stored only if
        something reads it: the observer, a norm at delta_after, or a layer that must be called (its
        weight is None)."""
        weight, bias, A_log, D = self.ssm()
        state = None if context is None else context.state
        read = self.observer is not None or "delta_after" in self.more
        if (
            weight is None
        ):  # the layer adds its bias itself, whatever it makes of it: that is its output for 0
            delta = self.dt_proj(dt)
            if read:  # without hooks where nothing depends on it, for they would see another input
                run = self.dt_proj if "delta_after" in self.more else self.dt_proj.forward
                bias = run(dt.new_zeros(1, 1, dt.shape[-1]))[0, 0]
                delta = delta - bias
        elif read:
            delta = project_delta(dt, weight)
        if read:
            delta = at("delta_after", delta)
            at("step_size", F.softplus(delta if bias is None else delta + bias))
        if weight is not None and "delta_after" not in self.more:
            y = low_rank_scan(
                u, dt, B, C, weight, bias, A_log, D, state=state, backend=self.scan_backend
            )
        else:
            u, delta, B, C = (m.movedim(1, -1) for m in (u, delta, B, C))  # (B, E, L), (B, N, L)
            options = dict(
                return_last_state=state is not None, initial_state=state, backend=self.scan_backend
            )
            found = selective_scan(
                u, delta, -torch.exp(A_log), B, C, D, None, bias, True, **options
            )
            y = found.transpose(1, 2) if state is None else (found[0].transpose(1, 2), found[1])
        if state is not None:
            y, context.state = y
        return y


class CausalBlock(Block):
    """A block of a sequence: its convolution looks back only, and it can go on from a cache, step
    by step."""

    def convolve(self, u: Tensor, cache: BlockCache | None) -> Tensor:
        """Causal depthwise convolution, then SiLU; u (B, L, E) → (B, L, E)."""
        if cache is None:
            return causal_conv_silu(self.conv1d, u)
        window = torch.cat([cache.conv, u], dim=1)  # (B, K − 1 + L, E)
        cache.conv = window[:, u.shape[1] :]
        return causal_conv_silu(self.conv1d, window)[:, window.shape[1] - u.shape[1] :]

    def new_cache(self, rows: int, device: torch.device | None = None) -> BlockCache:
        """Return the cache before the first position. device: None = that of the weights, which
        offloading moves."""
        like = getattr(self.conv1d, "weight", self.A_log)
        dtype = (
            torch.float64 if like.dtype == torch.float64 else torch.float32
        )  # as the scan's last state
        conv = like.new_zeros(rows, self.conv_reach, self.convolved, device=device)
        return BlockCache(
            conv, like.new_zeros(rows, self.d_inner, self.d_state, dtype=dtype, device=device)
        )

    @property
    def conv_reach(self) -> int:
        """Number of earlier positions that the convolution reads, also for a layer that replaced
        conv1d."""
        taps, dilation = (
            getattr(self.conv1d, "kernel_size", self._taps),
            getattr(self.conv1d, "dilation", (1,)),
        )
        return (taps[0] - 1) * dilation[0]

    def _make_conv(self, channels: int, taps: int) -> None:
        self.conv1d = nn.Conv1d(channels, channels, taps, groups=channels, padding=taps - 1)
        self.convolved, self._taps = channels, (taps,)

    @torch.no_grad()
    def prefill(self, x: Tensor) -> tuple[Tensor, BlockCache]:
        """`forward(x)` of all positions of the prompt at once, (B, L, D), and the cache for `step`.

        Without gradient: the scan's last state carries none. Raises ValueError where a norm is not
        causal.
        """
        check_causal(self.arm.norms, NOT_YET)
        cache = self.new_cache(len(x), x.device)
        return self(x, context=cache), cache

    @torch.no_grad()
    def step(self, x: Tensor, cache: BlockCache) -> Tensor:
        """What `forward` gives at the next position, x (B, D) → (B, D); updates the cache.

        Without gradient. Raises ValueError where a norm is not causal and for an x that does not
        fit the cache.
        """
        check_causal(self.arm.norms, NOT_YET)
        if not isinstance(cache, BlockCache):
            raise ValueError(
                f"a step needs the BlockCache of prefill or new_cache, got {shown(cache)}"
            )
        check_tensor("x", x, f"(B, {self.d_model})")
        if x.shape != (fits := (len(cache.state), self.d_model)):
            raise ValueError(f"with this cache a step takes (B, D) = {fits}, got {tuple(x.shape)}")
        empty = self.new_cache(0)
        for name, given, own in (
            ("conv", cache.conv, empty.conv),
            ("state", cache.state, empty.state),
        ):
            check_shapes(
                "this cache is of another block", [name], [given], [(len(x), *own.shape[1:])]
            )
            check_beside(f"the cache's {name}", given, own, "what this block keeps")
        return self(x[:, None], context=cache)[:, 0]


class MambaBlock(CausalBlock):
    """One block, residual included: x (B, L, d_model) → (B, L, d_model).

    n1, n2: names of norms (see NORMS) before the SSM and between SSM and gate; more: (site, norm)
    pairs, or a dict, of norms at further sites, see MORE_SITES. `norm_options` go to whichever norm
    knows them; those under the name of a site, {"B": {"affine": False}}, to the norm there. Raises
    ValueError for an unknown norm, site or size, TypeError for an option that no norm has.
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
        check_sizes(
            scan_backend, dt_rank, d_model=d_model, d_state=d_state, d_conv=d_conv, expand=expand
        )
        self.d_model, self.d_inner, self.d_state, self.scan_backend = (
            d_model,
            expand * d_model,
            d_state,
            scan_backend,
        )
        self.dt_rank = dt_rank or math.ceil(d_model / 16)
        d_inner = self.d_inner
        self.in_proj = nn.Linear(d_model, 2 * d_inner, bias=False)
        self._make_conv(d_inner, d_conv)
        self.x_proj = nn.Linear(d_inner, self.dt_rank + 2 * d_state, bias=False)
        self.dt_proj = nn.Linear(self.dt_rank, d_inner)
        self.A_log = nn.Parameter(initial_A_log(d_inner, d_state))
        self.D = nn.Parameter(torch.ones(d_inner))
        self.out_proj = nn.Linear(d_inner, d_model, bias=False)
        init_dt(self.dt_proj.weight, self.dt_proj.bias)
        self._make_norms(
            Arm(n1, n2, more), norm_options, D=d_model, E=d_inner, N=d_state, R=self.dt_rank
        )
        self.register_load_state_dict_pre_hook(_rename_from_mamba_ssm)

    def select(
        self, u: Tensor, _: None, at: Callable, cache: BlockCache | None
    ) -> tuple[Tensor, ...]:
        """u (B, L, E), and computed from u Δ's R numbers, B and C (B, L, N)."""
        u = at("conv", u)
        dt, B, C = self.x_proj(u).split([self.dt_rank, self.d_state, self.d_state], dim=-1)
        B, C, dt = at("B", B), at("C", C), at("delta", dt)
        return u, dt, B, C

    def ssm(self) -> tuple[Tensor, ...]:
        """Return Δ's weight (E, R), bias (E,), log(−A) (E, N), D (E,); the first two are None if
        dt_proj must be called."""
        layer = self.dt_proj
        plain = is_plain(layer, nn.Linear) and layer.bias is not None
        return *((layer.weight, layer.bias) if plain else (None, None)), self.A_log, self.D


def init_dt(weight: Tensor, bias: Tensor) -> None:
    """Δ's projection as mamba-ssm starts it, weight (…, E, R) and bias (…, E): weights ± R^−½, bias
    so that softplus(bias) ~ log-uniform."""
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
    """Raises ValueError for an unknown back end or a size that is no positive whole number; dt_rank
    may be None."""
    if scan_backend not in BACKENDS:
        raise unknown("scan_backend", scan_backend, BACKENDS)
    for name, size in (sizes if dt_rank is None else sizes | {"dt_rank": dt_rank}).items():
        check_size(name, size)


# ----------------------------------------------------------------------- the norm options of a site


def common_options(norm_options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options for every norm, without those of single sites. ValueError for what is no dict."""
    known_options((), norm_options)  # raises for what is no dict
    return {key: value for key, value in (norm_options or {}).items() if key not in OWN_OPTIONS}


def site_options(site: str, name: str, norm_options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options of the norm `name` at a site: the common ones that it knows, then the site's
    own."""
    return known_options([name], common_options(norm_options)) | dict(
        (norm_options or {}).get(site, {})
    )


def check_arm_options(
    arm: Arm, norm_options: Mapping[str, Any] | None, outside: Sequence[str | None] = ()
) -> None:
    """Raises TypeError for an option that no norm of the arm (or `outside` the blocks) knows and
    for options of a site without a norm, ValueError for options of a site that are no dict."""
    check_options((*outside, *arm.norms), common_options(norm_options))
    for site in filter(OWN_OPTIONS.__contains__, norm_options or {}):
        if site not in arm.sites:
            raise TypeError(
                f"norm_options for {site!r}, but arm {arm} has no norm there: add +{site}:NORM to the arm"
            )
        if not isinstance(norm_options[site], dict):
            given = shown(norm_options[site])
            raise ValueError(
                f"norm_options for {site!r} must be a dict such as {{'affine': False}}, got {given}"
            )
        check_options([arm.sites[site]], norm_options[site])


def options_of_blocks(arm: Arm, norm_options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Of a model's norm options those that its blocks need."""
    own = {site: options for site, options in (norm_options or {}).items() if site in OWN_OPTIONS}
    return known_options(arm.norms, common_options(norm_options)) | own


def _rename_from_mamba_ssm(block: MambaBlock, state: dict[str, Tensor], prefix: str, *_) -> None:
    """Renames mamba-ssm's `mixer.*` and `norm.*`, its N1, to this block's names: its weights load
    as they are."""
    for key in [key for key in state if key.startswith((f"{prefix}mixer.", f"{prefix}norm."))]:
        own = key.removeprefix(prefix)
        renamed = (
            own.removeprefix("mixer.")
            if own.startswith("mixer.")
            else f"n1.{own.removeprefix('norm.')}"
        )
        state[prefix + renamed] = state.pop(key)
