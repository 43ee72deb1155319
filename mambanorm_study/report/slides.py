"""The slides of a notebook: its question, predictions, figures, answer and exercises.

The slides are one HTML file, which loads nothing from the network: the file contains all pictures
and reveal.js (MIT, version 6.0.2, in `templates/reveal/` with its license). The notebook's text
above a figure becomes the speaker notes of the figure's slide.
"""

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat

from mambanorm_study.basics.atomic import write_text
from mambanorm_study.report.notebooks import find_notebooks, pictures_of, read_outcome, tags_of
from mambanorm_study.report.page import TEMPLATES, answer_in_short, markdown, stylesheet, template

# A Markdown cell with one of these words asks the reader for a prediction; it becomes a slide.
QUESTION = re.compile(r"\bPredict\b|\*\*Guess")

# Headings of sections with exercises, whose Markdown cells become slides.
EXERCISES = ("Exercises", "Try")
LONG_SLIDE = 700  # characters; a slide with more text has smaller type
KEYS = (
    "→ next · T text of the notebook · O overview · F full screen; "
    "to print, add ?print-pdf to the address"
)


@dataclass(frozen=True)
class Slide:
    """One slide: heading and notes are Markdown, the body is HTML."""

    heading: str
    body: str
    notes: str = ""
    kind: str = "text"  # title | text | figure | answer

    def to_html(self) -> str:
        """Return the HTML of the slide."""
        size = " long" if len(re.sub("<[^>]*>", "", self.body)) > LONG_SLIDE else ""
        level = "h1" if self.kind == "title" else "h2"
        title = re.sub("^<p>|</p>\n?$", "", markdown(self.heading))
        heading = f"<{level}>{title}</{level}>"
        notes = f'<aside class="notes">{markdown(self.notes)}</aside>' if self.notes else ""
        return f'<section class="{self.kind}{size}">{heading}{self.body}{notes}</section>'


def make_slides(
    names: str | Sequence[str] | None = None,
    out_dir: str | Path = ".",
    source: str | Path | None = None,
) -> list[Path]:
    """Write the slides of notebooks into a folder as `<name>.slides.html`, and return the paths.

    names: names of notebooks or beginnings of names; None means all notebooks. source: a folder of
    executed notebooks, such as a report; None means the notebooks of the kit. Raises ValueError for
    an unknown notebook, and for a source that has none of the notebooks.
    """
    paths = find_notebooks(names)
    if source is not None:
        paths = [Path(source) / path.name for path in paths]
        paths = [path for path in paths if path.is_file()]
    if not paths:
        raise ValueError(
            f"{source} has none of these notebooks: name a folder such as reports/evening"
        )
    written = [Path(out_dir) / f"{path.stem}.slides.html" for path in paths]
    for path, file in zip(paths, written, strict=True):
        write_text(file, deck(path))
    return written


def deck(path: Path) -> str:
    """Return the slides of an executed notebook as one HTML page."""
    slides = list(slides_of(path))
    reveal_css, reveal_js = (
        (TEMPLATES / "reveal" / name).read_text(encoding="utf-8")
        for name in ("reveal.css", "reveal.js")
    )
    return template(
        "slides.html",
        title=html.escape(slides[0].heading),
        style="\n".join([stylesheet(), reveal_css, template("slides.css")]),
        script=reveal_js,
        slides="\n".join(slide.to_html() for slide in slides),
    )


def slides_of(path: Path) -> Iterator[Slide]:
    """Yield the slides of an executed notebook in the order of its cells: the title with the
    question, each request to predict, each figure, the answer, and the exercises.
    """
    outcome, nb = read_outcome(path), nbformat.read(path, as_version=4)
    opening = f'{markdown(_web_links_only(outcome.question))}<p class="keys">{KEYS}</p>'
    yield Slide(outcome.title, opening, _web_links_only(nb.cells[0].source), "title")
    heading, notes = outcome.title, []
    for cell in nb.cells[1:]:
        if cell.cell_type == "markdown":
            text = _web_links_only(cell.source)
            new_section = re.match(r"##+ (.+)", text)
            if new_section:
                heading, notes = new_section[1], []
                text = text[new_section.end() :].strip()
            if QUESTION.search(cell.source) or heading in EXERCISES:
                yield Slide(heading, markdown(text))
            notes.append(text)
            continue
        for picture in pictures_of(cell.outputs):
            yield Slide(heading, picture, "\n\n".join(notes), "figure")
            notes = []
        if "answer" in tags_of(cell) and outcome.answer:
            answer = _web_links_only(outcome.answer)
            yield Slide("Answer", answer_in_short(answer), answer, "answer")


def _web_links_only(text: str) -> str:
    """Return the text without links to files, because the files are not beside the slides."""
    return re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]*\)", r"\1", text)
