"""Measure what a norm does: change one input value at a time and see which outputs change.

`register_norm` measures every norm of yours and compares the result with what it declares. It takes
a few hundredths of a second. Everything is done in float64 on a (B, L, D) = (3, 6, 8) with ragged
rows, in training mode, because a norm learns from what it sees there. Only the dtype of the output
is checked in all four dtypes.
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
LENGTHS = torch.tensor([POSITIONS, POSITIONS - 2, POSITIONS - 3])
# Added to a value. One direction is not enough: a maximum ignores a smaller value.
SHIFTS = (-3.0, 4.0)
# Outputs are of order 1. A difference above this counts as a change.
CHANGED = 1e-9
# Steps of finite differences; the longer one is for norms that compute in float32.
STEPS = (1e-6, 1e-3)
# A gradient with a larger error, relative to its size, is wrong.
MAX_GRADIENT_ERROR = 1e-3
# Measuring takes a hundred forward passes. A norm that takes longer for one is refused.
MAX_SECONDS = 1.0


@dataclass(frozen=True)
class Behaviour:
    """What a norm was seen to do.

    axes: those of "B", "L", "D/G", "D" over which an output depends on other values.
    looks_ahead: (later position, earlier position that depends on it), or None.
    padding: (row, valid position that changed) when only padding was changed, or None.
    random: two passes of one input differ.
    hidden: it keeps state between batches that is not in its state dict.
    gradient: `gradient_error` without and with lengths.
    dtypes: "float32 for float16" if an output has another dtype than its input.
    """

    axes: tuple[str, ...]
    looks_ahead: tuple[int, int] | None
    padding: tuple[int, int] | None
    random: bool
    hidden: bool
    gradient: tuple[float, float]
    dtypes: tuple[str, ...]


def measure(make: Callable[[], nn.Module]) -> Behaviour:
    """Return the behaviour of the norm that `make` returns, which has CHANNELS channels.

    Raises whatever the norm raises, and ValueError if it is too slow or if its output is not
    finite or has another shape than the input.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        norm, x = prepare(make)
        y = _output(norm, x)
        _check_output(x, y)
        start = time.perf_counter()  # not the first pass, which may compile something
        is_random = not torch.equal(y, _output(norm, x, draw=1))
        seconds = time.perf_counter() - start
        if seconds > MAX_SECONDS:
            raise ValueError(
                f"a pass of {x.numel()} numbers takes {seconds:.1f} s: too slow to be tried"
            )
        rows, positions, channels = _dependencies(norm, x, y)
        ahead = [
            (late, early)
            for late in range(POSITIONS)
            for early in range(late)
            if positions[late, early]
        ]
        return Behaviour(
            axes=_axes(rows, positions, channels),
            looks_ahead=ahead[0] if ahead else None,
            padding=_reads_padding(norm, x),
            random=is_random,
            hidden=_has_hidden_state(norm, make, x),
            gradient=(gradient_error(norm, x), gradient_error(norm, x, LENGTHS)),
            dtypes=_other_dtypes(make, x),
        )


def prepare(make: Callable[[], nn.Module]) -> tuple[nn.Module, Tensor]:
    """Return the norm that `make` returns, in float64, and a batch for it.

    Its parameters are moved from their initial values: a gain of zero would hide what it
    multiplies.
    """
    norm = make().double().train()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return norm, 1.5 * torch.randn(ROWS, POSITIONS, CHANNELS, dtype=torch.float64) + 0.5


def _output(norm: nn.Module, x: Tensor, lengths: Tensor | None = None, *, draw: int = 0) -> Tensor:
    """Return the output of a copy of the norm, so that its state stays as it is.

    A norm that draws random numbers gets the same ones each time; another `draw` gives others.
    """
    torch.default_generator.manual_seed(draw)  # torch.manual_seed would also seed other devices
    with torch.no_grad():
        return copy.deepcopy(norm)(x, lengths)


def _check_output(x: Tensor, y: object) -> None:
    if isinstance(y, Tensor) and y.shape == x.shape and y.isfinite().all():
        return
    result = str(type(y))
    if isinstance(y, Tensor):
        result = f"{tuple(y.shape)}, {int((~y.isfinite()).sum())} not finite"
    raise ValueError(
        f"of {tuple(x.shape)} finite numbers it makes {result}: a norm keeps shape and finiteness"
    )


def _dependencies(norm: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return which outputs change when one value does, as [changed value, output].

    Rows (B, B); positions of the same row (L, L); channels of the same position (D, D).
    """
    rows, positions, channels = (torch.zeros(n, n, dtype=torch.bool) for n in x.shape)
    cases = product(range(POSITIONS), range(CHANNELS), SHIFTS)
    for i, (position, channel, shift) in enumerate(cases):
        row, shifted = i % ROWS, x.clone()
        shifted[row, position, channel] += shift
        changed = (_output(norm, shifted) - y).abs() > CHANGED  # (B, L, D)
        rows[row] |= changed.any(2).any(1)
        positions[position] |= changed[row].any(1)
        channels[channel] |= changed[row, position]
    return rows, positions, channels


def _axes(rows: Tensor, positions: Tensor, channels: Tensor) -> tuple[str, ...]:
    axes = []
    if rows.fill_diagonal_(False).any():
        axes.append("B")
    if positions.fill_diagonal_(False).any():
        axes.append("L")
    joined = channels.fill_diagonal_(True).float()
    # A median depends on some channels only: join channels that influence the same output.
    for _ in range(3):
        joined = (joined @ (joined + joined.T)).sign()
    if (joined.sum(1) > 1).any():
        axes.append("D" if joined.all() else "D/G")
    return tuple(axes)


def _reads_padding(norm: nn.Module, x: Tensor) -> tuple[int, int] | None:
    """Return (row, position) of a valid output that changes with the padding, or None."""
    valid = torch.arange(POSITIONS) < LENGTHS[:, None]
    shifted = torch.where(valid[..., None], x, 50.0 + x)
    changed = (_output(norm, x, LENGTHS) - _output(norm, shifted, LENGTHS)).abs() > CHANGED
    places = (changed.any(-1) & valid).nonzero()
    return (int(places[0, 0]), int(places[0, 1])) if len(places) else None


def _has_hidden_state(norm: nn.Module, make: Callable[[], nn.Module], x: Tensor) -> bool:
    """Return True if a norm that saw batches differs from a new one with its state dict."""
    used, new = copy.deepcopy(norm), make().double()
    with torch.no_grad():
        for shift in (1.0, -2.0):
            used(x + shift, None)
    new.load_state_dict(copy.deepcopy(used.state_dict()))
    for mode in (True, False):
        if not torch.equal(_output(used.train(mode), x), _output(new.train(mode), x)):
            return True
    return False


def _learned(norm: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in norm.parameters() if parameter.requires_grad]


def gradient_error(norm: nn.Module, x: Tensor, lengths: Tensor | None = None) -> float:
    """Return the relative error of autograd's gradient against central finite differences.

    Both are taken along one random direction of x and of all learned parameters, for a random sum
    of the valid outputs.
    """
    torch.default_generator.manual_seed(1)  # registration and card use the same direction
    valid = slice(None) if lengths is None else torch.arange(POSITIONS) < lengths[:, None]
    weights, *directions = (torch.randn_like(value) for value in (x, x, *_learned(norm)))

    def total(norm: nn.Module, x: Tensor) -> Tensor:
        torch.default_generator.manual_seed(0)
        return (weights * norm(x, lengths))[valid].sum()

    def total_at(step: float) -> float:
        moved = copy.deepcopy(norm)
        with torch.no_grad():
            for parameter, direction in zip(_learned(moved), directions[1:], strict=True):
                parameter.add_(step * direction)
            return float(total(moved, x + step * directions[0]))

    slopes = [(total_at(step) - total_at(-step)) / (2 * step) for step in STEPS]
    with torch.enable_grad():
        copied = copy.deepcopy(norm)
        inputs = [x.clone().requires_grad_(), *_learned(copied)]
        # 0·x: an output without a graph has a gradient of zero
        value = total(copied, inputs[0]) + 0 * inputs[0].sum()
        gradients = torch.autograd.grad(value, inputs, allow_unused=True, materialize_grads=True)
    slope = sum(float((g * d).sum()) for g, d in zip(gradients, directions, strict=True))
    size = math.hypot(*(float(gradient.norm()) for gradient in gradients))
    return min(abs(other - slope) / max(size, abs(other), 1e-12) for other in slopes)


def _other_dtypes(make: Callable[[], nn.Module], x: Tensor) -> tuple[str, ...]:
    """Return "float32 for float16" for each dtype whose output has another dtype.

    The norm need not work in every dtype but float32.
    """
    changes = []
    for dtype in REAL:
        try:
            y = _output(make().to(dtype).train(), x.to(dtype))
        except RuntimeError:  # an operation that torch does not have for float16, say
            if dtype == torch.float32:
                raise
            continue
        if y.dtype != dtype:
            changes.append(f"{name_of(y.dtype)} for {name_of(dtype)}")
    return tuple(changes)


def name_of(dtype: torch.dtype) -> str:
    """Return a dtype's name, such as float16."""
    return str(dtype).removeprefix("torch.")


def contradiction(behaviour: Behaviour, axes: Sequence[str], causal: bool) -> str:
    """Return the first contradiction between behaviour and declaration as text, or ""."""
    if causal and behaviour.looks_ahead:
        late, early = behaviour.looks_ahead
        return (
            f"it is declared causal, but position {early} sees position {late}: "
            "declare causal=False, or mend it"
        )
    if behaviour.padding:
        row, position = behaviour.padding
        return (
            f"it takes padding into its statistics: disturbed behind the end of row {row}, "
            f"position {position} of it moves; leave out positions from lengths[row] on"
        )
    if behaviour.hidden:
        return (
            "it keeps something from batch to batch that is not in its state dict: make it a buffer"
        )
    if behaviour.dtypes:
        return (
            f"its output has another dtype than x, {', '.join(behaviour.dtypes)}: "
            "return y.to(x.dtype), and keep tensors as parameters or buffers"
        )
    for error, case in zip(behaviour.gradient, ("", " where lengths are given"), strict=True):
        if not error < MAX_GRADIENT_ERROR:
            size = "not finite"
            if math.isfinite(error):
                size = f"{100 * error:.3g} % off finite differences"
            return f"its backward is wrong: the gradient is {size}{case}"
    if set(behaviour.axes) != set(axes):
        declared, measured = (" · ".join(one) or "no axis" for one in (axes, behaviour.axes))
        return (
            f"it is declared to take its statistics over {declared}, "
            f"but its outputs look over {measured}"
        )
    return ""
