"""Without a checkout: a wheel, installed in a fresh environment, does the study in the folder one
works in.
"""

import os
import shutil
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import nbformat
import pytest

from mambanorm_study.basics.settings import ROOT

PACKAGES = ("mambanorm", "mambanorm_study", "mambanorm_clinic")
COMMITTED = (*PACKAGES, "notebooks", "data/results")
FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "data/README.md")
MADE = shutil.ignore_patterns("__pycache__", ".*", "*.unfinished")


def done(*command: object, **options) -> str:
    finished = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=900, **options
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of a copy: setuptools leaves its own files where it builds."""
    kit = tmp_path_factory.mktemp("kit")
    for name in COMMITTED:
        shutil.copytree(ROOT / name, kit / name, ignore=MADE)
    for name in FILES:
        shutil.copy(ROOT / name, kit / name)
    pip = (
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
    )
    done(*pip, "--wheel-dir", kit / "dist", kit)
    (made,) = (kit / "dist").glob("*.whl")
    return made


class Machine:
    """A reader's: the wheel in an environment of its own, and an empty folder. Other packages are
    the tests' own.
    """

    def __init__(self, wheel: Path, place: Path):
        self.folder, self.bin = place / "work", place / "venv" / "bin"
        self.folder.mkdir()
        venv.create(place / "venv")
        pip = (
            sys.executable,
            "-m",
            "pip",
            "--python",
            self.bin / "python",
            "install",
            "--quiet",
            "--no-index",
        )
        done(*pip, "--no-deps", "--no-compile", wheel)
        (self.packages,) = place.glob("venv/lib/*/site-packages")
        # a path that a .pth file names has its own .pth files ignored: no editable install comes in
        # by this
        (self.packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
        self._take_compiled()
        self.env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("MAMBANORM_", "PYTHON"))
        }
        shared = os.pathsep.join(
            str(Path(prefix) / "share" / "jupyter") for prefix in (sys.prefix, sys.base_prefix)
        )
        self.env |= {
            "MAMBANORM_SCALE": "smoke",
            "JUPYTER_PATH": shared,
            "OMP_WAIT_POLICY": "passive",
        }
        self.before = self.written()

    def _take_compiled(self) -> None:
        """What this checkout has compiled: Numba takes it where the times of the sources are the
        same.
        """
        for path in (*ROOT.glob("mambanorm/**/*.py"), *ROOT.glob("mambanorm/**/*.nb[ci]")):
            copy = self.packages / path.relative_to(ROOT)
            if path.suffix != ".py":
                copy.parent.mkdir(exist_ok=True)
                shutil.copy(path, copy)
            shutil.copystat(path, copy)

    def call(self, command: str, *words: object, **options) -> str:
        return done(self.bin / command, *words, cwd=self.folder, env=self.env, **options)

    def written(self) -> dict[Path, int]:
        """The installed files, and when each was written; what Python and Numba compile is kept
        elsewhere.
        """
        files = (
            path
            for path in self.packages.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        )
        return {path: path.stat().st_mtime_ns for path in files}

    def names(self, folder: str) -> set[str]:
        return {path.name for path in (self.folder / folder).iterdir()}


@pytest.fixture(scope="module")
def machine(wheel, tmp_path_factory) -> Machine:
    return Machine(wheel, tmp_path_factory.mktemp("machine"))


def test_the_wheel_holds_the_package_the_notebooks_and_the_recorded_results(wheel):
    there = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    paths = [
        path.relative_to(ROOT)
        for name in COMMITTED
        for path in ROOT.glob(f"{name}/**/*")
        if path.is_file()
    ]
    names = {path.as_posix() for path in paths if not MADE("", path.parts)} | {"data/README.md"}
    inside = {name if name.startswith(PACKAGES) else f"mambanorm_study/{name}" for name in names}
    assert there == inside


def test_in_an_empty_folder_study_sheet_and_verdicts_work(machine):
    where = machine.call("python", "-c", "import mambanorm; print(mambanorm.__file__)")
    assert Path(where.strip()) == machine.packages / "mambanorm" / "__init__.py"
    assert f"{machine.folder / 'runs'})" in machine.call(
        "mambanorm", "verdicts", "--dry-run", "--claims", "H1s"
    )
    assert not machine.names(".")
    machine.call("mambanorm", "study", "--notebooks", "00", "--workers", 0)
    assert len(machine.names("runs")) >= 2
    assert {"index.html", "00_start_here.html"} <= machine.names("reports/smoke")
    assert "commit unknown" in (machine.folder / "reports/smoke/index.html").read_text()
    machine.call("mambanorm", "sheet", "--norms", "RMSN,GN")
    assert machine.names("reports/teaching") == {"norms.pdf"}
    assert machine.written() == machine.before


def test_notebooks_are_copied_edited_and_run_with_the_store_of_the_folder(machine):
    machine.call("mambanorm", "notebooks")
    assert machine.names("notebooks") == {path.name for path in ROOT.glob("notebooks/*.ipynb")}
    own = machine.folder / "notebooks" / "00_start_here.ipynb"
    edited = nbformat.read(own, as_version=4)
    ask = "import mambanorm_study as study\nprint(study.__file__, len(study.load_runs()))"
    edited.cells = [nbformat.v4.new_code_cell(ask)]  # the first test has run what stood in it
    nbformat.write(edited, own)
    machine.call(
        "python", "-m", "nbconvert", "--to", "notebook", "--execute", "--inplace", own
    )  # as JupyterLab does
    (output,) = nbformat.read(own, as_version=4).cells[-1].outputs
    place, runs = output.text.rsplit(maxsplit=1)
    assert Path(place).is_relative_to(machine.packages)
    assert int(runs) == len(machine.names("runs")) >= 2
    assert machine.names(".") - {"reports"} == {"notebooks", "runs"}
    assert not {"runs", "reports", "data"} & machine.names("notebooks")

    with pytest.raises(
        AssertionError,
        match="not overwritten, because they have been changed: 00_start_here.ipynb. --force",
    ):
        machine.call("mambanorm", "notebooks")
    machine.call("mambanorm", "notebooks", "--force")
    assert own.read_bytes() == (ROOT / "notebooks" / own.name).read_bytes()
    assert machine.written() == machine.before
