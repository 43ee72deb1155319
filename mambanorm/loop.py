"""The training loop, to be read from top to bottom.

    fit                 one step per batch: learning rate, loss, backward, stop if the run diverged,
                        optimizer step, callbacks
    batch_order         the rows of each step's batch
    build_optimizer     AdamW without weight decay on vectors, scalars and A_log
    learning_rate       linear warm-up, then a schedule

On the same data, the batch order depends only on the seed, so two arms with the same seed see the
same batches and can be compared in pairs.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mambanorm.kernels.graph_step import graphed

Batch = TypeVar("Batch")


def fit(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Batch],
    loss_of: Callable[[nn.Module, Batch, int], Iterable[Tensor]],
    *,
    lr_of: Callable[[int], float],
    curve: list[dict[str, Any]],
    callbacks: Sequence[Callable[[int], object]] = (),
    clip: float = math.inf,
    cuda_graph: bool = False,
) -> Batch | None:
    """Train the model, one step per batch. Return None, or the batch on which training diverged.

    Divergence is a result: training ends at the first loss or gradient that is not finite, before
    the optimizer uses it.

    loss_of(model, batch, step): yields one loss per micro-batch; the sum of these losses is the
        batch's mean loss.
    lr_of(step): returns the learning rate. Steps count from len(curve) + 1, which is 1 for an empty
        curve.
    curve: list to which each step appends a row: step, train_loss, grad_norm (L2, before clipping)
        and lr.
    callbacks: called with the step number after each step; a true return value ends training.
    clip: a gradient with a larger L2 norm is scaled down to this norm.
    cuda_graph: replay the steps as CUDA graphs (kernels/graph_step.py). `loss_of` must then compute
        the same for every step, and a batch must be a tuple of CUDA tensors of constant shapes.
        If something is in the way, a warning says what, and the steps are not replayed. During the
        training, only the rate and the weights, in place, may be changed.
    """
    parameters = list(model.parameters())  # outside the loop: parameters() visits all modules

    def backward_pass(batch: Batch, step: int) -> tuple[list[Tensor], Tensor]:
        optimizer.zero_grad()
        parts = []
        for part in loss_of(model, batch, step):
            part.backward()
            parts.append(part.detach())
        return parts, nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])

    def optimizer_step(lr: float | Tensor, total_norm: Tensor) -> None:
        for group in optimizer.param_groups:
            group["lr"] = lr
        if clip < math.inf:
            nn.utils.clip_grads_with_norm_(parameters, clip, total_norm)
        optimizer.step()

    functions = backward_pass, optimizer_step
    backward, update = graphed(model, optimizer, *functions) if cuda_graph else functions
    for step, batch in enumerate(batches, start=len(curve) + 1):
        lr = lr_of(step)
        if not model.training:  # before the first step and after an evaluation
            model.train()
        parts, total_norm = backward(batch, step)
        loss, grad_norm = sum(part.item() for part in parts), float(total_norm)
        curve.append({"step": step, "train_loss": loss, "grad_norm": grad_norm, "lr": lr})
        # large finite gradients can have an infinite norm, so check each gradient in that case
        gradients = (p.grad for p in parameters if p.grad is not None)
        are_finite = math.isfinite(grad_norm) or all(bool(g.isfinite().all()) for g in gradients)
        if not (math.isfinite(loss) and are_finite):
            return batch
        update(lr, total_norm)
        if any([callback(step) for callback in callbacks]):  # a list, so that all are called
            break
    return None


# ------------------------------------------------------------------------------------------ batches


def batch_order(seed: int, rows: int, batch_size: int, steps: int) -> Iterator[Tensor]:
    """Return an iterator over the row indices of `steps` batches, drawn from `rows` rows.

    The rows are shuffled anew for each epoch, with random numbers from the seed. The incomplete
    last batch of an epoch is dropped. If batch_size exceeds `rows`, every batch contains all rows.
    """
    generator, size = torch.Generator().manual_seed(seed), min(batch_size, rows)

    def endless_epochs() -> Iterator[Tensor]:
        while True:
            order = torch.randperm(rows, generator=generator)
            yield from order[: rows - rows % size].split(size)

    return islice(endless_epochs(), steps)


# --------------------------------------------------------------------- optimizer and learning rate


# Name → function that makes an optimizer from parameter groups, `lr` and `betas`. Add another
# optimizer here.
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": partial(torch.optim.AdamW, fused=True)  # Loshchilov & Hutter 2019
}


def build_optimizer(
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float = 0.01,
    betas: tuple[float, float] = (0.9, 0.999),
    name: str = "adamw",
) -> torch.optim.Optimizer:
    """Return an optimizer for the model; `name` is a key of OPTIMIZERS.

    Weight decay applies only to parameters with two or more axes, so not to vectors and scalars
    (biases, γ and β of norms, D). Parameters whose names end with one of NOT_DECAYED are excluded,
    too: A_log, as in mamba-ssm, and biases that form a matrix.
    """
    decayed: list[nn.Parameter] = []
    not_decayed: list[nn.Parameter] = []
    for parameter_name, parameter in model.named_parameters():
        if parameter.requires_grad:
            excluded = parameter.dim() < 2 or parameter_name.endswith(NOT_DECAYED)
            (not_decayed if excluded else decayed).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": not_decayed, "weight_decay": 0.0},
    ]
    return OPTIMIZERS[name](groups, lr=lr, betas=betas)


# A parameter whose name ends with one of these texts gets no weight decay, whatever its shape:
# A_log as in mamba-ssm, and biases, because those of a VSSBlock form a matrix.
NOT_DECAYED = ("A_log", "A_logs", "bias")

# Name → function that maps progress (0 after the warm-up, 1 at the last step) to a factor of the
# learning rate. Add another schedule here.
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant_warmup": lambda progress: 1.0,
    "cosine_warmup": lambda progress: 0.5 * (1 + math.cos(math.pi * progress)),
}


def learning_rate(
    step: int, *, lr: float, steps: int, warmup_steps: int = 0, schedule: str = "cosine_warmup"
) -> float:
    """Return the learning rate of one step, counted from 1 to `steps`.

    The rate grows linearly to `lr` in `warmup_steps` steps, then follows `schedule`, a key of
    SCHEDULES.
    """
    if step <= warmup_steps:
        return lr * (step / warmup_steps)
    progress = (step - warmup_steps) / max(steps - warmup_steps, 1)
    return lr * SCHEDULES[schedule](progress)
