"""Norms and tasks of your own, for processes that do not run your script: `--import FILE`, `MAMBANORM_IMPORT`.

    mambanorm --import my_norm.py sweep --arms "Peak>SSM>None"

A place is a file (`my_norm.py`) or a module (`my_package.norms`); several are separated by commas or as in PATH. The
command line puts them into the environment, so that worker processes and the notebooks' kernels see them, and sends
them along with each run. They are imported when a command or a run begins, and when a name is not in the registry.

Map
    set_imports     adds places to the environment, and imports them: what --import does
    load_imports    imports the environment's places, or those sent along with a run, each once
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

from mambanorm.basics.errors import VARIABLE, ImportFailed

BETWEEN = f"[,{os.pathsep}]"
_LOCK = threading.RLock()  # a worker may have several threads: one imports, the others wait
_DONE: dict[str, tuple[str, str]] = {}  # place → checksum of what was imported, and the error if that failed


def asked_imports() -> list[str]:
    """The places that the environment names; files with their absolute path."""
    return _places(os.environ.get(VARIABLE, ""))


def set_imports(texts: Iterable[str]) -> None:
    """Adds to the environment's places, for the processes that this one starts, and imports them all.

    ValueError, in one line: no such file or module, or an error in it, with file and line.
    """
    before = os.environ.get(VARIABLE)
    places = dict.fromkeys([*asked_imports(), *(place for text in texts for place in _places(text))])
    if places:
        os.environ[VARIABLE] = os.pathsep.join(places)
    try:
        load_imports()
    except ImportFailed:  # once it is mended it can be tried again, and meanwhile nothing else stumbles over it
        for place in [place for place, (_, error) in _DONE.items() if error]:
            del _DONE[place]
        os.environ.pop(VARIABLE, None)
        os.environ |= {} if before is None else {VARIABLE: before}
        raise


def load_imports(places: Mapping[str, str] | None = None) -> dict[str, str]:
    """Imports each place (None = the environment's) that this process has not imported yet.

    Returns place → checksum of what was imported ("" for a module). A run carries these to its worker, which passes
    them here: so both import the same files. ValueError as in `set_imports`, and where a file is not the same.
    """
    found = {}
    with _LOCK:
        for place in asked_imports() if places is None else places:
            if place not in _DONE:
                _DONE[place] = _digest(place), ""  # before the import, in which the file itself may ask for a name
                _DONE[place] = _DONE[place][0], _error_of(place)
            found[place], error = _DONE[place]
            if places is not None and places[place] != found[place]:
                raise ImportFailed(f"{place} is not the file that the sweep began with: start the workers anew")
            if error:
                raise ImportFailed(error)
    return found


def _places(text: str) -> list[str]:
    parts = [part.strip() for part in re.split(BETWEEN, text)]
    return [str(Path(part).resolve()) if _is_file(part) else part for part in parts if part]


def _is_file(place: str) -> bool:
    return place.endswith(".py") or os.sep in place or "/" in place


def _digest(place: str) -> str:
    """Of a file; "" for a module. ValueError for a file that is not there."""
    if not _is_file(place):
        return ""
    try:
        return hashlib.sha256(Path(place).read_bytes()).hexdigest()
    except OSError as error:
        said = f"{error.strerror} (on {platform.node()}; every worker must see it)"
        raise ImportFailed(f"--import {place}: {said}") from None


def _error_of(place: str) -> str:
    """Imports a place; what went wrong, with the line of that file, or ""."""
    try:
        _import(place)
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == place]
        if isinstance(error, SyntaxError) and error.filename == place:
            lines, error = [error.lineno], f"{type(error).__name__}: {error.msg}"
        else:
            error = f"{type(error).__name__}: {error}"
        return f"--import {place}{f', line {lines[-1]}' if lines else ''}: {error}"
    return ""


def _import(place: str) -> None:
    """Imports a module by its name, and a file under its own name if that is free: `import my_norm` then finds the same
    module. A file that is loaded already, under another name or as the running script, is not imported again."""
    if not _is_file(place):
        import_module(place)
        return
    path = Path(place)
    if any(_is_from(module, path) for module in list(sys.modules.values())):
        return
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # it may import what lies beside it
    found = find_spec(path.stem) if path.stem.isidentifier() and path.stem not in sys.modules else None
    if found is not None and found.origin and Path(found.origin).resolve() == path:
        import_module(path.stem)
        return
    spec = spec_from_file_location(f"{path.stem}_{hashlib.sha256(place.encode()).hexdigest()[:8]}", path)
    if spec is None:
        raise ImportError("a file of Python ends in .py")
    module = sys.modules[spec.name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise


def _is_from(module: object, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and os.path.basename(file) == path.name and Path(file).resolve() == path
