"""Imports a user's files with norms and tasks: `--import FILE` or `MAMBANORM_IMPORT`.

    mambanorm --import my_norm.py sweep --arms "Peak>SSM>None"

The variable separates files as PATH does. The command line sets it, so that worker processes and
the notebooks' kernels import the files, and sends their names along with each run. They are
imported when a command or a run begins, and when a name is not in the registry.
"""

import os
import sys
import traceback
from collections.abc import Iterable, Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from mambanorm.errors import VARIABLE
from mambanorm_study.basics.atomic import sha256

_IMPORTED: dict[str, str] = {}  # file → checksum at its import


class ImportFailed(ValueError):
    """A file named by --import or MAMBANORM_IMPORT cannot be imported. Stored runs are intact."""


def files_to_import() -> list[str]:
    """Return the absolute paths of the files that the environment names."""
    parts = os.environ.get(VARIABLE, "").split(os.pathsep)
    return [str(Path(part).resolve()) for part in parts if part]


def set_imports(files: Iterable[str]) -> None:
    """Import files and add them to the environment, for processes that this one starts.

    Raises ImportFailed (a ValueError), in one line, for a missing file or an error in it.
    """
    paths = dict.fromkeys([*files_to_import(), *(str(Path(file).resolve()) for file in files)])
    for path in paths:
        _import(path)
    os.environ[VARIABLE] = os.pathsep.join(paths)


def load_imports(checksums: Mapping[str, str] | None = None) -> dict[str, str]:
    """Import each file that this process has not imported yet. Return file → checksum.

    checksums: what this function returned in the process that began a sweep; None = the
    environment's files. Raises ImportFailed as `set_imports` does, and for a file with another
    checksum.
    """
    files = files_to_import() if checksums is None else checksums
    imported = {file: _import(file) for file in files}
    for file, checksum in (checksums or {}).items():
        if imported[file] != checksum:
            raise ImportFailed(
                f"{file} is not the file that the sweep began with: start the workers anew"
            )
    return imported


def _import(file: str) -> str:
    """Import a file, unless it is imported already, and return its checksum at that time.

    The module gets the file's name if that is free, so that `import my_norm` finds it.
    """
    if file in _IMPORTED:
        return _IMPORTED[file]
    path = Path(file)
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_imported"
    try:
        # entered first, because the file may look up a name, which imports files
        _IMPORTED[file] = sha256(path)
        # the running script, for example, is a module already
        if all(getattr(one, "__file__", None) != file for one in list(sys.modules.values())):
            sys.path.append(str(path.parent))  # for modules beside it
            spec = spec_from_file_location(name, path)
            if spec is None:
                raise ImportError("a file of Python ends in .py")
            sys.modules[name] = module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
    except (Exception, SystemExit) as error:
        _IMPORTED.pop(file, None)
        sys.modules.pop(name, None)
        frames = traceback.extract_tb(error.__traceback__)
        line = next((f", line {f.lineno}" for f in reversed(frames) if f.filename == file), "")
        raise ImportFailed(f"--import {file}{line}: {type(error).__name__}: {error}") from error
    return _IMPORTED[file]
