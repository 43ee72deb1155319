"""The exponential moving average of a run's weights (S2, §IV.C.3), by torch.optim.swa_utils."""

from __future__ import annotations

from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class Average:
    """The average of a model's weights over its steps, w̄ ← decay·w̄ + (1 − decay)·w after each, the first as it is; with
    decay 0 the model itself.

    Buffers, such as BN's running statistics, are those of the model. `judged` is what is validated and tested.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.model, self.averaged = model, None
        if decay:
            self.averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))

    @property
    def judged(self) -> nn.Module:
        return self.model if self.averaged is None else self.averaged.module

    def update(self) -> None:
        if self.averaged is not None:
            self.averaged.update_parameters(self.model)

    def state_dict(self) -> dict[str, Tensor]:
        return {} if self.averaged is None else self.averaged.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if self.averaged is not None:
            self.averaged.load_state_dict(state)
