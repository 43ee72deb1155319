"""Public names of a package that are imported on first use (PEP 562).

A package lists its names in the stub beside it, `__init__.pyi`:

    from mambanorm.block import MambaBlock as MambaBlock

Type checkers and editors read the same stub (Scientific Python's SPEC 1). So one list serves both,
and `import mambanorm` costs nothing until a name is used.
"""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

Attached = tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]


def attach(package: str, init_file: str) -> Attached:
    """Return `__getattr__`, `__dir__` and `__all__` of a package, from the stub beside
    `init_file`."""
    modules = {}
    for node in ast.parse(Path(init_file).with_suffix(".pyi").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            modules.update({alias.name: node.module for alias in node.names})

    def get_attribute(name: str) -> Any:
        if name not in modules:
            return _submodule(package, name)
        value = getattr(import_module(str(modules[name])), name)
        setattr(sys.modules[package], name, value)  # the next access finds it without this function
        return value

    return get_attribute, lambda: sorted(modules), sorted(modules)


def _submodule(package: str, name: str) -> ModuleType:
    """Return a submodule by attribute access. Raise AttributeError if there is none."""
    try:
        return import_module(f"{package}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{package}.{name}":  # the submodule exists and lacks a dependency
            raise
    raise AttributeError(f"module {package!r} has no attribute {name!r}")
