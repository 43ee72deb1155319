"""Imports a user's files with norms and tasks: `--import FILE` or `MAMBANORM_IMPORT`.

    mambanorm --import my_norm.py sweep --arms "Peak>SSM>None"

The variable separates files as PATH does. The command line sets it, so that worker processes and
the notebooks' kernels see the files, and sends the files along with each run. They are imported
when a command or a run begins, and when a name is not in the registry.
"""

import hashlib
import os
import platform
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from mambanorm.errors import VARIABLE

_LOCK = threading.RLock()  # one thread of a worker imports, the others wait
_IMPORTED: dict[str, str] = {}  # file → checksum at its import


class ImportFailed(ValueError):
    """A file named by --import or MAMBANORM_IMPORT cannot be imported. Stored runs are intact."""


def files_to_import() -> list[str]:
    """Return the absolute paths of the files that the environment names."""
    parts = os.environ.get(VARIABLE, "").split(os.pathsep)
    return [str(Path(part).resolve()) for part in parts if part]


def set_imports(files: Iterable[str]) -> None:
    """Add files to the environment, for processes that this one starts, and import them.

    Raises ImportFailed (a ValueError), in one line, for a missing file or an error in it.
    """
    before = os.environ.get(VARIABLE, "")
    os.environ[VARIABLE] = os.pathsep.join([before, *files])
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys(files_to_import()))
    try:
        load_imports()
    except ImportFailed:
        os.environ[VARIABLE] = before
        raise


def load_imports(checksums: Mapping[str, str] | None = None) -> dict[str, str]:
    """Import each file that this process has not imported yet. Return file → checksum.

    checksums: what this function returned in the process that began a sweep; None = the
    environment's files. Raises ImportFailed as `set_imports` does, and for a file with another
    checksum.
    """
    imported = {}
    with _LOCK:
        for file in files_to_import() if checksums is None else checksums:
            if file not in _IMPORTED:
                _import(Path(file))
            imported[file] = _IMPORTED[file]
            if checksums is not None and checksums[file] != imported[file]:
                raise ImportFailed(
                    f"{file} is not the file that the sweep began with: start the workers anew"
                )
    return imported


def _import(path: Path) -> None:
    """Import a file under its own name if that is free, so that `import my_norm` finds it.

    A file that is loaded already, such as the running script, is not imported again.
    """
    file = str(path)
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_imported"
    try:
        # entered first, because the file may look up a name, which imports files
        _IMPORTED[file] = hashlib.sha256(path.read_bytes()).hexdigest()
        if any(_is_from(module, path) for module in list(sys.modules.values())):
            return
        sys.path.append(str(path.parent))  # for modules beside it
        spec = spec_from_file_location(name, path)
        if spec is None:
            raise ImportError("a file of Python ends in .py")
        sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    except (Exception, SystemExit) as error:
        _IMPORTED.pop(file, None)
        sys.modules.pop(name, None)
        raise ImportFailed(f"--import {file}{_describe(error, file)}") from error


def _describe(error: BaseException, file: str) -> str:
    """Return the line of the file that failed, if known, and the error."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    if isinstance(error, SyntaxError) and error.filename == file:
        lines = [error.lineno]
    if lines:
        return f", line {lines[-1]}: {type(error).__name__}: {error}"
    if isinstance(error, OSError):
        return f": {error.strerror} (on {platform.node()}; every worker must see it)"
    return f": {type(error).__name__}: {error}"


def _is_from(module: object, path: Path) -> bool:
    """Return True if a module was loaded from this file."""
    file = getattr(module, "__file__", None)
    return (
        isinstance(file, str)
        and os.path.basename(file) == path.name
        and Path(file).resolve() == path
    )
