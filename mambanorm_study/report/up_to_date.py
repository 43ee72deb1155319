"""Finds the executed notebooks of an earlier study that are up to date and need not run again.

An executed notebook is up to date if everything that its outputs depend on is the same: the
notebook, its parameters, the code and texts of the kit, installed norms, the recorded results, the
versions of Python and of the main packages, the machine, the environment variables MAMBANORM_*, the
files that the user has told the kit to import, and the runs in the store. Hashes of all these are
written into the metadata of the executed notebook.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import nbformat

from mambanorm_study.basics.atomic import write_text
from mambanorm_study.basics.extensions import files_to_import
from mambanorm_study.basics.settings import PACKAGE
from mambanorm_study.report.notebooks import NotebookOutcome
from mambanorm_study.runs import machine
from mambanorm_study.runs.recorded_results import RESULTS
from mambanorm_study.runs.store import runs_dir as store_dir

TEXT_FILES = (".py", ".csv", ".bib", ".md")


def inputs_hash(path: Path, parameters: Mapping[str, Any]) -> str:
    """Return a hash of everything that the outputs of a notebook depend on, except the store."""
    facts = [
        parameters,
        machine.versions(),
        machine.machine(),
        {name: os.environ[name] for name in sorted(os.environ) if name.startswith("MAMBANORM_")},
    ]
    digest = hashlib.sha256(json.dumps(facts).encode())
    for file in [path, *_files_of_kit_and_user()]:
        digest.update(str(file).encode())
        digest.update(file.read_bytes() if file.is_file() else b"missing")
    return digest.hexdigest()


def _files_of_kit_and_user() -> list[Path]:
    kit = PACKAGE.parent.glob("mambanorm*/**/*")
    files = sorted(file for file in kit if file.suffix in TEXT_FILES)
    files += sorted(RESULTS.glob("*"))
    for file in map(Path, files_to_import()):
        files += sorted(file.parent.glob("*.py"))  # it may import others from its folder
    for norms in entry_points(group="mambanorm.norms"):  # norms that other packages register
        with suppress(ImportError, ValueError):  # as `load_plugins` does
            spec = find_spec(norms.module)
            if spec is not None and spec.origin:
                files += sorted(Path(spec.origin).parent.rglob("*.py"))
    return files


def store_hash(runs_dir: str | Path | None) -> str:
    """Return a hash of the run_ids in the store."""
    names = sorted(folder.name for folder in store_dir(runs_dir).glob("*/"))
    stored = " ".join(name for name in names if not name.startswith("."))
    return hashlib.sha256(stored.encode()).hexdigest()


def is_up_to_date(outcome: NotebookOutcome, hashes: Mapping[str, str]) -> bool:
    """Return True if a study has executed the notebook without an error, with these hashes.

    hashes: see `write_hashes`.
    """
    if not outcome.executed or outcome.error:
        return False
    metadata = nbformat.read(outcome.notebook, as_version=4).metadata
    return metadata.get("mambanorm") == dict(hashes)


def write_hashes(executed: Iterable[Path], hashes: Mapping[str, Mapping[str, str]]) -> None:
    """Write into each executed notebook what it was made from.

    hashes: name of the notebook → {"inputs": `inputs_hash` before the notebook was executed,
    "store": `store_hash` after all notebooks were executed, because some add runs to the store}.
    """
    for path in executed:
        nb = nbformat.read(path, as_version=4)
        nb.metadata["mambanorm"] = dict(hashes[path.stem])
        write_text(path, nbformat.writes(nb))
