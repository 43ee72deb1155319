"""The three packages: what imports what, how large they are, and what the core needs."""

from __future__ import annotations

import ast
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mambanorm_study.basics.settings import ROOT

PACKAGES = ("mambanorm", "mambanorm_study", "mambanorm_clinic")
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}

# Statements (`ast.stmt` nodes) that a package has at most. Lower these when something goes. Version 0.1.0
# began with 10,000 for mambanorm_study.
STATEMENTS = {
    "mambanorm": 1_908,  # without kernels
    "mambanorm/kernels": 2_120,
    "mambanorm_study": 12_300,
    "mambanorm_clinic": 2_200,
}

ROOMS = """
basics norms models config tasks runs tables lessons answers figures report claims widgets advice
cli
"""
"""Folders of mambanorm_study from the lowest to the highest: a folder imports only lower ones."""
LONGEST_FUNCTION = 50
"""Lines of a function without its docstring, but for kernels."""


def imports_of(name: str) -> set[str]:
    """Return the modules of the three packages that a module imports, wherever the import is."""
    imported = set()
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: imports are written in full"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                imported.add(submodule if submodule in FILES else node.module)
    return {module for module in imported if module.partition(".")[0] in PACKAGES} - {name}


def strings_of(tree: ast.Module) -> list[str]:
    """Return the strings of a module without its docstrings."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and ast.get_docstring(node) is not None
    }
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in docstrings
    ]


@pytest.mark.parametrize("name", FILES)
def test_no_package_reaches_upwards_by_an_import_or_a_string(name):
    package = name.partition(".")[0]
    higher = PACKAGES[PACKAGES.index(package) + 1 :]
    assert not {module for module in imports_of(name) if module.partition(".")[0] in higher}
    assert not [text for text in strings_of(TREES[name]) for other in higher if other in text]


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("mambanorm_study.")])
def test_a_folder_of_the_study_imports_only_lower_ones(name):
    order = ROOMS.split()
    room = name.split(".")[1]
    if room == "__main__":
        return
    lower = order[: order.index(room) + 1]
    rooms = {module.split(".")[1] for module in imports_of(name) if "_study." in module}
    assert rooms <= set(lower), f"{name} imports {sorted(rooms - set(lower))}"


def test_no_modules_import_each_other_in_a_circle():
    remaining = {name: imports_of(name) for name in FILES}
    for name, imported in remaining.items():
        imported.discard(name.rpartition(".")[0])  # a folder's __init__ gathers its modules
    while free := [name for name, imported in remaining.items() if not imported & remaining.keys()]:
        for name in free:
            del remaining[name]
    assert not remaining, f"these import each other: {sorted(remaining)}"


def statements(folder: Path) -> int:
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py"))
    return sum(isinstance(node, ast.stmt) for tree in trees for node in ast.walk(tree))


@pytest.mark.parametrize("folder", STATEMENTS)
def test_a_package_stays_thin(folder):
    count = statements(ROOT / folder)
    if folder == "mambanorm":
        count -= statements(ROOT / "mambanorm" / "kernels")
    assert count <= STATEMENTS[folder]


def test_every_module_says_what_it_is_for():
    assert not [name for name, tree in TREES.items() if not ast.get_docstring(tree)]


@pytest.mark.parametrize("name", [name for name in FILES if ".kernels" not in name])
def test_no_function_is_long(name):
    lengths = {}
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.FunctionDef):
            lines = node.end_lineno - node.lineno + 1
            if ast.get_docstring(node) is not None:
                lines -= node.body[0].end_lineno - node.body[0].lineno + 1
            lengths[node.name] = lines
    assert not {name: n for name, n in lengths.items() if n > LONGEST_FUNCTION}


def test_the_annotations_of_the_core_are_right():
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-incremental", "--cache-dir", "/dev/null"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout


# ------------------------------------------------------------------- what the core needs to train

ALONE = """
import sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None  # importing it raises ImportError

import torch
import torch.nn.functional as F
import mambanorm as mn

torch.manual_seed(0)
x, labels = torch.randn(128, 12, 1), torch.randint(2, (128,))
x[labels == 1] += 1
model = mn.SequenceClassifier(2, in_features=1, d_model=16, n_layers=2, arm="RMSN>SSM>GN")
optimizer = mn.build_optimizer(model, lr=0.01)

def loss_of(model, rows, step):
    yield F.cross_entropy(model(x[rows]), labels[rows])

curve = []
batches = mn.batch_order(seed=0, rows=len(x), batch_size=32, steps=20)
lost = mn.fit(
    model, optimizer, batches, loss_of, curve=curve,
    lr_of=lambda step: mn.learning_rate(step, lr=0.01, steps=20, warmup_steps=5),
)
assert lost is None
print(curve[0]["train_loss"], curve[-1]["train_loss"], mn.scan_backend(x))
with mn.record_sites(model, "residual") as recorder:
    model(x)
assert len(recorder.rows()) == 2
"""


def needed_by(*names: str) -> set[str]:
    """Return the distributions that these need, themselves included."""
    needed, todo = set(), list(names)
    while todo:
        name = canonicalize_name(todo.pop())
        if name in needed:
            continue
        needed.add(name)
        with suppress(PackageNotFoundError):
            requirements = map(Requirement, requires(name) or ())
            todo += [one.name for one in requirements if not one.marker or one.marker.evaluate()]
    return needed


@pytest.mark.parametrize("numba", [True, False])
def test_the_core_trains_without_any_other_package(numba):
    """With torch and numpy alone it computes in plain torch, and says so once."""
    needed = needed_by("torch", "numpy", "setuptools", *["numba"] * numba)
    blocked = [
        name
        for name, distributions in packages_distributions().items()
        if not needed & {canonicalize_name(one) for one in distributions}
        and name != "mambanorm"
        and name.isidentifier()
    ]
    assert {"pandas", "mambanorm_study", "mambanorm_clinic"} <= set(blocked)
    assert ("numba" in blocked) != numba
    done = subprocess.run(
        [sys.executable, "-c", ALONE, ",".join(blocked)], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    first, last, backend = done.stdout.split()
    assert float(last) < 0.8 * float(first)
    assert backend == ("cpu" if numba else "reference")
    assert done.stderr.count("numba cannot be imported") == (0 if numba else 1)
