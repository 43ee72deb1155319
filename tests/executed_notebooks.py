"""Check that committed notebooks are executed: `python tests/executed_notebooks.py FILE…`.

Each code cell has run, no output is an error, and no cell holds the times of its execution, which
would change with every run.
"""

import json
import sys
from pathlib import Path


def problems(path: Path) -> list[str]:
    """Return what is wrong with a notebook, one line each."""
    lines = []
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] != "code" or not "".join(cell["source"]).strip():
            continue
        if cell["execution_count"] is None:
            lines.append(f"{path}: cell {number} was not executed: make notebooks")
        if any(output["output_type"] == "error" for output in cell["outputs"]):
            lines.append(f"{path}: cell {number} ends in an error")
        if "execution" in cell["metadata"]:
            lines.append(f"{path}: cell {number} holds its execution times")
    return lines


if __name__ == "__main__":
    found = [line for name in sys.argv[1:] for line in problems(Path(name))]
    print("\n".join(found))
    sys.exit(bool(found))
