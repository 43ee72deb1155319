"""Claims about `python -m benchmarks.gpu`, tested without a GPU: Triton's kernels run in their
interpreter, at tiny sizes.
"""

import functools
import json
import os
import subprocess
import sys
import time
from types import ModuleType

import pytest
import torch

from benchmarks import gpu, gpu_blocks, gpu_errors, gpu_times
from benchmarks.gpu_workers import ErrorTooLarge, Setting, attempt, run_in_parallel
from mambanorm import MambaBlock, selective_scan
from mambanorm_study.basics.settings import ROOT

ABSENT = [
    "distributed", "dask", "psutil", "pyarrow", "mnist1d", "matplotlib", "seaborn", "PIL",
    "openpyxl", "ipywidgets", "jupyterlab", "papermill", "nbconvert", "nbformat", "IPython",
    "mistune", "bibtexparser", "latex2mathml", "yaml", "transformers", "mamba_ssm",
    "causal_conv1d", "pytest",
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
    assert missing == {f"No module named '{peer}'" for peer in ("mamba_ssm", "causal_conv1d")}
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


TINY = Setting(torch.device("cpu"), tiny=True, seconds=0)


class Mixer(MambaBlock):
    """mamba-ssm's `Mamba` in terms of ours: neither norm nor residual."""

    def __init__(self, d_model: int, d_state: int):
        super().__init__(d_model, "None", "None", d_state=d_state)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) - x


class RMSNorm(torch.nn.RMSNorm):
    """mamba-ssm's `RMSNorm`."""

    def __init__(self, d_model: int):
        super().__init__(d_model, eps=1e-5)


@pytest.fixture
def peers(monkeypatch):
    """Modules that stand for mamba-ssm and causal-conv1d."""

    def convolve(x, weight, bias=None, activation=None):
        inputs = {"u": x.transpose(1, 2), "weight": weight.unsqueeze(1), "bias": bias}
        return gpu_errors.conv(inputs, "reference").transpose(1, 2)

    modules = {
        "mamba_ssm.ops.selective_scan_interface": {"selective_scan_fn": selective_scan},
        "mamba_ssm.ops.triton.layer_norm": {"RMSNorm": RMSNorm},
        "mamba_ssm.modules.mamba_simple": {"Mamba": Mixer},
        "causal_conv1d": {"causal_conv1d_fn": convolve},
    }
    for name, contents in modules.items():
        parts = name.split(".")
        for end in range(1, len(parts)):
            package = ".".join(parts[:end])
            monkeypatch.setitem(sys.modules, package, ModuleType(package))
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)


def test_times_are_compared_with_the_peers_of_the_same_run(peers):
    rows = {name: attempt(work) for name, work in gpu_times.kernel_times(TINY)}
    assert {row["status"] for row in rows.values()} == {"ok"}
    for operation, peer in (("scan", "mamba_ssm"), ("convolution", "causal_conv1d")):
        times = {name: row for name, row in rows.items() if name.startswith(operation)}
        for name, row in times.items():
            peer_row = times[f"{name.rpartition(' by ')[0]} by {peer}"]
            assert row[f"of_{peer}"] == row["ms"] / peer_row["ms"]


def test_our_block_is_compared_with_the_peer_s(peers):
    cases = dict(gpu_blocks.block_times(TINY))
    equality, peer_block, our_block = (attempt(work) for work in list(cases.values())[:3])
    assert equality["status"] == "ok"
    assert 0 < equality["output_error"] <= equality["error"] < 1e-5
    assert peer_block["of_mamba_ssm"] == 1
    assert our_block["of_mamba_ssm"] == our_block["ms"] / peer_block["ms"]


def test_a_block_that_differs_from_the_peer_s_is_noticed(peers, monkeypatch):
    monkeypatch.setattr(RMSNorm, "forward", lambda self, x: 1.01 * x * self.weight)
    with pytest.raises(ErrorTooLarge, match="the error is"):
        gpu_blocks.equality_row(TINY, (1, 8, 4, 4))


def crashing_cases(setting: Setting):
    """Yield a case that ends its process, one that does not end, and two that work."""
    yield "crash", functools.partial(os._exit, 3)
    yield "endless", functools.partial(time.sleep, 1000)
    for name in ("one", "other"):
        yield name, functools.partial(dict, seconds=setting.seconds)


def test_a_case_that_crashes_or_hangs_does_not_stop_the_others(monkeypatch):
    monkeypatch.setattr("benchmarks.gpu_workers.CASE_SECONDS", 5)
    monkeypatch.setattr("benchmarks.gpu_workers.cores", lambda: 2)
    tasks = {name: (crashing_cases, name) for name, _ in crashing_cases(TINY)}
    setting, deadline = Setting(torch.device("cpu")), time.monotonic() + 900
    outcomes = dict(run_in_parallel(tasks, setting, deadline))
    assert outcomes["crash"].columns["note"] == "the process of the case ended with exit code 3"
    assert outcomes["endless"].columns["note"] == "no result after 5 s"
    assert outcomes["crash"].is_fatal
    assert outcomes["endless"].is_fatal
    for name in ("one", "other"):
        assert outcomes[name].columns["status"] == "ok"
        assert outcomes[name].columns["seconds"] == 0  # a worker makes a single call


def test_a_case_that_runs_at_the_deadline_is_skipped():
    tasks = {name: (crashing_cases, name) for name in ("endless", "one")}
    outcomes = dict(run_in_parallel(tasks, TINY, time.monotonic()))
    assert {outcome.columns["status"] for outcome in outcomes.values()} == {"skipped"}


def test_a_time_is_the_median_of_several_calls():
    calls = iter(range(1000))
    times = gpu_times.timed(Setting(TINY.device, seconds=0.01), lambda: float(next(calls)))
    assert times["low_ms"] < times["ms"] < times["high_ms"]
    assert gpu_times.LEAST_REPEATS <= times["repeats"] <= gpu_times.MOST_REPEATS
    assert times["ms"] == 3 + (times["repeats"] - 1) / 2  # three calls are not counted
