"""The rows of a run frame that count, and what they hold: before anything is judged.

checked     the runs of a scale that ended, each once; a frame that holds what no run can have is refused
columns_of  their numbers as arrays
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from mambanorm.claims.claim import CORRUPTED, SMALLEST_BITS
from mambanorm.claims.protocol import SAME_RUNS, VERSION
from mambanorm.runs.presets import LANGUAGE_TASKS, TEXTS

LOOKED_AT = ("run_id", "status", "test_accuracy", "best_val_accuracy", "chance", "task", "scale", "seed", "role", "lr")
FACTS = ("status", "test_accuracy", "best_val_accuracy", "chance")
STATUS = ("ok", "diverged", "failed")
LOSSES = ("test_loss", "best_val_loss", "chance_loss")
"""What language models are judged by, in nats."""
STORED = ("growth", "law", "sigma_rise", "sigma_trend", "unevenness", "headroom")


def checked(frame: pd.DataFrame, scale: str) -> pd.DataFrame:
    """The runs of the scale that ended, each once.

    The frame has the columns LOOKED_AT. ValueError for what no run can have, for two results of one run, for runs of
    version 1 of the protocol, which asked for others, and for language models of different texts.
    """
    runs = _once(_usable(frame, scale))
    if "protocol" in runs and (other := set(runs.protocol.dropna()) - set(SAME_RUNS)):
        named = " and ".join(sorted(map(str, other)))
        raise ValueError(f"the frame holds runs of protocol {named}, this is protocol {VERSION}: record anew")
    _check_texts(runs)
    return runs


def _usable(frame: pd.DataFrame, scale: str) -> pd.DataFrame:
    """The runs of the scale that ended, with finite numbers: one without them is a run that is not there, and named so.

    ValueError for what no run can have: another status, a seed that is no whole number, an accuracy beyond 0…1."""
    status = frame.status.to_numpy(object)
    if unknown_status := sorted({str(word) for word in status} - set(STATUS)):
        raise ValueError(f"status of a run is one of {', '.join(STATUS)}, got {unknown_status[0]!r}")
    ended = (frame.scale.to_numpy(object) == scale) & ((status == "ok") | (status == "diverged"))
    runs = frame if ended.all() else frame[ended]
    seeds = pd.to_numeric(runs.seed, errors="coerce").to_numpy(float)
    if len(wrong := np.flatnonzero(~(seeds == np.round(seeds)))):
        raise ValueError(
            f"a seed is a whole number, got {runs.seed.iloc[wrong[0]]!r} in run {runs.run_id.iloc[wrong[0]]}"
        )
    diverged, finite = runs.status.to_numpy(object) == "diverged", np.ones(len(runs), bool)
    for name in ("chance", "test_accuracy", "best_val_accuracy"):
        values = runs[name].to_numpy(float)
        if len(wrong := np.flatnonzero((values < 0) | (values > 1) & np.isfinite(values))):
            told = f"{name} is a fraction from 0 to 1, got {values[wrong[0]]:g} in run {runs.run_id.iloc[wrong[0]]}"
            raise ValueError(told + (": divide per cent by 100" if values[wrong[0]] > 1 else ""))
        finite &= np.isfinite(values) | (diverged & (name != "chance"))
    text = np.isin(runs.task.to_numpy(object), LANGUAGE_TASKS)
    for name in LOSSES if text.any() else ():
        finite &= ~text | np.isfinite(_numbers(runs, name)) | (diverged & (name != "chance_loss"))
    return runs if finite.all() else runs[finite]


def _once(runs: pd.DataFrame) -> pd.DataFrame:
    """Each run once, with the summaries that any of its rows has. ValueError for two results of one run."""
    if not runs.run_id.duplicated().any():
        return runs
    stored = [name for name in STORED if name in runs]
    order = runs[stored].notna().sum(axis=1).to_numpy().argsort(kind="stable")[::-1]
    runs = runs.iloc[order].drop_duplicates(["run_id", *FACTS])
    for twice, both in runs[runs.run_id.duplicated(keep=False)].groupby("run_id"):
        raise ValueError(f"the frame holds two different results of run {twice} ({len(both)} rows): keep one")
    return runs


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
    for name, column in dict(
        score="test_accuracy", validation="best_val_accuracy", **dict(zip(CORRUPTED, CORRUPTED))
    ).items():
        facts[name] = 100 * np.where(diverged, chance, _numbers(runs, column))
    facts |= {f"{name}_change": facts[name] - facts["score"] for name in CORRUPTED}
    test, val, by_frequency = (-_numbers(runs, name) / math.log(2) for name in LOSSES)
    facts["bits"] = np.where(diverged, by_frequency, test)
    facts["validation"] = np.where(text, np.where(diverged, by_frequency, val), facts["validation"])
    facts["chance"] = np.where(text, by_frequency, facts["chance"])
    late, gain = (
        _numbers(runs, "best_step") - 0.9 * _numbers(runs, "steps"),
        _numbers(runs, "late_gain") - SMALLEST_BITS,
    )
    late = np.where(text, gain >= 0, late > 0) / np.where(np.isfinite(np.where(text, gain, late)), 1.0, np.nan)
    facts["late"] = np.where(diverged, np.nan, late)
    facts |= {name: _numbers(runs, name) for name in STORED}
    facts["steepness"] = np.abs(facts["growth"])
    return {name: np.append(values, np.nan) for name, values in facts.items()}


def _numbers(runs: pd.DataFrame, name: str) -> np.ndarray:
    """A column that not every frame has: NaN without it."""
    return pd.to_numeric(runs[name]).to_numpy(float) if name in runs else np.full(len(runs), np.nan)
