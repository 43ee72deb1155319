"""The Mamba block (Eq. 1–3 of the paper), with sites at which norms can be placed.

    f = N2(SSM(SiLU(Conv(Lin(N1(x))))))        (1)   main branch
    p = SiLU(Lin(N1(x)))                       (2)   gate: the same N1(x) feeds both branches
    y = Lin(f ⊗ p) ⊕ x                         (3)

`Block.forward` is the only forward pass: training, evaluation, recording and generation use it on
every device and in every dtype. Fused code is called only inside the operations that `forward`
names (operations/), so a change to a line of `forward` takes effect everywhere.

This file defines MambaBlock. Mamba2Block and VSSBlock (mambanorm_study) share `Block.forward` but
have their own projection, convolution and scan.

Glossary: B rows, L positions, D = d_model, E = d_inner = expand·D, N = d_state, R = dt_rank,
K = d_conv; `delta` is Δ, `A_log` is log(−A). As in mamba-ssm, the scan's output, which N2 gets,
includes D·u (this D is the SSM's skip parameter). arms.py lists the sites and their widths.
Sources: Gu & Dao 2023; state-spaces/mamba, called mamba-ssm here (names and initial values of the
parameters).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mambanorm.arms import MORE_SITES, SITES, Arm
from mambanorm.checks import check_like_weight, check_shapes, check_size, check_tensor
from mambanorm.errors import shown, unknown
from mambanorm.norm_options import check_arm_options, site_options
from mambanorm.norms import check_causal, create_norm
from mambanorm.operations import BACKENDS, gated, low_rank_scan, selective_scan
from mambanorm.operations.layers import causal_conv_silu, is_plain, split_linear
from mambanorm.operations.scan import project_delta

# Type of the function at(site, value): it applies the site's norm to the value, passes the result
# to the observer and returns the result.
At = Callable[[str, Tensor], Tensor]

NEEDS_CAUSAL = "which do not exist yet when a block generates step by step"
DT_MIN, DT_MAX, DT_FLOOR = 1e-3, 1e-1, 1e-4  # range and floor of mamba-ssm's initial Δ
# A parameter whose name starts with one of these texts gets mamba-ssm's attribute
# `_no_weight_decay = True`.
NOT_DECAYED = ("A_log", "D", "dt_bias", "dt_projs_bias")


@dataclass
class BlockCache:
    """The state that a block carries between positions. Its size is the same at every position.

    conv (B, K − 1, E): the last K − 1 inputs of the convolution, zero before the first position.
    state (B, E, N): the scan's state h, zero before the first position.

    A call of `step` replaces both tensors and never changes them in place. So, to continue a prompt
    in two ways, a shallow copy of the cache is enough for the second way.
    """

    conv: Tensor
    state: Tensor


class ObservedBlock(nn.Module):
    """Base of all blocks. A block calls `observer(site, value)` at each of its `sites`.

    An observer of None is not called. Observers must not change the values (see inside.py).
    """

    observer: Callable[[str, Tensor], None] | None = None
    sites: tuple[str, ...] = ()


class Block(ObservedBlock):
    """The forward pass and the norms that all Mamba blocks share.

    `n1` is the norm before the SSM, `n2` the norm after it; `more` maps further sites to norms. A
    subclass creates the layers declared below, defines `convolve`, `select` and `ssm` (and
    `project` if its projection differs), and calls `_make_norms` at the end of its constructor.
    """

    sites = tuple(SITES)
    # Sites of SITES at which this type of block cannot have a norm.
    missing_sites: Sequence[str] = ()

    arm: Arm
    n1: nn.Module
    n2: nn.Module
    more: nn.ModuleDict
    in_proj: nn.Module
    dt_proj: nn.Module
    out_proj: nn.Module
    d_model: int
    d_inner: int
    d_state: int
    scan_backend: str

    # convolve(u, context) returns SiLU(Conv(u)), (B, L, E)
    convolve: Callable[[Tensor, Any], Tensor]
    # select(u, dt, at, context) returns u (B, L, E), dt (B, L, R), B and C (B, L, N)
    select: Callable[[Tensor, Tensor | None, At, Any], tuple[Tensor, Tensor, Tensor, Tensor]]
    # ssm() returns dt_proj's weight (E, R) and bias (E,), log(−A) (E, N) and D (E,); weight and
    # bias are None if dt_proj must be called (operations/layers.py)
    ssm: Callable[[], tuple[Tensor | None, Tensor | None, Tensor, Tensor]]

    def forward(
        self,
        x: Tensor,
        lengths: Tensor | None = None,
        context: BlockCache | torch.Size | None = None,
    ) -> Tensor:
        """Return y (B, L, D) for x (B, L, D).

        lengths (B,): number of valid positions of each row; None means that all are valid. Norms
        ignore padding. The scan is causal, so padding at the end of a row does not change earlier
        outputs. context: the cache of earlier positions (CausalBlock), the size (H, W) of an image
        (VSSBlock in mambanorm_study), or None.
        """
        at = self._make_at(lengths)
        h = at("n1", at("x", x))  # one N1(x) for both branches
        u, z, dt = self.project(h)  # Lin
        u = self.convolve(u, context)  # SiLU(Conv(·))
        u, dt, B, C = self.select(u, dt, at, context)  # the SSM's inputs at each position
        y = at("scan", self.scan(u, dt, B, C, at, context))  # SSM
        f = at("n2", y)  # Eq. 1
        f = at("gated", gated(f, at("z", z)))  # Eq. 2, p = SiLU(z), and f ⊗ p
        return at("residual", x + at("branch", self.out_proj(f)))  # Eq. 3

    def project(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the convolution's input u (B, L, E), the gate z before SiLU (B, L, E), and dt.

        dt is None in a block whose `select` computes dt from u, such as MambaBlock.
        """
        u, z = split_linear(self.in_proj, h, [self.d_inner, self.d_inner])
        return u, z, None

    def scan(self, u: Tensor, dt: Tensor, B: Tensor, C: Tensor, at: At, context: Any) -> Tensor:
        """Return the SSM's output (B, L, E); u, dt, B and C are those that `select` returns.

        The fused scan computes Δ from dt itself and never stores it. If there is a norm at
        delta_after, or if dt_proj must be called (operations/layers.py), Δ is computed first and
        passed to `selective_scan`. If `context` is a BlockCache, its `state` is updated.
        """
        weight, bias, A_log, D = self.ssm()
        delta, delta_bias = self._delta_before_scan(dt, weight, bias, at)
        cache = context if isinstance(context, BlockCache) else None
        state = None if cache is None else cache.state
        if weight is not None and bias is not None and "delta_after" not in self.more:
            y = low_rank_scan(
                u, dt, B, C, weight, bias, A_log, D, state=state, backend=self.scan_backend
            )
        else:
            assert delta is not None
            u, delta, B, C = (m.movedim(1, -1) for m in (u, delta, B, C))  # (B, E, L), (B, N, L)
            y = selective_scan(
                u, delta, -torch.exp(A_log), B, C, D, delta_bias=delta_bias, delta_softplus=True,
                return_last_state=state is not None, initial_state=state, backend=self.scan_backend,
            )  # fmt: skip
            y = y.transpose(1, 2) if state is None else (y[0].transpose(1, 2), y[1])
        if cache is None:
            return y
        y, cache.state = y
        return y

    def _delta_before_scan(
        self, dt: Tensor, weight: Tensor | None, bias: Tensor | None, at: At
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return Δ before softplus, (B, L, E), and the bias (E,) that must still be added to Δ.

        The bias is None if Δ already includes it. Δ is None if dt_proj is a plain layer and neither
        a norm nor the observer needs Δ: then the fused scan computes Δ.
        """
        is_read = self.observer is not None or "delta_after" in self.more
        if weight is not None:
            if not is_read:
                return None, bias
            delta = project_delta(dt, weight)
        else:
            delta = self.dt_proj(dt)
            if not is_read:
                return delta, None
            # dt_proj adds its bias itself, so its output for an input of 0 is the bias. If only the
            # observer needs the bias, call `dt_proj.forward`, which runs no hooks: hooks should not
            # see an input of 0 that is not data.
            layer = self.dt_proj if "delta_after" in self.more else self.dt_proj.forward
            bias = layer(dt.new_zeros(1, 1, dt.shape[-1]))[0, 0]
            delta = delta - bias
        delta = at("delta_after", delta)
        at("step_size", F.softplus(delta if bias is None else delta + bias))
        return delta, bias

    # ---------------------------------------------------------------------------------------- norms

    def _make_at(self, lengths: Tensor | None) -> At:
        """Return the function `at(site, value)` of one forward pass with `lengths`; see `At`."""
        norms = {"n1": self.n1, "n2": self.n2, **self.more._modules}
        observer = self.observer

        def at(site: str, value: Tensor) -> Tensor:
            norm = norms.get(site)
            if norm is not None:
                value = norm(value, lengths)
            if observer is not None:
                observer(site, value)
            return value

        return at

    def _make_norms(self, arm: Arm, norm_options: Mapping[str, Any] | None, **widths: int) -> None:
        """Create the norms of an arm. `widths`: sizes of the axes that SITES calls D, E, N and R.

        Raises ValueError for a norm at a site that cannot have a norm in this block.
        """
        self.site_widths = {
            name: widths[site.width]
            for name, site in SITES.items()
            if site.width in widths and name not in self.missing_sites
        }
        for site, _ in arm.more:
            if site not in self.site_widths:
                valid = [name for name in MORE_SITES if name in self.site_widths]
                raise unknown(f"site of {type(self).__name__}", site, valid)
        check_arm_options(arm, norm_options)
        self.arm = arm
        with torch.random.fork_rng(devices=[]):  # so that all arms share the other initial weights
            norms = {
                site: self.new_norm(site, name, site_options(site, name, norm_options))
                for site, name in arm.sites.items()
            }
        self.n1, self.n2 = norms.pop("n1"), norms.pop("n2")
        self.more = nn.ModuleDict(norms)
        for name, parameter in self._parameters.items():
            # Other parameters must lack `_no_weight_decay`: some optimizers only test hasattr.
            if name.startswith(NOT_DECAYED):
                parameter._no_weight_decay = True  # type: ignore[union-attr]

    def new_norm(self, site: str, name: str, options: Mapping[str, Any]) -> nn.Module:
        """Return a new norm `name` for a site of this block, with as many channels as the site."""
        return create_norm(name, self.site_widths[site], **options)


class CausalBlock(Block):
    """Base of blocks with a causal convolution; such blocks can generate step by step."""

    conv1d: nn.Module
    A_log: nn.Parameter

    def convolve(self, u: Tensor, context: BlockCache | None) -> Tensor:
        """Return SiLU of the causal depthwise convolution, (B, L, E) → (B, L, E).

        `context`, if given, holds the earlier inputs of the convolution and is updated.
        """
        if context is None:
            return causal_conv_silu(self.conv1d, u)
        window = torch.cat([context.conv, u], dim=1)  # (B, K − 1 + L, E)
        context.conv = window[:, u.shape[1] :]
        return causal_conv_silu(self.conv1d, window)[:, window.shape[1] - u.shape[1] :]

    def new_cache(self, rows: int, device: torch.device | None = None) -> BlockCache:
        """Return a cache of zeros for `rows` rows, as before the first position.

        device: None means the device of the weights. If weights are offloaded, pass the input's
        device.
        """
        like: Tensor = getattr(self.conv1d, "weight", self.A_log)
        # the scan computes in float64 if the weights are float64, otherwise in float32
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        conv = like.new_zeros(rows, self.conv_reach, self.conv_channels, device=device)
        state = like.new_zeros(rows, self.d_inner, self.d_state, dtype=dtype, device=device)
        return BlockCache(conv, state)

    @property
    def conv_reach(self) -> int:
        """Number of earlier positions that the convolution reads."""
        # a wrapper of conv1d, such as LoRA, may lack these attributes
        taps: int = getattr(self.conv1d, "kernel_size", (self._taps,))[0]
        dilation: int = getattr(self.conv1d, "dilation", (1,))[0]
        return (taps - 1) * dilation

    def _make_conv(self, channels: int, taps: int) -> None:
        self.conv1d = nn.Conv1d(channels, channels, taps, groups=channels, padding=taps - 1)
        self.conv_channels = channels
        self._taps = taps

    @torch.no_grad()
    def prefill(self, x: Tensor) -> tuple[Tensor, BlockCache]:
        """Return `forward(x)` of a prompt x (B, L, D), and the cache for a `step` after the prompt.

        Computes no gradients. Raises ValueError if a norm is not causal.
        """
        check_causal(self.arm.norms, NEEDS_CAUSAL)
        cache = self.new_cache(len(x), x.device)
        return self(x, context=cache), cache

    @torch.no_grad()
    def step(self, x: Tensor, cache: BlockCache) -> Tensor:
        """Return the output (B, D) at the next position, whose input is x (B, D).

        Updates the cache and computes no gradients. Raises ValueError if a norm is not causal, or
        if x or the cache does not fit this block or each other.
        """
        check_causal(self.arm.norms, NEEDS_CAUSAL)
        if not isinstance(cache, BlockCache):
            raise ValueError(
                f"a step needs the BlockCache from prefill or new_cache, got {shown(cache)}"
            )
        check_tensor("x", x, f"(B, {self.d_model})")
        expected = (len(cache.state), self.d_model)
        if x.shape != expected:
            raise ValueError(
                f"with this cache a step takes (B, D) = {expected}, got {tuple(x.shape)}"
            )
        empty = self.new_cache(0)
        for name in ("conv", "state"):
            value, like = getattr(cache, name), getattr(empty, name)
            shape = (len(x), *like.shape[1:])
            check_shapes("this cache is of another block", [name], [value], [shape])
            check_like_weight(f"the cache's {name}", value, like, "this block's own cache")
        return self(x[:, None], context=cache)[:, 0]


class MambaBlock(CausalBlock):
    """The Mamba block, residual included: x (B, L, d_model) → (B, L, d_model).

    n1, n2: names of the norm before the SSM and of the norm between SSM and gate (see NORMS). more:
    (site, norm) pairs, or a dict, for further sites (MORE_SITES). norm_options: each norm gets the
    options that it accepts; options under a site's name, as {"B": {"affine": False}}, are only for
    the norm at this site.

    Raises ValueError for an unknown norm or site and for an invalid size, and TypeError for an
    option that no norm of the block accepts.
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
        self.d_model = d_model
        self.d_inner = d_inner = expand * d_model
        self.d_state = d_state
        self.dt_rank = dt_rank or math.ceil(d_model / 16)
        self.scan_backend = scan_backend
        self.in_proj = nn.Linear(d_model, 2 * d_inner, bias=False)
        self._make_conv(d_inner, d_conv)
        self.x_proj = nn.Linear(d_inner, self.dt_rank + 2 * d_state, bias=False)
        self.dt_proj: nn.Linear = nn.Linear(self.dt_rank, d_inner)
        self.A_log = nn.Parameter(initial_A_log(d_inner, d_state))
        self.D = nn.Parameter(torch.ones(d_inner))
        self.out_proj = nn.Linear(d_inner, d_model, bias=False)
        init_dt(self.dt_proj.weight, self.dt_proj.bias)
        arm = Arm(n1, n2, more)
        self._make_norms(arm, norm_options, D=d_model, E=d_inner, N=d_state, R=self.dt_rank)
        self.register_load_state_dict_pre_hook(_rename_from_mamba_ssm)  # type: ignore[no-untyped-call]

    def select(
        self, u: Tensor, dt: Tensor | None, at: At, context: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return u (B, L, E) and the values computed from u: dt (B, L, R), B and C (B, L, N)."""
        u = at("conv", u)
        dt, B, C = self.x_proj(u).split([self.dt_rank, self.d_state, self.d_state], dim=-1)
        B, C, dt = at("B", B), at("C", C), at("delta", dt)
        return u, dt, B, C

    def ssm(self) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor]:
        """Return dt_proj's weight (E, R) and bias (E,), log(−A) (E, N), and D (E,).

        Weight and bias are None if dt_proj must be called (operations/layers.py).
        """
        layer = self.dt_proj
        if is_plain(layer, nn.Linear) and layer.bias is not None:
            return layer.weight, layer.bias, self.A_log, self.D
        return None, None, self.A_log, self.D


def init_dt(weight: Tensor, bias: Tensor) -> None:
    """Initialize weight (…, E, R) and bias (…, E) of Δ's projection in place, as mamba-ssm does.

    The weights are uniform in [−R^−½, R^−½]; for the bias see `init_dt_bias`.
    """
    bound = weight.shape[-1] ** -0.5
    nn.init.uniform_(weight, -bound, bound)
    init_dt_bias(bias)


def init_dt_bias(bias: Tensor) -> None:
    """Initialize Δ's bias (any shape) in place: softplus(bias) is log-uniform in DT_MIN…DT_MAX."""
    low, high = math.log(DT_MIN), math.log(DT_MAX)
    dt = torch.exp(torch.rand(bias.shape) * (high - low) + low).clamp(min=DT_FLOOR)
    with torch.no_grad():
        bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # the inverse of softplus


def initial_A_log(channels: int, d_state: int) -> Tensor:
    """Return the initial log(−A), (channels, d_state): −A is 1, 2, …, d_state in every channel.

    This is the initialization S4D-real of mamba-ssm.
    """
    return torch.log(torch.arange(1.0, d_state + 1)).repeat(channels, 1)


def check_sizes(scan_backend: str, dt_rank: int | None, **sizes: object) -> None:
    """Raise ValueError for an unknown back end, and for a size that is not a positive integer.

    A dt_rank of None is not checked.
    """
    if scan_backend not in BACKENDS:
        raise unknown("scan_backend", scan_backend, BACKENDS)
    if dt_rank is not None:
        sizes["dt_rank"] = dt_rank
    for name, size in sizes.items():
        check_size(name, size)


def _rename_from_mamba_ssm(
    block: MambaBlock, state: dict[str, Tensor], prefix: str, *_: object
) -> None:
    """Rename keys of a state dict before it is loaded: `mixer.*` to `*`, and `norm.*` to `n1.*`.

    So mamba-ssm's state dicts, which have the old names, load without conversion.
    """
    for key in list(state):
        for theirs, ours in (("mixer.", ""), ("norm.", "n1.")):
            if key.startswith(prefix + theirs):
                state[prefix + ours + key.removeprefix(prefix + theirs)] = state.pop(key)
