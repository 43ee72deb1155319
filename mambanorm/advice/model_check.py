"""`check_model`: the guide's checklist (S4) as checks of a real model; findings in plain words, the model untouched.

A copy of the model is looked at: what it is made of, one forward pass, its running statistics, one backward pass and,
if a loss and a learning rate are given, some steps of training. CHECKS lists every check with the guide's line.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn

from mambanorm.advice import checks_of_behaviour as behaviour
from mambanorm.advice import checks_of_structure as structure
from mambanorm.advice.findings import Exam, Findings
from mambanorm.advice.recommendation import COMPONENTS, TASKS
from mambanorm.advice.trace import first_tensor, trace
from mambanorm.checks import check_flag, check_size, shown
from mambanorm.errors import unknown

CHECKS = {
    "check 1: batch size": structure.small_batches,
    "check 2: architecture": structure.recurrent,
    "check 3: task": structure.wrong_for_the_task,
    "check 4: placement": structure.placed_behind_activation,
    "checks 5, 9, 11: the loss, another norm, a lower rate": behaviour.falling_loss,
    "check 6: running statistics": behaviour.running_statistics,
    "check 7: inference mode": behaviour.forgotten_eval,
    "check 8: gradient flow": behaviour.gradient_flow,
    "check 10: pre-norm": structure.deep_post_norm,
    "when not to: the output layer": structure.norm_on_the_output,
    "GAN: the discriminator": structure.discriminator,
    "GroupNorm: groups": structure.groups,
    "BatchNorm: padding": structure.padding,
}
"""Line of the guide → check. Check 9, another norm, is what a finding says to try."""


def check_model(
    model: nn.Module,
    loader: Iterable | Tensor | None = None,
    *,
    loss: Callable[[object, object], Tensor] | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    task: str | None = None,
    component: str | None = None,
    evaluating: bool = False,
    batches: int = 3,
    forward: Callable[[nn.Module, object], object] | None = None,
) -> Findings:
    """What is wrong with the norms of a model, the worst first; the model, its gradients and all random states stay.

    loader: batches, each an input or a tuple whose first part is it, the second the targets; or one tensor. The first
    `batches` are looked at. Without it only what the model is made of. loss(output, targets) and lr: also whether the
    loss falls. batch_size: rows of a training batch, None = those of the first. task, component: as in `recommend`.
    evaluating: the model is about to predict, as it is. forward(model, batch) calls the model, None = model(input).
    ValueError for an unknown value, TypeError for what is no model.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {shown(model)}")
    _check(batch_size, task, component, evaluating, batches, lr)
    if (loss is None) != (lr is None):
        raise ValueError("loss and lr go together: both, or neither")
    with as_it_was():
        exam, skipped = _examined(model, loader, batches, forward or _call)
        exam.batch_size = batch_size or exam.batch_size
        exam.loss, exam.lr, exam.task, exam.component, exam.evaluating = loss, lr, task, component, evaluating
        return Findings([finding for check in CHECKS.values() for finding in check(exam)], skipped)


def _check(batch_size, task, component, evaluating, batches, lr) -> None:
    for name, value, valid in (("task", task, TASKS), ("component", component, COMPONENTS)):
        if value is not None and value not in valid:
            raise unknown(name, value, valid)
    for name, value in (("batch_size", batch_size), ("batches", batches)):
        if value is not None:
            check_size(name, value)
    check_flag("evaluating", evaluating)
    if lr is not None and not (isinstance(lr, float | int) and lr > 0):
        raise ValueError(f"lr must be a number above 0, got {shown(lr)}")


def _examined(model: nn.Module, loader, batches: int, forward) -> tuple[Exam, list[str]]:
    """A copy of the model, the batches, and the trace of a pass with the first of them."""
    twin, training = copy.deepcopy(model), model.training
    if loader is None:
        return Exam(twin, [], None, forward, training=training), ["all that needs batches: no loader was given"]
    given = [loader] if isinstance(loader, Tensor) else list(islice(iter(loader), batches))
    x = first_tensor(given[0]) if given else None
    if x is None:
        raise ValueError("loader holds no batch with a tensor: needed are tensors, or tuples that begin with one")
    try:
        seen = trace(copy.deepcopy(model), given[0], forward)
    except (RuntimeError, ValueError) as error:
        exam = Exam(twin, [], None, forward, len(x), training=training)
        return exam, [f"all that needs a forward pass: it fails with {type(error).__name__}: {error}"]
    return Exam(twin, given, seen, forward, len(x), training=training), []


def _call(model: nn.Module, batch: object) -> object:
    if isinstance(batch, dict):
        return model(**batch)
    return model(batch[0] if isinstance(batch, tuple | list) else batch)


@contextmanager
def as_it_was():
    """Random states of torch, NumPy and Python as they were, whatever is drawn inside."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
