"""What all norms share: the checks on x, the scale γ, the shift β and ε."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mambanorm.norms.moments import check_lengths, standardize


class Norm(nn.Module):
    """Base of the norms: d channels, γ as `weight`, β as `bias` (None where a norm has none), as in torch.nn."""

    def __init__(self, d: int, *, eps: float, affine: bool, bias: bool = True):
        super().__init__()
        self.d, self.eps = d, eps
        self.weight = nn.Parameter(torch.ones(d)) if affine else None
        self.bias = nn.Parameter(torch.zeros(d)) if affine and bias else None

    def check(self, x: Tensor, lengths: Tensor | None) -> None:
        """Raises ValueError unless x is a non-empty (B, L, d) and lengths, if given, a (B,) of whole numbers."""
        if x.dim() != 3 or x.shape[-1] != self.d:
            raise ValueError(f"{type(self).__name__} expects (B, L, D) with D = {self.d}, got shape {tuple(x.shape)}")
        if 0 in x.shape:
            raise ValueError(f"there is nothing to normalize: x is empty, with shape {tuple(x.shape)}")
        check_lengths(lengths, x)

    def standardize(self, x: Tensor, mean: Tensor | None, var: Tensor) -> Tensor:
        """`moments.standardize` with this norm's ε, γ and β."""
        return standardize(x, mean, var, self.eps, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"{self.d}, eps={self.eps}, affine={self.weight is not None}"


def check_groups(d: int, groups: int) -> None:
    """Raises ValueError unless the groups divide the channels."""
    if not isinstance(groups, int) or groups < 1 or d % groups:
        divisors = [g for g in range(1, d + 1) if d % g == 0]
        raise ValueError(f"{d} channels do not divide into {groups} groups: groups may be one of {divisors}")


def is_norm(module: nn.Module) -> bool:
    """True for this kit's norms and for torch's own, whose parameters take no weight decay."""
    return isinstance(module, Norm) or type(module).__module__ in TORCH_NORM_MODULES


TORCH_NORM_MODULES = tuple(f"torch.nn.modules.{name}" for name in ("batchnorm", "instancenorm", "normalization"))
