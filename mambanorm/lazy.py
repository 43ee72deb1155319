"""Public names of a package that are imported on first use (PEP 562).

A package lists its public names in a stub, `__init__.pyi`, next to its `__init__.py`:

    from mambanorm.block import MambaBlock as MambaBlock

Type checkers and editors read the same stub (Scientific Python's SPEC 1), so the names are listed
once. `import mambanorm` imports no module of the package; the first use of a name imports its
module.
"""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def attach(
    package: str, init_file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package, made from its stub file.

    init_file: path of the package's `__init__.py`; the stub has the same path with suffix .pyi.
    """
    stub = Path(init_file).with_suffix(".pyi").read_text(encoding="utf-8")
    modules = {
        alias.name: str(node.module)
        for node in ast.parse(stub).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def get_attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)  # a second access does not call this function
        return value

    return get_attribute, lambda: sorted(modules), sorted(modules)
