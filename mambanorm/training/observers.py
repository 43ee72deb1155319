"""What happens in a run after its steps, besides the steps.

    Average     the moving average of the weights, which is then judged
    Best        the weights with the best validation accuracy so far, and how long ago that was
    Progress    how far the run is: positions and seconds

The weights' snapshots are diagnostics' `WeightLog`, checkpoints are in checkpoint.py; run.py puts them in a row.
"""

from __future__ import annotations

import math
import time

from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


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
