"""`check_model`: the guide's checklist (S4) as checks of a real model; findings in plain words, the model untouched.

A copy of the model is looked at: what it is made of, one forward pass, its running statistics, one backward pass and,
if a loss and a learning rate are given, some steps of training. CHECKS lists every check with the guide's line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from torch import Tensor, nn

from mambanorm.advice.recommendation import COMPONENTS, TASKS
from mambanorm.basics.checks import check_flag, check_size, shown
from mambanorm.basics.errors import unknown
from mambanorm.clinic import checks_of_behaviour as behaviour
from mambanorm.clinic import checks_of_structure as structure
from mambanorm.clinic.batches import as_it_was, batches_of, call, check_targets, first_tensor
from mambanorm.clinic.exam import Exam, NotSeen, twin_of
from mambanorm.clinic.provenance import norms_of, trace
from mambanorm.clinic.symptoms import Symptom, Symptoms

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
    "groups, and statistics over one or two values": structure.groups,
    "BatchNorm: padding": structure.padding,
}
"""Line of the guide → check."""
NO_GRAPH = "what stands before and behind each norm: the output has no graph (is there a torch.no_grad in the model?)"


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
) -> Symptoms:
    """What is wrong with the norms of a model, the worst first; the model, its gradients and all random states stay.

    loader: batches, or one tensor. A batch is an input, a tuple (input, targets), or a dict of keyword arguments with
    its targets under "labels" or "targets". The first `batches` are looked at; an iterator loses them, a list or a
    DataLoader does not. Without it only what the model is made of. loss(output, targets) and lr: also whether the
    loss falls. batch_size: rows of a training batch, None = those that a norm sees. task, component: as in `recommend`.
    evaluating: the model is about to predict, as it is. forward(model, batch) calls the model, None = model(input).
    The copy has no hooks of yours. What could not be looked at stands in `skipped`. ValueError for an unknown value, a
    model that cannot be copied, or a loss without targets; TypeError for what is no model or no loader.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {shown(model)}")
    _check(batch_size, task, component, evaluating, batches, lr)
    if (loss is None) != (lr is None):
        raise ValueError("loss and lr go together: both, or neither")
    with as_it_was():
        given = [] if loader is None else batches_of(loader, batches)
        if loss is not None and given:
            check_targets(given[0])
        facts = dict(loss=loss, lr=lr, batch_size=batch_size, task=task, component=component, evaluating=evaluating)
        exam, skipped = _examined(Exam(twin_of(model), forward or call, training=model.training, **facts), given)
        return Symptoms([found for name in CHECKS for found in _findings(name, exam, skipped)], skipped)


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


def _examined(exam: Exam, batches: list) -> tuple[Exam, list[str]]:
    """The exam with what a pass of the first batch shows."""
    if not batches:
        return exam, ["all that needs batches: no loader was given"]
    exam.rows = next(iter(first_tensor(batches[0]).shape), None)
    try:
        exam.trace = trace(exam.twin(), batches[0], exam.forward)
    except Exception as error:  # whatever the caller's code raises
        return exam, [f"all that needs a forward pass: it {_fails(error)}"]
    exam.batches = batches
    blind = exam.trace.output is None or exam.trace.output.grad_fn is None
    return exam, [NO_GRAPH] if blind and any(norms_of(exam.model)) else []


def _findings(name: str, exam: Exam, skipped: list[str]) -> Iterator[Symptom]:
    """What one check finds; why it could not be made goes to `skipped`. The caller's code may raise anything."""
    try:
        yield from CHECKS[name](exam)
    except Exception as error:
        skipped.append(f"{name}: {error if isinstance(error, NotSeen) else f'it {_fails(error)}'}")


def _fails(error: Exception) -> str:
    return f"fails with {type(error).__name__}: {error}"
