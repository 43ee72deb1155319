"""Claims about the conftest.py of the checkout: pytest and all that it starts see no GPU."""

import os
import shutil
import subprocess
import sys

import nbformat
import pytest
import torch

from mambanorm_study.basics.settings import ROOT

SWITCH = "MAMBANORM_TEST_DEVICE"
TEST = """
import os, subprocess, sys

script = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"

def test_what_this_process_and_its_children_see():
    assert os.environ["PYTEST_XDIST_WORKER"]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == {seen!r}
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert child.stdout.strip() == {seen!r}
"""
CELL = "import os\nassert os.environ['CUDA_VISIBLE_DEVICES'] == {seen!r}"


@pytest.mark.parametrize(("device", "seen"), [("", ""), ("cpu", ""), ("cuda", "0")])
def test_workers_subprocesses_and_notebooks_see_no_gpu_unless_the_switch_shows_it(
    device, seen, tmp_path
):
    """The outer environment names a GPU, which need not exist."""
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "test_environment.py").write_text(TEST.format(seen=seen))
    cells = [nbformat.v4.new_code_cell(CELL.format(seen=seen))]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "notebook.ipynb")
    command = [sys.executable, "-m", "pytest", "-n", "1", "--nbval-lax", "--nbval-current-env"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", tmp_path],
        cwd=tmp_path,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "0", SWITCH: device},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


@pytest.mark.skipif(os.environ.get(SWITCH) == "cuda", reason=f"{SWITCH} shows the GPU")
def test_this_suite_sees_no_gpu():
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert not torch.cuda.is_available()
