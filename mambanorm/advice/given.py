"""What the caller of `check_model` gave: a copy of the model, the first batches, input and targets of each.

A batch is an input, a tuple or a list whose first part is the input and whose second the targets, or a dict of keyword
arguments in which the targets go by one of the names of TARGETS.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from itertools import islice

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from mambanorm.basics.checks import shown

TARGETS = ("labels", "label", "targets", "target", "y")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def twin_of(model: nn.Module) -> nn.Module:
    """A copy of the model without the caller's hooks; ValueError for a model that cannot be copied.

    Hooks of torch itself stay, for by them weight_norm and spectral_norm compute. Tensors that the model keeps of an
    earlier pass are copied without their graph.
    """
    lazy = next((path for path, module in model.named_modules() if _is_lazy(module)), None)
    if lazy is not None:
        raise ValueError(f"the lazy layer {lazy!r} has no shape yet: call the model once on a batch, then check it")
    own = [value for m in model.modules() for value in [*vars(m).values(), *m._buffers.values()]]
    kept = [value for value in own if isinstance(value, Tensor) and not value.is_leaf]
    try:
        twin = copy.deepcopy(model, {id(value): value.detach().clone() for value in kept})
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        mend = "remove what it keeps of earlier passes, or build it anew and load its state_dict"
        raise ValueError(f"the model cannot be copied, and only a copy is looked at ({why}): {mend}") from error
    for module in twin.modules():
        _drop_hooks(module)
    return twin


def _is_lazy(module: nn.Module) -> bool:
    return any(is_lazy(own) for own in [*module._parameters.values(), *module._buffers.values()])


def _drop_hooks(module: nn.Module) -> None:
    for hooks in (getattr(module, name) for name in HOOKS):
        for key, hook in list(hooks.items()):
            if (getattr(hook, "__module__", None) or "").split(".")[0] != "torch":
                del hooks[key]


def batches_of(loader: Iterable | Tensor, count: int) -> list:
    """The first batches; the generators of a DataLoader stay as they were. TypeError, ValueError for what is none."""
    if isinstance(loader, Tensor):
        return [loader]
    if isinstance(loader, dict) or (isinstance(loader, tuple) and isinstance(next(iter(loader), None), Tensor)):
        one = "{…}" if isinstance(loader, dict) else "(X, y)"
        raise ValueError(f"loader is one batch, a {type(loader).__name__}: did you mean [{one}], a list of batches?")
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise TypeError(f"loader must be one tensor, or a list or a DataLoader of batches, got {shown(loader)}")
    sampler, rows = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
    owners = [loader, sampler, rows, getattr(rows, "sampler", None)]
    generators = [own for owner in owners if (own := getattr(owner, "generator", None)) is not None]
    states = [generator.get_state() for generator in generators]
    try:
        found = list(islice(iter(loader), count))
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
    if not found or first_tensor(found[0]) is None:
        raise ValueError("loader holds no batch with a tensor: needed are tensors, or tuples that begin with one")
    return found


def split(batch: object) -> tuple[object, object]:
    """Input and targets of a batch; None for targets that it has not."""
    if isinstance(batch, dict):
        named = next((name for name in TARGETS if name in batch), None)
        return {name: part for name, part in batch.items() if name != named}, batch.get(named)
    if isinstance(batch, tuple | list):
        return batch[0], batch[1] if len(batch) > 1 else None
    return batch, None


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


def first_tensor(value: object) -> Tensor | None:
    """The first tensor of an output: itself, or of a tuple, a list, a dict or a dataclass."""
    if isinstance(value, Tensor):
        return value
    parts = value if isinstance(value, tuple | list) else ()
    if isinstance(value, dict):
        parts = value.values()
    elif is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, field.name) for field in fields(value)]
    return next((found for part in parts if (found := first_tensor(part)) is not None), None)
