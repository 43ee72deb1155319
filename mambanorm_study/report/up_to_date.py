"""Finds the executed notebooks of an earlier study that are up to date and need not run again.

An executed notebook is up to date if everything that its outputs depend on is the same: the
notebook, its parameters, the code of the kit and of installed norms, the recorded results, the
versions of Python and of the main packages, the machine, the environment variables MAMBANORM_*, the
files that the user has told the kit to import, and the runs in the store. A hash of all these is
written into the metadata of the executed notebook.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import nbformat

from mambanorm_study.basics.atomic import write_text
from mambanorm_study.basics.extensions import files_to_import
from mambanorm_study.basics.settings import PACKAGE
from mambanorm_study.runs import machine
from mambanorm_study.runs.recorded_results import RESULTS
from mambanorm_study.runs.store import runs_dir as store_dir


def inputs_hash(path: Path, parameters: Mapping[str, Any], runs_dir: str | Path | None) -> str:
    """Return a hash of everything that the outputs of a notebook depend on."""
    store = store_dir(runs_dir)
    files = [path, *sorted(RESULTS.glob("*")), *map(Path, files_to_import())]
    files += sorted(PACKAGE.parent.glob("mambanorm*/**/*.py"))  # the kit's three packages
    for norms in entry_points(group="mambanorm.norms"):  # norms that other packages register
        files.append(Path(find_spec(norms.module).origin))
    facts = [
        parameters,
        machine.versions(),
        machine.machine(),
        {name: os.environ[name] for name in sorted(os.environ) if name.startswith("MAMBANORM_")},
        sorted(folder.name for folder in store.glob("*/")),
    ]
    digest = hashlib.sha256(json.dumps(facts).encode())
    for file in files:
        digest.update(file.read_bytes() if file.is_file() else b"missing")
    return digest.hexdigest()


def is_up_to_date(executed: Path, expected_hash: str) -> bool:
    """Return True if the executed notebook exists, has no error and has this `inputs_hash`."""
    if not executed.is_file():
        return False
    metadata = nbformat.read(executed, as_version=4).metadata
    error = metadata.get("papermill", {}).get("error", "not executed by a study")
    return not error and metadata.get("mambanorm", {}).get("inputs_hash") == expected_hash


def write_hashes(executed: Iterable[Path], hashes: Mapping[str, str]) -> None:
    """Write its `inputs_hash` into each executed notebook. hashes: name of the notebook → hash.

    Call this after all notebooks have ended, because some of them add runs to the store.
    """
    for path in executed:
        nb = nbformat.read(path, as_version=4)
        nb.metadata["mambanorm"] = {"inputs_hash": hashes[path.stem]}
        write_text(path, nbformat.writes(nb))
