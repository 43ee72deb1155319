"""What happens in a run after its steps, besides the steps.

The weights' snapshots are diagnostics' `WeightLog`; run.py puts them in a row.
"""

from __future__ import annotations

import hashlib
import io
import math
import time
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mambanorm_study.basics.atomic import write_bytes
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.weight_log import WeightLog

CHECKPOINT = "checkpoint"


class Average:
    """The average of a model's weights over its steps (S2, §IV.C.3), w̄ ← decay·w̄ + (1 − decay)·w
    after each, the first as it is; with decay 0 the model itself.

    Buffers, such as BN's running statistics, are those of the model. `judged` is what is validated
    and tested.
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
    """The weights with the best validation accuracy so far, `by_loss`: with the smallest loss; of
    equal ones, the first. A regression goes by its loss, because all models worse than the training
    mean have the accuracy 0."""

    def __init__(self, by_loss: bool = False) -> None:
        self.accuracy, self.step, self.state, self.by_loss = math.nan, 0, None, by_loss

    def offer(self, curve: list[dict], model: nn.Module) -> None:
        """The model as it is after the last step of the curve, which was just evaluated."""
        if not self.step or self._score(curve[-1]) > self._score(curve[self.step - 1]):
            self.accuracy, self.step = curve[-1]["val_accuracy"], len(curve)
            self.state = {
                name: value.detach().clone() for name, value in model.state_dict().items()
            }

    def _score(self, row: dict) -> float:
        if not self.by_loss:
            return row["val_accuracy"]
        return -row["val_loss"] if math.isfinite(row["val_loss"]) else -math.inf

    def is_old(self, curve: list[dict], patience: int) -> bool:
        """Whether the last `patience` evaluations were no better; never with 0."""
        later = (
            row for row in curve[self.step :] if not math.isnan(row.get("val_accuracy", math.nan))
        )
        return patience > 0 and sum(1 for _ in later) >= patience

    def restore(self, model: nn.Module) -> None:
        if self.state is not None:
            model.load_state_dict(self.state)


class Progress:
    """Positions that the blocks have seen so far, padding left out, and seconds; what a kill lost
    is not counted."""

    def __init__(self) -> None:
        self.tokens, self.start = 0, time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.start


class Checkpoint:
    """The state of a run in one file, `<folder>/checkpoint`, so that a run that was killed
    continues where it stopped.

        SHA-256 of the rest, a line     in hexadecimal
        what torch.save writes          run_id, tokens, seconds, the curve, model, optimizer,
                                        average, the best weights, and the WeightLog's snapshots and
                                        ring

    It is written at most every `every_s` seconds, whole or not at all (basics/atomic.py);
    `folder=None` writes nothing. It is read as weights alone: nothing in it is run. The batch order
    needs no place in it: it follows from the seed and the step. On the same machine, a run that
    continues gives the same result bit for bit as one that was never stopped.

    The parts of the state are the objects that `train` uses; `load` fills them in place. ValueError
    for a negative `every_s`.
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
            raise ValueError(
                f"checkpoint_every_s must be a number of seconds from 0 up, got {every_s!r}"
            )
        self.path = None if folder is None else Path(folder, CHECKPOINT)
        self.every_s, self.config = every_s, config
        self.model, self.optimizer, self.average = model, optimizer, average
        self.log, self.best, self.curve, self.progress = log, best, curve, progress
        self.saved_at = time.monotonic()

    def load(self) -> None:
        """Fills the parts from the checkpoint, once before the first step. Of one that is damaged,
        of another run or cannot be read it warns, and the run starts anew; the next checkpoint
        takes its place."""
        if self.path is None or not self.path.exists():
            return
        try:
            state = self._read()
        except Exception as error:  # torch raises many kinds for what it has not written
            warnings.warn(
                f"cannot go on from {self.path}, the run starts anew: {error}", stacklevel=3
            )
        else:
            self._put(state)

    def __call__(self, step: int) -> None:
        """Saves a checkpoint if `every_s` seconds have passed. If it cannot be written, warns; the
        run goes on."""
        if self.path is None or time.monotonic() - self.saved_at < self.every_s:
            return
        try:
            self._save()
        except OSError as error:  # a full disk, say
            warnings.warn(f"no checkpoint at step {step}: {error}", stacklevel=3)
        self.saved_at = time.monotonic()

    def _save(self) -> None:
        now, best, parts = self.progress, self.best, ("model", "optimizer", "average")
        state = dict(
            run_id=self.config.run_id, tokens=now.tokens, seconds=now.seconds, curve=self.curve
        )
        state |= {name: getattr(self, name).state_dict() for name in parts}
        state |= dict(best=(best.accuracy, best.step, best.state), ring=[*self.log.ring])
        state["snapshots"] = [
            {key: torch.as_tensor(value) for key, value in s.items()} for s in self.log.snapshots
        ]
        torch.save(state, content := io.BytesIO())
        content = content.getvalue()
        write_bytes(self.path, hashlib.sha256(content).hexdigest().encode() + b"\n" + content)

    def _read(self) -> dict:
        """ValueError unless the file is whole and of this run."""
        checksum, _, content = self.path.read_bytes().partition(b"\n")
        if checksum != hashlib.sha256(content).hexdigest().encode():
            raise ValueError(
                "it is truncated or altered: its checksum is not the one it was written with"
            )
        device = next(self.model.parameters()).device
        state = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
        if state["run_id"] != self.config.run_id:
            raise ValueError(f"it belongs to run {state['run_id']}, not to {self.config.run_id}")
        there, here = (
            {n: t.shape for n, t in one.items()}
            for one in (state["model"], self.model.state_dict())
        )
        if there != here:
            raise ValueError("its weights are those of another model")  # the code was edited since
        return state

    def _put(self, state: dict) -> None:
        """Fills the parts in place."""
        self.curve[:] = state["curve"]
        self.progress.tokens, self.progress.start = (
            state["tokens"],
            time.perf_counter() - state["seconds"],
        )
        for name in ("model", "optimizer", "average"):
            getattr(self, name).load_state_dict(state[name])
        self.best.accuracy, self.best.step, self.best.state = state["best"]
        self.log.snapshots[:] = [
            {key: value.cpu().numpy() for key, value in s.items()} for s in state["snapshots"]
        ]
        self.log.ring.extend(state["ring"])
