"""The study's notebooks: their files, the runs that each needs, and what an executed one shows of
itself.

A notebook provides for its card: `# Title` on the first line of its first Markdown cell and a
paragraph that starts with `**Question.**`; a code cell tagged `answer` that displays or prints the
answer in Markdown; a code cell tagged `thumbnail` (else the first picture counts). Code cells
tagged `found` open the report, with their Markdown and their pictures; those tagged `first` stand
above all cards, the first of them open, the others folded under the heading of their section.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from mambanorm.errors import unknown
from mambanorm_study.basics.atomic import write_bytes
from mambanorm_study.basics.settings import KIT
from mambanorm_study.basics.text import spell
from mambanorm_study.report.page import markdown
from mambanorm_study.runs.grid import check_names, check_task
from mambanorm_study.tables.notebook_runs import notebook_runs

if TYPE_CHECKING:
    import nbformat

NOTEBOOKS = KIT / "notebooks"


def find_notebooks(wanted: str | Sequence[str] | None = None) -> list[Path]:
    """The notebooks in teaching order: all, or those named or begun (`"03,05_combination"` or a
    list). ValueError for an unknown one."""
    found = sorted(path for path in NOTEBOOKS.glob("*.ipynb") if not path.name.startswith("."))
    if not found:
        raise ValueError(
            f"no notebooks in {NOTEBOOKS}: a checkout of the project has them, and so has its wheel"
        )
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
    """Copies the notebooks into a folder; those in it that differ stay unless forced, and their
    names are returned."""
    kept = []
    for path in find_notebooks():
        copy, content = folder / path.name, path.read_bytes()
        if force or not copy.exists():
            write_bytes(copy, content)
        elif copy.read_bytes() != content:
            kept.append(path.name)
    return kept


def study_runs(scale, tasks, seeds, notebooks: Sequence[str] | None = None) -> dict[str, list]:
    """`notebook_runs(...)`; if names are given, of those notebooks only. ValueError for an unknown
    task."""
    for task in tasks or ():
        check_task(task)
    plan = notebook_runs(scale, tasks, seeds)
    return {name: plan[name] for name in plan if notebooks is None or name in notebooks}


@dataclass(frozen=True)
class NotebookOutcome:
    """One executed notebook: how it went and what its card shows. `question` and `answer` are
    Markdown."""

    name: str
    status: str = "failed"  # ok | failed
    wall_s: float = 0.0
    notebook: Path | None = None  # executed, as far as it came
    html: Path | None = None
    title: str = ""
    question: str = ""
    answer: str = ""
    thumbnail: str = ""  # HTML of a picture
    found: str = ""  # HTML that opens the index
    first: tuple[
        tuple[str, str], ...
    ] = ()  # (heading of its section, HTML) that the index shows above the cards
    error: str = ""  # which cell failed, and with what
    failed_runs: int = 0  # runs of this notebook that could not be trained
    earlier: str = ""  # when, if it was not executed this time

    @property
    def number(self) -> str:
        """`03` of 03_type; "·" where a name has none."""
        return (re.findall(r"^\d+", self.name) or ["·"])[0]

    @property
    def ok(self) -> bool:
        return self.status == "ok" and not self.failed_runs

    def __str__(self) -> str:
        text = f"{'ok    ' if self.ok else 'FAILED'}  {self.name}  {spell(self.wall_s)}"
        return text if self.ok else f"{text}  {self.problem}"

    @property
    def problem(self) -> str:
        """What went wrong, in one line; "" if nothing did."""
        if self.status != "ok":
            return (self.error.splitlines() or ["unknown error"])[0]
        return f"{self.failed_runs} of its runs could not be trained" if self.failed_runs else ""


def read_outcome(path: Path) -> NotebookOutcome:
    """The outcome that an executed notebook holds."""
    import nbformat  # a dry run does not read any

    nb = nbformat.read(path, as_version=4)
    run = nb.metadata.get("papermill", {})
    cells = [cell for cell in nb.cells if cell.cell_type == "code" and cell.source.strip()]
    page = path.with_suffix(".html")
    return NotebookOutcome(
        name=path.stem,
        wall_s=run.get("duration") or 0.0,
        notebook=path,
        html=page if page.exists() else None,
        **_heading(nb, path.stem),
        **_failure(cells, run.get("crash", "")),
        answer="\n\n".join(filter(None, map(_text, _outputs(_tagged(cells, "answer"))))),
        found="\n".join(
            f"<div>{shown}</div>"
            for shown in map(_as_html, _outputs(_tagged(cells, "found")))
            if shown
        ),
        first=tuple(_with_headings(nb, "first")),
        thumbnail=next(chain(pictures_of(_tagged(cells, "thumbnail")), pictures_of(cells)), ""),
    )


def _heading(nb: nbformat.NotebookNode, name: str) -> dict[str, str]:
    own = (
        c
        for c in nb.cells
        if c.cell_type == "markdown" and "papermill-error-cell-tag" not in tags_of(c)
    )
    opening = next((cell.source for cell in own), "")
    title = re.match(r"#\s+(.+)", opening)
    question = re.search(
        r"^\*\*Question\.?\*\*\.?\s*(.+?)(?:\n\s*\n|\Z)", opening, re.MULTILINE | re.DOTALL
    )
    return {
        "title": title[1].strip() if title else name,
        "question": question[1].strip() if question else "",
    }


def _failure(cells: list, crash: str) -> dict:
    """Status, and for a failure the number of its cell and its error. A dead kernel leaves no error
    in a cell: the last one that was started is then named."""
    for i, cell in enumerate(cells, 1):
        for output in cell.outputs:
            if output.output_type == "error":
                return {
                    "error": f"cell [{i}]: {output.ename}: {_PLAIN.sub('', output.evalue)[:600]}"
                }
    started = [
        i for i, cell in enumerate(cells, 1) if cell.metadata.get("papermill", {}).get("start_time")
    ]
    where = f"cell [{started[-1]}]: " if started else ""
    return {"error": where + crash} if crash else {"status": "ok"}


_PLAIN = re.compile(r"\x1b\[[0-9;]*m")  # colours of a terminal


def tags_of(cell: nbformat.NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def _tagged(cells: list, tag: str) -> list:
    return [cell for cell in cells if tag in tags_of(cell)]


def _outputs(cells: list) -> list:
    return [output for cell in cells for output in cell.get("outputs", ())]


def _text(output: nbformat.NotebookNode) -> str:
    """The Markdown of an output; lines of plain text stay lines."""
    data = output.get("data", {})
    if "text/markdown" in data:
        return data["text/markdown"].strip()
    plain = (
        output.text
        if output.output_type == "stream" and output.name == "stdout"
        else data.get("text/plain", "")
    )
    return plain.strip().replace("\n", "  \n")


def _with_headings(nb: nbformat.NotebookNode, tag: str) -> Iterator[tuple[str, str]]:
    """(The heading above it, HTML) of each cell with this tag that shows something."""
    heading = ""
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            heading = (re.findall(r"^#+\s+(.+)", cell.source, re.MULTILINE) or [heading])[-1]
        elif tag in tags_of(cell) and (
            shown := "\n".join(filter(None, map(_as_html, cell.outputs)))
        ):
            yield heading, shown


def _as_html(output: nbformat.NotebookNode) -> str:
    """A picture, the Markdown or the HTML of an output; "" if it has none of them."""
    data = output.get("data", {})
    if "image/png" in data:
        return _image(output)
    if "text/markdown" in data:
        return f"<div>{markdown(data['text/markdown'])}</div>"
    return data.get("text/html", "")


def _image(output: nbformat.NotebookNode) -> str:
    words = html.escape(output.get("metadata", {}).get("image/png", {}).get("alt", ""))
    return f'<img alt="{words}" src="data:image/png;base64,{"".join(output.data["image/png"].split())}">'


def pictures_of(cells: list) -> Iterator[str]:
    """The pictures of cells as HTML."""
    return (_image(output) for output in _outputs(cells) if "image/png" in output.get("data", {}))
