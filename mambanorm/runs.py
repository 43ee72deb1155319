"""The run store: one folder a run, there whole or not at all.

    runs/<run_id>/config.json  result.json  curves.parquet  predictions.npz  diagnostics.npz  checkpoint.safetensors
    runs/.resume-<run_id>/     where a long run that is under way keeps what it needs to go on; gone once it is stored

A run is written into a temporary folder beside it and renamed last. A damaged folder is skipped with a warning that
names it, and never deleted: should its run be trained anew, it is set aside as `<run_id>.damaged-1`.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from safetensors.torch import load_file, save_file
from torch import Tensor

from mambanorm.arms import Arm
from mambanorm.config import ROOT, RunConfig
from mambanorm.errors import unknown
from mambanorm.train import RunResult

REQUIRED = ("config.json", "result.json", "curves.parquet", "predictions.npz")
OPTIONAL = ("diagnostics.npz", "checkpoint.safetensors")  # may be deleted to save space
FILES = REQUIRED + OPTIONAL
COLUMNS = [
    *("run_id", "task", "arm", "n1", "n2", "seed", "role", "scale", "lr", "n_layers", "status"),
    *("test_accuracy", "val_accuracy", "best_val_accuracy", "chance", "steps"),
    *("first_nonfinite_step", "first_nonfinite_site", "wall_s", "tokens_per_s", "peak_memory_mb"),
    *("threads", "backend", "versions", "git_commit", "machine"),
    *("best_step", "parameters", "d_model", "norm_options", "error"),
]
UNFINISHED, RESUME = ".unfinished-", ".resume-"


def runs_dir(path: str | Path | None = None) -> Path:
    """The run store: the path given, else `MAMBANORM_RUNS_DIR`, else `runs/` beside the package. Not created here."""
    return Path(path or os.environ.get("MAMBANORM_RUNS_DIR") or ROOT / "runs").resolve()


def resume_dir(config: RunConfig, directory: str | Path | None = None) -> Path:
    """Where `train` keeps the checkpoints of a run that is under way (see `resume`). Not created here."""
    return runs_dir(directory) / f"{RESUME}{config.run_id}"


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
        return _read_npz(self._optional("diagnostics.npz"))

    @property
    def checkpoint(self) -> dict[str, Tensor]:
        return load_file(self._optional("checkpoint.safetensors"))

    def _optional(self, name: str) -> Path:
        if not (self.path / name).is_file():
            raise ValueError(
                f"run {self.path.name} has no {name}: to get it back, move {self.path} away and train again"
            )
        return self.path / name

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
    """Writes a run and returns its folder; what it kept to go on from is deleted. A whole one that is there already
    stays; OSError (a full disk, say) leaves nothing half-written behind."""
    store = runs_dir(directory)
    store.mkdir(parents=True, exist_ok=True)
    final = _store(result, store)
    shutil.rmtree(resume_dir(result.config, store), ignore_errors=True)
    return final


def _store(result: RunResult, store: Path) -> Path:
    final = store / result.config.run_id
    if _read(final) is not None:
        return final
    temporary = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=store))
    try:
        temporary.chmod(0o755)  # mkdtemp's folders are the owner's alone; a store may be shared
        _write(result, temporary)
        if final.exists() and _read(final) is None:
            final.rename(_free_name(final))
        temporary.rename(final)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError) and _read(final) is not None:  # another process has just stored the same run
            return final
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
        _check_whole(folder, facts)
        if config.run_id != folder.name:
            raise ValueError(f"its config is that of run {config.run_id}: edited, copied, or of an older SCHEMA")
    except (OSError, ValueError, TypeError, AttributeError) as error:
        warnings.warn(f"skipping the damaged run {folder}: {error}", stacklevel=3)
        return None
    return StoredRun(folder, config, facts)


def _check_whole(folder: Path, facts: dict) -> None:
    """Raises if a file is missing, cut short or not what its name says; cheap enough for every run of a large store."""
    if not all(isinstance(facts.get(name), int | float) for name in ("test_accuracy", "chance", "steps")):
        raise ValueError("result.json is incomplete")
    if facts.get("status") not in ("ok", "diverged"):
        raise ValueError(f"result.json has status {facts.get('status')!r}")
    for name in FILES:
        path = folder / name
        if (name in REQUIRED or path.exists()) and not _looks_whole(path):
            raise ValueError(f"{name} is missing or damaged")


def _looks_whole(path: Path) -> bool:
    """True if a file begins and ends as its format does."""
    if not path.is_file():
        return False
    if path.suffix == ".npz":
        return zipfile.is_zipfile(path)
    with path.open("rb") as file:
        head = file.read(8)
        size = file.seek(0, os.SEEK_END)
        if path.suffix == ".safetensors":
            return size > 8 + int.from_bytes(head, "little") > 8
        file.seek(max(size - 4, 0))
        return path.suffix != ".parquet" or (head[:4] == file.read() == b"PAR1" and size > 12)


def find_run(config: RunConfig, directory: str | Path | None = None) -> StoredRun | None:
    """The stored run of a config, or None. One that an older SCHEMA or an edit has made another run is not it."""
    return stored_run(config.run_id, directory)


def stored_run(run_id: str, directory: str | Path | None = None) -> StoredRun | None:
    """The stored run of that id, or None; for the ids of a run frame."""
    return _read(runs_dir(directory) / run_id)


def load_runs(
    directory: str | Path | None = None, *, configs: Iterable[RunConfig] | None = None, **where: object
) -> pd.DataFrame:
    """The run frame: one row a run, columns COLUMNS; only those of `configs` if given, in their order.

    Keywords filter by column (`task="digits"`, `status=["ok", "diverged"]`). TypeError for an unknown column.
    """
    for name in where:
        if name not in COLUMNS:
            raise unknown("column of the run frame", name, COLUMNS, TypeError)
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


def check_store(directory: str | Path | None = None) -> Path:
    """Makes the store and tries to write into it; returns its path. OSError where that does not work."""
    store = runs_dir(directory)
    store.mkdir(parents=True, exist_ok=True)
    Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=store)).rmdir()
    return store


def remove_leftovers(directory: str | Path | None = None) -> None:
    """Removes what a kill left half-written."""
