"""`check_model`: the guide's checklist (S4) as checks of a real model; findings in plain words, the model untouched.

A copy of the model is looked at: what it is made of, one forward pass, its running statistics, one backward pass and,
if a loss and a learning rate are given, some steps of training. CHECKS lists every check with the guide's line. Lines
2, 3 and 10 (architecture, task, depth) ask what one means to build: `recommend` answers them.

A check takes an Exam and yields symptoms. `check` names the line of the guide's checklist, or the section. What is
before and behind a norm is known from a pass alone: without a batch these checks are silent. Those of what a model is
made of are here, those of what it does in checks_of_behaviour.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from torch import Tensor, nn

from mambanorm.basics.checks import check_flag, shown
from mambanorm.basics.settings import SMALL_BATCH
from mambanorm.basics.text import plural
from mambanorm.look import checks_of_behaviour as behaviour
from mambanorm.look.checks_of_behaviour import most_groups
from mambanorm.look.exam import (
    ACTIVATIONS,
    SOFTMAX,
    WEIGHTED,
    Exam,
    NotSeen,
    channels_of,
    norms_of,
    trace,
    twin_of,
)
from mambanorm.look.findings import Symptom, Symptoms
from mambanorm.look.recording import as_it_was, check_targets, first_tensor


def small_batches(exam: Exam) -> Iterator[Symptom]:
    """Check 1: BatchNorm learns from fewer than 8 rows of its own input. Running statistics, in eval mode, do not mind.

    In a model in train mode a norm in eval mode is frozen; of a model in eval mode it is said what training would do.
    """
    rows, told = {}, ""
    for path, norm in exam.batch_norms:
        if norm.training or not exam.training:
            ran = exam.ran(path)
            rows[path] = ran.shape[0] if ran else exam.rows
    small = {path: n for path, n in rows.items() if n and n < SMALL_BATCH}
    if exam.evaluating or not small:
        return
    path = min(small, key=small.get)
    ran = exam.ran(path)
    if ran:
        values = math.prod(ran.shape) // channels_of(ran.module)
        told = f"; the statistics of the first are taken over {values:,} values a channel"
    learns = "learns" if exam.training else "would learn, when trained,"
    found = f"BatchNorm {learns} from batches of {small[path]} ({plural(len(small), 'such norm')}{told})"
    mend = "GroupNorm, or LN; or larger batches; or freeze the statistics of a pre-trained model"
    severity = "serious" if small[path] <= 2 and exam.training else "warning"
    yield Symptom(severity, path, found, mend, "check 1, mistake 1")


def placed_behind_activation(exam: Exam) -> Iterator[Symptom]:
    """Check 4: convolution → activation → norm, where norm → activation is meant."""
    for ran in exam.trace.seen:
        if ran.kind in ("BN", "IN", "GN") and ACTIVATIONS.match(ran.made_by) and WEIGHTED.match(ran.before):
            what = ran.made_by.removesuffix("Backward0")
            found = f"the norm stands behind the activation ({what}), and that behind the convolution"
            mend = "convolution, norm, activation; or, in residual nets, norm, activation, convolution"
            yield Symptom("note", ran.path, found, mend, "check 4")


def norm_on_the_output(exam: Exam) -> Iterator[Symptom]:
    """When not to normalize, case 1: a norm makes the (B, classes) that the model puts out, or its softmax.

    Features may well end in a norm. That the output is no such thing is told by a loss or a softmax.
    """
    if not exam.trace.ends_in or exam.trace.output.dim() != 2:
        return
    softmax = SOFTMAX.match(exam.trace.output.grad_fn.name())
    sure = softmax or exam.loss
    comes = "is a softmax that comes" if softmax else "comes"
    found = f"the output {tuple(exam.trace.output.shape)} {comes} straight from a norm, so its scale is fixed"
    found += "" if sure else ": fine for features, not for logits or what is regressed"
    mend = "no norm behind the last linear layer"
    yield Symptom("serious" if sure else "warning", exam.trace.ends_in, found, mend, "when not to, 1")


def groups(exam: Exam) -> Iterator[Symptom]:
    """torch's GroupNorm with a statistic over one or two values, or with one channel in each group."""
    for path, norm in exam.model.named_modules():
        if isinstance(norm, nn.GroupNorm):
            ran, g, c = exam.ran(path), norm.num_groups, norm.num_channels
            values = c // g * math.prod(ran.shape[2:]) if ran else math.inf
            if values <= 2:
                left = "nothing" if values == 1 else "only which of the two is larger"
                found = (
                    f"each statistic is taken over {plural(values, 'value')}: {left} is left of them, whatever goes in"
                )
                yield Symptom("serious", path, found, "fewer groups, or a norm over all channels", "GroupNorm")
            elif g > 1 and g == c:
                found = f"{g} groups of one channel each: this is InstanceNorm"
                mend = f"fewer groups, such as {most_groups(c)}, or say InstanceNorm"
                yield Symptom("note", path, found, mend, "GroupNorm")


CHECKS = {
    "check 1: batch size": small_batches,
    "check 4: placement": placed_behind_activation,
    "checks 5, 9, 11: the loss, another norm, a lower rate": behaviour.falling_loss,
    "check 6: running statistics": behaviour.running_statistics,
    "check 7: inference mode": behaviour.forgotten_eval,
    "check 8: gradient flow": behaviour.gradient_flow,
    "when not to: the output layer": norm_on_the_output,
    "GroupNorm: the groups": groups,
}
"""Line of the guide → check."""
NO_GRAPH = "what stands before and behind each norm: the output has no graph (is there a torch.no_grad in the model?)"


def check_model(
    model: nn.Module,
    loader: Iterable | Tensor | None = None,
    *,
    loss: Callable[[object, object], Tensor] | None = None,
    lr: float | None = None,
    evaluating: bool = False,
) -> Symptoms:
    """What is wrong with the norms of a model, the worst first; the model, its gradients and all random states stay.

    loader: batches, or one tensor. A batch is an input, a tuple (input, targets), or a dict of keyword arguments with
    its targets under "labels" or "targets". The first is looked at; an iterator loses it, a list or a DataLoader does
    not. Without it only what the model is made of. loss(output, targets) and lr: also whether the loss falls.
    evaluating: the model is about to predict, as it is. The copy has no hooks of yours. What could not be looked at
    stands in `skipped`. ValueError for an impossible value, a model that cannot be copied, or a loss without targets;
    TypeError for what is no model or no loader.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {shown(model)}")
    check_flag("evaluating", evaluating)
    if lr is not None and not (isinstance(lr, float | int) and lr > 0):
        raise ValueError(f"lr must be a number above 0, got {shown(lr)}")
    if (loss is None) != (lr is None):
        raise ValueError("loss and lr go together: both, or neither")
    with as_it_was():
        batch = None if loader is None else first_batch(loader)
        if loss is not None and batch is not None:
            check_targets(batch)
        exam = Exam(twin_of(model), loss, lr, evaluating=evaluating, training=model.training)
        skipped = _look(exam, batch)
        return Symptoms([found for name in CHECKS for found in _findings(name, exam, skipped)], skipped)


def _look(exam: Exam, batch: object) -> list[str]:
    """Notes in the exam what a pass of the batch shows; returns what could not be seen."""
    if batch is None:
        return ["all that needs batches: no loader was given"]
    exam.rows = next(iter(first_tensor(batch).shape), None)
    try:
        exam.trace = trace(exam.twin(), batch)
    except Exception as error:  # whatever the caller's code raises
        return [f"all that needs a forward pass: it {_fails(error)}"]
    exam.batch = batch
    blind = exam.trace.output is None or exam.trace.output.grad_fn is None
    return [NO_GRAPH] if blind and any(norms_of(exam.model)) else []


def _findings(name: str, exam: Exam, skipped: list[str]) -> Iterator[Symptom]:
    """What one check finds; why it could not be made goes to `skipped`. The caller's code may raise anything."""
    try:
        yield from CHECKS[name](exam)
    except Exception as error:
        skipped.append(f"{name}: {error if isinstance(error, NotSeen) else f'it {_fails(error)}'}")


def _fails(error: Exception) -> str:
    return f"fails with {type(error).__name__}: {error}"


def first_batch(loader: Iterable | Tensor) -> object:
    """The first batch of a loader. TypeError, ValueError for what is none."""
    if isinstance(loader, Tensor):
        return loader
    if isinstance(loader, dict) or (isinstance(loader, tuple) and isinstance(next(iter(loader), None), Tensor)):
        one = "{…}" if isinstance(loader, dict) else "(X, y)"
        raise ValueError(f"loader is one batch, a {type(loader).__name__}: did you mean [{one}], a list of batches?")
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise TypeError(f"loader must be one tensor, or a list or a DataLoader of batches, got {shown(loader)}")
    batch = next(iter(loader), None)
    if first_tensor(batch) is None:
        raise ValueError("loader holds no batch with a tensor: needed are tensors, or tuples that begin with one")
    return batch
