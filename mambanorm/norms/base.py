"""The base classes of the norms. They check the input and hold the scale γ, the shift β and ε.

- `TokenNorm`: statistics over the channels of one position (LN, RMSN, GN-token). Such a norm is
  causal, and padding changes no other position.
- `SequenceNorm`: statistics along the sequence (BN, IN, GN, LN-DL, RMSN-DL, NormVary). Padding is
  left out of the statistics.
"""

import math
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from mambanorm.checks import (
    check_flag,
    check_lengths,
    check_like_weight,
    check_real,
    check_shapes,
    check_size,
)
from mambanorm.errors import shown
from mambanorm.kernels.backends import fused_on_cpu
from mambanorm.norms.masked_moments import blank_padding, standardize

# Three values: x; μ, or None if no mean is subtracted; σ²
Statistics = tuple[Tensor, Tensor | None, Tensor]


class Norm(nn.Module):
    """Base of all norms of d channels; `weight` is γ or None, `bias` is β or None.

    A subclass computes its norm in `normalize`. `eps=None` means a norm without ε. Raises
    ValueError for an option's value that no norm can use.
    """

    def __init__(self, d: int, *, eps: float | None = None, affine: bool, bias: bool = True):
        check_values(d=d, affine=affine)
        if eps is not None:
            check_values(eps=eps)
        super().__init__()
        self.d, self.eps = d, eps
        self.weight = nn.Parameter(torch.ones(d)) if affine else None
        self.bias = nn.Parameter(torch.zeros(d)) if affine and bias else None

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return N(x), (B, L, d) → (B, L, d), in x's dtype.

        lengths (B,): number of valid positions of each row; padding is left out of all statistics.
        Under autocast a norm may return float32, as torch's norms do. Raises ValueError for an
        x or lengths that `check` refuses.
        """
        self.check(x, lengths)
        y = self.normalize(x, lengths)  # y may be float32, as the statistics of a 16-bit x are
        return (
            y if y.dtype == x.dtype or torch.is_autocast_enabled(x.device.type) else y.to(x.dtype)
        )

    def normalize(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """Return N(x). `forward` has already checked the arguments."""
        raise NotImplementedError

    def check(self, x: Tensor, lengths: Tensor | None) -> None:
        """Raise ValueError unless x is a non-empty (B, L, d) of the norm's dtype and device.

        lengths must be None or B whole numbers from 1 to L. Any strides are allowed.
        """
        check_real("x", x, f"(B, L, {self.d})")
        if x.dim() != 3 or x.shape[-1] != self.d:
            raise ValueError(
                f"{type(self).__name__} expects (B, L, D) with D = {self.d}, "
                f"got shape {tuple(x.shape)}"
            )
        if 0 in x.shape:
            raise ValueError(
                f"there is nothing to normalize: x is empty, with shape {tuple(x.shape)}"
            )
        check_lengths(lengths, x)
        gamma, beta = self.scale_and_shift()
        check_shapes(type(self).__name__, ("γ", "β"), (gamma, beta), ((self.d,), (self.d,)))
        # one tensor is enough, because all parameters and buffers share a device and dtype
        weight = gamma
        if weight is None and (self._parameters or self._buffers or self._modules):
            weight = next(chain(self.parameters(), self.buffers()), None)
        if weight is not None:
            check_like_weight("x", x, weight, type(self).__name__)

    def scale_and_shift(self) -> tuple[Tensor | None, Tensor | None]:
        """Return γ and β, each None if the norm has none."""
        return self.weight, self.bias

    def apply_affine(self, y: Tensor) -> Tensor:
        """Return γ·y + β; γ or β is left out if the norm has none."""
        if self.weight is not None:
            y = y * self.weight
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        simple = {key: v for key, v in vars(self).items() if isinstance(v, int | float | str)}
        return ", ".join(
            [str(self.d), *(f"{k}={v!r}" for k, v in simple.items() if k not in ("d", "training"))]
        )


class TokenNorm(Norm):
    """Base of norms of single tokens: μ and σ² over the channels of each of `groups` groups.

    `centred = False` means that no mean is subtracted (μ = 0). `fused = True` means that the fused
    loop of kernels/norm.py may compute the norm: the norm uses μ, σ², γ, β and nothing else.
    """

    eps: float
    centred = True
    fused = False
    groups = 1

    def normalize(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """Return N(x), computed with the fused loop if that loop can take x."""
        if self.fused and fused_on_cpu(x, self.weight, self.bias):
            from mambanorm.kernels.norm import token_norm  # importing Numba takes a moment

            return token_norm(x, self.weight, self.bias, self.eps, self.centred, self.groups)
        return self.reference(x)

    def reference(self, x: Tensor) -> Tensor:
        """Return N(x) in plain torch."""
        raise NotImplementedError


class SequenceNorm(Norm):
    """Base of norms whose statistics are pooled from the moments of each channel along L.

    A subclass defines `pool_statistics`.
    """

    eps: float

    def normalize(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """Return N(x) = γ·(x − μ)/√(σ² + ε) + β."""
        x, mean, var = self.pool_statistics(blank_padding(x, lengths), lengths)
        return standardize(x, mean, var, self.eps, *self.scale_and_shift())

    def pool_statistics(self, x: Tensor, lengths: Tensor | None) -> Statistics:
        """Return (x, μ, σ²): the x that `normalize` standardizes, its mean and its variance.

        A norm that computes Moments of x (`channel_moments`) returns their field `x`. Mean and
        variance broadcast to (B, 1, D); the mean is None if the norm subtracts none. The argument x
        has zeros at the padding.
        """
        raise NotImplementedError


def check_values(**options: Any) -> None:
    """Raise ValueError for a value of d, eps, momentum, groups or a flag that no norm can use."""
    for name, value in options.items():
        if name in ("d", "groups"):
            check_size(name, value)
        elif name in ("affine", "learn_weights", "centre", "scale"):
            check_flag(name, value)
        elif isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name} must be a number, got {shown(value)}")
        elif math.isnan(value) and name not in ("eps", "momentum"):
            raise ValueError(f"{name} must be a number, got nan")
        elif math.isinf(value):
            raise ValueError(f"{name} must be finite, got {value}")
    if not options.get("eps", 0) >= 0:
        raise ValueError(f"eps must be 0 or above, got {options['eps']!r}")
    if not 0 <= options.get("momentum", 0) <= 1:
        raise ValueError(
            "momentum is the weight of the new statistic and must lie in 0..1, "
            f"got {options['momentum']!r}"
        )


def check_groups(d: int, groups: int) -> None:
    """Raise ValueError unless d is a multiple of the number of groups."""
    check_values(d=d, groups=groups)
    if d % groups:
        divisors = [g for g in range(1, d + 1) if d % g == 0]
        raise ValueError(
            f"{d} channels do not divide into {groups} groups: groups may be one of {divisors}"
        )
