"""FLOPs of a forward pass, counted from the sizes of a model's layers and norms.

What is counted, per position unless stated otherwise:

- a weight of a linear layer or a convolution: 2 (multiply and add); of a classifier's head: 2 per
  row;
- the scan: 7·E·N + 3·E. For each state these are Δ·A, its exp, (Δu)·B, and the products and sums in
  h ← Āh + B̄u and in C·h; for each channel they are Δ·u, and the product and the sum in y + D·u.
  Blocks of Mamba-2 are counted with the same formula;
- attention: 4·L²·D per row;
- a norm: `flops_per_value` for each value that it normalizes. +, −, ·, /, |x|, a power, tanh and
  erf are one operation each. In training, the norms with a mean take Σx, x − μ, (x − μ)², its sum
  and ·1/σ: 5, and one each for γ and β. RMSN takes x², its sum and ·1/σ: 3, and one for γ. DyT
  takes α·x and tanh: 2, and γ and β; as x ⊙ α it takes 1. NormVary and the other mixtures take
  Σx, x − μ, (x − μ)² and its sum once for all members, then − μ and ·1/σ with the mixed
  statistics: 6, and γ and β. NormSelector takes what DyT and LN take, and 3 for w₀·a + w₁·b; the
  products of its MLP are counted as those of linear layers. What is computed once per statistic
  (a division by n, + ε, a square root, pooling) is not counted.

Not counted: embeddings, SiLU, GELU, softmax, softplus, the gate, squeeze and excitation, the
residual sums, and norms that do not derive from `Norm` (mambanorm/norms/base.py).

The FLOPs are computed from sizes, because torch's FLOP counter takes five seconds to start, and
because it counts neither scans nor norms.

Glossary: L positions of a row, D channels, E inner width, N state size, as in `mambanorm/block.py`.
"""

import re

from torch import nn

from mambanorm.inside import blocks_of
from mambanorm.norms import classic
from mambanorm.norms.base import Norm
from mambanorm.norms.normvary import StatisticsMixture
from mambanorm_study.models import transformer, vision
from mambanorm_study.norms import autonorm, beyond_the_paper

# Norm → operations per value, without γ and β. A norm that is not listed counts as its base class.
OPERATIONS: dict[type[nn.Module], int] = {
    Norm: 5,  # all norms that subtract a mean and divide by a standard deviation
    classic.NoNorm: 0,
    classic.RMSNorm: 3,
    classic.RMSNormDL: 3,
    StatisticsMixture: 6,
    beyond_the_paper.NormVaryToken: 6,
    beyond_the_paper.LpNorm: 4,  # |x|, its power, the sum, ·1/norm
    beyond_the_paper.Scale: 0,
    beyond_the_paper.Constant: 0,
    autonorm.DyT: 2,
    autonorm.Derf: 3,  # α·x, + s, erf
}
BLEND = 3  # w₀·a + w₁·b

# Sites of a block whose norm sees the rows of all four directions of a VSSBlock.
SITES_OF_DIRECTIONS = ("B", "C", "delta", "delta_after")


def row_flops(model: nn.Module, length: int) -> int:
    """Return the FLOPs of a forward pass on one row of `length` positions, norms included.

    The text at the top of this file says what is counted.
    """
    uses = {"stem": length, "lm_head": length, "head": 1}
    flops = norm_flops(model, length) + sum(
        2 * uses[name] * _product_weights(layer)
        for name, layer in model.named_children()
        if name in uses and not isinstance(layer, nn.Embedding)
    )
    for block, merging, positions in _blocks_and_positions(model, length):
        flops += 2 * positions * _product_weights(block)
        if isinstance(block, transformer.TransformerBlock):
            flops += 4 * positions**2 * block.d_model
        else:
            flops += positions * _directions(block) * block.d_inner * (7 * block.d_state + 3)
        if merging is not None:
            flops += 2 * (positions // 4) * _product_weights(merging)
    return flops


def norm_flops(model: nn.Module, length: int) -> int:
    """Return the part of `row_flops` that the norms take, without the selector's MLP."""
    flops, last_positions = 0, length
    for block, merging, positions in _blocks_and_positions(model, length):
        last_positions = positions
        for name, norm in _norms_of(block):
            at_directions = name.rpartition(".")[2] in SITES_OF_DIRECTIONS
            times = _directions(block) if at_directions else 1
            flops += positions * times * norm.d * flops_per_value(norm)
        if merging is not None:
            last_positions = positions // 4
            flops += last_positions * sum(n.d * flops_per_value(n) for _, n in _norms_of(merging))
    blocks = tuple(f"{name}." for name, _ in blocks_of(model))
    for name, norm in _norms_of(model):
        if not name.startswith((*blocks, "merging.")):
            positions = length if name == "stem_norm" else last_positions
            flops += positions * norm.d * flops_per_value(norm)
    return flops


def flops_per_value(norm: Norm) -> int:
    """Return how many operations a norm takes for each value that it normalizes, γ and β included.

    The selector's MLP is left out: `row_flops` counts it as linear layers.
    """
    if isinstance(norm, autonorm.NormSelector):
        ln = flops_per_value(norm.ln)
        return ln if norm.mode == "disable" else ln + flops_per_value(norm.dyt) + BLEND
    if isinstance(norm, autonorm.DyT) and norm.linear:
        return 1
    operations = next(OPERATIONS[base] for base in type(norm).__mro__ if base in OPERATIONS)
    return operations + sum(parameter is not None for parameter in norm.scale_and_shift())


def _norms_of(module: nn.Module) -> list[tuple[str, Norm]]:
    """Return (name, norm) for the norms inside a module that are not part of another norm."""
    found: list[tuple[str, Norm]] = []
    for name, child in module.named_children():
        if isinstance(child, Norm):
            found.append((name, child))
        else:
            found += [(f"{name}.{inner}", norm) for inner, norm in _norms_of(child)]
    return found


def _blocks_and_positions(
    model: nn.Module, length: int
) -> list[tuple[nn.Module, nn.Module | None, int]]:
    """Return (block, merging, positions) for each block of a model.

    merging: the module that halves height and width of an image after the block, or None.
    positions: number of positions that the block reads.
    """
    merging = dict(getattr(model, "merging", {}).items())
    blocks = []
    for depth, (_, block) in enumerate(blocks_of(model), start=1):
        merged = merging.get(str(depth))
        blocks.append((block, merged, length))
        length = length if merged is None else length // 4
    return blocks


def _directions(block: nn.Module) -> int:
    return 4 if isinstance(block, vision.VSSBlock) else 1


def _product_weights(module: nn.Module) -> int:
    """Return the number of a module's weights that are multiplied with the input: weight matrices
    and convolution kernels, without A_log, biases, and squeeze and excitation.
    """
    return sum(
        parameter.numel()
        for name, parameter in module.named_parameters()
        if parameter.dim() > 1 and not re.search("A_log|bias|squeeze", name)
    )
