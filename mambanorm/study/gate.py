"""What a block does with an input that grows: its gate sees what no norm after the SSM can reach (notebook 04).

In Eq. 1–2 of the paper a norm before the SSM feeds both branches of the block, the scan's and the gate's. A norm after
the SSM stands on the scan's branch alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd
import torch

from mambanorm.arms import Arm
from mambanorm.block import MambaBlock
from mambanorm.diagnostics import record_sites

SITES = ["n2", "z", "branch"]
ROWS, LENGTH, WIDTH = 8, 64, 32


def sizes_inside(arms: Iterable[str], factors: Sequence[float] = (1, 10, 100), seed: int = 0) -> pd.DataFrame:
    """Root mean squares inside one untrained block whose input, (8, 64, 32) normal numbers, is multiplied by a factor.

    One row an arm and factor (the index), one column a site: `n2`, the output of the norm after the SSM; `z`, the
    gate's input, before SiLU; `branch`, what the block adds to the residual stream. ValueError for an unknown arm.
    """
    rows = {(str(Arm.parse(arm)), factor): _inside(arm, factor, seed) for arm in arms for factor in factors}
    index = pd.MultiIndex.from_tuples(rows, names=["arm", "factor"])
    return pd.DataFrame(list(rows.values()), index, SITES)


def _inside(arm: str, factor: float, seed: int) -> list[float]:
    torch.manual_seed(seed)  # every arm gets the same weights and the same input
    block, x = MambaBlock(WIDTH, *Arm.parse(arm)), torch.randn(ROWS, LENGTH, WIDTH)
    with torch.no_grad(), record_sites(block, SITES) as seen:
        block(factor * x)
    return seen.frame().set_index("site").rms[SITES].tolist()
