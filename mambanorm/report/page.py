"""The frame of every page of the report, from the files in `templates/`: no script, no network, light and dark.

page        title, styles and body → a whole page
template    a file of `templates/` with its $names filled in
navigation  links to the page before, the index and the page after
figures     HTML, its figures enlarged by a click
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from string import Template

from mambanorm.report.outcome import NotebookOutcome

TEMPLATES = Path(__file__).with_name("templates")


def page(title: str, body: str, *styles: str) -> str:
    """A page. `title` is text and `body` HTML; the styles follow those that every page has."""
    style = "\n".join([template("look.css"), *styles])
    return template("page.html", title=html.escape(title), style=style, body=body)


def template(name: str, **values: str) -> str:
    """The file with its values. KeyError for a $name without one."""
    return Template((TEMPLATES / name).read_text(encoding="utf-8")).substitute(values)


def navigation(before: NotebookOutcome | None = None, after: NotebookOutcome | None = None) -> str:
    """Links to the page before, the index and the page after; where there is none its place stays empty."""
    links = []
    for kind, text, to in (("prev", "← {}", before), ("next", "{} →", after)):
        title = html.escape(text.format(to.title)) if to else ""
        links.append(f'<a rel="{kind}" href="{attribute(to.html.name)}">{title}</a>' if to else "<span></span>")
    return f'<nav class="pages">{links[0]}<a href="index.html">All notebooks</a>{links[1]}</nav>'


def figures(text: str) -> str:
    """The HTML, each figure in it as large as there is room; clicked, it is larger, in a box that scrolls.
    A hidden checkbox does it, without a script."""
    box = '<input type="checkbox" aria-label="Enlarge the figure">'
    return re.sub(r'<img\b[^>]*\bsrc="data:[^>]*>', rf'<label class="figure">{box}\g<0></label>', text)


def attribute(text: str) -> str:
    """Text that may stand between the quotes of an HTML attribute."""
    return html.escape(text, quote=True)
