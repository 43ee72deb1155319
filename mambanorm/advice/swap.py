"""Check 9 of the guide: the same model with another norm, BatchNorm → GroupNorm and LayerNorm → RMSNorm."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

MOST_GROUPS = 32


def swap_norms(model: nn.Module) -> str:
    """Puts a GroupNorm in the place of each of torch's BatchNorms and an RMSNorm in that of each LayerNorm, new and
    untrained; returns what was swapped, in words, "" if there is none."""
    swapped = {}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if (other := _other(child)) is not None:
                setattr(parent, name, other.train(child.training))
                swapped[f"{type(other).__name__} in place of {type(child).__name__}"] = None
    return " and ".join(swapped)


def _other(norm: nn.Module) -> nn.Module | None:
    like = next(iter(norm.parameters(recurse=False)), torch.empty(0))
    where = dict(device=like.device, dtype=like.dtype)
    if isinstance(norm, _BatchNorm):
        return nn.GroupNorm(most_groups(norm.num_features), norm.num_features, norm.eps, norm.affine, **where)
    if isinstance(norm, nn.LayerNorm):
        return nn.RMSNorm(norm.normalized_shape, norm.eps, norm.elementwise_affine, **where)
    return None


def most_groups(channels: int) -> int:
    """The most groups, up to 32, that divide the channels and leave four in each; 1 if none do."""
    return max(n for n in range(1, max(min(channels // 4, MOST_GROUPS), 1) + 1) if channels % n == 0)
