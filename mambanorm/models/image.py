"""ImageClassifier: patches → VSS blocks, with halvings between them → pooling → head; VMamba without its FFN."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from mambanorm.arms import Arm
from mambanorm.basics.checks import REAL, check_beside, check_size, check_tensor
from mambanorm.block import check_arm_options, common_options, options_of_blocks
from mambanorm.models.parts import DropPath, drop_rates
from mambanorm.models.parts import positional as encoding
from mambanorm.models.vision import VSSBlock
from mambanorm.norms import create_norm, known_options


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
    at all three. `positional` adds "sinusoidal" or "learned" positions after the patches (parts.py); a learned
    table needs to know the largest image in patches, `positions=(H, W)`. `drop_path`: how often the deepest block is
    left out in training (parts.py). Raises ValueError for an unknown norm or arm, and for images that do not divide
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
        norm_options: dict[str, Any] | None = None,
        positional: str = "none",
        positions: tuple[int, int] | None = None,
        drop_path: float = 0.0,
        **block_options: Any,
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
