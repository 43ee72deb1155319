"""An image as four sequences: by rows, by columns, and both from the end (VMamba's SS2D, Liu et al.
2024)."""

import torch
from torch import Tensor

from mambanorm.checks import check_size, check_tensor, is_ordinary

DIRECTIONS = ("rows", "columns", "rows from the end", "columns from the end")


def cross_scan(x: Tensor) -> Tensor:
    """An image (B, D, H, W) as four sequences (B, 4, D, H·W), in the order of DIRECTIONS.
    ValueError for other shapes.

    The result is a view of a contiguous (B, H·W, 4, D), as a block reads it.
    """
    check_tensor("x", x, "(B, D, H, W)")
    if x.dim() != 4 or not x.numel():
        raise ValueError(f"cross_scan expects images (B, D, H, W), got shape {tuple(x.shape)}")
    return _cross(x.permute(0, 2, 3, 1), None).permute(0, 2, 3, 1)


def cross_merge(y: Tensor, height: int, width: int) -> Tensor:
    """The adjoint of `cross_scan`, (B, 4, D, H·W) → (B, D, H, W): every value back in its place,
    the four summed."""
    check_tensor("y", y, "(B, 4, D, H·W)")
    if is_ordinary(y):  # jit.trace has tensors for sizes
        check_size("height", height), check_size("width", width)
    if y.dim() != 4 or y.shape[1] != 4 or y.shape[3] != height * width or not y.numel():
        raise ValueError(
            f"cross_merge expects (B, 4, D, H·W) with H·W = {height * width}, got {tuple(y.shape)}"
        )
    return _cross(y.permute(0, 3, 1, 2), (height, width)).permute(0, 3, 1, 2)


def _cross(x: Tensor, size: tuple[int, int] | None) -> Tensor:
    """Return `_scan(x)`, or `_merge(x, size)`. torch.func takes the plain operations, not an
    autograd.Function."""
    if is_ordinary(x):
        return _Cross.apply(x, size)
    return _scan(x) if size is None else _merge(x, size)


class _Cross(torch.autograd.Function):
    """`_scan`, or `_merge` to a size (H, W): each is the other's backward pass, and adds the four
    in the same order."""

    @staticmethod
    def forward(ctx, x: Tensor, size: tuple[int, int] | None) -> Tensor:
        ctx.size = x.shape[1:3] if size is None else None
        return _scan(x) if size is None else _merge(x, size)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return _Cross.apply(grad, ctx.size), None


def _scan(image: Tensor) -> Tensor:
    """(B, H, W, D) → (B, H·W, 4, D)."""
    rows, columns = image.flatten(1, 2), image.transpose(1, 2).flatten(1, 2)
    return torch.stack([rows, columns, rows.flip(1), columns.flip(1)], 2)


def _merge(four: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, H·W, 4, D) → (B, H, W, D)."""
    (H, W), (rows, columns, back, up) = size, four.unbind(2)
    total = rows.unflatten(1, (H, W)) + columns.unflatten(1, (W, H)).transpose(1, 2)
    total += back.flip(1).unflatten(1, (H, W))
    return total + up.flip(1).unflatten(1, (W, H)).transpose(1, 2)
