"""Tests and notebooks under test work at scale smoke and in a run store of their own: no run of
yours is touched.
"""

import gc
import os
import tempfile
from pathlib import Path

import pytest
import torch

import mambanorm_study.models  # noqa: F401 (registers every norm and model)

os.environ["MAMBANORM_SCALE"] = "smoke"
if (
    not torch.cuda.is_available()
):  # before triton is imported: its kernels then run in NumPy, on the CPU
    os.environ.setdefault("TRITON_INTERPRET", "1")
# test processes side by side share one store: what one notebook has trained, the next need not
os.environ.setdefault("MAMBANORM_TEST_RUNS", tempfile.mkdtemp(prefix="mambanorm-test-runs-"))
os.environ["MAMBANORM_RUNS_DIR"] = os.environ["MAMBANORM_TEST_RUNS"]

LONG = """
chaos recorded_results sweep cluster power_cut notebook_runs wheel explore triton report card
10_autonorm 09_vision 05_combination
"""


def pytest_collection_modifyitems(items):
    """The long files first, so that none of them is left alone at the end."""
    names = LONG.split()
    items.sort(
        key=lambda item: next(
            (i for i, name in enumerate(names) if name in item.path.stem), len(names)
        )
    )


@pytest.fixture(autouse=True, scope="module")
def settled():
    """As a sweep's workers do: each training calls the collector, which then need not look at every
    import again.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def store(tmp_path, monkeypatch) -> Path:
    """An empty run store, the default one while the test runs."""
    monkeypatch.setenv("MAMBANORM_RUNS_DIR", str(tmp_path / "runs"))
    return tmp_path / "runs"
