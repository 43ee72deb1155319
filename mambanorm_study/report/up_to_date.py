"""Which executed notebooks of an earlier study are up to date, so that they need not run again.

An executed notebook is up to date if everything that its outputs depend on is the same: the
notebook, its parameters, the code of the packages, the recorded results, the versions, the
environment variables of the kit, the user's files to import, and the runs in the store. A hash of
all these is written into the metadata of the executed notebook.
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
    for norms in entry_points(group="mambanorm.norms"):  # those of other packages, too
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


def is_up_to_date(executed: Path, inputs: str) -> bool:
    """Return True if the executed notebook exists, has no error and was made from these inputs.

    inputs: as from `inputs_hash`.
    """
    if not executed.is_file():
        return False
    metadata = nbformat.read(executed, as_version=4).metadata
    has_error = metadata.get("papermill", {}).get("error", "unknown")
    return not has_error and metadata.get("mambanorm", {}).get("inputs") == inputs


def write_inputs(executed: Iterable[Path], inputs: Mapping[str, str]) -> None:
    """Write the hash of its inputs into each executed notebook. inputs: name → hash.

    Call this after all notebooks of a study have ended, because they add runs to the store.
    """
    for path in executed:
        nb = nbformat.read(path, as_version=4)
        nb.metadata["mambanorm"] = {"inputs": inputs[path.stem]}
        write_text(path, nbformat.writes(nb))
