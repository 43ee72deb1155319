"""Measure what a norm does: change one input value at a time and see which outputs change.

`register_norm` measures every norm of yours and compares its behaviour with its declaration. A
measurement takes a few hundredths of a second. The norm runs in float64 on an x with (B, L, D) =
(3, 6, 8), with and without padding, and in training mode, because a model learns from the outputs
of that mode. Only the check of the output's dtype runs in all four dtypes of REAL.
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
# Added to an input value, one after the other. Both signs are needed: a norm that divides by
# the maximum does not react to a smaller value.
SHIFTS = (-3.0, 4.0)
# An output (of order 1) counts as changed if it changes by more than this value.
CHANGED = 1e-9
# Step sizes of finite differences; the larger step is for norms that compute in float32.
STEPS = (1e-6, 1e-3)
# A gradient whose relative error exceeds this value is wrong.
MAX_GRADIENT_ERROR = 1e-3
# A measurement needs about a hundred forward passes. A norm whose single pass takes longer than
# this is refused.
MAX_SECONDS = 1.0


@dataclass(frozen=True)
class Behaviour:
    """The measured behaviour of a norm.

    axes: the axes, of "B", "L", "D/G" and "D", along which an output depends on other inputs.
    looks_ahead: (later position, earlier position whose output depends on the later one), or None.
    padding: (row, valid position) of an output that depends on padding, or None.
    random: True if two passes on the same input differ.
    hidden: True if the norm keeps state between batches that is not in its state dict.
    gradient: two values of `gradient_error`, without lengths and with lengths.
    dtypes: a text such as "float32 for float16" for each input dtype that the output does not keep.
    """

    axes: tuple[str, ...]
    looks_ahead: tuple[int, int] | None
    padding: tuple[int, int] | None
    random: bool
    hidden: bool
    gradient: tuple[float, float]
    dtypes: tuple[str, ...]


def measure(make_norm: Callable[[], nn.Module]) -> Behaviour:
    """Return the behaviour of the norm that `make_norm` builds for CHANNELS channels.

    Exceptions that the norm raises are passed on. Raises ValueError if the norm is too slow, or if
    its output is not finite or differs from the input in shape.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        norm, x = prepare(make_norm)
        y = _output(norm, x)
        _check_output(x, y)
        start = time.perf_counter()  # time the second pass: the first may compile something
        is_random = not torch.equal(y, _output(norm, x, seed=1))
        seconds = time.perf_counter() - start
        if seconds > MAX_SECONDS:
            raise ValueError(
                f"a pass of {x.numel()} numbers takes {seconds:.1f} s: too slow to be tried "
                f"(the limit is {MAX_SECONDS} s)"
            )
        rows, positions, channels = _dependencies(norm, x, y)
        ahead = [
            (late, early)
            for late in range(POSITIONS)
            for early in range(late)
            if positions[late, early]
        ]
        return Behaviour(
            axes=_dependent_axes(rows, positions, channels),
            looks_ahead=ahead[0] if ahead else None,
            padding=_reads_padding(norm, x),
            random=is_random,
            hidden=_has_hidden_state(norm, make_norm, x),
            gradient=(gradient_error(norm, x), gradient_error(norm, x, LENGTHS)),
            dtypes=_other_dtypes(make_norm, x),
        )


def prepare(make_norm: Callable[[], nn.Module]) -> tuple[nn.Module, Tensor]:
    """Return the norm of `make_norm`, in float64 and training mode, and a batch x for the norm.

    The parameters are changed at random, because an initial gain of zero would hide the values that
    are multiplied by the gain.
    """
    norm = make_norm().double().train()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return norm, 1.5 * torch.randn(ROWS, POSITIONS, CHANNELS, dtype=torch.float64) + 0.5


def _output(norm: nn.Module, x: Tensor, lengths: Tensor | None = None, *, seed: int = 0) -> Tensor:
    """Return the output of a copy of the norm, so that the norm's own state does not change.

    `seed` is the seed of the random numbers that the norm draws; by default, these numbers are the
    same in each call.
    """
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed other devices
    with torch.no_grad():
        return copy.deepcopy(norm)(x, lengths)


def _check_output(x: Tensor, y: object) -> None:
    if isinstance(y, Tensor) and y.shape == x.shape and y.isfinite().all():
        return
    result = str(type(y))
    if isinstance(y, Tensor):
        result = f"shape {tuple(y.shape)} with {int((~y.isfinite()).sum())} non-finite values"
    raise ValueError(
        f"for a finite x of shape {tuple(x.shape)} it returns {result}: "
        "a norm must keep the shape and return finite values"
    )


def _dependencies(norm: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return three masks [i, j], True if a change of input i changes output j.

    i and j count rows in the first mask (B, B), positions of one row in the second mask (L, L), and
    channels of one position in the third mask (D, D). y is the output for x.
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


def _dependent_axes(rows: Tensor, positions: Tensor, channels: Tensor) -> tuple[str, ...]:
    axes = []
    if rows.fill_diagonal_(False).any():
        axes.append("B")
    if positions.fill_diagonal_(False).any():
        axes.append("L")
    joined = channels.fill_diagonal_(True).float()
    # An output may depend on some channels of its group only, as with a median. So put two channels
    # into one group if they influence the same output.
    for _ in range(3):
        joined = (joined @ (joined + joined.T)).sign()
    if (joined.sum(1) > 1).any():
        axes.append("D" if joined.all() else "D/G")
    return tuple(axes)


def _reads_padding(norm: nn.Module, x: Tensor) -> tuple[int, int] | None:
    """Return (row, position) of a valid output that changes if the padding changes, or None."""
    valid = torch.arange(POSITIONS) < LENGTHS[:, None]
    shifted = torch.where(valid[..., None], x, 50.0 + x)
    changed = (_output(norm, x, LENGTHS) - _output(norm, shifted, LENGTHS)).abs() > CHANGED
    indices = (changed.any(-1) & valid).nonzero()
    return (int(indices[0, 0]), int(indices[0, 1])) if len(indices) else None


def _has_hidden_state(norm: nn.Module, make_norm: Callable[[], nn.Module], x: Tensor) -> bool:
    """Return True if a used norm and a new norm with the same state dict differ in output.

    "Used" means that the norm has processed two batches in training mode.
    """
    used, new = copy.deepcopy(norm), make_norm().double()
    with torch.no_grad():
        for shift in (1.0, -2.0):
            used(x + shift, None)
    new.load_state_dict(copy.deepcopy(used.state_dict()))
    for mode in (True, False):
        if not torch.equal(_output(used.train(mode), x), _output(new.train(mode), x)):
            return True
    return False


def _learned_parameters(norm: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in norm.parameters() if parameter.requires_grad]


def gradient_error(norm: nn.Module, x: Tensor, lengths: Tensor | None = None) -> float:
    """Return the relative error of autograd's gradient against central finite differences.

    The gradient is that of a randomly weighted sum of the valid outputs. It is compared along one
    random direction in the space of x and all learned parameters.
    """
    # a fixed seed, so that `register_norm` and the command `mambanorm card` use the same direction
    torch.default_generator.manual_seed(1)
    valid = slice(None) if lengths is None else torch.arange(POSITIONS) < lengths[:, None]
    weights, *directions = (torch.randn_like(value) for value in (x, x, *_learned_parameters(norm)))

    def total(norm: nn.Module, x: Tensor) -> Tensor:
        torch.default_generator.manual_seed(0)
        return (weights * norm(x, lengths))[valid].sum()

    def total_at(step: float) -> float:
        moved = copy.deepcopy(norm)
        with torch.no_grad():
            for parameter, direction in zip(
                _learned_parameters(moved), directions[1:], strict=True
            ):
                parameter.add_(step * direction)
            return float(total(moved, x + step * directions[0]))

    slopes = [(total_at(step) - total_at(-step)) / (2 * step) for step in STEPS]
    with torch.enable_grad():
        copied = copy.deepcopy(norm)
        inputs = [x.clone().requires_grad_(), *_learned_parameters(copied)]
        # + 0·x: autograd would fail at an output that does not depend on x or a parameter
        value = total(copied, inputs[0]) + 0 * inputs[0].sum()
        gradients = torch.autograd.grad(value, inputs, allow_unused=True, materialize_grads=True)
    slope = sum(float((g * d).sum()) for g, d in zip(gradients, directions, strict=True))
    size = math.hypot(*(float(gradient.norm()) for gradient in gradients))
    return min(abs(finite - slope) / max(size, abs(finite), 1e-12) for finite in slopes)


def _other_dtypes(make_norm: Callable[[], nn.Module], x: Tensor) -> tuple[str, ...]:
    """Return texts such as "float32 for float16", one per dtype of x that the output does not have.

    The norm must work in float32; any other dtype in which it fails is skipped.
    """
    changes = []
    for dtype in REAL:
        try:
            y = _output(make_norm().to(dtype).train(), x.to(dtype))
        except RuntimeError:  # for example, torch lacks an operation in float16
            if dtype == torch.float32:
                raise
            continue
        if y.dtype != dtype:
            changes.append(f"{dtype_name(y.dtype)} for {dtype_name(dtype)}")
    return tuple(changes)


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name without "torch.", such as float16."""
    return str(dtype).removeprefix("torch.")


def contradiction(behaviour: Behaviour, axes: Sequence[str], causal: bool) -> str:
    """Return the first contradiction between behaviour and declaration as text, or "" for none.

    `axes` and `causal` are the declaration. Wrong gradients, wrong dtypes, statistics that contain
    padding, and hidden state contradict every declaration.
    """
    if causal and behaviour.looks_ahead:
        late, early = behaviour.looks_ahead
        return (
            f"it is declared causal, but position {early} sees position {late}: "
            "declare causal=False, or correct the norm"
        )
    if behaviour.padding:
        row, position = behaviour.padding
        return (
            f"it takes padding into its statistics: a change of row {row}'s padding changes the "
            f"output at position {position}; leave out positions from lengths[row] on"
        )
    if behaviour.hidden:
        return (
            "it keeps a value from one batch to the next that is not in its state dict: "
            "make this value a buffer"
        )
    if behaviour.dtypes:
        return (
            f"its output does not have x's dtype ({', '.join(behaviour.dtypes)}): "
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
            f"but its outputs depend on inputs along {measured}"
        )
    return ""
