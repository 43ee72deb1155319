"""Functions for all pages of the report: page frame, Markdown to HTML, formulas to MathML.

A page has no script and loads nothing from the network. The page frame is `templates/page.html`.
"""

import html
import re
from functools import cache
from pathlib import Path
from xml.etree.ElementTree import tostring

from mambanorm_study.figures.colours import PAGE_DARK, PAGE_LIGHT

TEMPLATES = Path(__file__).with_name("templates")
# attributes that are removed from formulas
UNSAFE_ATTRIBUTES = {"href", "style", "class", "id"}


def page(title: str, body: str, *styles: str) -> str:
    """Return a page of HTML. title: text; body: HTML; styles: CSS of this page only."""
    return template("page.html", title=title, style="\n".join([stylesheet(), *styles]), body=body)


def stylesheet() -> str:
    """Return the CSS that pages and slides share, in the colours of figures/colours.py."""
    return template("look.css", light=PAGE_LIGHT, dark=PAGE_DARK)


def template(name: str, **values: object) -> str:
    """Return the text of a file in `templates/` with the values filled in.

    Values are escaped unless the file says `|safe`. Raises jinja2.UndefinedError for a missing
    value.
    """
    return _environment().get_template(name).render(values)


def add_templates(folder: Path) -> None:
    """Let `template` also find the files of another folder."""
    _environment().loader.searchpath.append(str(folder))


@cache
def _environment():
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def enlarge_on_click(text: str) -> str:
    """Return the HTML `text` with each figure in the label of a hidden checkbox, so that a click
    enlarges the figure without a script.
    """
    box = '<input type="checkbox" aria-label="Enlarge the figure">'
    return re.sub(
        r'<img\b[^>]*\bsrc="data:[^>]*>', rf'<label class="figure">{box}\g<0></label>', text
    )


def link_pages(text: str) -> str:
    """Return the HTML `text` with links to notebooks replaced by links to the notebooks' pages.

    A link to another file of the checkout is replaced by the file's name, because the report may be
    in any folder.
    """
    text = re.sub(
        r'<a [^>]*href="\.\./([^"#]+)[^"]*"[^>]*>(.*?)</a>',
        r"\2 (<code>\1</code>)",
        text,
        flags=re.DOTALL,
    )
    return re.sub(r'(href="[\w-]+)\.ipynb(["#])', r"\1.html\2", text)


# The opening of an answer: `**Answer** (quick scale · 3 seeds: a sketch).`
OPENING = re.compile(r"\*\*Answer\.?\*\*(?: \(((?:[^()]|\([^()]*\))*)\))?\.?\s*")


def key_lines(answer: str) -> list[str]:
    """Return the first three paragraphs or bullets of an answer, without OPENING and tables.

    index.css shows only the first lines of each paragraph or bullet.
    """
    blocks = re.split(r"  \n|\n\s*\n|\n(?=\s*(?:[-*]|\d\.) )", OPENING.sub("", answer, count=1))
    texts = (re.sub(r"^([-*]|\d\.) ", "", " ".join(block.split())) for block in blocks)
    return [text for text in texts if text and text[0] not in "|#<"][:3]


def answer_in_short(answer: str) -> str:
    """Return as HTML the key lines of an answer, then the scale and seeds named in its opening."""
    opening = OPENING.match(answer)
    lines = markdown("\n".join(f"- {line}" for line in key_lines(answer)))
    basis = f'<p class="basis">{html.escape(opening[1])}</p>' if opening and opening[1] else ""
    return lines + basis


def markdown(text: str) -> str:
    """Return Markdown as HTML; HTML in the Markdown is escaped."""
    import mistune

    parse = mistune.create_markdown(escape=True, plugins=["table", "math"])
    parse.renderer.register("inline_math", lambda _, tex: mathml(tex))
    parse.renderer.register("block_math", lambda _, tex: mathml(tex, display="block"))
    return link_pages(parse(text))


def mathml(tex: str, display: str = "inline") -> str:
    """Return a formula in TeX as MathML, which browsers draw without a script.

    A formula that cannot be converted is returned as code. The text of a formula is escaped after
    the conversion, so that `\\text{<script>}` adds no script. The attributes of \\href and \\style
    are removed.
    """
    from latex2mathml.converter import convert_to_element

    try:
        formula = convert_to_element(tex, display=display)
    except (
        Exception
    ):  # latex2mathml raises many types of errors, and one formula must not stop the report
        return f"<code>{html.escape(tex)}</code>"
    for element in formula.iter():
        element.text = html.unescape(element.text or "")  # latex2mathml writes < as &lt;
        for name in UNSAFE_ATTRIBUTES.intersection(element.keys()):
            del element.attrib[name]
    return tostring(formula, encoding="unicode")
