"""The training loop, to be read from top to bottom: whatever this kit trains goes through `fit`, or through a few lines
of its own that need no more.

    fit                 one step a batch: rate, loss, backward, a look at divergence, optimizer step, observers
    batch_order         the rows of each step's batch
    micro_batches       the parts of a batch that go through the model one after the other
    build_optimizer     the optimizer of a config; OPTIMIZERS is the one place to add another
    learning_rate       the rate of each step of a config; SCHEDULES is the one place to add another

What a run of the study adds to it is handed to it by `runs/run.py`: the loss with all that changes it
(runs/regimen.py), and what else happens after a step (runs/observers.py).

Paired by construction: the batch order follows from the seed alone. Two arms with one seed see the same batches.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mambanorm.config import RunConfig
from mambanorm.norms.base import is_norm

Batch = TypeVar("Batch")


def fit(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Batch],
    loss_of: Callable[[nn.Module, Batch, int], Iterable[Tensor]],
    *,
    rate: Callable[[int], float],
    curve: list[dict[str, Any]],
    observers: Sequence[Callable[[int], object]] = (),
    clip: float = math.inf,
) -> Batch | None:
    """Trains the model, one step a batch. Divergence is a result and no exception: the training ends at the first loss
    or gradient that is not finite, before the optimizer sees it, and that batch is returned; else None.

    loss_of(model, batch, step): the parts of the batch's mean loss, one for each micro-batch; their gradients add up.
    rate(step): the learning rate. Steps count from 1, or go on from a curve that has some.
    curve: gets a row a step: step, train_loss, grad_norm (L2 norm of all gradients, before they are clipped), lr.
    observers: each is called with the step after it; one that returns something true ends the training.
    clip: the largest grad_norm that the optimizer sees.
    """
    learned = list(model.parameters())  # once: it walks through all modules
    for step, batch in enumerate(batches, start=len(curve) + 1):
        lr = rate(step)
        for group in optimizer.param_groups:
            group["lr"] = lr
        if not model.training:  # at the start, or after an evaluation
            model.train()
        optimizer.zero_grad()
        parts = []
        for part in loss_of(model, batch, step):
            part.backward()
            parts.append(part.detach())
        total_norm = nn.utils.get_total_norm([p.grad for p in learned if p.grad is not None])
        loss, grad_norm = sum(part.item() for part in parts), float(total_norm)
        curve.append({"step": step, "train_loss": loss, "grad_norm": grad_norm, "lr": lr})
        if not (math.isfinite(loss) and (math.isfinite(grad_norm) or finite_gradients(learned))):
            return batch
        if clip < math.inf:
            nn.utils.clip_grads_with_norm_(learned, clip, total_norm)
        optimizer.step()
        if any([observe(step) for observe in observers]):  # a list, so that every one is called
            break
    return None


def finite_gradients(parameters: Iterable[nn.Parameter]) -> bool:
    """Whether every gradient is finite: the norm of large finite gradients can itself overflow."""
    return all(bool(p.grad.isfinite().all()) for p in parameters if p.grad is not None)


# ---------------------------------------------------------------------------------------------------------------------
# batches


def batch_order(config: RunConfig, n: int) -> Iterator[Tensor]:
    """Rows of each step's batch, `steps` times: shuffled epochs, whose incomplete last batch is dropped."""
    generator = torch.Generator().manual_seed(config.seed)
    size, given = min(config.batch_size, n), 0
    while given < config.steps:
        order = torch.randperm(n, generator=generator)
        for rows in order[: n - n % size].split(size):
            if given == config.steps:
                return
            given += 1
            yield rows


def micro_batches(rows: int, size: int) -> list[slice]:
    """The parts of a batch; size 0 = all of it at once."""
    return [slice(start, start + (size or rows)) for start in range(0, rows, size or rows)]


# ---------------------------------------------------------------------------------------------------------------------
# optimizer and learning rate

Groups = list[dict[str, Any]]  # of parameters, as torch's optimizers take them


def adamw(groups: Groups, config: RunConfig) -> torch.optim.Optimizer:
    """Loshchilov & Hutter 2019, in one fused loop over all parameters."""
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=True)


OPTIMIZERS: dict[str, Callable[[Groups, RunConfig], torch.optim.Optimizer]] = {"adamw": adamw}
"""Name, as `RunConfig.optimizer` has it → a function of the parameter groups and the config. If it needs a new setting,
add a field to RunConfig."""


def build_optimizer(model: nn.Module, config: RunConfig) -> torch.optim.Optimizer:
    """The optimizer that the config names. No weight decay for A_log, D, biases, and this kit's and torch's norms."""
    in_norms = {id(p) for module in model.modules() if is_norm(module) for p in module.parameters()}
    decay, no_decay = [], []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            spared = parameter.dim() < 2 or name.endswith(("A_log", "A_logs", "bias")) or id(parameter) in in_norms
            (no_decay if spared else decay).append(parameter)
    groups = [{"params": decay, "weight_decay": config.weight_decay}, {"params": no_decay, "weight_decay": 0.0}]
    return OPTIMIZERS[config.optimizer](groups, config)


SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant_warmup": lambda progress: 1.0,
    "cosine_warmup": lambda progress: 0.5 * (1 + math.cos(math.pi * progress)),
}
"""Name, as `RunConfig.schedule` has it → factor on the learning rate by progress: 0 after the warm-up, 1 at the end."""


def learning_rate(config: RunConfig, step: int) -> float:
    """The rate at a step, 1…steps: a linear warm-up, then one of SCHEDULES."""
    if step <= config.warmup_steps:
        return config.lr * (step / config.warmup_steps)
    progress = (step - config.warmup_steps) / max(config.steps - config.warmup_steps, 1)
    return config.lr * SCHEDULES[config.schedule](progress)
