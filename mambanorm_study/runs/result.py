"""What a run gives: `RunResult` as it has just been trained, `StoredRun` as it lies on disk, read
and checked.

A damaged folder is never changed here; `runs/store.py` skips it with a warning that names it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mambanorm.arms import Arm
from mambanorm.errors import NotRegistered
from mambanorm_study.basics.atomic import sha256
from mambanorm_study.basics.checks import ImportFailed
from mambanorm_study.config import RunConfig

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class RunResult:
    """What a run gives. Accuracies are fractions; of a diverged run, test_accuracy and val_accuracy
    are chance. Of a regression they are R² against the training mean (runs/evaluation.py), and
    chance is 0."""

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
    peak_memory_mb: float  # NaN where neither CUDA nor Linux tells it
    threads: int
    backend: str
    parameters: int
    versions: str
    git_commit: str
    machine: str
    test_loss: float | None  # cross-entropy in nats, or squared error of the scaled targets
    chance_loss: (
        float | None
    )  # of a language model: in nats, of guessing by frequency; its test_loss if it diverged
    rmse: float | None  # of a regression, on test, in the targets' units; the mean over several
    mae: float | None
    chance_rmse: float | None  # of predicting the training mean
    curves: pd.DataFrame  # step, train_loss, grad_norm, lr, val_loss, val_accuracy
    predictions: dict[
        str, np.ndarray
    ]  # of the test split: label, predicted (−1: logits not finite), loss
    diagnostics: dict[str, np.ndarray]  # WeightLog.arrays()
    checkpoint: dict[str, Tensor]  # state_dict of the best validation step

    def facts(self) -> dict[str, Any]:
        """The scalars, as they stand in result.json and in a row of the run frame; None for what is
        not finite, which JSON does not have."""
        facts = {name: getattr(self, name) for name in FACTS}
        odd = {
            name
            for name, value in facts.items()
            if isinstance(value, float) and not math.isfinite(value)
        }
        return {name: None if name in odd else value for name, value in facts.items()}


ARRAYS = ("curves", "predictions", "diagnostics", "checkpoint")
FACTS = tuple(f.name for f in fields(RunResult) if f.name not in ("config", *ARRAYS))
"""The scalars of a result, by name."""


# --------------------------------------------------------------------------------------------------
# on disk

WRITTEN = ("config.json", "result.json", "curves.parquet")
WRITTEN += ("predictions.npz", "diagnostics.npz", "checkpoint.safetensors")
MANIFEST = "manifest.json"
FILES = (*WRITTEN, MANIFEST)


class DamagedRun(ValueError):
    """A stored run that is not what was written: a file is missing, cut or altered."""

    def __init__(self, folder: Path, reason: object):
        text = f"the run {folder} is damaged: {reason}. The command that trained it sets it aside and trains it again"
        super().__init__(text)
        self.reason = str(reason)


@dataclass(frozen=True)
class StoredRun:
    """A run on disk; its arrays are read, and checked, when asked for: DamagedRun where a file is
    not what was written, OSError where this user may not read it."""

    path: Path
    config: RunConfig
    facts: dict[str, Any]
    manifest: dict[str, dict[str, Any]]  # file → sha256 and bytes

    @property
    def curves(self) -> pd.DataFrame:
        return self._load("curves.parquet", pd.read_parquet)

    @property
    def predictions(self) -> dict[str, np.ndarray]:
        return self._load("predictions.npz", _read_npz)

    @property
    def diagnostics(self) -> dict[str, np.ndarray]:
        return self._load("diagnostics.npz", _read_npz)

    @property
    def checkpoint(self) -> dict[str, Tensor]:
        from safetensors.torch import (
            load_file,
        )  # here: a row of the run frame need not wait for torch

        return self._load("checkpoint.safetensors", load_file)

    def _load(self, name: str, read: Callable[[Path], Any]) -> Any:
        path = self.path / name
        if sha256(path) != self.manifest[name]["sha256"]:
            raise DamagedRun(
                self.path, f"{name} was altered: its checksum is not that of the manifest"
            )
        return read(path)

    def row(self) -> dict:
        """One row of the run frame."""
        return config_row(self.config) | self.facts | {"checked": True}


def config_row(config: RunConfig) -> dict:
    """The columns of the run frame that are known before a run."""
    arm = Arm.parse(config.arm)
    names = ("task", "arm", "seed", "scale", "lr", "n_layers", "d_model", "model")
    same = {name: getattr(config, name) for name in names}
    options = json.dumps(config.norm_options, sort_keys=True)
    norms = {"n1": arm.n1, "n2": arm.n2, "more": arm.further}
    return {"run_id": config.run_id, **same, **norms, "role": config.role, "norm_options": options}


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def read_run(folder: Path) -> StoredRun | None:
    """The run in a folder, checked as far as that is cheap; None if there is no folder. Raises
    DamagedRun, OSError if the run cannot be read, or NotRegistered if its norm or its optimizer,
    say, is not registered here."""
    if not folder.exists():
        return None
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())["files"]
        config, facts = (
            _small_file(folder / name, manifest[name]["sha256"]) for name in WRITTEN[:2]
        )
        for name in WRITTEN[2:]:
            if (folder / name).stat().st_size != manifest[name]["bytes"]:
                raise ValueError(f"{name} is shorter or longer than it was")
        config = RunConfig.from_json(config)
        if config.run_id != folder.name:
            raise ValueError(
                f"its config is that of run {config.run_id}: edited, copied, or of an older SCHEMA"
            )
        return StoredRun(folder, config, json.loads(facts), manifest)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise DamagedRun(
            folder, f"{Path(error.filename or folder).name} is missing or no file"
        ) from error
    except (NotRegistered, ImportFailed):
        raise
    except (
        ValueError,
        TypeError,
        KeyError,
        RecursionError,
    ) as error:  # a file is not what its name says
        raise DamagedRun(folder, error) from error


def _small_file(path: Path, checksum: str) -> str:
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != checksum:
        raise ValueError(f"{path.name} was altered: its checksum is not that of the manifest")
    return content.decode()


def check_run(folder: Path) -> None:
    """Reads all of a run. DamagedRun if any of it is not what was written, OSError where it cannot
    be read."""
    run = read_run(folder)
    for name in ARRAYS:
        getattr(run, name)
