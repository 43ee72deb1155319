"""A slide deck of each notebook: its question, its predictions, its figures, its answer, its
exercises.

A deck is one HTML file that opens offline: reveal.js (MIT, version 6.0.2, in `templates/reveal/`
with its licence) stands in it, as do the pictures. The notebook's own words on a figure are the
notes of its slide.
"""

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat

from mambanorm_study.basics.atomic import write_text
from mambanorm_study.report.notebooks import find_notebooks, pictures_of, read_outcome, tags_of
from mambanorm_study.report.page import OPENING, TEMPLATES, key_lines, look, markdown, template

QUESTION = re.compile(r"\bPredict\b|\*\*Guess")
"""A Markdown cell with one of these asks the reader something: it becomes a slide."""
LAST = ("Exercises", "Try")
"""Headings of the tasks at the end."""
LONG = 700  # characters of a slide's text, from which on it is set smaller
KEYS = "→ next · T the notebook's words · O overview · F full screen; to print, add ?print-pdf to the address"
ONE_LOOK = 900  # characters of an answer, above which only its key lines are shown


@dataclass(frozen=True)
class Slide:
    """One slide: heading and notes are Markdown, the body is HTML."""

    heading: str
    body: str
    notes: str = ""
    kind: str = "text"  # title | text | figure | answer

    def section(self) -> str:
        size = " long" if len(re.sub("<[^>]*>", "", self.body)) > LONG else ""
        level = "h1" if self.kind == "title" else "h2"
        words = re.sub("^<p>|</p>\n?$", "", markdown(self.heading))
        notes = f'<aside class="notes">{markdown(self.notes)}</aside>' if self.notes else ""
        return f'<section class="{self.kind}{size}"><{level}>{words}</{level}>{self.body}{notes}</section>'


def make_slides(
    wanted: str | Sequence[str] | None = None,
    out_dir: str | Path = ".",
    source: str | Path | None = None,
) -> list[Path]:
    """Writes a deck of each notebook (all, or those named or begun) into the folder, as
    `<name>.slides.html`.

    source: a folder of executed notebooks such as a report's; None: those of the kit. ValueError
    for an unknown notebook, and for a folder that has none of those asked for.
    """
    paths = find_notebooks(wanted)
    if source is not None:
        paths = [here for path in paths if (here := Path(source) / path.name).is_file()]
    if not paths:
        raise ValueError(
            f"{source} has none of these notebooks: name a folder such as reports/evening"
        )
    written = []
    for path in paths:
        written.append(Path(out_dir) / f"{path.stem}.slides.html")
        written[-1].parent.mkdir(parents=True, exist_ok=True)
        write_text(written[-1], deck(path))
    return written


def deck(path: Path) -> str:
    """The deck of an executed notebook as one HTML page without a network."""
    slides = list(slides_of(path))
    library = {
        name: (TEMPLATES / "reveal" / name).read_text(encoding="utf-8")
        for name in ("reveal.css", "reveal.js")
    }
    style = f"{look()}\n{library['reveal.css']}\n{template('slides.css')}"
    return template(
        "slides.html",
        title=html.escape(slides[0].heading),
        style=style,
        script=library["reveal.js"],
        slides="\n".join(slide.section() for slide in slides),
    )


def slides_of(path: Path) -> Iterator[Slide]:
    """The slides of an executed notebook: title with question, then in its order each question to
    the reader and each figure, the answer and the exercises."""
    outcome, nb = read_outcome(path), nbformat.read(path, as_version=4)
    opening = f'{_html(outcome.question)}<p class="keys">{KEYS}</p>'
    yield Slide(outcome.title, opening, _plain(nb.cells[0].source), "title")
    heading, notes = outcome.title, []
    for cell in nb.cells[1:]:
        if cell.cell_type == "markdown":
            found = re.match(r"##+ (.+)", cell.source)
            heading, text = (
                (found[1], cell.source[found.end() :].strip()) if found else (heading, cell.source)
            )
            if QUESTION.search(cell.source) or heading in LAST:
                yield Slide(heading, _html(text))
            notes = [*([] if found else notes), text]
        for picture in pictures_of([cell]):
            yield Slide(heading, picture, _plain("\n\n".join(notes)), "figure")
            notes = []
        if "answer" in tags_of(cell) and outcome.answer:
            yield Slide("Answer", _html(_short(outcome.answer)), _plain(outcome.answer), "answer")


def _short(answer: str) -> str:
    """The answer, or its key lines where it is long; scale and seeds stay in front of it."""
    basis, text = OPENING.match(answer), OPENING.sub("", answer, count=1)
    if len(text) > ONE_LOOK:
        text = "\n".join(f"- {line}" for line in key_lines(answer))
    return f"*{basis[1]}*\n\n{text}" if basis and basis[1] else text


def _html(text: str) -> str:
    return markdown(_plain(text))


def _plain(text: str) -> str:
    """The text with links to the web only: what stands beside the notebook does not stand beside
    its slides."""
    return re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]*\)", r"\1", text)
