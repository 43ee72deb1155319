"""What goes into a model and what comes out of it, and how a model is run without leaving a trace.

A batch is an input, a tuple or a list whose first part is the input and whose second the targets, or a dict of keyword
arguments in which the targets go by one of the names of TARGETS.

    tensors_in, first_tensor    the tensors of a batch or an output, whatever holds them
    split, call, with_input     input and targets; a model on its input; the batch with another input
    batches_of                  the first batches of a loader
    run, check_device           a model on a batch, and what is said where it refuses it
    as_it_was, eagerly          random states stay; hooks do not run in what torch.compile has compiled, without it
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields, is_dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn

from mambanorm.basics.checks import shown

TARGETS = ("labels", "label", "targets", "target", "y")


def tensors_in(value: object) -> Iterator[Tensor]:
    """The tensors of a value: itself, or of a tuple, list, dict or dataclass, in order and whatever the depth."""
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


def with_input(batch: object, x: Tensor) -> object:
    """The batch with x in place of its first tensor."""
    if isinstance(batch, Tensor):
        return x
    items = list(batch.items() if isinstance(batch, dict) else enumerate(batch))
    key, part = next((key, part) for key, part in items if first_tensor(part) is not None)
    parts = {**dict(items), key: with_input(part, x)}
    return parts if isinstance(batch, dict) else tuple(parts.values())


def batches_of(loader: Iterable | Tensor, count: int) -> list:
    """The first batches; the generators of a DataLoader stay as they were. TypeError, ValueError for what is none."""
    if isinstance(loader, Tensor):
        return [loader]
    if isinstance(loader, dict) or (isinstance(loader, tuple) and isinstance(next(iter(loader), None), Tensor)):
        one = "{…}" if isinstance(loader, dict) else "(X, y)"
        raise ValueError(f"loader is one batch, a {type(loader).__name__}: did you mean [{one}], a list of batches?")
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise TypeError(f"loader must be one tensor, or a list or a DataLoader of batches, got {shown(loader)}")
    rows = getattr(loader, "batch_sampler", None)
    owners = [loader, getattr(loader, "sampler", None), rows, getattr(rows, "sampler", None)]
    states = [(own, own.get_state()) for owner in owners if (own := getattr(owner, "generator", None)) is not None]
    try:
        found = list(islice(iter(loader), count))
    finally:
        for generator, state in states:
            generator.set_state(state)
    if not found or first_tensor(found[0]) is None:
        raise ValueError("loader holds no batch with a tensor: needed are tensors, or tuples that begin with one")
    return found


def check_device(model: nn.Module, batch: object) -> None:
    """ValueError where a tensor of the batch is on another device than the model's first weight."""
    weight = next(model.parameters(), None)
    for part in tensors_in(batch):
        if weight is not None and part.device != weight.device:
            to = f"move the batch by .to({str(weight.device)!r})"
            raise ValueError(f"the model is on {weight.device} and its batch on {part.device}: {to}")


def run(model: nn.Module, batch: object, *, with_targets: bool = False) -> object:
    """The model's output for a batch; a dict goes in with its targets if asked. ValueError if the model refuses it."""
    try:
        with eagerly():
            return model(**batch) if with_targets and isinstance(batch, dict) else call(model, batch)
    except Exception as error:  # whatever the model's code raises
        given = ", ".join(f"{part.dtype} {tuple(part.shape)}" for part in tensors_in(batch)) or shown(batch)
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"{type(model).__name__} refuses this batch ({given}): {why}") from error


def eagerly() -> AbstractContextManager:
    """While open, compiled models run as they are written."""
    compiles = "torch._dynamo" in sys.modules  # importing it takes seconds
    return torch.compiler.set_stance("force_eager") if compiles else nullcontext()


@contextmanager
def as_it_was() -> Iterator[None]:
    """Random states of torch, NumPy and Python as they were, whatever is drawn inside."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
