"""To which changes of its input a norm is invariant, measured on the output of the first row.

The first four of CHANGES change the scale or the level of the data. The last two leave the early
positions of the first row unchanged and change the data around them.
"""

from collections.abc import Callable
from functools import partial

import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.norms import NORMS, create_norm

# The outputs of this share of the positions, from the first on, are compared
EARLY = 0.5
# A norm is invariant to a change that moves its output by a smaller share. ε is added to every
# variance, so no norm is exactly invariant to scale: with a variance near 1, ε moves an output by
# 1e-5.
CHANGE_LIMIT = 0.01
# After this many passes, 0.9⁴⁰ = 1.5 % of the initial running statistics are left.
WARM_UP = 40


def _change_later_positions(x: Tensor) -> Tensor:
    start = int(EARLY * x.shape[1])
    return torch.cat([x[:, :start], 3 * x[:, start:].flip(1) + 1], dim=1)


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "all × 3": lambda x: 3 * x,
    "all + 3": lambda x: x + 3,
    "each channel × its own": lambda x: x * torch.linspace(0.5, 2, x.shape[-1], dtype=x.dtype),
    "each channel + its own": lambda x: x + 3 * torch.linspace(0.5, 2, x.shape[-1], dtype=x.dtype),
    "other rows": lambda x: torch.cat([x[:1], 3 * x[1:].flip(0) + 1]),
    "later positions": _change_later_positions,
}


def sample(rows: int = 6, length: int = 32, channels: int = 16, seed: int = 0) -> Tensor:
    """Return a random batch (rows, length, channels), float64.

    Rows and channels differ in level, channels also in spread.
    """
    generator = torch.Generator().manual_seed(seed)
    normal = partial(torch.randn, generator=generator, dtype=torch.float64)
    levels = normal(rows, 1, 1) + normal(1, 1, channels)
    return levels + torch.exp(0.5 * normal(1, 1, channels)) * normal(rows, length, channels)


def prepared_norm(name: str, x: Tensor, *, groups: int = 4, training: bool = True) -> nn.Module:
    """Return a norm for x (B, L, D), in its dtype, after WARM_UP training passes on half the rows.

    The passes are omitted for a norm without running statistics. The global random state is not
    changed.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        norm = create_norm(name, x.shape[-1], groups=groups).to(x.dtype).train()
        for _ in range(WARM_UP if list(norm.buffers()) else 0):
            norm(x[torch.randperm(len(x), generator=generator)[: max(1, len(x) // 2)]])
    return norm.train(training)


@torch.no_grad()
def output_change(norm: nn.Module, change: str, x: Tensor) -> float:
    """Return the relative change of the first row's early outputs when x is changed.

    It is the root mean square of the difference divided by that of the output, in the mode of the
    norm. x (B, L, D) has at least two rows and two positions.
    """
    early = slice(0, int(EARLY * x.shape[1]))
    before, after = (norm(inputs)[0, early] for inputs in (x, CHANGES[change](x)))
    return float((after - before).norm() / before.norm().clamp(min=1e-12))


def invariances() -> pd.DataFrame:
    """Return the relative change of the output, norms × CHANGES, in training mode.

    A last column has the effect of the other rows in eval mode. All norms see the same random batch
    (6 rows, 32 positions, 16 channels). Constant is left out because it ignores its input.
    """
    x, rows = sample(), {}
    for name in NORMS:
        rows[name] = {
            change: output_change(prepared_norm(name, x), change, x) for change in CHANGES
        }
        in_eval = prepared_norm(name, x, training=False)
        rows[name]["other rows, in eval"] = output_change(in_eval, "other rows", x)
    return pd.DataFrame(rows).T.drop("Constant", errors="ignore").rename_axis("norm")


def trials() -> pd.DataFrame:
    """Return the answers to three questions, norms × questions, tried in training mode.

    "alone": does a row have the same output in a batch of one? "one position": does the output for
    a sequence of one position depend on the input? "no future": do the early outputs stay the same
    when later positions change?
    """
    x, rows = sample(), {}
    for name in NORMS:
        with torch.no_grad():
            whole, alone, position = (
                create_norm(name, x.shape[-1]).double()(inputs) for inputs in (x, x[:1], x[:, :1])
            )
        future = output_change(prepared_norm(name, x), "later positions", x)
        rows[name] = {
            "alone": bool(torch.allclose(whole[:1], alone)),
            "one position": bool(position.std() > CHANGE_LIMIT),
            "no future": future < CHANGE_LIMIT,
        }
    return pd.DataFrame(rows).T.drop("Constant", errors="ignore").rename_axis("norm")
