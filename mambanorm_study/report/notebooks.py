"""The study's notebooks: their files, and what the report shows of an executed one.

The report reads from a notebook:

    # Title               the first line of the first Markdown cell
    **Question.** …       a paragraph of the first Markdown cell
    tag `answer`          a code cell that displays or prints the answer in Markdown
    tag `thumbnail`       a code cell whose picture stands on the card; else the first picture
    tag `found`           a code cell whose Markdown and pictures open the report
    tag `first`           a code cell whose output stands above all cards; outputs after the first
                          one are folded under the heading of their section
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
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

NOTEBOOKS = KIT / "notebooks"
TERMINAL_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def find_notebooks(names: str | Sequence[str] | None = None) -> list[Path]:
    """Return the paths of the notebooks, in teaching order. ValueError for an unknown name.

    names: names or their beginnings, as a list or as text such as "03,05_combination"; None = all.
    """
    paths = sorted(path for path in NOTEBOOKS.glob("*.ipynb") if not path.name.startswith("."))
    if not paths:
        raise ValueError(
            f"no notebooks in {NOTEBOOKS}: a checkout of the project has them, and so has its wheel"
        )
    if names is None:
        return paths
    if isinstance(names, str):
        names = names.split(",")
    chosen = set()
    for name in check_names("notebooks", names):
        name = name.strip().removesuffix(".ipynb")
        matches = [path for path in paths if name and path.stem.startswith(name)]
        if not matches:
            raise unknown("notebook", name, [path.stem for path in paths])
        chosen.update(matches)
    return sorted(chosen)


def copy_notebooks(folder: Path, *, force: bool = False) -> list[str]:
    """Copy the notebooks into a folder, and return the names of those that were not overwritten.

    A notebook of the folder that differs is overwritten only with `force`.
    """
    skipped = []
    for path in find_notebooks():
        copy, content = folder / path.name, path.read_bytes()
        if force or not copy.exists():
            write_bytes(copy, content)
        elif copy.read_bytes() != content:
            skipped.append(path.name)
    return skipped


@dataclass(frozen=True)
class NotebookOutcome:
    """One executed notebook: its errors, and what its card shows."""

    name: str
    wall_s: float = 0.0
    notebook: Path | None = None  # the executed notebook, up to an error
    html: Path | None = None  # its page
    title: str = ""
    question: str = ""  # Markdown
    answer: str = ""  # Markdown
    thumbnail: str = ""  # HTML of a picture
    found: str = ""  # HTML that opens the report
    first: tuple[tuple[str, str], ...] = ()  # (heading, HTML) that stand above the cards
    error: str = ""  # the cell that failed, and its error
    failed_runs: int = 0  # runs of this notebook that could not be trained
    earlier: str = ""  # the date, if an earlier study executed it

    @property
    def problem(self) -> str:
        """What went wrong, in one line; "" if nothing did."""
        if self.error:
            return self.error.splitlines()[0]
        return f"{self.failed_runs} of its runs could not be trained" if self.failed_runs else ""

    @property
    def ok(self) -> bool:
        """True if no cell failed and all its runs could be trained."""
        return not self.problem

    def __str__(self) -> str:
        line = f"{'ok    ' if self.ok else 'FAILED'}  {self.name}  {spell(self.wall_s)}"
        return f"{line}  {self.problem}".rstrip()


def read_outcome(path: Path) -> NotebookOutcome:
    """Return the outcome of an executed notebook."""
    import nbformat  # here, because a dry run reads no notebook

    nb = nbformat.read(path, as_version=4)
    facts = nb.metadata.get("papermill", {})
    cells = [cell for cell in nb.cells if cell.cell_type == "code" and cell.source.strip()]
    html_page = path.with_suffix(".html")
    title, question = _title_and_question(nb)
    answer = [_text(output) for output in _outputs(_tagged(cells, "answer"))]
    found = [_as_html(output) for output in _outputs(_tagged(cells, "found"))]
    pictures = [*pictures_of(_tagged(cells, "thumbnail")), *pictures_of(cells)]
    return NotebookOutcome(
        name=path.stem,
        wall_s=facts.get("duration") or 0.0,
        notebook=path,
        html=html_page if html_page.exists() else None,
        title=title or path.stem,
        question=question,
        error=_error(cells, facts.get("crash", "")),
        answer="\n\n".join(text for text in answer if text),
        found="\n".join(f"<div>{shown}</div>" for shown in found if shown),
        first=tuple(_first(nb)),
        thumbnail=pictures[0] if pictures else "",
    )


def _title_and_question(nb: NotebookNode) -> tuple[str, str]:
    """Return title and question; "" for a missing one."""
    texts = [
        cell.source
        for cell in nb.cells
        if cell.cell_type == "markdown" and "papermill-error-cell-tag" not in tags_of(cell)
    ]
    opening = texts[0] if texts else ""
    title = re.match(r"#\s+(.+)", opening)
    question = re.search(
        r"^\*\*Question\.?\*\*\.?\s*(.+?)(?:\n\s*\n|\Z)", opening, re.MULTILINE | re.DOTALL
    )
    return title[1].strip() if title else "", question[1].strip() if question else ""


def _error(cells: list[NotebookNode], crash: str) -> str:
    """Return the number of the cell that failed and its error; "" if none failed.

    A dead kernel leaves no error in a cell: `crash` then has it, and the cell is the last one that
    was started.
    """
    last_started = 0
    for number, cell in enumerate(cells, start=1):
        for output in cell.outputs:
            if output.output_type == "error":
                message = TERMINAL_COLOURS.sub("", output.evalue)[:600]
                return f"cell [{number}]: {output.ename}: {message}"
        if cell.metadata.get("papermill", {}).get("start_time"):
            last_started = number
    return f"cell [{last_started}]: {crash}" if crash and last_started else crash


def tags_of(cell: NotebookNode) -> list[str]:
    """Return the tags of a cell."""
    return cell.metadata.get("tags", [])


def _tagged(cells: list[NotebookNode], tag: str) -> list[NotebookNode]:
    return [cell for cell in cells if tag in tags_of(cell)]


def _outputs(cells: list[NotebookNode]) -> list[NotebookNode]:
    return [output for cell in cells for output in cell.get("outputs", ())]


def _text(output: NotebookNode) -> str:
    """Return the Markdown of an output, or its plain text with line breaks of Markdown."""
    data = output.get("data", {})
    if "text/markdown" in data:
        return data["text/markdown"].strip()
    printed = output.output_type == "stream" and output.name == "stdout"
    plain = output.text if printed else data.get("text/plain", "")
    return plain.strip().replace("\n", "  \n")


def _first(nb: NotebookNode) -> Iterator[tuple[str, str]]:
    """Yield the heading and the HTML of each cell with the tag `first` that shows something."""
    heading = ""
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            headings = re.findall(r"^#+\s+(.+)", cell.source, re.MULTILINE)
            heading = headings[-1] if headings else heading
        elif "first" in tags_of(cell):
            shown = "\n".join(filter(None, map(_as_html, cell.outputs)))
            if shown:
                yield heading, shown


def _as_html(output: NotebookNode) -> str:
    """Return the picture, the Markdown or the HTML of an output; "" if it has none of them."""
    data = output.get("data", {})
    if "image/png" in data:
        return _image(output)
    if "text/markdown" in data:
        return f"<div>{markdown(data['text/markdown'])}</div>"
    return data.get("text/html", "")


def _image(output: NotebookNode) -> str:
    alt = html.escape(output.get("metadata", {}).get("image/png", {}).get("alt", ""))
    data = "".join(output.data["image/png"].split())
    return f'<img alt="{alt}" src="data:image/png;base64,{data}">'


def pictures_of(cells: list[NotebookNode]) -> list[str]:
    """Return the pictures of cells as HTML."""
    return [_image(output) for output in _outputs(cells) if "image/png" in output.get("data", {})]
