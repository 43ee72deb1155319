"""What happens in a run after its steps, besides the steps.

    Average     the moving average of the weights, which is then judged
    Best        the weights with the best validation accuracy so far, and how long ago that was
    Progress    how far the run is: positions and seconds
    Checkpoint  all of its state on disk, now and then

The weights' snapshots are diagnostics' `WeightLog`; run.py puts them in a row.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mambanorm.basics.atomic import write_bytes
from mambanorm.basics.later import Later
from mambanorm.config import RunConfig
from mambanorm.diagnostics.weights import WeightLog

safetensors_torch = Later("safetensors.torch")
CHECKPOINT = "checkpoint"


class Average:
    """The average of a model's weights over its steps (S2, §IV.C.3), w̄ ← decay·w̄ + (1 − decay)·w after each, the first
    as it is; with decay 0 the model itself.

    Buffers, such as BN's running statistics, are those of the model. `judged` is what is validated and tested.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.model, self.averaged = model, None
        if decay:
            self.averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))

    @property
    def judged(self) -> nn.Module:
        return self.model if self.averaged is None else self.averaged.module

    def __call__(self, step: int) -> None:
        if self.averaged is not None:
            self.averaged.update_parameters(self.model)

    def state_dict(self) -> dict[str, Tensor]:
        return {} if self.averaged is None else self.averaged.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if self.averaged is not None:
            self.averaged.load_state_dict(state)


class Best:
    """The weights with the best validation accuracy so far, `by_loss`: with the smallest loss; of equal ones, the
    first. A regression goes by its loss, because all models worse than the training mean have the accuracy 0."""

    def __init__(self, by_loss: bool = False) -> None:
        self.accuracy, self.step, self.state, self.by_loss = math.nan, 0, None, by_loss

    def offer(self, curve: list[dict], model: nn.Module) -> None:
        """The model as it is after the last step of the curve, which was just evaluated."""
        if not self.step or self._score(curve[-1]) > self._score(curve[self.step - 1]):
            self.accuracy, self.step = curve[-1]["val_accuracy"], len(curve)
            self.state = {name: value.detach().clone() for name, value in model.state_dict().items()}

    def _score(self, row: dict) -> float:
        if not self.by_loss:
            return row["val_accuracy"]
        return -row["val_loss"] if math.isfinite(row["val_loss"]) else -math.inf

    def is_old(self, curve: list[dict], patience: int) -> bool:
        """Whether the last `patience` evaluations were no better; never with 0."""
        later = (row for row in curve[self.step :] if not math.isnan(row.get("val_accuracy", math.nan)))
        return patience > 0 and sum(1 for _ in later) >= patience

    def restore(self, model: nn.Module) -> None:
        if self.state is not None:
            model.load_state_dict(self.state)


class Progress:
    """Positions that the blocks have seen so far, padding left out, and seconds; what a kill lost is not counted."""

    def __init__(self) -> None:
        self.go_on(0, 0.0)

    def go_on(self, tokens: int, seconds: float) -> None:
        """From where a checkpoint was."""
        self.tokens, self.start = tokens, time.perf_counter() - seconds

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.start


class Checkpoint:
    """The state of a run in one file, `<folder>/checkpoint`, so that a run that was killed continues where it stopped.

        SHA-256 of the rest, a line                  in hexadecimal
        progress, a line of JSON                     run_id, tokens, seconds, best accuracy and its step, the curve
        tensors, as safetensors                      model, optimizer, average, best weights, the WeightLog's snapshots
                                                     and ring

    It is written at most every `every_s` seconds, whole or not at all (basics/atomic.py); `folder=None` writes nothing.
    No part uses pickle. The batch order needs no place in it: it follows from the seed and the step. On the same
    machine, a run that continues gives the same result bit for bit as one that was never stopped.

    The parts of the state are the objects that `train` uses; `load` fills them in place. ValueError for a negative
    `every_s`.
    """

    def __init__(
        self,
        folder: str | Path | None,
        every_s: float,
        config: RunConfig,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        average: Average,
        log: WeightLog,
        best: Best,
        curve: list[dict],
        progress: Progress,
    ):
        if not every_s >= 0:
            raise ValueError(f"checkpoint_every_s must be a number of seconds from 0 up, got {every_s!r}")
        self.path = None if folder is None else Path(folder, CHECKPOINT)
        self.every_s, self.config = every_s, config
        self.model, self.optimizer, self.average = model, optimizer, average
        self.log, self.best, self.curve, self.progress = log, best, curve, progress
        self.saved_at = time.monotonic()

    def load(self) -> None:
        """Fills the parts from the checkpoint, once before the first step. Of one that is damaged, of another run or
        cannot be read it warns, and the run starts anew; the next checkpoint takes its place."""
        if self.path is None or not self.path.exists():
            return
        try:
            numbers, state = self._read()
        except (OSError, ValueError) as error:
            warnings.warn(f"cannot go on from {self.path}, the run starts anew: {error}", stacklevel=3)
        else:
            self._put(numbers, state)

    def __call__(self, step: int) -> None:
        """Saves a checkpoint if `every_s` seconds have passed. If it cannot be written, warns; the run goes on."""
        if self.path is None or time.monotonic() - self.saved_at < self.every_s:
            return
        try:
            self._save()
        except OSError as error:  # a full disk, say
            warnings.warn(f"no checkpoint at step {step}: {error}", stacklevel=3)
        self.saved_at = time.monotonic()

    def _save(self) -> None:
        now, best = self.progress, self.best
        numbers = dict(run_id=self.config.run_id, tokens=now.tokens, seconds=now.seconds, curve=self.curve)
        numbers |= dict(best_accuracy=best.accuracy, best_step=best.step)
        # cloned, because tensors that share their memory are refused
        tensors = {name: value.detach().cpu().contiguous().clone() for name, value in self._take().items()}
        content = json.dumps(numbers).encode() + b"\n" + safetensors_torch.save(tensors)
        write_bytes(self.path, hashlib.sha256(content).hexdigest().encode() + b"\n" + content)

    def _take(self) -> dict[str, Tensor]:
        """Every tensor of the state; the first part of its name says which object it belongs to."""
        state = _named("model", self.model.state_dict()) | _named("best", self.best.state or {})
        state |= _named("average", self.average.state_dict())
        for i, moments in self.optimizer.state_dict()["state"].items():  # some optimizers have none, or None among them
            state |= _named(f"optimizer.{i}", {key: value for key, value in moments.items() if value is not None})
        for i, shot in enumerate(self.log.snapshots):
            state |= _named(f"snapshot.{i}", {key: torch.as_tensor(value) for key, value in shot.items()})
        for i, (step, weights, outputs) in enumerate(self.log.ring):
            state |= _named(f"ring.{i}", {"step": torch.tensor(step), "outputs": outputs} | dict(enumerate(weights)))
        return state

    def _read(self) -> tuple[dict, dict]:
        """ValueError unless the file is whole and of this run."""
        checksum, _, content = self.path.read_bytes().partition(b"\n")
        if checksum != hashlib.sha256(content).hexdigest().encode():
            raise ValueError("it is truncated or altered: its checksum is not the one it was written with")
        numbers, _, tensors = content.partition(b"\n")
        numbers = json.loads(numbers)
        if numbers["run_id"] != self.config.run_id:
            raise ValueError(f"it belongs to run {numbers['run_id']}, not to {self.config.run_id}")
        state = _tree(safetensors_torch.load(tensors))
        there, here = ({n: t.shape for n, t in one.items()} for one in (state["model"], self.model.state_dict()))
        if there != here:
            raise ValueError("its weights are those of another model")  # the code was edited since
        return numbers, state

    def _put(self, numbers: dict, state: dict) -> None:
        """Fills the parts in place."""
        device = next(self.model.parameters()).device
        self.curve[:] = numbers["curve"]
        self.progress.go_on(numbers["tokens"], numbers["seconds"])
        self.model.load_state_dict(state["model"])
        self.average.load_state_dict(state.get("average", {}))
        moments = {int(i): values for i, values in _inner(state.get("optimizer", {}))}
        self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": moments})
        self.best.accuracy, self.best.step = numbers["best_accuracy"], numbers["best_step"]
        if "best" in state:
            self.best.state = {name: value.to(device) for name, value in state["best"].items()}
        self.log.snapshots[:] = [
            {key: value.numpy() for key, value in shot.items()} for _, shot in _inner(state.get("snapshot", {}))
        ]
        self.log.ring.clear()
        for _, kept in _inner(state.get("ring", {})):
            step, outputs = int(kept.pop("step")), kept.pop("outputs")
            self.log.ring.append((step, [kept[i].to(device) for i in sorted(kept, key=int)], outputs.to(device)))


def _named(owner: str, tensors: dict) -> dict[str, Tensor]:
    return {f"{owner}.{name}": value for name, value in tensors.items()}


def _tree(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """`{"model.head.bias": t}` → `{"model": {"head.bias": t}}`."""
    tree: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        owner, _, rest = name.partition(".")
        tree.setdefault(owner, {})[rest] = value
    return tree


def _inner(tensors: dict[str, Tensor]) -> list[tuple[str, dict[str, Tensor]]]:
    """`{"0.step": a, "0.exp_avg": b, …}` → `[("0", {"step": a, "exp_avg": b}), …]`, in the order of the numbers."""
    return sorted(_tree(tensors).items(), key=lambda item: int(item[0]))
