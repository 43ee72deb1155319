"""The vision Mamba: a block that scans an image in four directions, and an image classifier made of such blocks.

    f = N2(Merge(SSM(Scan(SiLU(Conv(Lin(N1(x))))))))        (1)   main branch, a 3×3 depthwise convolution
    p = SiLU(Lin(N1(x)))                                     (2)   gate: the same N1(x) feeds both branches
    y = Lin(f ⊗ p) ⊕ x                                       (3)

This is VMamba v0's VSSBlock without its FFN, as the paper used it (App. C.1); its original arm is LN>SSM>LN. The norms
see an image as its H·W positions, row by row. N2's input is the sum of the four directions, D·u included.

Map: `cross_scan`, `cross_merge`; `VSSBlock`; `PatchMerging`; `ImageClassifier`.

Glossary: B images, H and W rows and columns of positions, L = H·W, D = d_model, E = d_inner = expand·D, N = d_state,
R = dt_rank; g = 0…3 the directions.
Source: Liu et al. 2024, "VMamba"; MzeroMiko/VMamba v0 (names of parameters, order of the directions).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mambanorm.arms import Arm
from mambanorm.basics.checks import REAL, check_beside, check_real, check_shapes, check_size, check_tensor
from mambanorm.block import INSIDE, can_fuse, check_sizes, init_dt, initial_A_log
from mambanorm.models.drop_path import DropPath, drop_rates
from mambanorm.models.positional import positional as encoding
from mambanorm.sites import SitedBlock, arm_of, check_arm_options, common_options, options_of_blocks, site_widths
from mambanorm.norms import create_norm, known_options
from mambanorm.operations import selective_scan

MIXER = (
    "in_proj.weight", "conv2d.weight", "conv2d.bias", "x_proj_weight", "dt_projs_weight", "dt_projs_bias", "A_logs",
    "Ds",
)  # fmt: skip
"""The parameters of what stands between the norms, in the order of `_mixer_parameters`."""
DIRECTIONS = ("rows", "columns", "rows from the end", "columns from the end")


def cross_scan(x: Tensor) -> Tensor:
    """An image (B, D, H, W) as four sequences (B, 4, D, H·W): by rows, by columns, and both from the end."""
    check_tensor("x", x, "(B, D, H, W)")
    if x.dim() != 4:
        raise ValueError(f"cross_scan expects images (B, D, H, W), got shape {tuple(x.shape)}")
    ahead = torch.stack([x.flatten(2), x.transpose(2, 3).flatten(2)], dim=1)
    return torch.cat([ahead, ahead.flip(-1)], dim=1)


def cross_merge(y: Tensor, height: int, width: int) -> Tensor:
    """The adjoint of `cross_scan`, (B, 4, D, H·W) → (B, D, H, W): every value back in its place, the four summed."""
    check_tensor("y", y, "(B, 4, D, H·W)")
    check_size("height", height), check_size("width", width)
    if y.dim() != 4 or y.shape[1] != 4 or y.shape[3] != height * width:
        raise ValueError(f"cross_merge expects (B, 4, D, H·W) with H·W = {height * width}, got {tuple(y.shape)}")
    rows, columns = (y[:, :2] + y[:, 2:].flip(-1)).unbind(1)
    return rows.unflatten(2, (height, width)) + columns.unflatten(2, (width, height)).transpose(2, 3)


class VSSBlock(SitedBlock):
    """One block, residual included: x (B, H, W, d_model) → (B, H, W, d_model).

    n1, n2, more, norm_options: as MambaBlock's. At B, C, delta and delta_after one norm serves the four directions, as
    if they were four rows: it sees the positions in the order of the direction. Each direction has its own
    x_proj_weight (4, R + 2N, E), dt_projs_weight (4, E, R), dt_projs_bias (4, E), A_logs (4·E, N) and Ds (4·E), shaped
    and initialised as VMamba's; its v0 blocks load as they are. Raises ValueError for an unknown norm, site or size,
    TypeError for an option that no norm has.

    As MambaBlock, it has two versions: a fused one for float32 on the CPU, and a readable one for elsewhere and while
    diagnostics record. Its sites B, C and delta are in the order of each direction, the four side by side.
    """

    def __init__(
        self,
        d_model: int,
        n1: str | None = "LN",
        n2: str | None = "LN",
        more: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        *,
        d_state: int = 16,
        d_conv: int = 3,
        expand: int = 2,
        dt_rank: int | None = None,
        norm_options: dict[str, Any] | None = None,
        scan_backend: str = "auto",
    ):
        super().__init__()
        check_sizes(scan_backend, dt_rank, d_model=d_model, d_state=d_state, d_conv=d_conv, expand=expand)
        if d_conv % 2 == 0:
            raise ValueError(f"d_conv must be odd on images, to keep their size, got {d_conv}: VMamba has 3")
        self.d_model, self.d_state = d_model, d_state
        self.d_inner = d_inner = expand * d_model
        self.dt_rank = rank = dt_rank or math.ceil(d_model / 16)
        self.scan_backend = scan_backend

        self.in_proj = nn.Linear(d_model, 2 * d_inner, bias=False)
        self.conv2d = nn.Conv2d(d_inner, d_inner, d_conv, groups=d_inner, padding=d_conv // 2)
        self.x_proj_weight = nn.Parameter(torch.empty(4, rank + 2 * d_state, d_inner))
        self.dt_projs_weight = nn.Parameter(torch.empty(4, d_inner, rank))
        self.dt_projs_bias = nn.Parameter(torch.empty(4, d_inner))
        self.A_logs = nn.Parameter(initial_A_log(4 * d_inner, d_state))
        self.Ds = nn.Parameter(torch.ones(4 * d_inner))
        self.out_proj = nn.Linear(d_inner, d_model, bias=False)
        nn.init.uniform_(self.x_proj_weight, -(d_inner**-0.5), d_inner**-0.5)  # as nn.Linear starts each direction's
        init_dt(self.dt_projs_weight, self.dt_projs_bias)
        self._make_norms(arm_of(n1, n2, more), norm_options, site_widths(d_model, d_inner, d_state, rank))
        self.register_load_state_dict_pre_hook(_rename_from_vmamba)
        self._shapes = [tuple(p.shape) for p in self._mixer_parameters()]

    def _plan(self) -> None:
        super()._plan()
        self.mixes_at_once = not any(site in self.more for site in INSIDE)

    def extra_repr(self) -> str:
        sizes = f"d_inner={self.d_inner}, d_state={self.d_state}, dt_rank={self.dt_rank}"
        return f"scan in {len(DIRECTIONS)} directions: {sizes}"

    def forward(self, x: Tensor) -> Tensor:
        parameters = self._check(x)
        size, rows = x.shape[1:3], x.flatten(1, 2)  # (B, L, D)
        if self.mixes_at_once and can_fuse(self, x, parameters):
            return self._forward_fused(rows, size, parameters).reshape(x.shape)
        return self._forward_readable(rows, size).reshape(x.shape)

    def _check(self, x: Tensor) -> tuple[Tensor, ...]:
        """Returns the mixer's parameters. Raises ValueError unless x is a non-empty (B, H, W, D) of their dtype and
        device, and for a parameter that was replaced by a tensor of another shape."""
        check_real("x", x, f"(B, H, W, {self.d_model})")
        if x.dim() != 4 or x.shape[-1] != self.d_model or 0 in x.shape:
            raise ValueError(f"VSSBlock expects (B, H, W, D) with D = {self.d_model}, got shape {tuple(x.shape)}")
        parameters = self._mixer_parameters()
        check_beside("x", x, parameters[0], "VSSBlock")
        check_shapes("VSSBlock", MIXER, parameters, self._shapes)
        return parameters

    def _mixer_parameters(self) -> tuple[Tensor, ...]:
        conv, dt = self.conv2d, (self.dt_projs_weight, self.dt_projs_bias)
        return self.in_proj.weight, conv.weight, conv.bias, self.x_proj_weight, *dt, self.A_logs, self.Ds

    def _forward_fused(self, x: Tensor, size: torch.Size, parameters: tuple[Tensor, ...]) -> Tensor:
        """The fused twin: norms, mixer and gate in as few passes over memory as the norms allow."""
        from mambanorm.kernels.mixer_2d import cross_mixer_cpu  # here: importing Numba takes a moment

        h, x = self.n1(x, fork=True) if self.n1_forks else (self.n1(x), x)
        y, z = cross_mixer_cpu(h, size, *parameters)
        return self._close_fused(x, y, z)

    def _forward_readable(self, x: Tensor, size: torch.Size) -> Tensor:
        """The readable twin: the same values step by step, each site shown to the observer if there is one. It serves
        norms inside the mixer too: the fused one does not stop there."""
        see = self._see
        h = see("n1", self.n1(see("x", x)))
        w_main, w_gate = self.in_proj.weight.chunk(2)
        u = F.silu(self.conv2d(_as_image(F.linear(h, w_main), size)))  # (B, E, H, W)
        u = see("conv", self._at("conv", _as_rows(u)))
        y = _as_rows(cross_merge(self._scan(cross_scan(_as_image(u, size))), *size))
        return self._close(x, y, F.linear(h, w_gate))

    def _scan(self, u: Tensor) -> Tensor:
        """The four scans in one call, each direction a group of channels: u (B, 4, E, L) → (B, 4, E, L)."""
        narrow = torch.einsum("bgel,gre->bgrl", u, self.x_proj_weight)
        parts = narrow.split([self.dt_rank, self.d_state, self.d_state], dim=2)
        dt, B, C = (self._in_directions(site, part) for site, part in zip(("delta", "B", "C"), parts))
        delta = self._in_directions("delta_after", torch.einsum("bgrl,ger->bgel", dt, self.dt_projs_weight))
        if self.observer is not None:
            step = F.softplus(delta + self.dt_projs_bias[..., None])
            for site, value in (("B", B), ("C", C), ("delta", step)):
                self.observer(site, value.flatten(1, 2).transpose(1, 2))  # (B, L, 4·N) or (B, L, 4·E)
        y = selective_scan(
            u.flatten(1, 2),
            delta.flatten(1, 2),
            -torch.exp(self.A_logs),
            B,
            C,
            self.Ds,
            delta_bias=self.dt_projs_bias.flatten(),
            delta_softplus=True,
            backend=self.scan_backend,
        )
        return y.view_as(u)

    def _in_directions(self, site: str, value: Tensor) -> Tensor:
        """A further site's norm on (B, 4, ·, L), each direction as a row of its own."""
        if site not in self.more:
            return value
        return self.more[site](value.flatten(0, 1).transpose(1, 2)).transpose(1, 2).unflatten(0, value.shape[:2])


def _as_image(x: Tensor, size: torch.Size) -> Tensor:
    """(B, L, D) → (B, D, H, W)."""
    return x.transpose(1, 2).unflatten(2, size)


def _as_rows(x: Tensor) -> Tensor:
    """(B, D, H, W) → (B, L, D)."""
    return x.flatten(2).transpose(1, 2)


def _rename_from_vmamba(block: VSSBlock, state: dict[str, Tensor], prefix: str, *_) -> None:
    """Renames VMamba v0's `self_attention.*`, `ln_1.*` (its N1) and `out_norm` (its N2) to this block's names."""
    for key in [key for key in state if key.startswith((f"{prefix}self_attention.", f"{prefix}ln_1."))]:
        own = key.removeprefix(prefix).removeprefix("self_attention.")
        state[prefix + own.replace("ln_1.", "n1.").replace("out_norm.", "n2.")] = state.pop(key)


class PatchMerging(nn.Module):
    """Halves an image, (B, H, W, D) → (B, H/2, W/2, 2·D): the channels of 2×2 positions side by side, a norm, a
    projection. As VMamba's, whose norm is LN; ValueError for an odd height or width."""

    def __init__(self, d_model: int, norm: str | None = "None", *, norm_options: dict[str, Any] | None = None):
        super().__init__()
        self.reduction = nn.Linear(4 * d_model, 2 * d_model, bias=False)
        with torch.random.fork_rng(devices=[]):
            self.norm = create_norm(norm, 4 * d_model, **known_options([norm], norm_options))

    def forward(self, x: Tensor) -> Tensor:
        B, H, W, D = x.shape
        if H % 2 or W % 2:
            raise ValueError(f"an image of {H}×{W} positions cannot be halved: choose other sizes or less down_sample")
        x = x.reshape(B, H // 2, 2, W // 2, 2, D).permute(0, 1, 3, 4, 2, 5).flatten(3)  # columns before rows, as VMamba
        return self.reduction(normed(self.norm, x))


def normed(norm: nn.Module, x: Tensor) -> Tensor:
    """The norm of an image's positions, row by row: (B, H, W, D) → (B, H, W, D)."""
    return norm(x.flatten(1, 2)).reshape(x.shape)


class ImageClassifier(nn.Module):
    """Patches, n_layers blocks, mean over the positions, linear head; `forward(x)` of images (B, H, W, in_channels) →
    logits (B, n_classes).

    A patch of p×p pixels becomes one position by a strided convolution. `down_sample` names the blocks, counted from 1,
    after which the image is halved and the width doubled (`PatchMerging`); () = nowhere. `stem_norm` (after the
    patches), `down_norm` and `final_norm` are "None" by default, so that the arm names all norms; VMamba has LN
    at all three. `positional` adds "sinusoidal" or "learned" positions after the patches (positional.py); a learned
    table needs to know the largest image in patches, `positions=(H, W)`. `drop_path`: how often the deepest block is
    left out in training (drop_path.py). Raises ValueError for an unknown norm or arm, and for images that do not divide
    into patches.
    """

    def __init__(
        self,
        n_classes: int,
        *,
        in_channels: int,
        d_model: int,
        n_layers: int,
        patch: int = 1,
        down_sample: tuple[int, ...] = (),
        arm: str | Arm = "LN>SSM>LN",
        stem_norm: str | None = "None",
        down_norm: str | None = "None",
        final_norm: str | None = "None",
        d_state: int = 16,
        d_conv: int = 3,
        expand: int = 2,
        dt_rank: int | None = None,
        norm_options: dict[str, Any] | None = None,
        scan_backend: str = "auto",
        positional: str = "none",
        positions: tuple[int, int] | None = None,
        drop_path: float = 0.0,
    ):
        super().__init__()
        sizes = dict(n_classes=n_classes, in_channels=in_channels, d_model=d_model, n_layers=n_layers, patch=patch)
        for name, size in sizes.items():
            check_size(name, size)
        blocks = list(down_sample) if isinstance(down_sample, tuple | list) else [None]
        if not all(type(b) is int and 0 < b < n_layers for b in blocks) or len(set(blocks)) < len(blocks):
            raise ValueError(f"down_sample names blocks among 1..{n_layers - 1}, each once, got {down_sample!r}")
        self.arm = Arm.parse(arm)
        self.in_channels, self.patch, self.down_sample = in_channels, patch, tuple(down_sample)
        check_arm_options(self.arm, norm_options, (stem_norm, down_norm, final_norm))
        own, norm_options = options_of_blocks(self.arm, norm_options), common_options(norm_options)
        block_options = dict(d_state=d_state, d_conv=d_conv, expand=expand, dt_rank=dt_rank, scan_backend=scan_backend)
        self.stem = nn.Conv2d(in_channels, d_model, patch, stride=patch)
        self.blocks, self.merging, width = nn.ModuleList(), nn.ModuleDict(), d_model
        for depth in range(1, n_layers + 1):
            self.blocks.append(VSSBlock(width, *self.arm, norm_options=own, **block_options))
            if depth in down_sample:
                self.merging[str(depth)] = PatchMerging(width, down_norm, norm_options=norm_options)
                width *= 2
        self.drop_paths = nn.ModuleList(map(DropPath, drop_rates(drop_path, n_layers)))
        self.head = nn.Linear(width, n_classes)
        with torch.random.fork_rng(devices=[]):
            self.stem_norm = create_norm(stem_norm, d_model, **known_options([stem_norm], norm_options))
            self.final_norm = create_norm(final_norm, width, **known_options([final_norm], norm_options))
        self.positional = encoding(positional, d_model, 2, positions)
        with torch.no_grad():  # as in SequenceClassifier; VMamba leaves it out and starts linear weights at N(0, .02)
            for block in self.blocks:
                block.out_proj.weight /= math.sqrt(n_layers)

    def forward(self, x: Tensor, lengths: None = None) -> Tensor:
        self._check(x, lengths)
        x = self.stem(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1).contiguous()  # (B, H, W, D)
        x = normed(self.stem_norm, self.positional(x))
        for depth, (block, drop_path) in enumerate(zip(self.blocks, self.drop_paths, strict=True), start=1):
            x = drop_path.around(block(x), x)
            if depth in self.down_sample:
                x = self.merging[str(depth)](x)
        return self.head(self.final_norm(x.flatten(1, 2)).mean(1))

    def _check(self, x: Tensor, lengths: Tensor | None) -> None:
        if lengths is not None:
            raise ValueError("lengths are given: images have no padding, leave them out")
        form = f"(B, H, W, {self.in_channels})"
        check_tensor("x", x, f"of images {form}")
        if x.dim() != 4 or x.shape[-1] != self.in_channels or x.dtype not in REAL or not x.numel():
            raise ValueError(f"expected images {form}, got {x.dtype} {tuple(x.shape)}: at least one, of real numbers")
        check_beside("x", x, self.stem.weight, "this model")
        cell, (H, W) = self.patch * 2 ** len(self.down_sample), x.shape[1:3]
        if H % cell or W % cell:
            halvings = f", halved {len(self.down_sample)} times" if self.down_sample else ""
            raise ValueError(
                f"images of {H}×{W} pixels do not divide into patches of {self.patch}×{self.patch}{halvings}: "
                f"height and width must be multiples of {cell}"
            )
