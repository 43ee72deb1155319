"""Every test works at scale smoke and in a run store of its own; nothing touches the user's runs."""

import os
import tempfile
from pathlib import Path

import pytest

os.environ["MAMBANORM_SCALE"] = "smoke"
os.environ["MAMBANORM_RUNS_DIR"] = tempfile.mkdtemp(prefix="mambanorm-test-runs-")


@pytest.fixture
def store(tmp_path, monkeypatch) -> Path:
    """An empty run store, the default one while the test runs."""
    monkeypatch.setenv("MAMBANORM_RUNS_DIR", str(tmp_path / "runs"))
    return tmp_path / "runs"
