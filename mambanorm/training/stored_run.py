"""One run on disk: reading it, and checking that it is what was written.

    StoredRun       a run, its arrays read and checked when they are asked for
    read_run        a folder → StoredRun; config, result and the sizes of the files are checked
    check_run       reads and checks every file
    config_row      the columns of the run frame that are known before a run

A damaged folder is never changed here; `training/store.py` skips it with a warning that names it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow
from safetensors import SafetensorError

from mambanorm.arms import Arm
from mambanorm.basics.atomic import sha256
from mambanorm.basics.errors import ImportFailed, NotRegistered
from mambanorm.config import RunConfig, run_id_of
from mambanorm.training.result import check_facts

if TYPE_CHECKING:
    from torch import Tensor

REQUIRED = ("config.json", "result.json", "curves.parquet", "predictions.npz")
OPTIONAL = ("diagnostics.npz", "checkpoint.safetensors")  # may be deleted to save space
MANIFEST = "manifest.json"
WRITTEN = REQUIRED + OPTIONAL
FILES = (*WRITTEN, MANIFEST)
UNREAD = (
    RecursionError,
    ValueError,
    TypeError,
    KeyError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    SafetensorError,
    pyarrow.ArrowException,
)
"""What the readers of JSON, Parquet, npz and safetensors raise where a file is not what its name says."""


class DamagedRun(ValueError):
    """A stored run that is not what was written: a file is missing, cut, altered or contradicts another."""

    def __init__(self, folder: Path, reason: object):
        text = f"the run {folder} is damaged: {reason}. Move it away, and the same command trains it again"
        super().__init__(text)
        self.reason = str(reason)


# ---------------------------------------------------------------------------------------------------------------------
# reading


@dataclass(frozen=True)
class StoredRun:
    """A run on disk; its arrays are read, and checked, when asked for.

    They raise DamagedRun where a file is not what was written, ValueError where it was deleted to save space, and
    PermissionError where this user may not read it.
    """

    path: Path
    config: RunConfig
    facts: dict[str, Any]
    manifest: dict[str, dict[str, Any]] | None  # file → sha256 and bytes; None = of an earlier version, unchecked

    @property
    def curves(self) -> pd.DataFrame:
        return self._load("curves.parquet", pd.read_parquet)

    @property
    def predictions(self) -> dict[str, np.ndarray]:
        """Of the test split. They must give the accuracy that the result claims."""
        from mambanorm.training.evaluation import accuracy  # here: a row of the run frame need not wait for torch

        found = self._load("predictions.npz", _read_npz)
        if self.facts["status"] == "ok" and (derived := accuracy(found)) != self.facts["test_accuracy"]:
            claimed = f"result.json claims an accuracy of {self.facts['test_accuracy']}"
            raise DamagedRun(self.path, f"{claimed}, its predictions give {derived}")
        return found

    @property
    def diagnostics(self) -> dict[str, np.ndarray]:
        return self._load("diagnostics.npz", _read_npz)

    @property
    def checkpoint(self) -> dict[str, Tensor]:
        from safetensors.torch import load_file

        return self._load("checkpoint.safetensors", load_file)

    def _load(self, name: str, read: Callable[[Path], Any]) -> Any:
        path = self.path / name
        if name in OPTIONAL and not path.exists():
            raise ValueError(
                f"run {self.path.name} has no {name}: to get it back, move {self.path} away and train again"
            )
        try:
            if self.manifest is not None and sha256(path) != self.manifest[name]["sha256"]:
                raise ValueError(f"{name} was altered: its checksum is not that of the manifest")
            return read(path)
        except UNREAD as error:
            raise DamagedRun(self.path, error if name in str(error) else f"{name}: {error}") from error
        except OSError as error:
            raise _unreadable(self.path, error) from error

    def row(self) -> dict:
        """One row of the run frame."""
        return config_row(self.config) | self.facts | {"checked": self.manifest is not None}


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


def _unreadable(folder: Path, error: OSError) -> OSError:
    """The error for a run that is there but cannot be read; such a run is not damaged."""
    text = f"the run {folder} is there, but cannot be read: {error.strerror or error}"
    if isinstance(error, PermissionError):
        text += ". Its owner can make it readable (chmod -R a+rX), or take another store with --runs-dir"
    return type(error)(error.errno, text)


def read_run(folder: Path) -> StoredRun | None:
    """The run in a folder, checked as far as that is cheap; None if there is no folder. Raises DamagedRun, OSError if
    the run cannot be read, or NotRegistered if its norm or its optimizer, say, is not registered here."""
    try:
        if not folder.exists():
            if folder.is_symlink():
                raise OSError(errno.ENXIO, "it is a link to a place that is not there")
            return None
        manifest = _read_manifest(folder)
        config = _config(_text(folder, "config.json", manifest), folder.name)
        facts = json.loads(_text(folder, "result.json", manifest))
        _check_sizes(folder, manifest)
        if config.run_id != folder.name:
            raise ValueError(f"its config is that of run {config.run_id}: edited, copied, or of an older SCHEMA")
        facts = check_facts(facts, config)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DamagedRun(folder, f"{Path(error.filename or folder).name} is missing") from error
    except OSError as error:
        raise _unreadable(folder, error) from error
    except (NotRegistered, ImportFailed):
        raise
    except UNREAD as error:
        raise DamagedRun(folder, error) from error
    run = StoredRun(folder, config, facts, manifest)
    if manifest is None:
        _ = run.predictions  # without checksums, at least the accuracy must be that of the predictions
    return run


def _read_manifest(folder: Path) -> dict[str, dict[str, Any]] | None:
    if not os.path.lexists(folder / MANIFEST):
        return None
    if not (folder / MANIFEST).is_file():
        raise ValueError(f"{MANIFEST} is no file")
    manifest = json.loads((folder / MANIFEST).read_text())
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict) or sorted(files) != sorted(WRITTEN):
        raise ValueError(f"{MANIFEST} does not name the files of a run")
    return files


def _config(text: str, run_id: str) -> RunConfig:
    """The config of a run. NotRegistered only if nothing else is wrong with it."""
    try:
        return RunConfig.from_json(text)
    except NotRegistered as error:
        if run_id_of(json.loads(text)) != run_id:
            raise ValueError(str(error)) from error
        raise


def _text(folder: Path, name: str, manifest: dict | None) -> str:
    """A small file, as it was written."""
    if not (folder / name).is_file():
        raise ValueError(f"{name} is missing or no file")
    content = (folder / name).read_bytes()
    if manifest is not None and hashlib.sha256(content).hexdigest() != manifest[name]["sha256"]:
        raise ValueError(f"{name} was altered: its checksum is not that of the manifest")
    return content.decode()


def _check_sizes(folder: Path, manifest: dict | None) -> None:
    """Raises if a file is missing or cut short; cheap enough for every run of a large store."""
    for name in WRITTEN:
        path = folder / name
        if name in OPTIONAL and not path.exists():
            continue
        whole = _looks_whole(path) if manifest is None else path.stat().st_size == manifest[name]["bytes"]
        if not whole:
            raise ValueError(f"{name} is missing or damaged")


def _looks_whole(path: Path) -> bool:
    """True if a file begins and ends as its format does: all that can be told without a manifest."""
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


def check_run(folder: Path) -> None:
    """Reads all of a run. DamagedRun if any of it is not what was written, OSError where it cannot be read."""
    run = read_run(folder)
    if len(run.curves) != run.facts["steps"] + (run.facts["status"] == "diverged"):
        raise DamagedRun(folder, f"its curve has {len(run.curves)} steps, result.json {run.facts['steps']}")
    _ = run.predictions
    for name in OPTIONAL:
        if (folder / name).exists():
            _ = run.diagnostics if name == "diagnostics.npz" else run.checkpoint
