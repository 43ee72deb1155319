"""An image as four sequences: by rows, by columns, and both from the end (VMamba's SS2D, Liu et al. 2024)."""

import torch
from torch import Tensor

from mambanorm.basics.checks import check_real, check_size, check_tensor
from mambanorm.kernels.backends import fused_on_cpu

DIRECTIONS = ("rows", "columns", "rows from the end", "columns from the end")


def cross_scan(x: Tensor) -> Tensor:
    """An image (B, D, H, W) as four sequences (B, 4, D, H·W), in the order of DIRECTIONS. ValueError for other shapes.

    For float32 on the CPU the result is a view of a contiguous (B, H·W, 4, D), as a block reads it.
    """
    check_tensor("x", x, "(B, D, H, W)")
    if x.dim() != 4 or not x.numel():
        raise ValueError(f"cross_scan expects images (B, D, H, W), got shape {tuple(x.shape)}")
    if fused_on_cpu(x):
        check_real("x", x)
        from mambanorm.kernels.cross import cross_scan_cpu

        return cross_scan_cpu(x.permute(0, 2, 3, 1)).permute(0, 2, 3, 1)
    ahead = torch.stack([x.flatten(2), x.transpose(2, 3).flatten(2)], dim=1)
    return torch.cat([ahead, ahead.flip(-1)], dim=1)


def cross_merge(y: Tensor, height: int, width: int) -> Tensor:
    """The adjoint of `cross_scan`, (B, 4, D, H·W) → (B, D, H, W): every value back in its place, the four summed."""
    check_tensor("y", y, "(B, 4, D, H·W)")
    check_size("height", height), check_size("width", width)
    if y.dim() != 4 or y.shape[1] != 4 or y.shape[3] != height * width or not y.numel():
        raise ValueError(f"cross_merge expects (B, 4, D, H·W) with H·W = {height * width}, got {tuple(y.shape)}")
    if fused_on_cpu(y):
        check_real("y", y)
        from mambanorm.kernels.cross import cross_merge_cpu

        return cross_merge_cpu(y.permute(0, 3, 1, 2), (height, width)).permute(0, 3, 1, 2)
    rows, columns = (y[:, :2] + y[:, 2:].flip(-1)).unbind(1)
    return rows.unflatten(2, (height, width)) + columns.unflatten(2, (width, height)).transpose(2, 3)
