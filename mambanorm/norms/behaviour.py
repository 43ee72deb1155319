"""What a norm does, measured and not declared: each input is disturbed, and it is looked at which
outputs move.

It takes a few hundredths of a second, so it is asked of every norm that is registered. All of it is
done in float64 on a (B, L, D) of 3 × 6 × 8 with ragged rows, in training mode: what a norm sees
there is what it learns from. Only the dtype of the output is looked at in all four dtypes.
"""

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn

from mambanorm.checks import REAL

ROWS, POSITIONS, CHANNELS = 3, 6, 8
PUSHES = (-3.0, 4.0)
"""By how much an entry is disturbed, in either direction: a largest or a middle entry feels not
every push."""
MOVED = 1e-9
"""A larger change of an output, which is of order 1, is one."""
STEPS = (1e-6, 1e-3)
"""The steps of finite differences; the longer one is for a norm that computes in float32."""
WRONG = 1e-3
"""A gradient with a larger error, as a share of its size, is wrong."""
LENGTHS = torch.tensor([POSITIONS, POSITIONS - 2, POSITIONS - 3])
SLOWEST_S = 1.0
"""A norm is passed a hundred times; one pass of which takes longer is not tried."""


@dataclass(frozen=True)
class Behaviour:
    """axes: those of "B", "L", "D/G", "D" over which an output looks at other entries. ahead:
    (later position, earlier one that sees it), None = none does. padding: (row, valid position that
    moved) when only padding was disturbed. random: two passes of one input differ. hidden: what is
    kept from batch to batch is not in its state dict. gradient: its error (gradient_error), without
    and with lengths. dtypes: "float32 for float16" if an output has another dtype than its
    input."""

    axes: tuple[str, ...]
    ahead: tuple[int, int] | None
    padding: tuple[int, int] | None
    random: bool
    hidden: bool
    gradient: tuple[float, float]
    dtypes: tuple[str, ...]


def measured(make: Callable[[], nn.Module]) -> Behaviour:
    """What the norm of CHANNELS channels does that `make` returns. Whatever the norm raises is
    raised."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        norm, x = prepared(make)
        y = _passed(norm, x)
        if not isinstance(y, Tensor) or y.shape != x.shape or not y.isfinite().all():
            given = (
                f"{tuple(y.shape)}, {int((~y.isfinite()).sum())} not finite"
                if isinstance(y, Tensor)
                else type(y)
            )
            raise ValueError(
                f"of {tuple(x.shape)} finite numbers it makes {given}: a norm keeps shape and finiteness"
            )
        start = time.perf_counter()  # the first pass may have compiled something
        random = not torch.equal(y, _passed(norm, x, draw=1))
        if (took := time.perf_counter() - start) > SLOWEST_S:
            raise ValueError(
                f"a pass of {x.numel()} numbers takes {took:.1f} s: too slow to be tried"
            )
        rows, positions, channels = _seen(norm, x, y)
        ahead = [
            (late, early)
            for late in range(POSITIONS)
            for early in range(late)
            if positions[late, early]
        ]
        axes = _axes(rows, positions, channels)
        gradient = gradient_error(norm, x), gradient_error(norm, x, LENGTHS)
        kept = _padding(norm, x), random, _hidden(norm, make, x), gradient, _other_dtypes(make, x)
        return Behaviour(axes, ahead[0] if ahead else None, *kept)


def prepared(make: Callable[[], nn.Module]) -> tuple[nn.Module, Tensor]:
    """Return the norm that `make` returns, in float64, and a batch for it. The norm is moved away
    from its start, at which a gain of zero hides what it multiplies."""
    norm = make().double().train()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return norm, 1.5 * torch.randn(ROWS, POSITIONS, CHANNELS, dtype=torch.float64) + 0.5


def _passed(norm: nn.Module, x: Tensor, lengths: Tensor | None = None, *, draw: int = 0) -> Tensor:
    """The output of a copy: what a pass leaves behind stays out of the next one. A norm that draws
    at random draws the same each time, so that it can be looked at as any other; another `draw`
    gives it other numbers."""
    torch.default_generator.manual_seed(
        draw
    )  # torch.manual_seed also tells devices that are not here
    with torch.no_grad():
        return copy.deepcopy(norm)(x, lengths)


def _seen(norm: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Which outputs move when one entry does: the rows (B, B), in its own row the positions (L, L),
    and at its own position the channels (D, D); what is disturbed comes first."""
    rows, positions, channels = (torch.zeros(n, n, dtype=torch.bool) for n in x.shape)
    for i, (position, channel, push) in enumerate(
        product(range(POSITIONS), range(CHANNELS), PUSHES)
    ):
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
    for _ in range(
        3
    ):  # a median moves with some of its channels only: those that are joined by others are joined
        together = (together @ (together + together.T)).sign()
    if (together.sum(1) > 1).any():
        found.append("D" if together.all() else "D/G")
    return tuple(found)


def _padding(norm: nn.Module, x: Tensor) -> tuple[int, int] | None:
    """Where a valid output moves when what stands behind the rows' ends does."""
    valid = torch.arange(POSITIONS) < LENGTHS[:, None]
    other = torch.where(valid[..., None], x, 50.0 + x)
    moved = ((_passed(norm, x, LENGTHS) - _passed(norm, other, LENGTHS)).abs() > MOVED).any(
        -1
    ) & valid
    return tuple(moved.nonzero()[0].tolist()) if moved.any() else None


def _hidden(norm: nn.Module, make: Callable[[], nn.Module], x: Tensor) -> bool:
    """Whether a norm that has seen batches differs from one with the same state dict that has
    not."""
    seen, fresh = copy.deepcopy(norm), make().double()
    with torch.no_grad():
        for shift in (1.0, -2.0):
            seen(x + shift, None)
    fresh.load_state_dict(copy.deepcopy(seen.state_dict()))
    return any(
        not torch.equal(_passed(seen.train(mode), x), _passed(fresh.train(mode), x))
        for mode in (True, False)
    )


def _learned(norm: nn.Module) -> list[Tensor]:
    return [parameter for parameter in norm.parameters() if parameter.requires_grad]


def gradient_error(norm: nn.Module, x: Tensor, lengths: Tensor | None = None) -> float:
    """Return by how much autograd's gradient differs from central finite differences, as a share of
    its size.

    Both are taken along one random direction of x and of all that is learned, for a random sum of
    the valid outputs.
    """
    torch.default_generator.manual_seed(
        1
    )  # so that registration and card look along the same direction
    valid = slice(None) if lengths is None else torch.arange(POSITIONS) < lengths[:, None]
    weights, *directions = (torch.randn_like(one) for one in (x, x, *_learned(norm)))

    def value(norm: nn.Module, x: Tensor) -> Tensor:
        torch.default_generator.manual_seed(0)
        return (weights * norm(x, lengths))[valid].sum()

    def moved(step: float) -> float:
        other = copy.deepcopy(norm)
        with torch.no_grad():
            for parameter, direction in zip(_learned(other), directions[1:], strict=True):
                parameter.add_(step * direction)
            return float(value(other, x + step * directions[0]))

    slopes = [(moved(step) - moved(-step)) / (2 * step) for step in STEPS]
    with torch.enable_grad():
        own = copy.deepcopy(norm)
        inputs = [x.clone().requires_grad_(), *_learned(own)]
        total = (
            value(own, inputs[0]) + 0 * inputs[0].sum()
        )  # so that an output without a graph has a gradient of zero
        gradients = torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)
    slope = sum(
        float((one * direction).sum()) for one, direction in zip(gradients, directions, strict=True)
    )
    size = math.hypot(*(float(one.norm()) for one in gradients))
    return min(abs(other - slope) / max(size, abs(other), 1e-12) for other in slopes)


def _other_dtypes(make: Callable[[], nn.Module], x: Tensor) -> tuple[str, ...]:
    """Return "float32 for float16" for each dtype of x of which the norm makes another one. It need
    not work in all."""
    found = []
    for dtype in REAL:
        try:
            y = _passed(make().to(dtype).train(), x.to(dtype))
        except RuntimeError:  # such as an operation that torch has not for float16
            if dtype == torch.float32:
                raise
            continue
        if y.dtype != dtype:
            found.append(f"{name_of(y.dtype)} for {name_of(dtype)}")
    return tuple(found)


def name_of(dtype: torch.dtype) -> str:
    """Return a dtype's name, such as float16."""
    return str(dtype).removeprefix("torch.")


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
        return (
            "it keeps something from batch to batch that is not in its state dict: make it a buffer"
        )
    if found.dtypes:
        how = "return y.to(x.dtype), and keep tensors as parameters or buffers"
        return f"its output has another dtype than x, {', '.join(found.dtypes)}: {how}"
    for error, where in zip(found.gradient, ("", " where lengths are given"), strict=True):
        if not error < WRONG:
            said = (
                f"{100 * error:.3g} % off finite differences"
                if math.isfinite(error)
                else "not finite"
            )
            return f"its backward is wrong: the gradient is {said}{where}"
    if set(found.axes) != set(axes):
        said, seen = (" · ".join(one) or "no axis" for one in (axes, found.axes))
        return (
            f"it is declared to take its statistics over {said}, but its outputs look over {seen}"
        )
    return ""
