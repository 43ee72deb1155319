"""Models of images: VSSBlock, which scans an image in four directions, and ImageClassifier.

ImageReader is the base of all classifiers that read images.

    f = N2(Merge(SSM(Scan(SiLU(Conv(Lin(N1(x))))))))        (1)   main branch; Conv is a 3×3
                                                                  depthwise convolution
    p = SiLU(Lin(N1(x)))                                    (2)   gate; both branches read the same
                                                                  N1(x)
    y = Lin(f ⊗ p) ⊕ x                                      (3)

This is the VSSBlock of VMamba v0 without the FFN, as in the paper (its Appendix C.1). The arm of
VMamba v0 is LN>SSM>LN. A norm reads an image as a sequence of H·W positions, row by row. The input
of N2 is the sum over the four directions of the scan's output, including D·u.

Glossary: B images, H and W rows and columns of positions, L = H·W, D = d_model, E = d_inner =
expand·D, N = d_state, R = dt_rank.

Sources: Liu et al. 2024, "VMamba"; MzeroMiko/VMamba v0 (names of parameters, order of the
directions).
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mambanorm.arms import Arm
from mambanorm.block import Block, check_sizes, init_dt, initial_A_log
from mambanorm.checks import check_tensor, is_ordinary
from mambanorm.errors import unknown
from mambanorm.models.parts import (
    Classifier,
    DropPath,
    check_values_of,
    drop_rates,
    scale_out_proj,
    stores_arguments,
)
from mambanorm.norm_options import check_arm_options, common_options, options_of_blocks
from mambanorm.norms import create_norm, known_options
from mambanorm.operations.layers import image_conv_silu

DIRECTIONS = ("rows", "columns", "rows from the end", "columns from the end")
# How a VSSBlock combines the scans in the four directions.
MERGES = ("sum", "mean")


def cross_scan(x: Tensor) -> Tensor:
    """Return an image (B, D, H, W) as four sequences (B, 4, D, H·W), in the order of DIRECTIONS.

    The result is a view of a contiguous tensor (B, H·W, 4, D), the layout that a block reads.
    """
    return _scan_or_merge(x.permute(0, 2, 3, 1), None).permute(0, 2, 3, 1)


def cross_merge(y: Tensor, height: int, width: int) -> Tensor:
    """Add four sequences (B, 4, D, H·W) into one image (B, D, H, W), each value at its pixel.

    The sequences are in the order of DIRECTIONS. This function is the adjoint of `cross_scan`.
    """
    return _scan_or_merge(y.permute(0, 3, 1, 2), (height, width)).permute(0, 3, 1, 2)


def _scan_or_merge(x: Tensor, size: tuple[int, int] | None) -> Tensor:
    """Return `_scan(x)` if size is None, else `_merge(x, size)`.

    Uses the autograd.Function `_Cross` only if `is_ordinary(x)`: torch.func cannot use `_Cross`.
    """
    if is_ordinary(x):
        return _Cross.apply(x, size)
    return _scan(x) if size is None else _merge(x, size)


class _Cross(torch.autograd.Function):
    """Compute `_scan(x)` or `_merge(x, size)`.

    The backward pass of a scan is a merge, and the backward pass of a merge is a scan. This fixes
    the order in which gradients are added.
    """

    @staticmethod
    def forward(ctx, x: Tensor, size: tuple[int, int] | None) -> Tensor:
        ctx.size = x.shape[1:3] if size is None else None
        return _scan(x) if size is None else _merge(x, size)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return _Cross.apply(grad, ctx.size), None


def _scan(image: Tensor) -> Tensor:
    """Return an image (B, H, W, D) as four sequences (B, H·W, 4, D), in the order of DIRECTIONS."""
    rows, columns = image.flatten(1, 2), image.transpose(1, 2).flatten(1, 2)
    return torch.stack([rows, columns, rows.flip(1), columns.flip(1)], 2)


def _merge(sequences: Tensor, size: tuple[int, int]) -> Tensor:
    """Add four sequences (B, H·W, 4, D) into one image (B, H, W, D), each value at its pixel."""
    (H, W), (rows, columns, rows_back, columns_back) = size, sequences.unbind(2)
    total = rows.unflatten(1, (H, W)) + columns.unflatten(1, (W, H)).transpose(1, 2)
    total += rows_back.flip(1).unflatten(1, (H, W))
    return total + columns_back.flip(1).unflatten(1, (W, H)).transpose(1, 2)


class VSSBlock(Block):
    """VMamba v0's block without FFN, residual included: (B, H, W, d_model) → (B, H, W, d_model).

    n1, n2, more, norm_options: as in MambaBlock. At B, C, delta and delta_after, one norm is
    applied to all four directions: the norm's input (4·B, L, …) has one row for each image and
    direction, with the positions in the order of the direction. Each direction has separate
    parameters of the SSM. The names, shapes and initial values of the parameters are VMamba v0's:
    x_proj_weight (4, R + 2N, E), dt_projs_weight (4, E, R), dt_projs_bias (4, E), A_logs (4·E, N)
    and Ds (4·E). merge: "sum" adds the scans in the four directions, as VMamba does; "mean" divides
    the sum by four, as Vim divides the sum of its two directions by two. Raises ValueError for an
    unknown norm or site or an invalid size, and TypeError for an option that no norm of the block
    accepts.
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
        merge: str = "sum",
    ):
        super().__init__()
        check_sizes(
            scan_backend, dt_rank, d_model=d_model, d_state=d_state, d_conv=d_conv, expand=expand
        )
        if merge not in MERGES:
            raise unknown("merge", merge, MERGES)
        self.merge = merge
        if d_conv % 2 == 0:
            raise ValueError(
                f"d_conv must be odd, so that images keep their size, got {d_conv}: VMamba uses 3"
            )
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
        limit = d_inner**-0.5  # the bound of nn.Linear's initial weights
        nn.init.uniform_(self.x_proj_weight, -limit, limit)
        init_dt(self.dt_projs_weight, self.dt_projs_bias)
        self._make_norms(Arm(n1, n2, more), norm_options, D=d_model, E=d_inner, N=d_state, R=rank)

    def forward(self, x: Tensor) -> Tensor:
        check_tensor("x", x, f"(B, H, W, {self.d_model})")
        if x.dim() != 4 or x.shape[-1] != self.d_model or 0 in x.shape:
            raise ValueError(
                f"VSSBlock expects (B, H, W, D) with D = {self.d_model}, got shape {tuple(x.shape)}"
            )
        return super().forward(x.flatten(1, 2), context=x.shape[1:3]).view_as(x)

    def convolve(self, u: Tensor, size: torch.Size) -> Tensor:
        """Return SiLU(Conv(u)), (B, L, E) → (B, L, E); Conv is over images of `size` (H, W)."""
        return image_conv_silu(self.conv2d, u.unflatten(1, size)).flatten(1, 2)

    def select(self, u: Tensor, _: None, at: Callable, size: torch.Size) -> tuple[Tensor, ...]:
        """Return, for the four directions, u (B, L, 4·E), dt (B, L, 4, R), B and C (B, L, 4, N)."""
        u = at("conv", u)
        four = cross_scan(u.transpose(1, 2).unflatten(2, size)).permute(0, 3, 1, 2)  # (B, L, 4, E)
        weight = self.x_proj_weight.transpose(1, 2)
        x = torch.bmm(four.flatten(0, 1).transpose(0, 1), weight)  # (4, B·L, R + 2·N)
        x = x.unflatten(1, four.shape[:2]).flatten(0, 1)  # (4·B, L, R + 2·N)
        dt, B, C = x.split([self.dt_rank, self.d_state, self.d_state], -1)
        B, C, dt = at("B", B), at("C", C), at("delta", dt)
        return four.flatten(2), _split_directions(dt), _split_directions(B), _split_directions(C)

    def scan(
        self, u: Tensor, dt: Tensor, B: Tensor, C: Tensor, at: Callable, size: torch.Size
    ) -> Tensor:
        """Return the sum of the scans in the four directions, or their mean if `merge` is "mean".

        The result is (B, L, E), positions row by row.

        One scan computes all four directions: each direction is a group of channels.
        """

        def at_all_directions(site: str, value: Tensor) -> Tensor:  # (B, L, 4·E)
            rows = value.unflatten(2, (4, -1)).permute(2, 0, 1, 3).flatten(0, 1)  # (4·B, L, E)
            return _split_directions(at(site, rows)).flatten(2)

        y = super().scan(u, dt, B, C, at_all_directions, None).unflatten(2, (4, -1))  # (B, L, 4, E)
        y = cross_merge(y.permute(0, 2, 3, 1), *size).flatten(2).transpose(1, 2)
        return y / len(DIRECTIONS) if self.merge == "mean" else y

    def ssm(self) -> tuple[Tensor, ...]:
        weight, bias = self.dt_projs_weight.flatten(0, 1), self.dt_projs_bias.flatten()
        return weight, bias, self.A_logs, self.Ds


def _split_directions(x: Tensor) -> Tensor:
    """Split the axis of directions and images into two axes: (4·B, L, ·) → (B, L, 4, ·)."""
    return x.unflatten(0, (4, -1)).permute(1, 2, 0, 3)


class PatchMerging(nn.Module):
    """Down-sample as VMamba does: (B, H, W, D) → (B, H/2, W/2, 2·D), for even H and W.

    The channels of 2×2 positions are concatenated, normalized (by LN in VMamba) and projected.
    """

    def __init__(
        self, d_model: int, norm: str | None = "None", *, norm_options: dict[str, Any] | None = None
    ):
        super().__init__()
        self.reduction = nn.Linear(4 * d_model, 2 * d_model, bias=False)
        with torch.random.fork_rng(devices=[]):
            self.norm = create_norm(norm, 4 * d_model, **known_options([norm], norm_options))

    def forward(self, x: Tensor) -> Tensor:
        B, H, W, D = x.shape
        x = x.reshape(B, H // 2, 2, W // 2, 2, D)
        x = x.permute(0, 1, 3, 4, 2, 5).flatten(3)  # 2×2 positions column by column, as in VMamba
        return self.reduction(self.norm(x.flatten(1, 2)).reshape(x.shape))


class ImageReader(Classifier):
    """Base of all classifiers that read images (B, H, W, C): each patch becomes one position.

    A patch has `patch`×`patch` pixels. down_sample: the indices of the blocks, counted from 1,
    after which height and width are halved.
    """

    patch = 1
    down_sample: tuple[int, ...] = ()

    def _image_stem(self, channels: int, d_model: int) -> nn.Module:
        return nn.Conv2d(channels, d_model, self.patch, stride=self.patch)

    def _check_images(self, x: Tensor) -> None:
        """Raise ValueError unless x holds images that can be cut into patches and halved."""
        check_values_of(x, "B, H, W", self.in_channels)
        factor, (H, W) = self.patch * 2 ** len(self.down_sample), x.shape[1:3]
        if H % factor or W % factor:
            halvings = f", halved {len(self.down_sample)} times" if self.down_sample else ""
            raise ValueError(
                f"images of {H}×{W} pixels cannot be cut into patches of "
                f"{self.patch}×{self.patch}{halvings}: "
                f"height and width must be multiples of {factor}"
            )


class ImageClassifier(ImageReader):
    """Patches, n_layers blocks, mean over the positions, linear head.

    `forward(x)` maps images (B, H, W, in_channels) to logits (B, n_classes). A strided convolution
    turns each patch of `patch`×`patch` pixels into one position. `down_sample` lists the blocks,
    counted from 1, after which height and width are halved and the number of channels is doubled
    (`PatchMerging`). `stem_norm` (after the patches), `down_norm` (in PatchMerging) and
    `final_norm` (before the head) are "None" by default, so that the arm names all norms; VMamba
    has LN at these three sites. `drop_path` and `positional`: as in SequenceClassifier.
    `positions`: the image's height and width in patches. Raises ValueError for an unknown norm or
    arm, and for images that cannot be cut into patches.
    """

    @stores_arguments
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
        norm_options: dict[str, Any] | None = None,
        positional: str = "none",
        positions: tuple[int, int] | None = None,
        drop_path: float = 0.0,
        **block_options: Any,
    ):
        super().__init__()
        self.patch = patch
        inputs = {"in_channels": in_channels}
        self._make_stem(d_model, inputs, patch=patch, n_classes=n_classes, n_layers=n_layers)
        if not set(down_sample) <= set(range(1, n_layers)):
            raise ValueError(
                f"down_sample must list blocks from 1 to {n_layers - 1}, got {down_sample!r}"
            )
        self.arm = Arm.parse(arm)
        self.down_sample = tuple(down_sample)
        check_arm_options(self.arm, norm_options, (stem_norm, down_norm, final_norm))
        block_options["norm_options"] = options_of_blocks(self.arm, norm_options)
        norm_options = common_options(norm_options)
        self.blocks, self.merging, width = nn.ModuleList(), nn.ModuleDict(), d_model
        for depth in range(1, n_layers + 1):
            self.blocks.append(VSSBlock(width, *self.arm, **block_options))
            if depth in down_sample:
                self.merging[str(depth)] = PatchMerging(width, down_norm, norm_options=norm_options)
                width *= 2
        self.drop_paths = nn.ModuleList(map(DropPath, drop_rates(drop_path, n_layers)))
        widths, norms = (d_model, width), (stem_norm, final_norm)
        self._make_outer_parts(n_classes, widths, norms, norm_options, positional, positions)
        # VMamba does not scale out_proj, and draws the weights of linear layers from N(0, 0.02²)
        scale_out_proj(self.blocks)

    def forward(self, x: Tensor, lengths: None = None) -> Tensor:
        self._check(x, lengths)
        x = self.stem(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1).contiguous()  # (B, H, W, D)
        x = self.stem_norm(self.positional(x).flatten(1, 2)).reshape(x.shape)
        for depth, block in enumerate(self.blocks, start=1):
            x = self.drop_paths[depth - 1].drop_branch(block(x), x)
            if depth in self.down_sample:
                x = self.merging[str(depth)](x)
        return self.head(self.final_norm(x.flatten(1, 2)).mean(1))
