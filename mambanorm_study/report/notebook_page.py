"""One executed notebook as a page that stands alone: no script, no network, light and dark, wide
and narrow.

A widget is shown as the picture that goes with it (`mambanorm_study/widgets/`). `link_pages` of
study.py fills <nav>.
"""

import re
from copy import deepcopy

import nbformat
from jinja2 import pass_context
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments.formatters import HtmlFormatter
from traitlets.config import Config

from mambanorm_study.report.page import figures, mathml, navigation, page, template, to_pages

SHOWN = [
    "text/html",
    "text/markdown",
    "image/svg+xml",
    "image/png",
    "image/jpeg",
    "text/latex",
    "text/plain",
]
"""The formats of an output, of which the first that it has is shown. None of them needs a
script."""


class Renderer(IPythonRenderer):
    """nbconvert's Markdown, its formulas drawn at once instead of by MathJax."""

    def inline_math(self, body: str) -> str:
        return mathml(body)

    def block_math(self, body: str) -> str:
        return mathml(body, display="block")

    def latex_environment(self, name: str, body: str) -> str:
        return mathml(rf"\begin{{{name}}}{body}\end{{{name}}}", display="block")


FOLDED = """{%- extends "basic/index.html.j2" -%}
{% block codecell %}{% if "solution" in cell.metadata.get("tags", []) -%}
<details class="solution"><summary>Show the solution: code and result</summary>{{ super() }}</details>
{%- else %}{{ super() }}{% endif %}{% endblock %}"""
"""nbconvert's plain template, with the cells tagged `solution` folded."""


class Cells(HTMLExporter):
    """The cells of a notebook as HTML, without a page around them; a solution opens when it is
    clicked."""

    def __init__(self):
        shown = Config(NbConvertBase=dict(display_data_priority=SHOWN))
        super().__init__(
            config=shown, template_name="basic", exclude_anchor_links=True, raw_template=FOLDED
        )

    @pass_context
    def markdown2html(self, context, source: str) -> str:
        return rendered(
            source, escape=False, attachments=context.get("cell", {}).get("attachments", {})
        )


def rendered(text: str, **options) -> str:
    """Markdown → HTML; a heading has an id, and a link to itself."""
    return MarkdownWithMath(renderer=Renderer(**options)).render(text)


def to_html(nb: nbformat.NotebookNode, title: str) -> str:
    """The page of an executed notebook; its links to other notebooks lead to their pages."""
    nb = deepcopy(nb)
    nb.metadata.pop("widgets", None)  # the state of widgets, of use to their scripts only
    for output in (o for cell in nb.cells for o in cell.get("outputs", ())):
        data = output.get("data", {})
        if text := data.get("text/markdown") or data.get(
            "text/latex"
        ):  # an answer: what a store says is in it
            data.setdefault(
                "text/html", f'<div class="rendered_html">{rendered(text, escape=True)}</div>'
            )
    cells, _ = Cells().from_notebook_node(nb)
    light, dark = (
        HtmlFormatter(style=name).get_style_defs(".highlight")
        for name in ("default", "github-dark")
    )
    colours = f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}"
    links = navigation()
    body = f"{links}\n{sections(cells)}\n{figures(cells)}\n{links}"
    return to_pages(page(title, body, colours, template("notebook.css")))


def sections(cells: str) -> str:
    """The contents of a page, folded: a link to each section."""
    found = re.findall(r'<h2 id="(.*?)">(.*?)<a class="anchor-link"', cells)
    lines = "\n".join(f'<li><a href="#{place}">{title}</a></li>' for place, title in found)
    return f"<details><summary>On this page</summary><ul>{lines}</ul></details>" if found else ""
