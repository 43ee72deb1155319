"""Weight standardization (Qiao et al. 2019, arXiv:1903.10520):

    Ŵ_i = (W_i − μ_i) / √(σ²_i + ε)     μ_i, σ²_i over everything that feeds output i

Not the activations are normalized but the weights, before each use. The optimizer changes W, the layer works with Ŵ.
There is no γ: an activation norm is expected to follow.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from mambanorm.basics.checks import shown
from mambanorm.norms.base import check_values


class WeightStandardization(nn.Module):
    """W (outputs, …) → Ŵ of the same shape: mean 0 and variance 1 over all axes but the first."""

    def __init__(self, eps: float = 1e-5):
        super().__init__()
        check_values(eps=eps)
        self.eps = eps

    def forward(self, weight: Tensor) -> Tensor:
        axes = tuple(range(1, weight.dim()))
        var, mean = torch.var_mean(weight, axes, correction=0, keepdim=True)
        return (weight - mean) * (var + self.eps).rsqrt()


def standardize_weights(layer: nn.Module, *, eps: float = 1e-5) -> nn.Module:
    """The same layer (linear or convolution), which from now on uses standardized weights; W itself is
    `layer.parametrizations.weight.original`. ValueError for a layer without a weight of at least two axes, for one
    whose outputs have a single input each (Ŵ would be 0), and for a second time."""
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() < 2:
        raise ValueError(f"weight standardization needs a layer with a weight (outputs, inputs, …), got {shown(layer)}")
    if parametrize.is_parametrized(layer, "weight"):
        raise ValueError(f"the weights of this layer have a parametrization already: {shown(layer)}")
    if weight[0].numel() < 2:
        raise ValueError(f"each output of this layer has a single weight, whose variance is 0: {shown(layer)}")
    parametrize.register_parametrization(layer, "weight", WeightStandardization(eps))
    return layer
