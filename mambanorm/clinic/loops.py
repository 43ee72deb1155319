"""`watch`: a training loop under observation; `trainer_callback`: the same for Hugging Face's Trainer.

with mn.watch(model, optimizer) as watched:
    for x, y in loader:
        loss = watched.loss(criterion(model(x), y))   # the call of `loss` may be left out
        optimizer.zero_grad(); loss.backward(); optimizer.step()
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import nn

from mambanorm.basics.atomic import writable_folder
from mambanorm.basics.checks import check_size, shown
from mambanorm.basics.text import plural
from mambanorm.clinic.reports import Report
from mambanorm.clinic.watching import Watched


def watch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    ring: int = 64,
    every: int = 100,
    folder: str | Path = "clinic",
) -> Watched:
    """A context manager that watches every step of `optimizer` while it is open.

    When the loss or a gradient is not finite it writes the weights of the last finite step (`step-<n>.safetensors`) and
    a picture of the steps before (`step-<n>.png`) into `folder`, and raises NonFinite in place of the optimizer's step:
    the model keeps its finite weights and buffers, `error.report` has the first non-finite site and the frames. With a
    GradScaler it sees the scaled gradients of the steps that the scaler makes; where it makes none, five batches in a
    row that are not finite raise NonFinite from the model's next call. A step whose loss and gradients are finite is
    stopped too where a layer or a weight holds values whose squares leave float32. Of accumulated gradients all are
    looked at, and the last batch alone is run again to find where it began.

    ring: steps that are remembered. every: steps between two copies of the weights; a copy takes the weights' size of
    main memory, once. TypeError for what is no module or optimizer; ValueError for a size or folder that cannot be, and
    for an optimizer that holds none of the model's weights that learn; where it lacks some, a warning.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {shown(model)}")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {shown(optimizer)}")
    _check_holds(model, optimizer)
    return new_watch(model, optimizer, ring, every, folder)


def _check_holds(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """ValueError for an optimizer that holds no weight of the model that learns, a warning where it lacks some."""
    weights = {id(weight): name for name, weight in model.named_parameters() if weight.requires_grad}
    held = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    lacks = [name for key, name in weights.items() if key not in held]
    given = f"the optimizer holds {len(weights) - len(lacks) or 'none'} of the {plural(len(weights), 'weight')} of "
    given += f"{type(model).__name__} that learn"
    if lacks and len(lacks) == len(weights):
        raise ValueError(f"{given}: give watch this model's own optimizer, made of its parameters()")
    if lacks:
        warnings.warn(f"{given}, not {lacks[0]}: only its steps are watched", stacklevel=3)


def new_watch(model: nn.Module, optimizer, ring: int, every: int, folder: str | Path) -> Watched:
    """A Watched, not entered yet; optimizer None: `check` is to be called before each step."""
    check_size("ring", ring)
    check_size("every", every)
    return Watched(model, optimizer, ring, every, writable_folder(folder, "the report"))


def trainer_callback(*, ring: int = 64, every: int = 100, folder: str | Path = "clinic"):
    """`watch` for Hugging Face: Trainer(…, callbacks=[mn.trainer_callback()]).

    At the first step that is not finite it prints the report, drops that step's gradients, so that the model keeps its
    finite weights, and ends the training. `callback.report` is None until then. Needs transformers.
    """
    from transformers import TrainerCallback

    class ClinicCallback(TrainerCallback):
        watch: Watched | None = None

        @property
        def report(self) -> Report | None:
            return None if self.watch is None else self.watch.report

        def on_train_begin(self, args, state, control, model=None, **_):
            self.watch = new_watch(model, None, ring, every, folder).__enter__()

        def on_pre_optimizer_step(self, args, state, control, model=None, **_):
            if (report := self.watch.check()) is not None:
                print(report)
                self.watch.model.zero_grad(set_to_none=True)
                control.should_training_stop = True
            return control

        def on_train_end(self, args, state, control, **_):
            self.watch.__exit__()

    return ClinicCallback()
