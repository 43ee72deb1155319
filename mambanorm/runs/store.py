"""The run store: one folder a run, complete or absent, each file with its checksum.

    runs/<run_id>/config.json  result.json  curves.parquet  predictions.npz  diagnostics.npz  checkpoint.safetensors
                  manifest.json    SHA-256 and size of every other file, written last
    runs/.resume-<run_id>/         the checkpoint of a run under way (runs/observers.py); deleted once it is stored
    runs/.lease-<run_id>           who trains it just now (runs/worker.py)
    runs/.unfinished-…/            a run that is being written; the next sweep removes what a killed process left of it
    runs/.index-…                  the rows of the run frame, while their files are as they were (runs/index.py)

A run is written into a temporary folder, which is renamed last, when all of it has reached the disk. Whatever is read
is checked: `load_runs` checks config, result and the size of every file, `StoredRun` each other file when it is asked
for, `check_run` everything. A damaged folder is skipped with a warning that names it, and never deleted: if its run is
trained again, the folder is set aside as `<run_id>.damaged-1`. A folder that this user may not read is not damaged and
stays as it is.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
from tqdm.auto import tqdm

from mambanorm.basics.atomic import (
    PROBE,
    folder_to_disk,
    free_name,
    make_folder,
    save_tensors,
    sha256,
    to_disk,
    writable_folder,
)
from mambanorm.basics.errors import NotRegistered, check_kind, unknown
from mambanorm.basics.settings import WORK
from mambanorm.config import RunConfig
from mambanorm.runs.grid import config_list, unique
from mambanorm.runs.index import Index, is_one_of
from mambanorm.runs.result import MANIFEST, WRITTEN, DamagedRun, RunResult, StoredRun, check_run, read_run

COLUMNS = [
    *("run_id", "task", "arm", "n1", "n2", "more", "seed", "role", "scale", "lr", "n_layers", "status"),
    *("test_accuracy", "val_accuracy", "best_val_accuracy", "chance", "steps"),
    *("test_loss", "rmse", "mae", "chance_rmse", "best_val_loss", "chance_loss"),
    *("first_nonfinite_step", "first_nonfinite_site", "wall_s", "tokens_per_s", "peak_memory_mb"),
    *("threads", "backend", "versions", "git_commit", "machine"),
    *("best_step", "parameters", "d_model", "norm_options", "model", "error", "checked"),
]
UNFINISHED, RESUME, LEASE = ".unfinished-", ".resume-", ".lease-"
MANY = 500  # runs to read
ABANDONED_S = 24 * 3600  # after this time, what another machine left unfinished may be deleted


def runs_dir(path: str | Path | None = None) -> Path:
    """The run store: the path given, else `MAMBANORM_RUNS_DIR`, else `runs/` where one works. Not created here.

    ValueError for "" and for a file.
    """
    if path == "":
        raise ValueError("the run store '' names no folder: None is the default")
    store = Path(path or os.environ.get("MAMBANORM_RUNS_DIR") or WORK / "runs").expanduser().resolve()
    if store.is_file():
        raise ValueError(f"the run store {store} is a file: needed is a folder")
    return store


def existing_store(directory: str | Path | None = None) -> Path:
    """The run store. ValueError where there is none, which an empty one is not."""
    store = runs_dir(directory)
    if not store.is_dir():
        raise ValueError(f"there is no run store {store}: the first training makes one, --runs-dir names another")
    return store


def check_store(directory: str | Path | None = None) -> Path:
    """The run store, created if it is missing and checked to be writable, before a first step.

    OSError, in one sentence, if it is a file, is read-only or cannot be created.
    """
    store = runs_dir(directory)
    with suppress(OSError):  # told below. It is made first, so that no other process that starts now takes it away
        make_folder(store)
    return writable_folder(store, "the run store")


def ready_store(directory: str | Path | None) -> Path:
    """The store, writable and without what dead processes left in it. OSError otherwise."""
    store = check_store(directory)
    tidy(directory)
    return store


def resume_dir(config: RunConfig, directory: str | Path | None = None) -> Path:
    """Where `train` keeps the checkpoint of a run that is under way. Not created here."""
    return runs_dir(directory) / f"{RESUME}{config.run_id}"


# ---------------------------------------------------------------------------------------------------------------------
# reading


def find_run(config: RunConfig, directory: str | Path | None = None) -> StoredRun | None:
    """The stored run of a config, or None. A run of an older SCHEMA, or one whose config was edited, does not count.

    A damaged run gives a warning and None. PermissionError for a run that is there but that this user cannot read.
    """
    check_kind("config", config, RunConfig, "base_config")
    return stored_run(config.run_id, directory)


def stored_run(run_id: str, directory: str | Path | None = None) -> StoredRun | None:
    """As `find_run`, by an id of the run frame."""
    return _or_warn(read_run, runs_dir(directory) / run_id)


def _or_warn(read: Callable[..., StoredRun | None], what: Path | str) -> StoredRun | None:
    """`read(what)`, or None after a warning."""
    try:
        return read(what)
    except DamagedRun as error:
        _warn_of_skipped(error)
    except NotRegistered as error:
        _warn_of_names([error])
    return None


def _warn_of_skipped(error: DamagedRun | OSError) -> None:
    warnings.warn(f"skipped: {error.strerror if isinstance(error, OSError) else error}", stacklevel=4)


def _warn_of_names(found: Iterable[NotRegistered]) -> None:
    """One warning for each norm, optimizer or the like that is not registered here."""
    for (kind, name), n in Counter((error.kind, error.given) for error in found).items():
        verb = "run uses" if n == 1 else "runs use"
        text = f"{n} {verb} the {kind} {name!r}, which is not registered here: --import the file that registers it"
        warnings.warn(text, stacklevel=4)


def load_runs(
    directory: str | Path | None = None, *, configs: Iterable[RunConfig] | None = None, **where: object
) -> pd.DataFrame:
    """The run frame: one row a run, columns COLUMNS; only those of `configs` if given, in their order.

    Keywords filter by column: a value (`task="digits"`; None is no value) or several (`status=["ok", "diverged"]`,
    `seed=range(3)`). TypeError for an unknown column, and for what is no config. What is damaged or cannot be
    read is left out, after a warning that names it.
    """
    for name in where:
        if name not in COLUMNS:
            raise unknown("column of the run frame", name, COLUMNS, TypeError)
    store = runs_dir(directory)
    names = _run_ids(store) if configs is None else [config.run_id for config in config_list(configs)]
    index, elsewhere = Index(store, names), []
    known = index.sound(names)
    for name in _unread(names, known):
        try:
            index.read(name)
        except NotRegistered as error:
            elsewhere.append(error)
        except (DamagedRun, OSError) as error:
            _warn_of_skipped(error)
    _warn_of_names(elsewhere)
    index.save(there=set(names) if configs is None else None)
    frame = index.frame([name for name in names if name in known or name in index.found]).reindex(columns=COLUMNS)
    for name, value in where.items():
        frame = frame[is_one_of(frame[name], list(value) if pd.api.types.is_list_like(value) else [value])]
    return frame.reset_index(drop=True)


def _unread(names: list[str], known: set[str]) -> Iterable[str]:
    """The runs that have to be read, once each; with a bar where these are many, as at first, and take a while."""
    unread = [name for name in dict.fromkeys(names) if name not in known]
    if len(unread) < MANY:  # in a notebook even a bar that is never shown leaves its widgets
        return unread
    return tqdm(unread, desc="reading the store", unit=" runs", delay=2, leave=False, disable=None)


def missing_runs(configs: Iterable[RunConfig], directory: str | Path | None = None) -> list[RunConfig]:
    """Those of the configs that the store does not hold, without repeats. Warns and raises as `find_run` does."""
    asked = {config.run_id: config for config in unique(configs)}
    index = Index(runs_dir(directory), list(asked))
    known = index.sound(asked)
    missing = [asked[name] for name in _unread(list(asked), known) if _or_warn(index.read, name) is None]
    index.save()
    return missing


def _run_ids(store: Path) -> list[str]:
    """Every run's id, in order. A folder with a dot in its name is under way or was set aside."""
    if not store.is_dir():
        return []
    with os.scandir(store) as entries:
        return sorted(entry.name for entry in entries if "." not in entry.name and entry.is_dir())


def check_runs(directory: str | Path | None = None, *, progress: bool = True) -> pd.DataFrame:
    """Reads all of every run of a store → run_id, state (whole, damaged, unreadable, not registered), why.

    ValueError for no store.
    """
    rows, store = [], existing_store(directory)
    for name in tqdm(_run_ids(store), desc="checking", unit=" runs", disable=not progress):
        state, why = "whole", ""
        try:
            check_run(store / name)
        except DamagedRun as error:
            state, why = "damaged", error.reason
        except NotRegistered as error:
            state, why = "not registered", str(error)
        except OSError as error:
            state, why = "unreadable", error.strerror or str(error)
        rows.append({"run_id": name, "state": state, "why": why})
    return pd.DataFrame(rows, columns=["run_id", "state", "why"])


# ---------------------------------------------------------------------------------------------------------------------
# writing


def save_run(result: RunResult, directory: str | Path | None = None) -> Path:
    """Writes a run, deletes its checkpoint and returns its folder. A whole run that is there already stays. OSError
    (a full disk, say) leaves nothing half-written behind."""
    check_kind("result", result, RunResult, "train")
    store = runs_dir(directory)
    make_folder(store)
    final = store / result.config.run_id
    if stored_run(final.name, store) is None:
        _store(result, final)
    shutil.rmtree(resume_dir(result.config, store), ignore_errors=True)
    return final


def _store(result: RunResult, final: Path) -> None:
    store, mine = final.parent, f"{os.getpid()}-{uuid.uuid4().hex[:8]}@{socket.gethostname()}"
    temporary = store / f"{UNFINISHED}{final.name}-{mine}"
    temporary.mkdir()  # not by mkdtemp, whose folders only their owner can read: a store may be shared
    try:
        _write(result, temporary)
        folder_to_disk(temporary)
        if final.exists() and stored_run(final.name, store) is None:
            final.rename(free_name(final))
        temporary.rename(final)
        to_disk(store)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if not (isinstance(error, OSError) and final.exists() and stored_run(final.name, store) is not None):
            raise  # else another process has just stored the same run


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


def tidy(directory: str | Path | None = None) -> None:
    """Deletes what killed processes left in the store, where this user may: half-written runs, and the
    checkpoints and leases of runs that are stored.

    What a process may still be writing stays: of this machine only what belongs to no living process is deleted, of
    others only what is a day old.
    """
    store, hidden = runs_dir(directory), []
    with suppress(OSError):  # no store yet, or one whose names this user may not list
        hidden = [store / name for name in os.listdir(store) if name.startswith(".")]  # one look at all
    for path in hidden:
        with suppress(ValueError, OSError):  # of a run that is damaged or unreadable, the checkpoint stays
            if (path.name.startswith(UNFINISHED) and _abandoned(path)) or _is_over(path, RESUME):
                shutil.rmtree(path, ignore_errors=True)
            if path.name.startswith(PROBE) or _is_over(path, LEASE):
                path.unlink()


def _is_over(path: Path, prefix: str) -> bool:
    """Whether this is the checkpoint or the lease of a run that is stored."""
    return path.name.startswith(prefix) and read_run(path.with_name(path.name.removeprefix(prefix))) is not None


def _abandoned(folder: Path) -> bool:
    """By its name, which says whose it is, and its age."""
    mine, _, host = folder.name.partition("@")
    if host == socket.gethostname():
        return not psutil.pid_exists(int(mine.split("-")[-2]))
    return time.time() - folder.stat().st_mtime > ABANDONED_S
