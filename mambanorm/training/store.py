"""The run store: one folder a run, there whole or not at all, each file with its checksum.

    runs/<run_id>/config.json  result.json  curves.parquet  predictions.npz  diagnostics.npz  checkpoint.safetensors
                  manifest.json    SHA-256 and size of every other file, written last
    runs/.resume-<run_id>/         what a long run that is under way needs to go on; gone once it is stored
    runs/.lease-<run_id>           who trains it just now (see `leases`)
    runs/.unfinished-…/            a run that is being written; what a kill leaves of it, the next sweep removes

A run is written into a folder beside its place and renamed last. Reading checks what it reads: `load_runs` config,
result and the size of every file, `StoredRun` each of the others when it is asked for, `check_run` all. A damaged
folder is skipped with a warning that names it, and never deleted: should its run be trained anew, it is set aside as
`<run_id>.damaged-1`. A folder that this user may not read is not damaged, and nothing happens to it. A run without a
manifest, from an earlier version of the kit, loads as one that is not `checked`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import socket
import time
import uuid
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pyarrow
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from tqdm.auto import tqdm

from mambanorm.atomic import free_name, save_tensors, sha256, writable_folder
from mambanorm.errors import ImportFailed, NotRegistered, unknown
from mambanorm.model.arms import Arm
from mambanorm.training.config import ROOT, RunConfig, run_id_of
from mambanorm.training.facts import check_facts
from mambanorm.training.loop import RunResult, accuracy

REQUIRED = ("config.json", "result.json", "curves.parquet", "predictions.npz")
OPTIONAL = ("diagnostics.npz", "checkpoint.safetensors")  # may be deleted to save space
MANIFEST = "manifest.json"
WRITTEN = REQUIRED + OPTIONAL
FILES = (*WRITTEN, MANIFEST)
COLUMNS = [
    *("run_id", "task", "arm", "n1", "n2", "seed", "role", "scale", "lr", "n_layers", "status"),
    *("test_accuracy", "val_accuracy", "best_val_accuracy", "chance", "steps"),
    *("first_nonfinite_step", "first_nonfinite_site", "wall_s", "tokens_per_s", "peak_memory_mb"),
    *("threads", "backend", "versions", "git_commit", "machine"),
    *("best_step", "parameters", "d_model", "norm_options", "error", "checked"),
]
UNFINISHED, RESUME = ".unfinished-", ".resume-"
ABANDONED_S = 24 * 3600  # after which what another machine left unfinished is nobody's
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


def runs_dir(path: str | Path | None = None) -> Path:
    """The run store: the path given, else `MAMBANORM_RUNS_DIR`, else `runs/` beside the package. Not created here.

    ValueError for "" and for a file.
    """
    if path == "":
        raise ValueError("the run store '' names no folder: None is the default")
    store = Path(path or os.environ.get("MAMBANORM_RUNS_DIR") or ROOT / "runs").expanduser().resolve()
    if store.is_file():
        raise ValueError(f"the run store {store} is a file: needed is a folder")
    return store


def check_store(directory: str | Path | None = None) -> Path:
    """The run store, made where it is missing and found to be one that can be written to; before a first step.

    OSError in one sentence where it is a file, read-only or cannot be made.
    """
    store = writable_folder(runs_dir(directory), "the run store")
    store.mkdir(parents=True, exist_ok=True)
    return store


def resume_dir(config: RunConfig, directory: str | Path | None = None) -> Path:
    """Where `train` keeps the checkpoints of a run that is under way (see `resume`). Not created here."""
    return runs_dir(directory) / f"{RESUME}{config.run_id}"


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
    same = {name: getattr(config, name) for name in ("task", "arm", "seed", "scale", "lr", "n_layers", "d_model")}
    options = json.dumps(config.norm_options, sort_keys=True)
    return {"run_id": config.run_id, **same, "n1": arm.n1, "n2": arm.n2, "role": config.role, "norm_options": options}


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def _unreadable(folder: Path, error: OSError) -> OSError:
    """What to raise for a run that is there and cannot be looked at: that is no damage."""
    text = f"the run {folder} is there, but cannot be read: {error.strerror or error}"
    if isinstance(error, PermissionError):
        text += ". Its owner can make it readable (chmod -R a+rX), or take another store with --runs-dir"
    return type(error)(error.errno, text)


def _read(folder: Path) -> StoredRun | None:
    """The run in a folder, its cheap part checked; None if there is no folder. DamagedRun, NotRegistered for a run
    whose norm is registered elsewhere only, or OSError where it cannot be read."""
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
        check_facts(facts, config)
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


def _warn_of_skipped(error: DamagedRun | OSError) -> None:
    warnings.warn(f"skipped: {error.strerror if isinstance(error, OSError) else error}", stacklevel=4)


def _warn_of_names(found: Iterable[NotRegistered]) -> None:
    """One warning for each norm that is registered elsewhere only."""
    for (kind, name), n in Counter((error.kind, error.given) for error in found).items():
        verb = "run uses" if n == 1 else "runs use"
        text = f"{n} {verb} the {kind} {name!r}, which is not registered here: --import the file that registers it"
        warnings.warn(text, stacklevel=4)


def find_run(config: RunConfig, directory: str | Path | None = None) -> StoredRun | None:
    """The stored run of a config, or None. One that an older SCHEMA or an edit has made another run is not it.

    A damaged one is None too, after a warning. PermissionError for one that is there and that this user cannot read.
    """
    return stored_run(config.run_id, directory)


def stored_run(run_id: str, directory: str | Path | None = None) -> StoredRun | None:
    """The stored run of that id, or None, as `find_run`; for the ids of a run frame."""
    try:
        return _read(runs_dir(directory) / run_id)
    except DamagedRun as error:
        _warn_of_skipped(error)
    except NotRegistered as error:
        _warn_of_names([error])
    return None


def load_runs(
    directory: str | Path | None = None, *, configs: Iterable[RunConfig] | None = None, **where: object
) -> pd.DataFrame:
    """The run frame: one row a run, columns COLUMNS; only those of `configs` if given, in their order.

    Keywords filter by column (`task="digits"`, `status=["ok", "diverged"]`). TypeError for an unknown column. What is
    damaged or cannot be read is left out, after a warning that names it.
    """
    for name in where:
        if name not in COLUMNS:
            raise unknown("column of the run frame", name, COLUMNS, TypeError)
    store = runs_dir(directory)
    folders = _run_folders(store) if configs is None else [store / config.run_id for config in configs]
    runs, elsewhere = [], []
    for folder in folders:
        try:
            runs.append(_read(folder))
        except NotRegistered as error:
            elsewhere.append(error)
        except (DamagedRun, OSError) as error:
            _warn_of_skipped(error)
    _warn_of_names(elsewhere)
    frame = pd.DataFrame([run.row() for run in runs if run is not None]).reindex(columns=COLUMNS)
    for name, value in where.items():
        frame = frame[frame[name].isin(value if isinstance(value, list | tuple | set) else [value])]
    return frame.reset_index(drop=True)


def _run_folders(store: Path) -> list[Path]:
    """Every run's folder in order of the ids: what has a dot in its name is under way or was set aside."""
    folders = sorted(store.iterdir()) if store.is_dir() else []
    return [folder for folder in folders if folder.is_dir() and "." not in folder.name]


def check_run(folder: Path) -> None:
    """Reads all of a run. DamagedRun if any of it is not what was written, OSError where it cannot be read."""
    run = _read(folder)
    if len(run.curves) != run.facts["steps"] + (run.facts["status"] == "diverged"):
        raise DamagedRun(folder, f"its curve has {len(run.curves)} steps, result.json {run.facts['steps']}")
    _ = run.predictions
    for name in OPTIONAL:
        if (folder / name).exists():
            _ = run.diagnostics if name == "diagnostics.npz" else run.checkpoint


def check_runs(directory: str | Path | None = None, *, progress: bool = True) -> pd.DataFrame:
    """Reads all of every run of a store → run_id, state (whole, unchecked, damaged, unreadable, not registered), why.

    Unchecked: sound as far as can be told, but of an earlier version without checksums.
    """
    rows = []
    for folder in tqdm(_run_folders(runs_dir(directory)), desc="checking", unit=" runs", disable=not progress):
        state, why = "whole" if (folder / MANIFEST).exists() else "unchecked", ""
        try:
            check_run(folder)
        except DamagedRun as error:
            state, why = "damaged", error.reason
        except NotRegistered as error:
            state, why = "not registered", str(error)
        except OSError as error:
            state, why = "unreadable", error.strerror or str(error)
        rows.append({"run_id": folder.name, "state": state, "why": why})
    return pd.DataFrame(rows, columns=["run_id", "state", "why"])


# ---------------------------------------------------------------------------------------------------------------------
# writing


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
    if stored_run(final.name, store) is not None:
        return final
    temporary = store / _unfinished_name(final.name)
    temporary.mkdir()  # not by mkdtemp, whose folders are their owner's alone: a store may be shared
    try:
        _write(result, temporary)
        if final.exists() and stored_run(final.name, store) is None:
            final.rename(free_name(final))
        temporary.rename(final)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError) and final.exists() and stored_run(final.name, store) is not None:
            return final  # another process has just stored the same run
        raise
    return final


def _write(result: RunResult, folder: Path) -> None:
    (folder / "config.json").write_text(result.config.to_json())
    (folder / "result.json").write_text(json.dumps(result.facts(), indent=2, allow_nan=False))
    result.curves.to_parquet(folder / "curves.parquet", index=False)
    np.savez_compressed(folder / "predictions.npz", **result.predictions)
    np.savez_compressed(folder / "diagnostics.npz", **result.diagnostics)
    weights = {name: value.contiguous() for name, value in result.checkpoint.items()}
    save_tensors(folder / "checkpoint.safetensors", weights)
    files = {name: {"sha256": sha256(folder / name), "bytes": (folder / name).stat().st_size} for name in WRITTEN}
    (folder / MANIFEST).write_text(json.dumps({"files": files}, indent=2))


def _unfinished_name(run_id: str) -> str:
    """A name that says whose it is: machine and process."""
    return f"{UNFINISHED}{run_id}-{os.getpid()}-{uuid.uuid4().hex[:8]}@{socket.gethostname()}"


def remove_leftovers(directory: str | Path | None = None) -> None:
    """Deletes what killed processes left half-written in the store, and nothing that one may still be writing: of this
    machine what belongs to no living process, of others what is a day old; and checkpoints of runs that are stored.
    """
    store = runs_dir(directory)
    for folder in store.glob(f"{UNFINISHED}*"):
        if _abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)
    for folder in store.glob(f"{RESUME}*"):
        run_id = folder.name.removeprefix(RESUME)
        with suppress(ValueError, OSError):  # what is damaged or unreadable is not stored
            if _read(store / run_id) is not None:
                shutil.rmtree(folder, ignore_errors=True)


def _abandoned(folder: Path) -> bool:
    name, _, host = folder.name.partition("@")
    pid = name.split("-")[-2] if name.count("-") == 3 else ""
    if host == socket.gethostname() and pid.isdigit():
        return not psutil.pid_exists(int(pid))
    with suppress(OSError):
        return time.time() - folder.stat().st_mtime > ABANDONED_S
    return False
