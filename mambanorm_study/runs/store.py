"""The run store: one folder per run, either complete or absent, with a checksum of each file.

    runs/<run_id>/              config.json  result.json  curves.parquet  predictions.npz
                                diagnostics.npz  checkpoint.safetensors
                                manifest.json, written last: SHA-256 and size of the other files
    runs/.resume-<run_id>/      checkpoint of an unfinished run (runs/training_state.py), deleted
                                once the run is stored
    runs/.lease-<run_id>        locked by the process that trains the run (runs/worker.py)
    runs/.unfinished-…/         a run that is being written; stays if the process is killed

A run is written to a temporary folder, which is renamed after all files have reached the disk.
`load_runs` checks the checksums of config and result and the sizes of all files; `StoredRun` checks
the checksum of every other file when it loads the file. A damaged folder is skipped with a warning
that names the folder. It is never deleted: when its run is trained again, the folder is renamed to
`<run_id>.damaged-…`.
"""

import json
import os
import shutil
import uuid
import warnings
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd

from mambanorm.errors import NotRegistered
from mambanorm_study.basics.atomic import make_folder, sha256, sync_to_disk, writable_folder
from mambanorm_study.basics.settings import WORK, Later
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import unique
from mambanorm_study.runs.result import (
    MANIFEST,
    RUN_FILES,
    DamagedRun,
    RunResult,
    StoredRun,
    config_row,
    read_run,
)

safetensors_torch = Later("safetensors.torch")

# fmt: off
COLUMNS = [
    "run_id", "task", "arm", "n1", "n2", "more", "seed", "role", "scale", "lr", "n_layers",
    "status", "test_accuracy", "val_accuracy", "best_val_accuracy", "chance", "steps",
    "test_loss", "rmse", "mae", "chance_rmse", "best_val_loss", "chance_loss",
    "first_nonfinite_step", "first_nonfinite_site", "wall_s", "tokens_per_s", "peak_memory_mb",
    "threads", "backend", "versions", "git_commit", "machine",
    "best_step", "parameters", "d_model", "norm_options", "model", "error", "checked",
]
# fmt: on
UNFINISHED, RESUME, LEASE = ".unfinished-", ".resume-", ".lease-"


def runs_dir(path: str | Path | None = None) -> Path:
    """Return the folder of the run store, without creating it.

    path: None means the environment variable `MAMBANORM_RUNS_DIR`, or `runs/` in the working folder
    if the variable is not set.
    """
    path = path or os.environ.get("MAMBANORM_RUNS_DIR") or WORK / "runs"
    return Path(path).expanduser().resolve()


def check_store(directory: str | Path | None = None) -> Path:
    """Return the folder of the run store, after creating it if it is missing.

    Raises OSError if the path is a file, or the folder is read-only or cannot be created.
    """
    store = writable_folder(runs_dir(directory), "the run store")
    make_folder(store)
    return store


def resume_dir(config: RunConfig, directory: str | Path | None = None) -> Path:
    """Return the folder for the checkpoint of an unfinished run, without creating it."""
    return runs_dir(directory) / f"{RESUME}{config.run_id}"


# --------------------------------------------------------------------------------------------------
# read runs from the store


def find_run(run: RunConfig | str, directory: str | Path | None = None) -> StoredRun | None:
    """Return the stored run with this config or run_id, or None if it is not stored.

    Warns and returns None if the stored run is damaged, has an edited config or an older SCHEMA, or
    names a norm or the like that is not registered. Raises PermissionError if this user cannot read
    the run.
    """
    run_id = run if isinstance(run, str) else run.run_id
    return _read_runs(runs_dir(directory), [run_id]).get(run_id)


def load_runs(
    directory: str | Path | None = None,
    *,
    configs: Iterable[RunConfig] | None = None,
    scale: str | None = None,
) -> pd.DataFrame:
    """Return the run frame: one row per stored run, with the columns COLUMNS.

    configs: return only the runs of these configs, in the order of the configs. scale: return only
    the runs of this scale.

    Left out, with a warning per run, are damaged runs, runs that this user cannot read, and runs
    whose norm, optimizer or the like is not registered. Raises TypeError for an item of `configs`
    that is not a RunConfig.
    """
    store = runs_dir(directory)
    # unfinished and damaged folders have a dot in the name
    stored = sorted(path.name for path in store.glob("*") if "." not in path.name and path.is_dir())
    run_ids = stored if configs is None else [config.run_id for config in unique(configs)]
    runs = _read_runs(store, run_ids, skip=(DamagedRun, PermissionError))
    rows = [{**config_row(run.config), **run.facts, "checked": True} for run in runs.values()]
    frame = pd.DataFrame(rows).reindex(columns=COLUMNS)
    return frame if scale is None else frame[frame.scale == scale].reset_index(drop=True)


def missing_runs(
    configs: Iterable[RunConfig], directory: str | Path | None = None
) -> list[RunConfig]:
    """Return the configs whose runs are not in the store, without repetitions.

    Warns and raises as `find_run` does.
    """
    configs = unique(configs)
    stored_runs = _read_runs(runs_dir(directory), [config.run_id for config in configs])
    return [config for config in configs if config.run_id not in stored_runs]


def _read_runs(
    store: Path, run_ids: Iterable[str], skip: tuple[type[Exception], ...] = (DamagedRun,)
) -> dict[str, StoredRun]:
    """Return a map from run_id to run. Warn about runs that cannot be read, and leave them out.

    skip: types of errors, besides NotRegistered, that leave a run out; other errors are raised.
    """
    runs: dict[str, StoredRun] = {}
    for run_id in dict.fromkeys(run_ids):
        try:
            run = read_run(store / run_id)
            if run is not None:
                runs[run_id] = run
        except (NotRegistered, *skip) as error:
            warnings.warn(f"skipped: {error}", stacklevel=3)
    return runs


# --------------------------------------------------------------------------------------------------
# write runs to the store


def save_run(result: RunResult, directory: str | Path | None = None) -> Path:
    """Write the result of a run to the store, delete the run's checkpoint and return its folder.

    If the store has an intact copy of the run already, this copy is kept. An OSError, such as
    that of a full disk, leaves no incomplete folder behind.
    """
    store = runs_dir(directory)
    make_folder(store)
    folder = store / result.config.run_id
    if find_run(folder.name, store) is None:
        _store(result, folder)
    shutil.rmtree(resume_dir(result.config, store), ignore_errors=True)
    return folder


def _store(result: RunResult, folder: Path) -> None:
    """Write the files of a run to a temporary folder, then rename this folder to `folder`."""
    store, unique_suffix = folder.parent, uuid.uuid4().hex
    temporary = store / f"{UNFINISHED}{folder.name}-{unique_suffix}"
    # not mkdtemp, whose folders only their owner can read: users may share a store
    temporary.mkdir()
    try:
        _write(result, temporary)
        for path in (*temporary.iterdir(), temporary):
            sync_to_disk(path)
        if folder.exists() and find_run(folder.name, store) is None:
            folder.rename(folder.with_name(f"{folder.name}.damaged-{unique_suffix[:8]}"))
        temporary.rename(folder)
        sync_to_disk(store)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        # another process may have stored the same run in the meantime
        if isinstance(error, OSError) and folder.exists() and find_run(folder.name, store):
            return
        raise


def _write(result: RunResult, folder: Path) -> None:
    """Write the files of a run to a folder, the manifest last."""
    (folder / "config.json").write_text(result.config.to_json())
    (folder / "result.json").write_text(json.dumps(result.facts(), indent=2, allow_nan=False))
    result.curves.to_parquet(folder / "curves.parquet", index=False)
    np.savez_compressed(folder / "predictions.npz", **result.predictions)
    np.savez_compressed(folder / "diagnostics.npz", **result.diagnostics)
    weights = {name: value.contiguous() for name, value in result.checkpoint.items()}
    (folder / "checkpoint.safetensors").write_bytes(safetensors_torch.save(weights))
    files = {
        name: {"sha256": sha256(folder / name), "bytes": (folder / name).stat().st_size}
        for name in RUN_FILES
    }
    (folder / MANIFEST).write_text(json.dumps({"files": files}, indent=2))


def tidy(directory: str | Path | None = None) -> None:
    """Delete what killed processes left of stored runs: unfinished copies, checkpoints and leases.

    Files of missing or damaged runs stay, because another process may be training these runs.
    """
    store = runs_dir(directory)
    for path in store.glob(".*-*"):
        kind, run_id = path.name.split("-")[:2]
        with suppress(ValueError, OSError):  # the run is damaged, or this user cannot read it
            if f"{kind}-" in (UNFINISHED, RESUME, LEASE) and read_run(store / run_id) is not None:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
