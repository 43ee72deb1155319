"""An image in the order of four directions and back, fused on the CPU: each is one pass over memory, and the other's
backward pass. The readable twins are the last lines of `cross_scan` and `cross_merge` in operations/cross.py.
Glossary: operations/__init__.py; H and W of the image, L = H·W.
"""

import numpy as np
import torch

from mambanorm.kernels import backward_once
from mambanorm.kernels.runtime import LANES, ZERO, add_product, empty, entry, jit, load, memory, run, store
from mambanorm.kernels.threads import scan_threads

DIRECTIONS = 4


def cross_scan_cpu(image):
    """(B, H, W, E) → (B, L, 4, E), the image in the order of each direction; float32 on the CPU."""
    return _Cross.apply(image, None)


def cross_merge_cpu(four, size):
    """(B, L, 4, E) → (B, H, W, E), the sum of the directions, each put back; size (H, W)."""
    return _Cross.apply(four, size)


@jit(inline="always")
def _place(b, g, y, x, height, width, channels):
    """Offset of direction g's channels of pixel (y, x) in flat memory (B, L, 4, E)."""
    t = x * height + y if g % 2 else y * width + x
    t = height * width - 1 - t if g >= 2 else t
    return ((b * height * width + t) * DIRECTIONS + g) * channels


@entry
def _order(worker, workers, numbers, places):
    """numbers: B, H, W, E, merging. places: the image (B, L, E) and its four directions (B, L, 4, E).

    If merging, the image is the sum of the four; else it is copied to all four.
    """
    batch, height, width, channels, merging = numbers
    image, four = memory(places, 0), memory(places, 1)
    blocks = (channels + LANES - 1) // LANES
    row, part, one = np.zeros((1, LANES), np.float32), np.zeros((1, LANES), np.float32), np.ones(LANES, np.float32)
    for item in range(batch * blocks * worker // workers, batch * blocks * (worker + 1) // workers):
        b, d0 = item // blocks, item % blocks * LANES
        lanes = min(LANES, channels - d0)
        for y in range(height):
            for x in range(width):
                start = ((b * height + y) * width + x) * channels + d0
                if merging:
                    row[0, :] = ZERO
                    for g in range(DIRECTIONS):
                        load(part, 0, 0, four, _place(b, g, y, x, height, width, channels) + d0, lanes)
                        add_product(row, 0, part, 0, one, 0)
                    store(row, 0, 0, image, start, lanes)
                else:
                    load(row, 0, 0, image, start, lanes)
                    for g in range(DIRECTIONS):
                        store(row, 0, 0, four, _place(b, g, y, x, height, width, channels) + d0, lanes)


def _run(x, size):
    """The four directions of an image, or with its size (H, W) the sum of the four."""
    x = x.contiguous()
    image = x if size is None else empty(len(x), *size, x.shape[-1])
    batch, height, width, channels = image.shape
    four = x if size is not None else empty(batch, height * width, DIRECTIONS, channels)
    workers = min(scan_threads(), batch * -(-channels // LANES))
    run(_order, workers, [*image.shape, size is not None], [image, four])
    return four if size is None else image


class _Cross(torch.autograd.Function):
    """`_run`; each way is the other's backward pass."""

    @staticmethod
    def forward(ctx, x, size):
        ctx.back = x.shape[1:3] if size is None else None
        return _run(x, size)

    @staticmethod
    @backward_once
    def backward(ctx, grad):
        return _run(grad, ctx.back), None
