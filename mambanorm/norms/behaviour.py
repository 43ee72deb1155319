"""What a norm does, measured and not declared: each input is disturbed, and it is looked at which outputs move.

It takes a few hundredths of a second, so it is asked of every norm that is registered. All of it is done in float64 on
a (B, L, D) of 3 × 6 × 8 with ragged rows, in training mode: what a norm sees there is what it learns from.
"""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn

ROWS, POSITIONS, CHANNELS = 3, 6, 8
PUSHES = (-3.0, 4.0)
"""By how much an entry is disturbed, in either direction: a largest or a middle entry feels not every push."""
MOVED = 1e-9
"""A larger change of an output, which is of order 1, is one."""
SLOWEST_S = 1.0
"""A norm is passed a hundred times; one pass of which takes longer is not tried."""


@dataclass(frozen=True)
class Behaviour:
    """axes: those of "B", "L", "D/G", "D" over which an output looks at other entries. ahead: (later position, earlier
    one that sees it), None = none does. padding: (row, valid position that moved) when only padding was disturbed.
    random: two passes of one input differ. hidden: what is kept from batch to batch is not in its state dict."""

    axes: tuple[str, ...]
    ahead: tuple[int, int] | None
    padding: tuple[int, int] | None
    random: bool
    hidden: bool


def measured(make: Callable[[], nn.Module]) -> Behaviour:
    """What the norm of CHANNELS channels does that `make` returns. Whatever the norm raises is raised."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        norm = make().double().train()
        _move(norm)
        x = 1.5 * torch.randn(ROWS, POSITIONS, CHANNELS, dtype=torch.float64) + 0.5
        y = _passed(norm, x)
        if not isinstance(y, Tensor) or y.shape != x.shape or not y.isfinite().all():
            given = f"{tuple(y.shape)}, {int((~y.isfinite()).sum())} not finite" if isinstance(y, Tensor) else type(y)
            raise ValueError(f"of {tuple(x.shape)} finite numbers it makes {given}: a norm keeps shape and finiteness")
        start = time.perf_counter()  # the first pass may have compiled something
        random = not torch.equal(y, _passed(norm, x, draw=1))
        if (took := time.perf_counter() - start) > SLOWEST_S:
            raise ValueError(f"a pass of {x.numel()} numbers takes {took:.1f} s: too slow to be tried")
        rows, positions, channels = _seen(norm, x, y)
        ahead = [(late, early) for late in range(POSITIONS) for early in range(late) if positions[late, early]]
        axes = _axes(rows, positions, channels)
        return Behaviour(axes, ahead[0] if ahead else None, _padding(norm, x), random, _hidden(norm, make, x))


def _move(norm: nn.Module) -> None:
    """Away from a start at which a gain of zero hides what it multiplies."""
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))


def _passed(norm: nn.Module, x: Tensor, lengths: Tensor | None = None, *, draw: int = 0) -> Tensor:
    """The output of a copy: what a pass leaves behind stays out of the next one. A norm that draws at random draws the
    same each time, so that it can be looked at as any other; another `draw` gives it other numbers."""
    torch.default_generator.manual_seed(draw)  # torch.manual_seed also tells devices that are not here
    with torch.no_grad():
        return copy.deepcopy(norm)(x, lengths)


def _seen(norm: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Which outputs move when one entry does: the rows (B, B), in its own row the positions (L, L), and at its own
    position the channels (D, D); what is disturbed comes first."""
    rows, positions, channels = (torch.zeros(n, n, dtype=torch.bool) for n in x.shape)
    for i, (position, channel, push) in enumerate(product(range(POSITIONS), range(CHANNELS), PUSHES)):
        row, other = i % ROWS, x.clone()
        other[row, position, channel] += push
        moved = (_passed(norm, other) - y).abs() > MOVED  # (B, L, D)
        rows[row] |= moved.any(2).any(1)
        positions[position] |= moved[row].any(1)
        channels[channel] |= moved[row, position]
    return rows, positions, channels


def _axes(rows: Tensor, positions: Tensor, channels: Tensor) -> tuple[str, ...]:
    found = ["B"] if rows.fill_diagonal_(False).any() else []
    found += ["L"] if positions.fill_diagonal_(False).any() else []
    together = channels.fill_diagonal_(True).float()
    for _ in range(3):  # a median moves with some of its channels only: those that are joined by others are joined
        together = (together @ (together + together.T)).sign()
    if (together.sum(1) > 1).any():
        found.append("D" if together.all() else "D/G")
    return tuple(found)


def _padding(norm: nn.Module, x: Tensor) -> tuple[int, int] | None:
    """Where a valid output moves when what stands behind the rows' ends does."""
    lengths = torch.tensor([POSITIONS, POSITIONS - 2, POSITIONS - 3])
    valid = torch.arange(POSITIONS) < lengths[:, None]
    other = torch.where(valid[..., None], x, 50.0 + x)
    moved = ((_passed(norm, x, lengths) - _passed(norm, other, lengths)).abs() > MOVED).any(-1) & valid
    return tuple(moved.nonzero()[0].tolist()) if moved.any() else None


def _hidden(norm: nn.Module, make: Callable[[], nn.Module], x: Tensor) -> bool:
    """Whether a norm that has seen batches differs from one with the same state dict that has not."""
    seen, fresh = copy.deepcopy(norm), make().double()
    with torch.no_grad():
        for shift in (1.0, -2.0):
            seen(x + shift, None)
    fresh.load_state_dict(copy.deepcopy(seen.state_dict()))
    return any(not torch.equal(_passed(seen.train(mode), x), _passed(fresh.train(mode), x)) for mode in (True, False))


def contradiction(found: Behaviour, axes: Sequence[str], causal: bool) -> str:
    """The first thing in which a norm is not what it declares."""
    if causal and found.ahead:
        late, early = found.ahead
        return f"it is declared causal, but position {early} sees position {late}: declare causal=False, or mend it"
    if found.padding:
        row, position = found.padding
        return (
            f"it takes padding into its statistics: disturbed behind the end of row {row}, position {position} of it "
            "moves; leave out positions from lengths[row] on"
        )
    if found.hidden:
        return "it keeps something from batch to batch that is not in its state dict: make it a buffer"
    if set(found.axes) != set(axes):
        said, seen = (" · ".join(one) or "no axis" for one in (axes, found.axes))
        return f"it is declared to take its statistics over {said}, but its outputs look over {seen}"
    return ""
