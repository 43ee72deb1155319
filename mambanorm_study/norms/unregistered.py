"""Adaptive layer norm and weight standardization, which are not in the registry.

Registered norms are called as `norm(x)`. AdaLN needs a second input, and weight standardization
normalizes the weights of a layer instead of its activations.

AdaLN: scale and shift come from a condition c (a class, a time step), not from parameters γ and β.

    y = (1 + γ(c)) ⊙ LN(x) + β(c)                        adaLN
    x + α(c) ⊙ branch(y),   γ = β = α = 0 at the start   adaLN-zero

γ, β and α are one linear map of SiLU(c). Adaptive scales and shifts come from conditional networks
for images (Perez et al. 2018, FiLM); both forms above are those of diffusion transformers (Peebles
& Xie 2023, DiT, §3.2).

Weight standardization (Qiao et al. 2019, arXiv:1903.10520), before each use of W, which the
optimizer changes:

    Ŵ_i = (W_i − μ_i) / √(σ²_i + ε)     μ_i, σ²_i over all inputs of output i

There is no γ: an activation norm is expected to follow.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from mambanorm.checks import check_flag, check_real, check_size
from mambanorm.errors import shown
from mambanorm.norms.base import check_values
from mambanorm.norms.classic import LayerNorm


class AdaLN(nn.Module):
    """Layer norm of x (B, L, d) with scale and shift from a condition (B, d_condition).

    `forward(x, condition)` → (B, L, d). `residual(x, branch, condition)` → x + α ⊙
    branch(forward(x, condition)). With `zero=False` α is 1. With `zero=True` α also comes from the
    condition, and γ, β and α start at zero: at first y is plain LN and the residual block is the
    identity. Raises ValueError for other sizes or shapes.
    """

    def __init__(self, d: int, d_condition: int, *, zero: bool = False, eps: float = 1e-5):
        super().__init__()
        check_size("d_condition", d_condition)
        check_flag("zero", zero)
        self.d, self.d_condition, self.zero = d, d_condition, zero
        self.norm = LayerNorm(d, eps=eps, affine=False)
        self.map = nn.Linear(d_condition, (3 if zero else 2) * d)
        if zero:
            nn.init.zeros_(self.map.weight)
            nn.init.zeros_(self.map.bias)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        gamma, beta, _ = self.modulation(x, condition)
        return (1 + gamma) * self.norm(x) + beta

    def residual(self, x: Tensor, branch: Callable[[Tensor], Tensor], condition: Tensor) -> Tensor:
        """Return x + α ⊙ branch(y), (B, L, d), as a block uses the norm."""
        gamma, beta, alpha = self.modulation(x, condition)
        return x + alpha * branch((1 + gamma) * self.norm(x) + beta)

    def modulation(self, x: Tensor, condition: Tensor) -> tuple[Tensor, Tensor, Tensor | float]:
        """Return γ, β and α of each row, (B, 1, d); without `zero` α is the number 1."""
        shape = (len(x), self.d_condition)
        check_real("condition", condition, f"(B, {self.d_condition})")
        if condition.shape != shape:
            raise ValueError(
                f"AdaLN expects a condition (B, d_condition) = {shape}, "
                f"got {tuple(condition.shape)}"
            )
        parts = self.map(F.silu(condition))[:, None].split(self.d, dim=-1)  # (B, 1, d) each
        return parts if self.zero else (*parts, 1.0)


class WeightStandardization(nn.Module):
    """W (outputs, …) → Ŵ of the same shape, mean 0 and variance 1 over all axes but the first."""

    def __init__(self, eps: float = 1e-5):
        super().__init__()
        check_values(eps=eps)
        self.eps = eps

    def forward(self, weight: Tensor) -> Tensor:
        axes = tuple(range(1, weight.dim()))
        var, mean = torch.var_mean(weight, axes, correction=0, keepdim=True)
        return (weight - mean) * (var + self.eps).rsqrt()


def standardize_weights(layer: nn.Module, *, eps: float = 1e-5) -> nn.Module:
    """Return the same layer (linear or convolution), which now uses standardized weights.

    W itself is `layer.parametrizations.weight.original`. Raises ValueError for a layer without a
    weight of at least two axes, with a single input for each output (Ŵ would be 0), or whose
    weights are parametrized already.
    """
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() < 2:
        raise ValueError(
            "weight standardization needs a layer with a weight (outputs, inputs, …), "
            f"got {shown(layer)}"
        )
    if parametrize.is_parametrized(layer, "weight"):
        raise ValueError(
            f"the weights of this layer have a parametrization already: {shown(layer)}"
        )
    if weight[0].numel() < 2:
        raise ValueError(
            f"each output of this layer has a single weight, whose variance is 0: {shown(layer)}"
        )
    parametrize.register_parametrization(layer, "weight", WeightStandardization(eps))
    return layer
