"""Norms and tasks of your own, for processes that do not run your script: `--import FILE`,
`MAMBANORM_IMPORT`.

    mambanorm --import my_norm.py sweep --arms "Peak>SSM>None"

The variable separates several files as PATH does. The command line puts them into the environment,
so that worker processes and the notebooks' kernels see them, and sends them along with each run.
They are imported when a command or a run begins, and when a name is not in the registry.
"""

from __future__ import annotations

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
from mambanorm_study.basics.checks import ImportFailed

_LOCK = threading.RLock()  # a worker may have several threads: one imports, the others wait
_DONE: dict[str, str] = {}  # file → checksum of what was imported


def asked_imports() -> list[str]:
    """The files that the environment names, with their absolute path."""
    return [
        str(Path(part).resolve()) for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part
    ]


def set_imports(files: Iterable[str]) -> None:
    """Adds to the environment's files, for the processes that this one starts, and imports them
    all.

    ValueError, in one line: no such file, or an error in it, with file and line.
    """
    before = os.environ.get(VARIABLE, "")
    os.environ[VARIABLE] = os.pathsep.join(filter(None, [before, *files]))
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys(asked_imports()))
    try:
        load_imports()
    except ImportFailed:  # meanwhile nothing else stumbles over it
        os.environ[VARIABLE] = before
        raise


def load_imports(places: Mapping[str, str] | None = None) -> dict[str, str]:
    """Imports each file (None = the environment's) that this process has not imported yet.

    Returns file → checksum of what was imported. A run carries these to its worker, which passes
    them here: so both import the same files. ValueError as in `set_imports`, and where a file is
    not the same.
    """
    found = {}
    with _LOCK:
        for place in asked_imports() if places is None else places:
            if place not in _DONE:
                _import(Path(place))
            found[place] = _DONE[place]
            if places is not None and places[place] != found[place]:
                raise ImportFailed(
                    f"{place} is not the file that the sweep began with: start the workers anew"
                )
    return found


def _import(path: Path) -> None:
    """Imports a file under its own name if that is free: `import my_norm` then finds the same
    module. One that is loaded already, as the running script, say, is not imported again."""
    place, name = str(path), path.stem if path.stem not in sys.modules else f"{path.stem}_imported"
    try:
        _DONE[place] = hashlib.sha256(
            path.read_bytes()
        ).hexdigest()  # first: the file itself may ask for a name
        if any(_is_from(module, path) for module in list(sys.modules.values())):
            return
        sys.path.append(str(path.parent))  # it may import what lies beside it
        if (spec := spec_from_file_location(name, path)) is None:
            raise ImportError("a file of Python ends in .py")
        sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    except (Exception, SystemExit) as error:
        _DONE.pop(place, None), sys.modules.pop(name, None)
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == place
        ]
        if isinstance(error, SyntaxError) and error.filename == place:
            lines = [error.lineno]
        where, said = f", line {lines[-1]}" if lines else "", f"{type(error).__name__}: {error}"
        if isinstance(error, OSError) and not lines:
            said = f"{error.strerror} (on {platform.node()}; every worker must see it)"
        raise ImportFailed(f"--import {place}{where}: {said}") from error


def _is_from(module: object, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return (
        isinstance(file, str)
        and os.path.basename(file) == path.name
        and Path(file).resolve() == path
    )
