"""The command for a GPU machine works before there is a GPU: Triton's kernels in their interpreter,
at tiny sizes."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu
from mambanorm_study.basics.settings import ROOT

ABSENT = [
    "distributed", "dask", "psutil", "pyarrow", "mnist1d", "matplotlib", "seaborn", "PIL",
    "openpyxl", "ipywidgets", "jupyterlab", "papermill", "nbconvert", "nbformat", "IPython",
    "mistune", "bibtexparser", "latex2mathml", "yaml", "transformers", "mamba_ssm", "pytest",
]  # fmt: skip
BLOCKED = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
from benchmarks.gpu import main
sys.exit(main(sys.argv[1:]))
"""


def rows_of(folder: Path) -> list[dict]:
    (found,) = folder.glob("interpreter*.json")
    return json.loads(found.read_text())["rows"]


def test_all_of_it_runs_with_little_beside_torch(tmp_path):
    """No plotting, no Parquet, no Dask: what is absent is never imported, or its case says that it
    is missing."""
    command = [
        sys.executable,
        "-c",
        BLOCKED,
        "--device",
        "cpu",
        "--tiny",
        "--seconds",
        "900",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = rows_of(tmp_path)
    assert {row["part"] for row in rows} == set(gpu.PARTS)
    assert not [row for row in rows if row["status"] == "failed"]
    missing = {row["note"] for row in rows if row["status"] == "missing"}
    assert missing == {"No module named 'mamba_ssm'"}
    (table,) = tmp_path.glob("*.md")
    text = table.read_text()
    assert "- **complete**: yes" in text
    assert all(f"## {part}" in text for part in gpu.PARTS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["scan", "conv"])
def test_a_wrong_kernel_is_found(name, dtype):
    """The errors that are judged come from the kernels themselves."""
    right = getattr(gpu, name)
    inputs = functools.partial(
        getattr(gpu, f"{name}_inputs"), (2, 5, 3, 4), torch.device("cpu"), dtype
    )
    assert gpu._kernel_error(right, inputs)["error"] > 0
    with pytest.raises(AssertionError, match=r"the error is 0.0[45]\d*, allowed is"):
        gpu._kernel_error(
            lambda leaves, by: right(leaves, by) * (1.05 if by == "triton" else 1.0), inputs
        )
