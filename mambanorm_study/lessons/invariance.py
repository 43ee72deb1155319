"""Measure to which changes of the input a norm is invariant.

A change is applied to the whole batch, and the outputs at the early positions of the first row are
compared. The first four of CHANGES change the scale or the level of all values. The last two of
CHANGES leave the early positions of the first row as they are: one changes the other rows, the
other changes the later positions.
"""

from collections.abc import Callable
from functools import partial

import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.norms import NORMS, create_norm

# Share of the positions that are early; outputs are compared at the early positions
EARLY_SHARE = 0.5
# A norm counts as invariant to a change if the relative change of its output is below this limit.
# The limit is not zero, because ε is added to every variance and makes a norm depend on the scale:
# with a variance near 1, ε changes an output by about 1e-5.
CHANGE_LIMIT = 0.01
# The number of training passes in `prepared_norm`. After these passes, the initial values have a
# weight of 0.9⁴⁰ = 1.5 % in the running statistics.
WARM_UP_PASSES = 40


def _change_later_positions(x: Tensor) -> Tensor:
    start = int(EARLY_SHARE * x.shape[1])
    return torch.cat([x[:, :start], 3 * x[:, start:].flip(1) + 1], dim=1)


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "all × 3": lambda x: 3 * x,
    "all + 3": lambda x: x + 3,
    "each channel × its own": lambda x: x * torch.linspace(0.5, 2, x.shape[-1], dtype=x.dtype),
    "each channel + its own": lambda x: x + 3 * torch.linspace(0.5, 2, x.shape[-1], dtype=x.dtype),
    "other rows": lambda x: torch.cat([x[:1], 3 * x[1:].flip(0) + 1]),
    "later positions": _change_later_positions,
}


def random_batch(rows: int = 6, length: int = 32, channels: int = 16, seed: int = 0) -> Tensor:
    """Return a random batch (rows, length, channels), float64.

    The rows differ in their means; the channels differ in their means and standard deviations.
    """
    generator = torch.Generator().manual_seed(seed)
    normal = partial(torch.randn, generator=generator, dtype=torch.float64)
    levels = normal(rows, 1, 1) + normal(1, 1, channels)
    return levels + torch.exp(0.5 * normal(1, 1, channels)) * normal(rows, length, channels)


def prepared_norm(name: str, x: Tensor, *, groups: int = 4, training: bool = True) -> nn.Module:
    """Return the norm `name` for inputs such as x (B, L, D), after WARM_UP_PASSES training passes.

    The norm has the dtype of x. Each pass reads a random half of the rows of x. A norm without
    running statistics gets no passes. training: if True, the norm is returned in train mode,
    otherwise in eval mode. The global random state does not change.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        norm = create_norm(name, x.shape[-1], groups=groups).to(x.dtype).train()
        for _ in range(WARM_UP_PASSES if list(norm.buffers()) else 0):
            norm(x[torch.randperm(len(x), generator=generator)[: max(1, len(x) // 2)]])
    return norm.train(training)


@torch.no_grad()
def output_change(norm: nn.Module, change: str, x: Tensor) -> float:
    """Return the relative change of a norm's early outputs in the first row when x is changed.

    Early outputs are those at the first half of the positions. The relative change is the root mean
    square of the outputs' difference, divided by the root mean square of the outputs for the
    unchanged x. The norm stays in its mode (train or eval). change: a key of CHANGES. x (B, L, D)
    must have at least two rows and two positions.
    """
    early = slice(0, int(EARLY_SHARE * x.shape[1]))
    before, after = (norm(inputs)[0, early] for inputs in (x, CHANGES[change](x)))
    return float((after - before).norm() / before.norm().clamp(min=1e-12))


def invariances() -> pd.DataFrame:
    """Return the `output_change` of each norm (row) for each of CHANGES (column), in train mode.

    The last column, "other rows, in eval", has the change in eval mode when the other rows of the
    batch are changed. All norms get the same random batch (6, 32, 16). Constant is left out because
    it ignores its input.
    """
    x, rows = random_batch(), {}
    for name in NORMS:
        rows[name] = {
            change: output_change(prepared_norm(name, x), change, x) for change in CHANGES
        }
        in_eval = prepared_norm(name, x, training=False)
        rows[name]["other rows, in eval"] = output_change(in_eval, "other rows", x)
    return pd.DataFrame(rows).T.drop("Constant", errors="ignore").rename_axis("norm")


def norm_properties() -> pd.DataFrame:
    """Return three properties (True or False) of each norm, one row per norm.

    Columns: "alone" (the output of a row is the same if the batch has no other row), "one position"
    (the output for a sequence of one position depends on the input), "no future" (the outputs at
    early positions stay the same when later positions change). All properties are tested in train
    mode. The norm Constant is left out.
    """
    x, rows = random_batch(), {}
    for name in NORMS:
        with torch.no_grad():
            batch, alone, position = (
                create_norm(name, x.shape[-1]).double()(inputs) for inputs in (x, x[:1], x[:, :1])
            )
        future = output_change(prepared_norm(name, x), "later positions", x)
        rows[name] = {
            "alone": bool(torch.allclose(batch[:1], alone)),
            "one position": bool(position.std() > CHANGE_LIMIT),
            "no future": future < CHANGE_LIMIT,
        }
    return pd.DataFrame(rows).T.drop("Constant", errors="ignore").rename_axis("norm")
