"""Check that every notebook runs with a task of every kind, or refuses it by name.

    python -m benchmarks.notebook_matrix
    python -m benchmarks.notebook_matrix --notebooks 03 08 --kinds text table

Each notebook that reads `tasks` is executed at scale smoke with one task of each kind. It must run
through, or stop in the cell after its parameters with one line that names the tasks it takes.
Anything else is a fault, and the command exits with 1. Notebooks that do not read their parameter
`tasks` are listed and not executed.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import nbformat

from mambanorm_study.report.execute import run_notebook
from mambanorm_study.report.notebooks import NotebookOutcome, find_notebooks, tags_of

# kind of task → a task of that kind that needs no download
KINDS = {
    "values": "digits",
    "tokens": "listops",
    "image": "digits_images",
    "text": "pydoc",
    "table": "diabetes",
}
REFUSAL = re.compile(r"cell \[(\d+)\]: ValueError: notebook \S+ takes .+")


def code_cells(path: Path) -> list[nbformat.NotebookNode]:
    """Return the non-empty code cells of a notebook; errors are numbered in this order."""
    cells = nbformat.read(path, as_version=4).cells
    return [cell for cell in cells if cell.cell_type == "code" and cell.source.strip()]


def reads_tasks(path: Path) -> bool:
    """Return True if a notebook's code uses its parameter `tasks`."""
    cells = [cell for cell in code_cells(path) if "parameters" not in tags_of(cell)]
    return any(re.search(r"\btasks\b(?!\s*\.)", cell.source) for cell in cells)


def verdict(outcome: NotebookOutcome) -> str:
    """Return "works", "refused", or "FAULT" with the error's first line."""
    if not outcome.problem:
        return "works"
    refused = REFUSAL.fullmatch(outcome.error)
    if outcome.notebook and refused:
        cells = code_cells(outcome.notebook)
        parameters = [i for i, cell in enumerate(cells) if "injected-parameters" in tags_of(cell)]
        if int(refused[1]) == parameters[0] + 2:  # cells are numbered from 1
            return "refused"
    return f"FAULT {outcome.problem}"


def run_matrix(paths: Sequence[Path], kinds: Sequence[str], folder: Path) -> list[str]:
    """Execute the notebooks with each kind of task, print a line for each, and return the
    faults.
    """
    faults = []
    for path in paths:
        if not reads_tasks(path):
            print(f"{path.stem:<18}does not read `tasks`")
            continue
        for kind in kinds:
            start = time.monotonic()
            parameters = dict(scale="smoke", seeds=1, tasks=[KINDS[kind]])
            parameters["runs_dir"] = str(folder / "runs")
            outcome = verdict(run_notebook(path, folder / kind, parameters))
            print(
                f"{path.stem:<18}{kind:<8}{time.monotonic() - start:5.0f} s  {outcome}", flush=True
            )
            if outcome.startswith("FAULT"):
                faults.append(f"{path.stem}, {kind}")
    return faults


def main() -> int:
    """Run the matrix and return 1 if a notebook neither works nor refuses."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--notebooks", nargs="+", help="some of them: 03 08")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="some kinds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mambanorm-matrix-") as folder:
        faults = run_matrix(find_notebooks(options.notebooks), options.kinds, Path(folder))
    print(f"{len(faults)} faults" + "".join(f"\n  {fault}" for fault in faults))
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
