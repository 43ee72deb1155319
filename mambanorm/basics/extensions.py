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

from mambanorm.basics.errors import VARIABLE, ImportFailed, brief

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
    if odd := [place for place in places if len(re.split(BETWEEN, place)) > 1]:
        raise ValueError(f"--import {odd[0]}: a path with a comma or {os.pathsep!r} cannot be told from several")
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
        if not all(part.isidentifier() for part in place.split(".")):
            raise ImportFailed(f"--import {brief(place)}: it names neither a file, which ends in .py, nor a module")
        return ""
    if not place.endswith(".py") or (Path(place).exists() and not Path(place).is_file()):
        raise ImportFailed(f"--import {place}: it is no file of Python, which ends in .py")
    try:
        return hashlib.sha256(Path(place).read_bytes()).hexdigest()
    except OSError as error:
        raise ImportFailed(
            f"--import {place}: {error.strerror} (on {platform.node()}; every worker must see it)"
        ) from None


def _error_of(place: str) -> str:
    """Imports a place; what went wrong, with file and line, or ""."""
    try:
        _import(place)
    except ModuleNotFoundError as error:
        if error.name and place.startswith(error.name) and not _is_file(place):
            return f"--import {place}: there is no module {error.name!r} here; a file is named with its .py"
        return f"--import {place}{_line(error, place)}: {error}"
    except (Exception, SystemExit) as error:
        said = error.msg if isinstance(error, SyntaxError) else error
        return f"--import {place}{_line(error, place)}: {type(error).__name__}: {said}"
    return ""


def _line(error: BaseException, place: str) -> str:
    """`, line 7`: the last line of that file on the way to the error; of another file with its name."""
    if isinstance(error, SyntaxError) and error.lineno:
        return f", line {error.lineno}" if error.filename == place else f", {error.filename}, line {error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    if own := [frame for frame in frames if frame.filename == place]:
        return f", line {own[-1].lineno}"
    return f", {frames[-1].filename}, line {frames[-1].lineno}" if frames[2:] else ""


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
    module = sys.modules[spec.name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise


def _is_from(module: object, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and os.path.basename(file) == path.name and Path(file).resolve() == path
