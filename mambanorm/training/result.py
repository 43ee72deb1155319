"""What a run gives: `RunResult`, and the check of its facts when they are read back from a store.

A checksum shows that a file is what was written. A store of an earlier version has none. There `check_facts` checks
what it can: every fact has its type, lies within its bounds and agrees with the config.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mambanorm.config import RunConfig

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class RunResult:
    """What a run gives. Accuracies are fractions; of a diverged run, test_accuracy and val_accuracy are chance. Of a
    regression they are R² against the training mean (training/evaluation.py), and chance is 0."""

    config: RunConfig
    status: str  # ok | diverged
    test_accuracy: float  # of the weights with the best validation accuracy
    val_accuracy: float  # at the last step
    best_val_accuracy: float  # NaN if the run ended before its first evaluation
    best_step: int
    best_val_loss: float | None  # at that step; None without an evaluation
    chance: float  # accuracy of always guessing the commonest class
    steps: int  # optimizer steps done
    first_nonfinite_step: int | None
    first_nonfinite_site: str | None
    wall_s: float
    tokens_per_s: float
    peak_memory_mb: float
    threads: int
    backend: str
    parameters: int
    versions: str
    git_commit: str
    machine: str
    test_loss: float | None  # cross-entropy in nats, or squared error of the scaled targets
    chance_loss: float | None  # of a language model: in nats, of guessing by frequency; its test_loss if it diverged
    rmse: float | None  # of a regression, on test, in the targets' units; the mean over several
    mae: float | None
    chance_rmse: float | None  # of predicting the training mean
    curves: pd.DataFrame  # step, train_loss, grad_norm, lr, val_loss, val_accuracy
    predictions: dict[str, np.ndarray]  # of the test split: label, predicted (−1: logits not finite), loss
    diagnostics: dict[str, np.ndarray]  # WeightLog.arrays()
    checkpoint: dict[str, Tensor]  # state_dict of the best validation step

    def facts(self) -> dict[str, Any]:
        """The scalars, as they stand in result.json and in a row of the run frame; None for what is not finite, which
        JSON does not have."""
        facts = {name: getattr(self, name) for name in FACTS}
        odd = {name for name, value in facts.items() if isinstance(value, float) and not math.isfinite(value)}
        return {name: None if name in odd else value for name, value in facts.items()}


ARRAYS = ("curves", "predictions", "diagnostics", "checkpoint")
FACTS = tuple(f.name for f in fields(RunResult) if f.name not in ("config", *ARRAYS))
"""The scalars of a result, by name."""


FRACTIONS = ("test_accuracy", "val_accuracy", "chance", "best_val_accuracy")
COUNTS = ("steps", "best_step", "parameters", "threads", "first_nonfinite_step")
ADDED = ("test_loss", "rmse", "mae", "chance_rmse", "best_val_loss", "chance_loss")  # the first runs have none
MEASURES = ("wall_s", "tokens_per_s", "peak_memory_mb", *ADDED)
MAY_BE_NONE = ("best_val_accuracy", "first_nonfinite_step", "first_nonfinite_site", *ADDED)


def check_facts(facts: dict[str, Any], config: RunConfig) -> dict[str, Any]:
    """The facts, with None for those that a run of an earlier version has not. Raises ValueError unless they are those
    of a run of this config, each of its type and within its bounds."""
    facts = dict.fromkeys(ADDED) | facts if isinstance(facts, dict) else facts
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
    stopped = diverged or config.patience  # before the last step
    if facts["steps"] > config.steps or (not stopped and facts["steps"] != config.steps):
        raise ValueError(f"result.json has {facts['steps']} steps, the config asks for {config.steps}")
    if facts["threads"] != config.threads and facts["backend"] == "cpu":
        raise ValueError(
            f"it was trained on {facts['threads']} threads by an earlier version, its config says {config.threads}"
        )
    return facts


def _is_fact(name: str, value: object) -> bool:
    if value is None:
        return name in MAY_BE_NONE
    if name in COUNTS:
        return type(value) is int and value >= 0
    if name in FRACTIONS + MEASURES:
        number = type(value) in (int, float) and math.isfinite(value)
        return number and (name in MEASURES or 0 <= value <= 1)
    return isinstance(value, str) and value.isprintable()  # a terminal obeys what is not
