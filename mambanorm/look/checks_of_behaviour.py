"""Checks of what a model does: with its running statistics, in train and eval mode, with gradients, and with its loss.

They compute on the Exam's copy of the model; the model itself is never touched.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mambanorm.basics.text import plural
from mambanorm.look.exam import DROPOUTS, Exam, NotSeen, norm_kind, norms_of, takes_batch_statistics
from mambanorm.look.findings import FLOW, LAYERS, Symptom, non_finite
from mambanorm.look.recording import call, first_tensor, split
from mambanorm.look.sites import Pass

STEPS = 12
STILL = 0.01
"""Change of the loss, as a share of it, below which the rate may be too low."""
OTHERS = "its second half replaced by copies of its first row"
OVERFLOW = "a norm before it, or bfloat16 in float16's place; mn.diagnose shows every site"
MOST_GROUPS = 32


def running_statistics(exam: Exam) -> Iterator[Symptom]:
    """Check 6: running statistics that no batch has updated, or that a training pass does not move."""
    tracked = {path: m for path, m, _ in norms_of(exam.model) if getattr(m, "running_mean", None) is not None}
    frozen = {path for path, norm in tracked.items() if exam.training and not norm.training}
    moved = {path for path, norm in tracked.items() if _has_seen_batches(norm)}
    if fresh := [path for path in tracked if path not in moved and (exam.evaluating or path in frozen)]:
        found = f"{len(fresh)} of {len(tracked)} norms have seen no batch: they evaluate with mean 0 and variance 1"
        mend = "train first, load the buffers with the weights, or run some batches in train mode"
        yield Symptom("serious", fresh[0], found, mend, "check 6")
    learn = {path: norm for path, norm in tracked.items() if path not in frozen}
    if exam.evaluating or not learn or exam.batch is None:
        return
    model = exam.learner()
    with torch.no_grad():
        call(model, exam.batch)
    after = {path: model.get_submodule(path) for path in learn if exam.ran(path)}
    still = [path for path, norm in after.items() if torch.equal(norm.running_mean, learn[path].running_mean)
             and torch.equal(norm.running_var, learn[path].running_var)]  # fmt: skip
    if still:
        found = f"a training pass does not move the running statistics of {plural(len(still), 'norm')}"
        mend = "a momentum above 0; call the module itself, or hand its running_mean and running_var to F.batch_norm"
        yield Symptom("serious", still[0], found, mend, "check 6")


def _has_seen_batches(norm: nn.Module) -> bool:
    """Whether the statistics have moved, as far as can be told."""
    counter = getattr(norm, "num_batches_tracked", None)
    moved = bool((norm.running_mean != 0).any() or (norm.running_var != 1).any())
    return moved or (counter is not None and int(counter) > 0 and getattr(norm, "momentum", None) != 0)


def forgotten_eval(exam: Exam) -> Iterator[Symptom]:
    """Check 7: the model is to be evaluated, and it, or a part of it, depends on the batch or draws at random.

    Looked at is the mode in which every module was handed in.
    """
    norms = [path for path, m in exam.model.named_modules() if _depends_on_the_batch(m)]
    random = [path for path, m in exam.model.named_modules() if isinstance(m, DROPOUTS) and m.p and m.training]
    if not exam.evaluating or not (exam.training or norms or random):
        return
    mode, where, mend = "train mode", "", "model.eval() before predicting"
    if not exam.training:
        mode, where = "the model is in eval mode, this part is not", (norms + random)[0]
        if norms and not exam.model.get_submodule(where).training:
            mode, mend = "eval mode, but without running statistics", "track_running_stats=True, or GroupNorm"
    change = _change_by_mates(exam)
    if change is not None and change > 1e-4 and (exam.training or norms):
        found = f"with other rows in its batch ({OTHERS}) the same row's output changes by {100 * change:.0f} %"
    elif random:
        found = f"{plural(len(random), 'dropout layer')} on"
    elif norms and (exam.training or change is None):
        found = "norms use the statistics of this batch, not their running ones"
    else:
        return
    yield Symptom("serious", where, f"{mode}: {found}", mend, "check 7, mistake 3")


def with_input(batch: object, x: Tensor) -> object:
    """The batch with x in place of its first tensor."""
    if isinstance(batch, Tensor):
        return x
    items = list(batch.items() if isinstance(batch, dict) else enumerate(batch))
    key, part = next((key, part) for key, part in items if first_tensor(part) is not None)
    parts = {**dict(items), key: with_input(part, x)}
    return parts if isinstance(batch, dict) else tuple(parts.values())


def _depends_on_the_batch(module: nn.Module) -> bool:
    """Whether a norm takes the statistics of this batch, in the mode in which it is."""
    kind = norm_kind(module)
    tracks = getattr(module, "running_mean", None) is not None
    return kind is not None and (module.training if tracks else takes_batch_statistics(module, kind))


@torch.no_grad()
def _change_by_mates(exam: Exam) -> float | None:
    """‖change‖ / ‖output‖ of the first half of a batch when its second half is replaced; None if that cannot be told.

    The replacement, copies of the first row, is an input that the model knows, whatever it means.
    """
    x = first_tensor(exam.batch) if exam.batch is not None else None
    if not exam.rows or exam.rows < 2 or x is None:
        return None
    half, others = exam.rows // 2, x.clone()
    others[half:] = x[:1]
    outputs = []
    for given in (x, others):
        torch.manual_seed(0)  # dropout draws the same both times
        output = _tensor_of(call(exam.twin(), with_input(exam.batch, given)))
        if not output.dim() or len(output) != len(x):
            return None
        outputs.append(output[:half].double())
    return float((outputs[1] - outputs[0]).norm() / outputs[0].norm().clamp(min=1e-12))


def gradient_flow(exam: Exam) -> Iterator[Symptom]:
    """Check 8: gradients of the first weights against those of the last, and any that are not finite: of these the
    first value that is not, forward or backward, as `diagnose` tells it.

    First and last are in the order of definition, which is that of depth in most models, but need not be.
    """
    if exam.batch is None:
        return
    sizes, seen, loss = gradients(exam)
    broken = sum(not math.isfinite(size) for size in sizes.values())
    if seen.first or broken or not math.isfinite(loss):
        spoilt = f"; gradients of {broken} of {plural(len(sizes), 'weight')} are not finite"
        yield from non_finite(seen.first, seen.first_gradient, loss, OVERFLOW, "check 8", spoilt)
        return
    if not sizes:
        raise NotSeen("no weight matrix has a gradient")
    third, values = len(sizes) // 3, list(sizes.values())
    if len(sizes) < LAYERS:
        return
    first, last = np.median(values[:third]), np.median(values[-third:])
    silent = any(p.dim() >= 2 and not p.any() for p in exam.model.parameters())  # no gradient passes a zero yet
    if first == last == 0 or (silent and not (first and last)) or (last and FLOW < first / last < 1 / FLOW):
        return
    word = "vanish" if first < last else "explode"
    found = f"the last layers have no gradient, the first layers have one (RMS {first:.1e})"
    if last:
        found = f"gradients {word}: the first layers' (RMS {first:.1e}) are {first / last:.1e} times the last layers'"
    mend = "a norm in each layer (BN in CNNs, pre-norm in Transformers), residual paths, He's initial weights"
    yield Symptom("serious", next(iter(sizes)), found, mend, "check 8")


def gradients(exam: Exam) -> tuple[dict[str, float], Pass, float]:
    """RMS of the gradient of each weight matrix, in the order of definition (not of depth), from a batch in train mode;
    what was seen on the way that is not finite; and the loss.

    Without a loss it is that of the mean square of the output.
    """
    model, seen = exam.learner(), Pass()
    model.zero_grad(set_to_none=True)
    with torch.enable_grad(), seen.open(model):
        output = call(model, exam.batch)
        loss = exam.loss(output, split(exam.batch)[1]) if exam.loss else _tensor_of(output).float().square().mean()
        value = float(loss.detach().mean())
        seen.end_forward(value)
        if loss.requires_grad:
            loss.backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.dim() >= 2 and p.grad is not None}
    return {name: float(grad.double().square().mean().sqrt()) for name, grad in grads.items()}, seen, value


def _tensor_of(output: object) -> Tensor:
    found = first_tensor(output)
    if found is None:
        raise NotSeen(f"the model puts out {type(output).__name__}, in which no tensor was found")
    return found


def falling_loss(exam: Exam) -> Iterator[Symptom]:
    """Checks 5, 9 and 11: does the loss fall in a few steps of SGD on a copy, and would another rate or norm do better?

    A tenth of the rate is tried; where the loss hardly changes, 10, 100, … times the rate up to 1 as well. Then, at the
    given rate, the other norms of check 9.
    """
    if exam.batch is None or not exam.loss:
        return
    losses = descent(exam, exam.lr)
    problem = trouble_of(losses)
    if not problem or not math.isfinite(losses[0]):  # no rate helps a first pass that is not finite: see gradient_flow
        return
    rates = [exam.lr / 10]
    if abs(losses[-1] - losses[0]) < STILL * abs(losses[0]):  # False where a loss is not finite
        rates += [exam.lr * 10**n for n in range(1, 1 + max(1, math.floor(-math.log10(exam.lr))))]
    mends = []
    for lr in rates:
        other = descent(exam, lr)
        if not trouble_of(other) and (lr < exam.lr or other[-1] < (1 - STILL) * other[0]):
            mends.append(f"lr = {lr:g}: there the loss falls from {other[0]:.3g} to {other[-1]:.3g}")
            break
    model = exam.learner()
    if (swapped := swap_norms(model)) and not trouble_of(other := descent(exam, exam.lr, model)):
        mends.append(f"{swapped}: with it the loss falls from {other[0]:.3g} to {other[-1]:.3g}")
    mend = "; or ".join(mends) or "a norm before each activation, or other initial weights"
    yield Symptom("serious" if not math.isfinite(losses[-1]) else "warning", "", problem, mend, "checks 5, 9 and 11")


def descent(exam: Exam, lr: float, model: nn.Module | None = None) -> list[float]:
    """The loss of the first batch before and after each step of plain SGD on it; it ends where it is not finite.
    `model` learns; None = a copy of the exam's."""
    model, batch, losses = exam.learner() if model is None else model, exam.batch, []
    weights = [p for p in model.parameters() if p.requires_grad]
    if not weights:
        raise NotSeen("no parameter learns: the model has none, or all are frozen")
    learn = torch.optim.SGD(weights, lr)
    for _ in range(STEPS):
        torch.manual_seed(0)  # dropout leaves out the same units in every step, so that steps compare
        with torch.enable_grad():
            loss = exam.loss(call(model, batch), split(batch)[1])
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            break
        learn.zero_grad()
        loss.backward()
        learn.step()
    return losses


def trouble_of(losses: list[float]) -> str:
    """What is wrong with a curve: not finite, no lower at its end, or rising in a third of its steps; "" if nothing."""
    rises = sum(b > a for a, b in itertools.pairwise(losses))
    if not math.isfinite(losses[-1]):
        return f"the loss is not finite after {len(losses) - 1} steps (it began at {losses[0]:.3g})"
    if losses[-1] >= losses[0]:
        return f"the loss does not fall: {losses[0]:.3g} before, {losses[-1]:.3g} after {len(losses)} steps"
    if rises > len(losses) / 3:
        return f"the loss rises in {rises} of {len(losses) - 1} steps on one and the same batch"
    return ""


def swap_norms(model: nn.Module) -> str:
    """Puts a GroupNorm in the place of each of torch's BatchNorms and an RMSNorm in that of each LayerNorm, new and
    untrained; returns what was swapped, in words, "" if there is none."""
    swapped = {}
    for parent in list(model.modules()):
        for name, norm in list(parent.named_children()):
            like = next(iter(norm.parameters(recurse=False)), torch.empty(0))
            where = dict(device=like.device, dtype=like.dtype)
            if isinstance(norm, _BatchNorm):
                n = norm.num_features
                other = nn.GroupNorm(most_groups(n), n, norm.eps, norm.affine, **where)
            elif isinstance(norm, nn.LayerNorm):
                other = nn.RMSNorm(norm.normalized_shape, norm.eps, norm.elementwise_affine, **where)
            else:
                continue
            setattr(parent, name, other.train(norm.training))
            swapped[f"{type(other).__name__} in place of {type(norm).__name__}"] = None
    return " and ".join(swapped)


def most_groups(channels: int) -> int:
    """The most groups, up to 32, that divide the channels and leave four in each; 1 if none do."""
    return max(n for n in range(1, max(min(channels // 4, MOST_GROUPS), 1) + 1) if channels % n == 0)
