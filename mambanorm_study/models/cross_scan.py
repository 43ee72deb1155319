"""VMamba's cross scan (SS2D, Liu et al. 2024): an image as four sequences, by rows, by columns, and
both from the end.
"""

import torch
from torch import Tensor

from mambanorm.checks import check_tensor, is_ordinary

DIRECTIONS = ("rows", "columns", "rows from the end", "columns from the end")


def cross_scan(x: Tensor) -> Tensor:
    """Return an image (B, D, H, W) as four sequences (B, 4, D, H·W), in the order of DIRECTIONS.

    The result is a view of a contiguous (B, H·W, 4, D), the layout that a block reads. Raises
    ValueError for other shapes.
    """
    check_tensor("x", x, "(B, D, H, W)")
    if x.dim() != 4 or not x.numel():
        raise ValueError(f"cross_scan expects images (B, D, H, W), got shape {tuple(x.shape)}")
    return _transform(x.permute(0, 2, 3, 1), None).permute(0, 2, 3, 1)


def cross_merge(y: Tensor, height: int, width: int) -> Tensor:
    """Return the sum of four sequences (B, 4, D, H·W) as an image (B, D, H, W): each value is added
    at its pixel.

    This is the adjoint of `cross_scan`. Raises ValueError for other shapes.
    """
    check_tensor("y", y, "(B, 4, D, H·W)")
    if y.dim() != 4 or y.shape[1] != 4 or y.shape[3] != height * width or not y.numel():
        raise ValueError(
            f"cross_merge expects (B, 4, D, H·W) with H·W = {height * width}, got {tuple(y.shape)}"
        )
    return _transform(y.permute(0, 3, 1, 2), (height, width)).permute(0, 3, 1, 2)


def _transform(x: Tensor, size: tuple[int, int] | None) -> Tensor:
    """Return `_scan(x)` if size is None, else `_merge(x, size)`. torch.func cannot use an
    autograd.Function, so it gets plain operations.
    """
    if is_ordinary(x):
        return _Cross.apply(x, size)
    return _scan(x) if size is None else _merge(x, size)


class _Cross(torch.autograd.Function):
    """Scan or merge; the backward pass of each is the other, which fixes the order of the sums."""

    @staticmethod
    def forward(ctx, x: Tensor, size: tuple[int, int] | None) -> Tensor:
        ctx.size = x.shape[1:3] if size is None else None
        return _scan(x) if size is None else _merge(x, size)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return _Cross.apply(grad, ctx.size), None


def _scan(image: Tensor) -> Tensor:
    """Return an image (B, H, W, D) as four sequences (B, H·W, 4, D)."""
    rows, columns = image.flatten(1, 2), image.transpose(1, 2).flatten(1, 2)
    return torch.stack([rows, columns, rows.flip(1), columns.flip(1)], 2)


def _merge(four: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the sum of four sequences (B, H·W, 4, D) as an image (B, H, W, D)."""
    (H, W), (rows, columns, rows_back, columns_back) = size, four.unbind(2)
    total = rows.unflatten(1, (H, W)) + columns.unflatten(1, (W, H)).transpose(1, 2)
    total += rows_back.flip(1).unflatten(1, (H, W))
    return total + columns_back.flip(1).unflatten(1, (W, H)).transpose(1, 2)
