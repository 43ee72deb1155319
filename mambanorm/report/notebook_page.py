"""One executed notebook as a page that stands alone: no script, no network, light and dark, wide and narrow.

nbconvert makes the cells, this module the page around them. Formulas become MathML, which browsers draw themselves; of
a widget the picture that goes with it is shown (`mambanorm/widgets.py`). `page.write_index` fills the <nav> elements.
"""

from __future__ import annotations

import html
from copy import deepcopy
from string import Template

import nbformat
from jinja2 import pass_context
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments.formatters import HtmlFormatter
from traitlets.config import Config

from mambanorm.report.index import LOOK, mathml, navigation

SHOWN = ["text/html", "text/markdown", "image/svg+xml", "image/png", "image/jpeg", "text/latex", "text/plain"]
"""What of an output is shown, the first that it has: nothing that needs a script."""


class Renderer(IPythonRenderer):
    """nbconvert's Markdown, its formulas drawn at once instead of by MathJax."""

    def inline_math(self, body: str) -> str:
        return mathml(body)

    def block_math(self, body: str) -> str:
        return mathml(body, display="block")

    def latex_environment(self, name: str, body: str) -> str:
        return mathml(rf"\begin{{{name}}}{body}\end{{{name}}}", display="block")


class Cells(HTMLExporter):
    """The cells of a notebook as HTML, without a page around them."""

    def __init__(self):
        shown = Config(NbConvertBase=dict(display_data_priority=SHOWN))
        super().__init__(config=shown, template_name="basic", exclude_anchor_links=True)

    @pass_context
    def markdown2html(self, context, source: str) -> str:
        attachments = context.get("cell", {}).get("attachments", {})
        renderer = Renderer(escape=False, exclude_anchor_links=True, attachments=attachments)
        return MarkdownWithMath(renderer=renderer).render(source)


def notebook_page(nb: nbformat.NotebookNode, title: str) -> str:
    """The page of an executed notebook."""
    nb = deepcopy(nb)
    nb.metadata.pop("widgets", None)  # the state of widgets, of use to their scripts only
    for output in (o for cell in nb.cells for o in cell.get("outputs", ())):
        if "text/latex" in output.get("data", {}):
            output.data.setdefault("text/markdown", output.data["text/latex"])
    cells, _ = Cells().from_notebook_node(nb)
    light, dark = (HtmlFormatter(style=name).get_style_defs(".highlight") for name in ("default", "github-dark"))
    return PAGE.substitute(
        title=html.escape(title), look=LOOK, light=light, dark=dark, navigation=navigation(), cells=cells
    )


PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<style>
$light
@media (prefers-color-scheme: dark) {
$dark
}
$look
main { max-width: 1080px; padding-top: 24px; }
nav.pages {
  display: flex; flex-wrap: wrap; gap: 6px 24px; padding: 10px 0; font-size: 14.5px;
  border: solid var(--line); border-width: 1px 0;
}
nav.pages > :is(:first-child, :last-child) { flex: 1 1 110px; }
nav.pages > :last-child { text-align: right; }
h1 { margin: 28px 0 14px; font: 600 clamp(28px, 5vw, 40px)/1.15 var(--serif); }
h2 { margin: 40px 0 8px; font: 600 24px/1.25 var(--serif); }
h3 { margin: 28px 0 6px; font: 600 19px/1.3 var(--serif); }
.text_cell_render { max-width: 820px; overflow-x: auto; overflow-wrap: break-word; }
.cell { margin: 14px 0; }
.prompt { color: var(--soft); font: 12px var(--mono); }
.prompt:empty { display: none; }
.highlight { margin: 2px 0 6px; background: var(--wash); border-radius: 8px; }
.highlight pre { margin: 0; padding: 10px 14px; overflow-x: auto; white-space: pre; line-height: 1.45; }
.output_subarea { overflow-x: auto; margin: 4px 0; }
.output_subarea > pre { padding: 0 14px; }
.output_stderr { color: var(--soft); }
.output_error { color: var(--bad); background: var(--bad-wash); border-radius: 8px; padding: 4px 0; }
.output_png img, .output_jpeg img, .output_svg img { background: #fff; border-radius: 6px; }
img { max-width: 100%; height: auto; }
th, td { vertical-align: top; }
table { border: 0; }
:is(th, td) { border: 0; border-bottom: 1px solid var(--line); }
.dataframe :is(th, td) { padding-left: 6px; text-align: right; white-space: nowrap; }
math { font-size: 1.08em; }
math[display="block"] { margin: 12px 0; overflow-x: auto; overflow-y: hidden; }
.ansi-red-fg { color: var(--bad); } .ansi-green-fg { color: var(--good); }
.ansi-blue-fg, .ansi-cyan-fg { color: var(--accent); } .ansi-bold { font-weight: 600; }
</style>
</head>
<body>
<main>
$navigation
$cells
$navigation
</main>
</body>
</html>
""")
