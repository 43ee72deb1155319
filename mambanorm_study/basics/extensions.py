"""Imports a user's files with norms and tasks, named by `--import FILE` or `MAMBANORM_IMPORT`.

    mambanorm --import my_norm.py sweep --arms "Peak>SSM>None"

The environment variable separates files as PATH does. `--import` adds its file to the variable, so
that worker processes and the notebooks' kernels import the file, too. A sweep sends the names and
checksums of the files along with each run. The files are imported when a command or a run begins,
and when a name is looked up that is not in the registry.
"""

import os
import sys
import traceback
from collections.abc import Iterable, Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from mambanorm.errors import VARIABLE
from mambanorm_study.basics.atomic import sha256

_IMPORTED: dict[str, str] = {}  # file → its checksum when it was imported


class ImportFailed(ValueError):
    """Raised if a file of --import or MAMBANORM_IMPORT cannot be imported. No run is damaged."""


def files_to_import() -> list[str]:
    """Return the absolute paths of the files in `MAMBANORM_IMPORT`."""
    parts = os.environ.get(VARIABLE, "").split(os.pathsep)
    return [str(Path(part).resolve()) for part in parts if part]


def set_imports(files: Iterable[str]) -> None:
    """Import files and add them to `MAMBANORM_IMPORT`, so that processes started by this process
    import them, too.

    Raises ImportFailed, whose message has one line, if a file is missing or its import fails.
    """
    paths = dict.fromkeys([*files_to_import(), *(str(Path(file).resolve()) for file in files)])
    for path in paths:
        _import(path)
    os.environ[VARIABLE] = os.pathsep.join(paths)


def load_imports(checksums: Mapping[str, str] | None = None) -> dict[str, str]:
    """Import a user's files that this process has not imported yet. Return a map from each file to
    the checksum of its content at the import.

    checksums: the files to import, as such a map that the process that began a sweep has made; None
    means the files in `MAMBANORM_IMPORT`. Raises ImportFailed if a file is missing, if its import
    fails, or if its checksum differs from that in `checksums`.
    """
    files = files_to_import() if checksums is None else checksums
    imported = {file: _import(file) for file in files}
    for file, checksum in (checksums or {}).items():
        if imported[file] != checksum:
            raise ImportFailed(
                f"{file} is not the file that the sweep began with: restart the workers"
            )
    return imported


def _import(file: str) -> str:
    """Import a file unless this process has imported it already. Return the checksum that the file
    had when it was imported.

    The module is named after the file if no other module has that name, so that `import my_norm`
    finds it.
    """
    if file in _IMPORTED:
        return _IMPORTED[file]
    path = Path(file)
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_imported"
    try:
        # The file is entered in _IMPORTED before its import, because its code may look up a name,
        # and a look-up imports all files that are not entered.
        _IMPORTED[file] = sha256(path)
        # The file is not imported if it is loaded already, for example as the running script.
        if all(getattr(one, "__file__", None) != file for one in list(sys.modules.values())):
            sys.path.append(str(path.parent))  # for imports of modules in the same folder
            spec = spec_from_file_location(name, path)
            if spec is None:
                raise ImportError("the name of a Python file must end in .py")
            sys.modules[name] = module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
    except (Exception, SystemExit) as error:
        _IMPORTED.pop(file, None)
        sys.modules.pop(name, None)
        frames = traceback.extract_tb(error.__traceback__)
        line = next((f", line {f.lineno}" for f in reversed(frames) if f.filename == file), "")
        raise ImportFailed(f"--import {file}{line}: {type(error).__name__}: {error}") from error
    return _IMPORTED[file]
