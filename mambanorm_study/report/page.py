"""The frame of every page of the report, from the files in `templates/`, and its text: no script,
no network."""

import html
import re
from functools import cache
from pathlib import Path
from xml.etree.ElementTree import tostring

from mambanorm_study.figures.colours import PAGE_DARK, PAGE_LIGHT

TEMPLATES = Path(__file__).with_name("templates")
ACTIVE = {"href", "style", "class", "id"}  # attributes that a formula could bring into a page


def page(title: str, body: str, *styles: str) -> str:
    """A page. `title` is text and `body` HTML; the styles follow those that every page has."""
    return template(
        "page.html", title=title, style="\n".join([look(), *styles]), body=body
    )


def look() -> str:
    """Return the stylesheet that pages and slides share, with the colours of figures/colours.py."""
    return template("look.css", light=PAGE_LIGHT, dark=PAGE_DARK)


def template(name: str, **values: object) -> str:
    """The file with its values, which are escaped unless it says `|safe`. An error for a name
    without a value."""
    return _environment().get_template(name).render(values)


def add_templates(folder: Path) -> None:
    """Let `template` find the files of another folder, too."""
    _environment().loader.searchpath.append(str(folder))


@cache
def _environment():
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    how = dict(autoescape=True, undefined=StrictUndefined)
    how |= dict(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    return Environment(loader=FileSystemLoader(TEMPLATES), **how)


def navigation(before: tuple[str, str] | None = None, after: tuple[str, str] | None = None) -> str:
    """Links to the page before, the index and the page after, each its title and address."""
    links = []
    for kind, text, to in (("prev", "← {}", before), ("next", "{} →", after)):
        title = html.escape(text.format(to[0])) if to else ""
        links.append(
            f'<a rel="{kind}" href="{html.escape(to[1])}">{title}</a>' if to else "<span></span>"
        )
    return f'<nav class="pages">{links[0]}<a href="index.html">All notebooks</a>{links[1]}</nav>'


def figures(text: str) -> str:
    """The HTML, each figure in it as large as there is room; clicked, it is larger, in a box that
    scrolls. A hidden checkbox does it, without a script."""
    box = '<input type="checkbox" aria-label="Enlarge the figure">'
    return re.sub(
        r'<img\b[^>]*\bsrc="data:[^>]*>', rf'<label class="figure">{box}\g<0></label>', text
    )


def to_pages(text: str) -> str:
    """The HTML, with links to the notebooks' pages instead of the notebooks. A link to another file
    of the checkout becomes the file's name: a report may lie anywhere."""
    text = re.sub(
        r'<a [^>]*href="\.\./([^"#]+)[^"]*"[^>]*>(.*?)</a>',
        r"\2 (<code>\1</code>)",
        text,
        flags=re.DOTALL,
    )
    return re.sub(r'(href="[\w-]+)\.ipynb(["#])', r"\1.html\2", text)


OPENING = re.compile(r"\*\*Answer\.?\*\*(?: \(((?:[^()]|\([^()]*\))*)\))?\.?\s*")
"""How an answer begins: `**Answer** (quick scale · 3 seeds: a sketch).`"""


def key_lines(answer: str) -> list[str]:
    """An answer's first three paragraphs or bullets, without its opening and its tables. A card
    shows the first lines of each (index.css)."""
    blocks = re.split(r"  \n|\n\s*\n|\n(?=\s*(?:[-*]|\d\.) )", OPENING.sub("", answer, count=1))
    texts = (re.sub(r"^([-*]|\d\.) ", "", " ".join(block.split())) for block in blocks)
    return [text for text in texts if text and text[0] not in "|#<"][:3]


def markdown(text: str) -> str:
    """Markdown → HTML; HTML within it is shown, not obeyed."""
    import mistune

    parse = mistune.create_markdown(escape=True, plugins=["table", "math"])
    parse.renderer.register("inline_math", lambda _, tex: mathml(tex))
    parse.renderer.register("block_math", lambda _, tex: mathml(tex, display="block"))
    return to_pages(parse(text))


def mathml(tex: str, display: str = "inline") -> str:
    """TeX → MathML, which browsers draw without a script or a network. What cannot be read stays as
    it is.

    The text of a formula is escaped after the conversion, which would bring `\\text{<script>}` to
    life; \\href and \\style leave nothing.
    """
    from latex2mathml.converter import convert_to_element

    try:
        formula = convert_to_element(tex, display=display)
    except Exception:  # it has a dozen kinds of them, and none is worth a page
        return f"<code>{html.escape(tex)}</code>"
    for element in formula.iter():
        element.text = html.unescape(element.text or "")  # it writes its signs as entities
        for name in ACTIVE.intersection(element.keys()):
            del element.attrib[name]
    return tostring(formula, encoding="unicode")
