"""The learning rate over a run: a linear warm-up, then one of SCHEDULES, the one place to add another."""

from __future__ import annotations

import math
from collections.abc import Callable

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant_warmup": lambda progress: 1.0,
    "cosine_warmup": lambda progress: 0.5 * (1 + math.cos(math.pi * progress)),
}
"""Name, as `RunConfig.schedule` has it → factor on the learning rate by progress: 0 after the warm-up, 1 at the end."""


def schedule(name: str, step: int, *, steps: int, warmup_steps: int) -> float:
    """Factor on the learning rate at a step, 1…steps, by one of SCHEDULES."""
    if step <= warmup_steps:
        return step / warmup_steps
    return SCHEDULES[name]((step - warmup_steps) / max(steps - warmup_steps, 1))
