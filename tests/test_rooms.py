"""The package is built in floors: a module imports only what stands below it, and no file is
long."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mambanorm_study.basics.settings import ROOT

FLOORS = """
__main__
cli
__init__
advice widgets
claims
report
answers figures
lessons
study
runs
look
loop
models
config
block
arms
norms operations tasks
kernels
basics
"""
"""From the top floor down; the rooms of one floor do not know each other."""

HEIGHT = {room: -i for i, line in enumerate(FLOORS.split("\n")) for room in line.split()}
PACKAGE = ROOT / "mambanorm"
FILES = sorted(PACKAGE.rglob("*.py"))
LONGEST = 350
"""Lines of a file, but for kernels, which are read loop by loop."""


def name_of(path: Path) -> str:
    """`training.sweep`, and `training` for its `__init__`."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {name_of(path): path for path in FILES}


def imports_of(path: Path) -> set[str]:
    """The modules of this package that a file imports, wherever in it an import stands."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written in full"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {
                name if name.removeprefix("mambanorm.") in MODULES else node.module
                for name in names
            }
    return {
        name.removeprefix("mambanorm.") for name in found if name.split(".")[0] == "mambanorm"
    } - {name_of(path)}


def room(module: str) -> str:
    return module.partition(".")[0]


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_only_what_stands_below_it(name):
    """The package's own `mambanorm.…`, which gathers what stands anywhere, is for its users
    only."""
    others = {room(other) for other in imports_of(MODULES[name])} - {room(name)}
    above = {other for other in others if HEIGHT.get(other, 0) >= HEIGHT[room(name)]}
    assert not above, f"{name} imports from {above}, which do not stand below it"


def test_no_modules_import_each_other_in_a_circle():
    left = {name: imports_of(path) for name, path in MODULES.items()}
    for name, others in left.items():
        others.discard(
            room(name)
        )  # a folder's __init__ gathers its modules, and is no way from one to another
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    assert not left, f"these import each other: {sorted(left)}"


def test_at_most_nine_modules_stand_at_the_top_every_room_has_a_floor_and_every_module_says_what_it_is_for():
    assert len(list(PACKAGE.glob("*.py"))) <= 9
    assert {room(name) for name in MODULES} == set(HEIGHT)
    assert not [
        name for name, path in MODULES.items() if not ast.get_docstring(ast.parse(path.read_text()))
    ]


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.parent.name != "kernels"], ids=name_of
)
def test_a_file_can_be_read_in_one_go(path):
    assert len(path.read_text().splitlines()) <= LONGEST


WEIGHT = {"mambanorm": (29_700, 183), "tests": (21_050, None)}
"""Lines and files that a folder has at most. Lower these when something goes; wanted are 27,500
lines in 190 files, and 19,000 lines of tests."""


@pytest.mark.parametrize("folder", WEIGHT)
def test_what_has_gone_does_not_creep_back(folder):
    lines, files = WEIGHT[folder]
    found = [path.read_text().count("\n") for path in (ROOT / folder).rglob("*.py")]
    assert sum(found) <= lines
    assert files is None or len(found) <= files
