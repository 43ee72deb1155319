"""Claims about what is imported and when: the package only what is asked for, and norms and tasks
of one's own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module

import pytest

import mambanorm as mn
import mambanorm_clinic as clinic
import mambanorm_study as study
from mambanorm_study.basics import extensions
from mambanorm_study.basics.atomic import sha256
from mambanorm_study.basics.settings import ROOT
from mambanorm_study.cli.main import main
from mambanorm_study.config import run_id_of
from mambanorm_study.runs.result import MANIFEST, RUN_FILES

PEAK = """
import mambanorm as mn
from torch import nn


@mn.register_norm("Peak", equation="x", source="a test", axes=("D",), causal=True, learnable="nothing")
class PeakNorm(nn.Module):
    def __init__(self, d):
        super().__init__()

    def forward(self, x, lengths=None):
        return x / x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
"""
PARITY = """
import my_norm  # beside this file, and imported already
import torch
import mambanorm_study as study
from mambanorm_study.tasks import Split, TaskData


@study.register_task("parity", title="Parity", source="a test")
def load_parity(scale, seed):
    bits = torch.arange(60)[:, None] // 2 ** torch.arange(6) % 2
    parts = [Split(bits[i::3, :, None].float(), bits[i::3].sum(1) % 2) for i in range(3)]
    return TaskData(*parts, n_classes=2, in_features=1)
"""
HEAVY = (
    "torch",
    "numba",
    "numpy",
    "pandas",
    "dask",
    "distributed",
    "matplotlib",
    "sklearn",
    "papermill",
)


def python(code: str, *argv: str, **environment: str) -> str:
    """What a fresh interpreter prints."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, *(["-c", code] if code else []), *argv],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path} | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "--help",
        "study --help",
        "stdy",
        "sweep --grid type --lr 1",
        "runs --scale x",
        "verdicts --seeds 1.5",
    ],
)
def test_neither_help_nor_a_mistake_in_the_arguments_imports_what_computes(line):
    code = f"""
import sys
from mambanorm_study.cli.main import main
main({line.split()})
print("imported", [name for name in {HEAVY} if name in sys.modules])
"""
    assert "imported []\n" in python(code)


def test_every_module_can_be_the_first_that_is_imported():
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sorted(ROOT.glob("mambanorm*/**/*.py"))
    ]
    code = f"""
import os, torch, pandas, numba, dask.distributed, matplotlib.pyplot, seaborn, papermill, nbconvert
from importlib import import_module
for name in {[name.removesuffix(".__init__") for name in names if "__main__" not in name]}:
    if not (child := os.fork()):
        try:
            import_module(name)
        except BaseException as error:
            print(name, repr(error), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
print("end")
"""
    assert python(code) == "end\n"


def test_importing_kernels_starts_no_thread_and_leaves_torch_its_number():
    code = """
import numba, psutil, torch
torch.set_num_threads(3)
before = psutil.Process().num_threads()
import mambanorm_study.models.vision, mambanorm.kernels.conv_gate, mambanorm.kernels.norm
print(torch.get_num_threads(), psutil.Process().num_threads() - before, end=" ")
from mambanorm import MambaBlock
MambaBlock(4)(torch.ones(2, 3, 4)).sum().backward()
print(torch.get_num_threads())
"""
    assert python(code, NUMBA_NUM_THREADS="2").split()[:3] == ["3", "0", "3"]


def test_every_public_name_is_there_and_listed():
    for package in (mn, study, clinic):
        assert set(package.__all__) <= set(dir(package))
        assert all(getattr(package, name) is not None for name in package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'sweeep'"):
        mn.sweeep  # noqa: B018
    assert not hasattr(mn, "_nothing")


# --------------------------------------------------------------------------------------------------
# norms and tasks of one's own


@pytest.fixture
def files(tmp_path):
    (tmp_path / "my_norm.py").write_text(PEAK)
    (tmp_path / "my_task.py").write_text(PARITY)
    return tmp_path


def test_a_norm_and_a_task_of_ones_own_reach_a_worker_and_the_store_names_them_later(
    files, store, capsys, monkeypatch
):
    common = ["--scale", "smoke", "--seeds", "1"]
    imports = [
        word
        for name in ("my_norm.py", "my_norm.py", "my_task.py")
        for word in ("--import", str(files / name))
    ]
    argv = [
        "-m",
        "mambanorm_study",
        *imports,
        "sweep",
        "--arms",
        "Peak>SSM>None",
        "--tasks",
        "parity",
        "--workers",
        "1",
    ]
    assert "Peak>SSM>None" in python("", *argv, *common, MAMBANORM_RUNS_DIR=str(store))
    kernel = """
import mambanorm as mn
import mambanorm_study as study
print(list(study.load_runs().arm), mn.create_norm("Peak", 4), study.load_task("parity", "smoke", 0).n_classes)
"""
    places = os.pathsep.join(str(files / name) for name in ("my_norm.py", "my_task.py"))
    assert (
        python(kernel, MAMBANORM_IMPORT=places, MAMBANORM_RUNS_DIR=str(store))
        == "['Peak>SSM>None'] PeakNorm() 2\n"
    )

    monkeypatch.delenv("MAMBANORM_IMPORT", raising=False)  # here nobody has registered them
    assert main(["runs"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("0 runs in")
    assert err.startswith("mambanorm: warning: skipped: unknown norm 'Peak'")
    assert err.endswith("one of your own needs --import FILE, or MAMBANORM_IMPORT=FILE\n")


def stored_elsewhere(store, n: int) -> None:
    """Runs of a norm that is not registered here."""
    for seed in range(n):
        values = json.loads(study.base_config("digits", "smoke", seed=seed).to_json()) | {
            "arm": "Peak>SSM>None"
        }
        folder, files = store / run_id_of(values), {}
        folder.mkdir(parents=True)
        for name in RUN_FILES:
            (folder / name).write_text(json.dumps(values))
            files[name] = {"sha256": sha256(folder / name), "bytes": (folder / name).stat().st_size}
        (folder / MANIFEST).write_text(json.dumps({"files": files}))


def test_runs_of_a_norm_that_is_not_registered_here_are_named_once_a_command(store, capsys):
    stored_elsewhere(store, 3)
    assert (
        main(
            [
                "verdicts",
                "--claims",
                "H1s",
                "--tasks",
                "digits",
                "--scale",
                "smoke",
                "--seeds",
                "1",
                "--dry-run",
            ]
        )
        == 0
    )
    assert capsys.readouterr().err.count("unknown norm 'Peak'") == 1
    with pytest.warns(UserWarning, match="skipped: unknown norm 'Peak'"):
        assert len(study.load_runs()) == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "import torch\n\ntorch.zeros(2) + nothing\n",
            ", line 3: NameError: name 'nothing' is not defined",
        ),
        ("x = 1\ndef f(:\n", ": SyntaxError: invalid syntax (mine.py, line 2)"),
        (
            "import mambanorm\nimport no_such_module\n",
            ", line 2: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("raise SystemExit('enough')\n", ", line 1: SystemExit: enough"),
    ],
)
def test_an_error_in_the_file_is_one_line_with_file_and_line(
    text, said, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("MAMBANORM_IMPORT", "")
    (tmp_path / "mine.py").write_text(text)
    assert main(["--import", str(tmp_path / "mine.py"), "runs"]) == 2
    assert capsys.readouterr().err.startswith(f"mambanorm: --import {tmp_path / 'mine.py'}{said}")


def test_a_worker_imports_what_the_sweep_has_imported_and_nothing_else(files, store, monkeypatch):
    monkeypatch.setattr(extensions, "_IMPORTED", {})
    run_one, config = (
        import_module("mambanorm_study.runs.worker").run_one,
        study.base_config("digits", "smoke").to_json(),
    )
    error = run_one(config, str(store), imports={str(files / "absent.py"): ""}).error
    assert "No such file or directory" in error
    assert "absent.py" in error
    (files / "plain.py").write_text("x = 1\n")
    place = str(files / "plain.py")
    found = extensions.load_imports({place: sha256(files / "plain.py")})
    (files / "plain.py").write_text("x = 2\n")
    assert extensions.load_imports(found) == found  # what runs is still what the sweep began with
    assert (
        "not the file that the sweep began with"
        in run_one(config, str(store), imports={place: "another"}).error
    )
