"""The command for a GPU machine works before there is a GPU: Triton's kernels in their interpreter, at tiny sizes."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks import gpu, gpu_correctness, gpu_data
from benchmarks.gpu_parts import PARTS
from benchmarks.gpu_setting import PAPER, TINY, Setting, bytes_moved
from mambanorm.basics.settings import ROOT

CPU = Setting(torch.device("cpu"), TINY)
ABSENT = [
    "distributed",
    "dask",
    "psutil",
    "pyarrow",
    "mnist1d",
    "matplotlib",
    "seaborn",
    "PIL",
    "openpyxl",
    "ipywidgets",
    "jupyterlab",
    "papermill",
    "nbconvert",
    "nbformat",
    "IPython",
    "mistune",
    "bibtexparser",
    "latex2mathml",
    "yaml",
    "transformers",
    "mamba_ssm",
    "pytest",
]
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
    """No plotting, no Parquet, no Dask: what is absent is never imported, or its case says that it is missing."""
    command = [sys.executable, "-c", BLOCKED, "--device", "cpu", "--tiny", "--seconds", "900", "--out", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = rows_of(tmp_path)
    assert {row["part"] for row in rows} == set(PARTS)
    assert not [row for row in rows if row["status"] == "failed"]
    missing = {row["note"] for row in rows if row["status"] == "missing"}
    assert missing <= {"No module named 'mamba_ssm'", "No module named 'transformers'"}
    (table,) = tmp_path.glob("*.md")
    text = table.read_text()
    assert "- **complete**: yes" in text
    assert all(f"## {part}" in text for part in PARTS)


@pytest.mark.skipif(not hasattr(signal, "SIGTERM") or os.name == "nt", reason="needs POSIX signals")
def test_what_was_measured_is_there_when_the_machine_is_taken_away(tmp_path):
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--tiny", "--out", str(tmp_path)]
    process = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "1"}, stdout=subprocess.PIPE, text=True
    )
    process.stdout.readline()
    process.kill()
    process.wait()
    assert rows_of(tmp_path)[0]["status"] == "ok"
    (table,) = tmp_path.glob("*.md")
    assert "- **complete**: no: cut off, or still under way" in table.read_text()


def test_a_case_ends_with_its_time_and_the_part_says_what_it_left_out(tmp_path, monkeypatch):
    def slow(setting, clock):
        yield "sleeps", lambda: time.sleep(60)
        yield "never begun", lambda: {}
        yield "nor this", lambda: {}

    monkeypatch.setitem(gpu.PARTS, "scan", slow)
    start = time.monotonic()
    assert gpu.bench_gpu(["scan"], seconds=4, out_dir=tmp_path, device="cpu", tiny=True) == 0
    assert time.monotonic() - start < 30
    sleeps, left = rows_of(tmp_path)
    assert (sleeps["status"], left["status"]) == ("skipped", "skipped")
    assert sleeps["note"].startswith("not done within")
    (table,) = tmp_path.glob("*.md")
    assert "- **complete**: no: 2 rows without a measurement for lack of time" in table.read_text()
    assert "- **command**: python -m benchmarks.gpu --only scan --device cpu --tiny --seconds 4" in table.read_text()
    assert (left["case"], left["note"]) == ("2 more cases", "no time was left: from 'never begun' to 'nor this'")


def test_a_case_that_fails_is_a_row_and_the_others_go_on(tmp_path, monkeypatch):
    def wrong():
        raise ValueError("no such thing\nand a page more")

    cases = [("breaks", wrong), ("works", lambda: {"ms": 1.0})]
    monkeypatch.setitem(gpu.PARTS, "step", lambda setting, clock: iter(cases))
    assert gpu.bench_gpu(["step"], out_dir=tmp_path, device="cpu", tiny=True) == 1
    breaks, works = rows_of(tmp_path)
    assert (breaks["status"], breaks["note"]) == ("failed", "ValueError: no such thing")
    assert (works["status"], works["ms"]) == ("ok", 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["scan", "conv"])
def test_a_wrong_kernel_is_found(name, dtype, monkeypatch):
    """The errors that are judged come from the kernels themselves."""
    right, given = getattr(gpu_correctness, name), {"scan": (True, dtype), "conv": (dtype,)}[name]
    error = functools.partial(getattr(gpu_correctness, f"_{name}_error"), CPU, (2, 5, 3, 4), *given)
    assert error()["error"] > 0
    monkeypatch.setattr(gpu_correctness, name, lambda leaves, by: right(leaves, by) * (1.05 if by == "triton" else 1.0))
    with pytest.raises(AssertionError, match=r"the error is 0.0[45]\d*, allowed is"):
        error()


def test_rows_are_drawn_beside_the_rest_and_are_those_of_the_task(monkeypatch):
    monkeypatch.setattr(gpu_data, "SCALE", "smoke")
    own = gpu_data.listops._pool("smoke", gpu_data.listops.folder())
    monkeypatch.setattr(gpu_data.listops, "_pool", gpu_data.listops._pool)  # put back afterwards
    started = subprocess.Popen

    def popen(command, **options):
        code = "import benchmarks.gpu_data as d, sys; d.SCALE = 'smoke'; d.main(sys.argv[1])"
        return started([command[0], "-c", code, command[-1]], **options)

    monkeypatch.setattr(gpu_data.subprocess, "Popen", popen)
    with gpu_data.drawing(True) as take:
        take()
        drawn = gpu_data.listops._pool("smoke", None)
    assert drawn[1] == own[1]
    for name in ("inputs", "labels", "lengths"):
        assert torch.equal(getattr(drawn[0], name), getattr(own[0], name))


def test_a_broken_device_ends_the_command_after_the_case_that_broke_it(tmp_path, monkeypatch):
    monkeypatch.setitem(gpu.PARTS, "scan", lambda setting, clock: iter([("breaks", dict), ("not begun", dict)]))
    monkeypatch.setattr(Setting, "broken", lambda self: "an illegal memory access")
    assert gpu.bench_gpu(["scan", "step"], out_dir=tmp_path, device="cpu", tiny=True) == 1
    ran, device = rows_of(tmp_path)
    (table,) = tmp_path.glob("*.md")
    assert "- **complete**: no: the device broke" in table.read_text()
    assert (ran["case"], device["note"]) == ("breaks", "broken by breaks: an illegal memory access")


def test_the_bytes_of_a_scan_are_its_tensors():
    batch, length, channels, states = shape = (2, 5, 3, 4)
    rows, steps = batch * length * channels * 2, batch * length * states * 2
    assert bytes_moved(shape, 2, backward=False) == 3 * rows + 2 * steps + rows
    assert bytes_moved(shape, 2, backward=True) - bytes_moved(shape, 2, backward=False) == 4 * rows + 2 * steps + (
        3 * rows + 2 * steps
    )


def test_the_sizes_are_those_of_the_papers_listops():
    from mambanorm import base_config
    from mambanorm.tasks import TASKS

    config = base_config("listops", "paper")
    length = TASKS["listops"].shape("paper").length
    batch, positions, channels, states = PAPER.scan[0]
    assert (batch, channels, states) == (config.batch_size, config.expand * config.d_model, config.d_state)
    assert positions == 2048 >= length - 1


@pytest.mark.parametrize(("argv", "told"), [(["--only", "scann"], "did you mean 'scan'"), ([], "'cuda' is not avail")])
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_mistake_is_one_line_and_exit_code_2(argv, told, capsys, tmp_path):
    assert gpu.main([*argv, "--out", str(tmp_path)]) == 2
    assert told in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
