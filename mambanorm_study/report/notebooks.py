"""The study's notebooks: their files, and what the report shows of an executed notebook.

The report reads from a notebook:

    # Title               the first line of the first Markdown cell
    **Question.** …       a paragraph of the first Markdown cell
    tag `answer`          a code cell that displays the answer in Markdown
    tag `thumbnail`       a code cell whose picture is shown on the notebook's card (below)
    tag `found`           a code cell whose Markdown and pictures are at the top of the first page
    tag `first`           a code cell whose output is above the cards of all notebooks

The first page of the report has a card for each notebook: its picture, question and answer.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mambanorm.errors import unknown
from mambanorm_study.basics.atomic import write_bytes
from mambanorm_study.basics.settings import KIT
from mambanorm_study.basics.text import spell
from mambanorm_study.report.page import markdown
from mambanorm_study.runs.grid import check_names

if TYPE_CHECKING:
    from nbformat import NotebookNode

NOTEBOOK_FOLDER = KIT / "notebooks"


def find_notebooks(names: str | Sequence[str] | None = None) -> list[Path]:
    """Return the paths of the notebooks in teaching order. Raise ValueError for an unknown name.

    names: names of notebooks or beginnings of names, such as "03"; None means all notebooks.
    """
    paths = sorted(
        path for path in NOTEBOOK_FOLDER.glob("*.ipynb") if not path.name.startswith(".")
    )
    if names is None:
        return paths
    chosen = set()
    for name in check_names("notebooks", names):
        matches = [path for path in paths if path.name.startswith(name)]
        if not matches:
            raise unknown("notebook", name, [path.stem for path in paths])
        chosen.update(matches)
    return sorted(chosen)


def copy_notebooks(folder: Path, *, force: bool = False, student: bool = False) -> list[str]:
    """Copy the notebooks into a folder; return the names of the files that were not overwritten.

    A file in the folder that differs from its notebook is overwritten only with `force`. student:
    True copies the notebooks without the solutions of the exercises.
    """
    skipped = []
    for path in find_notebooks():
        copy, content = folder / path.name, path.read_bytes()
        if student:
            content = _without_solutions(content)
        if force or not copy.exists():
            write_bytes(copy, content)
        elif copy.read_bytes() != content:
            skipped.append(path.name)
    return skipped


def _without_solutions(notebook: bytes) -> bytes:
    """Return a notebook without the cells of the solutions and the text before each of them."""
    nb = json.loads(notebook)
    is_solution = ["solution" in cell["metadata"].get("tags", ()) for cell in nb["cells"]]
    leads_to_one = [*is_solution[1:], False]
    nb["cells"] = [
        cell
        for cell, solved, leads in zip(nb["cells"], is_solution, leads_to_one, strict=True)
        if not solved and not (leads and "".join(cell["source"]).startswith("**Solution"))
    ]
    return json.dumps(nb, indent=1, ensure_ascii=False).encode()


@dataclass(frozen=True)
class NotebookOutcome:
    """Outcome of one executed notebook: its error, and what the report shows of it."""

    name: str
    wall_s: float = 0.0  # seconds of the execution
    executed: str = ""  # date and time, UTC; "" if no study has executed it
    notebook: Path | None = (
        None  # file of the executed notebook; cells after an error are not executed
    )
    title: str = ""
    question: str = ""  # Markdown
    answer: str = ""  # Markdown
    thumbnail: str = ""  # HTML of a picture
    found: str = ""  # HTML at the top of the report's first page
    first: str = ""  # HTML above the notebooks' cards on the report's first page
    error: str = ""  # the cell that failed, and the error
    failed_runs: int = 0  # number of the notebook's runs that could not be trained
    # True if a study had no time to execute the notebook: its outputs are those of an earlier study
    # or, if there is none, those with which it is published
    skipped: bool = False

    @property
    def problem(self) -> str:
        """The first line of the error, or how many runs failed; "" if nothing failed."""
        if self.error:
            return self.error.splitlines()[0]
        return f"{self.failed_runs} of its runs could not be trained" if self.failed_runs else ""

    def __str__(self) -> str:
        if self.skipped:
            return f"skipped {self.name}  no time left; the next study executes it"
        mark = "FAILED" if self.problem else "ok    "
        return f"{mark}  {self.name}  {spell(self.wall_s)}  {self.problem}".rstrip()


def read_outcome(path: Path) -> NotebookOutcome:
    """Return the outcome of an executed notebook."""
    import nbformat  # imported here, so that a dry run does not load it

    nb = nbformat.read(path, as_version=4)
    execution = nb.metadata.get("papermill", {})
    texts = [cell.source for cell in nb.cells if cell.cell_type == "markdown"]
    # the first Markdown cell may be an error message that papermill added
    opening = next((text for text in texts if text.startswith("# ")), f"# {path.stem}")
    question = re.search(r"^\*\*Question\.\*\*\s(.+?)(?:\n\n|\Z)", opening, re.M | re.DOTALL)
    answers = [
        output.get("data", {}).get("text/markdown", "") for output in _outputs_of_tag(nb, "answer")
    ]
    return NotebookOutcome(
        name=path.stem,
        wall_s=execution.get("duration") or 0.0,
        executed=(execution.get("end_time") or "")[:16].replace("T", " "),
        notebook=path,
        title=opening.partition("\n")[0].removeprefix("# "),
        question=question[1] if question else "",
        error=execution.get("error", ""),
        answer="\n\n".join(filter(None, answers)),
        found="\n".join(map(_as_html, _outputs_of_tag(nb, "found"))),
        first="\n".join(map(_as_html, _outputs_of_tag(nb, "first"))),
        thumbnail="".join(pictures_of(_outputs_of_tag(nb, "thumbnail"))[:1]),
    )


def earlier_outcome(path: Path) -> NotebookOutcome | None:
    """Return the outcome of a notebook that an earlier study may have executed; None if there is no
    such file, or if it cannot be read.
    """
    with suppress(OSError, ValueError, KeyError, AttributeError):
        return read_outcome(path)
    return None


def tags_of(cell: NotebookNode) -> list[str]:
    """Return the tags of a cell."""
    return cell.metadata.get("tags", [])


def _outputs_of_tag(nb: NotebookNode, tag: str) -> list[NotebookNode]:
    """Return the outputs of the cells with a tag."""
    return [output for cell in nb.cells if tag in tags_of(cell) for output in cell.outputs]


def _as_html(output: NotebookNode) -> str:
    """Return the picture, Markdown or HTML of an output as HTML; "" if it has none of the three."""
    data = output.get("data", {})
    if "image/png" in data:
        return f"<div>{_image_html(output)}</div>"
    if "text/markdown" in data:
        return f"<div>{markdown(data['text/markdown'])}</div>"
    return data.get("text/html", "")


def _image_html(output: NotebookNode) -> str:
    alt = html.escape(output.get("metadata", {}).get("image/png", {}).get("alt", ""))
    data = "".join(output.data["image/png"].split())
    return f'<img alt="{alt}" src="data:image/png;base64,{data}">'


def pictures_of(outputs: list[NotebookNode]) -> list[str]:
    """Return the pictures in the outputs of cells, each as HTML."""
    return [_image_html(output) for output in outputs if "image/png" in output.get("data", {})]
