"""The state of a run while it trains, and the checkpoint that saves this state.

runs/run.py updates the state after each step and saves a checkpoint when one is due.
runs/weight_log.py records the weights.
"""

import hashlib
import io
import math
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mambanorm.loop import build_optimizer
from mambanorm_study.basics.atomic import write_bytes
from mambanorm_study.config import RunConfig
from mambanorm_study.runs import ssm_parameters
from mambanorm_study.runs.weight_log import WeightLog

CHECKPOINT = "checkpoint"


@dataclass
class BestWeights:
    """The weights with the highest validation score so far; of equal scores, the first counts.

    The score is the accuracy, or with `by_loss` the negative loss. A regression uses the loss,
    because every model that is worse than the training mean has accuracy 0.
    """

    by_loss: bool = False
    score: float = -math.inf
    accuracy: float = math.nan
    step: int = 0
    weights: dict[str, Tensor] | None = None
    worse_evaluations: int = 0  # number of evaluations after the best one

    def update(self, row: dict[str, Any], model: nn.Module) -> None:
        """Copy the model's weights if this row of the learning curve has the best score so far."""
        score = row["val_accuracy"]
        if self.by_loss:
            score = -row["val_loss"] if math.isfinite(row["val_loss"]) else -math.inf
        if self.step and score <= self.score:
            self.worse_evaluations += 1
            return
        self.score, self.accuracy, self.step = score, row["val_accuracy"], row["step"]
        self.weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
        self.worse_evaluations = 0


class TrainingState:
    """Everything that changes during a run: the content of a checkpoint.

    averaged: a model with the exponential moving average w̄ of the weights w over the steps
    (source S2 of docs/sources.md, §IV.C.3), None if `config.ema` is 0. After the first step w̄ = w,
    then w̄ ← ema·w̄ + (1 − ema)·w. Buffers, such as BN's running statistics, are copied from the
    trained model.
    curve: one row per step, a map from column to value. tokens: number of positions that the blocks
    have processed, without padding. by_loss: True if the best evaluation is the one with the lowest
    loss (`BestWeights`).
    """

    def __init__(self, model: nn.Module, config: RunConfig, by_loss: bool = False):
        self.model = model
        self.averaged = None
        if config.ema:
            self.averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(config.ema))
        self.optimizer = optimizer_of(model, config)
        self.best = BestWeights(by_loss)
        self.log = WeightLog(model)
        self.curve: list[dict[str, Any]] = []
        self.tokens = 0
        self.start = time.perf_counter()

    @property
    def evaluated_model(self) -> nn.Module:
        """The model that is validated and tested: `averaged`, or `model` if `averaged` is None."""
        return self.model if self.averaged is None else self.averaged.module

    @property
    def seconds(self) -> float:
        """Training time in seconds, without work that was lost because a process was killed."""
        return time.perf_counter() - self.start

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "averaged": None if self.averaged is None else self.averaged.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "best": vars(self.best),
            "log": self.log.state_dict(),
            "curve": self.curve,
            "tokens": self.tokens,
            "seconds": self.seconds,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.model.load_state_dict(state["model"])
        if self.averaged is not None:
            self.averaged.load_state_dict(state["averaged"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.best = BestWeights(**state["best"])
        self.log.load_state_dict(state["log"])
        self.curve[:] = state["curve"]
        self.tokens = state["tokens"]
        self.start = time.perf_counter() - state["seconds"]


def optimizer_of(model: nn.Module, config: RunConfig) -> torch.optim.Optimizer:
    """Return a new optimizer with the settings of a config for the parameters of a model."""
    optimizer = build_optimizer(
        model,
        lr=config.lr,
        weight_decay=config.weight_decay,
        betas=config.betas,
        name=config.optimizer,
    )
    if config.decay_ssm:
        ssm_parameters.add_weight_decay(optimizer, model, config.decay_ssm)
    return optimizer


class Checkpoint:
    """A callback that saves the state of a run to the file `<folder>/checkpoint`.

        first line          SHA-256 of the rest of the file, in hexadecimal
        rest                torch.save of run_id and `TrainingState.state_dict()`

    A run that was killed continues from its checkpoint; on the same machine, the result is the same
    bit for bit. The batch order is not saved, because it depends on the seed and the step alone.

    A checkpoint is written at most every `every_s` seconds, completely or not at all
    (basics/atomic.py); `folder=None` writes no checkpoint. The file is read with `weights_only`, so
    that no code in the file is run.
    """

    def __init__(
        self, folder: str | Path | None, every_s: float, run_id: str, state: TrainingState
    ):
        self.path = None if folder is None else Path(folder, CHECKPOINT)
        self.every_s, self.run_id, self.state = every_s, run_id, state
        self.saved_at = time.monotonic()

    def load(self) -> None:
        """Restore the state from the checkpoint if the file exists.

        Warns and leaves the state unchanged if the file is damaged, cannot be read or belongs to
        another run; the next checkpoint replaces the file.
        """
        if self.path is None or not self.path.exists():
            return
        try:
            saved = self._read()
        except Exception as error:  # torch raises many kinds of errors for a damaged file
            warnings.warn(
                f"cannot continue from {self.path}, the run starts anew: {error}", stacklevel=3
            )
        else:
            self.state.load_state_dict(saved)

    def __call__(self, step: int) -> None:
        """Save a checkpoint unless the last one is less than `every_s` seconds old.

        Warns with the number of the step if the file cannot be written.
        """
        if self.path is None or time.monotonic() - self.saved_at < self.every_s:
            return
        try:
            self._save()
        except OSError as error:  # such as a full disk
            warnings.warn(f"no checkpoint at step {step}: {error}", stacklevel=3)
        self.saved_at = time.monotonic()

    def _save(self) -> None:
        buffer = io.BytesIO()
        torch.save({"run_id": self.run_id, **self.state.state_dict()}, buffer)
        content = buffer.getvalue()
        write_bytes(self.path, hashlib.sha256(content).hexdigest().encode() + b"\n" + content)

    def _read(self) -> dict[str, Any]:
        """Return the state in the file.

        Raises ValueError if the file is damaged or belongs to another run or another model.
        """
        checksum, _, content = self.path.read_bytes().partition(b"\n")
        if checksum != hashlib.sha256(content).hexdigest().encode():
            raise ValueError("the file is truncated or altered: its checksum does not match")
        device = next(self.state.model.parameters()).device
        saved = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
        if saved["run_id"] != self.run_id:
            raise ValueError(f"the file belongs to run {saved['run_id']}, not to {self.run_id}")
        expected = self.state.state_dict()
        shapes, expected_shapes = (
            {name: weight.shape for name, weight in state["model"].items()}
            for state in (saved, expected)
        )
        if saved.keys() != {"run_id", *expected} or shapes != expected_shapes:
            raise ValueError("the file was written by other code or for another model")
        return saved
