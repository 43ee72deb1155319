"""The first page: what was found, the contents, the claims, and one card a notebook: its question, its picture and at
most three lines of its answer. Its text is in `templates/index.html`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path

from mambanorm.basics.atomic import write_bytes, write_text
from mambanorm.basics.text import spell
from mambanorm.report.notebooks import NotebookOutcome
from mambanorm.report.page import OPENING, figures, key_lines, markdown, navigation, page, template

THUMBNAIL_WIDTH = 640


def link_pages(outcomes: Sequence[NotebookOutcome]) -> None:
    """Links each page to the one before and the one after it."""
    pages = [outcome for outcome in outcomes if outcome.html]
    links = [(outcome.title, outcome.html.name) for outcome in pages]
    for before, here, after in zip([None, *links], pages, [*links[1:], None]):
        text, to = here.html.read_text(encoding="utf-8"), navigation(before, after)
        write_text(here.html, re.sub('<nav class="pages">.*?</nav>', lambda _, to=to: to, text, flags=re.DOTALL))


def write_index(outcomes: Sequence[NotebookOutcome], out_dir: str | Path, facts: dict[str, str] | None = None) -> Path:
    """Writes the page of cards, with its thumbnails beside it, links the notebooks' pages to each other, and returns
    its path. It needs no network."""
    out_dir, facts = Path(out_dir).resolve(), facts or {}
    out_dir.mkdir(parents=True, exist_ok=True)
    outcomes = sorted(outcomes, key=lambda outcome: outcome.name)
    link_pages(outcomes)
    scale = facts.get("Scale", "")
    body = template(
        "index.html",
        outcomes=outcomes,
        bad=[outcome for outcome in outcomes if not outcome.ok],
        facts=facts,
        scale=scale,
        thumbnails={outcome.name: _thumbnail(outcome, out_dir) for outcome in outcomes},
        markdown=markdown,
        lines=lambda answer: markdown("\n".join(f"- {line}" for line in key_lines(answer))),
        opening=OPENING,
        spell=spell,
    )
    whole = page(f"Normalization in Mamba: report at scale {scale}", figures(body), template("index.css"))
    write_text(out_dir / "index.html", whole)
    write_text(out_dir / ".nojekyll", "")  # GitHub Pages then serves the folder as it is
    return out_dir / "index.html"


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
    image.thumbnail((THUMBNAIL_WIDTH, image.height), Image.Resampling.LANCZOS)
    png = io.BytesIO()
    image.save(png, "PNG", optimize=True)
    write_bytes(out_dir / f"{outcome.name}.png", png.getvalue())
    return f"{outcome.name}.png"
