"""An attention mask, as tokenizers make it, as what these models take: rows whose padding stands
behind them."""

import torch
from torch import Tensor

from mambanorm.checks import check_tensor, is_ordinary


def to_the_front(x: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return x (B, L, …) with each row's valid positions first, the lengths (B,), and the
    positions' order (B, L).

    attention_mask (B, L): 1 or True at valid positions, which follow each other; padding may stand
    on either side of them. ValueError for a mask of another shape, with other numbers, with a row
    of padding alone, or with a gap.
    """
    check_tensor("attention_mask", attention_mask, "(B, L)")
    check_tensor("x", x, "(B, L, …)")
    if attention_mask.shape != x.shape[:2] or attention_mask.device != x.device:
        given, needed = (
            f"{tuple(shape)} on {t.device}"
            for shape, t in ((attention_mask.shape, attention_mask), (x.shape[:2], x))
        )
        raise ValueError(f"attention_mask must be (B, L) = {needed}, got {given}")
    valid = attention_mask.bool()
    if is_ordinary(x, attention_mask) and attention_mask.is_cpu:
        _check_numbers(attention_mask, valid)
    order = torch.sort((~valid).to(torch.uint8), dim=1, stable=True).indices
    index = order.reshape(*order.shape, *[1] * (x.dim() - 2)).expand_as(x)
    return x.gather(1, index), valid.sum(1), order


def back_to_their_places(y: Tensor, order: Tensor) -> Tensor:
    """Return y (B, L, …), computed from the first result of `to_the_front`, in the order of its
    argument."""
    index = order.argsort(1).reshape(*order.shape, *[1] * (y.dim() - 2)).expand_as(y)
    return y.gather(1, index)


def _check_numbers(mask: Tensor, valid: Tensor) -> None:
    if not torch.equal(mask, valid.to(mask.dtype)):
        raise ValueError(
            "attention_mask must hold 0 (padding) and 1 alone: additive masks are for attention"
        )
    if not bool(valid.any(1).all()):
        raise ValueError(
            f"row {int(valid.any(1).logical_not().nonzero()[0])} of attention_mask is padding alone"
        )
    starts = valid[:, :1].long().sum(1) + (valid[:, 1:] & ~valid[:, :-1]).sum(1)
    if bool((starts > 1).any()):
        row = int((starts > 1).nonzero()[0])
        raise ValueError(
            f"row {row} of attention_mask has padding between valid positions: pad on one side of a row"
        )
