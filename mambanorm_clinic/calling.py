"""How the clinic runs a model that it does not know: hooks, batches of any form, random state.

A batch is an input; a tuple or list (input, targets); or a dict of keyword arguments, in which the
targets have one of the names in TARGETS.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields, is_dataclass

import numpy as np
import torch
from torch import Tensor, nn

from mambanorm.errors import shown
from mambanorm.inside import observe_sites

TARGETS = ("labels", "label", "targets", "target", "y")


@contextmanager
def inspected(
    model: nn.Module,
    *,
    at: Callable[[str, int, str, Tensor], None] | None = None,
    entered: Callable[[str, nn.Module, list], None] | None = None,
    left: Callable[[str, nn.Module, object], None] | None = None,
) -> Iterator[None]:
    """While open, the model tells what it computes. All that looks into a model, here and in the
    clinic, looks by this.

    at(block, depth, site, value): each site of each block of this kit, and "selector" of each
    NormSelector in it, by the observer that blocks have; what observed before is back afterwards.
    entered(path, module, given): before any module runs, with its positional and keyword arguments;
    left(path, module, output): after it.
    """
    hooks = []
    for path, module in model.named_modules():
        if entered is not None:
            hook = lambda module, args, named, path=path: entered(
                path, module, [*args, *named.values()]
            )
            hooks.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        if left is not None:
            hooks.append(
                module.register_forward_hook(
                    lambda module, _args, out, path=path: left(path, module, out)
                )
            )
    try:
        with nullcontext() if at is None else observe_sites(model, at):
            yield
    finally:
        for hook in hooks:
            hook.remove()


def norm_of(value: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """‖value‖₂ as a tensor, which waits for nothing; of half precision in float32."""
    narrow = value.dtype in (torch.float16, torch.bfloat16)
    return torch.linalg.vector_norm(value, dtype=dtype or (torch.float32 if narrow else None))


# --------------------------------------------------------------------------------------------------
# any model on a batch, without a trace


def tensors_in(value: object) -> Iterator[Tensor]:
    """The tensors of a value: itself, or of a tuple, list, dict or dataclass, in order and whatever
    the depth."""
    if isinstance(value, Tensor):
        yield value
        return
    parts = value if isinstance(value, tuple | list) else ()
    if isinstance(value, dict):
        parts = value.values()
    elif is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, field.name) for field in fields(value)]
    for part in parts:
        yield from tensors_in(part)


def first_tensor(value: object, *, real: bool = False) -> Tensor | None:
    """The first tensor of a value; real: the first of real numbers, if there is one."""
    found = list(tensors_in(value))
    wanted = [tensor for tensor in found if tensor.is_floating_point()] if real else []
    return next(iter([*wanted, *found]), None)


def split(batch: object) -> tuple[object, object]:
    """Input and targets of a batch; None for targets that it has not."""
    if isinstance(batch, dict):
        named = next((name for name in TARGETS if name in batch), None)
        return {name: part for name, part in batch.items() if name != named}, batch.get(named)
    if isinstance(batch, tuple | list):
        return batch[0], batch[1] if len(batch) > 1 else None
    return batch, None


def check_targets(batch: object) -> None:
    """ValueError where a loss is given and the batch has no targets for it."""
    if split(batch)[1] is None:
        ways = f"(input, targets), or a dict with one of {', '.join(TARGETS)}"
        raise ValueError(f"loss needs targets, and the batch has none: give {ways}")


def call(model: nn.Module, batch: object) -> object:
    """model(input): a dict is handed over as keyword arguments, without its targets."""
    given, _ = split(batch)
    return model(**given) if isinstance(given, dict) else model(given)


def run(model: nn.Module, batch: object, *, with_targets: bool = False) -> object:
    """The model's output for a batch; a dict goes in with its targets if asked. ValueError if the
    model refuses it."""
    try:
        with eagerly():
            return (
                model(**batch) if with_targets and isinstance(batch, dict) else call(model, batch)
            )
    except Exception as error:  # whatever the model's code raises
        given = ", ".join(
            f"{x.dtype} {tuple(x.shape)} on {x.device}" for x in tensors_in(batch)
        ) or shown(batch)
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"{type(model).__name__} refuses this batch ({given}): {why}") from error


def eagerly() -> AbstractContextManager:
    """While open, compiled models run as they are written, for hooks do not run in what
    torch.compile has compiled."""
    compiles = "torch._dynamo" in sys.modules  # importing it takes seconds
    return torch.compiler.set_stance("force_eager") if compiles else nullcontext()


@contextmanager
def preserve_random_state() -> Iterator[None]:
    """Random states of torch, NumPy and Python as they were, whatever is drawn inside."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
