"""The learning rate over a run: linear warm-up, then one of SCHEDULES."""

from __future__ import annotations

import math

from mambanorm.training.config import RunConfig


def schedule(step: int, config: RunConfig) -> float:
    """Factor on the learning rate at step 1…steps: linear warm-up, then constant, or a cosine down to zero."""
    if step <= config.warmup_steps:
        return step / config.warmup_steps
    if config.schedule == "constant_warmup":
        return 1.0
    progress = (step - config.warmup_steps) / max(config.steps - config.warmup_steps, 1)
    return 0.5 * (1 + math.cos(math.pi * progress))
