"""Move padding, as given by a tokenizer's attention mask, to the end of the rows."""

import torch
from torch import Tensor

from mambanorm.checks import check_tensor, is_ordinary


def move_padding_to_end(x: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return (x, lengths, order): x (B, L, …) with its padding moved to the end of the rows.

    lengths (B,): number of valid positions of each row. order (B, L): the positions of the given x
    in their new order, for `restore_order`. attention_mask (B, L): 1 or True at valid positions, 0
    or False at padding, which may be before or after the valid positions. Raises ValueError for a
    mask with a wrong shape or device. On the CPU it also raises ValueError for values other than 0
    and 1, for a row without a valid position, and for padding between valid positions.
    """
    check_tensor("attention_mask", attention_mask, "(B, L)")
    check_tensor("x", x, "(B, L, …)")
    if attention_mask.shape != x.shape[:2] or attention_mask.device != x.device:
        raise ValueError(
            f"attention_mask must be (B, L) = {tuple(x.shape[:2])} on {x.device}, "
            f"got {tuple(attention_mask.shape)} on {attention_mask.device}"
        )
    valid = attention_mask.bool()
    if is_ordinary(x, attention_mask) and attention_mask.is_cpu:
        _check_mask(attention_mask, valid)
    order = torch.sort((~valid).to(torch.uint8), dim=1, stable=True).indices
    return x.gather(1, _expand(order, x)), valid.sum(1), order


def restore_order(y: Tensor, order: Tensor) -> Tensor:
    """Return y (B, L, …) with its positions back in the order before `move_padding_to_end`."""
    return y.gather(1, _expand(order.argsort(1), y))


def _expand(order: Tensor, x: Tensor) -> Tensor:
    return order.reshape(*order.shape, *[1] * (x.dim() - 2)).expand_as(x)


def _check_mask(mask: Tensor, valid: Tensor) -> None:
    if not torch.equal(mask, valid.to(mask.dtype)):
        raise ValueError(
            "attention_mask must hold only 0 (padding) and 1: masks that are added to attention "
            "scores are not accepted"
        )
    empty = (~valid.any(1)).nonzero()
    if len(empty):
        raise ValueError(f"row {int(empty[0])} of attention_mask has no valid position")
    starts = valid[:, 0].long() + (valid[:, 1:] & ~valid[:, :-1]).sum(1)
    split = (starts > 1).nonzero()
    if len(split):
        raise ValueError(
            f"row {int(split[0])} of attention_mask has padding between valid positions: "
            "padding must come before or after all of them"
        )
