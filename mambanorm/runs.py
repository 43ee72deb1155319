"""The run store: one folder a run, there whole or not at all.

    runs/<run_id>/config.json  result.json  curves.parquet  predictions.npz  diagnostics.npz  checkpoint.safetensors

A run is written into a temporary folder beside it and renamed last. A damaged folder is skipped with a warning that
names it, and never deleted: should its run be trained anew, it is set aside as `<run_id>.damaged-1`.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from safetensors.torch import load_file, save_file
from torch import Tensor

from mambanorm.arms import Arm
from mambanorm.config import ROOT, RunConfig
from mambanorm.train import RunResult

FILES = ("config.json", "result.json", "curves.parquet", "predictions.npz", "diagnostics.npz", "checkpoint.safetensors")
COLUMNS = [
    *("run_id", "task", "arm", "n1", "n2", "seed", "role", "scale", "lr", "n_layers", "status"),
    *("test_accuracy", "val_accuracy", "best_val_accuracy", "chance", "steps"),
    *("first_nonfinite_step", "first_nonfinite_site", "wall_s", "tokens_per_s", "peak_memory_mb"),
    *("threads", "backend", "versions", "git_commit", "machine"),
    *("best_step", "parameters", "d_model", "norm_options", "error"),
]
UNFINISHED = ".unfinished-"


def runs_dir(path: str | Path | None = None) -> Path:
    """The run store: the path given, else `MAMBANORM_RUNS_DIR`, else `runs/` beside the package. Not created here."""
    return Path(path or os.environ.get("MAMBANORM_RUNS_DIR") or ROOT / "runs").resolve()


@dataclass(frozen=True)
class StoredRun:
    """A run on disk; its arrays are read when asked for."""

    path: Path
    config: RunConfig
    facts: dict

    @property
    def curves(self) -> pd.DataFrame:
        return pd.read_parquet(self.path / "curves.parquet")

    @property
    def predictions(self) -> dict[str, np.ndarray]:
        return _read_npz(self.path / "predictions.npz")

    @property
    def diagnostics(self) -> dict[str, np.ndarray]:
        return _read_npz(self.path / "diagnostics.npz")

    @property
    def checkpoint(self) -> dict[str, Tensor]:
        return load_file(self.path / "checkpoint.safetensors")

    def row(self) -> dict:
        """One row of the run frame."""
        return config_row(self.config) | self.facts


def config_row(config: RunConfig) -> dict:
    """The columns of the run frame that are known before a run."""
    arm = Arm.parse(config.arm)
    same = {name: getattr(config, name) for name in ("task", "arm", "seed", "scale", "lr", "n_layers", "d_model")}
    options = json.dumps(config.norm_options, sort_keys=True)
    return {"run_id": config.run_id, **same, "n1": arm.n1, "n2": arm.n2, "role": config.role, "norm_options": options}


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def save_run(result: RunResult, directory: str | Path | None = None) -> Path:
    """Writes a run and returns its folder. A whole one that is there already stays; OSError (a full disk, say) leaves
    nothing half-written behind."""
    store = runs_dir(directory)
    store.mkdir(parents=True, exist_ok=True)
    final = store / result.config.run_id
    if _read(final) is not None:
        return final
    temporary = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=store))
    try:
        _write(result, temporary)
        if final.exists():
            final.rename(_free_name(final))
        temporary.rename(final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return final


def _write(result: RunResult, folder: Path) -> None:
    (folder / "config.json").write_text(result.config.to_json())
    (folder / "result.json").write_text(json.dumps(result.facts(), indent=2))
    result.curves.to_parquet(folder / "curves.parquet", index=False)
    np.savez_compressed(folder / "predictions.npz", **result.predictions)
    np.savez_compressed(folder / "diagnostics.npz", **result.diagnostics)
    save_file(
        {name: value.contiguous() for name, value in result.checkpoint.items()}, folder / "checkpoint.safetensors"
    )


def _free_name(path: Path) -> Path:
    n = 1
    while (aside := path.with_name(f"{path.name}.damaged-{n}")).exists():
        n += 1
    return aside


def _read(folder: Path) -> StoredRun | None:
    """The run in a folder; None if there is no folder, or, after a warning that names it, if it is damaged."""
    if not folder.exists():
        return None
    try:
        config = RunConfig.from_json((folder / "config.json").read_text())
        facts = json.loads((folder / "result.json").read_text())
        missing = [name for name in FILES if not (folder / name).is_file() or not (folder / name).stat().st_size]
        if missing:
            raise ValueError(f"{', '.join(missing)} missing or empty")
        if not {"status", "test_accuracy", "steps"} <= facts.keys():
            raise ValueError("result.json is incomplete")
    except (OSError, ValueError, TypeError, AttributeError) as error:
        warnings.warn(f"skipping the damaged run {folder}: {error}", stacklevel=3)
        return None
    return StoredRun(folder, config, facts)


def find_run(config: RunConfig, directory: str | Path | None = None) -> StoredRun | None:
    """The stored run of a config, or None. One that an older SCHEMA or an edit has made another run is not it."""
    return _read(runs_dir(directory) / config.run_id)


def load_runs(
    directory: str | Path | None = None, *, configs: Iterable[RunConfig] | None = None, **where: object
) -> pd.DataFrame:
    """The run frame: one row a run, columns COLUMNS; only those of `configs` if given, in their order.

    Keywords filter by column (`task="digits"`, `status=["ok", "diverged"]`). ValueError for an unknown column.
    """
    unknown_columns = [name for name in where if name not in COLUMNS]
    if unknown_columns:
        raise ValueError(f"unknown columns {unknown_columns}: valid are {', '.join(COLUMNS)}")
    if configs is None:
        store = runs_dir(directory)
        folders = sorted(store.iterdir()) if store.is_dir() else []
        runs = [_read(folder) for folder in folders if folder.is_dir() and "." not in folder.name]
    else:
        runs = [find_run(config, directory) for config in configs]
    frame = pd.DataFrame([run.row() for run in runs if run is not None]).reindex(columns=COLUMNS)
    for name, value in where.items():
        frame = frame[frame[name].isin(value if isinstance(value, list | tuple | set) else [value])]
    return frame.reset_index(drop=True)
