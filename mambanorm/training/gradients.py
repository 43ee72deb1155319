"""The forward and backward pass of one step, and what is said of gradients that are not finite.

Gradients          fills the gradients of a model, step by step
backward           the losses of a batch, micro-batch by micro-batch
finite_gradients, find_nonfinite    is every gradient finite, and where does the first non-finite number stand
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mambanorm.config import RunConfig
from mambanorm.diagnostics import WeightLog, record_sites
from mambanorm.training.evaluation import autocast
from mambanorm.training.regimen import NOTHING_ELSE, Lesson, loss_of, step_randomness


class Gradients:
    """Forward and backward of each step."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, config: RunConfig, log: WeightLog):
        self.model, self.optimizer, self.config, self.log = model, optimizer, config, log
        self.learned = list(model.parameters())  # once: it walks through all modules

    def fill(
        self, step: int, inputs: Tensor, lengths: Tensor | None, labels: Tensor, lesson: Lesson = NOTHING_ELSE
    ) -> tuple[float, float]:
        """The mean loss of the batch and the L2 norm of all gradients, which are in the parameters afterwards."""
        self.optimizer.zero_grad()
        with self.log.watching(), step_randomness(self.config, step):
            losses = backward(self.model, inputs, lengths, labels, self.config, lesson)
        return sum(loss.item() for loss in losses), float(gradient_norm(self.learned))


def gradient_norm(parameters: list[nn.Parameter]) -> Tensor:
    return nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])


def backward(
    model: nn.Module,
    inputs: Tensor,
    lengths: Tensor | None,
    labels: Tensor,
    config: RunConfig,
    lesson: Lesson = NOTHING_ELSE,
) -> list[Tensor]:
    """The parts of a batch's mean loss, one a micro-batch, whose gradients are summed; a norm sees one at a time."""
    losses = []
    for part in micro_batches(len(labels), config.micro_batch):
        with autocast(config, labels.device):
            logits = model(inputs[part], None if lengths is None else lengths[part])
            loss = loss_of(logits, labels[part], config, lesson.of(part)) * (len(labels[part]) / len(labels))
        loss.backward()
        losses.append(loss.detach())
    return losses


def micro_batches(rows: int, size: int) -> list[slice]:
    """The parts of a batch; size 0 = all of it at once."""
    return [slice(start, start + (size or rows)) for start in range(0, rows, size or rows)]


def finite_gradients(model: nn.Module) -> bool:
    """True if every gradient is finite: the norm of large finite gradients can itself overflow."""
    return all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


@torch.no_grad()
def find_nonfinite(model: nn.Module, inputs: Tensor, lengths: Tensor | None, micro_batch: int = 0) -> str:
    """The first non-finite site of this very step: forward in the order of computation, then the gradients backward."""
    gradients = [name for name, p in model.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
    model.train()
    for part in micro_batches(len(inputs), micro_batch):
        with record_sites(model) as seen:
            logits = model(inputs[part], None if lengths is None else lengths[part])
        if site := seen.first_nonfinite():
            return site
        if not logits.isfinite().all():
            return "logits"
    return f"gradient of {gradients[-1]}" if gradients else "loss"
