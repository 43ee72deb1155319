"""The first page: what was found, the contents, the claims, and one card a notebook: its question, its picture and at
most three lines of its answer.

NotebookOutcomes → write_index → index.html, with its thumbnails beside it

write_index     outcomes → the page of cards, from templates/index.html
link_pages      links each notebook's page to the one before and the one after it
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from pathlib import Path

from mambanorm.basics.atomic import write_bytes, write_text
from mambanorm.basics.text import spell
from mambanorm.report.markdown import OPENING, key_lines, markdown
from mambanorm.report.outcome import NotebookOutcome
from mambanorm.report.page import attribute, figures, navigation, page, template

THUMBNAIL_WIDTH = 640


def link_pages(outcomes: Sequence[NotebookOutcome]) -> None:
    """Links each page to the one before and the one after it."""
    pages = [outcome for outcome in outcomes if outcome.html]
    for before, here, after in zip([None, *pages], pages, [*pages[1:], None]):
        text, links = here.html.read_text(encoding="utf-8"), navigation(before, after)
        write_text(here.html, re.sub('<nav class="pages">.*?</nav>', lambda _, to=links: to, text, flags=re.DOTALL))


def write_index(outcomes: Sequence[NotebookOutcome], out_dir: str | Path, facts: dict[str, str] | None = None) -> Path:
    """Writes the page of cards, with its thumbnails beside it, links the notebooks' pages to each other, and returns
    its path. It needs no network."""
    out_dir = Path(out_dir).resolve()
    out_dir.mkdir(parents=True, exist_ok=True)
    outcomes = sorted(outcomes, key=lambda outcome: outcome.name)
    link_pages(outcomes)
    bad = [outcome for outcome in outcomes if not outcome.ok]
    links = ", ".join(f'<a href="#{attribute(o.name)}">{html.escape(o.name)}</a>' for o in bad)
    status = (
        f"{len(bad)} of {len(outcomes)} notebooks failed: {links}"
        if bad
        else f"{len(outcomes)} of {len(outcomes)} notebooks ran through"
    )
    facts = facts or {}
    scale = facts.get("Scale", "")
    body = template(
        "index.html",
        scale=html.escape(scale),
        status=status,
        state="bad" if bad else "good",
        facts="".join(f"<div><dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd></div>" for k, v in facts.items()),
        heading='<h2 id="found">What was found</h2>' if any(outcome.found for outcome in outcomes) else "",
        found="\n".join(outcome.found for outcome in outcomes),
        contents="\n".join(map(_line, outcomes)),
        first="".join(f'<section class="first">{_first(outcome)}</section>' for outcome in outcomes if outcome.first),
        cards="\n".join(_card(outcome, out_dir) for outcome in outcomes),
    )
    whole = page(f"Normalization in Mamba: report at scale {scale}", figures(body), template("index.css"))
    write_text(out_dir / "index.html", whole)
    write_text(out_dir / ".nojekyll", "")  # GitHub Pages then serves the folder as it is
    return out_dir / "index.html"


def _line(outcome: NotebookOutcome) -> str:
    """A notebook's line of the contents, which leads to its card."""
    failed = "" if outcome.ok else ' <span class="bad">failed</span>'
    link = f'<a href="#{attribute(outcome.name)}">{html.escape(outcome.title)}</a>'
    return f"<li><code>{_number(outcome)}</code> {link}{failed}</li>"


def _number(outcome: NotebookOutcome) -> str:
    """`03` of 03_type; "·" where a name has none."""
    number = re.match(r"\d+", outcome.name)
    return number[0] if number else "·"


def _first(outcome: NotebookOutcome) -> str:
    """A notebook's own HTML, under a heading that links to its page; all but the first of it is folded."""
    link = attribute(outcome.html.name) if outcome.html else "#" + attribute(outcome.name)
    (_, shown), *others = outcome.first
    folded = (f"<details><summary>{html.escape(name)}</summary>{more}</details>" for name, more in others)
    heading = f'<h2 id="{attribute(outcome.name)}-first"><a href="{link}">{html.escape(outcome.title)}</a></h2>'
    return heading + shown + "".join(folded)


def _card(outcome: NotebookOutcome, out_dir: Path) -> str:
    link = attribute(outcome.html.name) if outcome.html else ""
    picture = _thumbnail(outcome, out_dir)
    image = f'<img src="{attribute(picture)}" alt="">' if picture else f"<b>{_number(outcome)}</b>"
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
    return f'<article id="{attribute(outcome.name)}" class="{state}">{"".join(parts)}</article>'


def _lines(answer: str) -> str:
    basis = OPENING.match(answer)
    said = "\n".join(f"- {line}" for line in key_lines(answer))
    return markdown(said) + (f'<p class="basis">{html.escape(basis[1])}</p>' if basis and basis[1] else "")


def _since(outcome: NotebookOutcome) -> str:
    return f" · executed earlier, {html.escape(outcome.earlier)}" if outcome.earlier else ""


def _links(outcome: NotebookOutcome, link: str) -> str:
    source = f'<a href="{attribute(outcome.notebook.name)}">.ipynb</a>' if outcome.notebook else ""
    return f'<span>{source}<a class="go" href="{link}">Read on →</a></span>' if link else ""


def _failure_note(outcome: NotebookOutcome) -> str:
    if outcome.status == "ok":
        return f'<div class="failure"><strong>{html.escape(outcome.problem)}.</strong></div>'
    where = f"Failed in cell [{outcome.failed_cell}]" if outcome.failed_cell else "Failed before its first cell"
    source = f"<pre>{html.escape(outcome.failed_source)}</pre>" if outcome.failed_source else ""
    return f'<div class="failure"><strong>{where}</strong>{source}<p>{html.escape(outcome.error)}</p></div>'


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
