"""The result of one run: `RunResult` in memory after training, `StoredRun` on disk.

Reading a stored run checks its files and changes nothing. `runs/store.py` skips a damaged run with
a warning that names the run.
"""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mambanorm.arms import Arm
from mambanorm.errors import NotRegistered
from mambanorm_study.basics.atomic import sha256
from mambanorm_study.basics.extensions import ImportFailed
from mambanorm_study.config import RunConfig


@dataclass
class RunResult:
    """The result of a training run.

    Accuracies are fractions. In a regression they are R² against the training mean
    (runs/evaluation.py), and chance is 0. A diverged run has test_accuracy = val_accuracy = chance.
    """

    config: RunConfig
    status: str  # ok | diverged
    test_accuracy: float  # of the weights at best_step
    val_accuracy: float  # at the last step
    best_val_accuracy: float  # NaN if the run ended before its first evaluation
    best_step: int  # step with the best evaluation (`BestWeights`)
    best_val_loss: float | None  # at best_step; None if the run ended before its first evaluation
    chance: float  # accuracy of always guessing the most common class
    steps: int  # number of optimizer steps done
    first_nonfinite_step: int | None
    first_nonfinite_site: str | None
    wall_s: float
    tokens_per_s: float
    peak_memory_mb: float  # growth during the run; NaN if neither CUDA nor Linux reports it
    threads: int
    backend: str
    parameters: int
    versions: str
    git_commit: str
    machine: str
    # mean cross-entropy in nats; in a regression, mean squared error of the standardized targets
    test_loss: float | None
    # language models only: loss in nats of predicting each token with the probability of its
    # frequency in the training split; a diverged run has test_loss = chance_loss
    chance_loss: float | None
    # rmse, mae, chance_rmse: on the test split, in the targets' units, mean over the targets; None
    # for classes
    rmse: float | None
    mae: float | None
    chance_rmse: float | None  # RMSE of predicting the training mean
    curves: pd.DataFrame  # columns: step, train_loss, grad_norm, lr, val_loss, val_accuracy
    predictions: dict[str, np.ndarray]  # `predict` on the test split
    diagnostics: dict[str, np.ndarray]  # `WeightLog.arrays()`
    checkpoint: dict[str, Any]  # state_dict at best_step

    def facts(self) -> dict[str, Any]:
        """Return a map from name to scalar, as in result.json and in a row of the run frame.

        Numbers that are not finite become None, because JSON has no NaN or infinity.
        """
        facts = {name: getattr(self, name) for name in FACTS}
        for name, value in facts.items():
            if isinstance(value, float) and not math.isfinite(value):
                facts[name] = None
        return facts


ARRAYS = ("curves", "predictions", "diagnostics", "checkpoint")
# Names of the fields of a RunResult that are scalars.
FACTS = tuple(f.name for f in fields(RunResult) if f.name not in ("config", *ARRAYS))


# --------------------------------------------------------------------------------------------------
# runs on disk

# The files of a stored run, without the manifest. The manifest has the checksum and size of each.
RUN_FILES = (
    *("config.json", "result.json", "curves.parquet"),
    *("predictions.npz", "diagnostics.npz", "checkpoint.safetensors"),
)
MANIFEST = "manifest.json"


class DamagedRun(ValueError):
    """Raised if a file of a stored run is missing, truncated or altered."""

    def __init__(self, folder: Path, reason: object):
        super().__init__(
            f"the run {folder} is damaged: {reason}. "
            "The command that trained the run renames the folder and trains the run again"
        )


@dataclass(frozen=True)
class StoredRun:
    """A run on disk. Each property reads its file anew and compares it with the manifest.

    A property raises DamagedRun if its file was altered, OSError if this user cannot read it.
    facts: the content of result.json (`RunResult.facts`).
    """

    path: Path
    config: RunConfig
    facts: dict[str, Any]
    manifest: dict[str, dict[str, Any]]  # file name → {"sha256": …, "bytes": …}

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
    def checkpoint(self) -> dict[str, Any]:
        from safetensors.torch import (
            load_file,  # imports torch, which a run frame does not need
        )

        return self._load("checkpoint.safetensors", load_file)

    def _load(self, name: str, read: Callable[[Path], Any]) -> Any:
        path = self.path / name
        _verify_checksum(name, sha256(path), self.manifest, self.path)
        return read(path)


def config_row(config: RunConfig) -> dict[str, Any]:
    """Return a map from column to value: the part of a run-frame row known before training."""
    arm = Arm.parse(config.arm)
    return {
        "run_id": config.run_id,
        "task": config.task,
        "arm": config.arm,
        "n1": arm.n1,
        "n2": arm.n2,
        "more": arm.further_notation,
        "norm_options": json.dumps(config.norm_options, sort_keys=True),
        "seed": config.seed,
        "role": config.role,
        "scale": config.scale,
        "lr": config.lr,
        "n_layers": config.n_layers,
        "d_model": config.d_model,
        "model": config.model,
    }


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def read_run(folder: Path) -> StoredRun | None:
    """Return the run in a folder, or None if the folder does not exist.

    Checks the checksums of config.json and result.json and the sizes of the other files. Raises
    DamagedRun if a check fails, OSError if this user cannot read the run, and NotRegistered if the
    config names a norm, an optimizer or the like that is not registered.
    """
    if not folder.exists():
        return None
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())["files"]
        texts = {}
        for name in ("config.json", "result.json"):
            content = (folder / name).read_bytes()
            _verify_checksum(name, hashlib.sha256(content).hexdigest(), manifest, folder)
            texts[name] = content.decode()
        for name in RUN_FILES[2:]:
            if (folder / name).stat().st_size != manifest[name]["bytes"]:
                raise ValueError(f"{name} is shorter or longer than the manifest states")
        config = RunConfig.from_json(texts["config.json"])
        if config.run_id != folder.name:
            raise ValueError(
                f"its config is that of run {config.run_id}: it was edited or copied, or is of an "
                "older SCHEMA"
            )
        return StoredRun(folder, config, json.loads(texts["result.json"]), manifest)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        name = Path(error.filename or folder).name
        raise DamagedRun(folder, f"{name} is missing or is not a file") from error
    except (DamagedRun, NotRegistered, ImportFailed):
        raise
    except (
        ValueError,
        TypeError,
        KeyError,
        RecursionError,
    ) as error:  # the content of a file is malformed
        raise DamagedRun(folder, error) from error


def _verify_checksum(name: str, checksum: str, manifest: dict[str, dict], folder: Path) -> None:
    if checksum != manifest[name]["sha256"]:
        raise DamagedRun(folder, f"{name} was altered: the manifest has another checksum")
