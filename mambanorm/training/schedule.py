"""The learning rate over a run: a linear warm-up, then one of SCHEDULES, the one place to add another."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a config looks the names up here
    from mambanorm.training.config import RunConfig

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant_warmup": lambda progress: 1.0,
    "cosine_warmup": lambda progress: 0.5 * (1 + math.cos(math.pi * progress)),
}
"""Name, as `RunConfig.schedule` has it → factor on the learning rate by progress: 0 after the warm-up, 1 at the end."""


def schedule(step: int, config: RunConfig) -> float:
    """Factor on the learning rate at step 1…steps."""
    if step <= config.warmup_steps:
        return step / config.warmup_steps
    progress = (step - config.warmup_steps) / max(config.steps - config.warmup_steps, 1)
    return SCHEDULES[config.schedule](progress)
