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

from mambanorm.advice.findings import Exam, Finding, NotSeen
from mambanorm.advice.given import first_tensor, split, with_input
from mambanorm.advice.swap import swap_norms
from mambanorm.advice.trace import DROPOUTS, channel_axis, norm_kind, norms_of, takes_batch_statistics
from mambanorm.basics.text import plural
from mambanorm.diagnostics.nonfinite import BACKWARD, Search

FAR = 1.0
"""How far running means may lie from a batch's, in standard deviations of the channel, before they count as stale."""
WIDE = 4.0
"""By what factor running variances may differ."""
FLOW = 1e-4
"""Ratio of the gradients of the first layers to those of the last below which they vanish; above its inverse they
explode."""
LAYERS = 8
"""Weights from which gradients over depth mean something."""
STEPS = 12
STILL = 0.01
"""Change of the loss, as a share of it, below which the rate may be too low."""
OTHERS = "its second half replaced by copies of its first row"


def running_statistics(exam: Exam) -> Iterator[Finding]:
    """Check 6: running statistics that no batch has updated, that a training pass does not move, or that are stale."""
    tracked = [(path, m) for path, m, _ in norms_of(exam.model) if getattr(m, "running_mean", None) is not None]
    fresh = [path for path, m in tracked if not _batches_seen(m) and (exam.evaluating or _frozen(exam, m))]
    if fresh:
        found = f"{len(fresh)} of {len(tracked)} norms have seen no batch: they evaluate with mean 0 and variance 1"
        mend = "train first, load the buffers with the weights, or run some batches in train mode"
        yield Finding("serious", fresh[0], found, mend, "check 6")
    seen_batches = [(path, m) for path, m in tracked if _batches_seen(m)]
    if seen_batches and exam.batches:
        yield from _stale(exam, seen_batches)
    if not exam.evaluating:
        yield from _unmoved(exam, [(path, m) for path, m in tracked if not _frozen(exam, m)])


def _unmoved(exam: Exam, norms: list[tuple[str, nn.Module]]) -> Iterator[Finding]:
    """Norms of momentum 0, and those whose statistics stay as they are in a training pass."""
    stuck = [path for path, norm in norms if getattr(norm, "momentum", None) == 0]
    if stuck:
        found = f"{plural(len(stuck), 'norm')} with momentum 0: running statistics will never be updated"
        yield Finding("serious", stuck[0], found, "momentum=0.1, the weight of the new statistic", "check 6")
    elif norms and exam.batches:
        model, ran = exam.learner(), {seen.path for seen in exam.trace.seen}
        with torch.no_grad():
            exam.forward(model, exam.batches[0])
        pairs = [(path, _moments(norm, model.get_submodule(path))) for path, norm in norms if path in ran]
        still = [path for path, moments in pairs if all(torch.equal(before, after) for before, after in moments)]
        if still:
            found = f"a training pass does not move the running statistics of {plural(len(still), 'norm')}"
            mend = "call the module itself, or hand its running_mean and running_var to F.batch_norm"
            yield Finding("serious", still[0], found, mend, "check 6")


def _moments(*norms: nn.Module) -> list[tuple[Tensor, Tensor]]:
    return [tuple(getattr(norm, name) for norm in norms) for name in ("running_mean", "running_var")]


def _batches_seen(norm: nn.Module) -> bool:
    """Whether the statistics have moved, as far as can be told."""
    counter = getattr(norm, "num_batches_tracked", None)
    moved = bool((norm.running_mean != 0).any() or (norm.running_var != 1).any())
    return moved or (counter is not None and int(counter) > 0 and getattr(norm, "momentum", None) != 0)


def _frozen(exam: Exam, norm: nn.Module) -> bool:
    """A norm in eval mode inside a model that was handed in in train mode."""
    return exam.training and not norm.training


def _stale(exam: Exam, norms: list[tuple[str, nn.Module]]) -> Iterator[Finding]:
    """Compares the running statistics with those that the norms have in eval mode on these batches."""
    inputs: dict[str, list[Tensor]] = {path: [] for path, _ in norms}
    model = exam.twin().eval()
    for path in inputs:
        model.get_submodule(path).register_forward_pre_hook(lambda m, args, path=path: inputs[path].append(args[0]))
    with torch.no_grad():
        for batch in exam.batches:
            exam.forward(model, batch)
    for path, norm in norms:
        if sum(x.numel() for x in inputs[path]) <= len(norm.running_mean):  # none, or one value, without a variance
            continue
        far, wide = _distance(inputs[path], norm)
        if far > FAR or not 1 / WIDE < wide < WIDE:
            found = (
                f"running means lie {far:.1f} standard deviations from these batches', variances differ {wide:.2g}-fold"
            )
            mend = "evaluate on data prepared as in training; run some batches in train mode without learning"
            yield Finding("warning", path, found, mend, "check 6")
            return  # what follows it sees shifted inputs as well


def _distance(inputs: list[Tensor], norm: nn.Module) -> tuple[float, float]:
    """Median over the channels: distance of the means in standard deviations, and ratio of the variances."""
    channels = len(norm.running_mean)
    axis = channel_axis(norm, tuple(inputs[0].shape))
    x = torch.cat([each.movedim(axis, -1).reshape(-1, channels) for each in inputs]).double()
    mean, var = x.mean(0), x.var(0) + norm.eps
    far = ((norm.running_mean - mean).abs() / var.sqrt()).median()
    return float(far), float(((norm.running_var + norm.eps) / var).log().median().exp())


def forgotten_eval(exam: Exam) -> Iterator[Finding]:
    """Check 7: the model is to be evaluated, and it, or a part of it, depends on the batch or draws at random.

    Looked at is the mode in which every module was handed in.
    """
    norms = [path for path, m in exam.model.named_modules() if _depends_on_the_batch(m)] if exam.evaluating else []
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
    yield Finding("serious", where, f"{mode}: {found}", mend, "check 7, mistake 3")


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
    x = first_tensor(exam.batches[0]) if exam.batches else None
    if not exam.rows or exam.rows < 2 or x is None:
        return None
    half, others = exam.rows // 2, x.clone()
    others[half:] = x[:1]
    outputs = []
    for given in (x, others):
        torch.manual_seed(0)  # dropout draws the same both times
        output = _tensor_of(exam.forward(exam.twin(), with_input(exam.batches[0], given)))
        if not output.dim() or len(output) != len(x):
            return None
        outputs.append(output[:half].double())
    return float((outputs[1] - outputs[0]).norm() / outputs[0].norm().clamp(min=1e-12))


def gradient_flow(exam: Exam) -> Iterator[Finding]:
    """Check 8: gradients of the first weights against those of the last, and any that are not finite: of these the
    first value that is not, forward or backward, as `diagnose` tells it.

    First and last are in the order of definition, which is that of depth in most models, but need not be.
    """
    if not exam.batches:
        return
    sizes, seen, loss = gradients(exam)
    broken = [name for name, size in sizes.items() if not math.isfinite(size)]
    if seen.first or broken or not math.isfinite(loss):
        yield _not_finite(seen, loss, f"; gradients of {len(broken)} of {plural(len(sizes), 'weight')} are not finite")
        return
    if not sizes:
        raise NotSeen("no weight matrix has a gradient")
    if len(sizes) >= LAYERS:
        third, values = len(sizes) // 3, list(sizes.values())
        if found := _flow(np.median(values[:third]), np.median(values[-third:]), _silent(exam)):
            mend = "a norm in each layer (BN in CNNs, pre-norm in Transformers), residual paths, He's initial weights"
            yield Finding("serious", next(iter(sizes)), found, mend, "check 8")


def _not_finite(seen: Search, loss: float, spoilt: str) -> Finding:
    """Where it begins, in the words of `diagnose`; spoilt: what it has done to the gradients."""
    if (first := seen.first) is not None:
        mend = first.look_at or "a norm before it, or bfloat16 in float16's place; mn.diagnose shows every site"
        return Finding("serious", first.where, first.told + spoilt, mend, "check 8")
    if (first := seen.first_gradient) is not None and math.isfinite(loss):
        return Finding("serious", first.where, first.told_backward + spoilt, BACKWARD, "check 8")
    found = f"every value of the forward pass is finite and the loss is {loss:.3g}{spoilt}"
    return Finding("serious", "", found, "look at the loss: log of 0, or a mean of no values", "check 8")


def _flow(first: float, last: float, silent: bool) -> str:
    """What is wrong with the gradients' sizes, "" if nothing. silent: a weight is zero: no gradient passes it yet."""
    if first == last == 0 or (silent and not (first and last)):
        return ""
    if last == 0:
        return f"the last layers have no gradient, the first layers have one (RMS {first:.1e})"
    if FLOW < first / last < 1 / FLOW:
        return ""
    word = "vanish" if first < last else "explode"
    return f"gradients {word}: the first layers' (RMS {first:.1e}) are {first / last:.1e} times the last layers'"


def _silent(exam: Exam) -> bool:
    return any(p.dim() >= 2 and not p.any() for p in exam.model.parameters())


def gradients(exam: Exam) -> tuple[dict[str, float], Search, float]:
    """RMS of the gradient of each weight matrix, in the order of definition (not of depth), from a batch in train mode;
    what was seen on the way that is not finite; and the loss.

    Without a loss it is that of the mean square of the output.
    """
    model, seen = exam.learner(), Search()
    model.zero_grad(set_to_none=True)
    with torch.enable_grad(), seen.open(model):
        output = exam.forward(model, exam.batches[0])
        loss = exam.loss(output, split(exam.batches[0])[1]) if exam.loss else _tensor_of(output).float().square().mean()
        value = float(loss.detach().mean())
        seen.end_forward(value)
        if loss.requires_grad:
            loss.backward()
    named = [(name, p.grad) for name, p in model.named_parameters() if p.dim() >= 2 and p.grad is not None]
    return {name: float(grad.double().square().mean().sqrt()) for name, grad in named}, seen, value


def _tensor_of(output: object) -> Tensor:
    found = first_tensor(output)
    if found is None:
        raise NotSeen(f"the model puts out {type(output).__name__}, in which no tensor was found")
    return found


def falling_loss(exam: Exam) -> Iterator[Finding]:
    """Checks 5, 9 and 11: does the loss fall in a few steps of SGD on a copy, and would another rate or norm do better?

    A tenth of the rate is tried; where the loss hardly changes, 10, 100, … times the rate up to 1 as well. Then, at the
    given rate, the other norms of check 9.
    """
    if not (exam.batches and exam.loss and exam.lr):
        return
    losses = descent(exam, exam.lr)
    problem = told(losses)
    if not problem or not math.isfinite(losses[0]):  # no rate helps a first pass that is not finite: see gradient_flow
        return
    rates = [exam.lr / 10]
    if abs(losses[-1] - losses[0]) < STILL * abs(losses[0]):  # False where a loss is not finite
        rates += [exam.lr * 10**n for n in range(1, 1 + max(1, math.floor(-math.log10(exam.lr))))]
    mends = []
    for lr in rates:
        other = descent(exam, lr)
        if not told(other) and (lr < exam.lr or other[-1] < (1 - STILL) * other[0]):
            mends.append(f"lr = {lr:g}: there the loss falls from {other[0]:.3g} to {other[-1]:.3g}")
            break
    model = exam.learner()
    if (swapped := swap_norms(model)) and not told(other := descent(exam, exam.lr, model)):
        mends.append(f"{swapped}: with it the loss falls from {other[0]:.3g} to {other[-1]:.3g}")
    mend = "; or ".join(mends) or "a norm before each activation, or other initial weights"
    yield Finding("serious" if not math.isfinite(losses[-1]) else "warning", "", problem, mend, "checks 5, 9 and 11")


def descent(exam: Exam, lr: float, model: nn.Module | None = None) -> list[float]:
    """The loss of the first batch before and after each step of plain SGD on it; it ends where it is not finite.
    `model` learns; None = a copy of the exam's."""
    model, batch, losses = exam.learner() if model is None else model, exam.batches[0], []
    weights = [p for p in model.parameters() if p.requires_grad]
    if not weights:
        raise NotSeen("no parameter learns: the model has none, or all are frozen")
    learn = torch.optim.SGD(weights, lr)
    for _ in range(STEPS):
        torch.manual_seed(0)  # dropout leaves out the same units in every step, so that steps compare
        with torch.enable_grad():
            loss = exam.loss(exam.forward(model, batch), split(batch)[1])
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            break
        learn.zero_grad()
        loss.backward()
        learn.step()
    return losses


def told(losses: list[float]) -> str:
    """What is wrong with a curve: not finite, no lower at its end, or rising in a third of its steps; "" if nothing."""
    rises = sum(b > a for a, b in itertools.pairwise(losses))
    if not math.isfinite(losses[-1]):
        return f"the loss is not finite after {len(losses) - 1} steps (it began at {losses[0]:.3g})"
    if losses[-1] >= losses[0]:
        return f"the loss does not fall: {losses[0]:.3g} before, {losses[-1]:.3g} after {len(losses)} steps"
    if rises > len(losses) / 3:
        return f"the loss rises in {rises} of {len(losses) - 1} steps on one and the same batch"
    return ""
