"""The page of cards: what an executed notebook shows of itself, and the index that shows all of them.

    executed notebook → read_outcome → NotebookOutcome → write_index → index.html, with its thumbnails beside it

What a notebook brings along for its card: `# Title` on the first line of its first Markdown cell and a paragraph that
starts with `**Question.**`; a code cell tagged `answer` that displays or prints the answer in Markdown; a code cell
tagged `thumbnail` (else the first picture counts); a code cell tagged `first` whose HTML stands above all cards.
A card is a question, a picture and at most three lines; the answer's first sentences make them (`key_lines`).

Map
    NotebookOutcome           one executed notebook: how it went and what its card shows
    read_outcome, tags_of     executed notebook → outcome;  cell → its tags
    to_html                   notebook → a page of its own (`mambanorm/report/notebook_page.py`)
    write_index, link_pages   outcomes → the page of cards;  their pages → links from one to the next
    key_lines                 an answer → the three lines of it that a card has room for
    markdown, mathml          Markdown → HTML;  TeX → MathML
    LOOK, PAGE                colours and type of every page;  the template of the page of cards
"""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

import nbformat

from mambanorm.atomic import write_bytes, write_text
from mambanorm.training.sweep import spell

THUMBNAIL_WIDTH = 640
LONGEST_LINE = 96  # signs of a line of a card


@dataclass(frozen=True)
class NotebookOutcome:
    """One executed notebook: how it went and what its card shows. `question` and `answer` are Markdown."""

    name: str
    status: str = "failed"  # ok | failed
    wall_s: float = 0.0
    notebook: Path | None = None  # executed, as far as it came
    html: Path | None = None
    title: str = ""
    question: str = ""
    answer: str = ""
    thumbnail: bytes | None = None  # PNG
    first: str = ""  # HTML that the index shows above the cards
    failed_cell: int | None = None  # the number in its brackets: [5]
    failed_source: str = ""  # first lines
    error: str = ""  # name and message
    failed_runs: int = 0  # runs of this notebook that could not be trained
    earlier: str = ""  # when, if it was not executed this time

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
            where = f"cell [{self.failed_cell}]: " if self.failed_cell else ""
            return where + (self.error.splitlines() or ["unknown error"])[0]
        return f"{self.failed_runs} of its runs could not be trained" if self.failed_runs else ""


# ---------------------------------------------------------------------------------------------------------------------
# reading an executed notebook


def read_outcome(path: Path) -> NotebookOutcome:
    """The outcome that an executed notebook holds."""
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
        answer="\n\n".join(filter(None, map(_text, _outputs(_tagged(cells, "answer"))))),
        first="\n".join(
            o.data["text/html"] for o in _outputs(_tagged(cells, "first")) if "text/html" in o.get("data", {})
        ),
        thumbnail=_picture(_tagged(cells, "thumbnail")) or _picture(cells),
        **_failure(cells, run.get("crash", "")),
    )


def _heading(nb: nbformat.NotebookNode, name: str) -> dict[str, str]:
    own = (c for c in nb.cells if c.cell_type == "markdown" and "papermill-error-cell-tag" not in tags_of(c))
    opening = next((cell.source for cell in own), "")
    title = re.match(r"#\s+(.+)", opening)
    question = re.search(r"^\*\*Question\.?\*\*\.?\s*(.+?)(?:\n\s*\n|\Z)", opening, re.MULTILINE | re.DOTALL)
    return {"title": title[1].strip() if title else name, "question": question[1].strip() if question else ""}


def _failure(cells: list, crash: str) -> dict:
    """Status, and for a failure the number, source and error of its cell."""
    failed = [i for i, cell in enumerate(cells) if any(o.output_type == "error" for o in cell.outputs)]
    if not failed and not crash:
        return {"status": "ok"}
    # a dead kernel leaves no error in a cell: it was the last one to be started
    started = [i for i, cell in enumerate(cells) if cell.metadata.get("papermill", {}).get("start_time")]
    where = (failed[:1] or started[-1:] or [None])[0]
    if where is None:
        return {"status": "failed", "error": crash}
    found = [f"{o.ename}: {o.evalue}" for o in cells[where].outputs if o.output_type == "error"]
    error = re.sub(r"\x1b\[[0-9;]*m", "", (found or [crash])[0])[:600]
    source = "\n".join(cells[where].source.strip().splitlines()[:4])
    return {"status": "failed", "failed_cell": where + 1, "failed_source": source, "error": error}


def tags_of(cell: nbformat.NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def _tagged(cells: list, tag: str) -> list:
    return [cell for cell in cells if tag in tags_of(cell)]


def _outputs(cells: list) -> list:
    return [output for cell in cells for output in cell.outputs]


def _text(output: nbformat.NotebookNode) -> str:
    """The Markdown of an output; lines of plain text stay lines."""
    data = output.get("data", {})
    if "text/markdown" in data:
        return data["text/markdown"].strip()
    plain = output.text if output.output_type == "stream" and output.name == "stdout" else data.get("text/plain", "")
    return plain.strip().replace("\n", "  \n")


def _picture(cells: list) -> bytes | None:
    found = (output.data["image/png"] for output in _outputs(cells) if "image/png" in output.get("data", {}))
    return next((base64.b64decode(picture) for picture in found), None)


# ---------------------------------------------------------------------------------------------------------------------
# writing


def to_html(nb: nbformat.NotebookNode, title: str) -> str:
    """The notebook as a page that needs no network, its links to other notebooks led to their pages."""
    from mambanorm.report.notebook_page import (
        notebook_page,  # nbconvert takes a second to import; by now a kernel is at work
    )

    return _to_pages(notebook_page(nb, title))


def _to_pages(text: str) -> str:
    return re.sub(r'(href="[\w-]+)\.ipynb(["#])', r"\1.html\2", text)


def navigation(before: NotebookOutcome | None = None, after: NotebookOutcome | None = None) -> str:
    """Links to the page before, the index and the page after; where there is none its place stays empty."""
    links = []
    for kind, text, to in (("prev", "← {}", before), ("next", "{} →", after)):
        title = html.escape(text.format(to.title)) if to else ""
        links.append(f'<a rel="{kind}" href="{_attribute(to.html.name)}">{title}</a>' if to else "<span></span>")
    return f'<nav class="pages">{links[0]}<a href="index.html">All notebooks</a>{links[1]}</nav>'


def link_pages(outcomes: Sequence[NotebookOutcome]) -> None:
    """Leads each page to the one before and the one after it."""
    pages = [outcome for outcome in outcomes if outcome.html]
    for before, here, after in zip([None, *pages], pages, [*pages[1:], None]):
        page, links = here.html.read_text(encoding="utf-8"), navigation(before, after)
        write_text(here.html, re.sub('<nav class="pages">.*?</nav>', lambda _, to=links: to, page, flags=re.DOTALL))


def write_index(outcomes: Sequence[NotebookOutcome], out_dir: str | Path, facts: dict[str, str] | None = None) -> Path:
    """Writes the page of cards, with its thumbnails beside it, links the notebooks' pages to each other, and returns
    its path. It needs no network."""
    out_dir = Path(out_dir).resolve()
    out_dir.mkdir(parents=True, exist_ok=True)
    outcomes = sorted(outcomes, key=lambda outcome: outcome.name)
    link_pages(outcomes)
    bad = [outcome for outcome in outcomes if not outcome.ok]
    links = ", ".join(f'<a href="#{_attribute(o.name)}">{html.escape(o.name)}</a>' for o in bad)
    status = (
        f"{len(bad)} of {len(outcomes)} notebooks failed: {links}"
        if bad
        else f"{len(outcomes)} of {len(outcomes)} notebooks ran through"
    )
    page = PAGE.substitute(
        look=LOOK,
        scale=html.escape((facts or {}).get("Scale", "")),
        status=status,
        state="bad" if bad else "good",
        facts="".join(
            f"<div><dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd></div>" for k, v in (facts or {}).items()
        ),
        first="".join(f'<section class="first">{_first(outcome)}</section>' for outcome in outcomes if outcome.first),
        cards="\n".join(_card(outcome, out_dir) for outcome in outcomes),
    )
    write_text(out_dir / "index.html", page)
    return out_dir / "index.html"


def _first(outcome: NotebookOutcome) -> str:
    """A notebook's own HTML, under a heading that leads to it."""
    link = _attribute(outcome.html.name) if outcome.html else "#" + _attribute(outcome.name)
    return f'<h2><a href="{link}">{html.escape(outcome.title)}</a></h2>{outcome.first}'


def _card(outcome: NotebookOutcome, out_dir: Path) -> str:
    number = re.match(r"\d+", outcome.name)
    link = _attribute(outcome.html.name) if outcome.html else ""
    picture = _thumbnail(outcome, out_dir)
    image = f'<img src="{_attribute(picture)}" alt="">' if picture else f"<b>{number[0] if number else '·'}</b>"
    title = f'<a href="{link}">{html.escape(outcome.title)}</a>' if link else html.escape(outcome.title)
    parts = [
        f'<div class="picture{"" if picture else " empty"}">{image}</div><div class="text">',
        f'<p class="name">{html.escape(outcome.name)}</p><h2>{title}</h2>',
        f'<div class="question">{markdown(outcome.question)}</div>' if outcome.question else "",
        "" if outcome.ok else _failure_note(outcome),
        f'<div class="answer">{_lines(outcome.answer)}</div>' if outcome.answer else "",
        f'<p class="foot"><span>{spell(outcome.wall_s)}{_since(outcome)}</span>{_links(outcome, link)}</p></div>',
    ]
    state = "ok" if outcome.ok else "failed"
    return f'<article id="{_attribute(outcome.name)}" class="{state}">{"".join(parts)}</article>'


def _lines(answer: str) -> str:
    basis = OPENING.match(answer)
    said = "\n".join(f"- {line}" for line in key_lines(answer))
    return markdown(said) + (f'<p class="basis">{html.escape(basis[1])}</p>' if basis and basis[1] else "")


def _since(outcome: NotebookOutcome) -> str:
    return f" · executed earlier, {html.escape(outcome.earlier)}" if outcome.earlier else ""


def _links(outcome: NotebookOutcome, link: str) -> str:
    source = f'<a href="{_attribute(outcome.notebook.name)}">.ipynb</a>' if outcome.notebook else ""
    return f'<span>{source}<a class="go" href="{link}">Read on →</a></span>' if link else ""


def _failure_note(outcome: NotebookOutcome) -> str:
    if outcome.status == "ok":
        return f'<div class="failure"><strong>{html.escape(outcome.problem)}.</strong></div>'
    where = f"Failed in cell [{outcome.failed_cell}]" if outcome.failed_cell else "Failed before its first cell"
    source = f"<pre>{html.escape(outcome.failed_source)}</pre>" if outcome.failed_source else ""
    return f'<div class="failure"><strong>{where}</strong>{source}<p>{html.escape(outcome.error)}</p></div>'


def _attribute(text: str) -> str:
    return html.escape(text, quote=True)


def _thumbnail(outcome: NotebookOutcome, out_dir: Path) -> str:
    """Writes the picture, at most THUMBNAIL_WIDTH pixels wide, and returns its file name; "" if there is none."""
    if outcome.thumbnail is None:
        return ""
    from PIL import Image

    try:
        image = Image.open(io.BytesIO(outcome.thumbnail)).convert("RGBA")
    except (OSError, ValueError):  # a picture that cannot be read is not worth a report
        return ""
    image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    if image.width > THUMBNAIL_WIDTH:
        height = max(1, round(image.height * THUMBNAIL_WIDTH / image.width))
        image = image.resize((THUMBNAIL_WIDTH, height), Image.Resampling.LANCZOS)
    png = io.BytesIO()
    image.save(png, "PNG", optimize=True)
    write_bytes(out_dir / f"{outcome.name}.png", png.getvalue())
    return f"{outcome.name}.png"


OPENING = re.compile(r"\*\*Answer\.?\*\*(?: \((.*?)\))?\.?\s*")
"""How an answer begins: `**Answer** (quick scale · 3 seeds: a sketch).`"""


def key_lines(answer: str) -> list[str]:
    """The first sentence of each of an answer's first three paragraphs or bullets; where there are fewer than three,
    its first three sentences. Left out are its opening, its tables with the paragraph that introduces each, and what
    no line has room for."""
    blocks = re.split(r"  \n|\n\s*\n|\n(?=\s*[-*] )", OPENING.sub("", answer, count=1))
    blocks = [one for one, after in zip(blocks, [*blocks[1:], ""], strict=True) if not after.lstrip().startswith("|")]
    texts = [" ".join(block.split()).removeprefix("- ").removeprefix("* ") for block in blocks]
    sentences = [re.split(r"(?<=[.!?]) (?=[^a-z])", text) for text in texts if text and text[0] not in "|#<"]
    found = [[one for one in some if not one.endswith(":")] for some in sentences]  # that would announce a table
    first, every = [some[0] for some in found if some], [one for some in found for one in some]
    lines = first if len(first) > 2 else every
    return list(filter(None, map(_shortened, lines)))[:3] or [f"{line[:LONGEST_LINE]} …" for line in lines[:1]]


def _shortened(line: str) -> str:
    """A line of at most LONGEST_LINE signs: a longer one ends with "…" at a semicolon or at a comma behind one, else
    at a comma far enough on, never within brackets or emphasis; "" where it has none of these."""
    if len(re.sub(r"[*`]", "", line)) <= LONGEST_LINE:
        return line
    ends = [match.start() for match in re.finditer("[;,] ", line[:LONGEST_LINE]) if _closed(line[: match.start()])]
    several = any(line[end] == ";" for end in ends)
    clauses = ends if several else [end for end in ends if end > LONGEST_LINE / 2]
    return f"{line[: clauses[-1]]} …" if clauses else ""


def _closed(text: str) -> bool:
    pairs = all(text.count(left) == text.count(right) for left, right in ("()", "[]"))
    return pairs and not any(text.count(mark) % 2 for mark in ("**", "`", "$"))


def markdown(text: str) -> str:
    """Markdown → HTML; HTML within it is shown, not obeyed."""
    import mistune

    parse = mistune.create_markdown(escape=True, plugins=["table", "math"])
    parse.renderer.register("inline_math", lambda _, tex: mathml(tex))
    parse.renderer.register("block_math", lambda _, tex: mathml(tex, display="block"))
    return _to_pages(parse(text))


def mathml(tex: str, display: str = "inline") -> str:
    """TeX → MathML, which browsers draw without a script or a network. What cannot be read stays as it is."""
    from latex2mathml.converter import convert

    try:
        return convert(tex, display=display)
    except Exception:  # it has a dozen kinds of them, and none is worth a page
        return f"<code>{html.escape(tex)}</code>"


LOOK = """\
:root {
  --page: #f6f5f1; --card: #fff; --ink: #1d2129; --soft: #5d6573; --line: #e2e0d8; --accent: #2c5f8a; --wash: #eef3f7;
  --good: #2f7d4f; --bad: #b3362b; --bad-wash: #fbeeec; --plate: #fff;
  --shadow: 0 1px 2px #0000000d, 0 6px 20px #0000000d;
  --serif: Charter, "Iowan Old Style", "Source Serif 4", Georgia, serif;
  --mono: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171c; --card: #1d2128; --ink: #e6e8ec; --soft: #9aa3b0; --line: #2e343e; --accent: #86b8e0;
    --wash: #222b35; --good: #6cc492; --bad: #ff8d80; --bad-wash: #34211f; --plate: #e9eaec; --shadow: none;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
main { max-width: 1180px; margin: 0 auto; padding: 56px 24px 72px; }
a { color: var(--accent); text-decoration: none; }
a:hover { text-decoration: underline; }
a:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; border-radius: 3px; }
code { font: .9em var(--mono); }
pre { margin: 8px 0; font: 13px/1.45 var(--mono); white-space: pre-wrap; overflow-wrap: anywhere; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 10px 3px 0; text-align: left; border-bottom: 1px solid var(--line); }"""
"""The colours and the type of every page of the report."""


PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Normalization in Mamba: report at scale $scale</title>
<style>
$look
.eyebrow { margin: 0; color: var(--accent); font: 600 13px var(--mono); letter-spacing: .04em; }
h1 { margin: 8px 0 14px; font: 600 clamp(30px, 5vw, 44px)/1.15 var(--serif); letter-spacing: -.01em; }
.lead { max-width: 46em; margin: 0 0 22px; color: var(--soft); font-size: 18px; }
.status {
  display: inline-block; margin: 0 0 26px; padding: 6px 14px; border: 1px solid; border-radius: 8px;
  font-weight: 600; font-size: 15px;
}
.status.good { color: var(--good); }
.status.bad { color: var(--bad); background: var(--bad-wash); }
.status a { color: inherit; text-decoration: underline; }
dl {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(min(230px, 42%), 1fr)); gap: 14px 28px;
  margin: 0 0 44px; padding: 20px 0; border: solid var(--line); border-width: 1px 0;
}
dt { color: var(--soft); font-size: 13px; }
dd { margin: 2px 0 0; font-size: 14.5px; line-height: 1.45; overflow-wrap: anywhere; }

.first {
  margin: 0 0 36px; padding: 18px 22px 8px; overflow-x: auto;
  background: var(--card); border: 1px solid var(--line); border-radius: 14px;
}
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 480px), 1fr)); gap: 26px; }
article {
  display: flex; flex-direction: column; overflow: hidden; scroll-margin-top: 20px;
  background: var(--card); border: 1px solid var(--line); border-radius: 14px; box-shadow: var(--shadow);
}
article.failed { border-color: var(--bad); }
.picture {
  position: relative; display: grid; place-items: center; aspect-ratio: 16 / 9;
  background: var(--plate); border-bottom: 1px solid var(--line);
}
.picture img {
  position: absolute; inset: 12px; width: calc(100% - 24px); height: calc(100% - 24px);
  object-fit: contain; mix-blend-mode: multiply;
}
.picture.empty { background: var(--wash); }
.picture b { color: var(--accent); font: 600 64px/1 var(--serif); opacity: .35; }
.text { display: flex; flex-direction: column; flex: 1; padding: 20px 22px 16px; min-width: 0; }
.name { margin: 0; color: var(--soft); font: 12.5px var(--mono); }
h2 { margin: 3px 0 8px; font: 600 22px/1.25 var(--serif); }
h2 a { color: inherit; }
.question { color: var(--soft); font-style: italic; }
.question p { margin: 0; }
.answer, .failure {
  margin-top: 14px; padding: 10px 14px; overflow-wrap: anywhere; font-size: 14px;
  background: var(--wash); border-left: 3px solid var(--accent); border-radius: 0 8px 8px 0;
}
.answer :is(p, ul) { margin: 0 0 8px; }
.answer ul { padding: 0; list-style: none; }
.answer .basis { color: var(--soft); font-size: 12.5px; }
.answer > :last-child { margin-bottom: 0; }
.failure { background: var(--bad-wash); border-color: var(--bad); }
.failure strong, .failure p { color: var(--bad); }
.failure p { margin: 0; overflow-wrap: anywhere; white-space: pre-wrap; }
.foot {
  display: flex; flex-wrap: wrap; justify-content: space-between; gap: 4px 12px;
  margin: auto 0 0; padding-top: 16px; color: var(--soft); font-size: 14px;
}
.foot a + a { margin-left: 14px; }
.go { font-weight: 600; }
@media print { article { break-inside: avoid; box-shadow: none; } }
</style>
</head>
<body>
<main>
<p class="eyebrow">mambanorm · scale $scale</p>
<h1>Normalization in Mamba</h1>
<p class="lead">Which norm does a Mamba block want, and where: before the selective scan, after it, or on both sides?
Each card is one notebook, executed from top to bottom: its question, the answer that these very runs give, and the way
there.</p>
<p class="status $state">$status</p>
$first
<dl>$facts</dl>
<section class="cards">
$cards
</section>
</main>
</body>
</html>
""")
