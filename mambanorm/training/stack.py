"""S models of one kind as one: a step of all of them, and their predictions.

Each model is a slice. Its learned weights are a row of one matrix (S, P), so that the gradient norm is one reduction
and AdamW a handful of launches, whatever the number of models. torch.func.vmap runs the one readable model over the
rows: products become batched products, S scans one scan (operations/stacked.py). Slices meet nowhere.

A step waits for nothing on the host. Counters, rates and what a step leaves behind stay on the device, in tensors that
keep their place; `read` is what waits. A slice whose loss or gradient is not finite is left as it was before that step,
and its own number in `failed` says which step that was.

Map
    Feed     one split of every slice, on the device
    Stack    the models: `step`, `predict`, `read`, and `take` and `put` of one slice

Glossary: S slices, B rows of a batch, P learned weights of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from mambanorm.config import RunConfig
from mambanorm.diagnostics import WeightLog
from mambanorm.loop import positions
from mambanorm.tasks import Split
from mambanorm.tasks.base import Units
from mambanorm.training.cuda_graph import WARM_UPS
from mambanorm.training.evaluation import EVAL_BATCH, answers, autocast
from mambanorm.training.gradients import micro_batches
from mambanorm.training.optimizer import build_optimizer
from mambanorm.training.regimen import NOTHING_ELSE, loss_of
from mambanorm.training.schedule import schedule

ALIGNED = 32  # numbers: rows and large weights start where the GPU reads at full width
RING = 8  # the last steps that WeightLog keeps
SPARE = WARM_UPS  # rows of the tables beyond the last step: a recording is preceded by steps that are taken back


class Feed:
    """The same split of every slice, whole on the device; slices with one and the same split share its rows.

    ValueError for pictures that are read from the disk when they are needed.
    """

    def __init__(self, splits: list[Split], device: torch.device):
        own = list({id(split): split for split in splits}.values())
        if not all(isinstance(split.inputs, Tensor) for split in own):
            raise ValueError("rows that are read from the disk as they are needed cannot be stacked: train these alone")
        starts = dict(zip(map(id, own), np.cumsum([0, *map(len, own)]).tolist()))
        widest = max(split.inputs.shape[1] for split in own)
        inputs = torch.cat([_widened(split.inputs, widest) for split in own])
        lengths = None if own[0].lengths is None else torch.cat([split.lengths for split in own]).to(device)
        self.split = Split(inputs.to(device), torch.cat([split.labels for split in own]).to(device), lengths)
        self.first = torch.tensor([[starts[id(split)]] for split in splits])
        self.sizes = [len(split) for split in splits]
        self.device = device

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Rows (S, B) of each slice's own split → inputs (S, B, …), lengths (S, B) or None, labels (S, B, …). All are
        as long as the longest of the S·B rows."""
        found = self.split.batch((rows + self.first).flatten().to(self.device, non_blocking=True))
        return tuple(None if part is None else part.unflatten(0, rows.shape) for part in found)

    def all_rows(self) -> Iterable[Tensor]:
        """Every row of every slice, (S, at most EVAL_BATCH) at a time. A slice with fewer rows repeats its last."""
        rows = torch.arange(max(self.sizes)).expand(len(self.sizes), -1)
        return rows.minimum(torch.tensor(self.sizes)[:, None] - 1).split(EVAL_BATCH, dim=1)


def _widened(inputs: Tensor, width: int) -> Tensor:
    """Inputs (n, L, …), filled up with zeros, which are padding, to L = width."""
    return F.pad(inputs, (0, 0) * (inputs.dim() - 2) + (0, width - inputs.shape[1]))


class Read(NamedTuple):
    """What the host reads of a stack. loss, grad_norm (steps, S); failed, tokens (S,): the step that was not finite (0:
    none), and positions seen."""

    loss: np.ndarray
    grad_norm: np.ndarray
    failed: list[int]
    tokens: list[int]


class Stack:
    """S models of configs that may be stacked (training/stacked.py). The models themselves are left as they are.

    units: how the targets of each slice are scaled, of a regression; patch: of images, as TaskData's.
    """

    def __init__(
        self,
        models: list[nn.Module],
        configs: list[RunConfig],
        device: torch.device,
        units: list[Units] | None = None,
        patch: int = 1,
    ):
        self.config, self.device, self.patch, S = configs[0], device, patch, len(models)
        self.skeleton = deepcopy(models[0]).to(device)  # says what to compute; its own numbers are not used
        self.log = WeightLog(self.skeleton)
        self.units = units and Units(*(torch.stack(part).to(device) for part in zip(*units)))
        self._place_weights(models)
        self._set_numbers(configs)
        self.running = torch.ones(S, dtype=torch.bool, device=device)
        self.count = torch.zeros(1, dtype=torch.int64, device=device)
        self.failed, self.tokens = (torch.zeros(S, dtype=torch.int64, device=device) for _ in range(2))
        rows = self.config.steps + SPARE
        self.history = torch.zeros(rows, 2, S, dtype=torch.float64, device=device)  # loss, gradient norm
        self.ring = self.weights.new_zeros(RING, S, self.watched)
        self.ring_outputs = self.history.new_zeros(RING, S, len(self.log.blocks))

    def _place_weights(self, models: list[nn.Module]) -> None:
        """The matrix of weights, out_proj's first, then what fills whole lines; and all that is not learned."""
        learned = {name: p for name, p in self.skeleton.named_parameters() if p.requires_grad}
        last = [block.out_proj.weight for block in self.log.blocks]
        out_proj = [name for name, p in learned.items() if any(p is one for one in last)]
        rest = sorted(learned.keys() - out_proj, key=lambda name: (learned[name].numel() % ALIGNED > 0, name))
        names = [*out_proj, *rest]
        self.shapes = {name: learned[name].shape for name in names}
        self.watched = sum(learned[name].numel() for name in out_proj)
        states = [dict(chain(model.named_parameters(), model.named_buffers())) for model in models]
        rows = [torch.cat([state[name].detach().to(self.device).flatten() for name in names]) for state in states]
        self.unused = torch.zeros(len(models), -len(rows[0]) % ALIGNED, dtype=rows[0].dtype, device=self.device)
        self.weights = torch.cat([torch.stack(rows), self.unused], 1)
        self.first, self.second, self.average = (torch.zeros_like(self.weights) for _ in range(3))
        self.leaves = {name: view.requires_grad_() for name, view in self._views(self.weights).items()}
        self.fixed = {
            name: torch.stack([state[name].detach().to(self.device) for state in states])
            for name in states[0]
            if name not in learned
        }
        self.buffers = {name: self.fixed[name] for name, _ in self.skeleton.named_buffers()}

    def _views(self, matrix: Tensor) -> dict[str, Tensor]:
        """Name → (S, *shape), the columns of a matrix (S, P)."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        columns = matrix.detach()[:, : sum(sizes)].split(sizes, 1)
        return {
            name: part.view(len(matrix), *shape)
            for (name, shape), part in zip(self.shapes.items(), columns, strict=True)
        }

    def _set_numbers(self, configs: list[RunConfig]) -> None:
        """What the optimizer needs: which columns decay, and each slice's rate at each step, its schedule in it."""
        optimizer = build_optimizer(self.skeleton, self.config)
        decaying = {id(p) for p in optimizer.param_groups[0]["params"]}
        self.eps, learned = optimizer.defaults["eps"], dict(self.skeleton.named_parameters())
        decays = torch.cat([learned[name].new_full((size.numel(),), id(learned[name]) in decaying)
                            for name, size in self.shapes.items()] + [self.unused[0]])  # fmt: skip
        by_slice = [
            [c.lr * schedule(c.schedule, step, steps=c.steps, warmup_steps=c.warmup_steps) for c in configs]
            for step in [*range(1, self.config.steps + 1), *[self.config.steps] * SPARE]
        ]
        self.rates = torch.tensor(by_slice, dtype=torch.float64, device=self.device)  # (steps + SPARE, S)
        self.decay = decays * decays.new_tensor([[c.weight_decay] for c in configs])  # (S, P)

    def tensors(self) -> list[Tensor]:
        """All that a step changes, each in its place."""
        tables = self.running, self.count, self.failed, self.tokens, self.history, self.ring, self.ring_outputs
        return [self.weights, self.first, self.second, self.average, *self.buffers.values(), *tables]

    @property
    def judged(self) -> Tensor:
        """The matrix that is validated and tested: the weights, or their moving average (training/averaging.py)."""
        return self.average if self.config.ema else self.weights

    # ------------------------------------------------------------------------------------------------------- training

    def step(self, inputs: Tensor, lengths: Tensor | None, labels: Tensor) -> None:
        """One step of every slice that is running: what `Feed.batch` gives. Nothing here waits for the device."""
        self.skeleton.train()
        now = self.count.clone()  # rows of the tables count from 0, steps from 1
        self.count.add_(1)
        before = {name: value.clone() for name, value in self.buffers.items()}
        loss, outputs, gradient = self._backward(inputs, lengths, labels)
        norm = torch.linalg.vector_norm(gradient, dim=1, dtype=torch.float64)  # there no finite gradient overflows
        finite = loss.isfinite() & norm.isfinite()
        self.history.index_copy_(0, now, torch.stack([loss.double(), norm])[None])
        self.failed.add_(torch.where(self.running & ~finite, self.count, 0))
        self.running.logical_and_(finite)
        self._adamw(torch.where(self.running[:, None], gradient, 0), self.rates[now][0])
        for name, value in self.buffers.items():
            value.copy_(torch.where(_along(self.running, value), value, before[name]))
        self._remember(now, outputs)
        seen = positions(inputs[0], None, self.patch) if lengths is None else lengths.sum(1)
        self.tokens.add_(self.running * seen)

    def _backward(self, inputs: Tensor, lengths: Tensor | None, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Loss (S,), what WeightLog sees of the outputs (S, layers), gradient (S, P), summed over micro-batches."""
        total = gradient = 0.0
        for part in micro_batches(labels.shape[1], self.config.micro_batch):
            batch = (None if tensor is None else tensor[:, part] for tensor in (inputs, lengths, labels))
            with autocast(self.config, self.device):
                loss, outputs = _each(self._loss, self.leaves, self.fixed, *batch, self.units)
            loss = loss * (labels[:, part].shape[1] / labels.shape[1])
            parts = torch.autograd.grad(loss, list(self.leaves.values()), torch.ones_like(loss))
            gradient = gradient + torch.cat([part.flatten(1) for part in parts] + [self.unused], 1)
            total = total + loss.detach()
        return total, outputs, gradient

    def _loss(self, weights, fixed, inputs, lengths, labels, units) -> tuple[Tensor, Tensor]:
        """Of one slice; vmap makes it that of all."""
        labels = labels if units is None else units.scaled(labels)
        with self.log.watching():
            outputs = functional_call(self.skeleton, (weights, fixed), (inputs, lengths))
        return loss_of(outputs, labels, self.config, NOTHING_ELSE), self.log.outputs

    @torch.no_grad()
    def _adamw(self, gradient: Tensor, rates: Tensor) -> None:
        """Loshchilov & Hutter 2019, each row with its own rate; where a slice has stopped, the rate is 0."""
        beta_1, beta_2 = self.config.betas
        rates, count = torch.where(self.running, rates, 0.0), self.count.double()
        size, root, rate = (
            number.to(gradient.dtype)[:, None]
            for number in (rates / (1 - beta_1**count), (1 - beta_2**count).sqrt(), rates)
        )
        self.weights.mul_(1 - rate * self.decay)
        self.first.lerp_(gradient, 1 - beta_1)
        self.second.mul_(beta_2).addcmul_(gradient, gradient, value=1 - beta_2)
        self.weights.sub_(size * self.first / (self.second.sqrt() / root + self.eps))
        if self.config.ema:
            share = torch.where(self.count == 1, 1.0, 1 - self.config.ema) * self.running
            self.average.lerp_(self.weights, share.to(gradient.dtype)[:, None])

    def _remember(self, now: Tensor, outputs: Tensor) -> None:
        """What WeightLog's ring keeps: out_proj after this step, and the largest outputs that the step saw."""
        slot = now % RING
        for ring, new in ((self.ring, self.weights[:, : self.watched]), (self.ring_outputs, outputs)):
            ring.index_copy_(0, slot, torch.where(self.running[:, None], new, ring[slot][0])[None])

    def stop(self, slices: list[int]) -> None:
        """These stay as they are from now on."""
        self.running[slices] = False

    # ------------------------------------------------------------------------------------------ what it has come to

    @torch.no_grad()
    def predict(self, feed: Feed) -> list[dict[str, np.ndarray]]:
        """As `evaluation.predict`, of every slice with its judged weights on its own split."""
        self.skeleton.eval()
        weights, found = self._views(self.judged), []
        for rows in feed.all_rows():
            with autocast(self.config, self.device):
                found.append(_each(self._answers, weights, self.fixed, *feed.batch(rows), self.units))
        whole = {key: torch.cat([part[key] for part in found], 1).cpu().numpy() for key in found[0]}
        arrays = [{key: value[i, :n] for key, value in whole.items()} for i, n in enumerate(feed.sizes)]
        if self.units is None:
            return arrays
        means = self.units.mean.cpu().numpy()
        return [one | {"baseline": mean} for one, mean in zip(arrays, means, strict=True)]

    def _answers(self, weights, fixed, inputs, lengths, labels, units) -> dict[str, Tensor]:
        return answers(functional_call(self.skeleton, (weights, fixed), (inputs, lengths)).float(), labels, units)

    def read(self, first: int, last: int) -> Read:
        """What the steps first…last, counted from 1, have left. Waits for the device."""
        loss, norm = self.history[first - 1 : last].unbind(1)
        return Read(loss.cpu().numpy(), norm.cpu().numpy(), self.failed.tolist(), self.tokens.tolist())

    def states(self, matrix: Tensor) -> list[dict[str, Tensor]]:
        """Of each slice every parameter and buffer by its name, with the weights of a matrix (S, P), on the CPU."""
        stacked = self._views(matrix.cpu()) | {name: value.cpu() for name, value in self.fixed.items()}
        return [{name: value[i] for name, value in stacked.items()} for i in range(len(matrix))]

    @torch.no_grad()
    def put(self, models: list[nn.Module]) -> None:
        """The slices become these models, to be judged."""
        views = self._views(self.judged) | self.fixed
        for i, model in enumerate(models):
            for name, value in chain(model.named_parameters(), model.named_buffers()):
                views[name][i].copy_(value)

    def rings(self) -> tuple[list[list[Tensor]], Tensor]:
        """out_proj of each block after the last RING steps, (RING, S, …) each, and the outputs (RING, S, layers)."""
        ring, found, start = self.ring.cpu(), [], 0
        for block in self.log.blocks:
            size = block.out_proj.weight.numel()
            found.append(ring[:, :, start : start + size].unflatten(2, block.out_proj.weight.shape))
            start += size
        return found, self.ring_outputs.cpu()


def _each(function: Callable[..., Any], *arguments: Any) -> Any:
    """The function of every slice; what is None has no slices. Random numbers, which they would share, are refused."""
    axes = tuple(None if argument is None else 0 for argument in arguments)
    return vmap(function, in_dims=axes, randomness="error")(*arguments)


def _along(mask: Tensor, value: Tensor) -> Tensor:
    """A mask (S,) that broadcasts to a value (S, …)."""
    return mask.view(-1, *[1] * (value.dim() - 1))
