"""Call a model of any library, and inspect the inputs and outputs of its modules.

A batch is a tensor; a tuple or list (input, targets); or a dict of keyword arguments, which may
contain the targets under one of the names in TARGETS.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from mambanorm.errors import shown

TARGETS = ("labels", "label", "targets", "target", "y")


@contextmanager
def inspect_model(
    model: nn.Module,
    *,
    on_input: Callable[[str, list], None],
    on_output: Callable[[str, nn.Module, list, object], None],
) -> Iterator[None]:
    """Return a context in which `on_input` is called before and `on_output` after each module call.

    on_input(path, inputs): path is the module's name in the model; inputs is a list of the values
    of all arguments of the call, positional and keyword. on_output(path, module, inputs, output):
    also gets the module and the output of the call.
    """

    def before_call(path: str, _module: nn.Module, args: tuple, kwargs: dict) -> None:
        on_input(path, [*args, *kwargs.values()])

    def after_call(path: str, module: nn.Module, args: tuple, kwargs: dict, output: object) -> None:
        on_output(path, module, [*args, *kwargs.values()], output)

    hooks = []
    for path, module in model.named_modules():
        hooks += [
            module.register_forward_pre_hook(partial(before_call, path), with_kwargs=True),
            module.register_forward_hook(partial(after_call, path), with_kwargs=True),
        ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def tensors_in(value: object) -> list[Tensor]:
    """Return a flat list of the tensors in a value.

    value: a tensor, or a nested tuple, list or dict, which may also contain other objects.
    """
    return [part for part in tree_leaves(value) if isinstance(part, Tensor)]


def map_tensors(function: Callable[[Tensor], Tensor], value: object) -> object:
    """Return a copy of a value with each tensor x replaced by function(x).

    value: a tensor, or a nested tuple, list or dict, which may also contain other objects.
    """
    return tree_map_only(Tensor, function, value)


def first_tensor(value: object, *, skip_integers: bool = False) -> Tensor | None:
    """Return the first tensor in a value (see `tensors_in`), or None if the value has no tensor.

    skip_integers: True means to consider only tensors of a floating-point type.
    """
    return next((x for x in tensors_in(value) if x.is_floating_point() or not skip_integers), None)


def split_batch(batch: object) -> tuple[object, object]:
    """Return a tuple (input, targets) for a batch; targets is None if the batch has none.

    batch: a tensor (the input), a tuple or list (input, targets), or a dict. The targets in a dict
    are the value under the first name in TARGETS that the dict has as a key, and the input is the
    rest of the dict.
    """
    if isinstance(batch, dict):
        key = next((name for name in TARGETS if name in batch), None)
        return {name: part for name, part in batch.items() if name != key}, batch.get(key)
    if isinstance(batch, tuple | list):
        return batch[0], batch[1] if len(batch) > 1 else None
    return batch, None


def call_model(model: nn.Module, batch: object, *, with_targets: bool = False) -> object:
    """Return the model's output for a batch.

    batch: as for `split_batch`. An input that is a dict is passed as keyword arguments.
    with_targets: True means that the targets in a dict are passed, too, so that the model can
    compute its loss; the targets in a tuple or list are never passed. Raises ValueError if the
    model raises any error.
    """
    inputs = batch if with_targets and isinstance(batch, dict) else split_batch(batch)[0]
    try:
        with run_eagerly():
            return model(**inputs) if isinstance(inputs, dict) else model(inputs)
    except Exception as error:  # the model's code may raise any exception
        tensors = (f"{x.dtype} {tuple(x.shape)} on {x.device}" for x in tensors_in(batch))
        raise ValueError(
            f"{type(model).__name__} refuses this batch ({', '.join(tensors) or shown(batch)}): "
            f"{type(error).__name__}: {error}"
        ) from error


def run_eagerly() -> AbstractContextManager:
    """Return a context in which compiled models run eagerly.

    Hooks need this context, because compiled code calls no hooks.
    """
    # torch._dynamo is slow to import; as long as it is not imported, no model is compiled
    if "torch._dynamo" in sys.modules:
        return torch.compiler.set_stance("force_eager")
    return nullcontext()
