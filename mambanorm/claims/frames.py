"""The rows of a run frame that count, and what they hold: before anything is judged."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd

from mambanorm.claims.claim import CORRUPTED, SMALLEST_BITS
from mambanorm.claims.protocol import SAME_RUNS, VERSION
from mambanorm.runs.presets import LANGUAGE_TASKS, TEXTS

LOOKED_AT = ("run_id", "status", "test_accuracy", "best_val_accuracy", "chance", "task", "scale", "seed", "role", "lr")
LOSSES = ("test_loss", "best_val_loss", "chance_loss")
"""What language models are judged by, in nats."""
STORED = ("growth", "law", "sigma_rise", "sigma_trend", "unevenness", "sharpening", "fragility", "headroom")


def checked(frame: pd.DataFrame, scale: str) -> pd.DataFrame:
    """The runs of the scale that ended with finite numbers, each once: one without them is a run that is not there.

    The frame has the columns LOOKED_AT. ValueError for runs of version 1 of the protocol, which asked for others, and
    for language models of different texts.
    """
    status = frame.status.to_numpy(object)
    runs = frame[(frame.scale.to_numpy(object) == scale) & ((status == "ok") | (status == "diverged"))]
    runs = runs.drop_duplicates("run_id")
    diverged, finite = runs.status.to_numpy(object) == "diverged", np.ones(len(runs), bool)
    for name in ("chance", "test_accuracy", "best_val_accuracy"):
        finite &= np.isfinite(runs[name].to_numpy(float)) | (diverged & (name != "chance"))
    text = np.isin(runs.task.to_numpy(object), LANGUAGE_TASKS)
    for name in LOSSES if text.any() else ():
        finite &= ~text | np.isfinite(_numbers(runs, name)) | (diverged & (name != "chance_loss"))
    runs = runs[finite]
    if "protocol" in runs and (other := set(runs.protocol.dropna()) - set(SAME_RUNS)):
        named = " and ".join(sorted(map(str, other)))
        raise ValueError(f"the frame holds runs of protocol {named}, this is protocol {VERSION}: record anew")
    _check_texts(runs)
    return runs


def of_seeds(frame: pd.DataFrame, seeds: int | Iterable[int] | None) -> pd.DataFrame:
    """The runs of the first `seeds` seeds of each task, or of the seeds in a list; None = all of them."""
    if seeds is None or not len(frame):
        return frame
    first = isinstance(seeds, int)
    return frame[frame.groupby("task").seed.rank("dense") <= seeds if first else frame.seed.isin(list(seeds))]


def recorded_under(frame: pd.DataFrame) -> str:
    """`protocol 2, in force since commit e74d60c`, from the frame's own columns."""
    if not {"protocol", "protocol_commit"} <= set(frame.columns) or frame.empty:
        return "no protocol is named in the frame"
    said = frame[["protocol", "protocol_commit"]].drop_duplicates().itertuples(index=False)
    return " and ".join(f"protocol {version:.0f}, in force since commit {commit}" for version, commit in said)


def _check_texts(runs: pd.DataFrame) -> None:
    """ValueError for language models of different texts: Python's documentation changes with Python, and the loss of
    guessing by frequency tells one text from another."""
    if "chance_loss" not in runs:
        return
    for task in TEXTS:
        losses = runs.chance_loss[runs.task == task].dropna().round(6).unique()
        if len(losses) > 1:
            known = ", ".join(f"{loss:.6f}" for loss in sorted(losses))
            raise ValueError(
                f"the runs of {task} are of different texts (chance_loss {known} nats): judge those of one Python alone"
            )


def columns_of(runs: pd.DataFrame) -> dict[str, np.ndarray]:
    """The columns by name; behind the last run stands NaN, which is what a run that is not there has. A diverged run
    has chance in all that is measured. `late`: 1 where a run was best in the last tenth of its steps, of language
    models where that tenth was worth SMALLEST_BITS; NaN where that is not known."""
    diverged, chance = runs.status.to_numpy(object) == "diverged", runs.chance.to_numpy(float)
    text = np.isin(runs.task.to_numpy(object), LANGUAGE_TASKS)
    facts = {"diverged": diverged.astype(float), "chance": 100 * chance}
    accuracies = dict(score="test_accuracy", validation="best_val_accuracy") | dict(zip(CORRUPTED, CORRUPTED))
    for name, column in accuracies.items():
        facts[name] = 100 * np.where(diverged, chance, _numbers(runs, column))
    facts |= {f"{name}_change": facts[name] - facts["score"] for name in CORRUPTED}
    test, val, by_frequency = (-_numbers(runs, name) / math.log(2) for name in LOSSES)
    facts["bits"] = np.where(diverged, by_frequency, test)
    facts["validation"] = np.where(text, np.where(diverged, by_frequency, val), facts["validation"])
    facts["chance"] = np.where(text, by_frequency, facts["chance"])
    late = _numbers(runs, "best_step") - 0.9 * _numbers(runs, "steps")
    gain = _numbers(runs, "late_gain") - SMALLEST_BITS
    late = np.where(text, gain >= 0, late > 0) / np.where(np.isfinite(np.where(text, gain, late)), 1.0, np.nan)
    facts["late"] = np.where(diverged, np.nan, late)
    facts |= {name: _numbers(runs, name) for name in STORED}
    facts["steepness"] = np.abs(facts["growth"])
    return {name: np.append(values, np.nan) for name, values in facts.items()}


def _numbers(runs: pd.DataFrame, name: str) -> np.ndarray:
    """A column that not every frame has: NaN without it."""
    return pd.to_numeric(runs[name]).to_numpy(float) if name in runs else np.full(len(runs), np.nan)
