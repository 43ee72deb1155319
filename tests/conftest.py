"""Tests and notebooks under test work at scale smoke and in a run store of their own: no run of yours is touched."""

import os
import tempfile
from pathlib import Path

import pytest
import torch

os.environ["MAMBANORM_SCALE"] = "smoke"
if not torch.cuda.is_available():  # before triton is imported: its kernels then run in NumPy, on the CPU
    os.environ.setdefault("TRITON_INTERPRET", "1")
# test processes side by side share one store: what one notebook has trained, the next need not
os.environ.setdefault("MAMBANORM_TEST_RUNS", tempfile.mkdtemp(prefix="mambanorm-test-runs-"))
os.environ["MAMBANORM_RUNS_DIR"] = os.environ["MAMBANORM_TEST_RUNS"]


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config, items):
    """What must stay together in one test process: a notebook's cells, and the tests that share a module's fixture."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        shared = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {}).values()
        if item.path.suffix == ".ipynb" or any(found[-1].scope == "module" for found in shared):
            item.add_marker(pytest.mark.xdist_group(item.path.name))


@pytest.fixture
def store(tmp_path, monkeypatch) -> Path:
    """An empty run store, the default one while the test runs."""
    monkeypatch.setenv("MAMBANORM_RUNS_DIR", str(tmp_path / "runs"))
    return tmp_path / "runs"
