"""The run store: one folder a run, complete or absent, each file with its checksum.

    runs/<run_id>/config.json  result.json  curves.parquet  predictions.npz  diagnostics.npz
                  checkpoint.safetensors manifest.json    SHA-256 and size of every other file,
                  written last
    runs/.resume-<run_id>/         the checkpoint of a run under way (runs/observers.py); deleted
                                   once it is stored
    runs/.lease-<run_id>           who trains it just now (runs/worker.py)
    runs/.unfinished-…/            a run that is being written; a sweep removes it when the run is
                                   stored
    runs/.index-…                  the rows of the run frame, while their folders are as they were
                                   (runs/index.py)

A run is written into a temporary folder, which is renamed last, when all of it has reached the
disk. Whatever is read is checked: `load_runs` checks config, result and the size of every file,
`StoredRun` each other file when it is asked for, `check_run` everything. A damaged folder is
skipped with a warning that names it, and never deleted: if its run is trained again, the folder is
set aside as `<run_id>.damaged-…`.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
import warnings
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from mambanorm.errors import NotRegistered, unknown
from mambanorm_study.basics.atomic import (
    folder_to_disk,
    make_folder,
    sha256,
    to_disk,
    writable_folder,
)
from mambanorm_study.basics.checks import check_kind
from mambanorm_study.basics.settings import WORK, Later
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import config_list, unique
from mambanorm_study.runs.index import Index, is_one_of
from mambanorm_study.runs.result import (
    MANIFEST,
    WRITTEN,
    DamagedRun,
    RunResult,
    StoredRun,
    check_run,
    read_run,
)

safetensors_torch = Later("safetensors.torch")

COLUMNS = [
    *(
        "run_id",
        "task",
        "arm",
        "n1",
        "n2",
        "more",
        "seed",
        "role",
        "scale",
        "lr",
        "n_layers",
        "status",
    ),
    *("test_accuracy", "val_accuracy", "best_val_accuracy", "chance", "steps"),
    *("test_loss", "rmse", "mae", "chance_rmse", "best_val_loss", "chance_loss"),
    *("first_nonfinite_step", "first_nonfinite_site", "wall_s", "tokens_per_s", "peak_memory_mb"),
    *("threads", "backend", "versions", "git_commit", "machine"),
    *("best_step", "parameters", "d_model", "norm_options", "model", "error", "checked"),
]
Skipped = type[Exception] | tuple[type[Exception], ...]
UNFINISHED, RESUME, LEASE = ".unfinished-", ".resume-", ".lease-"


def runs_dir(path: str | Path | None = None) -> Path:
    """The run store: the path given, else `MAMBANORM_RUNS_DIR`, else `runs/` where one works. Not
    created here.

    ValueError for "" and for a file.
    """
    if path == "":
        raise ValueError("the run store '' names no folder: None is the default")
    store = (
        Path(path or os.environ.get("MAMBANORM_RUNS_DIR") or WORK / "runs").expanduser().resolve()
    )
    if store.is_file():
        raise ValueError(f"the run store {store} is a file: needed is a folder")
    return store


def existing_store(directory: str | Path | None = None) -> Path:
    """The run store. ValueError where there is none, which an empty one is not."""
    store = runs_dir(directory)
    if not store.is_dir():
        raise ValueError(
            f"there is no run store {store}: the first training makes one, --runs-dir names another"
        )
    return store


def check_store(directory: str | Path | None = None) -> Path:
    """The run store, made if it is missing and checked to be writable, before a first step. OSError
    in one sentence if it is a file, is read-only or cannot be created."""
    store = runs_dir(directory)
    with suppress(
        OSError
    ):  # told below. It is made first, so that no other process that starts now takes it away
        make_folder(store)
    return writable_folder(store, "the run store")


def resume_dir(config: RunConfig, directory: str | Path | None = None) -> Path:
    """Where `train` keeps the checkpoint of a run that is under way. Not created here."""
    return runs_dir(directory) / f"{RESUME}{config.run_id}"


# --------------------------------------------------------------------------------------------------
# reading


def find_run(config: RunConfig, directory: str | Path | None = None) -> StoredRun | None:
    """The stored run of a config, or None. A run of an older SCHEMA, or one whose config was
    edited, does not count.

    A damaged run gives a warning and None. PermissionError for a run that is there but that this
    user cannot read.
    """
    check_kind("config", config, RunConfig, "base_config")
    return stored_run(config.run_id, directory)


def stored_run(run_id: str, directory: str | Path | None = None) -> StoredRun | None:
    """As `find_run`, by an id of the run frame."""
    store = runs_dir(directory)
    return _read_all(Index(store, [run_id]), [run_id]).get(run_id)


def load_runs(
    directory: str | Path | None = None,
    *,
    configs: Iterable[RunConfig] | None = None,
    **where: object,
) -> pd.DataFrame:
    """The run frame: one row a run, columns COLUMNS; only those of `configs` if given, in their
    order.

    Keywords filter by column: a value (`task="digits"`; None is no value) or several
    (`status=["ok", "diverged"]`, `seed=range(3)`). TypeError for an unknown column, and for what is
    no config. What is damaged, or what this user may not read, is left out, after a warning that
    names it.
    """
    for name in where:
        if name not in COLUMNS:
            raise unknown("column of the run frame", name, COLUMNS, TypeError)
    store = runs_dir(directory)
    names = (
        _run_ids(store) if configs is None else [config.run_id for config in config_list(configs)]
    )
    index, there = _look(store, names, (DamagedRun, PermissionError))
    frame = index.frame([name for name in names if name in there]).reindex(columns=COLUMNS)
    for name, value in where.items():
        frame = frame[
            is_one_of(frame[name], list(value) if pd.api.types.is_list_like(value) else [value])
        ]
    return frame.reset_index(drop=True)


def missing_runs(
    configs: Iterable[RunConfig], directory: str | Path | None = None
) -> list[RunConfig]:
    """Those of the configs that the store does not hold, without repeats. Warns and raises as
    `find_run` does."""
    asked = {config.run_id: config for config in unique(configs)}
    _, there = _look(runs_dir(directory), list(asked))
    return [config for name, config in asked.items() if name not in there]


def _look(store: Path, names: list[str], skipped: Skipped = DamagedRun) -> tuple[Index, set[str]]:
    """What is known of these runs, and which of them are there and whole."""
    index = Index(store, names)
    there = index.sound(names)
    there |= _read_all(
        index, [name for name in dict.fromkeys(names) if name not in there], skipped
    ).keys()
    index.save()
    return index, there


def _read_all(
    index: Index, names: list[str], skipped: Skipped = DamagedRun
) -> dict[str, StoredRun]:
    """The runs that are there and whole, after a warning for each that is skipped, and one for each
    norm, optimizer or the like that is not registered here."""
    found, elsewhere = {}, Counter()
    for name in names:
        try:
            if (run := index.read(name)) is not None:
                found[name] = run
        except skipped as error:
            warnings.warn(f"skipped: {error}", stacklevel=3)
        except NotRegistered as error:
            elsewhere[error.kind, error.given] += 1
    for (kind, name), n in elsewhere.items():
        verb = "run uses" if n == 1 else "runs use"
        text = f"{n} {verb} the {kind} {name!r}, which is not registered here: --import the file that registers it"
        warnings.warn(text, stacklevel=3)
    return found


def _run_ids(store: Path) -> list[str]:
    """Every run's id, in order. A folder with a dot in its name is under way or was set aside."""
    if not store.is_dir():
        return []
    with os.scandir(store) as entries:
        return sorted(entry.name for entry in entries if "." not in entry.name and entry.is_dir())


def check_runs(directory: str | Path | None = None) -> dict[str, str]:
    """Reads all of every run of a store: run_id → what is wrong with it, "" if nothing is.
    ValueError for no store."""
    found, store = {}, existing_store(directory)
    for name in tqdm(_run_ids(store), desc="checking", unit=" runs", delay=2, leave=False):
        try:
            check_run(store / name)
            found[name] = ""
        except (DamagedRun, NotRegistered, OSError) as error:
            found[name] = str(error)
    return found


# --------------------------------------------------------------------------------------------------
# writing


def save_run(result: RunResult, directory: str | Path | None = None) -> Path:
    """Writes a run, deletes its checkpoint and returns its folder. A whole run that is there
    already stays. OSError (a full disk, say) leaves nothing half-written behind."""
    check_kind("result", result, RunResult, "train")
    store = runs_dir(directory)
    make_folder(store)
    final = store / result.config.run_id
    if stored_run(final.name, store) is None:
        _store(result, final)
    shutil.rmtree(resume_dir(result.config, store), ignore_errors=True)
    return final


def _store(result: RunResult, final: Path) -> None:
    store, mark = final.parent, uuid.uuid4().hex
    temporary = store / f"{UNFINISHED}{final.name}-{mark}"
    temporary.mkdir()  # not by mkdtemp, whose folders only their owner can read: a store may be shared
    try:
        _write(result, temporary)
        folder_to_disk(temporary)
        if final.exists() and stored_run(final.name, store) is None:
            final.rename(final.with_name(f"{final.name}.damaged-{mark[:8]}"))
        temporary.rename(final)
        to_disk(store)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if not (
            isinstance(error, OSError)
            and final.exists()
            and stored_run(final.name, store) is not None
        ):
            raise  # else another process has just stored the same run


def _write(result: RunResult, folder: Path) -> None:
    (folder / "config.json").write_text(result.config.to_json())
    (folder / "result.json").write_text(json.dumps(result.facts(), indent=2, allow_nan=False))
    result.curves.to_parquet(folder / "curves.parquet", index=False)
    np.savez_compressed(folder / "predictions.npz", **result.predictions)
    np.savez_compressed(folder / "diagnostics.npz", **result.diagnostics)
    weights = {name: value.contiguous() for name, value in result.checkpoint.items()}
    (folder / "checkpoint.safetensors").write_bytes(safetensors_torch.save(weights))
    files = {
        name: {"sha256": sha256(folder / name), "bytes": (folder / name).stat().st_size}
        for name in WRITTEN
    }
    (folder / MANIFEST).write_text(json.dumps({"files": files}, indent=2))


def tidy(directory: str | Path | None = None) -> None:
    """Deletes what killed processes left in the store of runs that are stored by now: half-written
    copies, checkpoints and leases. What belongs to a run that is not stored, or is damaged, stays:
    somebody may train it."""
    store = runs_dir(directory)
    for path in store.glob(".*-*"):
        kind, _, run_id = path.name.partition("-")
        with suppress(ValueError, OSError):
            if (
                f"{kind}-" in (UNFINISHED, RESUME, LEASE)
                and read_run(store / run_id[:16]) is not None
            ):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(
                    missing_ok=True
                )
