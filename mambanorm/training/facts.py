"""What result.json may say: every fact of a run, of its type, within its bounds and in accord with its config.

A checksum tells that a file is what was written. A store of an earlier version has none: this is what can be told
there.
"""

from __future__ import annotations

import math
from typing import Any

from mambanorm.training.config import RunConfig
from mambanorm.training.loop import FACTS

FRACTIONS = ("test_accuracy", "val_accuracy", "chance", "best_val_accuracy")
COUNTS = ("steps", "best_step", "parameters", "threads", "first_nonfinite_step")
MEASURES = ("wall_s", "tokens_per_s", "peak_memory_mb")
MAY_BE_NONE = ("best_val_accuracy", "first_nonfinite_step", "first_nonfinite_site")


def check_facts(facts: dict[str, Any], config: RunConfig) -> None:
    """Raises ValueError unless the facts are those of a run of this config, each of its type and within its bounds."""
    if not isinstance(facts, dict) or sorted(facts) != sorted(FACTS):
        odd = sorted(set(facts) ^ set(FACTS)) if isinstance(facts, dict) else ["no object of JSON"]
        raise ValueError(f"result.json does not hold the facts of a run: {', '.join(odd)}")
    for name, value in facts.items():
        if not _is_fact(name, value):
            raise ValueError(f"result.json has {name} = {value!r}")
    diverged = facts["status"] == "diverged"
    if facts["status"] not in ("ok", "diverged") or diverged != (facts["first_nonfinite_step"] is not None):
        raise ValueError(f"result.json has status {facts['status']!r} and step {facts['first_nonfinite_step']!r}")
    if diverged and facts["test_accuracy"] != facts["chance"]:
        raise ValueError(f"result.json has accuracy {facts['test_accuracy']} where a diverged run has chance")
    if facts["steps"] > config.steps or (not diverged and facts["steps"] != config.steps):
        raise ValueError(f"result.json has {facts['steps']} steps, the config asks for {config.steps}")
    if facts["threads"] != config.threads and facts["backend"] == "cpu":
        raise ValueError(
            f"it was trained on {facts['threads']} threads by an earlier version, its config says {config.threads}"
        )


def _is_fact(name: str, value: object) -> bool:
    if value is None:
        return name in MAY_BE_NONE
    if name in COUNTS:
        return type(value) is int and value >= 0
    if name in FRACTIONS + MEASURES:
        number = type(value) in (int, float) and math.isfinite(value)
        return number and (name in MEASURES or 0 <= value <= 1)
    return isinstance(value, str)
