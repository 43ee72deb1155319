"""Several runs of one arm trained as one model: its seeds and rates side by side, because a small run fills no GPU.

    train_stacked    configs → a RunResult each, as `train` would give it
    why_not          why a config cannot be stacked
    kind_of          what configs of one stack have in common

Each slice has its own data, batch order, rate and schedule, gradient norm, best step, divergence, curve, predictions
and diagnostics. It is the run that `train` makes of the same config up to rounding: batched products and the readable
path of the model add up in another order than single products and fused loops. Therefore `backend` says that a run was
stacked, and of how many: "triton, stacked of 36". Time and memory are a slice's share of the stack's.

What differs from `train`, beside rounding: where rows are padded, the padding of a batch is that of its longest row in
any slice, and the diagnostics' `ring_outputs` count it; nothing else sees it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from itertools import chain, islice

import numpy as np
import torch
from torch import Tensor, nn

from mambanorm.config import RunConfig
from mambanorm.diagnostics import WeightLog
from mambanorm.kernels.threads import exactly_threads
from mambanorm.loop import batch_order, build_model, check_data, result_of
from mambanorm.operations import scan_backend
from mambanorm.tasks import TASKS, TaskData, load_task
from mambanorm.training import machine
from mambanorm.training.checkpoint import Best
from mambanorm.training.cuda_graph import Recordings, draws
from mambanorm.training.evaluation import accuracy, autocast, to_device
from mambanorm.training.gradients import backward, find_nonfinite, finite_gradients
from mambanorm.training.result import RunResult
from mambanorm.training.schedule import schedule
from mambanorm.training.stack import RING, Feed, Stack

DIFFER = ("seed", "lr", "weight_decay", "schedule", "warmup_steps")
"""The fields in which the runs of a stack may differ: what each slice has as a number or as data of its own."""

ALONE = dict(optimizer="adamw", drop_path=0.0, mixup=0.0, cutmix=0.0, teacher="", start="")
"""Fields that a stacked run may only have at this value: optimizers of your own, random numbers of a step, other
runs."""


def kind_of(config: RunConfig) -> str:
    """What the configs of one stack have in common."""
    return config.but(**{name: getattr(RunConfig, name) for name in DIFFER}).run_id


def why_not(config: RunConfig) -> str | None:
    """Why a config cannot be stacked, in one sentence; None if it can."""
    for name, only in ALONE.items():
        if (given := getattr(config, name)) != only:
            return f"{name}={given!r} cannot be stacked: leave it at {only!r}, or train such runs one by one"
    if draws(config):
        return "a NormSelector of mode='random' draws numbers and cannot be stacked: train such runs one by one"
    return None


def check_stackable(configs: list[RunConfig]) -> None:
    """Raises ValueError unless the configs can be trained as one stack."""
    if not configs:
        raise ValueError("a stack of no runs: give at least one config")
    for config in configs:
        if (reason := why_not(config)) is not None:
            raise ValueError(reason)
        for name, value in asdict(config).items():
            if name not in DIFFER and value != (other := getattr(configs[0], name)):
                raise ValueError(
                    f"{name}={value!r} and {name}={other!r} in one stack: its runs may differ in {', '.join(DIFFER)}, "
                    f"so make a stack of each {name}"
                )
    if len({config.run_id for config in configs}) < len(configs):
        raise ValueError("one config is given twice in a stack: give each run once")


class Slice:
    """One run of a stack, on the host: its data, what it has come to, and a model to look at its weights with."""

    def __init__(self, config: RunConfig, data: TaskData):
        self.config, self.data, self.rows = config, data, check_data(config, data)
        self.model = build_model(config, data)
        self.log, self.curve = WeightLog(self.model), []
        self.best = Best(by_loss=data.units is not None or data.per_position)
        self.failed = self.site = None
        self.running = True
        self.log.snapshot(0)

    def follow(self, loss: np.ndarray, grad_norm: np.ndarray, failed: int) -> None:
        """Takes in further steps, up to the one that failed (0: none did)."""
        for row in zip(loss.tolist(), grad_norm.tolist()) if self.running else ():
            config, step = self.config, len(self.curve) + 1
            factor = schedule(config.schedule, step, steps=config.steps, warmup_steps=config.warmup_steps)
            numbers = dict(zip(("train_loss", "grad_norm"), row)) | {"lr": config.lr * factor}
            self.curve.append({"step": step, **numbers})
            if step == failed:
                self.failed, self.running = step, False
                return

    def judge(self, predictions: dict[str, np.ndarray], judged: dict[str, Tensor], now: dict[str, Tensor]) -> None:
        """Takes in an evaluation, and the weights that were evaluated; stops where patience ends."""
        self.curve[-1] |= {"val_loss": float(predictions["loss"].mean()), "val_accuracy": accuracy(predictions)}
        fill(self.model, judged)
        self.best.offer(self.curve, self.model)
        if judged is not now:
            fill(self.model, now)
        self.log.snapshot(len(self.curve))
        self.running = not self.best.is_old(self.curve, self.config.patience)

    def end(self, judged: dict[str, Tensor], now: dict[str, Tensor], device: torch.device) -> None:
        """The model gets the weights to be tested; of a failed run the site is looked for."""
        if self.failed:
            fill(self.model, now)
            self.site = self._find_site(device)
        if not self.failed or judged is not now:
            fill(self.model, judged)
        self.best.restore(self.model)

    def _find_site(self, device: torch.device) -> str | None:
        """The first site that is not finite when the step that failed is taken alone; None if there all are finite."""
        rows = next(islice(batch_order(self.config, self.rows), self.failed - 1, None))
        inputs, lengths, labels = to_device(self.data.train.batch(rows), device)
        labels = labels if self.data.units is None else self.data.units.scaled(labels)
        model = self.model.to(device).train()
        loss = sum(backward(model, inputs, lengths, labels, self.config))
        if not (bool(loss.isfinite()) and finite_gradients(model)):
            with autocast(self.config, device):
                site = find_nonfinite(model, inputs, lengths, self.config.micro_batch)
        else:
            site = None
        self.model = model.cpu()
        return site


@torch.no_grad()
def fill(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Writes weights and buffers into a model, in place."""
    for name, value in chain(model.named_parameters(), model.named_buffers()):
        value.copy_(state[name])


def train_stacked(configs: Iterable[RunConfig]) -> list[RunResult]:
    """Trains the configs as one model with a leading axis and returns their results in the same order.

    They may differ in DIFFER. ValueError, before anything is trained, for configs that cannot be stacked or run; never
    for divergence: a slice whose loss or gradient is not finite stops there, and the others do not notice.
    """
    configs = list(configs)
    check_stackable(configs)
    with exactly_threads(configs[0].threads), machine.whole_float32():
        return _train_stacked(configs)


def open_stack(configs: list[RunConfig]) -> tuple[list[Slice], Stack, Feed]:
    """The slices of a stack, their models as one, and the rows that they learn from."""
    device, data = machine.pick_device(configs[0].device), load_data(configs)
    slices = [Slice(config, one) for config, one in zip(configs, data, strict=True)]
    units = [one.units for one in data] if data[0].units is not None else None
    stack = Stack([one.model for one in slices], configs, device, units, data[0].patch)
    return slices, stack, Feed([one.train for one in data], device)


def load_data(configs: list[RunConfig]) -> list[TaskData]:
    """The data of each config, loaded once where the seed does not decide which rows they are."""
    task, scale, first = configs[0].task, configs[0].scale, configs[0].seed
    tell = TASKS[task].shape if task in TASKS else None
    fixed = tell is not None and not tell(scale).reshuffled
    data = {seed: load_task(task, scale, seed) for seed in ({first} if fixed else {c.seed for c in configs})}
    return [data[first if fixed else config.seed] for config in configs]


def _train_stacked(configs: list[RunConfig]) -> list[RunResult]:
    config = configs[0]
    device = machine.pick_device(config.device)
    memory = machine.PeakMemory(device)
    slices, stack, train = open_stack(configs)
    val, test = (Feed([getattr(one.data, name) for one in slices], device) for name in ("val", "test"))
    start, read = time.perf_counter(), 0

    recordings = Recordings(stack.step, stack.tensors) if device.type == "cuda" else None
    orders = zip(*(batch_order(one.config, one.rows) for one in slices), strict=True)
    for step, rows in enumerate(orders, start=1):
        batch = train.batch(torch.stack(rows))
        if recordings is None or not recordings.replay(*batch)[0]:
            stack.step(*batch)
        if step % config.eval_every == 0 or step == config.steps:
            _look(slices, stack, val, read + 1, step)
            memory.sample()
            read = step
            if not any(one.running for one in slices):
                break
    wall_s = time.perf_counter() - start

    for one, *states in zip(slices, *_states(stack), strict=True):
        one.end(*states, device)
    stack.put([one.model for one in slices])
    predictions, tokens = stack.predict(test), stack.read(1, 1).tokens
    _put_rings(slices, stack)
    steps = [len(one.curve) for one in slices]
    shares = [wall_s * own / sum(steps) for own in steps]  # one that has failed early has had less of it
    measured = dict(
        peak_memory_mb=memory.sample() / len(slices),
        backend=f"{scan_backend(torch.empty(0, device=device))}, stacked of {len(slices)}",
    )
    return [
        result_of(
            one.config, one.data, one.model, one.curve, one.best, one.log, found, one.failed, one.site,
            wall_s=share, tokens_per_s=seen / share, **measured,
        )
        for one, found, seen, share in zip(slices, predictions, tokens, shares, strict=True)
    ]  # fmt: skip


def _states(stack: Stack) -> tuple[list[dict[str, Tensor]], list[dict[str, Tensor]]]:
    """Of each slice the weights that are judged, and those that it has; one and the same without an average."""
    now = stack.states(stack.weights)
    return now if stack.judged is stack.weights else stack.states(stack.judged), now


def _look(slices: list[Slice], stack: Stack, val: Feed, first: int, last: int) -> None:
    """After an evaluation's step: what the steps since the one before have left, and the evaluation."""
    seen = stack.read(first, last)
    for i, one in enumerate(slices):
        one.follow(seen.loss[:, i], seen.grad_norm[:, i], seen.failed[i])
    if any(one.running for one in slices):
        for one, found, *states in zip(slices, stack.predict(val), *_states(stack), strict=True):
            if one.running:
                one.judge(found, *states)
    stack.stop([i for i, one in enumerate(slices) if not one.running])


def _put_rings(slices: list[Slice], stack: Stack) -> None:
    """Each log gets the last steps that its slice has made, as if it had seen them itself."""
    weights, outputs = stack.rings()
    for i, one in enumerate(slices):
        done = len(one.curve) - bool(one.failed)
        for step in range(max(done - RING, 0) + 1, done + 1):
            slot = (step - 1) % RING
            one.log.ring.append((step, [block[slot, i] for block in weights], outputs[slot, i]))
