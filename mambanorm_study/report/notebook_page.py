"""The HTML page of one executed notebook, in light and dark colours, for wide and narrow screens.

The page has no script and loads nothing from the network. A widget is shown as a picture
(`mambanorm_study/widgets/`).
"""

import re
from functools import partial

import nbformat
from jinja2 import pass_context
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments.formatters import HtmlFormatter
from traitlets.config import Config

from mambanorm_study.report.notebooks import NotebookOutcome
from mambanorm_study.report.page import enlarge_on_click, link_pages, mathml, page, template

# Formats of a cell's output in the order of preference; none of these formats needs a script.
OUTPUT_FORMATS = [
    "text/html",
    "text/markdown",
    "image/svg+xml",
    "image/png",
    "image/jpeg",
    "text/latex",
    "text/plain",
]


class Renderer(IPythonRenderer):
    """nbconvert's Markdown renderer, but with MathML, because MathJax needs a script."""

    def inline_math(self, body: str) -> str:
        return mathml(body)

    def block_math(self, body: str) -> str:
        return mathml(body, display="block")

    def latex_environment(self, name: str, body: str) -> str:
        return mathml(rf"\begin{{{name}}}{body}\end{{{name}}}", display="block")


# nbconvert's plain template with three changes: cells with the tag `solution` are folded, the code
# of other cells that JupyterLab hides is left out (it makes a sentence from the runs), and HTML in
# the Markdown of an output is escaped, because answers contain text from the run store.
CELL_TEMPLATE = """{%- extends "basic/index.html.j2" -%}
{% block codecell %}{% if "solution" in cell.metadata.get("tags", []) -%}
<details class="solution"><summary>Show the solution: code and result</summary>
{{- super() -}}
</details>
{%- else %}{{ super() }}{% endif %}{% endblock %}
{% block input_group %}{% set tags = cell.metadata.get("tags", []) -%}
{% if "solution" in tags or not cell.metadata.get("jupyter", {}).get("source_hidden") -%}
{{ super() }}
{%- endif %}{% endblock %}
{% block data_markdown scoped %}<div class="output_subarea rendered_html">
{{- output.data["text/markdown"] | escaped_markdown -}}
</div>{% endblock %}
{% block data_latex scoped %}<div class="output_subarea rendered_html">
{{- output.data["text/latex"] | escaped_markdown -}}
</div>{% endblock %}"""


class CellExporter(HTMLExporter):
    """An exporter that returns the cells of a notebook as HTML, without the rest of a page."""

    def __init__(self):
        super().__init__(
            config=Config(NbConvertBase=dict(display_data_priority=OUTPUT_FORMATS)),
            template_name="basic",
            exclude_anchor_links=True,
            raw_template=CELL_TEMPLATE,
        )
        self.register_filter("escaped_markdown", partial(render_markdown, escape=True))

    @pass_context
    def markdown2html(self, context, source: str) -> str:
        attachments = context.get("cell", {}).get("attachments", {})
        return render_markdown(source, escape=False, attachments=attachments)


def render_markdown(text: str, **options) -> str:
    """Return Markdown as HTML; each heading has an id and a link to itself."""
    return MarkdownWithMath(renderer=Renderer(**options)).render(text)


def to_html(
    outcome: NotebookOutcome,
    before: NotebookOutcome | None = None,
    after: NotebookOutcome | None = None,
) -> str:
    """Return the page of an executed notebook, with links to the page before and the page after.

    Links to other notebooks are replaced by links to the pages of these notebooks.
    """
    nb = nbformat.read(outcome.notebook, as_version=4)
    nb.metadata.pop("widgets", None)  # the state of the widgets, which only a widget's script reads
    cells, _ = CellExporter().from_notebook_node(nb)
    light = HtmlFormatter(style="default").get_style_defs(".highlight")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".highlight")
    colours = f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}"
    links = template("navigation.html", before=before, after=after)
    body = f"{links}\n{section_links(cells)}\n{enlarge_on_click(cells)}\n{links}"
    return link_pages(page(outcome.title, body, colours, template("notebook.css")))


def section_links(cells: str) -> str:
    """Return a folded list of links to the sections of a page; "" for a page without sections.

    cells: the notebook's cells as HTML.
    """
    headings = re.findall(r'<h2 id="(.*?)">(.*?)<a class="anchor-link"', cells)
    links = "\n".join(f'<li><a href="#{name}">{title}</a></li>' for name, title in headings)
    return f"<details><summary>On this page</summary><ul>{links}</ul></details>" if links else ""
