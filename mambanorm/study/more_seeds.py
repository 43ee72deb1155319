"""More seeds of the same comparison without training: the solutions of exercises read what is recorded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from mambanorm.config import RunConfig
from mambanorm.training.recorded_results import recorded_seeds
from mambanorm.training.sweep import sweep


def more_seeds(configs: Iterable[RunConfig], seeds: int = 8, **how: Any) -> pd.DataFrame:
    """The run frame of these arms over the recorded seeds 0 to `seeds` − 1, if every one of them is recorded so; else
    the frame of the configs themselves by `sweep(configs, **how)`, which trains only what is not stored."""
    configs = list(configs)
    found = recorded_seeds(configs, seeds)
    asked = {(config.task, config.arm) for config in configs}
    return found if asked <= set(zip(found.task, found.arm, strict=True)) else sweep(configs, **how)
