"""Packages that not every machine has, imported when they are first used.

A GPU machine may have torch and little besides: a model trains there without the packages that keep and read files.
"""

import functools
from importlib import import_module
from typing import Any


class Later:
    """Stands for a module: `pq = Later("pyarrow.parquet")` imports it with the first `pq.read_table`."""

    def __init__(self, name: str):
        self.__name__ = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self.__name__), attribute)


@functools.cache
def has(package: str) -> bool:
    """Whether a package can be imported (tried once)."""
    try:
        import_module(package)
    except ImportError:
        return False
    return True
