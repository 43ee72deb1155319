"""adaLN: layer norm whose scale and shift also depend on a condition c.

    y = (γ + s(c)) ⊗ x̂ + β + t(c),    x̂ = (x − μ)/√(σ² + ε)

s and t are linear in c and start at zero, so a model with adaLN starts as the same model with LN.
With γ = 1 and β = 0 at the start this is the (1 + s(c)) x̂ + t(c) of the diffusion transformers.

The condition is the model's embedded input, the values before the norm of the stem:

- In a classifier, c is the mean over a row's valid positions.
- In a `LanguageModel`, c is the embedding of the position itself, so that the model is causal and
  generates step by step.

A model hands the condition to its norms by a hook (`connect`), so a norm is still called as
`norm(x, lengths)`. A norm outside such a model, like one of `create_norm` or of the clinic's
`insert_norm`, has no condition: it is LN.

Glossary: B rows, L positions, C = d_model channels of the condition, d channels of the norm.
Sources: S3 in docs/sources.md, "Adaptive"; Peebles & Xie 2023, §3.2 (the linear maps, their start
at zero). Deviation: no factor on the branch (their α), which would belong to the block.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mambanorm.models.classifier import mean_pool
from mambanorm.models.language import LanguageModel
from mambanorm.models.parts import AFTER_INIT, Classifier
from mambanorm.norms.classic import LayerNorm
from mambanorm.norms.masked_moments import blank_padding
from mambanorm.norms.registry import register_norm


class Condition:
    """The condition of one model's adaLN norms; a hook replaces `value` in every forward pass.

    value: (B, 1, C) in a classifier, (B, L, C) in a language model; None before the first pass. A
    copy of the model does not copy the value.
    """

    def __init__(self) -> None:
        self.value: Tensor | None = None

    def __getstate__(self) -> dict[str, None]:
        return {"value": None}  # the value may have a graph of gradients, which cannot be copied

    def pool_input(self, stem_norm: nn.Module, args: tuple[Any, ...]) -> None:
        """Set the mean over the valid positions of the stem norm's input; a forward pre-hook."""
        x, lengths = (*args, None)[:2]
        self.value = mean_pool(x, lengths)[:, None]

    def take_embedding(self, embedding: nn.Module, args: tuple[Any, ...], x: Tensor) -> None:
        """Set the embeddings of the positions; a forward hook. In `step` they are (B, C)."""
        self.value = x if x.dim() == 3 else x[:, None]

    def of(self, x: Tensor) -> Tensor:
        """Return the condition for x (k·B, L, d): (k·B, 1 or L, C).

        VSSBlock norms k = 4 directions of B images at once. A language model's `prefill` norms the
        last position alone. Raises ValueError for an x that is not of the model's last input.
        """
        c = self.value
        if c is None or len(x) % len(c) or 1 < c.shape[1] < x.shape[1]:
            seen = "none yet" if c is None else f"one of shape {tuple(c.shape)}"
            raise ValueError(
                f"adaLN gets its condition from its model's input ({seen}), got x of shape "
                f"{tuple(x.shape)}: call the model, not a block of it"
            )
        c = c[:, -x.shape[1] :]
        return c if len(x) == len(c) else c.repeat(len(x) // len(c), 1, 1)


@register_norm(
    "adaLN",
    equation=r"y = (\gamma_c + s_c) \frac{x - \mu_{nl}}{\sqrt{\sigma_{nl}^2 + \epsilon}}"
    r" + \beta_c + t_c,\quad (s, t) = W \mathbf{c}",
    source="Peebles & Xie 2023, §3.2; S3, Adaptive",
    axes=("D",),
    causal=True,
    learnable="γ, β, W",
    use="where a class, a time step or the whole row should steer a layer",
)
class AdaptiveLayerNorm(LayerNorm):
    """Layer norm with scale and shift from a condition, x (B, L, d) → (B, L, d).

    `condition_weight` W (2·d, C) holds the two linear maps, s above t; γ and β are their constant
    parts. W is None, and the norm is LN, until `connect` gives the norm a condition. `affine=False`
    leaves out γ and β (γ = 1 and β = 0), not the maps.
    """

    condition: Condition

    def __init__(self, d: int, *, eps: float = 1e-5, affine: bool = True):
        super().__init__(d, eps=eps, affine=affine)
        self.condition_weight: nn.Parameter | None = None

    def normalize(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        if self.condition_weight is None:
            return super().normalize(x, lengths)
        modulation = F.linear(self.condition.of(x), self.condition_weight)
        scale, shift = modulation.chunk(2, dim=-1)  # (B, 1 or L, d) each
        y = F.layer_norm(blank_padding(x, lengths), (self.d,), eps=self.eps)
        return self.apply_affine(y) + scale * y + shift


def connect(model: nn.Module) -> None:
    """Give the adaLN norms of a new model its condition. Does nothing for a model without adaLN.

    Every classifier and LanguageModel calls this function at the end of its constructor. The added
    weights are zero, so no random number is drawn.
    """
    norms = [module for module in model.modules() if isinstance(module, AdaptiveLayerNorm)]
    if not norms:
        return
    condition = Condition()
    if isinstance(model, LanguageModel):
        model.backbone["embedding"].register_forward_hook(condition.take_embedding)
    elif isinstance(model, Classifier):
        model.stem_norm.register_forward_pre_hook(condition.pool_input)
    width: int = model.arguments["d_model"]
    for norm in norms:
        norm.condition = condition
        norm.condition_weight = nn.Parameter(torch.zeros(2 * norm.d, width))


AFTER_INIT.append(connect)
