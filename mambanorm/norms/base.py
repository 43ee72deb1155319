"""What all norms share: the checks on x, the scale γ, the shift β and ε; and the two families of
norms.

- `TokenNorm`: the channels of one position (LN, RMSN, GN-token); causal; padding cannot matter.
- `SequenceNorm`: along the sequence (BN, IN, GN, LN-DL, RMSN-DL, NormVary); padding is left out.
"""

import math
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from mambanorm.checks import (
    check_beside,
    check_flag,
    check_lengths,
    check_real,
    check_shapes,
    check_size,
    shown,
)
from mambanorm.kernels.backends import fused_on_cpu
from mambanorm.norms.masked_moments import blank_padding, standardize


class Norm(nn.Module):
    """Base of the norms: d channels, γ as `weight`, β as `bias` (None where a norm has none), as in
    torch.nn.

    A subclass computes its norm in `normalize`. Without `eps` it has no ε. ValueError for a value
    that none could use.
    """

    def __init__(self, d: int, *, eps: float | None = None, affine: bool, bias: bool = True):
        check_values(d=d, affine=affine, **{} if eps is None else {"eps": eps})
        super().__init__()
        self.d, self.eps = d, eps
        self.weight = nn.Parameter(torch.ones(d)) if affine else None
        self.bias = nn.Parameter(torch.zeros(d)) if affine and bias else None

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return N(x), (B, L, d) → (B, L, d), in x's dtype; under autocast a norm may return
        float32, as torch's does.

        ValueError for x or lengths that do not fit, see `check`.
        """
        self.check(x, lengths)
        y = self.normalize(x, lengths)  # of 16-bit numbers the statistics are float32
        return (
            y if y.dtype == x.dtype or torch.is_autocast_enabled(x.device.type) else y.to(x.dtype)
        )

    def normalize(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        raise NotImplementedError

    def check(self, x: Tensor, lengths: Tensor | None) -> None:
        """Raises ValueError unless x is a non-empty (B, L, d) of the norm's dtype and device. If
        given, lengths must be a (B,) of whole numbers. Any strides will do."""
        check_real("x", x, f"(B, L, {self.d})")
        if x.dim() != 3 or x.shape[-1] != self.d:
            raise ValueError(
                f"{type(self).__name__} expects (B, L, D) with D = {self.d}, got shape {tuple(x.shape)}"
            )
        if 0 in x.shape:
            raise ValueError(
                f"there is nothing to normalize: x is empty, with shape {tuple(x.shape)}"
            )
        check_lengths(lengths, x)
        gamma, beta = self.scale_and_shift()
        check_shapes(type(self).__name__, ("γ", "β"), (gamma, beta), ((self.d,), (self.d,)))
        one = gamma
        if gamma is None and (self._parameters or self._buffers or self._modules):
            one = next(chain(self.parameters(), self.buffers()), None)
        if one is not None:  # one stands for all: they move together
            check_beside("x", x, one, type(self).__name__)

    def scale_and_shift(self) -> tuple[Tensor | None, Tensor | None]:
        """γ and β."""
        return self.weight, self.bias

    def scaled(self, y: Tensor) -> Tensor:
        """γ·y + β, those of them that the norm has."""
        y = y if self.weight is None else y * self.weight
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        own = {
            name: value
            for name, value in vars(self).items()
            if isinstance(value, int | float | str)
        }
        shown = [
            f"{name}={value!r}" for name, value in own.items() if name not in ("d", "training")
        ]
        return ", ".join([str(self.d), *shown])


class TokenNorm(Norm):
    """A norm of each token on its own: μ and σ² over the channels of its `groups`, μ = 0 where it
    is not `centred`."""

    centred, groups = True, 1

    def normalize(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        if fused_on_cpu(x, self.weight, self.bias):
            from mambanorm.kernels.norm import token_norm  # here: importing Numba takes a moment

            return token_norm(x, self.weight, self.bias, self.eps, self.centred, self.groups)
        return self.readable(x)

    def readable(self, x: Tensor) -> Tensor:
        """The readable twin, in plain torch."""
        raise NotImplementedError


class SequenceNorm(Norm):
    """A norm whose statistics are pooled from the moments along L; a subclass pools them in
    `pooled`."""

    def normalize(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        same, mean, var = self.pooled(blank_padding(x, lengths), lengths)
        return standardize(same, mean, var, self.eps, *self.scale_and_shift())

    def pooled(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
        """x as the moments return it, μ (None = it is not subtracted) and σ², both broadcastable to
        (B, 1, D)."""
        raise NotImplementedError


def check_values(**options: Any) -> None:
    """Raises ValueError for a given d, eps, momentum, number of groups or flag that no norm could
    use."""
    for name, value in options.items():
        if name in ("d", "groups"):
            check_size(name, value)
        elif name in ("affine", "learn_weights", "centre", "scale"):
            check_flag(name, value)
        elif isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name} must be a number, got {shown(value)}")
        elif math.isinf(value):
            raise ValueError(f"{name} must be finite, got {value}")
    if not options.get("eps", 1) > 0:
        raise ValueError(f"eps must be above 0, got {options['eps']!r}")
    if not 0 <= options.get("momentum", 0) <= 1:
        raise ValueError(
            f"momentum is the weight of the new statistic, 0..1, got {options['momentum']!r}"
        )
    if unknown := [name for name, value in options.items() if value != value]:
        raise ValueError(f"{unknown[0]} must be a number, got nan")


def check_groups(d: int, groups: int) -> None:
    """Raises ValueError unless the groups divide the channels."""
    check_values(d=d, groups=groups)
    if d % groups:
        divisors = [g for g in range(1, d + 1) if d % g == 0]
        raise ValueError(
            f"{d} channels do not divide into {groups} groups: groups may be one of {divisors}"
        )


def is_norm(module: nn.Module) -> bool:
    """True for this kit's norms and for torch's own, whose parameters take no weight decay."""
    return isinstance(module, Norm) or type(module).__module__ in TORCH_NORM_MODULES


TORCH_NORM_MODULES = tuple(
    f"torch.nn.modules.{name}" for name in ("batchnorm", "instancenorm", "normalization")
)
