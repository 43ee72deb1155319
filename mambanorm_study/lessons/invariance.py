"""What a norm takes no notice of, found by trying: change x, and see whether the output of the
first row changes.

The first four of CHANGES leave the shape of the data alone and move its scale or level. The last
two leave the first row's early tokens alone and change what stands around them.
"""

from collections.abc import Callable

import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.norms import NORMS, create_norm

EARLY = 0.5
"""The share of the positions, from the first on, whose outputs are compared."""
FELT = 0.01
"""From this relative change on, a norm feels the change. ε is added to every variance, so no norm
is exactly blind to a change of scale: beside a variance near 1 it moves an output by 1e-5."""
SETTLING = 40
"""Passes after which running statistics have forgotten their start: 0.9⁴⁰ = 1.5 % of it is left."""


def _later(x: Tensor) -> Tensor:
    start = int(EARLY * x.shape[1])
    return torch.cat([x[:, :start], 3 * x[:, start:].flip(1) + 1], dim=1)


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "all × 3": lambda x: 3 * x,
    "all + 3": lambda x: x + 3,
    "each channel × its own": lambda x: x * torch.linspace(0.5, 2, x.shape[-1], dtype=x.dtype),
    "each channel + its own": lambda x: x + 3 * torch.linspace(0.5, 2, x.shape[-1], dtype=x.dtype),
    "other rows": lambda x: torch.cat([x[:1], 3 * x[1:].flip(0) + 1]),
    "later positions": _later,
}


def sample(rows: int = 6, length: int = 32, channels: int = 16, seed: int = 0) -> Tensor:
    """A batch (rows, length, channels) in float64 whose rows and channels have levels and spreads
    of their own."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    levels = normal(rows, 1, 1) + normal(1, 1, channels)
    return levels + torch.exp(0.5 * normal(1, 1, channels)) * normal(rows, length, channels)


def prepared_norm(name: str, x: Tensor, *, groups: int = 4, training: bool = True) -> nn.Module:
    """The norm for the channels of x (B, L, D), in x's dtype and in the mode asked for. A norm with
    running statistics has seen SETTLING random halves of the rows in training mode before. The
    caller's random state is left alone."""
    draw = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        norm = create_norm(name, x.shape[-1], groups=groups).to(x.dtype).train()
        for _ in range(SETTLING if any(True for _ in norm.buffers()) else 0):
            norm(x[torch.randperm(len(x), generator=draw)[: max(1, len(x) // 2)]])
    return norm.train(training)


@torch.no_grad()
def felt(norm: nn.Module, change: str, x: Tensor) -> float:
    """By how much the change moves the output of the first row's early positions, in the mode the
    norm is in: root mean square of the difference over that of the output. x (B, L, D) has at least
    two rows and two positions."""
    early = slice(0, int(EARLY * x.shape[1]))
    before, after = (norm(inputs)[0, early] for inputs in (x, CHANGES[change](x)))
    return float((after - before).norm() / before.norm().clamp(min=1e-12))


def invariances() -> pd.DataFrame:
    """Norms of the registry (but Constant, which sees no input) × CHANGES, in training mode, and
    what the other rows do in eval mode: the relative change of the output, 0 where the norm does
    not feel it. All norms see the same made-up batch (6 rows, 32 positions, 16 channels)."""
    rows, x = {}, sample()
    for name in (name for name in NORMS if name != "Constant"):
        rows[name] = {change: felt(prepared_norm(name, x), change, x) for change in CHANGES}
        rows[name]["other rows, in eval"] = felt(
            prepared_norm(name, x, training=False), "other rows", x
        )
    return pd.DataFrame(rows).T.rename_axis("norm")


def trials() -> pd.DataFrame:
    """Three questions to each norm, answered by running it in training mode: is a row's output the
    same in a batch of one ("alone")? Does a sequence of one position keep anything of its input
    ("one position")? Do the early outputs stay when later positions change ("no future")? Norms ×
    these, True or False.
    """
    rows, x = {}, sample()
    for name in (name for name in NORMS if name != "Constant"):
        with torch.no_grad():
            full, single, position = (
                create_norm(name, x.shape[-1]).double()(v) for v in (x, x[:1], x[:, :1])
            )
        rows[name] = {
            "alone": bool(torch.allclose(full[:1], single)),
            "one position": bool(position.std() > FELT),
            "no future": felt(prepared_norm(name, x), "later positions", x) < FELT,
        }
    return pd.DataFrame(rows).T.rename_axis("norm")
