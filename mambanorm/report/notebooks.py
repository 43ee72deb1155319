"""The study's notebooks and the runs that they need. This much a dry run asks for, and does not wait for the rest.

find_notebooks      their files, in teaching order
copy_notebooks      them in another folder
study_runs          the runs of each
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mambanorm.basics.atomic import write_bytes
from mambanorm.basics.errors import unknown
from mambanorm.basics.settings import KIT
from mambanorm.study.experiments import study
from mambanorm.training.grid import check_names, check_task

NOTEBOOKS = KIT / "notebooks"


def find_notebooks(wanted: str | Sequence[str] | None = None) -> list[Path]:
    """The notebooks in teaching order: all, or those named or begun (`"03,05_combination"` or a list).

    ValueError for an unknown one, with the nearest.
    """
    found = sorted(path for path in NOTEBOOKS.glob("*.ipynb") if not path.name.startswith("."))
    if not found:
        raise ValueError(f"no notebooks in {NOTEBOOKS}: a checkout of the project has them, and so has its wheel")
    if wanted is None:
        return found
    wanted = check_names("notebooks", wanted.split(",") if isinstance(wanted, str) else wanted)
    chosen = set()
    for name in (str(name).strip().removesuffix(".ipynb") for name in wanted):
        matches = [path for path in found if path.stem == name] or [
            p for p in found if name and p.stem.startswith(name)
        ]
        if not matches:
            raise unknown("notebook", name, [path.stem for path in found])
        chosen.update(matches)
    return sorted(chosen)


def copy_notebooks(folder: Path, *, force: bool = False) -> list[str]:
    """Copies the notebooks into a folder; those in it that differ stay unless forced, and their names are returned."""
    kept = []
    for path in find_notebooks():
        copy, content = folder / path.name, path.read_bytes()
        if force or not copy.exists():
            write_bytes(copy, content)
        elif copy.read_bytes() != content:
            kept.append(path.name)
    return kept


def study_runs(scale, tasks, seeds, notebooks: Sequence[str] | None = None) -> dict[str, list]:
    """`study(...)` of study/experiments.py; if names are given, of those notebooks only. ValueError for an unknown
    task."""
    for task in tasks or ():
        check_task(task)
    plan = study(scale, tasks, seeds)
    return plan if notebooks is None else {name: runs for name, runs in plan.items() if name in notebooks}
