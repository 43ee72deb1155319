"""Which block a model of sequences is made of: Mamba's or Mamba-2's.

BLOCKS        model, as `RunConfig.model` has it → its block
make_blocks   n of them, with an arm's norms
"""

from __future__ import annotations

from typing import Any

from torch import nn

from mambanorm.arms import Arm
from mambanorm.basics.errors import unknown
from mambanorm.block import MambaBlock
from mambanorm.mamba2 import Mamba2Block

BLOCKS: dict[str, type[nn.Module]] = {"mamba": MambaBlock, "mamba2": Mamba2Block}
ONLY_IN = {"dt_rank": "mamba", "head_dim": "mamba2", "n_groups": "mamba2"}
"""Options that one of the blocks has alone."""


def make_blocks(model: str, n: int, d_model: int, arm: Arm, **options: Any) -> nn.ModuleList:
    """n blocks of a model. An option that is None has the block's default. ValueError for an unknown model, and for an
    option that its block does not have."""
    if model not in BLOCKS:
        raise unknown("model", model, BLOCKS)
    given = {name: value for name, value in options.items() if value is not None}
    for name, owner in ONLY_IN.items():
        if name in given and owner != model:
            raise ValueError(f"{name}={given[name]!r} belongs to model={owner!r}, this is a {model!r}: leave it out")
    return nn.ModuleList(BLOCKS[model](d_model, *arm, **given) for _ in range(n))
