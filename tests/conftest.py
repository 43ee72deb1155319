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


@pytest.fixture
def store(tmp_path, monkeypatch) -> Path:
    """An empty run store, the default one while the test runs."""
    monkeypatch.setenv("MAMBANORM_RUNS_DIR", str(tmp_path / "runs"))
    return tmp_path / "runs"
