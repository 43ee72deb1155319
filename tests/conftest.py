"""Tests and notebooks under test work at scale smoke and in a run store of their own: no run of yours is touched."""

import os
import tempfile
from pathlib import Path

import pytest

os.environ["MAMBANORM_SCALE"] = "smoke"
# test processes side by side share one store: what one notebook has trained, the next need not
os.environ.setdefault("MAMBANORM_TEST_RUNS", tempfile.mkdtemp(prefix="mambanorm-test-runs-"))
os.environ["MAMBANORM_RUNS_DIR"] = os.environ["MAMBANORM_TEST_RUNS"]


@pytest.fixture
def store(tmp_path, monkeypatch) -> Path:
    """An empty run store, the default one while the test runs."""
    monkeypatch.setenv("MAMBANORM_RUNS_DIR", str(tmp_path / "runs"))
    return tmp_path / "runs"
