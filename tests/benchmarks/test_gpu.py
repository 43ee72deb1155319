"""Claims about `python -m benchmarks.gpu`, tested without a GPU: Triton's kernels run in their
interpreter, at tiny sizes.
"""

import functools
import json
import os
import subprocess
import sys

import pytest
import torch

from benchmarks import gpu, gpu_errors
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


def test_every_part_runs_with_few_packages_besides_torch(tmp_path):
    """Packages for plots, Parquet and Dask are not imported; a missing peer is a row."""
    options = ["--device", "cpu", "--tiny", "--seconds", "900", "--out", str(tmp_path)]
    command = [sys.executable, "-c", BLOCKED, *options]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (results,) = tmp_path.glob("interpreter*.json")
    rows = json.loads(results.read_text())["rows"]
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
def test_a_wrong_kernel_is_noticed(name, dtype):
    kernel, make_inputs = getattr(gpu_errors, name), getattr(gpu_errors, f"{name}_inputs")
    inputs = functools.partial(make_inputs, (2, 5, 3, 4), torch.device("cpu"), dtype)
    assert gpu_errors.kernel_error(kernel, inputs)["error"] > 0

    def wrong_kernel(inputs: dict, backend: str) -> torch.Tensor:
        return kernel(inputs, backend) * (1.05 if backend == "triton" else 1.0)

    with pytest.raises(AssertionError, match=r"the error is 0.0[45]\d*, allowed is"):
        gpu_errors.kernel_error(wrong_kernel, inputs)
